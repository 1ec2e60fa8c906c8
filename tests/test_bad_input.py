"""Bad input gets one typed error that names what was got and what was expected, before any work is done."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

import counterveil
from counterveil import Question, make_scheme, masking, retrieve
from counterveil.crypto.randomness import Common
from counterveil.engine import cpu
from counterveil.errors import (
    CounterveilError,
    EmptyDatabase,
    InvalidAlphas,
    InvalidBundle,
    InvalidField,
    InvalidInput,
    MissingValue,
    NoMask,
    OutOfRange,
    OversizedField,
    TableOverflow,
    TooFewServers,
    UnknownName,
    WrongShape,
    WrongType,
)

ROWS = np.array([[1, 2, 3], [4, 5, 6]])
X = [3, 3, 3]
NAN = float("nan")

CASES: list[tuple[dict[str, Any], type[InvalidInput], str]] = [
    # the rows
    ({"rows": []}, EmptyDatabase, "rows: got M = 0, expected at least one row"),
    ({"rows": np.empty((0, 3), dtype=int)}, EmptyDatabase, "rows: got M = 0"),
    ({"rows": [1, 2, 3]}, WrongShape, r"rows: got shape \(3,\), expected \(any, any\)"),
    ({"rows": [[1, 2], [3]]}, WrongShape, "rows: got lists of unequal length"),
    ({"rows": ROWS.astype(float)}, WrongType, "rows: got dtype float64, expected integers"),
    ({"rows": ROWS > 2}, WrongType, "rows: got dtype bool, expected integers"),
    ({"rows": ROWS.astype(str)}, WrongType, "rows: got dtype <U"),
    ({"rows": [[1.0, NAN, 3.0]]}, MissingValue, "rows: got NaN or None, expected integers"),
    ({"rows": [[1, None, 3]]}, MissingValue, "rows: got NaN or None"),
    ({"rows": [[1, 2, 11]]}, OutOfRange, r"rows\[0, 2\]: got 11, expected 0 to 10"),
    ({"rows": [[1, -1, 3]]}, OutOfRange, r"rows\[0, 1\]: got -1, expected 0 to 10"),
    ({"rows": ROWS, "largest": [10, 10, 5]}, OutOfRange, r"rows\[1, 2\]: got 6, expected 0 to 5"),
    # the question
    ({"x": [3, 3]}, WrongShape, r"x: got shape \(2,\), expected \(3\)"),
    ({"x": [3, 3, 3.5]}, WrongType, "x: got dtype float64, expected integers"),
    ({"x": [3, 3, NAN]}, MissingValue, "x: got NaN"),
    ({"x": [3, 3, 11]}, OutOfRange, r"x\[2\]: got 11, expected 0 to 10"),
    ({"x": [3, -3, 1]}, OutOfRange, r"x\[1\]: got -3, expected 0 to 10"),
    ({"x": None}, WrongType, "x: got nothing, expected 3 codes"),
    # preferences
    ({"weights": [1, 2, 3]}, WrongType, "preferences: got weights or costs, expected none: the form is euclidean"),
    ({"scheme": "baseline+", "weights": [1, 2]}, WrongShape, r"weights: got shape \(2,\), expected \(3\)"),
    ({"scheme": "baseline+", "weights": [1, 0, 1]}, OutOfRange, r"weights\[1\]: got 0, expected 1 to 10"),
    ({"scheme": "linear-diff", "weights": [1, 9, 1], "max_weight": 5}, OutOfRange, r"got 9, expected 1 to 5"),
    ({"scheme": "baseline+", "weights": [1, NAN, 1]}, MissingValue, "weights: got NaN"),
    ({"scheme": "baseline+", "weights": [1, 1.5, 1]}, WrongType, "weights: got dtype float64"),
    ({"scheme": "baseline+", "max_weight": 0}, OutOfRange, "max_weight: got 0, expected at least 1"),
    ({"max_weight": 3}, OutOfRange, "max_weight: got 3, expected 1: the form euclidean has no weights"),
    ({"scheme": "linear-diff", "costs": [[0]]}, WrongType, "costs: got a table for the form linear"),
    # tables
    ({"scheme": "table/distances", "costs": [[0] * 11] * 2}, WrongShape, "costs: got 2 tables, expected 3"),
    ({"scheme": "table/distances", "costs": [[0] * 11] * 2 + [[0]]}, WrongShape, r"costs\[2\]: got shape \(1,\)"),
    (
        {"scheme": "table/distances", "costs": [[-1] * 11] * 3},
        OutOfRange,
        r"costs\[0\]\[0\]: got -1, expected at least 0",
    ),
    ({"scheme": "table/distances", "costs": [[NAN] * 11] * 3}, MissingValue, r"costs\[0\]: got NaN"),
    (
        {"scheme": "table/distances", "costs": [[5] * 11] * 3, "cap": 4},
        TableOverflow,
        "costs: got a largest total of 15, expected at most 12",
    ),
    ({"scheme": "table/distances", "costs": [[2**62] * 11] * 3, "cap": 4}, TableOverflow, "at most 12"),
    ({"scheme": "table/distances", "costs": [[1] * 11] * 3, "weights": [1, 1, 1]}, WrongType, "beside costs"),
    ({"scheme": make_scheme("diff", largest=10, d=3)}, WrongType, "parameters: got some beside a Scheme"),
    ({"scheme": make_scheme("diff", largest=10, d=3), "largest": None, "d_min": 2}, WrongType, "beside a Scheme"),
    ({"scheme": "table/distances", "costs": 5}, WrongType, "costs: got int, expected 3 tables"),
    ({"scheme": "table/distances", "x": [99] * 3, "costs": [[1] * 11] * 3}, OutOfRange, r"x\[0\]: got 99"),
    ({"scheme": "table/distances", "costs": [[4] * 11, [4] * 11, [5] * 11], "cap": 4}, TableOverflow, "total of 13"),
    ({"scheme": "table/distances", "cap": 0}, OutOfRange, "cap: got 0, expected at least 1"),
    # the field and the servers
    ({"q": 10}, InvalidField, "q: got 10, expected a prime below"),
    ({"q": 293}, InvalidField, "q: got 293, expected a prime above 300"),
    ({"q": 307.0}, WrongType, "q: got float, expected int"),
    ({"alphas": [1, 1]}, InvalidAlphas, r"alphas: got \[1, 1\], expected distinct and non-zero mod 307"),
    ({"alphas": [0, 1]}, InvalidAlphas, "distinct and non-zero mod 307"),
    ({"alphas": [307, 1]}, InvalidAlphas, "distinct and non-zero mod 307"),
    ({"alphas": [1, 2, 3], "servers": 2}, WrongShape, "alphas: got 3, expected one for each of 2 servers"),
    ({"alphas": [1.5, 2]}, WrongType, "alphas: got float, expected int"),
    ({"servers": 1}, TooFewServers, "servers: got 1, expected at least 2: euclidean against 1"),
    ({"servers": 0}, OutOfRange, "servers: got 0, expected at least 1"),
    ({"servers": 2.0}, WrongType, "servers: got float, expected int"),
    ({"servers": 3, "collusion": 3}, TooFewServers, "servers: got 3, expected at least 4: euclidean against 3"),
    ({"collusion": 0}, OutOfRange, "collusion: got 0, expected at least 1"),
    ({"scheme": "mask+", "servers": 2, "d_min": 2}, TooFewServers, "got 2, expected at least 3: weighted against 1"),
    # the reveal
    ({"scheme": "mask", "d_min": 0}, OutOfRange, "d_min: got 0, expected at least 1"),
    ({"scheme": "mask", "d_min": 2.0}, WrongType, "d_min: got float, expected int"),
    ({"scheme": "diff", "d_min": 2}, OutOfRange, "mask: got d_min = 2, expansion = 1, expected both 1"),
    # the public parameters
    ({"largest": None}, WrongType, "largest: got nothing, expected the largest code R"),
    ({"largest": 0}, OutOfRange, r"largest\[0\]: got 0, expected 1 to "),
    ({"largest": [10, 10]}, WrongShape, r"largest: got shape \(2,\), expected \(3\)"),
    ({"largest": []}, WrongShape, r"largest: got shape \(0,\), expected \(3\)"),
    ({"largest": [1, [2, 3]]}, WrongShape, "largest: got lists of unequal length"),
    ({"largest": 2**31}, OutOfRange, r"largest\[0\]: got 2147483648, expected 1 to 2147483647"),
    ({"capp": 4}, UnknownName, "parameter: got capp, expected one of max_weight, for the form euclidean"),
    ({"scheme": "linear-diff", "norm": 4}, UnknownName, "parameter: got norm"),
    ({"shuffle": "no"}, WrongType, "shuffle: got str, expected True or False"),
    ({"alphas": 5}, WrongType, "alphas: got int, expected one number for each server"),
    ({"alphas": b"ab"}, WrongType, "alphas: got bytes"),
    ({"alphas": np.array(3)}, WrongType, "alphas: got ndarray"),
    ({"rows": [np.ma.masked_array([1, 2, 3], mask=np.array([0, 1, 0])), [4, 5, 6]]}, MissingValue, "rows: got NaN"),
    ({"records": [b"ab", [b"c"]]}, WrongType, "records: got other things"),
    ({"servers": 300}, OutOfRange, r"servers: got 300, expected 1 to 255"),
    ({"rows": np.array(5)}, WrongShape, r"rows: got shape \(\), expected \(any, any\)"),
    ({"rows": np.ma.masked_array(ROWS, mask=ROWS == 2)}, MissingValue, "rows: got NaN or None"),
    ({"x": np.ma.masked_array(np.array(X), mask=np.array([False, True, False]))}, MissingValue, "x: got NaN or None"),
    ({"rows": [[1, pd.NA, 3]]}, MissingValue, "rows: got NaN or None"),
    ({"rows": [[Decimal("sNaN")] * 3]}, WrongType, "rows: got dtype object"),
    ({"largest": 2**31 - 1, "scheme": "even_norm/distances"}, InvalidField, "field: got values up to"),
    ({"scheme": "even_norm/distances", "norm": 3}, OutOfRange, "norm: got 3, expected an even number"),
    ({"scheme": "even_norm/distances", "norm": 0}, OutOfRange, "norm: got 0, expected at least 2"),
    ({"scheme": "best"}, UnknownName, "scheme: got best, expected one of baseline, diff, mask"),
    ({"scheme": "manhattan/distances"}, UnknownName, "form: got manhattan, expected one of euclidean"),
    ({"scheme": "linear/everything"}, UnknownName, "reveal: got everything, expected one of distances"),
    # the records
    ({"records": 5}, WrongType, "records: got int, expected a list of bytes"),
    ({"records": np.array(3, dtype=np.uint8)}, WrongType, "records: got ndarray"),
    ({"records": [b"a"]}, WrongShape, "records: got 1, expected one for each of 2 rows"),
    ({"records": [b"a", b"bc"]}, WrongShape, "records: got lengths 1 to 2"),
]


@pytest.mark.parametrize(("given", "error", "message"), CASES, ids=lambda v: str(v)[:60])
def test_one_typed_error_before_any_work(
    given: dict[str, Any], error: type[InvalidInput], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: object) -> Any:
        raise AssertionError("a server scanned its rows")

    monkeypatch.setattr(cpu, "polynomial", no_work)
    monkeypatch.setattr(cpu, "table", no_work)
    arguments: dict[str, Any] = {"rows": ROWS, "x": X, "largest": 10} | given
    with pytest.raises(error, match=message) as caught:
        retrieve(arguments.pop("rows"), arguments.pop("x"), **arguments)
    assert type(caught.value) is error
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, CounterveilError)


def test_a_servers_own_checks() -> None:
    scheme = make_scheme("baseline", largest=10, d=3)
    common = Common(bytes(32), digest=b"", ticket=b"t", servers=(1, 2))
    good = np.array([1, 2, 3])
    bad_queries: list[tuple[Any, type[InvalidInput], str]] = [
        ([1, 2], WrongShape, r"query: got shape \(2,\), expected \(3\)"),
        ([1, 2, 307], OutOfRange, r"query\[2\]: got 307, expected 0 to 306"),
        ([1, 2, -1], OutOfRange, "got -1"),
        ([1.0, 2.0, 3.0], WrongType, "query: got dtype float64"),
    ]
    for query, error, message in bad_queries:
        with pytest.raises(error, match=message):
            scheme.answer(1, ROWS, query, common)
    bad_servers: list[tuple[Any, type[InvalidInput]]] = [(0, OutOfRange), (3, OutOfRange), ("1", WrongType)]
    for server, error in bad_servers:
        with pytest.raises(error, match="server: got"):
            scheme.answer(server, ROWS, good, common)


def test_an_applicants_own_checks() -> None:
    scheme = make_scheme("baseline", largest=10, d=3)
    question, queries = Question(X), np.zeros((2, 3), dtype=np.int64)
    for answers, message in [
        ([[1, 2]], "answers: got 1, expected one for each of 2 servers"),
        ([[1, 2], [1]], r"answer of server 2: got shape \(1,\), expected \(2\)"),
        ([[1, 2], [1, 307]], r"answer of server 2\[1\]: got 307, expected 0 to 306"),
        ([[1, 2], [1, NAN]], "answer of server 2: got NaN"),
        ([3, 4], r"answer of server 1: got shape \(\), expected \(2\)"),
        ([[], []], r"answer of server 1: got shape \(0,\), expected \(2\)"),
        ([[1], [2]], r"answer of server 1: got shape \(1,\), expected \(2\)"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            scheme.recover(question, queries, answers, 2)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match=r"query to server 1\[0\]: got 307, expected 0 to 306"):
        scheme.recover(question, np.full((2, 3), 307), [[1, 2], [3, 4]], 2)
    with pytest.raises(WrongShape, match="queries: got 1, expected one for each of 2 servers"):
        scheme.recover(question, queries[:1], [[1, 2], [3, 4]], 2)
    with pytest.raises(WrongType, match="answers: got generator"):
        scheme.recover(question, queries, (a for a in [[1], [2]]), 1)  # type: ignore[arg-type]
    no_question: Any = [1, 2, 3]
    with pytest.raises(WrongType, match="question: got list, expected a Question"):
        scheme.form.costs(ROWS, no_question)
    with pytest.raises(WrongType, match="question: got list, expected a Question"):
        masking.exact_share(scheme.form, ROWS, [no_question], 2)
    for records in ([b"a", b"b"], np.zeros((7, 1), dtype=np.uint8), np.zeros((2, 1))):
        with pytest.raises(WrongShape, match=r"records: got .*, expected an array of uint8, 2 by length"):
            scheme.digest(ROWS, records)  # type: ignore[arg-type]


def test_an_error_can_be_said_of_another_place() -> None:
    first = OutOfRange("income", row=3, got=11, expected="0 to 10")
    assert str(first) == "income[3]: got 11, expected 0 to 10"
    again = first.at("costs, income")
    assert type(again) is OutOfRange
    assert str(again) == "costs, income: got 11, expected 0 to 10"
    assert str(first.at("income", 70_003)) == "income[70003]: got 11, expected 0 to 10"
    whole = InvalidBundle.inside("a.bundle", first)
    assert type(whole) is InvalidBundle
    assert str(whole) == "a.bundle: got income[3]: 11, expected 0 to 10"


def test_numbers_of_numpy_are_numbers() -> None:
    """A narrow NumPy integer must not make a bound overflow, nor a digest differ."""
    plain: dict[str, Any] = {"largest": 1000, "d": 2, "max_weight": 9000, "d_min": 3, "servers": 3, "collusion": 2}
    narrow: dict[str, Any] = {name: np.int32(value) for name, value in plain.items()}
    ours, theirs = (make_scheme("linear-mask", **given) for given in (plain, narrow))
    assert ours == theirs
    assert ours.form.bound == 9000 * 2 * 1000**2
    assert ours.digest([[1, 2]]) == theirs.digest([[1, 2]])
    assert make_scheme("even_norm/distances", largest=9, d=2, norm=np.int8(6)).form.bound == 10 * 2 * 9**6
    assert make_scheme("table/distances", largest=9, d=2, cap=np.uint8(200)).field.q == 401
    assert counterveil.Field(np.int64(7)).bits == 3  # type: ignore[arg-type]


def test_levels_may_come_as_anything_that_is_an_array() -> None:
    best = pd.DataFrame(ROWS).max()
    assert make_scheme("baseline", largest=best, d=3).form.largest == (4, 5, 6)


def test_q_must_exceed_the_bound_and_not_just_reach_it() -> None:
    assert make_scheme("baseline", largest=1, d=5).form.bound == 5
    with pytest.raises(InvalidField, match="q: got 5, expected a prime above 5"):
        make_scheme("baseline", largest=1, d=5, q=5)


def test_warnings_for_what_is_allowed_but_seldom_wanted() -> None:
    with pytest.warns(NoMask, match="d_min = 1 means no mask"):
        retrieve(ROWS, X, largest=10, scheme="mask")
    with pytest.warns(OversizedField, match="q = 2147483647: the smallest prime, 307, gives away less"):
        retrieve(ROWS, X, largest=10, q=2**31 - 1)


def test_a_question_has_no_printed_form() -> None:
    question = Question([987654321], weights=[7654321])
    assert "987654321" not in repr(question) + str(question) + f"{question}"
    assert "7654321" not in repr(question)


def test_the_public_api_is_listed_once() -> None:
    assert sorted(counterveil.__all__, key=lambda n: (not n.isupper(), n)) == counterveil.__all__
    assert all(hasattr(counterveil, name) for name in counterveil.__all__)
