"""Read ONNX files, where the file itself decides: its trees or its linear model, behind its own preprocessing.

The file is run, as onnxruntime runs it, up to what its last model gets, for the ends of every level. Only operators are
taken that work on one column at a time and keep the order of numbers. Inputs are 32-bit numbers where the file says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidData, MissingPackage, NotOffered, UnknownName
from ...schema.features import Feature, Numeric, is_missing
from ...schema.frames import Columns
from ...schema.schema import Schema
from .cells import ends
from .ensembles import Column, Ensemble, Flags, Floats, Link, Tree

_KEEP_ORDER = {"Cast", "Concat", "FeatureVectorizer", "Flatten", "Gather", "Identity", "Imputer", "Reshape", "Scaler"}
_LISTED_ONLY = {"LabelEncoder", "OneHotEncoder", "OrdinalEncoder"}
_MODELS = {"TreeEnsembleClassifier", "LinearClassifier"}
_AFTER = {"ArrayFeatureExtractor", "Cast", "Identity", "Normalizer", "Reshape", "ZipMap"}
_MODES = {"BRANCH_LEQ": True, "BRANCH_LT": False}  # and whether a number on the threshold goes left
_TYPES = {1: np.float32, 7: np.int64, 8: np.object_, 11: np.float64, 6: np.int32, 9: np.bool_}


@dataclass(frozen=True, eq=False)
class Graph:
    """An ONNX file: inputs by name, preprocessing that is run, and the model at its end."""

    name: str
    digest: str
    inputs: Mapping[str, tuple[int, int]]  # the type of each, and how many columns it has
    session: Any  # runs the preprocessing, up to what the model gets
    listed: frozenset[str]  # inputs that encoders take
    ensemble: Ensemble
    link: Link
    weights: Floats | None  # of a linear model, which has no trees
    classes: tuple[Any, Any]  # its labels; high scores mean the second

    @classmethod
    def read(cls, name: str, data: bytes) -> Graph:
        """Read a file's bytes, or refuse what cannot be certified by name."""
        try:
            import onnx
            import onnxruntime
        except ImportError:
            raise MissingPackage("model", got="no onnx and onnxruntime", expected="counterveil[models]") from None
        try:
            model = onnx.load_from_string(data)
            onnx.checker.check_model(model)
        except Exception as error:  # protobuf and the checker have errors of their own
            got = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
            raise InvalidData(name, got=got, expected="an ONNX model") from None
        graph = model.graph
        (last,) = _only([node for node in graph.node if node.op_type in _MODELS], "models")
        listed = _check_order(graph, last, onnx)
        cut = onnx.ModelProto()
        cut.CopyFrom(model)
        _keep_before(cut.graph, last, onnx)
        session = onnxruntime.InferenceSession(cut.SerializeToString(), providers=["CPUExecutionProvider"])
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in last.attribute}
        classes, trees = _labels(attributes), last.op_type == "TreeEnsembleClassifier"
        if trees:
            ensemble, link = _trees(attributes)
            weights = None
        else:
            weights, constant, link = _linear(attributes)
            ensemble = Ensemble((), constant, inclusive=True, single=True, bits=24)
        return cls(
            name=name,
            digest=hashlib.sha256(data).hexdigest(),
            inputs={each.name: _shape(each) for each in graph.input},
            session=session,
            listed=listed,
            ensemble=ensemble,
            link=link,
            weights=weights,
            classes=classes,
        )

    def predict(self, frame: Any) -> Any:
        """Return everybody's class, at the usual threshold; where classes are 0 and 1, whether it is 1."""
        second = self.scores(frame) > self.link.cut(None, 1, bits=24)  # at 32 bits; of two equal shares, the first wins
        return second if self.classes == (0, 1) else np.array(self.classes, dtype=object)[second.astype(int)]

    def scores(self, frame: Any) -> Floats:
        """Return the model's sum for every person of a frame."""
        table = Columns(frame)
        inputs = self._run({name: table.column(name) for name in table.names}, table.count)
        if self.weights is None:
            return self.ensemble.scores(inputs)
        return np.asarray(inputs @ self.weights + self.ensemble.constant)

    def columns(self, schema: Schema, *, open_ended: bool = True) -> tuple[list[Column], Flags]:
        """Return what the model gets at each level of each feature, and which levels it takes."""
        base = {f.name: f.value(0) for f in schema.features}
        same = self._run({name: [value] for name, value in base.items()}, 1)[0]
        found: dict[int, Column] = {}
        decided: list[Flags] = []
        for j, feature in enumerate(schema.features):
            low, high, taken = self._levels(feature, base, len(same), open_ended)
            decided.append(taken)
            for k in np.flatnonzero(~((low[taken] == same) & (high[taken] == same)).all(axis=0)).tolist():
                if k in found:
                    other = schema.features[found[k].feature].name
                    got = f"an input made of {other} and {feature.name}"
                    raise NotOffered("model", got=got, expected="of one column")
                found[k] = Column(j, low[:, k], high[:, k])
        fixed = {k: Column(-1, same[k : k + 1], same[k : k + 1]) for k in range(len(same))}
        return [(fixed | found)[k] for k in range(len(same))], np.concatenate(decided)

    def _levels(
        self, feature: Feature, base: Mapping[str, Any], width: int, open_ended: bool
    ) -> tuple[Floats, Floats, Flags]:
        """Return the lowest and the highest of what the model gets at every level, and which levels it takes."""
        low, high = np.zeros((2, feature.largest + 1, width))
        taken = np.ones(feature.largest + 1, dtype=bool)
        numbers = feature.steps + 1 if isinstance(feature, Numeric) else 0
        if isinstance(feature, Numeric):
            if feature.name in self.listed:
                raise NotOffered("model", got=f"an encoder of the number {feature.name}", expected="of listed values")
            sides = [self._with(base, feature, side.tolist()) for side in ends(feature, open_ended=open_ended)]
            low[:numbers], high[:numbers] = np.minimum(*sides), np.maximum(*sides)
        for code in range(numbers, feature.largest + 1):
            try:
                low[code] = high[code] = self._with(base, feature, [feature.value(code)])[0]
            except Exception:  # onnxruntime's own errors: a value that the file does not take
                taken[code] = False
        return low, high, taken

    def _with(self, base: Mapping[str, Any], feature: Feature, values: Sequence[Any]) -> Floats:
        columns = {name: [value] * len(values) for name, value in base.items()}
        return self._run(columns | {feature.name: values}, len(values))

    def _run(self, columns: Mapping[str, Any], count: int) -> Floats:
        """Return what the model gets, for people given as columns."""
        given = {}
        for name, (kind, width) in self.inputs.items():
            names = [name] if name in columns else list(columns) if len(self.inputs) == 1 else []
            if len(names) != width:
                raise UnknownName(
                    "model", got=f"the input {name!r} of {width} columns", expected="the schema's columns"
                )
            made: Any = np.empty((count, width), dtype=_TYPES[kind])
            for k, each in enumerate(names):
                values = [np.nan if is_missing(v) and kind in (1, 11) else v for v in columns[each]]
                with np.errstate(over="ignore"):
                    made[:, k] = np.array(values, dtype=object if kind == 8 else np.float64)
            given[name] = made
        return np.asarray(self.session.run(None, given)[0], dtype=np.float64).reshape(count, -1)


