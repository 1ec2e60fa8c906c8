from __future__ import annotations

import base64
import datetime
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import chromium, new_page
from counterveil import Boolean, Categorical, Numeric, Ordinal, Schema
from counterveil.errors import (
    EmptyDatabase,
    InvalidInput,
    InvalidSchema,
    LeftOut,
    MissingValue,
    OutOfRange,
    UnknownName,
    UnknownValue,
    WrongType,
)
from counterveil.research.datasets import german_credit
from people import random_case

FRAME = {
    "age": [22, 41, 67],
    "income": [1234.5, 2400.0, 9876.5],
    "owner": [True, False, True],
    "smoker": [0, 1, 0],
    "job": ["clerk", "baker", "clerk"],
    "height": [1.75, None, 1.62],
}


@pytest.mark.parametrize(
    "make", [dict, pd.DataFrame, pl.DataFrame, pa.table], ids=["dict", "pandas", "polars", "pyarrow"]
)
def test_infer_guesses_the_same_from_every_make_of_frame(make: Any) -> None:
    schema = Schema.infer(make(FRAME))
    age, income, owner, smoker, job, height = schema.features
    assert age == Numeric(name="age", low=20, high=70, step=1, mad=19, change="up")
    assert income == Numeric(name="income", low=1000, high=10000, step=100, mad=1200)
    assert owner == Boolean(name="owner")
    assert smoker == Boolean(name="smoker")
    assert job == Categorical(name="job", values=("baker", "clerk"))
    assert isinstance(height, Numeric)
    assert height.missing == "level"
    assert height.low <= 1.62 < 1.75 <= height.high


def test_infer_knows_ordered_categories_and_leaves_out_text_and_dates() -> None:
    sizes = ["small", "medium", "large"]
    names = [f"person {i}" for i in range(60)]
    days = [datetime.date(2026, 1, 1)] * 60
    ordered = pd.Categorical(sizes * 20, categories=sizes, ordered=True)
    for frame in (
        pd.DataFrame({"size": ordered, "name": names, "day": days}),
        pl.DataFrame({"size": pl.Series(sizes * 20, dtype=pl.Enum(sizes)), "name": names, "day": days}),
    ):
        with pytest.warns(LeftOut, match=r"left out: name \(it looks like an id.*\); day \(dates; "):
            assert Schema.infer(frame).features == (Ordinal(name="size", values=tuple(sizes)),)
    with pytest.raises(EmptyDatabase, match="schema: got no column that could be a feature"):
        Schema.infer({"name": names})


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(2, 200))
def test_inferred_ranges_are_rounded_outwards(numbers: list[float], most: int) -> None:
    (f,) = Schema.infer({"x": numbers}, most_levels=most).features
    if set(numbers) == {0, 1}:
        assert isinstance(f, Boolean)
        return
    assert isinstance(f, Numeric)
    slack = 1e-9 * (f.high - f.low)  # `codes` has the same tolerance: 5e-324 below zero is zero
    assert f.low - slack <= min(numbers)
    assert max(numbers) <= f.high + slack
    assert 1 <= f.steps <= 2 * most + 2
    f.codes(numbers)


def test_ranges_do_not_tell_the_extremes_unless_asked_to() -> None:
    numbers = {"x": [1234.56, 5000.0, 9876.54]}
    assert "1234" not in Schema.infer(numbers).to_toml()
    assert "9876" not in Schema.infer(numbers).to_toml()
    (exact,) = Schema.infer(numbers, round_outwards=False).features
    assert isinstance(exact, Numeric)
    assert exact.low == 1234.56
    assert "read off the data" in Schema.infer(numbers).to_toml()


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_inferred_then_written_then_read_is_the_same(seed: int, count: int) -> None:
    schema, frame = random_case(seed, count)
    assert Schema.from_toml(schema.to_toml()) == schema
    present = {k: v for k, v in frame.items() if any(x is not None for x in v)}
    guessed = Schema.infer(present)
    assert Schema.from_toml(guessed.to_toml()) == guessed
    guessed.quantise(present)


