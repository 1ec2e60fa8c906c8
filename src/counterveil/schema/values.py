"""Values as they come: which are missing, which are numbers, and which may be a category of a schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WrongType

Value = str | int | float | bool | None
Plain = str | int | float | bool

MOST_LEVELS = 65_534  # so that a code with its missing level fits two bytes
LONGEST_TEXT = 200  # characters of a name, a label, a unit, a category
FARTHEST = 1e300  # `low` and `high` are no farther from 0, so that their difference is finite
_MOST_WHOLE = 2**63 - 1  # a category that is a whole number is no larger


def is_missing(value: Any) -> bool:
    """Tell whether a value is None, NaN, or a data frame's own mark for nothing."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # a comparison with pandas.NA has no truth value
        return True
    except (ArithmeticError, ValueError):  # a signalling NaN or an array: not missing, and refused later
        return False


def missing_of(values: Sequence[Any]) -> NDArray[np.bool_]:
    """Tell for every value whether it is missing."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    different = distinct(values)
    if different is not None and not any(is_missing(v) for v in different):
        return np.zeros(len(values), dtype=bool)
    return np.fromiter((is_missing(v) for v in values), dtype=bool, count=len(values))


def distinct(values: Sequence[Any]) -> set[Any] | None:
    """Return the different ones of many values; None if some, such as lists, cannot be told apart quickly."""
    try:
        return set(values.tolist() if isinstance(values, np.ndarray) else values)
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """Return a value as plain Python, so that 1, 1.0, numpy.int64(1) and True look up alike."""
    return value.item() if isinstance(value, np.generic) else value


def as_numbers(what: str, values: Sequence[Any]) -> NDArray[np.float64]:
    """Accept numbers, or refuse: text, dates and truth values are not numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            if isinstance(value, bool | np.bool) or not isinstance(value, Real | Decimal):
                raise TypeError
            numbers[row] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise WrongType(what, row=row, got=repr(value)[:60], expected="a number") from None
    return numbers


def short(value: object) -> str:
    """Write a value for an error message, or its beginning if it is long."""
    if isinstance(value, int) and abs(value) > _MOST_WHOLE:
        return f"a whole number of {value.bit_length()} bits"
    return repr(value)[:60]


def as_float(what: str, value: Any) -> float:
    """Return a field of a schema as a float, so that 1 and 1.0 make the same schema, byte for byte."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what}: got {short(value)}, expected a number within {FARTHEST:g} of 0") from None


def check_text(what: str, text: object) -> None:
    """Refuse what is no text, or is longer than a schema may say."""
    if not isinstance(text, str):
        raise ValueError(f"{what}: got {short(text)}, expected text")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{what}: got {len(text)} characters, expected at most {LONGEST_TEXT}")


def is_category(value: object) -> bool:
    """Tell whether a value may be a category: short text, a finite number of up to 64 bits, or a truth value."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) <= _MOST_WHOLE


def check_values(values: Sequence[Plain]) -> None:
    """Refuse a list of values that cannot be the levels of a feature."""
    if not isinstance(values, tuple):
        raise ValueError(f"values: got {short(values)}, expected text, numbers or truth values")
    if not values:
        raise ValueError("values: got none, expected at least one")
    if len(values) > MOST_LEVELS:
        raise ValueError(f"values: got {len(values)}, expected at most {MOST_LEVELS}")
    for value in values:  # before any look-up: integers of any size can be chosen to have the same hash
        if not isinstance(value, str | int | float):
            raise ValueError(f"values: got {short(value)}, expected text, numbers or truth values")
        if isinstance(value, str):
            check_text("values", value)
        elif not is_category(value):
            raise ValueError(f"values: got {short(value)}, expected finite numbers within 2**63 of 0")
    if len(set(values)) != len(values):
        raise ValueError("values: got one twice, expected each once")
