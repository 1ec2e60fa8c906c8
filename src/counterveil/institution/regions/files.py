"""Read model files that run no code: XGBoost (json, ubj), LightGBM (txt) and ONNX. A pickle is refused.

What is read decides: the file's trees, its columns, its categories, and what it does with its sum.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import InvalidData, InvalidInput, NotOffered, UnknownName
from ...schema.features import Feature, Numeric, is_missing, plain
from ...schema.frames import Columns
from ...schema.schema import Schema
from .cells import ends
from .ensembles import Column, Ensemble, Flags, Floats, Link, Tree
from .graphs import Graph
from .ubjson import read_ubjson

_PICKLES = {".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle"}
_LOGISTIC = {"binary:logistic", "reg:logistic"}
_RAW = {"binary:logitraw", "binary:hinge", "reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"}
_LIGHT_RAW = {"regression", "regression_l1", "huber", "fair", "quantile", "mape"}
READ = "XGBoost's .json or .ubj, LightGBM's .txt, or .onnx"


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model read from a file: its trees, and the columns and categories that it takes."""

    name: str
    digest: str
    names: tuple[str, ...]  # empty if the file does not name its columns: they are the schema's, in its order
    categories: tuple[tuple[Any, ...] | None, ...]  # for each column the values that its codes stand for
    strict: bool  # a category that the file does not list is refused; otherwise it counts as missing
    ensemble: Ensemble
    link: Link

    def __post_init__(self) -> None:
        """Refuse splits of columns that there are not."""
        if any(tree.column.max() >= len(self.categories) for tree in self.ensemble.trees):
            raise ValueError("a split of a column that the file does not have")

    def predict(self, frame: Any) -> Flags:
        """Tell whom the model accepts, at its usual threshold."""
        return self.scores(frame) > self.link.cut(None, 1)

    def scores(self, frame: Any) -> Floats:
        """Return the sum of leaves for every person of a frame."""
        table = Columns(frame)
        found = [self._source(k, table.names) for k in range(len(self.categories))]
        inputs = [self._inputs(k, table.column(name), value) for k, (name, value) in enumerate(found)]
        return self.ensemble.scores(np.stack(inputs, axis=1))

    def columns(self, schema: Schema) -> tuple[list[Column], Flags]:
        """Return what the trees get at each level of each feature, and which levels the model takes."""
        made: list[Column] = []
        decided = [np.ones(feature.largest + 1, dtype=bool) for feature in schema.features]
        for k in range(len(self.categories)):
            name, value = self._source(k, schema.names)
            j = schema.names.index(name)
            low, high = self._levels(k, schema.features[j], value)
            decided[j] &= ~np.isposinf(low)
            made.append(Column(j, np.where(np.isposinf(low), 0.0, low), np.where(np.isposinf(high), 0.0, high)))
        return made, np.concatenate(decided)

    def _source(self, k: int, known: Sequence[str]) -> tuple[str, str | None]:
        """Return the column that an input comes from; and its value, where the input says whether it has that one."""
        if not self.names:
            if len(known) != len(self.categories):
                raise UnknownName("model", got=f"{len(self.categories)} columns without names", expected=len(known))
            return known[k], None
        own = _plainly(self.names[k])
        for name in known:
            if _plainly(name) == own:
                return name, None
        for name in known:
            if own.startswith(_plainly(name) + "_"):
                return name, own[len(name) + 1 :]
        raise UnknownName("model", got=f"the column {self.names[k]!r}", expected="columns of the schema alone")

    def _levels(self, k: int, feature: Feature, value: str | None) -> tuple[Floats, Floats]:
        low, high = np.full((2, feature.largest + 1), np.nan)
        count = feature.steps + 1
        if isinstance(feature, Numeric):
            if value is not None or self.categories[k] is not None or self.ensemble.splits_categories(k):
                raise NotOffered("model", got=f"the number {feature.name} as a category", expected="a number")
            low[:count], high[:count] = ends(feature)
            return low, high
        low[:] = self._inputs(k, [feature.value(code) for code in range(feature.largest + 1)], value)
        return low, low

    def _inputs(self, k: int, values: Sequence[Any], value: str | None) -> Floats:
        """Return the numbers that stand for values; infinity for a value that the model does not take."""
        if value is not None:
            return np.array([math.nan if is_missing(v) else float(_plainly(str(plain(v))) == value) for v in values])
        listed = self.categories[k]
        if listed is None:
            try:
                return np.array([math.nan if is_missing(v) else float(v) for v in values])
            except (TypeError, ValueError):
                got = f"text in {self.names[k] if self.names else f'column {k}'!r}, which the file takes for a number"
                raise NotOffered(
                    "model", got=got, expected="categories in the file, or a column for each value"
                ) from None
        codes = {each: float(code) for code, each in enumerate(listed)}
        unknown = math.inf if self.strict else math.nan
        return np.array([math.nan if is_missing(v) else codes.get(plain(v), unknown) for v in values])


