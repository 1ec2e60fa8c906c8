"""Read a scikit-learn model as trees over levels: what decides, after its own preprocessing.

Taken are binary decision trees, forests, gradient boosting and linear models; alone, or behind a pipeline of scalers,
imputers and encoders of categories, each of which works on one column at a time and keeps the order of numbers. The
model's own code transforms the ends of every level, so that what is certified is what it computes, rounding included.
Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import NotOffered, UnknownName, WrongType
from ...schema.features import Feature, Numeric, Value, plain
from ...schema.frames import Columns, rows_as_frame
from ...schema.schema import Schema
from .cells import ends
from .trees import Floats, Trees

_SCALERS = {"StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "SimpleImputer"}  # keep the order
_ENCODERS = {"OneHotEncoder", "OrdinalEncoder", "TargetEncoder"}  # do not, and are taken for listed values alone
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
TAKEN = (
    "DecisionTreeClassifier",
    *sorted(_FORESTS),
    "GradientBoostingClassifier",
    "HistGradientBoostingClassifier",
    *sorted(_LINEAR),
)
_ROUNDING = 8 * 2.0**-53  # for each number added up: of the model's sum and of ours, with room


class _Column(NamedTuple):
    """One input of the estimator: the feature it comes from, and between which numbers it lies at each level."""

    feature: int
    low: Floats  # (levels of the feature,); nan where it is missing
    high: Floats


class _Leaf(NamedTuple):
    value: float
    path: Mapping[int, NDArray[np.bool_]]  # for each feature on the way, the levels that can come here


class _Node(NamedTuple):
    """A node of a tree: a leaf with its value, or a split."""

    value: float
    children: tuple[int, int] | None
    column: int
    threshold: float
    missing_left: bool


def read_model(model: Any, table: Columns, schema: Schema, accepted: Any = None) -> Trees:
    """Return the model as trees over the schema's levels; positive scores mean that it says `accepted`.

    `table` holds people as the model gets them, at least one of whom it decides on.
    """
    steps = [step for _, step in model.steps] if _name(model) == "Pipeline" else [model]
    estimator = steps[-1]
    if _name(estimator) not in TAKEN:
        raise NotOffered("model", got=_name(estimator), expected="one of " + ", ".join(TAKEN))
    names = [str(name) for name in getattr(model, "feature_names_in_", schema.names)]
    for name in names:
        if name not in schema.names:
            raise UnknownName("model", got=f"the column {name!r}", expected="columns of the schema alone")
    for step in steps[:-1]:
        _check_step(step, names, schema)
    sign = _sign(estimator, accepted)
    linear = _name(estimator) in _LINEAR
    columns, decided = _columns(model, names, table, schema, open_ended=not linear)
    trees, constant, scale = _stumps(estimator, columns, sign) if linear else _grown(estimator, columns, sign)
    widths = tuple(feature.largest + 1 for feature in schema.features)
    starts = np.concatenate([[0], np.cumsum(widths)])
    leaves = [leaf for tree in trees for leaf in tree]
    reach = np.ones((len(leaves), int(starts[-1])), dtype=bool)
    for leaf, row in zip(leaves, reach, strict=True):
        for feature, levels in leaf.path.items():
            row[starts[feature] : starts[feature + 1]] = levels
    sizes = np.array([len(tree) for tree in trees])
    return Trees(
        widths=widths,
        values=np.array([leaf.value for leaf in leaves]),
        reach=reach,
        first=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp),
        constant=constant,
        margin=_ROUNDING * scale,
        decided=decided,
    )


def _name(model: Any) -> str:
    return type(model).__name__


def _sign(estimator: Any, accepted: Any) -> int:
    """Return 1 where the model's second class means accepted, -1 where its first does."""
    classes = [plain(label) for label in getattr(estimator, "classes_", ())]
    if len(classes) != 2:
        raise NotOffered("model", got=f"{len(classes)} classes", expected="two, accepted and rejected")
    if accepted is not None and plain(accepted) not in classes:
        raise UnknownName("accepted", got=repr(accepted), expected=f"one of {classes}")
    label = True if accepted is None else plain(accepted)
    if label not in classes:
        expected = "True or False, 1 or 0; or say which label means accepted"
        raise WrongType("model", got=f"the classes {classes}", expected=expected)
    return 1 if classes[1] == label else -1


def _check_step(step: Any, names: Sequence[str], schema: Schema) -> None:
    """Refuse preprocessing that could mix columns, or that does not keep the order of numbers."""
    if isinstance(step, str) or step is None:  # "passthrough", "drop"
        return
    kind = _name(step)
    if kind == "Pipeline":
        for _, inner in step.steps:
            _check_step(inner, names, schema)
    elif kind == "ColumnTransformer":
        for _, inner, chosen in step.transformers_:
            _check_step(inner, _chosen(chosen, names), schema)
    elif kind in _ENCODERS:
        for name in names:
            if isinstance(schema.feature(name), Numeric):
                raise NotOffered("model", got=f"{kind} of the number {name}", expected="of listed values alone")
    elif kind not in _SCALERS and not (kind == "FunctionTransformer" and step.func is None):
        known = ", ".join(sorted(_SCALERS | _ENCODERS | {"ColumnTransformer"}))
        raise NotOffered("model", got=f"preprocessing by {kind}", expected=f"one of {known}")