@given(
    low=st.floats(-1e5, 1e5),
    width=st.floats(1e-2, 1e6),
    levels=st.integers(1, 5000),
    part=st.floats(0, 1),
    log=st.booleans(),
)
def test_back_from_a_level_is_within_half_a_step(low: float, width: float, levels: int, part: float, log: bool) -> None:
    low = abs(low) + 1e-3 if log else low
    f = Numeric(name="x", low=low, high=low + width, levels=levels, log=log)
    value = min(low + part * width, f.high)
    back = f.value(int(f.codes([value])[0]))
    assert isinstance(back, float)
    if log:
        step = math.log(f.high / f.low) / levels
        assert abs(math.log(back / value)) <= step / 2 * (1 + 1e-6) + 1e-9
    else:
        assert abs(back - value) <= width / levels / 2 * (1 + 1e-6) + 1e-9


def test_every_level_comes_back_as_itself() -> None:
    features: list[Any] = [
        Numeric(name="a", low=-3, high=4.5, step=0.5, missing="level"),
        Numeric(name="b", low=1, high=10_000, levels=77, log=True),
        Ordinal(name="c", values=("low", "high"), missing="level"),
        Categorical(name="d", values=(1, 2.5, "x", True)[1:], missing="level"),
        Boolean(name="e", missing="level"),
        Categorical(name="f", values=("only",)),
    ]
    for f in features:
        values = [f.value(code) for code in range(f.largest + 1)]
        assert f.codes(values).tolist()[: len(set(values))] == list(range(len(set(values))))


NUMERIC = '[[feature]]\nname = "a"\nkind = "numeric"\n'
BAD_FILES = [
    ("NUMERIC low = 0", "feature 'a'.*missing required field `high`"),
    (
        'NUMERIC low = "0"\nhigh = 1\nlevels = 3',
        "feature 'a', low: got Expected `float`",
    ),
    (
        "NUMERIC low = 3\nhigh = 1\nlevels = 3",
        "feature 'a'.*high: got 1.0, expected a",
    ),
    (
        "NUMERIC low = 0\nhigh = 1",
        "'a'.*levels: got both levels and step or neither",
    ),
    (
        "NUMERIC low = 0\nhigh = 1\nstep = 0.3",
        "'a'.*step: got 0.3, expected a number",
    ),
    ("NUMERIC low = 0\nhigh = 1\nstep = -1", "'a'.*step: got -1"),
    ("NUMERIC low = 0\nhigh = 1\nlevels = 0", "'a'.*levels: got 0, expected 1 to"),
    (
        "NUMERIC low = 0\nhigh = 1\nlevels = 2\nlog = true",
        "'a'.*low: got 0.0, expected",
    ),
    ("NUMERIC low = 0\nhigh = inf\nlevels = 2", "'a'.*high: got inf"),
    ('NUMERIC low = 0\nhigh = 1\nlevels = 2\nformat = "q"', "'a'.*format: got 'q'"),
    ("NUMERIC low = 0\nhigh = 1\nlevels = 2\nmad = 0", "'a'.*mad: got 0"),
    ('[[feature]]\nname = "a"\nkind = "ordinal"\nvalues = []', "'a'.*values: got none"),
    ('[[feature]]\nname = "a"\nkind = "ordinal"\nvalues = ["x", "x"]', "'a'.*values: got one twice"),
    ('[[feature]]\nname = "a"\nkind = "categorical"\nvalues = ["x"]\nencoding = "hot"', "'a', encoding: got Invalid"),
    ('[[feature]]\nname = "a"\nkind = "boolean"\nmissing = "maybe"', "'a', missing: got Invalid"),
    ('[[feature]]\nname = "a"\nkind = "boolean"\nlevel = 3', "'a'.*unknown field `level`"),
    ('[[feature]]\nname = "a"\nkind = "number"', "'a', kind: got Invalid value 'number'"),
    ('[[feature]]\nname = ""\nkind = "boolean"', "name: got '', expected"),
    ('[[feature]]\nkind = "boolean"', "feature 'number 1'.*missing required field `name`"),
    ('[[feature]]\nname = "a"\nkind = "boolean"\n[[feature]]\nname = "a"\nkind = "boolean"', "name: got 'a' twice"),
    ('[[feature]]\nname = "a"\nkind = "boolean"\nrole = "record"', "role: got no feature"),
    ("version = 2\n[[feature]]\nname = 'a'\nkind = 'boolean'", "version: got 2, expected 1"),
    ("feature = 3", "my.toml"),
    ("", "missing required field `feature`"),
    ("[[feature", "my.toml: got Expected .*, expected TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_errors_name_the_file_the_feature_and_the_field(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text.replace("NUMERIC ", NUMERIC))
    with pytest.raises(InvalidSchema, match=message) as caught:
        Schema.load(path)
    assert "my.toml" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match=r"none\.toml: got No such file"):
        Schema.load(tmp_path / "none.toml")
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSchema, match="expected a text file"):
        Schema.load(tmp_path / "raw")


