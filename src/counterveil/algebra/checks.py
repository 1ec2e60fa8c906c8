"""Check inputs: accept integers of the right shape and range, or raise one typed error."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..errors import EmptyDatabase, MissingValue, OutOfRange, WrongShape, WrongType
from .arrays import Integers


def integer(what: str, value: object, low: int, high: int | None = None) -> int:
    """Accept one integer in [low:high]."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise WrongType(what, got=type(value).__name__, expected="int")
    if value < low or (high is not None and value > high):
        raise OutOfRange(what, got=value, expected=f"at least {low}" if high is None else f"{low} to {high}")
    return int(value)


def flag(what: str, value: object) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool | np.bool):
        raise WrongType(what, got=type(value).__name__, expected="True or False")
    return bool(value)


def listed(what: str, values: object, expected: str) -> list[Any]:
    """Accept a sequence or an array of anything; refuse text, bytes, mappings and generators."""
    wrong = isinstance(values, str | bytes | bytearray) or (isinstance(values, np.ndarray) and not values.ndim)
    if wrong or not isinstance(values, Sequence | np.ndarray):
        raise WrongType(what, got=type(values).__name__, expected=expected)
    return list(values)


def integers(what: str, values: object, shape: tuple[int | None, ...]) -> Integers:
    """Accept an integer array of this shape, where None stands for any length.

    Floats, NaN, None, masked entries, booleans and ragged lists are refused, because they are not codes.
    """
    array = _array(what, values)
    if array.ndim != len(shape) or any(b is not None and a != b for a, b in zip(array.shape, shape, strict=True)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise WrongShape(what, got=f"shape {array.shape}", expected=f"({wanted})")
    return array


def rows(values: object, d: int | None = None) -> Integers:
    """Accept the rows of a database, M >= 1 of them, with d columns."""
    array = _array("rows", values)
    if array.ndim and not len(array):
        raise EmptyDatabase("rows", got="M = 0", expected="at least one row")
    return integers("rows", array, (None, d))


def _array(what: str, values: object) -> Integers:
    try:
        array = np.asarray(values)
    except ValueError:
        raise WrongShape(what, got="lists of unequal length", expected="a rectangular array") from None
    missing = array.dtype.kind == "f" and np.isnan(array).any()
    parts = values if isinstance(values, list | tuple) else [values]
    if missing or any(map(np.ma.is_masked, parts)) or (array.dtype.kind == "O" and any(map(_is_nothing, array.flat))):
        raise MissingValue(what, got="NaN or None", expected="integers")
    if array.dtype.kind not in "iu" and array.size:
        raise WrongType(what, got=f"dtype {array.dtype}", expected="integers")
    return cast(Integers, array)


def _is_nothing(value: object) -> bool:
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def in_range(what: str, values: Integers, low: int, high: int | Sequence[int] | None = None) -> None:
    """Refuse values outside [low:high]; `high` is one bound, one for each entry of a row, or none."""
    top = np.asarray(np.iinfo(values.dtype).max if high is None else high)
    if not values.size or (int(values.min()) >= low and int(values.max()) <= int(top.min())):
        return
    if int(values.min()) < low or np.any(values > top):
        where = tuple(int(i) for i in np.argwhere((values < low) | (values > top))[0])
        expected = f"at least {low}" if high is None else f"{low} to {int(np.broadcast_to(top, values.shape)[where])}"
        raise OutOfRange(f"{what}{list(where)}", got=int(values[where]), expected=expected)


def renamed(old: str, new: str, given: Any, parameters: dict[str, Any]) -> Any:
    """Return the value given under the new name, or take it from `parameters` under the old name, with a warning."""
    if old not in parameters:
        return given
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=3)
    return parameters.pop(old)
