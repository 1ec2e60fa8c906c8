"""Regions: what is certified holds for every point, their codes come from the schema, and costs are exact."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from counterveil import Boolean, Categorical, Database, Deployment, Numeric, Ordinal, Preferences, Schema, local
from counterveil.applicant.ask import compile_question
from counterveil.applicant.explain import Condition, WayIn
from counterveil.errors import EmptyDatabase, NotOffered, OutOfRange, UnknownName, WrongShape, WrongType
from counterveil.institution.regions import Regions, find_regions, read_model, ways_in
from counterveil.institution.regions.cells import ends
from counterveil.research.datasets import german_credit
from counterveil.schema.boxes import Interval, Subsets, family, words
from counterveil.schema.frames import Columns, rows_as_frame
from counterveil.schema.layouts import Layout, decode, encode
from mixed import LAYOUT, MIXED, boxes, people, wishes

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
    wide = replace(regions, boxes=wider)
    assert (model.predict(inside(wide, 40_000, rng)) == "bad").any()


def test_min_people_counts_accepted_people_and_most_keeps_those_that_help() -> None:
    model = fitted("boosting")
    every, few = found(model, 300), found(model, 300, min_people=5)
    filtered = {box.tobytes() for box in every.boxes[every.people >= 5]}
    assert filtered < {box.tobytes() for box in few.boxes}  # and seeds that grew around their neighbours found more
    assert few.people.min() >= 5
    assert few.too_rare > 0
    accepted = CODES[:300][model.predict(PEOPLE.select(SCHEMA.names)[:300]) == "good"]
    assert few.people.tolist() == (ways_in(SCHEMA, few.boxes, accepted)[0] == 0).sum(axis=1).tolist()
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


# --- codes and costs -----------------------------------------------------------------------------------------------


@given(st.lists(boxes(), min_size=1, max_size=12), people(), wishes(), st.booleans())
def test_a_region_costs_what_its_cheapest_point_costs(
    regions: list[list[int]], own: list[int], preferences: Preferences, intervals: bool
) -> None:
    """Against the definition: the least cost over the points of a box is the sum of each feature's least."""
    options = {"record": {"intervals": True}} if intervals else {}
    deployment = Deployment.of(MIXED, scheme="table/distances", record="region", options=options)
    codes = np.array(regions, dtype=np.uint8)
    try:
        question, costs = compile_question(deployment, np.array(own), preferences)
    except NotOffered:  # becoming missing may be cheaper than the lowest levels
        assert "income" in preferences.forbidden
        assert not intervals
        return
    got = deployment.scheme.form.costs(deployment.rows(codes), question)
    for row, cost in zip(regions, got.tolist(), strict=True):
        points = [np.flatnonzero(members).tolist() for members in LAYOUT.members(np.array(row))]
        assert cost == sum(
            min(int(table[v]) for v in inside) for table, inside in zip(costs.tables, points, strict=True)
        )
        record = decode(MIXED, "region", encode(MIXED, "region", np.array([row]), Columns({"none": [0]})).tobytes())
        nearest = LAYOUT.nearest(costs, record)
        assert record.codes.tolist() == row
        assert all(level in inside for level, inside in zip(nearest.tolist(), points, strict=True))
        assert sum(costs.of(nearest)) == cost <= deployment.scheme.form.bound


@given(st.integers(1, 6), st.booleans(), st.data())
def test_costs_with_holes_are_told_from_those_without(steps: int, missing: bool, data: st.DataObject) -> None:
    """Two columns do if, and only if, some two columns would: tried with all sums that could be."""
    costs = np.array(data.draw(st.lists(st.integers(0, 3), min_size=steps + 1 + missing, max_size=steps + 1 + missing)))
    each = Interval(steps, missing)
    exact: dict[tuple[int, int], int] = {}
    for low in range(each.largest[0] + 1):
        for high in range(steps + 1):
            with suppress(WrongShape):
                exact[low, high] = int(costs[each.members([low, high])].min())
    tables = each.tables(costs)
    if tables is not None:
        assert all(tables[0][low] + tables[1][high] == cost for (low, high), cost in exact.items())
    else:  # some square of four sets contradicts every sum: C(a,c) + C(b,d) must be C(a,d) + C(b,c)
        pairs = [(a, b, c, d) for a, c in exact for b, d in exact if (a, d) in exact and (b, c) in exact]
        broken = any(exact[a, c] + exact[b, d] != exact[a, d] + exact[b, c] for a, b, c, d in pairs)
        assert broken


