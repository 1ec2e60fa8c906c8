"""Read a model as trees over levels: what decides, after its own preprocessing.

Taken are binary decision trees, forests, gradient boosting and linear models of scikit-learn, alone or at the end of a
pipeline; models of XGBoost and LightGBM, fitted or read from a file; and ONNX files. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...errors import NotOffered, UnknownName, WrongType
from ...schema.features import Numeric, is_missing, plain
from ...schema.frames import Columns
from ...schema.schema import Schema
from .ensembles import Column, Ensemble, Flags, Floats, Leaf, Link, Tree, rounding
from .files import ModelFile, lightgbm_model, xgboost_model
from .inputs import check_steps, columns_of_model, name_of
from .trees import Trees

_FORESTS = {"RandomForestClassifier", "ExtraTreesClassifier"}
_LINEAR = {
    "LogisticRegression",
    "LogisticRegressionCV",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
    "Perceptron",
    "LinearSVC",
}
_BOOSTERS = {"XGBClassifier", "XGBRFClassifier", "LGBMClassifier"}
TAKEN = (
    "DecisionTreeClassifier",
    *sorted(_FORESTS),
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    *sorted(_LINEAR),
    *sorted(_BOOSTERS),
)


class Reader(NamedTuple):
    """What a model of scikit-learn's kind is made of."""

    estimator: Any
    sign: int  # 1 where the second class means accepted, -1 where the first does
    link: Link


class Line(NamedTuple):
    """A linear model: a weight for each input, what the sum begins with, and in how many bits it is computed."""

    weights: Floats
    constant: float
    bits: int