def _plainly(name: str) -> str:
    """Return a name as LightGBM writes it: without spaces."""
    return name.replace(" ", "_")


def load_model(path: str | Path) -> Any:
    """Read a model from a file of a format that runs no code."""
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidData(str(path), got=error.strerror or "an error", expected="a model's file") from None
    if suffix in _PICKLES or data[:1] == b"\x80":
        raise NotOffered(str(path), got="a pickle, which runs code when it is read", expected=READ)
    try:
        if suffix == ".onnx":
            return Graph.read(path.name, data)
        if suffix == ".json":
            return xgboost_model(path.name, data, msgspec.json.decode(data))
        if suffix == ".ubj":
            return xgboost_model(path.name, data, read_ubjson(data))
        if suffix == ".txt":
            return lightgbm_model(path.name, data.decode())
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidData(str(path), got=f"{type(error).__name__}: {error}"[:120], expected=READ) from None
    raise NotOffered(str(path), got=suffix or "no suffix", expected=READ)


# --- XGBoost -------------------------------------------------------------------------------------------------------


def xgboost_model(name: str, data: bytes, document: Any) -> ModelFile:
    """Read an XGBoost model, as its JSON says it."""
    learner = document["learner"]
    booster, objective = learner["gradient_booster"], learner["objective"]["name"]
    if (
        int(learner["learner_model_param"]["num_class"]) > 1
        or int(learner["learner_model_param"].get("num_target", 1)) > 1
    ):
        raise NotOffered("model", got="several classes or targets", expected="one score")
    if booster["name"] not in ("gbtree", "dart"):
        raise NotOffered("model", got=f"the booster {booster['name']}", expected="gbtree or dart")
    if objective not in _LOGISTIC | _RAW:
        raise NotOffered("model", got=f"the objective {objective}", expected=", ".join(sorted(_LOGISTIC | _RAW)))
    model = booster.get("gbtree", booster)["model"]
    weights = booster.get("weight_drop") or model.get("weight_drop") or None  # newer files have them in the model
    best = learner.get("attributes", {}).get("best_iteration")
    if best is not None and len(model["iteration_indptr"]) - 1 > int(best) + 1:
        expected = f"booster[: {int(best) + 1}], saved alone"
        raise NotOffered(
            "model", got="more trees than the best iteration, which some ways to predict use", expected=expected
        )
    trees = [_xgboost_tree(tree, 1.0 if weights is None else weights[n]) for n, tree in enumerate(model["trees"])]
    base = float(np.ravel(msgspec.json.decode(learner["learner_model_param"]["base_score"]))[0])
    logistic = objective in _LOGISTIC
    if logistic:
        base = math.log(base / (1 - base))
    usual = 0.5 if logistic else 0.0 if objective.startswith("binary") else None
    names = tuple(learner.get("feature_names") or ())
    count = int(learner["learner_model_param"]["num_feature"])
    return ModelFile(
        name=name,
        digest=hashlib.sha256(data).hexdigest(),
        names=names,
        categories=tuple(_xgboost_categories(model.get("cats") or {}, count)),
        strict=True,
        ensemble=Ensemble(trees, base, inclusive=False, single=True, bits=24),
        link=Link("logistic" if logistic else "identity", usual=usual),
    )


def _xgboost_tree(tree: Mapping[str, Any], weight: float) -> Tree:
    left, right = np.array(tree["left_children"], dtype=np.int64), np.array(tree["right_children"], dtype=np.int64)
    leaf = left < 0
    numbers = np.array(tree["split_conditions"], dtype=np.float32).astype(np.float64)
    categories = {}
    for node, start, size in zip(
        tree.get("categories_nodes", ()),
        tree.get("categories_segments", ()),
        tree.get("categories_sizes", ()),
        strict=True,
    ):
        named = frozenset(int(code) for code in tree["categories"][int(start) : int(start) + int(size)])
        categories[int(node)] = (named, False)
    return Tree(
        column=np.where(leaf, -1, np.array(tree["split_indices"], dtype=np.int64)),
        threshold=numbers,
        left=left,
        right=right,
        value=weight * numbers,
        missing_left=np.array(tree["default_left"], dtype=bool),
        categories=categories,
    )