def _only(nodes: Sequence[Any], what: str) -> Sequence[Any]:
    if len(nodes) != 1:
        expected = "one, " + " or ".join(sorted(_MODELS))
        raise NotOffered("model", got=f"{len(nodes)} {what} in the ONNX file", expected=expected)
    return nodes


def _shape(value: Any) -> tuple[int, int]:
    """Return an input's type and how many columns it has."""
    tensor = value.type.tensor_type
    dimensions = [each.dim_value for each in tensor.shape.dim]
    if tensor.elem_type not in _TYPES or len(dimensions) != 2 or dimensions[1] < 1:
        raise NotOffered("model", got=f"the input {value.name!r}", expected="a table of numbers or text")
    return tensor.elem_type, dimensions[1]


def _check_order(graph: Any, last: Any, onnx: Any) -> frozenset[str]:
    """Refuse operators that mix columns or do not keep their order; return the inputs that encoders take."""
    made_by = {output: node for node in graph.node for output in node.output}
    listed: set[str] = set()
    waiting = [(each, False) for each in last.input]
    while waiting:
        name, encoded = waiting.pop()
        node = made_by.get(name)
        if node is None:
            if encoded:
                listed.add(name)
            continue
        if node.op_type not in _KEEP_ORDER | _LISTED_ONLY:
            raise NotOffered("model", got=f"the ONNX operator {node.op_type}", expected="scalers and encoders")
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Gather" and attributes.get("axis", 0) != 1:
            raise NotOffered("model", got="rows that are put in another order", expected="columns alone")
        if node.op_type == "Scaler" and min(attributes.get("scale", [1.0])) < 0:
            raise NotOffered("model", got="a scaler that turns the order round", expected="one that keeps it")
        if node.op_type == "Imputer" and not is_missing(attributes.get("replaced_value_float", 0.0)):
            raise NotOffered("model", got="an imputer of a number", expected="of missing values alone")
        waiting += [(each, encoded or node.op_type in _LISTED_ONLY) for each in node.input]
    after = {node.op_type for node in graph.node if node is not last and not _leads_to(node, last, made_by)}
    if after - _AFTER:
        raise NotOffered("model", got=f"the ONNX operator {sorted(after - _AFTER)[0]} after the model", expected="none")
    return frozenset(listed)


def _leads_to(node: Any, last: Any, made_by: Mapping[str, Any]) -> bool:
    """Tell whether a node's output is used by the last model, through others or not."""
    waiting, seen = list(last.input), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in made_by:
            continue
        seen.add(name)
        waiting += list(made_by[name].input)
    return any(output in seen for output in node.output)