@dataclass(frozen=True)
class Thresholded:
    """A model that accepts people whose score is above a threshold: the probability of the label, or a file's score."""

    model: Any
    threshold: float
    accepted: Any = None

    def predict(self, frame: Any) -> Flags:
        """Tell whom the model accepts."""
        if hasattr(self.model, "link"):
            sign = _file_sign(self.model, self.accepted)
            return np.asarray(sign * self.model.scores(frame) > self.model.link.cut(self.threshold, sign))
        _, sign, link = _reader(self.model, self.accepted)
        if link.kind == "identity":
            return np.asarray(sign * self.model.decision_function(frame) > link.cut(self.threshold, sign))
        return np.asarray(self.model.predict_proba(frame)[:, (sign + 1) // 2] > self.threshold)

    def __getattr__(self, name: str) -> Any:
        """Return what the model itself has, such as the names of its columns."""
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)


def read_model(model: Any, table: Columns, schema: Schema, accepted: Any = None) -> Trees:
    """Return the model as trees over the schema's levels; scores above the margin mean that it says `accepted`.

    `table` holds people as the model gets them, at least one of whom it decides on.
    """
    threshold = None
    if isinstance(model, Thresholded):
        model, threshold, accepted = model.model, model.threshold, model.accepted
    if hasattr(model, "link"):
        return _of_file(model, schema, _file_sign(model, accepted), threshold)
    estimator, sign, link = _reader(model, accepted)
    kind = name_of(estimator)
    if model is estimator and kind in _BOOSTERS:
        return _of_file(booster_file(estimator), schema, sign, threshold)
    names = [str(name) for name in getattr(model, "feature_names_in_", schema.names)]
    for name in names:
        if name not in schema.names:
            raise UnknownName("model", got=f"the column {name!r}", expected="columns of the schema alone")
    if model is not estimator:
        check_steps([step for _, step in model.steps[:-1]], names, schema)
    cut = link.cut(threshold, sign, 24 if kind.startswith("XGB") else 53)
    if kind in _LINEAR:
        if np.asarray(estimator.coef_).dtype != np.float64:
            raise NotOffered("model", got="a linear model fitted on 32-bit numbers", expected="on 64-bit numbers")
        line = Line(sign * np.ravel(estimator.coef_), sign * float(np.ravel(estimator.intercept_)[0]), bits=53)
        columns, decided, _ = columns_of_model(model, names, table, schema, open_ended=False)
        wider, _, beyond = columns_of_model(model, names, table, schema)
        return _linear(line, columns, wider, decided, schema, cut, beyond)
    ensemble = booster_file(estimator).ensemble if kind in _BOOSTERS else _ensemble(estimator)
    if kind.startswith("XGB") and len(model.steps) > 1 and hasattr(_inputs(model, names, table), "toarray"):
        expected = "dense ones, as OneHotEncoder(sparse_output=False) makes"
        raise NotOffered("model", got="sparse inputs, of which XGBoost takes zeros for missing", expected=expected)
    columns, decided, beyond = columns_of_model(model, names, table, schema)
    return _of_ensemble(ensemble, columns, decided, schema, sign, cut, beyond)


def _inputs(model: Any, names: list[str], table: Columns) -> Any:
    """Return what the estimator gets for some people."""
    return model[:-1].transform(table.rows(np.arange(table.count) < 2).select(names))


def _of_ensemble(
    ensemble: Ensemble,
    columns: list[Column],
    decided: Flags,
    schema: Schema,
    sign: int,
    cut: float,
    beyond: list[tuple[bool, bool]] | None = None,
) -> Trees:
    leaves = ensemble.leaves(columns, sign)
    return Trees.of(schema, leaves, sign * ensemble.constant, cut + ensemble.rounding, decided, beyond)


def _of_file(model: Any, schema: Schema, sign: int, threshold: float | None) -> Trees:
    columns, decided = model.columns(schema)
    cut = model.link.cut(threshold, sign, model.ensemble.bits)
    if getattr(model, "weights", None) is not None:
        bounded, _ = model.columns(schema, open_ended=False)
        line = Line(sign * model.weights, sign * model.ensemble.constant, bits=model.ensemble.bits)
        return _linear(line, bounded, columns, decided, schema, cut)
    return _of_ensemble(model.ensemble, columns, decided, schema, sign, cut)


def file_classes(model: Any) -> tuple[Any, Any]:
    """Return the two classes of a model's file, of which high scores mean the second: 0 and 1 unless it names them."""
    return getattr(model, "classes", (0, 1))


def _file_sign(model: Any, accepted: Any) -> int:
    classes = file_classes(model)
    label = 1 if accepted is None else plain(accepted)
    if label not in classes:
        got = "no class that means accepted" if accepted is None else repr(accepted)
        raise UnknownName("accepted", got=got, expected=f"{classes[1]!r} or {classes[0]!r}, the model's classes")
    return 1 if label == classes[1] else -1


def _reader(model: Any, accepted: Any) -> Reader:
    """Return the estimator that decides at the end of a model, which class means accepted, and what scores mean."""
    estimator = model.steps[-1][1] if name_of(model) == "Pipeline" else model
    kind = name_of(estimator)
    if kind not in TAKEN:
        raise NotOffered("model", got=kind, expected="one of " + ", ".join(TAKEN))
    classes = [plain(label) for label in getattr(estimator, "classes_", ())]
    if len(classes) != 2:
        raise NotOffered("model", got=f"{len(classes)} classes", expected="two, accepted and rejected")
    if accepted is not None and plain(accepted) not in classes:
        raise UnknownName("accepted", got=repr(accepted), expected=f"one of {classes}")
    label = True if accepted is None else plain(accepted)
    if label not in classes:
        expected = "True or False, 1 or 0; or say which label means accepted"
        raise WrongType("model", got=f"the classes {classes}", expected=expected)
    return Reader(estimator, 1 if classes[1] == label else -1, _link(estimator))


def _link(estimator: Any) -> Link:
    kind = name_of(estimator)
    if kind in _FORESTS or kind == "DecisionTreeClassifier":
        return Link("share")
    if kind == "GradientBoostingClassifier":
        return Link("logistic", 2.0 if estimator.loss == "exponential" else 1.0)
    if kind.startswith("LogisticRegression"):
        return Link("logistic", 2.0 if getattr(estimator, "multi_class", "") == "multinomial" else 1.0)
    if kind in _LINEAR and not (kind == "SGDClassifier" and estimator.loss == "log_loss"):
        return Link("identity", usual=0.0)
    if kind in _BOOSTERS:
        return booster_file(estimator).link
    return Link("logistic")


def booster_file(estimator: Any) -> ModelFile:
    """Return a fitted model of XGBoost or LightGBM as its file would be read."""
    if name_of(estimator).startswith("LGBM"):
        return lightgbm_model("LightGBM", estimator.booster_.model_to_string())
    if not is_missing(estimator.missing):
        raise NotOffered("model", got=f"XGBoost with missing = {estimator.missing}", expected="nan")
    booster = estimator.get_booster()
    if getattr(estimator, "early_stopping_rounds", None) is not None:
        booster = booster[: estimator.best_iteration + 1]
        booster.set_attr(best_iteration=None)
    data = bytes(booster.save_raw("json"))
    return xgboost_model("XGBoost", data, msgspec.json.decode(data))


# --- scikit-learn's estimators -------------------------------------------------------------------------------------


def _ensemble(estimator: Any) -> Ensemble:
    """Return the trees of an estimator of scikit-learn."""
    kind = name_of(estimator)
    if kind == "HistGradientBoostingClassifier":
        if getattr(estimator, "is_categorical_", None) is not None:
            raise NotOffered("model", got="HistGradientBoosting with categorical features", expected="encoded ones")
        trees = [_hist_tree(predictor.nodes) for (predictor,) in estimator._predictors]
        return Ensemble(trees, float(np.ravel(estimator._baseline_prediction)[0]), inclusive=True, single=False)
    if kind == "GradientBoostingClassifier":
        if estimator.init is not None and estimator.init != "zero":
            raise NotOffered("model", got="GradientBoosting with an init of its own", expected="none, or zero")
        rate = estimator.learning_rate
        trees = [_tree(tree.tree_, lambda v: rate * v[:, 0]) for (tree,) in estimator.estimators_]
        start = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), dtype=np.float32))
        return Ensemble(trees, float(np.ravel(start)[0]), inclusive=True, single=True)
    grown = estimator.estimators_ if kind in _FORESTS else [estimator]
    trees = [_tree(tree.tree_, lambda v: (v[:, 1] - v[:, 0]) / v.sum(axis=1) / len(grown)) for tree in grown]
    return Ensemble(trees, 0.0, inclusive=True, single=True)


