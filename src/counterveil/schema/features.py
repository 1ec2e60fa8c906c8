"""The kinds of feature in a schema. Each kind has levels, and turns values into codes and codes into values.

Security: public. A feature's range and levels are known to everyone who asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Vector
from ..errors import InvalidInput, MissingValue, OutOfRange, UnknownValue, WrongType

Value = str | int | float | bool | None
Plain = str | int | float | bool

_ROLES, _MISSING, _ENCODINGS = ("feature", "record"), ("refuse", "level"), ("mismatch", "one-hot")

MOST_LEVELS = 65_534  # so that a code with its missing level fits two bytes
LONGEST_TEXT = 200  # characters of a name, a label, a unit, a category
_FARTHEST = 1e300  # `low` and `high` are no farther from 0, so that their difference is finite
_MOST_WHOLE = 2**63 - 1  # a category that is a whole number is no larger
_FORMAT = re.compile(r",?(?:\.1?[0-9])?[feg%]?")  # without a width: one of 2000000000 would be 2 GB of spaces


class _Common(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """What all kinds have: a name, a label for people, a role, and what a missing value means.

    Security: whoever asks a server reads its schema, so everything in it is bounded, and checked before it is used.
    """

    name: str
    label: str = ""
    role: Literal["feature", "record"] = "feature"  # "record": shown with the row, not part of its cost
    missing: Literal["refuse", "level"] = "refuse"

    def __post_init__(self) -> None:
        _check_text("name", self.name)
        _check_text("label", self.label)
        if not self.name or not self.name.isprintable():
            raise ValueError(f"name: got {self.name!r}, expected a column's name")
        for name, choices in (("role", _ROLES), ("missing", _MISSING)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        self._check()

    def _check(self) -> None:
        """Refuse fields that contradict each other."""

    @property
    def title(self) -> str:
        """The feature's name as people read it."""
        return self.label or self.name.replace("_", " ")

    @property
    def steps(self) -> int:
        """R, the largest code of a value that is not missing."""
        return max(1, len(self._listed()) - 1)

    @property
    def largest(self) -> int:
        """The largest code: R, or R + 1 where missing values have a level of their own."""
        return self.steps + (self.missing == "level")

    @property
    def ordered(self) -> bool:
        """Whether levels have an order, so that up and down mean something."""
        return True

    def codes(self, values: Sequence[Any], *, clamp: bool = False) -> Vector:
        """Return the code of every value; refuse a value that has no code, and name its row."""
        absent = _missing(values)
        if absent.any() and self.missing == "refuse":
            raise MissingValue(self.name, row=int(np.argmax(absent)), got="nothing", expected=self._expected())
        codes = np.full(len(values), self.steps + 1, dtype=np.int64)
        present = np.flatnonzero(~absent)
        if absent.any():
            values = values[present] if isinstance(values, np.ndarray) else [values[int(i)] for i in present]
        try:
            codes[present] = self._codes(values, clamp)
        except InvalidInput as error:
            raise error if error.row is None else error.at(error.what, int(present[error.row])) from None
        return codes

    def _codes(self, values: Sequence[Any], clamp: bool) -> Vector:
        """Return the codes of values, none of which is missing."""
        lookup = {plain(value): code for code, value in enumerate(self._listed())}
        codes = np.fromiter((_find(lookup, v) for v in values), dtype=np.int64, count=len(values))
        if (codes < 0).any():
            first = int(np.argmax(codes < 0))
            raise UnknownValue(self.name, row=first, got=repr(values[first]), expected=self._expected())
        return codes

    def _listed(self) -> Sequence[Plain]:
        return ()

    def _expected(self) -> str:
        listed = [repr(v) for v in self._listed()]
        return "one of " + ", ".join(listed[:12]) + (", …" if len(listed) > 12 else "")

    def value(self, code: int) -> Value:
        """Return the value that a code stands for; None for the missing level."""
        return None if code > self.steps else self._value(code)

    def _value(self, code: int) -> Value:
        return self._listed()[min(code, len(self._listed()) - 1)]

    def given(self, value: Any) -> Value:
        """Return a person's own value as plain Python: None if missing, a number for a number."""
        return None if is_missing(value) else self._given(plain(value))

    def _given(self, value: Any) -> Value:
        return self._listed()[int(self.codes([value])[0])]

    def show(self, value: Value) -> str:
        """Write a value as people read it."""
        return "not given" if is_missing(value) else self._show(value)

    def _show(self, value: Value) -> str:
        return str(value)