SCHEMA = Schema(
    features=(
        Numeric(name="income", low=0, high=5000, step=100, unit="€"),
        Categorical(name="job", values=("clerk", "baker")),
        Ordinal(name="size", values=("S", "M", "L"), missing="level"),
        Boolean(name="owner"),
    )
)
PERSON = {"income": 2400, "job": "clerk", "size": "M", "owner": False}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"income": 5100}, OutOfRange, r"^income: got 5100.0, expected 0 to 5000"),
        ({"income": -1}, OutOfRange, r"^income: got -1.0, expected 0 to 5000"),
        ({"income": math.inf}, OutOfRange, "income.*got inf"),
        ({"income": math.nan}, MissingValue, "income: got nothing, expected 0 to 5000"),
        ({"income": None}, MissingValue, "income: got nothing, expected 0 to 5000"),
        ({"income": pd.NA}, MissingValue, "income: got nothing"),
        ({"income": "2400"}, WrongType, "income: got '2400', expected a number"),
        ({"income": True}, WrongType, "income: got True, expected a number"),
        ({"income": datetime.date(2026, 1, 1)}, WrongType, "income: got datetime"),
        ({"job": "pilot"}, UnknownValue, r"^job: got 'pilot', expected one of 'clerk', 'baker'"),
        ({"job": None}, MissingValue, "job: got nothing, expected one of 'clerk', 'baker'"),
        ({"owner": "yes"}, UnknownValue, r"^owner: got 'yes', expected one of False \(no\), True \(yes\)"),
        ({"hat": 3}, UnknownName, "feature: got 'hat', expected one of income, job, size, owner"),
    ],
)
def test_a_person_who_does_not_fit_the_schema(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SCHEMA.codes(PERSON | change)


def test_an_error_says_what_codes_mean() -> None:
    coded = Schema(features=(Ordinal(name="rate", values=(2, 1), labels={"en": ("below 20 %", "20 % or more")}),))
    with pytest.raises(UnknownValue, match=r"^rate: got 3, expected one of 2 \(below 20 %\), 1 \(20 % or more\)"):
        coded.codes({"rate": 3})


def test_people_who_do() -> None:
    assert SCHEMA.codes(PERSON).tolist() == [24, 0, 1, 0]
    assert SCHEMA.codes(PERSON | {"size": None, "owner": 1, "income": np.int64(100)}).tolist() == [1, 0, 3, 1]
    with pytest.raises(MissingValue, match="size: got no word of it, expected a value, or None"):
        SCHEMA.codes({k: v for k, v in PERSON.items() if k != "size"})  # forgotten, or not said on purpose?
    assert SCHEMA.codes(PERSON | {"income": 9000}, clamp=True).tolist()[0] == 50
    with pytest.raises(OutOfRange):
        SCHEMA.codes(PERSON | {"income": math.inf}, clamp=True)


def test_frames_that_do_not_fit_the_schema() -> None:
    good = {name: [value, value] for name, value in PERSON.items()}
    assert SCHEMA.quantise(good).tolist() == [[24, 0, 1, 0]] * 2
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"income": [100, 5001]}, OutOfRange, r"income\[1\]: got 5001.0"),
        ({"income": [None, 100]}, MissingValue, r"income\[0\]: got nothing"),
        ({"job": ["clerk", "pilot"]}, UnknownValue, r"job\[1\]: got 'pilot'"),
        ({"income": ["1", "2"]}, WrongType, r"income\[0\]: got '1', expected a number"),
    ]
    for change, error, message in bad:
        with pytest.raises(error, match=message):
            SCHEMA.quantise(good | change)
    with pytest.raises(UnknownName, match="column: got 'owner', expected one of income, job, size"):
        SCHEMA.quantise({k: v for k, v in good.items() if k != "owner"})
    with pytest.raises(EmptyDatabase, match="frame: got no rows"):
        SCHEMA.quantise({name: [] for name in PERSON})
    with pytest.raises(WrongType, match="frame: got int, expected a pandas, polars or pyarrow frame"):
        SCHEMA.quantise(3)


