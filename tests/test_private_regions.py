"""Regions with differential privacy: audits that bound epsilon from below, what else could tell of people, errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import beta
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from counterveil import Database, Deployment, Numeric, Schema
from counterveil.cli import main
from counterveil.crypto.randomness import keystream
from counterveil.errors import CounterveilError, EmptyDatabase, MissingPackage, NotOffered, OutOfRange, WrongType
from counterveil.institution.regions import private
from counterveil.institution.regions.models import read_model
from counterveil.institution.regions.private import COUNTED, Noise, least_noise, people_at, people_in_first
from counterveil.institution.regions.sampled import Draw
from counterveil.schema.frames import Columns

SCHEMA = Schema(
    features=(
        Numeric(name="income", low=0, high=100, step=10, unit="€"),
        Numeric(name="debt", low=0, high=50, step=10, unit="€"),
    )
)
EPSILON, SURE, BUILDS = 1.0, 0.999, 200
STATED = 2.0  # epsilon of whole builds, of which an audit can make only a few
EVENTS = (0.0, 0.1, 1.0)  # by how much levels are rarer, in scales of noise


def people(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"income": rng.uniform(0, 100, count), "debt": rng.uniform(0, 50, count)})


OTHERS = people(300)  # the model is fitted on other people than those whose regions are found
VERDICTS = OTHERS.income - OTHERS.debt > 20
MODEL = DecisionTreeClassifier(max_depth=3, random_state=0).fit(OTHERS, VERDICTS)
SOMEBODY = {"income": 95.0, "debt": 5.0}  # in every region


def build(frame: pd.DataFrame, **options: Any) -> Database:
    return Database.build(frame, SCHEMA, MODEL, record="region", **options)


# --- audits -----------------------------------------------------------------------------------------------------------


def least_epsilon(without: int, with_one: int, runs: int) -> float:
    """Return what epsilon is at least, if an event came up so often without and with one person.

    Each bound of Clopper and Pearson holds with a confidence of SURE. An audit takes at most twelve of them.
    """

    def at_least(count: int) -> float:
        return float(beta.ppf(1 - SURE, count, runs - count + 1)) if count else 0.0

    def at_most(count: int) -> float:
        return float(beta.ppf(SURE, count + 1, runs - count)) if count < runs else 1.0

    return float(np.log(max(1.0, at_least(with_one) / at_most(without), at_least(without) / at_most(with_one))))


def broken(self: Noise, counts: Any, scale: float) -> Any:
    """Add a tenth of the noise."""
    return np.array(private._mechanism(scale / 10, self.concentrated)(counts.tolist()), dtype=np.int64)


def audit_levels(delta: float, runs: int = 4000) -> float:
    """Return what epsilon of the counts of levels is at least: are both of somebody's levels rarer than they are?"""
    frame = people(40, seed=1)
    trees, told = read_model(MODEL, Columns(OTHERS), SCHEMA), np.arange(2)
    noise = least_noise(EPSILON, delta, len(told), False)
    codes = [SCHEMA.quantise(each, clamp=True).astype(np.int64) for each in (frame, _and_somebody(frame))]
    own = trees.places(codes[1][-1:])[0]
    without, with_one = (people_at(trees, each, told) for each in codes)
    assert np.flatnonzero(with_one - without).tolist() == sorted(own)
    least = 0.0
    many = [noise.noised(np.tile(held[own], runs), noise.levels) for held in (without, with_one)]  # each on its own
    seen = [each.reshape(runs, -1) - without[own] for each in many]
    for rarer in EVENTS:
        counts = [int((each <= -rarer * noise.levels).all(axis=1).sum()) for each in seen]
        least = max(least, least_epsilon(counts[0], counts[1], runs))
    return least


def _and_somebody(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame, pd.DataFrame([SOMEBODY])], ignore_index=True)


def test_the_counts_of_levels_keep_their_epsilon_and_no_more_noise_is_added_than_that_takes() -> None:
    assert 0.5 < audit_levels(0.0) <= EPSILON


def test_the_counts_of_levels_keep_their_epsilon_with_a_delta() -> None:
    assert audit_levels(1e-6) <= EPSILON


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_audit_of_levels_catches_a_tenth_of_the_noise(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "noised", broken)
    assert audit_levels(delta) > EPSILON