def test_families_come_from_the_schema_alone() -> None:
    """Every set up to 8 levels; beyond, single levels, pairs, what they leave out, and all."""
    assert LAYOUT.held == (14, 6, 3, 3, 2**5 - 2, 2 * (10 + 45), 1, 1)
    assert LAYOUT.owners == (0, 0, 1, 1, 2, 3, 4, 4)
    assert Layout(MIXED, "region", intervals=True).largest == (2 * 28, 9, 30, 110, 2)
    for count in (1, 3, 8, 9, 12):
        each = Subsets(count)
        sets = [each.members([code]) for code in range(each.largest[0] + 1)]
        assert [each.codes(members) for members in sets] == [(code,) for code in range(len(sets))]
        assert len({members.tobytes() for members in sets}) == len(sets)
        sizes = {int(members.sum()) for members in sets}
        assert sizes == (set(range(1, count + 1)) if count <= 8 else {1, 2, count - 2, count - 1, count})
    assert Subsets(9).codes(np.arange(9) < 4) is None
    assert Interval(4, False).codes(np.array([True, False, True, False, False])) is None
    with pytest.raises(OutOfRange, match="regions, many"):
        family(Categorical(name="many", values=tuple(range(3000))))


@pytest.mark.parametrize("codes", [[14, 5, 0, 0, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 31, 0, 0, 0]])
def test_a_record_that_is_no_region_is_refused(codes: list[int]) -> None:
    with pytest.raises(WrongShape, match="region: got code"):
        decode(MIXED, "region", encode(MIXED, "region", np.array([codes]), Columns({"none": [0]})).tobytes())


def test_preferences_with_holes_are_refused_by_name_unless_the_deployment_takes_them() -> None:
    own = np.array([1, 0, 0, 0, 0, 0])
    for holes in ({"forbidden": {"income": [3]}}, {"costs": {"income": {1: 0.0, 2: 0.9, 3: 0.1}}}):
        preferences = Preferences(**holes)
        with pytest.raises(NotOffered, match=f"{next(iter(holes))}: got income"):
            compile_question(Deployment.of(MIXED, record="region"), own, preferences)
        joined = Deployment.of(MIXED, record="region", options={"record": {"intervals": True}})
        compile_question(joined, own, preferences)
        assert Deployment.of(MIXED, record="region", **joined.parameters().chosen()) == joined
    compile_question(Deployment.of(MIXED, record="region"), own, Preferences(forbidden={"rank": ["top"], "job": ["b"]}))
    with pytest.raises(NotOffered, match="regions with the form weighted"):
        Deployment.of(Schema(features=MIXED.features[4:]), record="region", scheme="weighted/differences")
    for wrong in ({"intervals": 1}, {"other": True}):
        with pytest.raises(UnknownName, match="options"):
            Deployment.of(MIXED, record="region", options={"record": wrong})
    with pytest.raises(UnknownName, match="options"):
        Deployment.of(MIXED, options={"record": {"intervals": True}})


# --- from a model to an answer -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> tuple[Any, Database]:
    model = fitted("boosting")
    some = PEOPLE.rows(np.arange(PEOPLE.count) < 150)
    return model, Database.build(some, SCHEMA, model, "good", record="region", clamp=True)


@pytest.mark.parametrize("reveal", ["sealed", "differences", "distances", "masked", "masked_differences"])
@pytest.mark.filterwarnings("ignore::counterveil.errors.NoMask")
def test_whoever_meets_the_conditions_is_accepted(served: tuple[Any, Database], reveal: str) -> None:
    model, database = served
    bank = local(database, f"table/{reveal}")
    everybody = PEOPLE.rows(np.arange(PEOPLE.count) >= 150)
    refused = everybody.rows(model.predict(everybody.select(SCHEMA.names)) == "bad")
    for person in refused.people()[:4]:
        asked = {name: person[name] for name in SCHEMA.names}
        found = bank.ask(asked, clamp=True)
        assert isinstance(found, WayIn)
        assert 1 <= len(found.changes) <= 8
        assert found.text().endswith("; everything else may stay as it is.")
        assert all(isinstance(change, Condition) for change in found.changes)
        moved = rows_as_frame({name: [found.values[name]] for name in SCHEMA.names}, PEOPLE)
        assert model.predict(moved).tolist() == ["good"]
        for feature in found.unchanged:
            assert found.values[feature.name] == asked[feature.name]


def test_the_nearest_region_is_nearer_than_the_nearest_row(served: tuple[Any, Database]) -> None:
    model, database = served
    some = PEOPLE.rows(np.arange(PEOPLE.count) < 150)
    rows = local(Database.build(some, SCHEMA, model, "good", clamp=True), "table/distances")
    regions = local(database, "table/distances")
    everybody = PEOPLE.rows(np.arange(PEOPLE.count) >= 150)
    refused = everybody.rows(model.predict(everybody.select(SCHEMA.names)) == "bad").people()[:10]
    asked = [{name: person[name] for name in SCHEMA.names} for person in refused]
    ways: list[Any] = [[bank.ask(person, clamp=True) for bank in (rows, regions)] for person in asked]
    assert all(region.feasible for _, region in ways)
    both = [pair for pair in ways if pair[0].feasible]  # the schema's rules leave some people without a row
    assert len(both) >= 3
    cost = [sum(pair[n].cost for pair in both) for n in range(2)]
    changes = [sum(len(pair[n].changes) for pair in both) for n in range(2)]
    assert cost[1] < cost[0] / 1.5
    assert changes[1] < changes[0] / 1.5


