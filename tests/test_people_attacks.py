"""Attacks on people and on the model: each with a control in which it succeeds and one in which it must fail."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from counterveil import Categorical, Deployment, Local, Numeric, Preferences, Schema
from counterveil.applicant.ask import compile_question
from counterveil.errors import EmptyDatabase, MissingValue, OutOfRange, UnknownName, WrongType
from counterveil.research.attacks import (
    ATTACKS,
    KINDS,
    PEOPLE_ATTACKS,
    ROW_ATTACKS,
    Known,
    Scene,
    Served,
    asked,
    attack_deployment,
    attack_people,
)  # fmt: skip
from counterveil.research.attacks.extraction import train
from counterveil.research.attacks.membership import told_apart
from counterveil.research.attacks.scene import REVEALS, fitted
from counterveil.research.attacks.trials import _mean
from counterveil.research.datasets import german_credit
from counterveil.research.oracles import in_process
from service import cli, numbers_database

NEIGHBOURS = ("age", "personal_status", "job", "housing", "residence", "dependants", "foreign_worker")
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def scene() -> Scene:
    frame, schema = german_credit()
    return Scene.drawn(frame, schema, ("credit", "good"), seed=1, known=NEIGHBOURS)


@pytest.fixture(scope="module")
def served(scene: Scene) -> dict[str, Served]:
    """Serve every kind of record that there is, with open costs."""
    return {kind: Served(scene, scene.serve(kind), "opened") for kind in KINDS if kind != "cells of 2"}


def crowd(count: int = 300) -> tuple[pl.DataFrame, Schema]:
    """Return people of whom many share all their levels, though hardly anybody shares all values."""
    draw = np.random.default_rng(3)
    age, income = draw.uniform(20, 70, count), draw.uniform(0, 100, count)
    town = draw.choice(["a", "b"], count)
    frame = pl.DataFrame({"age": age, "income": income, "town": town, "ok": income + draw.normal(0, 10, count) > 40})
    features = (
        Numeric(name="age", low=20, high=70, step=10),
        Numeric(name="income", low=0, high=100, step=20),
        Categorical(name="town", values=("a", "b")),
    )
    return frame, Schema(features=features)


def everything(served: Served) -> Known:
    """Return what somebody knows who has read all levels off open costs."""
    assert served.reading_tickets is not None
    (known,) = asked(served, [served.reading_tickets + 4])
    assert known.read
    return known


# --- what an attacker sees -----------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize(("kind", "reveal"), list(product(["rows", "cells", "regions of 10"], REVEALS)))
def test_the_search_in_the_clear_finds_what_real_servers_send(scene: Scene, kind: str, reveal: str) -> None:
    served = Served(scene, scene.serve(kind), reveal)
    bank, rows = Local(served.database, served.deployment), served.database.codes.astype(np.int64)
    layout, same = served.deployment.tariff.layout, 0
    for person, prefers in scene.questions(len(scene.askers) + 4, 10)[-8:]:
        _, costs = compile_question(served.deployment, scene.codes[person], prefers)
        tables = layout.tables(costs)

        def cost(codes: Any, tables: Any = tables) -> int:
            return sum(int(t[c]) for t, c in zip(tables, layout.columns(codes[None])[0], strict=True))

        _, (record,) = bank.fetch(scene.codes[person], prefers)
        mine = rows[served.ask(person, prefers)]
        assert cost(mine) == cost(record.codes) == min(cost(row) for row in rows)
        same += np.array_equal(mine, record.codes)
    assert same >= 4  # where several are nearest, either may come


def test_whoever_asks_again_asks_something_else(scene: Scene) -> None:
    count = len(scene.askers)
    first, again = scene.questions(2 * count, 10)[:count], scene.questions(2 * count, 10)[count:]
    assert [person for person, _ in first] == [person for person, _ in again] == scene.askers.tolist()
    assert all(prefers == Preferences() for _, prefers in first)
    assert len({str(prefers.weights) for _, prefers in again}) == count
    assert not scene.accepted[scene.askers].any()


def test_people_are_shared_out(scene: Scene) -> None:
    parts = [scene.inside, scene.own, scene.outside]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert set(scene.members) <= set(scene.inside)
    assert set(scene.strangers) <= set(scene.outside)
    assert scene.accepted[scene.members].all()
    assert scene.accepted[scene.strangers].all()


def test_distances(scene: Scene, served: dict[str, Served]) -> None:
    """A member is at 0 from their own row, and every member at 0 from each region that counts them."""
    rows, levels = served["rows"].apart(exact=True), served["rows"].apart(exact=False)
    source = served["rows"].database.source
    assert source is not None
    own = scene.inside[source]
    assert (rows[own, np.arange(len(own))] == 0).all()
    assert rows.shape == (1000, served["rows"].database.rows)
    j = scene.schema.names.index("age")
    age = np.asarray(scene.table.column("age"), dtype=float)
    only = served["rows"].apart(exact=True, features=["age"])
    assert only[5, 7] == pytest.approx(abs(age[5] - age[own[7]]) / 65)
    coarse = served["rows"].apart(exact=False, features=["age"])
    assert coarse[5, 7] == pytest.approx(abs(int(scene.codes[5, j]) - int(scene.codes[own[7], j])) / 13)
    assert np.array_equal(levels, served["cells"].apart(exact=True))  # a cell tells levels alone
    holds = served["regions of 10"].apart(exact=False)[scene.members] == 0
    assert holds.sum(axis=0).min() >= 10


# --- membership ----------------------------------------------------------------------------------------------------


def test_the_area_is_the_chance_that_a_member_scores_higher() -> None:
    draw = np.random.default_rng(1)
    scores = draw.integers(0, 6, 70).astype(float)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[:30] for b in scores[30:]]
    assert told_apart(scores, 30)[0] == pytest.approx(np.mean(pairs))
    assert told_apart(np.array([3.0, 2.0, 1.0, 0.0]), 2) == (1.0, 1.0)
    assert told_apart(np.zeros(9), 4) == (0.5, 0.0)
    strangers = np.arange(200.0)
    assert told_apart(np.concatenate([[196.5, 198.5], strangers]), 2)[1] == 0.5  # two of 200 false alarms are allowed


@slow
@pytest.mark.parametrize("name", ["membership", "direct membership"])
def test_membership_succeeds_on_rows_and_fails_where_nobody_is_a_member(
    scene: Scene, served: dict[str, Served], name: str
) -> None:
    run = PEOPLE_ATTACKS[name].run
    known = everything(served["rows"])
    area, found = run(scene, known)
    assert area > 0.99
    assert found > 0.95
    half = len(scene.strangers) // 2
    nobody = replace(scene, members=scene.strangers[:half], strangers=scene.strangers[half:])
    area, found = run(nobody, known)
    assert 0.35 < area < 0.65  # half of a 95 % interval is some 0.09
    assert found < 0.2
    area, found = run(scene, everything(served["regions of 10"]))
    assert area < 0.6
    assert found < 0.1


@slow
def test_with_and_without_one_person(scene: Scene) -> None:
    """The same person, with and without their data in the institution's model and rows."""
    person = int(scene.members[0])
    without = scene.inside[scene.inside != person]
    kept = np.isin(np.arange(scene.table.count), without)
    truth = np.array([verdict == "good" for verdict in scene.table.column("credit")])
    model = fitted(scene.table.rows(kept), scene.schema, truth[kept])
    verdicts = np.asarray(model.predict(scene.table.select(scene.schema.names)), dtype=bool)
    other = replace(scene, model=model, accepted=verdicts, inside=without, members=without[verdicts[without]])
    far = {}
    for each in (scene, other):
        answers = Served(each, each.serve("rows"), "sealed")
        far[each is scene] = answers.apart(exact=True)[person, answers.ask(person, Preferences())]
    assert far[True] == 0 < far[False]