def audit_builds(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return what epsilon of whole builds is at least: are all regions served to which somebody belongs?

    So many people share somebody's place that one more decides whether the counts are high enough.
    """
    trees, asked = read_model(MODEL, Columns(OTHERS), SCHEMA), 5
    monkeypatch.setattr(private, "POINTS", 60)
    monkeypatch.setattr(private, "_read", lambda *_: trees)  # reading the model again each time would take long
    crowd = asked + least_noise(STATED, 0.0, 2, True).margin - 1
    seen = []
    for count in (crowd, crowd + 1):
        frame = pd.DataFrame([SOMEBODY] * count)
        seen.append(sum(_served(frame, asked) >= 2 for _ in range(BUILDS)))
    return least_epsilon(seen[0], seen[1], BUILDS)


def _served(frame: pd.DataFrame, asked: int) -> int:
    try:
        return build(frame, epsilon=STATED, min_people=asked).rows
    except EmptyDatabase:
        return 0


@pytest.mark.slow
def test_whole_builds_keep_their_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit_builds(monkeypatch) <= STATED


@pytest.mark.slow
def test_the_audit_of_whole_builds_catches_a_tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "noised", broken)
    assert audit_builds(monkeypatch) > STATED


# --- what else could tell of people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"most_regions": 2}, {"min_people": 3}])
def test_nothing_but_noised_counts_depends_on_people(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the same randomness and the same noised counts, other people give the same bundle, byte for byte."""

    def same(self: Noise, counts: Any, scale: float) -> Any:
        return np.arange(len(counts)) * 7 % 50 + 50

    def fixed(self: Draw) -> None:
        self._read = keystream(bytes(32))

    monkeypatch.setattr(Noise, "noised", same)
    monkeypatch.setattr(Draw, "__init__", fixed)
    written = []
    for n, frame in enumerate((people(50, seed=2), people(7, seed=3)[::-1], pd.DataFrame([SOMEBODY]))):
        build(frame, epsilon=1, **options).save(tmp_path / str(n))
        written.append((tmp_path / str(n)).read_bytes())
    assert written[0] == written[1] == written[2]


def test_an_epsilon_of_0_looks_at_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("somebody's data was looked at")

    monkeypatch.setattr(private, "people_at", refuse)
    monkeypatch.setattr(private, "people_in_first", refuse)
    made = build(people(20), epsilon=0)
    assert made.certificate is not None
    assert (made.certificate.epsilon, made.certificate.delta) == ("0", "")


@pytest.mark.parametrize("label", [None, True])
def test_a_build_does_not_fail_for_want_of_one_accepted_person(label: bool | None) -> None:
    """Otherwise the bundle that came out would tell that somebody was accepted, whatever the noise."""
    frame = pd.DataFrame({"income": [5.0, 6.0], "debt": [40.0, 41.0]})
    assert not MODEL.predict(frame).any()
    assert build(frame, epsilon=1, accepted=label).rows
    with pytest.raises(EmptyDatabase, match=r"accepted: got none|no row with True"):
        build(frame, accepted=label)


def test_builds_differ_because_their_noise_does() -> None:
    frame = people(60, seed=4)
    noise = least_noise(1.0, 0.0, 2, False)
    trees = read_model(MODEL, Columns(OTHERS), SCHEMA)
    held = people_at(trees, SCHEMA.quantise(frame, clamp=True).astype(np.int64), np.arange(2))
    assert len({tuple(noise.noised(held, noise.levels)) for _ in range(20)}) > 15


def test_a_person_counts_in_one_cell_of_each_feature_and_in_few_regions() -> None:
    boxes = np.ones((3 * COUNTED, 6), dtype=bool)
    levels = np.array([[0, 3], [1, 4], [2, 5]])
    boxes[0, 0] = False  # the first person is not in the first box
    counts = people_in_first(boxes, levels)
    assert counts.tolist() == [2, *[3] * (COUNTED - 1), 1, *[0] * (2 * COUNTED - 1)]
    for left_out in range(3):
        moved = counts - people_in_first(boxes, np.delete(levels, left_out, axis=0))
        assert np.abs(moved).sum() == COUNTED


@pytest.mark.parametrize("counted", [False, True])
def test_the_noise_is_what_the_arithmetic_in_the_docs_says(counted: bool) -> None:
    parts = 2 if counted else 1
    pure = least_noise(2.0, 0.0, 20, counted)
    assert pure.levels == pytest.approx(20 * parts / 2.0)
    assert pure.people is None or pure.people == pytest.approx(COUNTED * parts / 2.0)
    least = least_noise(1.0, 1e-6, 20, counted)
    assert least.levels == pytest.approx(np.sqrt(20 * parts / (2 * least.budget)))
    assert least.people is None or least.people == pytest.approx(np.sqrt(COUNTED * parts / (2 * least.budget)))
    # The simple bound, epsilon = rho + 2 sqrt(rho ln(1 / delta)), asks for more noise than OpenDP's.
    simple = (np.sqrt(np.log(1e6) + 1.0) - np.sqrt(np.log(1e6))) ** 2
    assert simple < least.budget < 2 * simple


# --- what is said, and errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"epsilon": -1.0}, OutOfRange, "epsilon: got -1.0, expected a number from 0 to 50"),
        ({"epsilon": float("nan")}, OutOfRange, "epsilon: got nan"),
        ({"epsilon": True}, OutOfRange, "epsilon: got True"),
        ({"epsilon": 1, "delta": 0.5}, OutOfRange, "delta: got 0.5, expected a number from 0 to 0.01"),
        ({"delta": 1e-6}, OutOfRange, "epsilon: got None"),
        ({"epsilon": 0, "delta": 1e-6}, OutOfRange, "epsilon: got 0 with delta"),
        ({"epsilon": 0, "min_people": 2}, OutOfRange, "epsilon: got 0 with min_people"),
        ({"epsilon": 1, "points": 100}, NotOffered, "points: got 100 with epsilon"),
        ({"epsilon": 1, "min_people": 10_000}, EmptyDatabase, "min_people: got no region of 10000 people"),
        ({"epsilon": 1, "record": "row"}, WrongType, "rows with min_people, most_regions, points, epsilon or delta"),
        ({"epsilon": 1, "record": "cell"}, WrongType, "cells with"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], error: type[CounterveilError], says: str) -> None:
    with pytest.raises(error, match=says.replace("(", r"\(")):
        Database.build(people(30), SCHEMA, MODEL, **({"record": "region"} | options))