def test_a_row_number_counts_missing_values_too() -> None:
    income = Numeric(name="income", low=0, high=10, step=1, missing="level")
    job = Categorical(name="job", values=("clerk", "baker"), missing="level")
    cases: list[tuple[Any, list[Any], type[InvalidInput]]] = [
        (income, [None, 3, None, 11], OutOfRange),
        (income, [None, 3, None, "many"], WrongType),
        (job, [None, "clerk", None, "pilot"], UnknownValue),
    ]
    for feature, values, error in cases:
        with pytest.raises(error, match=rf"^{feature.name}\[3\]: got ") as caught:
            feature.codes(values)
        assert (caught.value.what, caught.value.row) == (feature.name, 3)


def test_values_are_shown_as_people_read_them() -> None:
    income, job, size, owner = SCHEMA.features
    assert [income.show(2400.0), job.show("clerk"), size.show(None), owner.show(True)] == [
        "2,400 €",
        "clerk",
        "not given",
        "yes",
    ]
    assert Numeric(name="rate", low=0, high=1, levels=200).show(0.125) == "0.125"
    assert Numeric(name="rate", low=0, high=1, levels=200, format=".1%").show(0.125) == "12.5%"
    assert Numeric(name="monthly_rate", low=0, high=1, levels=2).title == "monthly rate"


@pytest.mark.parametrize(
    "numbers",
    [
        [1700000000007, 1700000000123],
        [1e-10, 5e-10, 9e-10],
        [3.0, 3.0],
        [1e20, 1e20],
        [-1e15, 1e15],
        [2**53, 2**53 + 2],
    ],
)
def test_ranges_of_odd_sizes_hold_their_data(numbers: list[float]) -> None:
    (f,) = Schema.infer({"x": numbers}).features
    assert isinstance(f, Numeric)
    assert f.low <= min(numbers)
    assert f.high >= max(numbers)
    step = (f.high - f.low) / f.steps
    for number, code in zip(numbers, f.codes(numbers), strict=True):
        back = f.value(int(code))
        assert isinstance(back, float)
        assert abs(back - number) <= step * 0.51
    assert Schema.from_toml(Schema(features=(f,)).to_toml()).features == (f,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Categorical(name="a", values=("x",), encoding="onehot"),  # type: ignore[arg-type]
        lambda: Boolean(name="a", missing="x"),  # type: ignore[arg-type]
        lambda: Numeric(name="a", low=0, high=1, levels=2.5),  # type: ignore[arg-type]
        lambda: Ordinal(name="a", values="abc"),  # type: ignore[arg-type]
        lambda: Ordinal(name="a", values=(1.0, math.inf)),
        lambda: Boolean(name=3),  # type: ignore[arg-type]
        lambda: Boolean(name="two\nlines"),
        lambda: Schema(features=[Boolean(name="a")]),  # type: ignore[arg-type]
    ],
)
def test_schemas_made_in_python_are_checked_too(make: Any) -> None:
    with pytest.raises(ValueError, match=r"got .*, expected"):
        make()


def test_infer_takes_a_list_of_columns_to_leave_out() -> None:
    with pytest.raises(WrongType, match="exclude: got the text 'age', expected a list of columns"):
        Schema.infer(FRAME, exclude="age")
    with pytest.raises(OutOfRange, match="most_levels: got 0"):
        Schema.infer(FRAME, most_levels=0)