def test_regions_are_kept_in_a_bundle(served: tuple[Any, Database], tmp_path: Path) -> None:
    _, database = served
    database.save(tmp_path / "regions.bundle")
    again = Database.open(tmp_path / "regions.bundle")
    assert (again.codes == database.codes).all()
    assert (again.record, again.digest, again.counts) == ("region", database.digest, database.counts)
    assert again.counts.rows == len(again.codes)
    assert again.counts.accepted <= 150


def test_regions_need_a_model_and_their_parameters_need_regions() -> None:
    data = {"income": [1, 2, 3], "good": [0, 1, 1]}
    schema = Schema(features=(Numeric(name="income", low=0, high=5, step=1),))
    with pytest.raises(WrongType, match="model: got none"):
        Database.build(data, schema, accepted="good", record="region")
    with pytest.raises(WrongType, match="rows with min_people"):
        Database.build(data, schema, accepted="good", min_people=2)
    with pytest.raises(NotOffered, match="model: got function"):
        Database.build(data, schema, lambda _: [0, 1, 1], record="region")
    tree = DecisionTreeClassifier().fit(Columns(data).select(["income"]), data["good"])
    with pytest.raises(EmptyDatabase, match="no region of 3 people"):
        Database.build(data, schema, tree, record="region", min_people=3)


def test_conditions_are_said_in_words_that_hold() -> None:
    months = Numeric(name="duration", low=0, high=48, step=6, unit="months", missing="level")
    town = Categorical(name="town", values=("Ulm", "Bonn", "Kiel", "Trier"), missing="level")

    def said(feature: Any, *inside: int) -> str:
        return words(feature, np.isin(np.arange(feature.largest + 1), inside))

    assert said(months, 0, 1, 2, 3, 4) == "at most 24 months"
    assert said(months, 4, 5, 6, 7, 8) == "at least 24 months"
    assert said(months, 2, 3, 9) == "from 12 to 18 months or not given"
    assert said(months, 4) == "24 months"
    assert said(months, 9) == "not given"
    assert said(months, *range(10)) == "anything"
    assert said(months, *range(9)) == "given, whatever it is"
    assert said(town, 1) == "Bonn"
    assert said(town, 0, 1, 4) == "Ulm or Bonn or not given"
    assert said(town, 0, 1, 2) == "anything but Trier"
    assert said(Boolean(name="owner"), 1) == "yes"
    coarse = Numeric(name="rate", low=0, high=1, levels=8, format=".0f")  # which shows 1 for all from a half on
    assert said(coarse, 0, 1, 2, 3, 4, 5) == "at most 0.625"
    assert said(Numeric(name="share", low=0, high=1, levels=8, format=".1%"), 0, 1) == "at most 12.5%"


def test_an_answer_names_the_conditions_that_do_not_hold_yet() -> None:
    """A model that can be read: accepted are durations up to 24 months with savings of 500 or more."""
    schema = Schema(
        features=(
            Numeric(name="duration", low=0, high=48, step=6, unit="months"),
            Numeric(name="savings", low=0, high=1000, step=100, unit="DM"),
            Categorical(name="town", values=("Ulm", "Bonn")),
        )
    )
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {
        "duration": rng.integers(0, 9, 400) * 6,
        "savings": rng.integers(0, 11, 400) * 100,
        "town": rng.choice(["Ulm", "Bonn"], 400).tolist(),
    }
    verdict = (data["duration"] <= 24) & (data["savings"] >= 500)
    table = Columns(data)
    encoded = make_column_transformer((OrdinalEncoder(), ["town"]), remainder="passthrough")
    model = make_pipeline(encoded, DecisionTreeClassifier(random_state=0)).fit(table.select(schema.names), verdict)
    bank = local(Database.build(data, schema, model, record="region"))
    assert bank.deployment.scheme.name == "table/sealed"
    found = bank.ask({"duration": 36, "savings": 200, "town": "Ulm"})
    # savings are cut at 450, the border of two levels, and the cell above it begins a bit below, in 32 bits
    assert found.text() == "Savings at least 600 DM; duration at most 24 months; everything else may stay as it is."
    assert found.to_dict()["changes"][0]["to_text"] == "at least 600 DM"
    assert "at most 24 months" in found._repr_html_()
    assert (
        bank.ask({"duration": 6, "savings": 200, "town": "Ulm"}).text()
        == "Savings at least 600 DM; everything else may stay as it is."
    )
    assert bank.ask({"duration": 6, "savings": 900, "town": "Bonn"}).text().startswith("You are in a region")
    far = bank.ask({"duration": 6, "savings": 5000, "town": "Bonn"}, clamp=True)
    assert far.text() == "Savings at most 1,000 DM; everything else may stay as it is."
    stuck = bank.ask({"duration": 36, "savings": 200, "town": "Ulm"}, immutable=["duration"])
    assert not stuck.feasible
    assert "duration must stay as it is" in stuck.text()
