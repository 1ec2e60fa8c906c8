"""Guess features from data, say which columns are left out and why, and what looks wrong.

Security: what is guessed becomes public. Ranges, values, points and `mad` are read off the data, and are rounded.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from ..errors import MissingValue, OutOfRange
from .features import Boolean, Categorical, Feature, Numeric, Ordinal, is_category, is_missing, plain
from .frames import Columns

_CROWDED = 0.99  # of the rows in one level: such a feature tells nearly nobody apart
_FEW_VALUES = 20  # a column of up to so many values is a category, however few its rows are
_MOST_VALUES = 500  # a column of text with more values is taken for free text
_MOST_POSTCODES = 5000
_WORDY = 3  # words in a value, on average: above it, many values are free text
_SURE = 20  # rows from which on a pattern is no chance
_PER_QUANTILE = 20  # rows in a level between quantiles, at least, so that a point tells little of one person
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
_IDS = {"id", "ids", "uuid", "guid", "index", "rowid", "rownum", "unnamed"}
_POSTCODES = {"postcode", "postalcode", "zip", "zipcode", "plz", "postleitzahl"}
_RULES: list[tuple[set[str], Any, str]] = [  # words in a column's name, what is proposed for it, and why
    ({"age"}, "up", "nobody gets younger"),
    ({"tenure", "seniority", "experience"}, "up", "it grows with time, and nobody gains by losing it"),
    ({"sex", "gender", "male", "female", "man", "woman"}, "never", "nobody should be told to change sex"),
    ({"race", "ethnicity", "ethnic"}, "never", "nobody can change origin"),
    ({"nationality", "citizenship", "foreign"}, "never", "nobody should be told to change nationality"),
    ({"marital", "married", "civil", "divorced", "widowed"}, "never", "nobody should be told to marry or to divorce"),
    ({"religion", "disability", "disabled", "birth", "born", "birthday"}, "never", "it is not for anybody to change"),
]
_TELLING = {"male", "female", "man", "woman", "married", "divorced", "widowed"}  # words in values, whatever the name is


@dataclass
class Guess:
    """What was guessed of a frame."""

    features: list[Feature] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # columns, and why
    notices: list[str] = field(default_factory=list)  # what looks wrong


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to guess: the fields are arguments of `Schema.infer`."""

    exclude: Collection[str]
    include: Collection[str]
    quantiles: Collection[str]
    most_levels: int
    round_outwards: bool


def guess(table: Columns, options: Options) -> Guess:
    """Guess the feature of every column that is not excluded."""
    made = Guess()
    for name in table.names:
        if name in options.exclude:
            continue
        values = table.present(name)
        found = _feature(table, name, values, options)
        if isinstance(found, str):
            made.left_out[name] = found
            continue
        made.features.append(_ruled(found))
        if isinstance(found, Numeric):
            numbers = np.array([float(v) for v in values])
            codes = found.codes(numbers[np.isfinite(numbers)])
            notice = crowded(found, np.bincount(codes))
            together = numbers[np.isfinite(numbers)][codes == np.bincount(codes).argmax()]
            made.notices += [notice] if notice and (together != together[0]).any() else []
    for verdict in options.exclude:
        names = [feature.name for feature in made.features]
        made.notices += [repeated(name, verdict) for name in repeating(table, names, table.column(verdict))]
    return made


def why(feature: Feature) -> str:
    """Say why a change is proposed for a feature of this name; nothing where none is, or another one was chosen."""
    change, reason = _proposed(feature)
    return reason if feature.change == change != "any" else ""


def _ruled(feature: Feature) -> Feature:
    change, _ = _proposed(feature)
    return feature if change == "any" else type(feature)(**(_fields(feature) | {"change": change}))


def _fields(feature: Feature) -> dict[str, Any]:
    return {name: getattr(feature, name) for name in feature.__struct_fields__}


def _proposed(feature: Feature) -> tuple[Any, str]:
    listed = feature.values if isinstance(feature, Categorical | Ordinal) else ()
    said = _words(feature.name) | (_TELLING & _words(" ".join(map(str, listed))))
    for words, change, reason in _RULES:
        if words & said:
            return (change if feature.ordered else "never"), reason
    return "any", ""


def _words(name: str) -> set[str]:
    """Return the words of a column's name, whether it is written marital_status, maritalStatus or Marital Status."""
    return set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))