def test_a_statistic_of_people_in_the_schema_is_refused() -> None:
    schema = Schema(features=(Numeric(name="income", low=0, high=100, step=10, mad=7), SCHEMA.features[1]))
    with pytest.raises(NotOffered, match="schema, income: got mad = 7, expected no mad with epsilon"):
        Database.build(people(30), schema, MODEL, record="region", epsilon=1)


def test_a_model_that_cannot_be_certified_is_refused() -> None:
    def model(frame: pd.DataFrame) -> Any:
        return frame.income > frame.debt

    with pytest.raises(NotOffered):
        Database.build(people(30), SCHEMA, model, record="region", epsilon=1)


def test_without_opendp_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    private._mechanism.cache_clear()
    least_noise.cache_clear()
    with pytest.raises(MissingPackage, match=r"epsilon: got no opendp, expected counterveil\[dp\]"):
        build(people(30), epsilon=1)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., str]:
    people(200, seed=5).to_csv(tmp_path / "people.csv", index=False)
    SCHEMA.save(tmp_path / "schema.toml")
    XGBClassifier(n_estimators=5, max_depth=2).fit(OTHERS, VERDICTS).save_model(tmp_path / "model.json")

    def run(*arguments: str) -> str:
        fixed = ["--schema", "schema.toml", "--model", "model.json", "--record", "region", "-o", "bundle"]
        command = ["build", "people.csv", *fixed] if arguments[0] == "build" else [arguments[0]]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            done = CliRunner().invoke(main, [*command, *arguments[1:]])
        return done.output

    return run


def test_build_inspect_and_the_report_state_epsilon_and_delta(files: Callable[..., str], tmp_path: Path) -> None:
    built = files("build", "--epsilon", "1", "--delta", "1e-6", "--report")
    states = "differentially private for every person of the data, by this build alone: epsilon = 1, delta = 1e-06."
    void = "this says nothing of people whom the model was fitted on"
    for said in (states, void, "Another build of these people adds its epsilon", "do not publish it", "rho = 0.02436"):
        assert said in built
    assert "200" not in built.split("What they ask")[0]
    seen = files("inspect", "bundle")
    assert states in seen
    assert void in seen
    assert [line.split()[-2:] for line in seen.splitlines() if line.startswith(("people seen", "accepted"))] == [
        ["not", "told"],
        ["not", "told"],
    ]
    database = Database.open(tmp_path / "bundle")
    terms = Deployment.serving(database).parameters()
    assert terms.options["record"] == {  # type: ignore[index]
        "model": database.certificate.model,  # type: ignore[union-attr]
        "epsilon": "1",
        "delta": "1e-06",
    }


def test_an_error_of_the_command_is_one_line(files: Callable[..., str]) -> None:
    assert files("build", "--delta", "1e-6").count("\n") == 1
