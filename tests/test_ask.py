"""`ask` against a search in the clear, for every metric and any mix of constraints."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import (
    Counterfactual,
    Database,
    Deployment,
    Local,
    NoCounterfactual,
    Numeric,
    Preferences,
    Schema,
    local,
)
from counterveil.applicant.ask import compile_question
from counterveil.errors import NotOffered, OutOfRange
from counterveil.research import experiments
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns
from counts import some
from datafiles import SHIPPED
from people import (
    METRICS,
    Person,
    cost,
    feasible,
    level,
    levels_of,
    random_case,
    random_wishes,
    rows_of,
    search,
    without_rules,
)

SCHEMES = ["table/distances", "table/differences"]


def assert_same(bank: Local, own: Person, rows: list[Person], wishes: dict[str, Any]) -> bool:
    """Compare an answer with a search in the clear; tell whether there was one."""
    schema = bank.deployment.schema
    person = {f.name: own[f.name] for f in schema.features}
    found = bank.ask(person, wishes)
    best = search(schema, own, rows, wishes)
    if best is None:
        assert isinstance(found, NoCounterfactual), wishes
        check_advice(found, schema, own, rows, wishes)
        return False
    assert isinstance(found, Counterfactual), wishes
    assert round(found.cost * bank.deployment.unit) == best
    assert cost(schema, own, found.values, wishes) == best
    assert feasible(schema, own, found.values, wishes)
    return True


def check_advice(
    found: NoCounterfactual, schema: Schema, own: Person, rows: list[Person], wishes: dict[str, Any]
) -> None:
    """What is advised does help; where nothing is, nothing would."""
    for name in [f.name for f in schema.cost_features]:
        relaxed = {
            kind: (
                [*given, name]
                if kind == "missing" or (kind == "override" and schema.feature(name).override)
                else [n for n in given if n != name]
                if isinstance(given, list) and kind != "override"
                else {n: v for n, v in given.items() if n != name}
                if isinstance(given, dict) and kind in ("ranges", "forbidden")
                else given
            )
            for kind, given in wishes.items()
        }
        helps = search(schema, own, rows, relaxed) is not None
        if name in [a.feature.name for a in found.advice]:
            assert helps
        elif found.hopeless:
            assert not helps


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=some(150, 3))
@given(seed=st.integers(0, 2**32), count=st.integers(2, 60), tightness=st.sampled_from([0.0, 0.3, 0.9]))
def test_random_frames_of_mixed_types(metric: str, seed: int, count: int, tightness: float) -> None:
    schema, frame = random_case(seed, count)
    rng = np.random.default_rng(seed + 1)
    rows = rows_of(frame)
    bank = local(
        Database.build(frame, schema, accepted="accepted", record=str(rng.choice(["row", "cell"]))),  # type: ignore[arg-type]
        str(rng.choice(SCHEMES)),
        shuffle=bool(rng.integers(0, 2)),
    )
    own = rows[int(rng.integers(0, count))]
    wishes = random_wishes(rng, schema, own, metric, tightness)
    assert_same(bank, own, [row for row in rows if row["accepted"]], wishes)


@pytest.fixture(scope="module")
def german() -> tuple[Schema, list[Person], list[Person]]:
    frame, schema = german_credit()
    people = Columns(frame).people()
    return schema, [p for p in people if p["credit"] == "good"], [p for p in people if p["credit"] == "bad"]


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_german_credit(metric: str, german: tuple[Schema, list[Person], list[Person]]) -> None:
    schema, good, bad = german
    bank = local(Database.build(german_credit()[0], schema, accepted=("credit", "good")))
    rng = np.random.default_rng(11)
    outcomes = [
        assert_same(bank, own, good, random_wishes(rng, schema, own, metric, tightness))
        for own, tightness in zip(bad[:30], np.linspace(0, 0.35, 30), strict=True)
    ]
    assert any(outcomes)
    assert not all(outcomes)


def wine() -> tuple[Schema, list[Person], list[Person]]:
    with (SHIPPED / experiments.WINE).open() as file:
        people: list[Person] = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file, delimiter=";")]
    columns = {name: [p[name] for p in people] for name in people[0]}
    schema = Schema.infer(columns, exclude=["quality"], most_levels=50)
    good, bad = ([p for p in people if (p["quality"] >= 5) is side] for side in (True, False))
    return schema, good[:700], bad


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_wine_quality(metric: str) -> None:
    schema, good, bad = wine()
    bank = local(Database.build({n: [p[n] for p in good] for n in good[0]}, schema, lambda frame: [True] * len(frame)))
    rng = np.random.default_rng(12)
    for own in bad[:15]:
        assert_same(bank, own, good, random_wishes(rng, schema, own, metric, float(rng.random()) * 0.4))


@pytest.mark.slow
def test_constraints_hold_in_every_answer(german: tuple[Schema, list[Person], list[Person]]) -> None:
    """Random questions; what comes back is feasible by its own values' levels, or said not to be."""
    schema, good, bad = german
    bank = local(Database.build(german_credit()[0], schema, accepted=("credit", "good")))
    rng = np.random.default_rng(13)
    answered, count = 0, some(1000)
    for n in range(count):
        own = bad[n % len(bad)]
        wishes = random_wishes(rng, schema, own, METRICS[n % 4], float(rng.random()) * 0.25)
        found = bank.ask({f.name: own[f.name] for f in schema.features}, wishes)
        if isinstance(found, Counterfactual):
            answered += 1
            assert feasible(schema, own, found.values, wishes)
    assert 0.3 * count < answered < count
    assert len(good) == 700