def _feature(table: Columns, name: str, values: list[Any], options: Options) -> Feature | str:
    """Guess one column's feature, or say why it is left out."""
    dtype = table.dtype(name)
    missing: Any = "level" if len(values) < table.count else "refuse"
    if not values:
        return "it has no values"
    if any(isinstance(v, dict | list) for v in values):
        return "its values are lists"
    distinct = _in_order(set(values))
    numeric = dtype.is_numeric() or all(isinstance(v, Real | Decimal) for v in distinct)
    truth = all(isinstance(v, bool) for v in distinct) or (numeric and set(distinct) == {0, 1})
    if dtype == nw.Boolean or truth:
        return Boolean(name=name, missing=missing)
    if any(isinstance(v, datetime.date | datetime.time | datetime.timedelta) for v in distinct) or _iso(distinct):
        return "dates; turn them into a number, such as years until today"
    ordered = table.categories(name)
    if ordered is not None:
        if not all(is_category(v) for v in ordered):
            return "its values are no categories"
        return Ordinal(name=name, values=tuple(plain(v) for v in ordered), missing=missing)
    postcode = bool(_POSTCODES & _words(name)) or {"postal", "code"} <= _words(name)
    if numeric and not postcode:
        numbers = np.array([float(v) for v in values])
        whole = dtype.is_integer() or bool(np.all(numbers == np.rint(numbers)))
        if whole and name not in options.include and _id_like(name, numbers):
            return "it looks like an id or a row number"
        return _numeric(name, numbers, missing, whole, options)
    if not all(isinstance(v, str | bool | int) and is_category(v) for v in distinct):
        return "free text, or values that are no categories"
    if name not in options.include:
        if len(distinct) == len(values) and (_IDS & _words(name) or len(values) > _FEW_VALUES):
            return "it looks like an id: each value occurs once"
        most = _MOST_POSTCODES if postcode else _MOST_VALUES
        wordy = np.mean([len(str(v).split()) for v in distinct]) > _WORDY
        if len(distinct) > _FEW_VALUES and (len(distinct) > min(most, len(values) // (2 if postcode else 10)) or wordy):
            return f"free text: {len(distinct):,} different values"
    return Categorical(name=name, values=tuple(distinct), missing=missing)


def _in_order(values: set[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=str)


def _iso(values: Sequence[Any]) -> bool:
    return all(isinstance(v, str) and _DATE.fullmatch(v) for v in values)


def _id_like(name: str, numbers: NDArray[np.float64]) -> bool:
    """Tell whether whole numbers look like ids: named so, counting up, rising with the rows, or long and all different.

    Numbers that rise with the rows count even if some occur twice, as the ids of people with two rows do.
    """
    count, different, steps = len(numbers), len(np.unique(numbers)), np.diff(numbers)
    if different == count and (not name or _IDS & _words(name)):
        return count > 2
    monotone = bool((steps >= 0).all() or (steps <= 0).all())
    if monotone and 2 * different > count:
        return count >= _SURE
    long = np.floor(np.log10(np.maximum(np.abs(numbers), 1)))
    return different == count >= 2 * _SURE and long.min() == long.max() >= 6


def _numeric(name: str, numbers: NDArray[np.float64], missing: Any, whole: bool, options: Options) -> Numeric:
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        raise MissingValue(name, got="no finite number", expected="at least one")
    low, high = float(finite.min()), float(finite.max())
    if max(abs(low), abs(high)) > 1e300:
        raise OutOfRange(name, got=f"{low:g} to {high:g}", expected="numbers below 1e300")
    mad = float(np.median(np.abs(finite - np.median(finite))))
    constant = high - low <= 1e-12 * max(abs(low), abs(high)) or high - low < 1e-300
    step = (
        max(1.0, _nice_step(1e-9 * abs(high), whole=True))
        if constant
        else _nice_step((high - low) / options.most_levels, whole)
    )
    if options.round_outwards or constant:
        unit = step if constant else max(step, _nice_step((high - low) / 10, whole))
        lower, upper = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
        tidy = (float(f"{lower:.12g}"), float(f"{upper:.12g}"))
        low, high = tidy if tidy[0] <= low and high <= tidy[1] else (lower, upper)
    high = max(high, low + step)
    mad = float(f"{mad:.2g}") if mad > 0 and not constant else step
    if name in options.quantiles:
        points = _quantiles(finite, low, high, options.most_levels)
        return Numeric(name=name, low=low, high=high, points=points, missing=missing, mad=mad)
    parts = (high - low) / step
    if math.isclose(parts, round(parts), rel_tol=1e-9):
        return Numeric(name=name, low=low, high=high, step=step, missing=missing, mad=mad)
    return Numeric(name=name, low=low, high=high, levels=math.ceil(parts), missing=missing, mad=mad)


def _nice_step(minimum: float, whole: bool) -> float:
    """Return the smallest 1, 2, 2.5 or 5 times a power of ten that is at least `minimum`; whole for whole numbers.

    Each is at most twice the one before. So a range in steps of at least a hundredth of it has more than 50 of them,
    and half a step is below 1 % of the range.
    """
    if whole and minimum <= 1:
        return 1.0
    if whole and 2 < minimum <= 2.5:
        return 2.0
    power = 10.0 ** math.floor(math.log10(minimum))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= minimum * (1 - 1e-12))
    return float(f"{step:.12g}")


def _quantiles(numbers: NDArray[np.float64], low: float, high: float, levels: int) -> tuple[float, ...]:
    """Return levels that about as many rows fall into, from low to high, with no more digits than tell them apart."""
    parts = max(1, min(levels, len(numbers) // _PER_QUANTILE))
    cuts = np.unique(np.quantile(numbers, np.linspace(0, 1, parts + 1)))
    apart = np.minimum(np.diff(cuts)[:-1], np.diff(cuts)[1:])
    units = [10.0 ** math.floor(math.log10(gap)) for gap in apart]
    inner = {float(f"{round(cut / unit) * unit:.12g}") for cut, unit in zip(cuts[1:-1], units, strict=True)}
    return (low, *sorted(q for q in inner if low < q < high), high)


def crowded(feature: Feature, counts: NDArray[Any]) -> str:
    """Say whether nearly all rows, of enough rows, fall into one level, and what can be done; else say nothing.

    `counts` says how many rows have each level.
    """
    if counts.sum() < _SURE or feature.steps < 2 or not isinstance(feature, Numeric):
        return ""
    share = float(counts.max() / counts.sum())
    if share < _CROWDED:
        return ""
    return (
        f"{feature.name}: {share:.1%} of the rows fall into one of its {feature.steps + 1} levels. If a few values "
        f"stretch its range, levels at quantiles (--quantiles {feature.name}) or a narrower range tell the rows apart"
    )


def repeating(table: Columns, names: Sequence[str], verdicts: Any) -> list[str]:
    """Return the columns that repeat a verdict: each value, or each side of a border, goes with one verdict."""
    if not isinstance(verdicts, np.ndarray):
        if any(is_missing(v) for v in verdicts):
            return []
        verdicts = np.array([str(plain(v)) for v in verdicts])
    kinds, numbers = np.unique(verdicts, return_inverse=True)
    if not 2 <= len(kinds) <= _FEW_VALUES or np.bincount(numbers).min() < _SURE // 4:
        return []
    sample = np.unique(np.linspace(0, len(numbers) - 1, 2000).astype(np.int64))
    found = []
    for name in names:
        few = table.frame[name][sample.tolist()].to_list()  # enough to tell that most columns do not
        if _repeats(few, numbers[sample]) and (len(few) == len(numbers) or _repeats(table.column(name), numbers)):
            found.append(name)
    return found


def repeated(name: str, verdict: str) -> str:
    """Say that a column repeats the verdict, and what comes of it."""
    return f"{name} repeats {verdict}: leave it out (--exclude {name}), or every answer will be to change it"


def _repeats(values: Sequence[Any], verdicts: NDArray[np.int64]) -> bool:
    given = [None if is_missing(v) else plain(v) for v in values]
    if len(values) < _SURE:
        return False
    try:
        different = len(set(given))
        pairs = len(set(zip(given, verdicts.tolist(), strict=True)))
    except TypeError:  # lists, which no feature can have
        return False
    if different < 2 or pairs > different:
        return False
    if different <= len(values) // 10:
        return True
    if not all(isinstance(v, Real | Decimal) for v in given):
        return False
    numbers = np.array([float(v) for v in given])  # type: ignore[arg-type]
    in_order = verdicts[np.argsort(numbers, kind="stable")]
    return int((np.diff(in_order) != 0).sum()) == len(np.unique(verdicts)) - 1