def _xgboost_categories(cats: Mapping[str, Any], count: int) -> list[tuple[Any, ...] | None]:
    """Return the values of each column's categories, where the file has them."""
    listed: list[tuple[Any, ...] | None] = []
    for each in cats.get("enc") or [{}] * count:
        values = each.get("values") or []
        if "offsets" not in each:
            listed.append(tuple(values) or None)
            continue
        text, offsets = bytes(v & 255 for v in values), [int(o) for o in each["offsets"]]
        pieces = pairwise(offsets)
        listed.append(tuple(text[start:stop].decode() for start, stop in pieces) or None)
    return listed


# --- LightGBM ------------------------------------------------------------------------------------------------------


def lightgbm_model(name: str, text: str) -> ModelFile:
    """Read a LightGBM model, as its text says it."""
    head, *parts = text.split("\nTree=")
    if not head.startswith("tree\n") or not parts:
        raise ValueError("not a LightGBM model")
    about = _pairs(head)
    if int(about["num_class"]) != 1 or int(about["num_tree_per_iteration"]) != 1:
        raise NotOffered("model", got="several classes", expected="one score")
    kind, *options = about["objective"].split()
    settings = dict(option.split(":", 1) for option in options if ":" in option)
    if kind not in _LIGHT_RAW | {"binary"} or "sqrt" in options:
        raise NotOffered(
            "model", got=f"the objective {about['objective']}", expected=", ".join(sorted(_LIGHT_RAW | {"binary"}))
        )
    average = "\naverage_output" in head
    trees = [_lightgbm_tree(_pairs(part.split("\n\n")[0]), 1 / len(parts) if average else 1.0) for part in parts]
    names = tuple(about["feature_names"].split())
    tail = parts[-1].rpartition("pandas_categorical:")[2].strip()
    stored = msgspec.json.decode(tail) if "pandas_categorical:" in parts[-1] else None
    listed = [tuple(values) for values in stored or ()]
    # A column of categories is described by its codes, as in -1:3:0:2:1, where a number has [low:high].
    described = about["feature_infos"].split()
    categorical = [not info.startswith("[") and info != "none" for info in described]
    if listed and sum(categorical) != len(listed):
        raise NotOffered("model", got="a column of categories that no tree may use", expected="every category in use")
    values = iter(listed)
    logistic = kind == "binary"
    return ModelFile(
        name=name,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        names=() if all(each == f"Column_{k}" for k, each in enumerate(names)) else names,
        categories=tuple(next(values) if listed and each else None for each in categorical),
        strict=False,
        ensemble=Ensemble(trees, 0.0, inclusive=True, single=False),
        link=Link("logistic" if logistic else "identity", float(settings.get("sigmoid", 1)), 0.5 if logistic else None),
    )


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, equals, value in (line.partition("=") for line in text.split("\n")) if equals}


def _lightgbm_tree(about: Mapping[str, str], weight: float) -> Tree:
    """Read a tree: splits come first, leaf n is named ~n."""
    if int(about.get("is_linear", 0)):
        raise NotOffered("model", got="linear trees", expected="a number at each leaf")
    values = np.array(about["leaf_value"].split(), dtype=np.float64) * weight
    count = len(values) - 1
    if not count:
        return _single_leaf(float(values[0]))

    def read(key: str) -> Any:
        return np.array(about[key].split(), dtype=np.float64 if key == "threshold" else np.int64)

    kind, threshold, column = read("decision_type"), read("threshold"), read("split_feature")
    left, right = (np.where(child < 0, count + ~child, child) for child in (read("left_child"), read("right_child")))
    missing, is_category = kind >> 2 & 3, kind & 1 == 1
    categories = {}
    if is_category.any():
        bounds, words = read("cat_boundaries"), read("cat_threshold")
        for at in np.flatnonzero(is_category).tolist():
            own = words[bounds[int(threshold[at])] : bounds[int(threshold[at]) + 1]]
            named = {32 * n + bit for n, word in enumerate(own.tolist()) for bit in range(32) if word >> bit & 1}
            categories[at] = (frozenset(named), True)

    def with_leaves(numbers: Any, fill: Any) -> Any:
        return np.concatenate([numbers, np.full(count + 1, fill, dtype=numbers.dtype)])

    return Tree(
        column=with_leaves(column, -1),
        threshold=with_leaves(threshold, 0.0),
        left=with_leaves(left, -1),
        right=with_leaves(right, -1),
        value=np.concatenate([np.zeros(count), values]),
        missing_left=with_leaves((kind & 2 == 2) & ~is_category, False),  # a missing category goes right
        categories=categories,
        missing_is_zero=with_leaves(missing != 2, False),
        zero_is_missing=with_leaves(missing == 1, False),
    )


def _single_leaf(value: float) -> Tree:
    none = np.array([-1])
    return Tree(none, np.zeros(1), none, none, np.array([value]), np.zeros(1, dtype=bool))
