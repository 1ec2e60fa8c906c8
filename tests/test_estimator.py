from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from counterveil import Counterfactual, Numeric, Schema
from counterveil.errors import EmptyDatabase, LeftOut, OutOfRange, UnknownName, WrongType
from counterveil.inprocess.estimator import PrivateCounterfactuals
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns


@parametrize_with_checks([PrivateCounterfactuals(), PrivateCounterfactuals(scheme="linear-diff", n_neighbors=2)])  # type: ignore[untyped-decorator]
def test_it_is_a_scikit_learn_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


def test_kneighbors_finds_the_nearest_accepted_rows_and_where_they_stood() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 101, (200, 3)).astype(float)
    y = (X.sum(axis=1) > 160).astype(int)
    model = PrivateCounterfactuals().fit(X, y)
    questions = X[y == 0][:20]
    costs, indices = model.kneighbors(questions, n_neighbors=4)
    assert costs.shape == indices.shape == (20, 4)
    assert (y[indices] == 1).all()
    accepted = np.flatnonzero(y)
    for x, cost, index in zip(questions, costs, indices, strict=True):
        truth = np.sort((((X[accepted] - x) / 100) ** 2).sum(axis=1))[:4]
        assert cost == pytest.approx(truth, abs=1e-3)
        assert (((X[index] - x) / 100) ** 2).sum(axis=1) == pytest.approx(truth, abs=1e-3)
    assert np.array_equal(model.kneighbors(questions, return_distance=False).shape, (20, 1))
    with pytest.raises(OutOfRange, match=r"n_neighbors: got 500, expected 1 to "):
        model.kneighbors(questions, n_neighbors=500)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_in_frames_out(make: Any) -> None:
    frame, schema = german_credit()
    table = Columns(frame)
    columns = {name: table.frame[name].to_list() for name in schema.names}
    people = make({name: column[:200] for name, column in columns.items()})
    verdicts = table.frame["credit"].to_list()[:200]
    model = PrivateCounterfactuals(schema, accepted="good").fit(people, verdicts)
    bad = [i for i, verdict in enumerate(verdicts) if verdict == "bad"][:3]
    asked = make({name: [column[i] for i in bad] for name, column in columns.items()})
    found = model.explain(asked, immutable=["age"])
    assert type(found) is type(asked)
    told = Columns(found)
    assert told.names == [*schema.names, "cost", "explanation"]
    assert told.count == 3
    for text, age, own in zip(
        told.frame["explanation"].to_list(), told.frame["age"].to_list(), [columns["age"][i] for i in bad], strict=True
    ):
        assert text.startswith("No accepted row") or age == own
    assert model.feature_names_in_.tolist() == schema.names


def test_the_accepted_label() -> None:
    X = [[1.0], [2.0], [3.0]]
    assert PrivateCounterfactuals().fit(X, [0, 1, 1]).accepted_ == 1
    with pytest.raises(WrongType, match="accepted: got no label, expected one of approved, rejected"):
        PrivateCounterfactuals().fit(X, ["approved", "rejected", "approved"])
    assert PrivateCounterfactuals(accepted="no").fit(X, ["no", "yes", "yes"]).kneighbors([[3.0]])[1].tolist() == [[0]]
    assert PrivateCounterfactuals().fit(X).kneighbors([[3.0]])[1].tolist() == [[2]]
    with pytest.raises(EmptyDatabase, match="y: got no row with 'maybe'"):
        PrivateCounterfactuals(accepted="maybe").fit(X, ["no", "yes", "yes"])


def test_columns_that_are_no_features_are_passed_over() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 9.0], "day": pd.Timestamp("2026-01-01")})
    with pytest.warns(LeftOut, match=r"left out: day \(dates"):
        model = PrivateCounterfactuals().fit(frame, [0, 0, 1])
    assert model.schema_.names == ["x"]
    assert model.explain(frame[:1])["explanation"][0] == "Raise x from 1 to 9."


def test_a_schema_that_is_given_is_kept_to() -> None:
    schema = Schema(features=(Numeric(name="x0", low=0, high=10, step=1),))
    model = PrivateCounterfactuals(schema).fit([[1.0], [9.0]], [0, 1])
    with pytest.raises(OutOfRange, match=r"x0\[0\]: got 1000000000.0, expected 0 to 10"):
        model.kneighbors([[1e9]])
    clash = PrivateCounterfactuals().fit(pd.DataFrame({"cost": [1.0, 2.0]}), [0, 1])
    with pytest.raises(UnknownName, match="feature: got cost, which explain adds"):
        clash.explain(pd.DataFrame({"cost": [1.0]}))


def test_it_can_be_cloned_and_asked() -> None:
    model = clone(PrivateCounterfactuals(max_weight=3)).fit([[1.0, 1.0], [9.0, 9.0]], [0, 1])
    found = model.ask({"x0": 1.0, "x1": 9.0})
    assert found.text() == "Raise x0 from 1 to 9."


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["auto", "linear-diff", "table/distances"])
def test_kneighbors_finds_what_the_protocol_finds(scheme: str) -> None:
    rng = np.random.default_rng(3)
    X = rng.integers(0, 1001, (60, 3)).astype(float)
    y = (X.sum(axis=1) > 1500).astype(int)
    model = PrivateCounterfactuals(scheme=scheme).fit(X, y)
    questions = X[y == 0][:6]
    costs, indices = model.kneighbors(questions)
    for x, cost, index in zip(questions, costs, indices, strict=True):
        found = model.ask({f"x{j}": value for j, value in enumerate(x)})
        assert isinstance(found, Counterfactual)
        assert found.cost == pytest.approx(cost[0])
        assert list(found.record.values()) == pytest.approx(X[index[0]].tolist())


@pytest.mark.slow
def test_kneighbors_of_many_people_takes_a_moment() -> None:
    """The protocol takes a tenth of a second for each; 300 people took half a minute."""
    frame, schema = german_credit()
    people = frame.select(schema.names)
    model = PrivateCounterfactuals(schema, accepted="good").fit(people, frame["credit"].to_list())
    before = time.process_time()
    assert model.kneighbors(people[:300])[1].shape == (300, 1)
    assert time.process_time() - before < 10