# --- linkage -------------------------------------------------------------------------------------------------------


@slow
def test_linkage_succeeds_with_all_features_and_fails_for_people_who_are_not_there(
    scene: Scene, served: dict[str, Served]
) -> None:
    run, known = PEOPLE_ATTACKS["linkage"].run, everything(served["rows"])
    few, records = run(scene, known)
    assert 0.1 < few < 0.6
    assert records >= few
    assert run(replace(scene, known=tuple(scene.schema.names)), known)[0] > 0.95
    assert run(replace(scene, members=scene.strangers), known) == (0.0, 0.0)
    assert run(replace(scene, known=("foreign_worker",)), known) == (0.0, 0.0)


@slow
def test_regions_of_several_people_fit_nobody_alone(scene: Scene, served: dict[str, Served]) -> None:
    """`min_people` is a guarantee: whatever is known of people, as many fit."""
    everyone = replace(scene, known=tuple(scene.schema.names))
    assert PEOPLE_ATTACKS["linkage"].run(everyone, everything(served["regions of 10"])) == (0.0, 0.0)


def test_cells_of_two_fit_nobody_alone() -> None:
    frame, schema = crowd()
    scene = Scene.drawn(frame, schema, "ok", seed=2, known=("age", "income", "town"))
    run = PEOPLE_ATTACKS["linkage"].run
    found = {kind: run(scene, everything(Served(scene, scene.serve(kind), "opened"))) for kind in list(KINDS)[:3]}
    assert found["rows"][0] > found["cells"][0] > 0
    assert found["cells of 2"] == (0.0, 0.0)