def _chosen(chosen: Any, names: Sequence[str]) -> list[str]:
    """Return the columns that a step of a ColumnTransformer takes."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice):
        return list(np.array(names, dtype=object)[chosen])
    listed = list(chosen)
    if all(isinstance(each, str) for each in listed):
        return [str(each) for each in listed]
    return [str(name) for name in np.array(names, dtype=object)[np.asarray(listed)]] if listed else []


# --- what the estimator sees of each level -------------------------------------------------------------------------


def _columns(
    model: Any, names: Sequence[str], table: Columns, schema: Schema, *, open_ended: bool
) -> tuple[list[_Column], NDArray[np.bool_]]:
    """Return the estimator's inputs, and which levels the model takes."""
    seen = _Inputs(model, {name: plain(table.column(name)[0]) for name in names}, table)
    base = seen.of([seen.base])[0]
    found: dict[int, _Column] = {}
    decided: list[NDArray[np.bool_]] = []
    for j, feature in enumerate(schema.features):
        if feature.name not in names:
            decided.append(np.ones(feature.largest + 1, dtype=bool))
            continue
        low, high, taken = seen.levels(feature, open_ended)
        decided.append(taken)
        same = (low == base) & (high == base) | (np.isnan(low) & np.isnan(base))
        for k in np.flatnonzero(~same[taken].all(axis=0)).tolist():
            if k in found:
                other = schema.features[found[k].feature].name
                raise NotOffered("model", got=f"an input made of {other} and {feature.name}", expected="of one column")
            found[k] = _Column(j, low[:, k], high[:, k])
    fixed = {k: _Column(-1, base[k : k + 1], base[k : k + 1]) for k in range(len(base)) if k not in found}
    return [(found | fixed)[k] for k in range(len(base))], np.concatenate(decided)


class _Inputs:
    """What the estimator gets for people who differ from one of the data in a single column."""

    def __init__(self, model: Any, base: dict[str, Any], table: Columns) -> None:
        self.model, self.base, self._table = model, base, table
        self._transform = model[:-1].transform if _name(model) == "Pipeline" and len(model.steps) > 1 else None

    def of(self, people: Sequence[Mapping[str, Any]]) -> Floats:
        """Return the estimator's inputs for people, one row each."""
        frame = self._frame(people)
        with np.errstate(over="ignore"):
            made = self._transform(frame) if self._transform else Columns(frame).frame.to_numpy()
        made = made.toarray() if hasattr(made, "toarray") else made
        return np.asarray(made, dtype=np.float64)

    def _frame(self, people: Sequence[Mapping[str, Any]]) -> Any:
        return rows_as_frame({name: [person[name] for person in people] for name in self.base}, self._table)

    def levels(self, feature: Feature, open_ended: bool) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return the lowest and the highest inputs of every level of a feature, and which levels the model takes."""
        width = len(self.of([self.base])[0])
        low, high = np.zeros((2, feature.largest + 1, width))
        taken = np.ones(feature.largest + 1, dtype=bool)
        if isinstance(feature, Numeric):
            sides = [self.of([self._person(feature, v) for v in side]) for side in ends(feature, open_ended=open_ended)]
            low[: feature.steps + 1], high[: feature.steps + 1] = np.minimum(*sides), np.maximum(*sides)
        codes = range(feature.steps + 1 if isinstance(feature, Numeric) else 0, feature.largest + 1)
        for code, inputs in zip(
            codes, self._taken([self._person(feature, feature.value(c)) for c in codes]), strict=True
        ):
            taken[code] = inputs is not None
            low[code] = high[code] = 0.0 if inputs is None else inputs
        return low, high, taken

    def _taken(self, people: Sequence[Mapping[str, Any]]) -> list[Floats | None]:
        """Return the estimator's inputs for each person, None where the model does not take them."""
        try:
            self.model.predict(self._frame(people))
            return list(self.of(people))
        except Exception:  # the model's own code: a value that it does not take makes it fail in any way
            return [None] if len(people) == 1 else [each for person in people for each in self._taken([person])]

    def _person(self, feature: Feature, value: Value) -> dict[str, Any]:
        return self.base | {feature.name: value}


# --- estimators as trees -------------------------------------------------------------------------------------------


