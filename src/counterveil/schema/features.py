"""The kinds of feature in a schema. Each kind has levels, and turns values into codes and codes into values.

Security: public. A feature's range and levels are known to everyone who asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Vector
from ..errors import InvalidInput, MissingValue, OutOfRange, UnknownValue
from .languages import Text, Texts, check_labels, check_languages, in_english, labels_in_english
from .values import (
    FARTHEST,
    LONGEST_TEXT,
    MOST_LEVELS,
    Plain,
    Value,
    as_float,
    as_numbers,
    check_text,
    check_values,
    distinct,
    is_category,
    is_missing,
    missing_of,
    plain,
    short,
)

_ROLES, _MISSING, _ENCODINGS = ("feature", "record"), ("refuse", "level"), ("mismatch", "one-hot")
_CHANGES = ("any", "up", "down", "never")

MOST_EFFORT = 1000  # the largest `effort`; a deployment's largest weight bounds it further
_FORMAT = re.compile(r",?(?:\.1?[0-9])?[feg%]?")  # without a width: one of 2000000000 would be 2 GB of spaces


class _Common(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """What all kinds have: a name, a label for people, a role, what a missing value means, and who may change it how.

    The page shows features of one `group` together, under that heading.

    `change` says in which direction a value can change at all, for everybody who asks, and `effort` how hard that is:
    the weight of whoever gives none. With `override`, applicants may say otherwise; without, they may only be stricter.

    Security: whoever asks a server reads its schema, so everything in it is bounded, and checked before it is used.
    """

    name: str
    label: Text = ""
    group: Text = ""
    role: Literal["feature", "record"] = "feature"  # "record": shown with the row, not part of its cost
    missing: Literal["refuse", "level"] = "refuse"
    change: Literal["any", "up", "down", "never"] = "any"
    effort: int = 1
    override: bool = False

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_languages("label", self.label)
        check_languages("group", self.group)
        if not self.name or not self.name.isprintable():
            raise ValueError(f"name: got {self.name!r}, expected a column's name")
        for name, choices in (("role", _ROLES), ("missing", _MISSING), ("change", _CHANGES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        if self.change in ("up", "down") and not self.ordered:
            raise ValueError(f"change: got {self.change!r} for values without an order, expected any or never")
        if isinstance(self.effort, bool) or not isinstance(self.effort, int) or not 1 <= self.effort <= MOST_EFFORT:
            raise ValueError(f"effort: got {short(self.effort)}, expected a whole number from 1 to {MOST_EFFORT}")
        if not isinstance(self.override, bool):
            raise ValueError(f"override: got {short(self.override)}, expected true or false")
        self._check()

    def _check(self) -> None:
        """Refuse fields that contradict each other."""

    @property
    def title(self) -> str:
        """The feature's name as people read it."""
        return in_english(self.label, self.name.replace("_", " "))

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
        absent = missing_of(values)
        if not absent.any():
            return self._codes(values, clamp)
        if self.missing == "refuse":
            raise MissingValue(self.name, row=int(np.argmax(absent)), got="nothing", expected=self._expected())
        codes = np.full(len(values), self.steps + 1, dtype=np.int64)
        present = np.flatnonzero(~absent)
        values = values[present] if isinstance(values, np.ndarray) else [values[int(i)] for i in present]
        try:
            codes[present] = self._codes(values, clamp)
        except InvalidInput as error:
            raise error if error.row is None else error.at(error.what, int(present[error.row])) from None
        return codes

    def _codes(self, values: Sequence[Any], clamp: bool) -> Vector:
        """Return the codes of values, none of which is missing."""
        lookup = {plain(value): code for code, value in enumerate(self._listed())}
        different = distinct(values)
        if different is None:
            found: Iterator[int] = (_find(lookup, v) for v in values)
        else:
            found = map({v: _find(lookup, v) for v in different}.__getitem__, values)
        codes = np.fromiter(found, dtype=np.int64, count=len(values))
        if (codes < 0).any():
            first = int(np.argmax(codes < 0))
            raise UnknownValue(self.name, row=first, got=repr(values[first]), expected=self._expected())
        return codes

    def _listed(self) -> Sequence[Plain]:
        return ()

    def _expected(self) -> str:
        shown = [(v, self.show(v)) for v in self._listed()]
        listed = [repr(v) if text == str(v) else f"{v!r} ({text})" for v, text in shown]
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

    With `log` the parts are equal on a logarithmic scale. With `points` the levels are these numbers, from `low` to
    `high`, such as quantiles. `mad` is the median absolute deviation that the metric of that name divides by.
    """

    low: float
    high: float
    levels: int | None = None
    step: float | None = None
    points: tuple[float, ...] | None = None
    unit: Text = ""
    format: str = ""
    log: bool = False
    mad: float | None = None

    def _check(self) -> None:
        check_languages("unit", self.unit)
        check_text("format", self.format)
        if not _FORMAT.fullmatch(self.format):
            expected = "a format such as ',.0f': a comma or none, up to 19 places, and one of f, e, g, % or none"
            raise ValueError(f"format: got {self.format!r}, expected {expected}")
        for name in ("low", "high", "step", "mad"):  # so that 1 and 1.0 make the same schema, byte for byte
            if getattr(self, name) is not None:
                msgspec.structs.force_setattr(self, name, as_float(name, getattr(self, name)))
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"high: got {self.high}, expected a number above low = {self.low}")
        if max(abs(self.low), abs(self.high)) > FARTHEST:
            raise ValueError(f"low: got {self.low} to {self.high}, expected numbers within {FARTHEST:g} of 0")
        if [self.levels, self.step, self.points].count(None) != 2:
            raise ValueError("levels: got both levels and step or neither, expected one of levels, step and points")
        if self.points is not None:
            self._check_points(self.points)
        if self.step is not None:
            parts = (self.high - self.low) / self.step if self.step > 0 else 0.5
            if self.log or not parts < MOST_LEVELS + 1 or not math.isclose(parts, round(parts), rel_tol=1e-9):
                raise ValueError(f"step: got {self.step}, expected a number that divides high - low, and no log")
        if isinstance(self.levels, bool) or not isinstance(self.levels, int | None):
            raise ValueError(f"levels: got {self.levels!r}, expected a whole number")
        if not 1 <= self.steps <= MOST_LEVELS:
            raise ValueError(f"levels: got {short(self.steps)}, expected 1 to {MOST_LEVELS}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: got {self.low}, expected a number above 0, since log is true")
        if self.log and not 1 < self.high / self.low < math.inf:
            expected = f"a finite multiple of low = {self.low}, above 1, since log is true"
            raise ValueError(f"high: got {self.high}, expected {expected}")
        if self.mad is not None and not 0 < self.mad < math.inf:
            raise ValueError(f"mad: got {self.mad}, expected a number above 0")

    def _check_points(self, points: Sequence[Any]) -> None:
        expected = f"numbers that rise from low = {self.low} to high = {self.high}"
        if not isinstance(points, tuple) or not all(isinstance(p, int | float) for p in points):
            raise ValueError(f"points: got {short(points)}, expected {expected}")
        numbers = tuple(as_float("points", p) for p in points)
        rising = all(a < b for a, b in pairwise(numbers))
        if self.log or not rising or numbers[:1] + numbers[-1:] != (self.low, self.high):
            raise ValueError(f"points: got {short(numbers)}, expected {expected}, and no log")
        msgspec.structs.force_setattr(self, "points", numbers)

    @property
    def measure(self) -> str:
        """The unit as people read it."""
        return in_english(self.unit)

    @property
    def steps(self) -> int:
        """R, the largest code of a value that is not missing."""
        if self.points is not None:
            return len(self.points) - 1
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
        numbers = np.minimum(np.maximum(numbers, self.low), self.high)
        if self.log:
            return np.log(numbers / self.low) / math.log(self.high / self.low)
        if self.points is not None:
            points = np.array(self.points)
            below = np.clip(np.searchsorted(points, numbers, side="right") - 1, 0, self.steps - 1)
            return np.asarray((below + (numbers - points[below]) / (points[below + 1] - points[below])) / self.steps)
        return (numbers - self.low) / (self.high - self.low)

    def _expected(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def _value(self, code: int) -> Value:
        if self.points is not None:
            return self.points[code]
        part = code / self.steps
        if self.log:
            return float(self.low * (self.high / self.low) ** part)
        return float(f"{self.low + (self.high - self.low) * part:.15g}")

    def coarser(self, most: int) -> Numeric:
        """Return the feature with this many levels, fewer than it has."""
        if self.points is None:
            return msgspec.structs.replace(self, levels=most, step=None)
        kept = np.rint(np.linspace(0, self.steps, most + 1)).astype(int).tolist()
        return msgspec.structs.replace(self, points=tuple(self.points[n] for n in kept))

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
        return f"{number} {self.measure}".strip()

    def _digits(self, value: float) -> str:
        """Write a number with as many decimals as a step has, or with about four digits if it lies between steps."""
        shown = format(value, self._format())
        if self.log or not math.isclose(float(shown.replace(",", "")), value, rel_tol=1e-9, abs_tol=1e-12):
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        return shown

    def _format(self) -> str:
        """Return a format with as many decimals as a step has, or two significant digits if a step has too many."""
        width = (self.high - self.low) / self.steps
        if self.points is not None:
            width = min(b - a for a, b in pairwise(self.points))
        decimals = next((n for n in range(6) if math.isclose(round(width, n), width, rel_tol=1e-9)), None)
        return f",.{max(0, 1 - math.floor(math.log10(width))) if decimals is None else decimals}f"


class Ordinal(_Common, frozen=True, kw_only=True, tag="ordinal"):
    """One of the values listed, from the least to the most. `labels` say how people read them."""

    values: tuple[Plain, ...]
    labels: Texts = ()

    def _check(self) -> None:
        check_values(self.values)
        check_labels(self.labels, len(self.values))

    def _listed(self) -> Sequence[Plain]:
        return self.values

    def _show(self, value: Value) -> str:
        labels = labels_in_english(self.labels)
        return labels[self.values.index(value)] if labels and value in self.values else str(value)


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

__all__ = [
    "FARTHEST",
    "LONGEST_TEXT",
    "MOST_LEVELS",
    "Boolean",
    "Categorical",
    "Feature",
    "Numeric",
    "Ordinal",
    "Plain",
    "Value",
    "as_numbers",
    "is_category",
    "is_missing",
    "plain",
]


def _find(lookup: dict[Any, int], value: Any) -> int:
    try:
        return lookup.get(plain(value), -1)
    except TypeError:  # a list, or something else that cannot be a category
        return -1