def _keep_before(graph: Any, last: Any, onnx: Any) -> None:
    """Cut a graph off before its model, so that it gives what the model gets."""
    made_by = {output: node for node in graph.node for output in node.output}
    before = [node for node in graph.node if _leads_to(node, last, made_by)]
    source = last.input[0]
    del graph.node[:], graph.output[:]
    graph.node.extend(before)
    if source not in made_by:  # the model takes the file's input itself
        graph.node.append(onnx.helper.make_node("Identity", [source], ["counterveil"]))
        source = "counterveil"
    graph.output.append(onnx.ValueInfoProto(name=source))


def _labels(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the names of the two classes: whole numbers, or text."""
    names = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
    found = [label for name in names for label in attributes.get(name, ())]
    labels = [label.decode(errors="replace") if isinstance(label, bytes) else int(label) for label in found]
    if len(labels) != 2 or labels[0] == labels[1]:
        raise NotOffered("model", got=f"the classes {labels}"[:60], expected="two, accepted and rejected")
    return labels[0], labels[1]


def _trees(attributes: Mapping[str, Any]) -> tuple[Ensemble, Link]:
    """Read a classifier of two classes made of trees."""
    if any(key.endswith("_as_tensor") for key in attributes):
        raise NotOffered("model", got="trees of 64-bit numbers", expected="32-bit ones")
    modes = {mode.decode() for mode in attributes["nodes_modes"]} - {"LEAF"}
    if len(modes) > 1 or not modes <= set(_MODES):
        raise NotOffered("model", got=f"splits by {', '.join(sorted(modes))}", expected="by <= alone, or by < alone")
    transform = attributes.get("post_transform", b"NONE").decode()
    classes, weights = set(attributes["class_ids"]), np.array(attributes["class_weights"], dtype=np.float64)
    if transform not in ("NONE", "LOGISTIC") or (classes not in ({0}, {1}) and classes != {0, 1}):
        raise NotOffered("model", got=f"the transform {transform} of classes {sorted(classes)}", expected="two classes")
    # With one column of weights all of which are positive, the sum is a share and 0.5 decides; otherwise 0 does.
    share = len(classes) == 1 and transform == "NONE" and bool((weights >= 0).all())
    sign = np.where(np.array(attributes["class_ids"]) == 1, 1.0, -1.0) if len(classes) == 2 else np.ones(len(weights))
    values = dict[tuple[int, int], float]()
    for tree, node, weight in zip(
        attributes["class_treeids"], attributes["class_nodeids"], (sign * weights).tolist(), strict=True
    ):
        values[tree, node] = values.get((tree, node), 0.0) + weight
    base = np.array(attributes.get("base_values", [0.0]), dtype=np.float64)
    constant = float(base[-1] - base[0] if len(classes) == 2 and len(base) == 2 else base[-1])
    ensemble = Ensemble(
        _onnx_trees(attributes, values),
        constant,
        inclusive=_MODES[modes.pop()] if modes else True,
        single=True,
        bits=24,
    )
    return ensemble, Link("logistic") if transform == "LOGISTIC" else Link("identity", usual=0.5 if share else 0.0)


def _onnx_trees(attributes: Mapping[str, Any], values: Mapping[tuple[int, int], float]) -> list[Tree]:
    owners = np.array(attributes["nodes_treeids"])
    names = ("nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
    ids, columns, left, right = (np.array(attributes[name]) for name in names)
    numbers = np.array(attributes["nodes_values"], dtype=np.float32).astype(np.float64)
    leaf = np.array([mode == b"LEAF" for mode in attributes["nodes_modes"]])
    missing = np.array(attributes.get("nodes_missing_value_tracks_true") or np.zeros(len(ids)), dtype=bool)
    trees = []
    for tree in dict.fromkeys(owners.tolist()):
        rows = np.flatnonzero(owners == tree)
        place = {int(each): n for n, each in enumerate(ids[rows])}
        ends = leaf[rows]
        trees.append(
            Tree(
                column=np.where(ends, -1, columns[rows]),
                threshold=numbers[rows],
                left=np.array([0 if end else place[int(n)] for n, end in zip(left[rows], ends, strict=True)]),
                right=np.array([0 if end else place[int(n)] for n, end in zip(right[rows], ends, strict=True)]),
                value=np.array([values.get((tree, int(n)), 0.0) for n in ids[rows]]),
                missing_left=missing[rows],
            )
        )
    return trees


def _linear(attributes: Mapping[str, Any]) -> tuple[Floats, float, Link]:
    """Read a linear classifier of two classes, of which the first row of numbers is the second one turned round."""
    rows = np.array(attributes["coefficients"], dtype=np.float64).reshape(2, -1)
    starts = np.array(attributes.get("intercepts", [0.0, 0.0]), dtype=np.float64)
    transform = attributes.get("post_transform", b"NONE").decode()
    factors = {"LOGISTIC": 1.0, "SOFTMAX": 2.0}
    if transform not in factors or (rows[0] != -rows[1]).any() or starts[0] != -starts[1]:
        raise NotOffered("model", got=f"a linear ONNX model with the transform {transform}", expected="a logistic one")
    return rows[1], float(starts[1]), Link("logistic", factors[transform])