def _grown(estimator: Any, columns: Sequence[_Column], sign: int) -> tuple[list[list[_Leaf]], float, float]:
    """Return the leaves of every tree, what the sum begins with, and what roundings are measured by."""
    trees, constant = _read(estimator, columns)
    signed = [[_Leaf(sign * leaf.value, leaf.path) for leaf in tree] for tree in trees]
    scale = sum(max(abs(leaf.value) for leaf in tree) for tree in trees) + abs(constant)
    return signed, sign * constant, (len(trees) + 1) * scale


def _read(estimator: Any, columns: Sequence[_Column]) -> tuple[list[list[_Leaf]], float]:
    """Return the leaves of every tree of an ensemble, and the number that its sum begins with."""
    kind = _name(estimator)
    if kind == "HistGradientBoostingClassifier":
        if getattr(estimator, "is_categorical_", None) is not None:
            raise NotOffered("model", got="HistGradientBoosting with categorical features", expected="encoded ones")
        grown = [_hist_nodes(predictor) for (predictor,) in estimator._predictors]
        return [_leaves(nodes, columns) for nodes in grown], float(np.ravel(estimator._baseline_prediction)[0])
    narrow = [_Column(column.feature, _single(column.low), _single(column.high)) for column in columns]
    if kind == "GradientBoostingClassifier":
        if estimator.init is not None and estimator.init != "zero":
            raise NotOffered("model", got="GradientBoosting with an init of its own", expected="none, or zero")
        rate = estimator.learning_rate
        grown = [_tree_nodes(tree.tree_, lambda v: rate * v[0]) for (tree,) in estimator.estimators_]
        start = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), dtype=np.float32))
        return [_leaves(nodes, narrow) for nodes in grown], float(np.ravel(start)[0])
    trees = estimator.estimators_ if kind in _FORESTS else [estimator]
    grown = [_tree_nodes(tree.tree_, lambda v: (v[1] - v[0]) / v.sum() / len(trees)) for tree in trees]
    return [_leaves(nodes, narrow) for nodes in grown], 0.0


def _single(numbers: Floats) -> Floats:
    """Return numbers as scikit-learn's trees compare them: rounded to 32 bits."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32).astype(np.float64)


def _tree_nodes(tree: Any, score: Callable[[Floats], float]) -> list[_Node]:
    missing = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count))
    return [
        _Node(
            float(score(tree.value[n][0])),
            None if tree.children_left[n] < 0 else (int(tree.children_left[n]), int(tree.children_right[n])),
            int(tree.feature[n]),
            float(tree.threshold[n]),
            bool(missing[n]),
        )
        for n in range(tree.node_count)
    ]


def _hist_nodes(predictor: Any) -> list[_Node]:
    return [
        _Node(
            float(node["value"]),
            None if node["is_leaf"] else (int(node["left"]), int(node["right"])),
            int(node["feature_idx"]),
            float(node["num_threshold"]),
            bool(node["missing_go_to_left"]),
        )
        for node in predictor.nodes
    ]


def _leaves(nodes: Sequence[_Node], columns: Sequence[_Column]) -> list[_Leaf]:
    """Return the leaves of one tree that some level of every feature can come to."""
    leaves: list[_Leaf] = []
    waiting: list[tuple[int, dict[int, NDArray[np.bool_]]]] = [(0, {})]
    while waiting:
        at, path = waiting.pop()
        node = nodes[at]
        if node.children is None:
            leaves.append(_Leaf(node.value, {j: levels for j, levels in path.items() if j >= 0}))
            continue
        column = columns[node.column]
        gone = np.isnan(column.low)
        left = np.where(gone, node.missing_left, column.low <= node.threshold)
        right = np.where(gone, not node.missing_left, column.high > node.threshold)
        for child, levels in zip(node.children, (left, right), strict=True):
            onwards = path[column.feature] & levels if column.feature in path else levels
            if onwards.any():
                waiting.append((child, path | {column.feature: onwards}))
    return leaves


def _stumps(estimator: Any, columns: Sequence[_Column], sign: int) -> tuple[list[list[_Leaf]], float, float]:
    """Return a linear model as a tree for each feature, the least of each level in a leaf; with the other two numbers.

    The last is what roundings are measured by: as a sum of products it may lose more than the sum of its leaves shows.
    """
    weights, constant = sign * np.ravel(estimator.coef_), sign * float(np.ravel(estimator.intercept_)[0])
    least: dict[int, Floats] = {}
    scale = abs(constant)
    for weight, column in zip(weights.tolist(), columns, strict=True):
        both = np.nan_to_num(weight * np.array([column.low, column.high]))  # what is missing here is not taken at all
        scale += float(np.abs(both).max())
        if column.feature < 0:
            constant += float(both[0, 0])
        else:
            least[column.feature] = least.get(column.feature, 0.0) + both.min(axis=0)
    trees = [
        [_Leaf(float(value), {j: np.arange(len(values)) == level}) for level, value in enumerate(values)]
        for j, values in least.items()
    ]
    return trees, constant, (len(columns) + 1) * scale
