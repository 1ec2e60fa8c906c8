"""Certificates: a model accepts every raw value of its regions; what decides is read as it decides, or refused."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from click.testing import CliRunner
from scipy.stats import beta
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from counterveil import Boolean, Categorical, Numeric, Ordinal, Schema
from counterveil.cli import main
from counterveil.errors import EmptyDatabase, InvalidData, NotOffered, OutOfRange, UnknownName
from counterveil.institution.regions import (
    Regions,
    Thresholded,
    find_regions,
    held_out_report,
    load_model,
    read_model,
    ways_in,
)
from counterveil.institution.regions.choosing import most_helpful, widest
from counterveil.institution.regions.sampled import bound
from counterveil.institution.regions.ubjson import read_ubjson
from counterveil.schema.boxes import family
from counterveil.schema.frames import Columns
from datafiles import needs_compas
from fitted import DATA, MODELS, Fitted, fitted, inside, points, saved, wider, worst

POINTS = int(
    os.environ.get("COUNTERVEIL_POINTS", "2000")
)  # in regions, for each model and data set; `make long` takes more
QUICK = ("boosting", "german")
CASES = [
    pytest.param(name, on, marks=[*[needs_compas] * (on == "compas"), *[pytest.mark.slow] * ((name, on) != QUICK)])
    for on in DATA
    for name in MODELS
]


def found(fit: Fitted, model: Any = None, **options: Any) -> Regions:
    """Find regions of a model, or of the same model as another reader has it."""
    accepted = np.asarray(fit.accepted, dtype=bool)
    return find_regions(
        fit.model if model is None else model, fit.people, fit.schema, accepted, fit.codes, orders=2, **options
    )


def _check_codes(regions: Regions) -> None:
    """Every set of every box has a code, which stands for that set."""
    codes, start, column = regions.codes(), 0, 0
    for feature in regions.schema.features:
        each = family(feature)
        for row, box in zip(codes[::37], regions.boxes[::37], strict=True):
            members = each.members(row[column : column + len(each.largest)].tolist())
            assert members.tolist() == box[start : start + feature.largest + 1].tolist()
        start, column = start + feature.largest + 1, column + len(each.largest)
    assert column == codes.shape[1]


@pytest.mark.parametrize(("name", "on"), CASES)
def test_a_model_accepts_every_point_of_its_regions_and_not_of_wider_ones(name: str, on: str) -> None:
    fit, rng = fitted(name, on), np.random.default_rng(5)
    regions = found(fit)
    assert regions.certified
    assert len(regions.boxes) >= 20
    _check_codes(regions)
    some = regions.boxes[rng.integers(len(regions.boxes), size=min(POINTS, 200))]
    low = worst(fit, some, rng, regions.open_ended)
    assert np.asarray(fit.accepts(low), dtype=bool).all()
    for at in range(0, POINTS, 100_000):
        boxes = regions.boxes[rng.integers(len(regions.boxes), size=min(100_000, POINTS - at))]
        drawn = inside(fit, boxes, rng, regions.open_ended)
        assert np.asarray(fit.accepts(drawn), dtype=bool).all()
    control = worst(fit, wider(fit.schema, some, rng), rng, regions.open_ended)
    assert not np.asarray(fit.accepts(control), dtype=bool).all()


@pytest.mark.parametrize("name", MODELS)
def test_bounds_are_below_every_score_and_tell_people_apart(name: str) -> None:
    fit = fitted(name, "german")
    trees = read_model(fit.model, fit.people, fit.schema)
    bounds = trees.bounds(points(trees, fit.codes))
    shares = np.clip(fit.scores(fit.people.select(fit.schema.names)), 1e-7, 1 - 1e-7)
    scores = 2 * shares - 1 if name == "forest" else np.log(shares / (1 - shares))
    assert (bounds <= scores + 1e-4).all()
    assert np.corrcoef(bounds, scores)[0, 1] > 0.5
    options = trees.options(trees.points(fit.codes[:20]))
    for cell in (0, 7, int(trees.starts[-1]) - 1):
        j = int(np.searchsorted(trees.starts, cell, side="right")) - 1
        boxes = trees.points(fit.codes[:20])
        boxes[:, trees.starts[j] : trees.starts[j + 1]] = False
        boxes[:, cell] = True
        assert np.allclose(options[:, cell], trees.cell_bounds(boxes))


@pytest.mark.parametrize(("name", "suffix"), [("xgboost", ".json"), ("xgboost", ".ubj"), ("lightgbm", ".txt")])
def test_a_file_is_read_as_the_library_reads_it(name: str, suffix: str, tmp_path: Path) -> None:
    fit = fitted(name, "german")
    model = load_model(saved(fit.model, tmp_path, suffix))
    frame = fit.people.select(fit.schema.names)
    shares = fit.scores(frame)
    assert np.allclose(1 / (1 + np.exp(-model.scores(frame))), shares, rtol=0, atol=1e-6)  # shares have 24 bits
    assert (model.predict(frame) == fit.accepts(frame)).all()
    mine, theirs = read_model(model, fit.people, fit.schema), read_model(fit.model, fit.people, fit.schema)
    assert mine.digest == theirs.digest
    high = found(fit, Thresholded(model, 0.9))
    drawn = inside(
        fit, high.boxes[np.random.default_rng(1).integers(len(high.boxes), size=1000)], np.random.default_rng(2)
    )
    assert (fit.scores(drawn) > 0.9).all()
    assert Thresholded(model, 0.9).predict(frame).tolist() == (shares > 0.9).tolist()
    rejects = Thresholded(model, 0.6, 0).predict(frame)
    assert rejects.tolist() == (shares < 0.4).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "forest", "boosting"])
def test_a_threshold_is_one_of_the_score_that_the_model_shows(name: str) -> None:
    fit = fitted(name, "german")
    decides = Thresholded(fit.model, 0.8)
    frame = fit.people.select(fit.schema.names)
    assert decides.predict(frame).tolist() == (fit.scores(frame) > 0.8).tolist()
    accepted = decides.predict(frame)
    regions = find_regions(decides, fit.people, fit.schema, accepted, fit.codes, orders=1)
    low = worst(fit, regions.boxes[:200], np.random.default_rng(3), regions.open_ended)
    assert (fit.scores(low) > 0.8).all()
    assert (fit.scores(low) < 0.85).any()
    with pytest.raises(OutOfRange, match=r"threshold: got 1\.5, expected a probability"):
        read_model(Thresholded(fit.model, 1.5), fit.people, fit.schema)


def _tabular(rows: int) -> tuple[pd.DataFrame, Schema, Any]:
    """Return people with zeros, missing numbers, whole-number categories and truth values, and a verdict."""
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {
            "debt": np.where(rng.random(rows) < 0.4, 0.0, rng.normal(0, 2, rows).round(1)),
            "income": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 11, rows)),
            "region": rng.choice([3, 7, 8, 11], rows),
            "owner": rng.random(rows) < 0.5,
        }
    )
    schema = Schema(
        features=(
            Numeric(name="debt", low=-8, high=8, levels=40),
            Numeric(name="income", low=0, high=10, step=1, missing="level"),
            Categorical(name="region", values=(3, 7, 8, 11)),
            Boolean(name="owner"),
        )
    )
    verdict = (frame["debt"] < 0.5) & (frame["income"].fillna(6) > 4) & (frame["region"].isin([3, 8]) | frame["owner"])
    return frame, schema, verdict.astype(int)


@pytest.mark.filterwarnings("ignore:.*is deprecated")  # XGBoost 3.4 says so of dart and of its forests
@pytest.mark.parametrize("how", ["missing", "zeros", "none", "average", "dart", "categories", "forest"])
def test_what_libraries_do_with_zeros_missing_values_and_categories(how: str, tmp_path: Path) -> None:
    frame, schema, verdict = _tabular(800)
    options: dict[str, dict[str, Any]] = {
        "zeros": {"zero_as_missing": True},
        "none": {"use_missing": False},
        "average": {"boosting_type": "rf", "bagging_fraction": 0.7, "bagging_freq": 1},
        "dart": {"booster": "dart", "rate_drop": 0.3},
        "categories": {"enable_categorical": True},
    }
    model: Any
    if how in ("dart", "categories", "forest"):
        kind = xgboost.XGBRFClassifier if how == "forest" else xgboost.XGBClassifier
        model = kind(n_estimators=12, max_depth=4, random_state=0, **options.get(how, {}))
    else:
        model = lightgbm.LGBMClassifier(n_estimators=12, min_child_samples=5, verbose=-1, **options.get(how, {}))

    def typed(raw: pd.DataFrame) -> pd.DataFrame:
        categories = pd.Categorical(raw["region"], categories=[3, 7, 8, 11])
        return raw.assign(region=categories) if how != "dart" and how != "forest" else raw

    model.fit(typed(frame), verdict)
    read = load_model(saved(model, tmp_path, ".txt" if isinstance(model, lightgbm.LGBMClassifier) else ".ubj"))
    shares = model.predict_proba(typed(frame))[:, 1]
    assert np.allclose(1 / (1 + np.exp(-read.scores(frame))), shares, atol=1e-6)
    assert (read.predict(frame) == model.predict(typed(frame))).all()
    people, accepted = Columns(frame), model.predict(typed(frame)) == 1
    codes = schema.quantise(frame, clamp=True)
    regions = find_regions(read, people, schema, accepted, codes, orders=2)
    cuts = {
        name: np.concatenate([t.threshold[t.column == j] for t in read.ensemble.trees])
        for j, name in enumerate(("debt", "income"))
    }
    cuts["debt"] = np.append(cuts["debt"], np.zeros(len(cuts["debt"])))
    fit = Fitted(model, people, schema, codes, lambda raw: model.predict(typed(raw)) == 1, None, cuts)  # type: ignore[arg-type]
    rng = np.random.default_rng(4)
    drawn = inside(fit, regions.boxes[rng.integers(len(regions.boxes), size=4000)], rng, regions.open_ended)
    assert fit.accepts(drawn).all()
    assert regions.boxes[:, 41 + 11].any()  # some hold what is missing


@pytest.mark.parametrize("name", ["boosting", "forest", "logistic"])
def test_an_onnx_file_decides_with_numbers_of_32_bits(name: str, tmp_path: Path) -> None:
    import onnxruntime
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    raw, schema, verdict = _tabular(700)
    raw = raw.assign(income=raw["income"].fillna(5.0), region=raw["region"].map(str), owner=raw["owner"].astype(float))
    schema = Schema(
        features=(
            schema.features[0],
            Numeric(name="income", low=0, high=10, step=1),
            Categorical(name="region", values=("3", "7", "8", "11")),
            Ordinal(name="owner", values=(0, 1)),
        )
    )
    estimators: dict[str, Any] = {
        "boosting": GradientBoostingClassifier(n_estimators=30, random_state=0),
        "forest": RandomForestClassifier(n_estimators=20, max_depth=5, random_state=0),
        "logistic": LogisticRegression(),
    }
    steps = make_column_transformer((OneHotEncoder(), ["region"]), (StandardScaler(), ["debt", "income", "owner"]))
    model = make_pipeline(steps, estimators[name]).fit(raw, verdict)
    types = [(c, StringTensorType([None, 1]) if c == "region" else FloatTensorType([None, 1])) for c in raw]
    path = tmp_path / "model.onnx"
    path.write_bytes(convert_sklearn(model, initial_types=types, options={"zipmap": False}).SerializeToString())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def run(frame: pd.DataFrame) -> Any:
        given = {c: np.array(frame[c], dtype=object if c == "region" else np.float32).reshape(-1, 1) for c in raw}
        return session.run(None, given)

    read = load_model(path)
    codes, people, accepted = schema.quantise(raw, clamp=True), Columns(raw), run(raw)[0] == 1
    assert (read.predict(raw) == accepted).mean() > 0.999
    regions = find_regions(read, people, schema, accepted, codes, orders=2)
    cuts: dict[str, Any] = {}
    if name != "logistic":
        scaler, trees = model[0].named_transformers_["standardscaler"], np.ravel(model[-1].estimators_)
        for k, each in enumerate(("debt", "income")):
            scaled = np.concatenate([t.tree_.threshold[t.tree_.feature == 4 + k] for t in trees])
            cuts[each] = scaled * scaler.scale_[k] + scaler.mean_[k]
    fit = Fitted(model, people, schema, codes, lambda raw: run(raw)[0] == 1, lambda raw: run(raw)[1][:, 1], cuts)
    rng = np.random.default_rng(4)
    some = regions.boxes[rng.integers(len(regions.boxes), size=3000)]
    assert fit.accepts(inside(fit, some, rng, regions.open_ended)).all()
    assert fit.accepts(worst(fit, some[:300], rng, regions.open_ended)).all()
    assert not fit.accepts(worst(fit, wider(schema, some[:300], rng), rng, regions.open_ended)).all()


def test_the_onnx_file_of_the_institutions_page_has_classes_of_text(tmp_path: Path, monkeypatch: Any) -> None:
    """The lines as printed, a model that says good or bad, and what `build` makes of it."""
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    raw, schema, verdict = _tabular(300)
    raw = raw.assign(income=raw["income"].fillna(5.0), region=raw["region"].map("r{}".format))[["debt", "region"]]
    values = ("r3", "r7", "r8", "r11")
    schema = Schema(features=(schema.features[0], Categorical(name="region", values=values)))
    labels, words = np.where(verdict == 1, "good", "bad"), ["region"]
    page = (Path(__file__).parents[1] / "docs" / "institution.md").read_text()
    (lines,) = re.findall(r"^```py\n(.*?)^```", page, flags=re.S | re.M)
    forest = RandomForestClassifier(5, random_state=1)  # two people are on the border
    for estimator in (GradientBoostingClassifier(n_estimators=5, random_state=1), forest, LogisticRegression()):
        steps = make_column_transformer((OneHotEncoder(), words), remainder="passthrough")
        model = make_pipeline(steps, estimator).fit(raw, labels)
        exec(lines, {"model": model, "words": words, "schema": schema, "Path": Path})
        read = load_model("model.onnx")
        session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        given = {"debt": raw[["debt"]].to_numpy(np.float32), "region": raw[["region"]].to_numpy(object)}
        assert read.classes == ("bad", "good")
        assert read.predict(raw).tolist() == session.run(None, given)[0].tolist()
    people, codes = Columns(raw), schema.quantise(raw, clamp=True)
    for label in read.classes:
        accepted = read.predict(raw) == label
        boxes = find_regions(read, people, schema, accepted, codes, orders=1, label=label).boxes
        assert all_levels(boxes, codes[accepted]).any()
        assert not all_levels(boxes, codes[~accepted]).any()
    with pytest.raises(UnknownName, match="got 'fine', expected 'good' or 'bad', the model's classes"):
        read_model(read, people, schema, "fine")
    raw.assign(verdict=labels).to_csv("people.csv", index=False)
    schema.save("people.toml")
    common = ["build", "people.csv", "--schema", "people.toml", "--record", "region", "--model", "model.onnx"]
    agrees = CliRunner().invoke(main, [*common, "-o", "a.bundle", "--accepted", "verdict=good"])
    assert "Class good of the model counts as accepted: it agrees with verdict=good for" in agrees.output
    assert CliRunner().invoke(main, [*common, "-o", "b.bundle", "--accepted", "good"]).exit_code == 0
    assert Path("a.bundle").read_bytes() == Path("b.bundle").read_bytes()
    unsaid = CliRunner().invoke(main, [*common, "-o", "c.bundle"])
    assert "expected good or bad, a class of --model; or a column and a value" in unsaid.output
    assert (unsaid.exit_code, "b'" in unsaid.output) == (2, False)


def all_levels(boxes: Any, codes: Any) -> Any:
    """Tell which people lie in one of some boxes of two features."""
    first = len(boxes[0]) - 4
    return np.array([(boxes[:, a] & boxes[:, first + b]).any() for a, b in codes.tolist()])


def _tree_with_a_loop(fit: Fitted, folder: Path) -> bytes:
    """Return a model's file in which the way through a tree does not end."""
    document = json.loads(saved(fit.model, folder, ".json").read_bytes())
    document["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][1] = 1
    return json.dumps(document).encode()


def test_files_that_run_code_or_are_damaged_are_refused_in_one_line(tmp_path: Path) -> None:
    fit = fitted("xgboost", "german")
    whole = saved(fit.model, tmp_path, ".ubj").read_bytes()
    for name, data, error in (
        ("model.pkl", pickle.dumps(1), NotOffered),
        ("model.json", pickle.dumps(1), NotOffered),
        ("model.joblib", b"anything", NotOffered),
        ("model.safetensors", b"anything", NotOffered),
        ("model.json", b"{", InvalidData),
        ("model.json", b'{"learner": {}}', InvalidData),
        ("model.ubj", whole[:1000], InvalidData),
        ("model.ubj", whole + b"Z", InvalidData),
        ("model.json", _tree_with_a_loop(fit, tmp_path), InvalidData),
        ("model.txt", b"tree\nhello", InvalidData),
        ("model.onnx", b"hello", InvalidData),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(error) as caught:
            load_model(path)
        assert "\n" not in str(caught.value)
        assert "expected" in str(caught.value)
    with pytest.raises(InvalidData, match="No such file"):
        load_model(tmp_path / "none.json")
    assert read_ubjson(b"{i\x01a[$U#U\x03\x01\x02\x03i\x01b[TFZSU\x02hi]}") == {
        "a": [1, 2, 3],
        "b": [True, False, None, "hi"],
    }


@pytest.mark.filterwarnings("ignore:.*booster=gblinear")  # XGBoost will drop it, and may still be asked for it
def test_what_cannot_be_certified_is_refused_by_name() -> None:
    frame, schema, verdict = _tabular(200)
    frame = frame.drop(columns="income").astype(float)
    people, few = (
        Columns(frame),
        Schema(features=(schema.features[0], Categorical(name="region", values=(3, 7, 8, 11)), schema.features[3])),
    )
    encode = make_column_transformer((OneHotEncoder(sparse_output=False), ["region"]), remainder="passthrough")
    cases: list[tuple[Any, str]] = [
        (make_pipeline(encode, OrdinalEncoder(), LogisticRegression()), "OrdinalEncoder after columns"),
        (make_pipeline(SimpleImputer(missing_values=0), LogisticRegression()), "an imputer of 0"),
        (make_pipeline(OrdinalEncoder(), LogisticRegression()), "OrdinalEncoder of the number debt"),
        (SVC(), "SVC"),
        (xgboost.XGBClassifier(n_estimators=2, missing=-1), "missing = -1"),
        (xgboost.XGBClassifier(n_estimators=2, booster="gblinear"), "gblinear"),
        (lightgbm.LGBMClassifier(n_estimators=2, linear_tree=True, verbose=-1), "linear trees"),
    ]
    for model, what in cases:
        with pytest.raises(NotOffered, match=what):
            read_model(model.fit(frame, verdict), people, few)
    sparse = make_column_transformer((OneHotEncoder(), ["region"]), remainder="passthrough", sparse_threshold=1.0)
    with pytest.raises(NotOffered, match="sparse inputs"):
        read_model(make_pipeline(sparse, xgboost.XGBClassifier(n_estimators=2)).fit(frame, verdict), people, few)
    with pytest.raises(UnknownName, match="accepted: got 'yes', expected"):
        read_model(xgboost.XGBClassifier(n_estimators=2).fit(frame, verdict), people, few, "yes")


def test_ends_are_closed_where_preprocessing_fails_beyond_them() -> None:
    frame, schema, verdict = _tabular(300)
    few = Schema(features=schema.features[:1])
    twice = make_pipeline(StandardScaler(), MinMaxScaler(), DecisionTreeClassifier(max_depth=3, random_state=0))
    once = make_pipeline(StandardScaler(), DecisionTreeClassifier(max_depth=3, random_state=0))
    narrow = pd.DataFrame({"debt": frame["debt"] / 1e3})
    small = Schema(features=(Numeric(name="debt", low=-0.008, high=0.008, levels=40),))
    for model, raw, own, ends in (
        (once, frame[["debt"]], few, (True, True)),
        (twice, narrow, small, (False, False)),
    ):
        assert read_model(model.fit(raw, verdict), Columns(raw), own).open_ended == (ends,)


@pytest.mark.slow
def test_a_model_that_only_predicts_gets_sampled_regions_without_a_certificate() -> None:
    frame, schema, verdict = _tabular(600)
    frame = frame.assign(income=frame["income"].fillna(5.0))
    schema = Schema(features=(schema.features[0], Numeric(name="income", low=0, high=10, step=1), *schema.features[2:]))
    model = make_pipeline(StandardScaler(), SVC(gamma=0.3)).fit(frame, verdict)
    codes, accepted = schema.quantise(frame, clamp=True), model.predict(frame) == 1
    with pytest.raises(NotOffered, match=r"SVC.*points = 1000"):
        find_regions(model, Columns(frame), schema, accepted, codes)
    steps: list[tuple[str, float]] = []
    regions = find_regions(
        model, Columns(frame), schema, accepted, codes, orders=2, points=300, progress=lambda *step: steps.append(step)
    )
    assert not regions.certified
    assert regions.says().startswith("not certified: 300 points of each region")
    assert len(regions.boxes) >= 3
    assert {"growing", "checking points"} <= {what for what, _ in steps}
    assert all(0 <= share <= 1 for _, share in steps)
    assert bound(300, 10) == pytest.approx(beta.ppf(1 - 0.05 / 10, 1, 300))
    assert regions.bound >= bound(300, len(regions.boxes))
    fit = Fitted(model, Columns(frame), schema, codes, lambda raw: model.predict(raw) == 1, None, {})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    drawn = inside(fit, regions.boxes[rng.integers(len(regions.boxes), size=4000)], rng)
    assert (~fit.accepts(drawn)).mean() < 5 * regions.bound  # ends of cells are drawn more often here


# --- choosing ------------------------------------------------------------------------------------------------------


def test_boxes_inside_others_are_left_out_and_no_others() -> None:
    rng = np.random.default_rng(2)
    boxes = np.unique(rng.random((300, 11)) < 0.3 + 0.3 * rng.random((300, 1)), axis=0)
    alone = [n for n, box in enumerate(boxes) if sum((~box | other).all() for other in boxes) == 1]
    assert 5 < len(alone) < len(boxes)
    assert widest(boxes).tolist() == alone


@pytest.mark.slow
def test_the_most_helpful_regions_are_those_of_a_plain_greedy_choice() -> None:
    fit = fitted("boosting", "german")
    regions, rejected = found(fit), np.unique(fit.codes[~fit.accepted], axis=0)
    changes, costs = ways_in(fit.schema, regions.boxes, rejected)
    pays, chosen = changes + costs, list[int]()
    dearest = float(pays[np.isfinite(pays)].max() + 1)  # more than any way in, for those who cannot get into a region
    pays, left = np.where(np.isfinite(pays), pays, dearest), np.full(len(rejected), dearest)
    for _ in range(12):
        gains = np.maximum(left - pays, 0).sum(axis=1)
        chosen.append(int(gains.argmax()))
        left = np.minimum(left, pays[chosen[-1]])
    picked = most_helpful(fit.schema, regions.boxes, rejected, 12)
    assert pays[picked].min(axis=0).sum() == pytest.approx(left.sum(), rel=1e-3)
    capped = found(fit, most=12)
    assert len(capped.boxes) == 12
    assert pays[:12].min(axis=0).sum() > left.sum()


@pytest.mark.slow
def test_regions_of_several_people_hold_as_many_as_they_say() -> None:
    fit = fitted("boosting", "german")
    few = found(fit, min_people=5)
    assert few.people.min() >= 5
    assert few.people.tolist() == (ways_in(fit.schema, few.boxes, fit.codes[fit.accepted])[0] == 0).sum(axis=1).tolist()
    with pytest.raises(EmptyDatabase, match="min_people: got no region of 900 people, expected at most"):
        found(fit, min_people=900)


def test_ways_in_are_what_their_definition_says() -> None:
    schema = Schema(
        features=(
            Numeric(name="income", low=0, high=4, step=1, missing="level"),
            Categorical(name="job", values=("a", "b", "c"), encoding="one-hot"),
        )
    )
    boxes = np.array([[0, 0, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 1]], dtype=bool)
    changes, costs = ways_in(schema, boxes, np.array([[0, 0], [4, 2], [5, 0], [3, 0]]))
    assert changes.tolist() == [[1, 2, 1, 0], [1, 1, 0, 1]]
    never = np.inf  # nobody is told to leave a value out
    assert costs.tolist() == [[0.25, 1 / 16 + 2, 1, 0], [never, never, 0, never]]


@pytest.mark.slow
def test_the_report_says_that_regions_are_nearer_than_rows() -> None:
    fit = fitted("boosting", "german")
    report, regions = held_out_report(fit.model, fit.people, fit.schema, fit.accepted, fit.codes, orders=2)
    rows, near = report.lines["rows"], report.lines["regions"]
    assert near.found == len(regions.boxes)
    assert 1 <= near.changes < 3 < rows.changes
    assert near.cost < rows.cost
    assert f"{near.changes:.2f} changes (95 % at most {near.changes_95:.0f})" in report.text()


@pytest.mark.filterwarnings("ignore:.*is deprecated")  # XGBoost 3.4 says so of dart and of its forests
def test_weights_of_trees_are_read_where_newer_files_have_them(tmp_path: Path) -> None:
    """From XGBoost 3.4 on, a file says gbtree for dart too, and has the weights of dropped trees in the model."""
    frame, _, verdict = _tabular(300)
    model = xgboost.XGBClassifier(n_estimators=12, max_depth=3, booster="dart", rate_drop=0.5, random_state=0)
    model.fit(frame, verdict)
    model.save_model(tmp_path / "old.json")
    text = json.loads((tmp_path / "old.json").read_text())
    booster = text["learner"]["gradient_booster"]
    if "gbtree" in booster:  # as versions before 3.4 write it
        inner = booster["gbtree"]["model"] | {"weight_drop": booster["weight_drop"]}
        text["learner"]["gradient_booster"] = {"name": "gbtree", "model": inner}
    (tmp_path / "new.json").write_text(json.dumps(text))
    shares = model.predict_proba(frame)[:, 1]
    for name in ("old.json", "new.json"):
        assert np.allclose(1 / (1 + np.exp(-load_model(tmp_path / name).scores(frame))), shares, atol=1e-6), name