@pytest.mark.parametrize("scheme", ["linear-diff", "linear-baseline", "baseline+"])
def test_linear_deployments_take_weights_and_immutable_features(
    scheme: str, german: tuple[Schema, list[Person], list[Person]]
) -> None:
    schema, good, bad = german
    ready = Schema.from_toml(
        schema.to_toml().replace('kind = "categorical"', 'kind = "categorical"\nencoding = "one-hot"')
    )
    bank = local(Database.build(german_credit()[0], ready, accepted=("credit", "good")), scheme)
    rng = np.random.default_rng(14)
    names = [f.name for f in ready.features]
    refusals = 0
    for own in bad[:12]:
        fixed = rng.choice(names, int(rng.integers(0, 6)), replace=False).tolist()
        weights = {n: int(rng.integers(1, 11)) for n in names[:8]}
        wishes = {"immutable": fixed, "weights": weights, "override": ["savings", "employment", "residence", "job"]}
        found = bank.ask({n: own[n] for n in names}, wishes)
        wishes["immutable"] = [*fixed, "age"]  # may only go up, so it must stay where a form takes no direction
        possible = [row for row in good if feasible(ready, own, row, wishes)]
        assert found.feasible is bool(possible)
        if isinstance(found, Counterfactual):
            assert feasible(ready, own, found.values, wishes)
            best = min(stretched_cost(ready, own, row, wishes) for row in possible)
            assert round(found.cost * bank.deployment.unit) == best
        else:
            refusals += 1
    assert refusals < 12


def stretched_cost(schema: Schema, own: Person, row: Person, wishes: dict[str, Any]) -> int:
    """The squared distance with every feature stretched to the most levels there are, one-hot in two columns."""
    most = max(levels_of(f) for f in schema.cost_features if f.ordered)
    total = 0
    for f in schema.cost_features:
        a, b = level(f, own[f.name]), level(f, row[f.name])
        assert a is not None
        assert b is not None
        if f.ordered:
            difference = (round(a * most / levels_of(f)) - round(b * most / levels_of(f))) ** 2
        else:
            difference = 0 if a == b else 2 * most**2
        total += wishes["weights"].get(f.name, f.effort) * difference
    return total


@pytest.mark.parametrize(
    "wish",
    [
        {"ranges": {"income": (0, 100)}},
        {"increase_only": ["income"]},
        {"decrease_only": ["income"]},
        {"forbidden": {"income": [100]}},
        {"costs": {"income": {100: 0.5}}},
        {"metric": "l1"},
    ],
)
def test_linear_deployments_refuse_the_rest(wish: dict[str, Any]) -> None:
    schema = Schema(features=(Numeric(name="income", low=0, high=1000, step=100, mad=100),))
    bank = local(Database.build({"income": [500]}, schema, lambda _: [True]), "linear-diff")
    with pytest.raises(NotOffered, match=r"expected (a table deployment|l2: the deployment is linear)"):
        bank.ask({"income": 100}, wish)
    euclidean = local(Database.build({"income": [500]}, schema, lambda _: [True]), "diff")
    with pytest.raises(NotOffered, match="weights in a deployment of euclidean"):
        euclidean.ask({"income": 100}, weights={"income": 2})
    assert euclidean.ask({"income": 100}).text() == "Raise income from 100 to 500."
    quartic = local(Database.build({"income": [500]}, schema, lambda _: [True]), "even_norm/distances")
    found = quartic.ask({"income": 100}, weights={"income": 2})
    assert isinstance(found, Counterfactual)
    assert found.cost == pytest.approx(2 * 0.4**4)