# --- extraction ----------------------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize("name", ["extraction", "clamped extraction"])
@pytest.mark.parametrize("kind", ["rows", "regions of 10"])
def test_extraction_copies_the_model_and_no_other(
    scene: Scene, served: dict[str, Served], name: str, kind: str
) -> None:
    (known,) = asked(served[kind], [64])
    balanced, _ = PEOPLE_ATTACKS[name].run(scene, known)
    assert balanced > 0.7
    verdicts = np.random.default_rng(1).permutation(scene.accepted)  # a model that has nothing to do with the answers
    balanced, _ = PEOPLE_ATTACKS[name].run(replace(scene, accepted=verdicts), known)
    assert 0.35 < balanced < 0.65


def test_verdicts_train_a_copy(scene: Scene) -> None:
    plain = PEOPLE_ATTACKS["extraction"].plain
    assert plain is not None
    assert plain(scene, 150)[0] > 0.75
    shuffled = replace(scene, accepted=np.random.default_rng(2).permutation(scene.accepted))
    assert 0.35 < plain(shuffled, 150)[0] < 0.65


def test_a_clamped_copy_need_not_be_sure() -> None:
    inputs = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]])
    label, border = np.array([False, True, True]), np.array([False, True, False])
    sure, clamped = (inputs @ train(inputs, label, at) for at in (np.zeros(3, dtype=bool), border))
    assert sure[1] > clamped[1]
    assert clamped[0] < 0 < clamped[2]


# --- the table, the trials and the command -------------------------------------------------------------------------


def test_every_attack_is_in_one_table() -> None:
    assert set(ATTACKS) == set(ROW_ATTACKS) | set(PEOPLE_ATTACKS)
    assert len(ATTACKS) == len(ROW_ATTACKS) + len(PEOPLE_ATTACKS) == 11
    numbers = numbers_database(12, 2)
    oracle = in_process(numbers, Deployment.serving(numbers))
    assert [r.attack for r in attack_deployment(oracle, numbers, tickets=2, names=["probing"])] == ["probing"]


def test_the_mean_over_scenes_has_students_interval() -> None:
    found = _mean(4, [(0.2, 1.0), (0.4, 0.0)])
    assert (found.value, found.second) == pytest.approx((0.3, 0.5))
    assert found.high - found.value == pytest.approx(12.7062 * 0.1, rel=1e-4)