class Numeric(_Common, frozen=True, kw_only=True, tag="numeric"):
    """A number from `low` to `high`, cut into `levels` equal parts (codes 0..levels) or steps of `step`.

    With `log` the parts are equal on a logarithmic scale. `mad` is the median absolute deviation that the metric of
    that name divides by.
    """

    low: float
    high: float
    levels: int | None = None
    step: float | None = None
    unit: str = ""
    format: str = ""
    log: bool = False
    mad: float | None = None

    def _check(self) -> None:
        _check_text("unit", self.unit)
        _check_text("format", self.format)
        if not _FORMAT.fullmatch(self.format):
            expected = "a format such as ',.0f': a comma or none, up to 19 places, and one of f, e, g, % or none"
            raise ValueError(f"format: got {self.format!r}, expected {expected}")
        for name in ("low", "high", "step", "mad"):  # so that 1 and 1.0 make the same schema, byte for byte
            if getattr(self, name) is not None:
                msgspec.structs.force_setattr(self, name, _as_float(name, getattr(self, name)))
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"high: got {self.high}, expected a number above low = {self.low}")
        if max(abs(self.low), abs(self.high)) > _FARTHEST:
            raise ValueError(f"low: got {self.low} to {self.high}, expected numbers within {_FARTHEST:g} of 0")
        if (self.levels is None) == (self.step is None):
            raise ValueError("levels: got both levels and step or neither, expected one of them")
        if self.step is not None:
            parts = (self.high - self.low) / self.step if self.step > 0 else 0.5
            if self.log or not parts < MOST_LEVELS + 1 or not math.isclose(parts, round(parts), rel_tol=1e-9):
                raise ValueError(f"step: got {self.step}, expected a number that divides high - low, and no log")
        if isinstance(self.levels, bool) or not isinstance(self.levels, int | None):
            raise ValueError(f"levels: got {self.levels!r}, expected a whole number")
        if not 1 <= self.steps <= MOST_LEVELS:
            raise ValueError(f"levels: got {_short(self.steps)}, expected 1 to {MOST_LEVELS}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: got {self.low}, expected a number above 0, since log is true")
        if self.log and not 1 < self.high / self.low < math.inf:
            expected = f"a finite multiple of low = {self.low}, above 1, since log is true"
            raise ValueError(f"high: got {self.high}, expected {expected}")
        if self.mad is not None and not 0 < self.mad < math.inf:
            raise ValueError(f"mad: got {self.mad}, expected a number above 0")

    @property
    def steps(self) -> int:
        """R, the largest code of a value that is not missing."""
        return self.levels if self.levels is not None else round((self.high - self.low) / (self.step or 1))

    def _codes(self, values: Sequence[Any], clamp: bool) -> Vector:
        numbers = as_numbers(self.name, values)
        slack = 1e-9 * (self.high - self.low)
        outside = ~((numbers >= self.low - slack) & (numbers <= self.high + slack))
        if outside.any() and not (clamp and np.isfinite(numbers).all()):
            first = int(np.argmax(outside))
            raise OutOfRange(self.name, row=first, got=numbers[first], expected=self._expected())
        return np.rint(self.position(numbers) * self.steps).astype(np.int64)

    def position(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return where numbers lie between low (0) and high (1). Numbers outside count as low or high."""
        numbers = np.clip(numbers, self.low, self.high)
        if self.log:
            return np.log(numbers / self.low) / math.log(self.high / self.low)
        return (numbers - self.low) / (self.high - self.low)

    def _expected(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def _value(self, code: int) -> Value:
        part = code / self.steps
        if self.log:
            return float(self.low * (self.high / self.low) ** part)
        return float(f"{self.low + (self.high - self.low) * part:.15g}")

    def numbers(self) -> NDArray[np.float64]:
        """Return the number that every code stands for. The missing level, which stands for none, gets the highest."""
        return np.array([self._value(min(code, self.steps)) for code in range(self.largest + 1)], dtype=np.float64)

    def _given(self, value: Any) -> Value:
        return value if isinstance(value, int) else float(value)

    def _show(self, value: Value) -> str:
        if self.format == ",":
            number = f"{value:,}"  # an integer is shown without decimals
        else:
            number = format(float(value or 0), self.format) if self.format else self._digits(float(value or 0))
        return f"{number} {self.unit}".strip()

    def _digits(self, value: float) -> str:
        """Write a number with as many decimals as a step has, or with about four digits if it lies between steps."""
        shown = format(value, self._format())
        if self.log or not math.isclose(float(shown.replace(",", "")), value, rel_tol=1e-9, abs_tol=1e-12):
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        return shown

    def _format(self) -> str:
        """Return a format with as many decimals as a step has, or two significant digits if a step has too many."""
        width = (self.high - self.low) / self.steps
        decimals = next((n for n in range(6) if math.isclose(round(width, n), width, rel_tol=1e-9)), None)
        return f",.{max(0, 1 - math.floor(math.log10(width))) if decimals is None else decimals}f"


class Ordinal(_Common, frozen=True, kw_only=True, tag="ordinal"):
    """One of the values listed, from the least to the most."""

    values: tuple[Plain, ...]

    def _check(self) -> None:
        _check_values(self.values)

    def _listed(self) -> Sequence[Plain]:
        return self.values


class Categorical(Ordinal, frozen=True, kw_only=True, tag="categorical"):
    """One of the values listed, in no order. A change costs 1, or 2 with one-hot encoding (two columns change)."""

    encoding: Literal["mismatch", "one-hot"] = "mismatch"

    def _check(self) -> None:
        super()._check()
        if self.encoding not in _ENCODINGS:
            raise ValueError(f"encoding: got {self.encoding!r}, expected one of {', '.join(_ENCODINGS)}")

    @property
    def ordered(self) -> bool:
        """Whether levels have an order: no."""
        return False


class Boolean(_Common, frozen=True, kw_only=True, tag="boolean"):
    """Yes or no; 1 and 0 are understood."""

    def _listed(self) -> Sequence[Plain]:
        return (False, True)

    def _show(self, value: Value) -> str:
        return "yes" if value else "no"


Feature = Numeric | Ordinal | Categorical | Boolean


def _find(lookup: dict[Any, int], value: Any) -> int:
    try:
        return lookup.get(plain(value), -1)
    except TypeError:  # a list, or something else that cannot be a category
        return -1


def is_missing(value: Any) -> bool:
    """Tell whether a value is None, NaN, or a data frame's own mark for nothing."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # a comparison with pandas.NA has no truth value
        return True
    except (ArithmeticError, ValueError):  # a signalling NaN or an array: not missing, and refused later
        return False


def _missing(values: Sequence[Any]) -> NDArray[np.bool_]:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    return np.fromiter((is_missing(v) for v in values), dtype=bool, count=len(values))


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


def _short(value: object) -> str:
    """Write a value for an error message, or its beginning if it is long."""
    if isinstance(value, int) and abs(value) > _MOST_WHOLE:
        return f"a whole number of {value.bit_length()} bits"
    return repr(value)[:60]


def _as_float(what: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{what}: got {_short(value)}, expected a number within {_FARTHEST:g} of 0") from None


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what}: got {_short(text)}, expected text")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{what}: got {len(text)} characters, expected at most {LONGEST_TEXT}")


def is_category(value: object) -> bool:
    """Tell whether a value may be a category: short text, a finite number of up to 64 bits, or a truth value."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) <= _MOST_WHOLE


def _check_values(values: Sequence[Plain]) -> None:
    if not isinstance(values, tuple):
        raise ValueError(f"values: got {_short(values)}, expected text, numbers or truth values")
    if not values:
        raise ValueError("values: got none, expected at least one")
    if len(values) > MOST_LEVELS:
        raise ValueError(f"values: got {len(values)}, expected at most {MOST_LEVELS}")
    for value in values:  # before any look-up: integers of any size can be chosen to have the same hash
        if not isinstance(value, str | int | float):
            raise ValueError(f"values: got {_short(value)}, expected text, numbers or truth values")
        if isinstance(value, str):
            _check_text("values", value)
        elif not is_category(value):
            raise ValueError(f"values: got {_short(value)}, expected finite numbers within 2**63 of 0")
    if len(set(values)) != len(values):
        raise ValueError("values: got one twice, expected each once")