def _tree(tree: Any, score: Callable[[Floats], Floats]) -> Tree:
    missing = getattr(tree, "missing_go_to_left", None)
    return Tree(
        column=np.where(tree.children_left < 0, -1, tree.feature),
        threshold=np.asarray(tree.threshold),
        left=np.asarray(tree.children_left),
        right=np.asarray(tree.children_right),
        value=np.asarray(score(tree.value[:, 0])),
        missing_left=np.zeros(tree.node_count, dtype=bool) if missing is None else np.asarray(missing, dtype=bool),
    )


def _hist_tree(nodes: Any) -> Tree:
    return Tree(
        column=np.where(nodes["is_leaf"], -1, nodes["feature_idx"]),
        threshold=nodes["num_threshold"].astype(np.float64),
        left=nodes["left"].astype(np.int64),
        right=nodes["right"].astype(np.int64),
        value=nodes["value"].astype(np.float64),
        missing_left=nodes["missing_go_to_left"].astype(bool),
    )


def _linear(
    line: Line,
    columns: list[Column],
    wider: list[Column],
    decided: Flags,
    schema: Schema,
    cut: float,
    open_ended: list[tuple[bool, bool]] | None = None,
) -> Trees:
    """Return a linear model as a tree for each feature, with the least that each level adds in a leaf of its own.

    `columns` stop at the schema's range and `wider` do not. End levels hold what lies beyond them where that is good
    for people, and elsewhere stop at the range.
    """
    least, scale = _least(line.weights, columns)
    farther, _ = _least(line.weights, wider)
    constant = line.constant + float(least.pop(-1, np.zeros(1))[0])
    ends = list(open_ended or [(True, True)] * len(schema.features))
    for j, values in least.items():
        feature = schema.features[j]
        if isinstance(feature, Numeric):
            same = farther[j] >= values
            ends[j] = (ends[j][0] and bool(same[0]), ends[j][1] and bool(same[feature.steps]))
    trees = [
        [Leaf(float(value), {j: np.arange(len(values)) == level}) for level, value in enumerate(values)]
        for j, values in least.items()
    ]
    margin = cut + rounding(len(columns) + 1, scale + abs(line.constant), line.bits)
    return Trees.of(schema, trees, constant, margin, decided, ends)


def _least(weights: Floats, columns: list[Column]) -> tuple[dict[int, Floats], float]:
    """Return the least that each level of each feature adds to the sum, and the size of all that is added."""
    least: dict[int, Floats] = {}
    scale = 0.0
    for weight, column in zip(weights.tolist(), columns, strict=True):
        if not weight:
            continue
        with np.errstate(over="ignore"):
            both = weight * np.array([column.low, column.high])
        both = np.where(np.isnan(both), 0.0, both)  # what is missing here is not taken at all
        scale += float(np.abs(both).max())
        least[column.feature] = least.get(column.feature, 0.0) + both.min(axis=0)
    return least, scale