def test_truth_values_are_known_in_every_make_of_frame() -> None:
    for make in (dict, pd.DataFrame, pl.DataFrame, pa.table):
        guessed = Schema.infer(make({"a": [0, 1, None], "b": [True, None, False], "c": [0, 1, 1]}))
        assert [type(f) for f in guessed.features] == [Boolean] * 3
        assert [f.missing for f in guessed.features] == ["level", "level", "refuse"]


A = {"kind": "numeric", "name": "a", "low": 0, "high": 1, "levels": 2}
POINTS = {"kind": "numeric", "name": "a", "low": 0, "high": 1, "points": [0, 0.1, 0.3, 1]}
ONE_OF = {"kind": "categorical", "name": "a", "values": ["x", "y"]}
YES = {"kind": "boolean", "name": "a"}
COLLIDING = [1 + n * (2**61 - 1) for n in range(100)]  # whole numbers of the same hash
LARGE = [{**A, "name": f"a{j}", "levels": 65_534} for j in range(257)]  # 16,842,495 levels
FORMATS = ["", ",", ".0f", ",.0f", ",.2f", ".1%", ".3g", ".19e", ",.4", "f", "%"]
PADDING = [
    "2000000000",
    "2000000000f",
    ",2000000000",
    ".2000000000f",
    ".20f",
    ".100f",
    "010f",
    "x<9f",
    "+f",
    " f",
    "_f",
]
FORGED: list[tuple[str, list[dict[str, Any]], str]] = [
    *((f"format {text!r}", [{**A, "format": text}], "format: got .*, expected a format such as") for text in PADDING),
    (
        "a format of many characters",
        [{**A, "format": "," * 10**6}],
        "format: got 1000000 characters, expected at most 200",
    ),
    ("a format of two lines", [{**A, "format": ".1f\n"}], "format: got '.1f.*n', expected a format such as"),
    ("a long name", [{**YES, "name": "n" * 201}], "feature 'number 1'.*name: got 201 characters, expected at most 200"),
    ("a long label", [{**YES, "label": "n" * 10**6}], "label: got 1000000 characters, expected at most 200"),
    ("a long unit", [{**A, "unit": "n" * 201}], "unit: got 201 characters, expected at most 200"),
    ("a long value", [{**ONE_OF, "values": ["x", "n" * 201]}], "values: got 201 characters, expected at most 200"),
    ("a long kind", [{**YES, "kind": "n" * 10**6}], "kind: got Invalid value 'nnn"),
    ("a list for a name", [{**YES, "name": [["x"] * 10**6]}], "feature 'number 1', name: got Expected `str`"),
    ("many levels", [{**A, "levels": 65_535}], "levels: got 65535, expected 1 to 65534"),
    (
        "levels beyond words",
        [{**A, "levels": 10**4000}],
        "levels: got a whole number of 13288 bits, expected 1 to 65534",
    ),
    ("small steps", [{**A, "levels": None, "step": 1e-300}], "step: got 1e-300, expected a number that divides"),
    ("no step", [{**A, "levels": None, "step": 5e-324}], "step: got 5e-324, expected a number that divides"),
    ("many values", [{**ONE_OF, "values": list(range(65_535))}], "values: got 65535, expected at most 65534"),
    ("a high beyond", [{**A, "high": 1e301}], "low: got 0.0 to 1e.301, expected numbers within 1e.300 of 0"),
    (
        "a low beyond",
        [{**A, "low": -1.7e308, "high": 1.7e308}],
        "low: got -1.7e.308 to 1.7e.308, expected numbers within",
    ),
    (
        "a ratio beyond",
        [{**A, "low": 5e-324, "log": True}],
        "high: got 1.0, expected a finite multiple of low = 5e-324",
    ),
    (
        "many features",
        [{**YES, "name": f"a{j}"} for j in range(10_001)],
        "feature: got 10001 of them, expected at most 10000",
    ),
    ("a direction without an order", [{**ONE_OF, "change": "up"}], "change: got 'up' for values without an order"),
    ("another change", [{**YES, "change": "sometimes"}], "change: got Invalid enum value"),
    ("an effort of nothing", [{**YES, "effort": 0}], "effort: got 0, expected a whole number from 1 to 1000"),
    ("an effort beyond", [{**YES, "effort": 1001}], "effort: got 1001, expected a whole number"),
    ("points that fall", [{**POINTS, "points": [0, 0.5, 0.25, 1]}], "points: got .*, expected numbers that rise"),
    ("points that end early", [{**POINTS, "points": [0, 0.5]}], "points: got .*, expected numbers that rise"),
    ("no points", [{**POINTS, "points": []}], "points: got .*, expected numbers that rise"),
    ("many points", [{**POINTS, "points": [n / 65_535 for n in range(65_536)]}], "levels: got 65535, expected 1 to"),
    ("points and levels", [{**POINTS, "levels": 2}], "levels: got both levels and step"),
    ("many levels together", LARGE, "levels: got 16842495 in all features, expected at most 16777216"),
]
IN_PYTHON_ALONE: list[tuple[str, list[dict[str, Any]], str]] = [  # JavaScript has only 64-bit floats
    ("a mad that is infinite", [{**A, "mad": math.inf}], "mad: got inf, expected a number above 0"),
    ("a high beyond words", [{**A, "high": 10**400}], "high: got Number out of range"),
    (
        "values that collide",
        [{**ONE_OF, "values": COLLIDING}],
        "values: got a whole number of 64 bits, expected finite",
    ),
]


