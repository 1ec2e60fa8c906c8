"""Decide who is accepted: by a model, or by a column of the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import EmptyDatabase, Suspicious, WrongShape, WrongType
from ..schema.features import is_missing, plain
from ..schema.frames import Columns
from ..schema.inference import repeated, repeating
from ..schema.schema import Schema
from ..schema.values import distinct


def accepted_rows(table: Columns, schema: Schema, model: Any, accepted: Any, *, anybody: bool = True) -> Any:
    """Return, for every row, whether it is accepted. With `anybody`, refuse a label that nobody has."""
    if model is None and accepted is None:
        raise WrongType("accepted", got="no model and no column", expected="one that says who is accepted")
    if model is None:
        column, label = accepted if isinstance(accepted, tuple) and len(accepted) == 2 else (accepted, None)
        if not isinstance(column, str):
            raise WrongType("accepted", got=type(column).__name__, expected="a column, or a pair of column and value")
        verdicts, what = _as_list(table.column(column)), f"column {column!r}"
    else:
        verdicts, label, what = _verdicts(table, schema, model), accepted, "model"
    if len(verdicts) != table.count:
        raise WrongShape(what, got=f"{len(verdicts)} verdicts", expected=f"one for each of {table.count} rows")
    odd = _those(lambda v: is_missing(v) or not isinstance(v, str | int | float), verdicts)
    if odd:
        raise WrongType(what, got=repr(odd[0])[:60], expected="a verdict for every row")
    if label is not None:
        if anybody and plain(label) not in set(verdicts):
            raise EmptyDatabase(what, got=f"no row with {label!r}", expected="at least one")
        return np.array([v == label for v in verdicts])
    odd = _those(lambda v: v not in (0, 1), verdicts)
    if odd:
        raise WrongType(what, got=repr(odd[0]), expected="True or False, 1 or 0; or say which label means accepted")
    return np.array([bool(v) for v in verdicts])


def _those(odd: Callable[[Any], bool], verdicts: list[Any]) -> list[Any]:
    """Return the odd ones of many verdicts, among which few are different."""
    different = distinct(verdicts)
    return [v for v in verdicts if odd(v)] if different is None or any(map(odd, different)) else []


def warn_of_repeats(table: Columns, schema: Schema, keep: Any) -> None:
    """Warn of features that repeat the verdict: every answer would be to change them."""
    warn_of(repeats(table, schema, keep))


def repeats(table: Columns, schema: Schema, keep: Any) -> list[str]:
    """Return the features that repeat the verdict."""
    return repeating(table, [feature.name for feature in schema.cost_features], keep)


def warn_of(names: list[str]) -> None:
    """Warn of these features."""
    for name in names:
        warnings.warn(repeated(name, "the verdict"), Suspicious, stacklevel=3)


def _verdicts(table: Columns, schema: Schema, model: Any) -> list[Any]:
    predict: Callable[[Any], Any] | None = getattr(model, "predict", None)
    if predict is not None:
        names = [str(n) for n in getattr(model, "feature_names_in_", schema.names)]
        return _as_list(predict(table.select(names)))
    if callable(model):
        return _as_list(model(table.select(table.names)))
    raise WrongType("model", got=type(model).__name__, expected="a classifier with predict, or a function")


def _as_list(values: Any) -> list[Any]:
    if np.ndim(values) == 2 and np.shape(values)[1] == 1:
        values = np.asarray(values)[:, 0]
    if not hasattr(values, "__iter__"):
        raise WrongType("model", got=type(values).__name__, expected="a verdict for every row")
    items = values.to_list() if hasattr(values, "to_list") else list(values)
    return [plain(item) for item in items]
