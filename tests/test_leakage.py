"""Leakage: the paper's numbers, enumeration against the estimators, and intervals that cover as often as they say."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import REVEALS, Field
from counterveil.errors import InvalidData, OutOfRange, WrongType
from counterveil.research import experiments
from counterveil.research.leakage import Index, Population, estimate, exact, populations
from counterveil.schemes.protocols import Garbled
from counterveil.schemes.reveals import Opened, Reveal, Sealed, make_reveal
from datafiles import OTHERS, SHIPPED, needs_compas
from service import cli


@pytest.mark.slow
def test_the_synthetic_table_to_all_printed_digits() -> None:
    claims = experiments.synthetic()
    assert [round(claim.ours, 5) for claim in claims[:4]] == [1.14321, 0.94046, 0.91100, 0.77731]
    assert [claim.printed for claim in claims] == ["1.143", "0.940", "0.911", "0.777", *[None] * 11]  # the paper's four
    for claim in claims:
        assert claim.earlier is not None
        assert claim.ours == pytest.approx(claim.earlier, abs=6e-5), claim.what
        assert claim.printed is None or f"{claim.ours:.3f}" == claim.printed
    assert len(claims) == 15


def brute_force(reveal: Reveal, costs: list[int], rows: int, distinct: bool) -> float:
    """The definition, with dictionaries: every tuple of rows, every mask, every order."""
    joint: dict[tuple[Any, Any], float] = {}
    tuples = list(
        itertools.permutations(range(len(costs)), rows)
        if distinct
        else itertools.product(range(len(costs)), repeat=rows)
    )
    masks = list(itertools.product(range(reveal.d_min), repeat=rows)) if reveal.masked else [(0,) * rows]
    orders = list(itertools.permutations(range(rows))) if reveal.shuffle else [tuple(range(rows))]
    each = 1 / (len(tuples) * len(masks) * len(orders))
    for chosen in tuples:
        for mask in masks:
            for order in orders:
                costs_ = [costs[chosen[i]] + mask[place] for place, i in enumerate(order)]
                views: list[tuple[int, ...]]
                if isinstance(reveal, Sealed):
                    slot = costs_.index(min(costs_))
                    views = [(slot ^ r,) for r in range(Garbled().positions(rows))]
                elif reveal.differences:
                    views = [tuple(a - b for a, b in itertools.pairwise(costs_))]
                else:
                    views = [tuple(costs_)]
                for view in views:
                    joint[chosen, view] = joint.get((chosen, view), 0.0) + each / len(views)
    rows_, seen = dict[Any, float](), dict[Any, float]()
    for (y, z), p in joint.items():
        rows_[y] = rows_.get(y, 0.0) + p
        seen[z] = seen.get(z, 0.0) + p
    return sum(p * math.log2(p / rows_[y] / seen[z]) for (y, z), p in joint.items())


def reveals() -> st.SearchStrategy[Reveal]:
    def made(name: str, shuffle: bool, d_min: int) -> Reveal:
        return make_reveal(name, shuffle=shuffle, d_min=d_min if REVEALS[name].masked else 1)

    return st.builds(made, st.sampled_from(sorted(REVEALS)), st.booleans(), st.integers(2, 3))


@settings(max_examples=60)
@given(reveals(), st.lists(st.integers(0, 7), min_size=3, max_size=5), st.integers(1, 3), st.booleans())
def test_enumeration_is_the_definition(reveal: Reveal, costs: list[int], rows: int, distinct: bool) -> None:
    if reveal.differences and rows == 1 and not isinstance(reveal, Sealed):
        rows = 2
    found = exact(reveal, Field(101), [Population.of(np.array(costs))], rows, distinct=distinct)
    assert found.bits == pytest.approx(brute_force(reveal, costs, rows, distinct), abs=1e-9)
    assert found.worst >= found.bits - 1e-9


@pytest.mark.slow
@settings(max_examples=60)
@given(
    reveals(), st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=6), min_size=1, max_size=3), st.integers(2, 3)
)
def test_estimates_agree_with_enumeration(reveal: Reveal, people: list[list[int]], rows: int) -> None:
    cases = populations(np.array(costs) for costs in people)
    truth = exact(reveal, Field(101), cases, rows)
    found = estimate(reveal, cases, rows, samples=3000, generator=np.random.default_rng(3))
    if found.method == "closed form":
        assert found.bits == pytest.approx(truth.bits, abs=1e-9)
    elif type(reveal) is not Opened:
        assert found.low <= truth.bits <= found.high + 1e-9
    else:
        margin = (found.high - found.bits) / 1.96
        assert abs(found.bits - truth.bits) <= 5 * margin + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shuffle"), [("differences", False), ("masked", True), ("masked_differences", True)])
def test_intervals_cover_as_often_as_they_say(name: str, shuffle: bool) -> None:
    """200 seeds: 95 % is between 180 and 199 of them but for one time in a thousand."""
    reveal = make_reveal(name, shuffle=shuffle, d_min=3 if "masked" in name else 1)
    cases = populations([np.array([0, 1, 1, 4, 9]), np.array([2, 3, 3, 5, 8, 8])])
    truth = exact(reveal, Field(101), cases, 3).bits
    found = [estimate(reveal, cases, 3, samples=150, generator=np.random.default_rng(seed)) for seed in range(200)]
    covered = sum(each.low <= truth <= each.high for each in found)
    assert 178 <= covered <= 200
    assert any(not each.low <= truth <= each.high for each in found)  # it is an interval, not a promise


def test_an_estimate_cannot_saturate() -> None:
    """Few samples, much leakage: counting would stop at their logarithm."""
    cases = populations([np.arange(1000)])
    found = estimate(make_reveal("differences"), cases, 20, samples=10, generator=np.random.default_rng(1))
    assert found.bits > 150 > math.log2(10)
    assert found.bits == pytest.approx(20 * math.log2(1000), rel=0.05)


def test_dense_masks_in_a_secret_order_are_bounded() -> None:
    cases = populations([np.arange(60)])
    reveal = make_reveal("masked", shuffle=True, d_min=25)
    found = estimate(reveal, cases, 40, samples=4, generator=np.random.default_rng(1))
    assert found.method == "bounded"
    assert 0 <= found.low <= found.bits == found.high
    order = estimate(make_reveal("distances", shuffle=True), cases, 40, generator=np.random.default_rng(1))
    assert found.high <= order.high


def test_sealed_and_the_index() -> None:
    cases = populations([np.array([1, 2, 2, 5, 9])])
    assert exact(REVEALS["sealed"], Field(11), cases, 3).bits == pytest.approx(0, abs=1e-12)
    found = estimate(REVEALS["sealed"], cases, 1000, generator=np.random.default_rng(1))
    assert (found.bits, found.method) == (0.0, "closed form")
    first, random = (exact(Index(shuffle), Field(11), cases, 3).bits for shuffle in (False, True))
    assert 0 < random < first


def test_bad_questions_about_leakage() -> None:
    cases = populations([np.arange(50)])
    with pytest.raises(OutOfRange, match="estimate instead"):
        exact(REVEALS["distances"], Field(101), cases, 6)
    with pytest.raises(WrongType, match="got Index, expected one of the table"):
        estimate(Index(), cases, 3, generator=np.random.default_rng(1))  # type: ignore[arg-type]


@pytest.mark.slow
@needs_compas
def test_compas() -> None:
    claims = {claim.what: claim for claim in experiments.compas(OTHERS, applicants=8)}
    for claim in claims.values():
        for known in (claim.printed, claim.earlier):
            if known is not None:
                assert claim.ours == pytest.approx(float(known), abs=1e-4), claim.what
        assert (claim.printed is None) == ("true" in claim.what)
    diff = claims["Diff-PCR, true leakage"]
    assert diff.high - diff.low < 0.01
    assert diff.low < 2.8893 < diff.high


@pytest.mark.slow
def test_accuracy_through_the_real_schemes() -> None:
    """Within 3.5 standard errors of an independent run, of both together."""
    results = experiments.accuracy(SHIPPED, levels=(10, 50), d_mins=(1,), rounds=25)
    results += experiments.accuracy(SHIPPED, levels=(50,), d_mins=(10, 50), rounds=25)
    for claim, result in zip(experiments.accuracy_claims(results), results, strict=True):
        assert claim.printed is None  # the paper draws a figure
        assert claim.earlier is not None
        assert abs(claim.ours - claim.earlier) < 3.5 * math.hypot(result.error, result.error / 2), claim


@pytest.mark.slow
def test_reproduce_on_the_command_line(tmp_path: Path) -> None:
    options = ["--rounds", 2, "--levels", "10,20", "--d-min", "1,5", "--plots", tmp_path / "p", "--data", SHIPPED]
    said = cli("reproduce", "accuracy", *options)
    assert said.returncode == 0, said.stderr
    assert "R = 20, d_min 5" in said.stdout
    assert (tmp_path / "p" / "accuracy.png").stat().st_size > 10_000
    found = json.loads(cli("reproduce", "synthetic", "--json").stdout)["synthetic"]
    assert found[0] == {
        "what": "distances (baseline)",
        "printed": "1.143",
        "ours": 1.143208,
        "interval": [1.143208] * 2,
        "source": "paper",
    }
    wrong = cli("reproduce", "compas", "--data", tmp_path)
    assert wrong.returncode == 2
    assert "got no file" in wrong.stderr


def test_data_is_checked_and_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a web server on this machine, since a test needs no other; what was altered is refused."""
    shutil.copy(SHIPPED / experiments.WINE, tmp_path / experiments.WINE)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/{experiments.WINE}"
    monkeypatch.setitem(experiments._SOURCES, experiments.WINE, address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COUNTERVEIL_DATA", raising=False)
    fetched = experiments.data_file(experiments.WINE)
    assert fetched.is_relative_to(tmp_path / "cache")
    server.shutdown()
    server.server_close()
    assert experiments.data_file(experiments.WINE) == fetched  # from the cache
    (tmp_path / experiments.WINE).write_bytes(b"altered")
    with pytest.raises(InvalidData, match="SHA-256"):
        experiments.data_file(experiments.WINE, tmp_path)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(InvalidData, match="no download"):
        experiments.data_file(experiments.WINE)


def test_the_reduced_file_holds_nobodys_name(tmp_path: Path) -> None:
    """The reduction that a download goes through, on two people of our own making."""
    full = tmp_path / "compas-scores-two-years.csv"
    columns = ["id", "name", *(c for c in experiments._COMPAS_COLUMNS if c != "c_jail_time"), "c_jail_in", "c_jail_out"]
    people = [
        dict.fromkeys(columns, "1")
        | {"name": "A B", "c_jail_in": "2013-08-13 06:03:42", "c_jail_out": "2013-08-14 05:41:20"}
    ]
    people.append(dict.fromkeys(columns, "2") | {"name": "C D", "c_jail_in": "", "c_jail_out": ""})
    full.write_text(",".join(columns) + "\n" + "".join(",".join(p[c] for c in columns) + "\n" for p in people))
    lines = experiments._reduced(full).read_text().splitlines()
    assert lines[0].split(",") == experiments._COMPAS_COLUMNS
    place = experiments._COMPAS_COLUMNS.index("c_jail_time")
    assert [line.split(",")[place] for line in lines[1:]] == ["0", ""]
    assert "A B" not in "".join(lines)