@pytest.mark.parametrize(
    ("features", "message"),
    [case[1:] for case in FORGED + IN_PYTHON_ALONE],
    ids=[case[0] for case in FORGED + IN_PYTHON_ALONE],
)
def test_a_schema_that_would_cost_its_reader_much_is_refused(
    features: list[dict[str, Any]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def formatted(*_: object) -> str:
        raise AssertionError("a format was used before it was looked at")

    monkeypatch.setattr("counterveil.schema.features.format", formatted, raising=False)
    with pytest.raises(InvalidSchema, match=message) as caught:
        Schema.from_builtins({"feature": features}, "forged")
    assert str(caught.value).startswith("forged")
    assert len(str(caught.value)) < 1000


def test_a_schema_of_the_largest_bounds_is_taken() -> None:
    longest = [*LARGE[:255], {**A, "name": "a" * 200, "label": "ä" * 200, "unit": "€" * 200, "levels": 2}]
    longest += [
        {**ONE_OF, "values": ["x" * 200, 2**63 - 1, -(2**63) + 1]},
        {**A, "name": "b", "low": -1e300, "high": 1e300},
    ]
    schema = Schema.from_builtins({"feature": longest})
    assert Schema.from_builtins(schema.to_builtins()) == schema
    assert len(Schema.from_builtins({"feature": [{**YES, "name": f"a{j}"} for j in range(10_000)]}).features) == 10_000
    with pytest.raises(InvalidSchema, match="schema: got Expected `str` of length <= 200"):
        Schema.from_builtins({"feature": [YES], "deployment": {"scheme": "x" * 201}})


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = 1" + "0" * 5000], ids=["deep", "digits"])
def test_toml_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema, match=r"my\.toml: got .*, expected TOML"):
        Schema.from_toml(text, "my.toml")


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("value", [0, 1, 0.125, -3, 2400, 1e300])
def test_every_format_that_is_taken_writes_every_number(text: str, value: float) -> None:
    shown = Numeric(name="a", low=-1e300, high=1e300, levels=2, format=text).show(value)
    assert 0 < len(shown) <= 500


def test_whole_numbers_stay_whole_where_only_thousands_are_marked() -> None:
    assert Numeric(name="a", low=0, high=9000, step=1, format=",").show(2400) == "2,400"


def test_infer_takes_long_text_for_free_text() -> None:
    with pytest.warns(LeftOut, match=r"left out: text \(free text"):
        assert Schema.infer({"a": [1, 2, 3], "text": ["x", "y" * 201, "x"]}).names == ["a"]


@pytest.mark.slow
def test_the_page_refuses_the_same_schemas() -> None:
    web = files("counterveil") / "applicant" / "web"
    words = [f"strings/{language}" for language in ("en", "de", "fr", "es")]
    source = "".join((web / f"{name}.js").read_text("utf-8") for name in ("constants", *words, "strings", "schema"))
    alone = re.sub(r"^import .*\n", "", source, flags=re.M)  # run alone, the module has nothing to import
    module = "data:text/javascript;base64," + base64.b64encode(alone.encode()).decode()
    strange = [
        ("another kind", [{**YES, "kind": "constructor"}], ""),
        ("a list for a kind", [{**YES, "kind": ["boolean"]}], ""),
        ("another prototype", [json.loads('{"kind": "boolean", "name": "a", "__proto__": {}}')], ""),
        ("a method", [{**YES, "show": 1}], ""),
        ("no feature", [None], ""),
    ]
    fine = [
        *([{**A, "format": text}] for text in FORMATS),
        [{**A, "label": "\U0001f600" * 200}],
        [{**ONE_OF, "values": ["x", 1, 2.5, True]}, {**YES, "name": "b"}, {**A, "name": "c", "mad": 0.5}],
        [{**A, "high": 1e-200}],
        [POINTS, {**YES, "name": "b", "change": "up", "effort": 3, "override": True}],
        Schema.infer(FRAME).to_builtins()["feature"],
        german_credit()[1].to_builtins()["feature"],
    ]
    forged = [case for case in FORGED + strange if case[0] != "levels beyond words"]  # JSON cannot hold it
    with chromium() as browser:
        said = new_page(browser).evaluate(
            """async ([module, schemas]) => {
              const { Schema } = await import(module);
              return schemas.map((text) => {
                try {
                  for (const f of new Schema({ feature: JSON.parse(text) }).features) f.show(f.value(0));
                  return "taken";
                } catch (error) {
                  return String(error).slice(0, 300);
                }
              });
            }""",
            [module, [json.dumps(features) for features in [*fine, *(case[1] for case in forged)]]],
        )
        numbers = [float(n) for n in np.linspace(0, 1, 401)]
        levels = new_page(browser).evaluate(
            """async ([module, raw, numbers]) => {
              const { Feature } = await import(module);
              return numbers.map((number) => new Feature(raw).code(number));
            }""",
            [module, POINTS, numbers],
        )
    assert levels == Schema.from_builtins({"feature": [POINTS]}).features[0].codes(numbers).tolist()
    assert said[: len(fine)] == ["taken"] * len(fine)
    for (name, *_), refusal in zip(forged, said[len(fine) :], strict=True):
        assert refusal.startswith(("RangeError: schema: ", "TypeError: ")), (name, refusal)


def test_texts_in_several_languages() -> None:
    """They stay inside their feature as TOML, people read English, and a schema without them keeps its bytes."""
    plain = Categorical(name="home_now", values=("o", "r"))
    said = Categorical(
        name="home_now", values=("o", "r"), label={"de": "Wohnung"}, group={"en": "Home", "de": "Zuhause"},
        labels={"en": ("owned", "rented"), "de": ("eigen", "Miete")},
    )  # fmt: skip
    months = Numeric(name="months", low=0, high=9, step=1, unit={"fr": "mois", "de": "Monate"}, label="Time")
    schema = Schema(features=(said, months, plain.__class__(name="x", values=("a",), labels=("A",))))
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_builtins(schema.to_builtins()) == schema
    assert [f.title for f in schema.features] == ["home now", "Time", "x"]
    assert said.show("r") == "rented"
    assert plain.show("r") == "r"
    assert months.show(3) == "3 Monate"
    assert set(Schema(features=(plain,)).to_builtins()["feature"][0]) == {"kind", "name", "values"}
    bad: list[dict[str, Any]] = [
        {"label": {}}, {"label": {"EN": "x"}}, {"group": {"en": ""}}, {"labels": ("a",)}, {"labels": {"de": ()}},
        {"labels": ("a", "a")}, {"label": 3}, {"label": {"en": "x" * 201}},
    ]  # fmt: skip
    for change in bad:
        with pytest.raises(ValueError, match=f"^{next(iter(change))}: got "):
            Categorical(name="home", values=("o", "r"), **change)