def test_trials_of_a_crowd() -> None:
    frame, schema = crowd()
    options: dict[str, Any] = {"known": ["age", "town"], "scenes": 2, "tickets": (1, 4, 16), "seed": 5}
    trials = attack_people(frame, schema, "ok", **options)
    assert not trials.left_out
    found = {(f.attack, f.records, f.reveal): f for f in trials.findings}
    assert len(found) == 5 * 5 * 2 + 1
    assert len(found["direct membership", "rows", "sealed"].curve) == 1
    assert [p.tickets for p in found["linkage", "rows", "opened"].curve] == [1, 4, 16]
    assert found["linkage", "rows", "sealed"].curve[2].value > found["linkage", "rows", "sealed"].curve[0].value
    assert attack_people(frame, schema, "ok", **options, names=["linkage"], kinds=["rows"]).findings == tuple(
        found["linkage", "rows", reveal] for reveal in REVEALS
    )
    assert json.dumps([f.to_dict() for f in trials.findings])


def test_a_kind_that_cannot_be_served_is_left_out() -> None:
    frame, schema = german_credit()
    options: dict[str, Any] = {"names": ["membership"], "kinds": ["cells", "cells of 2"], "scenes": 2, "tickets": (1,)}
    trials = attack_people(frame, schema, ("credit", "good"), **options)
    assert trials.left_out == {"cells of 2": "min_cell: got no cell of 2 people, expected at least one"}
    assert [f.records for f in trials.findings] == ["cells", "cells"]


def test_what_people_must_be() -> None:
    frame, schema = crowd()
    few: dict[str, Any] = {"scenes": 2, "tickets": (1,)}
    with pytest.raises(UnknownName, match="attack: got 'probing', which needs a bundle, expected one of membership"):
        attack_people(frame, schema, "ok", names=["probing"])
    with pytest.raises(WrongType, match="known: got no feature"):
        attack_people(frame, schema, "ok", names=["linkage"])
    with pytest.raises(UnknownName, match="known: got 'name'"):
        attack_people(frame, schema, "ok", known=["name"], **few)
    with pytest.raises(UnknownName, match="records: got 'boxes'"):
        attack_people(frame, schema, "ok", names=["membership"], kinds=["boxes"])
    with pytest.raises(OutOfRange, match="people: got 5"):
        attack_people(frame.head(5), schema, "ok", names=["membership"], **few)
    with pytest.raises(EmptyDatabase, match="only one verdict"):
        attack_people(frame.filter(pl.col("ok")), schema, "ok", names=["membership"], **few)
    gone = frame.with_columns(town=pl.when(pl.col("age") > 60).then(None).otherwise(pl.col("town")))
    with pytest.raises(MissingValue, match="people, town: got a missing value"):
        attack_people(gone, schema, "ok", names=["membership"], **few)


@slow
def test_on_the_command_line(tmp_path: Path) -> None:
    frame, schema = crowd()
    frame.write_csv(tmp_path / "people.csv")
    schema.save(tmp_path / "people.toml")
    ours = ["--people", tmp_path / "people.csv", "--schema", tmp_path / "people.toml", "--accepted", "ok"]
    common = ["attack", *ours, "--scenes", 2, "--after", "1,4", "--only", "linkage", "--known", "age,town"]
    shown = cli(*common, "--records", "rows", "--records", "cells of 2", "--plots", tmp_path / "p")
    assert shown.returncode == 0, shown.stderr
    assert "What stops it: min_cell or min_people of 2 or more" in " ".join(shown.stdout.split())
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert (tmp_path / "p" / "people.png").stat().st_size > 10_000
    found = json.loads(cli(*common, "--records", "rows", "--json").stdout)
    assert [(f["records"], f["reveal"]) for f in found] == [("rows", "sealed"), ("rows", "opened")]
    assert [p["tickets"] for p in found[0]["curve"]] == [1, 4]
    listed = json.loads(cli("attack", "--list", "--json").stdout)
    assert [each["name"] for each in listed] == list(ATTACKS)
    for wrong, said in (
        (["--only", "probing"], "which needs a bundle"),
        (["--schema", tmp_path / "people.toml"], "--people FILE"),
        (["--server", "http://localhost:1"], "expected the bundle of these servers"),
        ([tmp_path / "b", "--known", "age"], "attacks on people need no bundle"),
    ):
        refused = cli("attack", *wrong)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        assert said in refused.stderr
