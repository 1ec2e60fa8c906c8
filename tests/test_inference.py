"""Data as it comes: what becomes a feature, what is left out and named, and what is warned about."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterveil import Boolean, Categorical, Counterfactual, Database, Numeric, Ordinal, Schema, local
from counterveil.errors import LeftOut, OutOfRange, Suspicious
from counterveil.schema import frames
from counterveil.schema.frames import Columns

RNG = np.random.default_rng(16)
INCOME = RNG.integers(900, 9000, 60).tolist()


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"client_id": RNG.permutation(60).tolist()}, "client_id .it looks like an id or a row number"),
        ({"number": list(range(1, 61))}, "number .it looks like an id or a row number"),
        ({"account": sorted([1001 + n // 2 * 7 for n in range(60)])}, None),
        ({"case": [1001 + n * 7 - (n % 3 == 1) * 7 for n in range(60)]}, "case .it looks like an id or a row number"),
        ({"iban": RNG.choice(10**9, 60, replace=False) + 10**9}, "iban .it looks like an id or a row number"),
        ({"opened": [f"20{n % 20:02}-0{n % 9 + 1}-11" for n in range(60)]}, "opened .dates; turn them into a number"),
        ({"at": [f"2020-01-0{n % 9 + 1}T10:00:00Z" for n in range(60)]}, "at .dates"),
        ({"name": [f"person {n}" for n in range(60)]}, "name .it looks like an id: each value occurs once"),
        ({"remark": [f"the customer said number {n % 25}" for n in range(60)]}, "remark .free text: 25 different"),
        ({"empty": [None] * 60}, "empty .it has no values"),
        ({"score": RNG.permutation(np.arange(300, 900, 10)).tolist()}, None),
        ({"postcode": [10000 + n % 20 for n in range(60)]}, None),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_columns_that_are_no_features_are_named_with_the_reason(column: dict[str, Any], reason: str | None) -> None:
    data = {"income": INCOME, **column}
    if reason is None:
        assert Schema.infer(data).names == list(data)
        return
    with pytest.warns(LeftOut, match=f"left out: {reason}"):
        assert Schema.infer(data).names == ["income"]


def test_a_column_that_looks_like_an_id_can_be_included() -> None:
    data = {"income": INCOME, "client_id": list(range(60)), "name": [f"person {n}" for n in range(60)]}
    assert Schema.infer(data, include=["client_id", "name"]).names == ["income", "client_id", "name"]


def test_free_text_is_no_category_even_if_there_are_many_rows() -> None:
    words = [f"w{n % 900}" for n in range(20_000)]
    with pytest.warns(LeftOut, match=r"left out: t \(free text: 900 different values\)"):
        assert Schema.infer({"x": RNG.normal(size=20_000), "t": words}).names == ["x"]


@pytest.mark.parametrize("name", ["postcode", "ZIP", "zipCode", "postal_code", "plz"])
def test_postcodes_are_categories(name: str) -> None:
    (number,) = Schema.infer({name: [10115, 20095, 10115, 80331] * 10}).features
    assert number == Categorical(name=name, values=(10115, 20095, 80331))
    (text,) = Schema.infer({name: ["01067", "20095", "01067"] * 10}).features
    assert text == Categorical(name=name, values=("01067", "20095"))


def test_leading_zeros_survive_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("plz,x\n" + "01067,1\n20095,2\n" * 10)
    plz, x = Schema.infer(tmp_path / "a.csv").features
    assert plz == Categorical(name="plz", values=("01067", "20095"))
    assert isinstance(x, Numeric)


OUTLIERS = [*RNG.permutation(np.arange(1000) % 97 + 1000.0), 1e9]


def test_outliers_are_reported_and_quantiles_tell_the_rows_apart() -> None:
    with pytest.warns(Suspicious, match=r"x: 99.9% of the rows fall into one of its 101 levels.*--quantiles x"):
        Schema.infer({"x": OUTLIERS})
    (f,) = Schema.infer({"x": OUTLIERS}, quantiles=["x"]).features
    assert isinstance(f, Numeric)
    assert f.points is not None
    assert (f.low, f.high) == (f.points[0], f.points[-1]) == (0, 1e9)
    assert np.bincount(f.codes(OUTLIERS)).max() < 100
    assert Schema.from_toml(Schema(features=(f,)).to_toml()).features == (f,)


def test_nearly_constant_columns_are_no_outliers() -> None:
    (f,) = Schema.infer({"x": [1.0] * 300 + [1.5]}).features
    assert isinstance(f, Numeric)


@pytest.mark.parametrize(
    "repeat",
    [
        lambda good: ["yes" if g else "no" for g in good],
        lambda good: [1 if g else 2 for g in good],
        lambda good: [500 + 300 * g + 2 * n for n, g in enumerate(good)],
    ],
    ids=["words", "codes", "a score with a border"],
)
def test_a_column_that_repeats_the_verdict_is_warned_about(repeat: Any) -> None:
    good = [bool(n % 3) for n in range(90)]
    data = {"x": RNG.normal(size=90), "again": repeat(good), "verdict": ["good" if g else "bad" for g in good]}
    with pytest.warns(Suspicious, match=r"again repeats verdict: leave it out \(--exclude again\)"):
        schema = Schema.infer(data, exclude=["verdict"])
    with pytest.warns(Suspicious, match="again repeats the verdict"):
        Database.build(data, schema, accepted=("verdict", "good"))
    fine = {**data, "again": [*data["again"][1:], data["again"][0]]}
    Database.build(fine, Schema.infer(fine, exclude=["verdict"]), accepted=("verdict", "good"))


@pytest.mark.parametrize("backend", ["polars", "pandas", "pyarrow"])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("größe;preis\nklein;1,5\ngroß;2,5\n", "latin-1"),
        ("größe;preis\nklein;1,5\ngroß;2,5\n", "utf-8"),
        ("größe,preis\nklein,1.5\ngroß,2.5\n", "cp1252"),
        ("größe\tpreis\nklein\t1.5\ngroß\t2.5\n", "utf-8-sig"),
        ('"größe";"preis"\n"klein";1.5\n"groß";2.5\n', "latin-1"),
    ],
)
def test_csv_files_of_other_kinds_are_read(
    text: str, encoding: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_BACKENDS", (backend,))
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    table = Columns(tmp_path / "a.csv")
    assert table.people() == [{"größe": "klein", "preis": 1.5}, {"größe": "groß", "preis": 2.5}]


SIZES = ["small", "medium", "large"]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 3] * 10)}),
        pd.DataFrame({"a": [Decimal("0.5"), Decimal("1.5"), Decimal(3)] * 10}),
        pl.DataFrame({"a": [Decimal("0.5"), Decimal("1.5"), Decimal(3)] * 10}),
        pa.table({"a": [Decimal("0.5"), Decimal("1.5"), Decimal("3.0")] * 10}),
    ],
    ids=["sparse", "pandas decimal", "polars decimal", "pyarrow decimal"],
)
def test_numbers_of_other_types_are_numbers(frame: Any) -> None:
    schema = Schema.infer(frame)
    (f,) = schema.features
    assert isinstance(f, Numeric)
    bank = local(Database.build(frame, schema, lambda _: [True] * 30))
    found = bank.ask({"a": 3.0})
    assert isinstance(found, Counterfactual)
    assert found.record["a"] == 3


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"s": pa.DictionaryArray.from_arrays([0, 1, 2] * 10, SIZES, ordered=True)}),
        pd.DataFrame({"s": pd.Categorical(SIZES * 10, categories=SIZES, ordered=True)}),
        pd.DataFrame(
            {"s": pd.Series(SIZES * 10, dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string(), ordered=True)))}
        ),
    ],
    ids=["pyarrow", "pandas", "pandas of arrow"],
)
def test_ordered_dictionaries_are_ordinal(frame: Any) -> None:
    assert Schema.infer(frame).features == (Ordinal(name="s", values=tuple(SIZES)),)


def test_errors_name_the_frames_row() -> None:
    schema = Schema(features=(Numeric(name="x", low=0, high=10, step=1),))
    data = {"x": [1, 2, 3, 99], "ok": [False, True, False, True]}
    with pytest.raises(OutOfRange, match=r"x\[3\]: got 99"):
        Database.build(data, schema, accepted="ok")


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    whole=st.booleans(),
)
def test_half_a_step_is_below_a_hundredth_of_the_range(low: float, width: float, whole: bool) -> None:
    numbers = np.linspace(low, low + width, 7)
    numbers = np.rint(numbers) if whole else numbers
    (f,) = Schema.infer({"x": RNG.permutation(np.repeat(numbers, 3))}).features
    if isinstance(f, Boolean):
        return
    assert isinstance(f, Numeric)
    span = float(numbers.max() - numbers.min())
    step = (f.high - f.low) / f.steps
    assert step / 2 < 0.01 * (f.high - f.low) or step == 1 or span == 0
    assert math.isclose(step, round(step)) or not whole


@pytest.mark.parametrize(
    ("name", "values", "change", "reason"),
    [
        ("age", [20, 30], "up", "nobody gets younger"),
        ("applicantAge", [20, 30], "up", "nobody gets younger"),
        ("age_group", ["old", "young"], "never", "nobody gets younger"),
        ("Sex", ["f", "m"], "never", "nobody should be told to change sex"),
        ("nationality", ["de", "fr"], "never", "nobody should be told to change nationality"),
        ("marital_status", ["single", "married"], "never", "nobody should be told to marry or to divorce"),
        ("personal_status", ["man, single", "woman, married"], "never", "nobody should be told to change sex"),
        ("family", ["single", "Divorced"], "never", "nobody should be told to marry or to divorce"),
        ("job", ["craftsman", "manager"], "any", ""),
        ("average", [20, 30], "any", ""),
        ("mortgage", [20, 30], "any", ""),
    ],
)
def test_infer_proposes_what_can_change_and_says_why(name: str, values: list[Any], change: str, reason: str) -> None:
    schema = Schema.infer({name: values * 5})
    assert schema.features[0].change == change
    assert schema.features[0].effort == 1
    said = f"# change: {reason}.\n[[feature]]" if reason else "\n[[feature]]"
    assert said in schema.to_toml()
    assert ("# change: " in schema.to_toml()) is bool(reason)