def test_a_masked_deployment_never_prefers_an_infeasible_row() -> None:
    """Rule 11: F holds d_min, so a mask cannot lift a forbidden row above an allowed one."""
    schema = Schema(features=(Numeric(name="a", low=0, high=10, step=1), Numeric(name="b", low=0, high=10, step=1)))
    bank = local(Database.build({"a": [0, 10], "b": [1, 10]}, schema, lambda _: [True] * 2), "table/masked", d_min=5000)
    for _ in range(100):
        found = bank.ask({"a": 0, "b": 0}, immutable=["b"], weights={"a": 10})
        assert not found.feasible
        found = bank.ask({"a": 0, "b": 0}, increase_only=["b"], ranges={"a": (5, 10)}, weights={"a": 10, "b": 10})
        assert isinstance(found, Counterfactual)
        assert found.values == {"a": 10.0, "b": 10.0}


def test_k_nearest_and_their_spread() -> None:
    schema = Schema(features=(Numeric(name="a", low=0, high=100, step=1),))
    database = Database.build({"a": [10, 11, 12, 50, 90]}, schema, lambda _: [True] * 5)
    bank = local(database, "table/differences", k=3)

    def values(**more: Any) -> list[Any]:
        found = bank.ask({"a": 0}, **more)
        assert isinstance(found, Counterfactual)
        return [found.values["a"], *[other.values["a"] for other in found.others]]

    assert values() == [10, 11, 12]
    assert values(spread=0.1) == [10, 50, 90]
    assert values(spread=0.7) == [10, 90, 11]
    assert values(ranges={"a": (11, 60)}) == [11, 12, 50]
    with pytest.raises(OutOfRange, match="spread: got -1"):
        values(spread=-1)
    with pytest.raises(NotOffered, match="k: got 3 records from masked by padded, expected 1"):
        local(database, "table/masked", k=3, d_min=4)
    with pytest.raises(OutOfRange, match="k: got 6, expected at most 5"):
        local(database, k=6)


@pytest.mark.slow
def test_heom_agrees_with_a_plain_heom_nearest_neighbour(german: tuple[Schema, list[Person], list[Person]]) -> None:
    """Range-normalised differences, mismatch 1, square root of the sum of squares; on raw values, not on levels."""
    schema, good, bad = without_rules(german[0]), *german[1:]
    bank = local(Database.build(german_credit()[0], schema, accepted=("credit", "good")))

    def heom(a: Person, b: Person) -> float:
        total = 0.0
        for f in schema.features:
            if isinstance(f, Numeric):
                total += ((a[f.name] - b[f.name]) / (f.high - f.low)) ** 2
            elif f.ordered and not isinstance(a[f.name], bool):
                values = list(getattr(f, "values", ()))
                total += ((values.index(a[f.name]) - values.index(b[f.name])) / (len(values) - 1)) ** 2
            else:
                total += float(a[f.name] != b[f.name])
        return float(total**0.5)

    # amount and age are coarser than their data: each may be off by half a step, for both rows that are compared
    step = 250 / 20_000 + 5 / 65
    same = 0
    for own in bad[:60]:
        found = bank.ask({f.name: own[f.name] for f in schema.features}, metric="heom")
        assert isinstance(found, Counterfactual)
        nearest = min(heom(own, row) for row in good)
        assert heom(own, found.record) <= nearest + step
        same += heom(own, found.record) == pytest.approx(nearest)
    assert same >= 45


def test_every_question_has_one_shape(german: tuple[Schema, list[Person], list[Person]]) -> None:
    """No server can tell which preferences were used, or whether any were."""
    schema, _, bad = german
    bank = local(Database.build(german_credit()[0], schema, accepted=("credit", "good")))
    rng = np.random.default_rng(15)
    one_hot = schema.to_toml().replace('kind = "categorical"', 'kind = "categorical"\nencoding = "one-hot"')
    linear = Deployment.of(Schema.from_toml(one_hot), scheme="linear-diff")
    sizes, linear_sizes = set(), set()
    for n, own in enumerate(bad[:40]):
        wishes = random_wishes(rng, schema, own, METRICS[n % 4], 0.3) if n else {}
        codes = schema.codes({f.name: own[f.name] for f in schema.features})
        question, _ = compile_question(bank.deployment, codes, Preferences.of(wishes))
        sizes.add(len(bank.deployment.scheme.form.encode(question)))
        some = {"weights": wishes.get("weights", {}), "immutable": wishes.get("immutable", [])}
        question, _ = compile_question(linear, codes, Preferences.of(some))
        linear_sizes.add(len(linear.scheme.form.encode(question)))
    assert sizes == {sum(f.largest + 1 for f in schema.features)}
    assert linear_sizes == {linear.scheme.form.symbols}
