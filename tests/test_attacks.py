"""Attacks on one's own deployment, and advice: on German credit, on wine, in process and over HTTP."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from counterveil import Database, Deployment, Schema, local
from counterveil.errors import EmptyDatabase, NotOffered, OutOfRange
from counterveil.research import experiments
from counterveil.research.advice import _most_bits, advise, coarser, write_choice
from counterveil.research.attacks import (
    ROW_ATTACKS,
    Report,
    attack_all,
    attack_deployment,
    crafted,
    linking,
    multilateration,
)
from counterveil.research.datasets import german_credit
from counterveil.research.oracles import Shown, in_process
from counterveil.schemes.reveals import make_reveal
from datafiles import SHIPPED
from service import cli, numbers_database, running

pytestmark = pytest.mark.slow


def by_name(reports: list[Report]) -> dict[tuple[str, str], Report]:
    return {(report.attack, report.against.split(",")[0]): report for report in reports if "2^61" not in report.against}


@pytest.fixture(scope="module")
def credit() -> Database:
    frame, schema = german_credit()
    return Database.build(frame, schema, accepted=("credit", "good"))


@pytest.fixture(scope="module")
def wine() -> Database:
    with (SHIPPED / experiments.WINE).open(newline="") as file:
        names, *rows = csv.reader(file, delimiter=";")
    data: dict[str, list[Any]] = {name: [float(row[i]) for row in rows] for i, name in enumerate(names)}
    data["ok"] = [quality >= 5 for quality in data.pop("quality")]
    return Database.build(data, Schema.infer(data, exclude=["ok"], most_levels=20), accepted="ok")


def check(reports: list[Report], columns: int) -> None:
    """d + 1 honest tickets recover every row; with an oversized field one does, with the smallest prime it does not."""
    found = by_name(reports)
    for reveal in ("distances", "differences"):
        assert found["multilateration", f"linear/{reveal}"].last.rows == 1
        assert found["multilateration", f"linear/{reveal}"].last.tickets == columns + 1
        assert found["level reading", f"table/{reveal}"].last.rows == 1
        assert found["level reading", f"table/{reveal}"].last.tickets <= columns + 1
    oversized = next(report for report in reports if "2^61" in report.against)
    assert (oversized.last.tickets, oversized.last.rows) == (1, 1.0)
    smallest = found["crafted digits", "table/distances"]
    assert smallest.curve[0].rows == 0
    assert smallest.curve[0].cells < 1
    averaging = found["averaging a mask", "euclidean/masked"]
    assert averaging.curve[0].rows < 0.05
    assert averaging.last.cells > 0.95


def test_german_credit(credit: Database) -> None:
    reports = attack_all(credit, tickets=30)
    check(reports, columns=50)
    sealed = [report for report in reports if "/sealed" in report.against]
    assert {report.attack for report in sealed} == {
        "multilateration", "level reading", "crafted digits", "linking orders", "probing"
    }  # fmt: skip
    for report in sealed:
        assert all(point.rows <= point.tickets / len(credit.codes) for point in report.curve), report.against
    for reveal in ("distances", "differences"):
        assert by_name(reports)["linking orders", f"table/{reveal}"].last.rows > 0.5


def test_wine(wine: Database) -> None:
    check(attack_all(wine, tickets=20), columns=11)


@pytest.mark.parametrize(
    ("name", "scheme", "parameters"),
    [
        ("multilateration", "linear/distances", {"shuffle": False}),
        ("multilateration", "linear/differences", {"shuffle": False}),
        ("level reading", "table/distances", {"shuffle": False}),
        ("averaging a mask", "euclidean/masked", {"shuffle": False, "d_min": 5}),
        ("crafted digits", "table/distances", {"shuffle": False}),
        ("linking orders", "table/distances", {"shuffle": True}),
        ("probing", "table/sealed", {}),
    ],
)
def test_every_attack_on_rows_uses_the_answers(name: str, scheme: str, parameters: dict[str, Any]) -> None:
    """Two controls: with the answers it succeeds, and with noise in their place it recovers nothing."""
    numbers = numbers_database(40, 3, 1000)
    deployment = Deployment.of(numbers.schema, scheme=scheme, **parameters)
    oracle, rows, attack = in_process(numbers, deployment), deployment.rows(numbers.codes), ROW_ATTACKS[name].run
    assert attack(oracle, rows)[-1].rows > 0.8
    noise, honest = np.random.default_rng(1), oracle.reveal

    def record() -> Any:
        return noise.integers(0, 1001, 3)

    def noisy(question: Any) -> Shown:
        seen = honest(question)
        return seen._replace(revealed=noise.integers(0, deployment.scheme.field.q, len(seen.revealed)), record=record())

    oracle.reveal, oracle.fetch = noisy, lambda own: record()  # type: ignore[method-assign]
    assert attack(oracle, rows)[-1].rows == 0


@pytest.mark.parametrize("scheme", ["table/masked", "table/masked_differences"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_mask_does_not_stop_digits(credit: Database, scheme: str, shuffle: bool) -> None:
    deployment = Deployment.of(credit.schema, scheme=scheme, record=credit.record, shuffle=shuffle, d_min=100)
    reading, _ = attack_deployment(in_process(credit, deployment), credit, tickets=2)
    assert reading.last.rows == 1 if not shuffle else reading.last.rows > 0


def test_small_databases(tmp_path: Path) -> None:
    """One feature, one row, constant features: what one answer holds needs no linking."""
    for count, d in ((1, 2), (8, 1), (30, 2)):
        database = numbers_database(count, d)
        for shuffle in (False, True):
            chosen: dict[str, Any] = {"scheme": "table/differences", "record": database.record, "shuffle": shuffle}
            deployment = Deployment.of(database.schema, **chosen)
            reading, _ = attack_deployment(in_process(database, deployment), database, tickets=2)
            assert reading.last.rows == 1
        assert attack_all(database, tickets=3)


def test_attack_and_leakage_on_the_command_line(credit: Database, tmp_path: Path) -> None:
    credit.save(tmp_path / "credit.bundle")
    attacked = cli("attack", tmp_path / "credit.bundle", "--probes", 10, "--plots", tmp_path / "p")
    assert attacked.returncode == 0, attacked.stderr
    assert "attacks recovered every row" in " ".join(attacked.stdout.split())
    assert (tmp_path / "p" / "attacks.png").stat().st_size > 10_000
    found = json.loads(cli("attack", tmp_path / "credit.bundle", "--probes", 5, "--json").stdout)
    assert found[2]["curve"][-1] == {"tickets": 51, "rows": 1.0, "cells": 1.0}

    options = ["--applicants", 2, "--samples", 6, "--d-min", "5", "--questions", 3]
    leaked = cli("leakage", tmp_path / "credit.bundle", *options, "--plots", tmp_path / "p")
    assert leaked.returncode == 0, leaked.stderr
    assert "All rows together are 6,616 bits" in " ".join(leaked.stdout.split())
    assert (tmp_path / "p" / "leakage.png").stat().st_size > 10_000
    ladder = json.loads(cli("leakage", tmp_path / "credit.bundle", *options, "--json").stdout)
    bits = {(r["reveal"], r["shuffle"]): r["bits"] for r in ladder["reveals"]}
    assert bits["distances", False] > bits["distances", True] > bits["masked", True] > 0
    assert bits["distances", False] <= ladder["bits_of_all_rows"]
    assert all(r["maximal"][1] >= r["interval"][0] for r in ladder["reveals"])
    assert (tmp_path / "p" / "budget.png").stat().st_size > 10_000
    told = {(r["reveal"], r["shuffle"]): r for r in ladder["questions"]}
    assert [t["questions"] for t in told["sealed", True]["curve"]] == [1, 2, 3]
    assert told["distances", False]["tickets"] == 0 < told["sealed", True]["tickets_to_anybody"]
    assert told["sealed", True]["tickets_to_anybody"] == 6 < told["sealed", True]["tickets"]  # 131 of 19.45 bits each


def test_attack_over_http(tmp_path: Path) -> None:
    database = numbers_database(40, 3)
    with running(tmp_path, database, 2, "--scheme", "table/distances", "--no-shuffle") as service:
        with service.client() as client:
            tickets = [service.ticket(client).text() for _ in range(30)]
        (tmp_path / "tickets").write_text("\n".join(tickets))
        servers = [part for url in service.urls for part in ("--server", url)]
        options = [*servers, "--tickets", tmp_path / "tickets", "--probes", 10, "--json"]
        attacked = cli("attack", service.bundle, *options)
        assert attacked.returncode == 0, attacked.stderr
        reading, probing = json.loads(attacked.stdout)
        assert reading["curve"][-1]["rows"] == 1.0
        assert probing["curve"][-1]["tickets"] == 10
        again = cli("attack", service.bundle, *options)
        assert again.returncode == 2
        assert "the ticket was used" in again.stderr
        assert "expected --tickets FILE" in cli("attack", service.bundle, *servers).stderr


def test_advice_is_written_and_taken_up(tmp_path: Path) -> None:
    frame, schema = german_credit()
    frame.write_csv(tmp_path / "credit.csv")
    schema.save(tmp_path / "credit.toml")
    said = cli(
        "advise", tmp_path / "credit.csv", "--schema", tmp_path / "credit.toml", "--accepted", "credit=good",
        "--accuracy", 0.9, "--questions", 2, "--json",
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    chosen = json.loads(said.stdout)["chosen"]
    assert chosen["accuracy"] >= 0.9
    tried = [o for o in json.loads(said.stdout)["tried"] if o["accuracy"] >= 0.9]
    assert chosen["bits_together"][1] == min(o["bits_together"][1] for o in tried)
    written = Schema.load(tmp_path / "credit.toml")
    assert written.choice({})["scheme"] == chosen["scheme"]
    assert written.choice({})["d_min"] == chosen["d_min"]
    assert max(f.steps for f in written.features if f.name == "amount") <= chosen["levels"]
    bank = local(Database.build(frame, written, accepted=("credit", "good")))
    assert str(bank.deployment.scheme.field.q) == chosen["q"]  # what was predicted is what runs
    other = local(Database.build(frame, written, accepted=("credit", "good")), "table/distances")
    assert (other.deployment.scheme.reveal.name, other.deployment.scheme.reveal.d_min) == ("distances", 1)


def test_serve_takes_up_what_the_schema_says(tmp_path: Path) -> None:
    plain = numbers_database(20, 2)
    limited = Schema.from_toml(plain.schema.to_toml() + "\n[deployment]\ndownload_limit = 0\n")
    schema = write_choice(advise(frame_of(plain), limited, "ok", accuracy=0.5)[0])
    assert schema.choice({})["download_limit"] == 0
    assert (schema.choice({})["scheme"], schema.choice({})["protocol"]) == ("table/sealed", "joint")
    option = advise(frame_of(plain), plain.schema, "ok", accuracy=0.5)[0]
    schema = write_choice(option)
    assert schema.choice({})["scheme"] == "table/sealed"
    database = Database.build(frame_of(plain), schema, accepted="ok")
    with running(tmp_path, database, 2, "--max-weight", 4) as service, service.client() as client:
        parameters = client.peers[0].manifest.terms.parameters
        assert (parameters.scheme, parameters.d_min) == (schema.choice({})["scheme"], schema.choice({})["d_min"])
        assert parameters.max_weight == 4  # a flag goes before it


def frame_of(database: Database) -> pl.DataFrame:
    """Return the rows as accepted people, and their opposites as rejected ones."""
    codes = database.codes.astype(int)
    columns: dict[str, Any] = {
        name: [*codes[:, j], *(20 - codes[:, j])] for j, name in enumerate(database.schema.names)
    }
    return pl.DataFrame(columns | {"ok": [True] * len(codes) + [False] * len(codes)})


def test_advice_needs_people_and_sense() -> None:
    frame, schema = german_credit()
    with pytest.raises(OutOfRange, match="accuracy: got 2"):
        advise(frame, schema, ("credit", "good"), accuracy=2)
    good = frame.filter(frame["credit"] == "good")
    with pytest.raises(EmptyDatabase, match="nobody who was rejected"):
        advise(good, schema, ("credit", "good"), levels=())
    assert max(f.steps for f in coarser(schema, 7).features if f.name in ("amount", "duration")) == 7


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("reveal", ["distances", "differences", "masked", "masked_differences"])
def test_the_number_of_tickets_that_is_shown_is_what_the_attack_needs(reveal: str, shuffle: bool) -> None:
    """`rebuilt_after` is worked out from public numbers; the attack, which knows no more, ends there."""
    for rows, d, levels in ((60, 6, 1000), (40, 12, 1000)) if shuffle else ((60, 6, 20), (40, 12, 9)):
        database = numbers_database(rows, d, levels)
        d_min = 30 if "masked" in reveal else 1
        deployment = Deployment.of(database.schema, scheme=f"table/{reveal}", shuffle=shuffle, d_min=d_min)
        attack = linking if shuffle else crafted
        curve = attack(in_process(database, deployment), deployment.rows(database.codes))
        assert curve[-1].tickets == deployment.scheme.rebuilt_after
        enough = 0.8 if shuffle else 1.0  # rows are linked by features in which not all differ
        assert curve[-1].rows >= enough
        assert all(point.rows < enough for point in curve[:-1])  # and no earlier
        assert str(deployment.scheme.rebuilt_after) in deployment.lasts()


@pytest.mark.parametrize(
    ("scheme", "d_min"), [("linear/distances", 1), ("linear/differences", 1), ("euclidean/masked", 40)]
)
def test_multilateration_ends_where_it_is_said_to(scheme: str, d_min: int) -> None:
    database = numbers_database(30, 4)
    deployment = Deployment.of(database.schema, scheme=scheme, shuffle=False, d_min=d_min)
    needed = deployment.scheme.rebuilt_after
    assert needed is not None
    repeats = needed // (deployment.scheme.form.d + 1)
    assert (repeats > 1) == (d_min > 1)
    curve = multilateration(in_process(database, deployment), deployment.rows(database.codes), repeats=(repeats,))
    assert curve[-1].tickets == needed
    assert curve[-1].rows > 0.9


def test_sealed_lasts() -> None:
    database = numbers_database(30, 4)
    deployment = Deployment.of(database.schema, scheme="table/sealed")
    assert deployment.scheme.rebuilt_after is None
    assert "one row a ticket" in deployment.lasts()


def test_advice_never_picks_what_an_attack_rebuilds() -> None:
    plain = numbers_database(30, 2)
    best, tried = advise(frame_of(plain), plain.schema, "ok", accuracy=1.0, levels=(2,))
    assert {option.rebuilt for option in tried} == {False, True}
    assert not best.rebuilt
    assert best.deployment.scheme.reveal.name == "sealed"
    with pytest.raises(NotOffered, match="collusion: got 2, expected 1: with more, every reveal"):
        advise(frame_of(plain), plain.schema, "ok", collusion=2, levels=(2,))


@pytest.mark.parametrize("width", [1, 3, 40])
def test_the_bound_of_masked_costs_is_what_one_row_shows(width: int) -> None:
    """Without a secret order the bound is exact: H(cost + mask) - H(mask) for every row, counted out here."""
    costs = np.array([0, 2, 2, 7, 30, 31])
    shown = (costs[:, None] + np.arange(width)).reshape(-1)
    chances = np.unique(shown, return_counts=True)[1] / shown.size
    expected = costs.size * (-(chances * np.log2(chances)).sum() - np.log2(width))
    reveal = make_reveal("masked" if width > 1 else "distances", shuffle=False, d_min=width)
    assert _most_bits(reveal, [costs]) == pytest.approx(min(expected, costs.size * np.log2(costs.size)))


def test_tables_fit_80_columns(tmp_path: Path) -> None:
    frame, schema = german_credit()
    frame.write_csv(tmp_path / "credit.csv")
    schema.save(tmp_path / "credit.toml")
    given = [tmp_path / "credit.csv", "--schema", tmp_path / "credit.toml", "--accepted", "credit=good"]
    assert cli("build", *given, "-o", tmp_path / "bundle").returncode == 0
    quick = ["--applicants", 2, "--samples", 4, "--d-min", "100", "--questions", 2]
    for said in (
        cli("advise", *given, "--dry-run"),
        cli("attack", tmp_path / "bundle", "--probes", 2),
        cli("leakage", tmp_path / "bundle", *quick),
    ):
        assert said.returncode == 0, said.stderr
        assert "…" not in said.stdout
        assert max(map(len, said.stdout.splitlines())) <= 80
