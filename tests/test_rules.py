"""The schema's rules bind every question, ranges go by levels, and answers say what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.tree import DecisionTreeClassifier

from counterveil import (
    Boolean,
    Categorical,
    Counterfactual,
    Database,
    Local,
    NoCounterfactual,
    Numeric,
    Ordinal,
    Schema,
    local,
    retrieve,
)
from counterveil.applicant.explain import WayIn
from counterveil.errors import InvalidSchema, NotOffered, OutOfRange, RuleNotKept
from counterveil.institution.regions.choosing import ways_in
from counterveil.research.datasets import german_credit
from counterveil.schemes import defaults

AGE = Numeric(name="age", low=0, high=100, step=1)
JOB = Categorical(name="job", values=("clerk", "baker"), encoding="one-hot")


def served(schema: Schema, rows: Mapping[str, Sequence[Any]], scheme: str | None = None, **parameters: Any) -> Local:
    count = len(next(iter(rows.values())))
    return local(Database.build(rows, schema, lambda _: [True] * count), scheme, **parameters)


def ruled(feature: Any, **rules: Any) -> Any:
    fields = {name: getattr(feature, name) for name in feature.__struct_fields__}
    return type(feature)(**(fields | rules))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, 29.0),
        ({"change": "up"}, 40.0),
        ({"change": "down"}, 29.0),
        ({"change": "never"}, None),
        ({"change": "never", "override": True}, None),
    ],
)
def test_change_binds_everybody(rules: dict[str, Any], expected: float | None) -> None:
    bank = served(Schema(features=(ruled(AGE, **rules),)), {"age": [29, 40]})
    found = bank.ask({"age": 30})
    assert (found.values["age"] if isinstance(found, Counterfactual) else None) == expected


def test_applicants_may_be_stricter_and_override_where_the_schema_lets_them() -> None:
    strict = served(Schema(features=(ruled(AGE, change="up"), JOB)), {"age": [29, 40], "job": ["clerk", "clerk"]})
    person = {"age": 30, "job": "clerk"}
    assert not strict.ask(person, immutable=["age"]).feasible
    assert not strict.ask(person, decrease_only=["age"]).feasible
    with pytest.raises(NotOffered, match="override: got age, for which the schema does not allow it"):
        strict.ask(person, override=["age"])
    free = served(
        Schema(features=(ruled(AGE, change="up", override=True), JOB)), {"age": [29, 40], "job": ["clerk", "clerk"]}
    )
    found = free.ask(person, override=["age"])
    assert isinstance(found, Counterfactual)
    assert found.values["age"] == 29


def test_a_rule_that_the_applicant_cannot_relax_is_not_advised_away() -> None:
    rows = {"age": [29]}
    nothing = served(Schema(features=(ruled(AGE, change="up"),)), rows).ask({"age": 30})
    assert isinstance(nothing, NoCounterfactual)
    assert nothing.advice == ()
    assert nothing.text().startswith("No accepted row satisfies your constraints and those of the schema. The nearest")
    free = served(Schema(features=(ruled(AGE, change="up", override=True),)), rows).ask({"age": 30})
    assert isinstance(free, NoCounterfactual)
    assert free.text().endswith("would help: age can change in some ways only, as the schema says.")


def test_effort_is_the_weight_of_whoever_gives_none() -> None:
    def schema(**rules: Any) -> Schema:
        return Schema(features=(ruled(AGE, **rules), Numeric(name="income", low=0, high=100, step=1)))

    rows = {"age": [40, 30], "income": [10, 22]}
    person = {"age": 30, "income": 10}

    def chosen(bank: Local, **wishes: Any) -> Any:
        found = bank.ask(person, **wishes)
        assert isinstance(found, Counterfactual)
        return found.changes[0].feature.name

    assert chosen(served(schema(), rows)) == "age"
    bank = served(schema(effort=3), rows)
    assert chosen(bank) == "income"
    assert chosen(bank, weights={"income": 9}) == "age"
    with pytest.raises(OutOfRange, match=r"weights, age: got 1, expected 3 to 10"):
        bank.ask(person, weights={"age": 1})
    assert chosen(served(schema(effort=3, override=True), rows), weights={"age": 1}) == "age"
    with pytest.raises(OutOfRange, match="effort, age: got 3, expected at most 2, the largest weight"):
        served(schema(effort=3), rows, max_weight=2)


def test_nobody_is_told_to_leave_a_value_out_unless_they_ask_for_it() -> None:
    schema = Schema(features=(ruled(AGE, missing="level"), ruled(JOB, encoding="mismatch")))
    rows: dict[str, list[Any]] = {"age": [None, 90], "job": ["clerk", "baker"]}
    bank = served(schema, rows)
    person = {"age": 30, "job": "clerk"}
    assert bank.ask(person).text() == "Change job from clerk to baker and raise age from 30 to 90."
    assert bank.ask(person, missing=["age"]).text() == "Change age from 30 to not given."
    assert bank.ask({"age": None, "job": "clerk"}).text().startswith("An accepted row has the same levels")
    nothing = bank.ask(person, immutable=["job"])
    assert nothing.text().endswith("Relaxing this one would help: age must not become missing.")


@pytest.mark.parametrize("scheme", ["linear-diff", "baseline+"])
def test_where_a_form_takes_no_direction_the_feature_stays(scheme: str) -> None:
    rows: dict[str, list[Any]] = {"age": [35, 30], "job": ["clerk", "baker"]}
    bank = served(Schema(features=(ruled(AGE, change="up", override=True), JOB)), rows, scheme)
    person = {"age": 30, "job": "clerk"}
    assert bank.ask(person).text() == "Change job from clerk to baker."
    assert bank.ask(person, override=["age"]).text() == "Raise age from 30 to 35."


def test_a_form_that_keeps_no_rule_is_warned_about() -> None:
    schema = Schema(features=(ruled(AGE, change="up"), Boolean(name="owner", effort=2)))
    with pytest.warns(RuleNotKept, match="a euclidean deployment does not keep the schema's rules on age, owner"):
        bank = served(schema, {"age": [29], "owner": [True]}, "diff")
    assert bank.ask({"age": 30, "owner": True}).text() == "Lower age from 30 to 29."


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"kind": "categorical", "values": ["x", "y"], "change": "up"}, "change: got 'up' for values without an order"),
        ({"kind": "boolean", "change": "sometimes"}, "change: got Invalid enum value 'sometimes'"),
        ({"kind": "boolean", "effort": 0}, "effort: got 0, expected a whole number from 1 to 1000"),
        ({"kind": "boolean", "effort": 1001}, "effort: got 1001, expected"),
        ({"kind": "boolean", "effort": 1.5}, "effort: got Expected `int`"),
        ({"kind": "boolean", "override": 1}, "override: got Expected `bool`"),
        (
            {"kind": "numeric", "low": 0, "high": 9, "points": [0, 5, 5, 9]},
            "points: got .*, expected numbers that rise",
        ),
        ({"kind": "numeric", "low": 0, "high": 9, "points": [1, 9]}, "points: got .*, expected numbers that rise from"),
        ({"kind": "numeric", "low": 0, "high": 9, "points": []}, "points: got .*, expected numbers that rise"),
        ({"kind": "numeric", "low": 0, "high": 9, "points": [0, 9], "step": 1}, "levels: got both"),
    ],
)
def test_rules_that_make_no_sense(feature: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        Schema.from_builtins({"feature": [{"name": "a", **feature}]})


def test_a_schema_without_rules_keeps_its_bytes() -> None:
    fields = {name for feature in Schema(features=(AGE, JOB)).to_builtins()["feature"] for name in feature}
    assert fields == {"kind", "name", "low", "high", "step", "values", "encoding"}
    assert Schema.from_toml(german_credit()[1].to_toml()) == german_credit()[1]


def test_the_shipped_schema_sends_nobody_back_in_time() -> None:
    frame, schema = german_credit()
    rules = {f.name: f.change for f in schema.features}
    assert (rules["age"], rules["personal_status"], rules["foreign_worker"]) == ("up", "never", "never")
    assert schema.feature("age").effort == defaults.MAX_WEIGHT  # waiting for years is the last thing to be told
    bank = local(Database.build(frame, schema, accepted=("credit", "good")), "table/distances")
    bad = frame.filter(frame["credit"] == "bad")
    answered = 0
    for n in range(40):
        person = {name: bad[name][n] for name in schema.names}
        found = bank.ask(person)
        if isinstance(found, Counterfactual):
            answered += 1
            assert found.values["personal_status"] == person["personal_status"]
            assert isinstance(found.values["age"], int | float)
            assert found.values["age"] >= person["age"]
    assert answered >= 30


def test_nobody_reads_a_code_in_the_shipped_schema() -> None:
    """Values are words, or have labels, in English and in German. `job` 3 or `A173` tells an applicant nothing."""
    for f in german_credit()[1].features:
        assert isinstance(f.label, dict)
        assert {"en", "de"} <= set(f.label)
        if isinstance(f, Categorical | Ordinal):
            assert isinstance(f.labels, dict)
            assert "de" in f.labels
            assert all(f.show(value) != str(value) for value in f.values if not isinstance(value, str))


AMOUNT = Numeric(name="amount", low=0, high=20_000, step=250, unit="DM")


@pytest.mark.parametrize("record", ["row", "cell"])
def test_a_range_takes_the_levels_that_its_ends_fall_into(record: Any) -> None:
    schema = Schema(features=(AMOUNT,))
    bank = local(Database.build({"amount": [9100, 5000]}, schema, lambda _: [True, True], record=record))
    found = bank.ask({"amount": 6000}, ranges={"amount": (9100, 9100)})
    assert isinstance(found, Counterfactual)
    if record == "row":
        assert found.text() == "Raise amount from 6,000 DM to 9,100 DM."
        assert found.values["amount"] == 9100
    else:
        assert [f.name for f in found.outside] == ["amount"]
        assert "has 9,000 DM for amount: outside the range that you asked for" in found.text()


def test_an_answer_says_where_the_record_lies_outside_what_was_asked_for() -> None:
    bank = served(Schema(features=(AMOUNT,)), {"amount": [9080]})
    found = bank.ask({"amount": 6000}, ranges={"amount": (9100, 9110)})
    assert isinstance(found, Counterfactual)
    assert found.to_dict()["outside"] == ["amount"]
    expected = "The accepted row itself has 9,080 DM for amount: outside the range that you asked for, but in the same"
    assert expected in found.text()
    assert expected in found._repr_html_()
    assert "outside" not in bank.ask({"amount": 6000}, ranges={"amount": (9000, 9110)}).text()


@pytest.mark.parametrize("bounds", [(21_000, None), (None, -500), (9200, 9100)])
def test_a_range_without_levels_allows_nothing(bounds: Any) -> None:
    bank = served(Schema(features=(AMOUNT,)), {"amount": [0, 9150, 20_000]})
    assert not bank.ask({"amount": 6000}, ranges={"amount": bounds}).feasible


def test_levels_at_points_are_the_nearest_ones() -> None:
    f = Numeric(name="x", low=0, high=1000, points=(0, 1, 10, 1000))
    assert f.codes([0, 0.4, 0.6, 5, 5.6, 500, 506, 1000]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [f.value(code) for code in range(4)] == [0, 1, 10, 1000]
    bank = served(Schema(features=(f,)), {"x": [1, 1000]})
    found = bank.ask({"x": 10})
    assert isinstance(found, Counterfactual)
    assert found.cost == pytest.approx((1 / 3) ** 2, abs=0.005)  # one level of three, whichever way
    assert bank.ask({"x": 0}, ranges={"x": (700, None)}).text() == "Raise x from 0 to 1,000."


def test_masked_answers_are_labelled_approximate() -> None:
    schema = Schema(features=(AMOUNT, Ordinal(name="size", values=("S", "M"))))
    rows: dict[str, list[Any]] = {"amount": [9000, 12_000], "size": ["S", "M"]}
    person = {"amount": 3000, "size": "S"}
    exact = served(schema, rows).ask(person)
    masked = served(schema, rows, "table/masked", d_min=4)
    found = masked.ask(person)
    assert isinstance(exact, Counterfactual)
    assert isinstance(found, Counterfactual)
    assert found.approximate
    assert not exact.approximate
    assert found.text() == exact.text() + " This is approximate: a nearer accepted row may exist."
    assert repr(found) == repr(exact)[:-1] + ", approximate)"
    assert (found.to_dict()["approximate"], exact.to_dict()["approximate"]) == (True, False)
    assert "the nearest row, approximately;" in repr(masked)
    same = masked.ask({"amount": 9000, "size": "S"})
    assert "approximate" in same.text()
    codes = [[1, 2], [3, 4]]
    assert "approximate" in repr(retrieve(codes, [1, 1], largest=5, scheme="table/masked", d_min=2))
    assert "approximate" not in repr(retrieve(codes, [1, 1], largest=5, scheme="table/distances"))


# --- regions -------------------------------------------------------------------------------------------------------


def region_bank(*, age: Any = AGE, amount: Any = AMOUNT, **parameters: Any) -> Local:
    """Serve regions of a model that can be read: accepted are ages from 40 with amounts up to 5,000, or not given."""
    rng = np.random.default_rng(0)
    data = pl.DataFrame({
        "age": rng.integers(0, 101, 400), "amount": [float(v) if v else None for v in rng.integers(0, 41, 400) * 500],
    })  # fmt: skip
    verdict = (data["age"] >= 40) & ((data["amount"] <= 5000) | data["amount"].is_null())
    model = DecisionTreeClassifier(random_state=0).fit(data, verdict)
    return local(Database.build(data, Schema(features=(age, amount)), model, record="region"), **parameters)


def test_rules_bind_who_asks_for_regions() -> None:
    optional = ruled(AMOUNT, missing="level")
    person = {"age": 30, "amount": 9000}
    found = region_bank(amount=optional).ask(person)
    assert isinstance(found, WayIn)
    assert found.text() == "Amount at most 5,000 DM; age at least 41."  # the cell of 40 begins at the border itself
    assert found.to_dict()["changes"][0]["inside"]["missing"] is False  # nobody is told to leave a value out
    offered = region_bank(amount=optional).ask(person, missing=["amount"])
    assert "not given" in offered.text()
    dear = region_bank(age=ruled(AGE, effort=9), amount=optional).ask(person)
    assert isinstance(dear, WayIn)
    assert (found.values, dear.values) == ({"age": 41, "amount": 5000}, {"age": 40, "amount": 4500})
    assert dear.cost == pytest.approx(9 * 0.1**2 + (4500 / 20_000) ** 2)
    fixed = region_bank(age=ruled(AGE, change="never"), amount=optional).ask(person)
    assert isinstance(fixed, NoCounterfactual)
    expected = "No way into a region in which everybody is accepted satisfies your constraints and those of the schema."
    assert fixed.text().startswith(expected)
    down = region_bank(age=ruled(AGE, change="down", override=True), amount=optional)
    assert not down.ask(person).feasible
    assert down.ask(person, override=["age"]).text() == found.text()


def test_ranges_and_masks_of_regions() -> None:
    bank = region_bank(amount=ruled(AMOUNT, step=500, missing="level"), scheme="table/masked", d_min=2)
    found = bank.ask({"age": 50, "amount": 9000}, ranges={"amount": (None, 4900)})
    assert isinstance(found, WayIn)
    assert found.values["amount"] == 4900  # which falls into the level of 5,000, so that it is inside
    assert found.outside == ()
    assert found.text().endswith("; everything else may stay as it is. This is approximate: a nearer region may exist.")
    assert repr(found).endswith(", approximate)")
    assert "the nearest region, approximately;" in repr(bank)


def test_regions_are_chosen_by_what_people_can_do() -> None:
    schema = Schema(features=(ruled(AGE, change="up", missing="level", effort=2), ruled(JOB, missing="level")))
    boxes = np.zeros((3, 102 + 3), dtype=bool)
    boxes[:, 102:] = True
    boxes[0, 50:101], boxes[1, 101], boxes[2, :21] = True, True, True  # at least 50; not given; at most 20
    changes, costs = ways_in(schema, boxes, np.array([[30, 0], [101, 0]]))
    assert changes.tolist() == [[1, 1], [1, 0], [1, 1]]
    assert costs.tolist() == [[pytest.approx(2 * 0.2**2), np.inf], [np.inf, 0.0], [np.inf, np.inf]]
