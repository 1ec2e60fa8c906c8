"""What an estimator gets at each level of each feature, after the model's own preprocessing.

Taken are scalers, imputers and encoders of categories, each of which works on one column at a time and keeps the order
of numbers. The model's own code transforms the ends of every level, so that what is certified is what it computes,
rounding included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import NotOffered
from ...schema.features import Feature, Numeric, Value, is_missing, plain
from ...schema.frames import Columns, rows_as_frame
from ...schema.schema import Schema
from .cells import ends
from .ensembles import Column, Floats

_SCALERS = {"StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "SimpleImputer"}  # keep the order
_ENCODERS = {"OneHotEncoder", "OrdinalEncoder", "TargetEncoder"}  # do not, and are taken for listed values alone
_CHANGED = "\0"  # no column's name


def columns_of_model(
    model: Any, names: Sequence[str], table: Columns, schema: Schema, *, open_ended: bool = True
) -> tuple[list[Column], NDArray[np.bool_], list[tuple[bool, bool]]]:
    """Return the estimator's inputs, which levels the model takes, and whose end levels hold all that lies beyond.

    With `open_ended` those of every number do, unless the model's preprocessing fails for the farthest numbers.
    """
    beyond = [(True, True)] * len(schema.features)
    seen = _Inputs(model, {name: plain(table.column(name)[0]) for name in names}, table)
    base = seen.of([seen.base])[0]
    found: dict[int, Column] = {}
    decided: list[NDArray[np.bool_]] = []
    for j, feature in enumerate(schema.features):
        if feature.name not in names:
            decided.append(np.ones(feature.largest + 1, dtype=bool))
            continue
        low, high, taken, far = seen.levels(feature, open_ended)
        beyond[j] = (far, far)
        decided.append(taken)
        same = (low == base) & (high == base) | (np.isnan(low) & np.isnan(base))
        for k in np.flatnonzero(~same[taken].all(axis=0)).tolist():
            if k in found:
                other = schema.features[found[k].feature].name
                raise NotOffered("model", got=f"an input made of {other} and {feature.name}", expected="of one column")
            found[k] = Column(j, low[:, k], high[:, k])
    fixed = {k: Column(-1, base[k : k + 1], base[k : k + 1]) for k in range(len(base)) if k not in found}
    return [(found | fixed)[k] for k in range(len(base))], np.concatenate(decided), beyond


def name_of(model: Any) -> str:
    """Return what kind of thing a model or one of its steps is."""
    return type(model).__name__


class _Inputs:
    """What the estimator gets for people who differ from one of the data in a single column."""

    def __init__(self, model: Any, base: dict[str, Any], table: Columns) -> None:
        self.model, self.base, self._table = model, base, table
        self._transform = model[:-1].transform if name_of(model) == "Pipeline" and len(model.steps) > 1 else None

    def of(self, people: Sequence[Mapping[str, Any]]) -> Floats:
        """Return the estimator's inputs for people, one row each."""
        frame = self._frame(people)
        with np.errstate(over="ignore"):
            made = self._transform(frame) if self._transform else Columns(frame).frame.to_numpy()
        made = made.toarray() if hasattr(made, "toarray") else made
        return np.asarray(made, dtype=np.float64)

    def _frame(self, people: Sequence[Mapping[str, Any]]) -> Any:
        return rows_as_frame({name: [person[name] for person in people] for name in self.base}, self._table)

    def levels(self, feature: Feature, open_ended: bool) -> tuple[Floats, Floats, NDArray[np.bool_], bool]:
        """Return the lowest and the highest inputs of every level, which levels are taken, and if ends are open."""
        width = len(self.of([self.base])[0])
        low, high = np.zeros((2, feature.largest + 1, width))
        taken = np.ones(feature.largest + 1, dtype=bool)
        if isinstance(feature, Numeric):
            try:
                sides = self._ends(feature, open_ended)
            except Exception:  # the model's own code, which may refuse numbers that overflow
                if not open_ended:
                    raise
                open_ended = False
                sides = self._ends(feature, open_ended)
            low[: feature.steps + 1], high[: feature.steps + 1] = np.minimum(*sides), np.maximum(*sides)
        codes = range(feature.steps + 1 if isinstance(feature, Numeric) else 0, feature.largest + 1)
        for code, inputs in zip(
            codes, self._taken([self._person(feature, feature.value(c)) for c in codes]), strict=True
        ):
            taken[code] = inputs is not None
            low[code] = high[code] = 0.0 if inputs is None else inputs
        return low, high, taken, open_ended or not isinstance(feature, Numeric)

    def _ends(self, feature: Numeric, open_ended: bool) -> list[Floats]:
        """Return the inputs at both ends of every level of a number."""
        return [self.of([self._person(feature, v) for v in side]) for side in ends(feature, open_ended=open_ended)]

    def _taken(self, people: Sequence[Mapping[str, Any]]) -> list[Floats | None]:
        """Return the estimator's inputs for each person, None where the model does not take them."""
        try:
            self.model.predict(self._frame(people))
            return list(self.of(people))
        except Exception:  # the model's own code: a value that it does not take makes it fail in any way
            return [None] if len(people) == 1 else [each for person in people for each in self._taken([person])]

    def _person(self, feature: Feature, value: Value) -> dict[str, Any]:
        return self.base | {feature.name: value}


# --- which preprocessing is taken ------------------------------------------------------------------------------------


def check_steps(steps: Sequence[Any], names: Sequence[str], schema: Schema) -> None:
    """Refuse preprocessing that could mix columns, or that does not keep the order of numbers."""
    for step in steps:
        _check_step(step, names, schema)
        if name_of(step) in _ENCODERS | {"ColumnTransformer", "Pipeline"}:
            names = [_CHANGED]  # columns have moved, so that only what keeps the order of all of them may follow


def _check_step(step: Any, names: Sequence[str], schema: Schema) -> None:
    if isinstance(step, str) or step is None:  # "passthrough", "drop"
        return
    kind = name_of(step)
    if kind == "Pipeline":
        check_steps([inner for _, inner in step.steps], names, schema)
    elif names == [_CHANGED] and kind not in _SCALERS:
        raise NotOffered("model", got=f"{kind} after columns were encoded or put in order", expected="scalers alone")
    elif kind == "SimpleImputer" and not is_missing(step.missing_values):
        raise NotOffered("model", got=f"an imputer of {step.missing_values!r}", expected="of missing values alone")
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
