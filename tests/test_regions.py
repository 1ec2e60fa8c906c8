"""Regions: what is certified holds for every point, their codes come from the schema, and costs are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from counterveil import Boolean, Categorical, Numeric, Ordinal, Schema
from counterveil.errors import NotOffered, UnknownName
from counterveil.institution.regions import Regions, find_regions, read_model, ways_in
from counterveil.institution.regions.cells import ends
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns, rows_as_frame

FRAME, SCHEMA = german_credit()
PEOPLE = Columns(FRAME)
NUMBERS = [f.name for f in SCHEMA.features if isinstance(f, Numeric)]
LISTED = [name for name in SCHEMA.names if name not in NUMBERS]
CODES = SCHEMA.quantise(FRAME, clamp=True)
MODELS = {
    "boosting": (GradientBoostingClassifier(n_estimators=40, random_state=0), OneHotEncoder(handle_unknown="ignore")),
    "histogram boosting": (HistGradientBoostingClassifier(max_iter=20, random_state=0), OrdinalEncoder()),
    "forest": (RandomForestClassifier(n_estimators=15, max_depth=6, random_state=0), OrdinalEncoder()),
    "extra trees": (ExtraTreesClassifier(n_estimators=15, max_depth=6, random_state=0), OneHotEncoder()),
    "tree": (DecisionTreeClassifier(max_depth=6, random_state=0), OrdinalEncoder()),
    "linear": (LogisticRegression(max_iter=1000), OneHotEncoder()),
}


def fitted(name: str) -> Any:
    estimator, encoder = MODELS[name]
    numbers = StandardScaler() if name == "linear" else "passthrough"
    model = make_pipeline(make_column_transformer((encoder, LISTED), remainder=numbers), estimator)
    return model.fit(PEOPLE.select(SCHEMA.names), PEOPLE.column("credit"))


def found(model: Any, count: int = 150, **options: Any) -> Regions:
    some = PEOPLE.rows(np.arange(PEOPLE.count) < count)
    accepted = model.predict(some.select(SCHEMA.names)) == "good"
    return find_regions(model, some, SCHEMA, accepted, CODES[:count], label="good", orders=2, **options)


def inside(regions: Regions, count: int, rng: np.random.Generator) -> Any:
    """Return a frame of raw values in random regions: anywhere in a cell, at its ends, or at a threshold, give or take.

    People have whole numbers, so that trees are cut at halves of whole numbers.
    """
    boxes = regions.boxes[rng.integers(len(regions.boxes), size=count)]
    columns, start = {}, 0
    for feature in regions.schema.features:
        members = boxes[:, start : start + feature.largest + 1]
        start += feature.largest + 1
        level = (members * rng.random(members.shape)).argmax(axis=1)
        if isinstance(feature, Numeric):
            low, high = ends(feature, open_ended=False)
            low, high = np.maximum(low, feature.low)[level], np.minimum(high, feature.high)[level]
            where = rng.integers(4, size=count)
            drawn = low + (high - low) * rng.random(count)
            near = np.nextafter(np.rint(2 * drawn) / 2, rng.choice([-np.inf, np.inf, 0], size=count))
            near = np.where((near >= low) & (near <= high), near, drawn)
            columns[feature.name] = np.select([where == 0, where == 1, where == 2], [low, high, near], drawn).tolist()
        else:
            columns[feature.name] = [feature.value(int(code)) for code in level]
    return rows_as_frame(columns, PEOPLE)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_accepts_every_point_of_its_regions(name: str) -> None:
    model, rng = fitted(name), np.random.default_rng(5)
    regions = found(model)
    assert len(regions.boxes) >= 20
    points = inside(regions, 40_000, rng)
    assert (SCHEMA.quantise(points) <= [f.largest for f in SCHEMA.features]).all()
    assert (model.predict(points) == "good").all()


@pytest.mark.parametrize("name", MODELS)
def test_bounds_are_below_every_score_and_tell_points_apart(name: str) -> None:
    model = fitted(name)
    trees = read_model(model, PEOPLE, SCHEMA, "bad")
    frame = PEOPLE.select(SCHEMA.names)
    scores = (
        -model.decision_function(frame)
        if hasattr(model, "decision_function")
        else -np.diff(model.predict_proba(frame), axis=1)[:, 0]
    )
    boxes = np.zeros((len(CODES), sum(trees.widths)), dtype=bool)
    boxes[np.arange(len(CODES))[:, None], CODES + np.array([part.start for part in trees.parts])] = True
    bounds = trees.bounds(boxes)
    assert (bounds <= scores + trees.margin).all()
    assert np.corrcoef(bounds, scores)[0, 1] > 0.5  # and they are not only low
    every = trees.bounds(np.ones((1, boxes.shape[1]), dtype=bool))
    assert every[0] <= bounds.min()


def test_regions_can_grow_nowhere_so_that_a_level_more_is_not_certain() -> None:
    model = fitted("boosting")
    regions = found(model, first=["age"])
    trees = read_model(model, PEOPLE, SCHEMA, "good")
    for box in regions.boxes[::7]:
        for j, part in enumerate(trees.parts):
            if SCHEMA.features[j].ordered and not box[part].all():
                levels = np.flatnonzero(box[part])
                beyond = [level for level in (levels[0] - 1, levels[-1] + 1) if 0 <= level < len(box[part])]
                for level in beyond:
                    wider = box.copy()
                    wider[part.start + level] = True
                    assert not trees.accepts(wider[None])[0]


def test_regions_with_a_level_more_hold_rejected_points() -> None:
    """The control of the soundness test: the same sampling finds rejections where there are some."""
    model, rng = fitted("tree"), np.random.default_rng(6)
    regions = found(model)
    wider = regions.boxes.copy()
    for feature, part in zip(SCHEMA.features, read_model(model, PEOPLE, SCHEMA, "good").parts, strict=True):
        if feature.ordered:
            wider[:, part.start + 1 : part.stop] |= regions.boxes[:, part.start : part.stop - 1]
    wide = Regions(SCHEMA, wider, regions.people, 0, 0)
    assert (model.predict(inside(wide, 40_000, rng)) == "bad").any()


def test_min_people_counts_accepted_people_and_most_keeps_those_that_help() -> None:
    model = fitted("boosting")
    every, few = found(model, 300), found(model, 300, min_people=5)
    assert few.people.min() >= 5
    assert len(few.boxes) == (every.people >= 5).sum() < len(every.boxes)
    assert few.too_rare == len(every.boxes) - len(few.boxes)
    capped = found(model, 300, most=10)
    rejected = CODES[:300][model.predict(PEOPLE.select(SCHEMA.names)[:300]) != "good"]
    ways = [ways_in(SCHEMA, boxes, rejected) for boxes in (every.boxes, capped.boxes, every.boxes[:10])]
    best, cost, chance = [(changes + cost).min(axis=0).mean() for changes, cost in ways]
    assert len(capped.boxes) == 10
    assert best <= cost < chance


def test_cells_hold_what_the_schema_takes_for_their_levels() -> None:
    for feature in (
        Numeric(name="a", low=0, high=75, step=1),
        Numeric(name="b", low=-3, high=11, levels=7),
        Numeric(name="c", low=1, high=5000, levels=20, log=True),
        Numeric(name="d", low=0.1, high=0.7, levels=3),
    ):
        low, high = ends(feature, open_ended=False)
        codes = np.arange(feature.steps + 1)
        if not feature.log:  # their ends are wider by a little
            assert (feature.codes(np.maximum(low, feature.low).tolist()) == codes).all()
            assert (feature.codes(np.minimum(high, feature.high).tolist()) == codes).all()
        assert (low[1:] <= np.nextafter(high[:-1], np.inf)).all()  # nothing is between two cells
        assert ends(feature, open_ended=True)[1][-1] > 1e308


def test_missing_values_are_in_regions_where_the_model_takes_them() -> None:
    rng = np.random.default_rng(1)
    schema = Schema(
        features=(
            Numeric(name="income", low=0, high=10, step=1, missing="level"),
            Categorical(name="job", values=("a", "b", "c"), missing="level"),
            Ordinal(name="rank", values=(1, 2, 3)),
            Boolean(name="owner"),
        )
    )
    income = [None if i % 5 == 0 else float(v) for i, v in enumerate(rng.integers(0, 11, 200))]
    data = {
        "income": income,
        "job": rng.choice(["a", "b", "c"], 200).tolist(),
        "rank": rng.integers(1, 4, 200).tolist(),
        "owner": rng.random(200) < 0.5,
    }
    table = Columns(data)
    verdict = np.array([(v is None or v > 4) and r > 1 for v, r in zip(income, data["rank"], strict=True)])
    native = make_pipeline(
        make_column_transformer((OrdinalEncoder(), ["job"]), remainder="passthrough"),
        DecisionTreeClassifier(random_state=0),
    ).fit(table.select(schema.names), verdict)
    filled = make_pipeline(
        make_column_transformer((OrdinalEncoder(), ["job"]), (SimpleImputer(), ["income"]), remainder="passthrough"),
        GradientBoostingClassifier(n_estimators=5, random_state=0),
    ).fit(table.select(schema.names), verdict)
    for model in (native, filled):
        trees = read_model(model, table, schema)
        assert trees.decided[11]
        assert not trees.decided[12 + 3]  # the encoder never saw a missing job
        codes = schema.quantise(data)
        regions = find_regions(model, table, schema, model.predict(table.select(schema.names)), codes)
        assert regions.boxes[:, 11].any()
        assert not regions.boxes[:, 12 + 3].any()
        assert len(regions.codes()) == len(regions.boxes)


def test_what_cannot_be_certified_is_refused_by_name() -> None:
    frame, labels = PEOPLE.select(NUMBERS), PEOPLE.column("credit")
    few = Schema(features=tuple(SCHEMA.feature(name) for name in NUMBERS))
    for model, what in (
        (SVC(), "SVC"),
        (make_pipeline(PCA(3), LogisticRegression()), "PCA"),
        (make_pipeline(OrdinalEncoder(), DecisionTreeClassifier(max_depth=2)), "OrdinalEncoder of the number"),
    ):
        with pytest.raises(NotOffered, match=what):
            read_model(model.fit(frame, labels), PEOPLE, few, "good")
    tree = DecisionTreeClassifier(max_depth=2)
    with pytest.raises(NotOffered, match="3 classes"):
        read_model(tree.fit(frame, np.arange(PEOPLE.count) % 3), PEOPLE, few)
    with pytest.raises(UnknownName, match="excellent"):
        read_model(tree.fit(frame, labels), PEOPLE, few, "excellent")
    with pytest.raises(UnknownName, match="the column"):
        read_model(tree.fit(frame, labels), PEOPLE, Schema(features=few.features[1:]), "good")
