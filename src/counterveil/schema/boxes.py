"""Sets of levels as codes: what a region says of one feature, and what it costs to move into it.

A region is a box: a set of levels for every feature. The sets that have a code come from the schema alone, never from
the regions that were found: a public list of used sets would tell where the model's borders lie.

- A category has one code. Up to 8 levels every set that is not empty has one; beyond that single levels, pairs, what
  is left without one or two levels, and all.
- An ordered feature has two codes, its lowest and its highest level. The low one also says whether a missing value is
  inside. At most one of the two costs anything, if costs rise away from where the applicant stands.
- An ordered feature may instead have one code over all intervals, which takes any cost at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Codes, Vector
from ..errors import OutOfRange, WrongShape
from .features import Feature, Numeric, Value

ALL_SUBSETS = 8  # levels of a category up to which every set has a code
MOST_CODES = 2**22  # that one feature may have: whoever asks has a cost for each of them
LIMITS = ("at most ", "at least ", "from ")  # how the words for an interval begin
Members = NDArray[np.bool_]  # for every level of a feature, the missing one included, whether it is in a set


class Family(Protocol):
    """The sets of one feature's levels that have a code, or two."""

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest code of each column."""

    def codes(self, members: Members) -> tuple[int, ...] | None:
        """Return the codes of a set; None if it has none."""

    def members(self, codes: Sequence[int]) -> Members:
        """Return the set that codes stand for, or refuse codes that stand for none."""

    def tables(self, costs: Vector) -> list[Vector] | None:
        """Return the cost of every code of each column, least over its levels; None if no sum of columns is that."""


@dataclass(frozen=True)
class Subsets:
    """Sets of a category's levels: one code."""

    count: int

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest code."""
        n = self.count
        return (2**n - 2 if n <= ALL_SUBSETS else 2 * self._small,)

    @property
    def _small(self) -> int:
        """How many single levels and pairs there are."""
        return self.count * (self.count + 1) // 2

    def codes(self, members: Members) -> tuple[int, ...] | None:
        """Return the code of a set; None if it has none."""
        inside, outside = np.flatnonzero(members).tolist(), np.flatnonzero(~members).tolist()
        if not inside:
            return None
        if self.count <= ALL_SUBSETS:
            return (sum(1 << level for level in inside) - 1,)
        if not outside:
            return (2 * self._small,)
        if min(len(inside), len(outside)) > 2:
            return None
        return (self._place(inside),) if len(inside) <= 2 else (self._small + self._place(outside),)

    def _place(self, few: list[int]) -> int:
        """Return where one or two levels stand: single ones first, then pairs in order."""
        if len(few) == 1:
            return few[0]
        low, high = few
        return self.count + low * (2 * self.count - low - 1) // 2 + high - low - 1

    def members(self, codes: Sequence[int]) -> Members:
        """Return the set that a code stands for."""
        (code,) = _checked(codes, self.largest)
        if self.count <= ALL_SUBSETS:
            return np.array([(code + 1) >> level & 1 for level in range(self.count)], dtype=bool)
        members = np.zeros(self.count, dtype=bool)
        if code < 2 * self._small:
            place = code % self._small
            low, high = _pairs(self.count)
            few = [place] if place < self.count else [low[place - self.count], high[place - self.count]]
            members[few] = True
        return members if code < self._small else ~members

    def tables(self, costs: Vector) -> list[Vector]:
        """Return the cost of every code: the least over its levels."""
        if self.count <= ALL_SUBSETS:
            masks = np.arange(1, 2**self.count)
            inside = (masks[:, None] >> np.arange(self.count)) & 1 == 1
            return [np.where(inside, costs, np.iinfo(np.int64).max).min(axis=1)]
        low, high = _pairs(self.count)
        first, second, third = np.argsort(costs, kind="stable")[:3]
        singles, every = np.arange(self.count), costs[first]
        without = np.where(singles == first, costs[second], every)
        has_first, has_second = (low == first) | (high == first), (low == second) | (high == second)
        pairs = np.where(has_first, np.where(has_second, costs[third], costs[second]), every)
        return [np.concatenate([costs, np.minimum(costs[low], costs[high]), without, pairs, [every]])]


def _pairs(count: int) -> tuple[Vector, Vector]:
    low, high = np.triu_indices(count, 1)
    return low, high


@dataclass(frozen=True)
class Interval:
    """Intervals of an ordered feature: the lowest level and the highest.

    Low codes 0..R say that a missing value is outside, R+1..2R+1 the same with it inside. The next one, which only goes
    with the highest level R, is the set of the missing value alone.
    """

    steps: int  # R
    missing: bool

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest low code and the largest high one."""
        return (2 * self.steps + 2 if self.missing else self.steps, self.steps)

    def codes(self, members: Members) -> tuple[int, ...] | None:
        """Return the two codes of a set; None if it has a hole."""
        there, gone = np.flatnonzero(members[: self.steps + 1]), bool(members[self.steps + 1 :].any())
        if not there.size:
            return (2 * self.steps + 2, self.steps) if gone else None
        low, high = int(there[0]), int(there[-1])
        return (low + gone * (self.steps + 1), high) if high - low + 1 == there.size else None

    def members(self, codes: Sequence[int]) -> Members:
        """Return the set that two codes stand for."""
        first, high = _checked(codes, self.largest)
        gone, low = divmod(first, self.steps + 1)
        alone = gone > 1
        if (alone and high != self.steps) or (not alone and low > high):
            raise WrongShape("region", got=f"codes {first} and {high}", expected="a lowest level below the highest")
        levels = np.arange(self.steps + 1 + self.missing)
        return (levels > self.steps) & (gone > 0) | (levels >= low) & (levels <= high) & (not alone)

    def tables(self, costs: Vector) -> list[Vector] | None:
        """Return what low codes cost and what high codes add; None if costs do not rise away from one place.

        The least cost of [l:h] is `cl[l] + ch[h]` with cl the least from l upwards, and ch the least up to h beyond the
        least of all. That holds for all l and h if it holds for every single level.
        """
        there = costs[: self.steps + 1]
        upwards = np.minimum.accumulate(there[::-1])[::-1]
        beyond = np.minimum.accumulate(there) - there.min()
        if (upwards + beyond != there).any():
            return None
        if not self.missing:
            return [upwards, beyond]
        gone = costs[self.steps + 1]
        if beyond.any() and gone < there[0]:  # for high levels too low, becoming missing would be cheaper
            return None
        return [np.concatenate([upwards, np.minimum(upwards, gone), [gone]]), beyond]


@dataclass(frozen=True)
class AnyInterval:
    """Intervals of an ordered feature: one code for each, so that costs may have holes."""

    steps: int
    missing: bool

    @property
    def _count(self) -> int:
        return (self.steps + 1) * (self.steps + 2) // 2

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest code."""
        return (2 * self._count if self.missing else self._count - 1,)

    def joined(self, low: Codes | Vector, high: Codes | Vector) -> Vector:
        """Return the code of each interval, from the two codes that `Interval` has for it."""
        gone, first = np.divmod(low.astype(np.int64), self.steps + 1)
        place = first * (2 * self.steps + 3 - first) // 2 + high.astype(np.int64) - first
        return np.where(gone > 1, 2 * self._count, place + gone * self._count)

    def tables(self, costs: Vector) -> list[Vector]:
        """Return the cost of every code: the least over its levels."""
        there = costs[: self.steps + 1]
        least = np.concatenate([np.minimum.accumulate(there[low:]) for low in range(self.steps + 1)])
        if not self.missing:
            return [least]
        gone = costs[self.steps + 1]
        return [np.concatenate([least, np.minimum(least, gone), [gone]])]


def family(feature: Feature) -> Subsets | Interval:
    """Return the sets of a feature's levels that regions can have; the schema alone decides."""
    made = Interval(feature.steps, feature.missing == "level") if feature.ordered else Subsets(feature.largest + 1)
    _check_size(feature, made.largest)
    return made


def any_interval(feature: Feature) -> AnyInterval:
    """Return the intervals of an ordered feature, each with a code of its own."""
    made = AnyInterval(feature.steps, feature.missing == "level")
    _check_size(feature, made.largest)
    return made


def _check_size(feature: Feature, largest: Sequence[int]) -> None:
    if max(largest) >= MOST_CODES:
        expected = f'at most {MOST_CODES}: fewer levels, or record = "row"'
        raise OutOfRange(f"regions, {feature.name}", got=f"{max(largest) + 1} sets of levels", expected=expected)


def _checked(codes: Sequence[int], largest: Sequence[int]) -> list[int]:
    """Refuse codes beyond the family: they may come from a server."""
    for code, most in zip(codes, largest, strict=True):
        if not 0 <= code <= most:
            raise WrongShape("region", got=f"code {code}", expected=f"at most {most}")
    return [int(code) for code in codes]


def words(feature: Feature, members: Members) -> str:
    """Say which values are in a set; whatever is said to be inside is inside, rounding included."""
    there, gone = np.flatnonzero(members[: feature.steps + 1]).tolist(), bool(members[feature.steps + 1 :].any())
    if not there:
        return feature.show(None)
    said = _between(feature, there[0], there[-1]) if feature.ordered else _listed(feature, there)
    if said == "anything" and feature.missing == "level" and not gone:
        return "given, whatever it is"
    return f"{said} or {feature.show(None)}" if gone and said != "anything" else said


def unmet(feature: Feature, members: Members, value: Any) -> str:
    """Say which condition of a region a person's own value does not meet; nothing if it meets all."""
    inside = members[int(feature.codes([value], clamp=True)[0])]
    return beyond(feature, feature.given(value)) if inside else words(feature, members)


def beyond(feature: Feature, value: Value) -> str:
    """Say which bound of the schema a person's own value lies beyond: nothing is certified there."""
    if isinstance(feature, Numeric) and isinstance(value, int | float):
        if value > feature.high:
            return f"at most {feature.show(feature.high)}"
        if value < feature.low:
            return f"at least {feature.show(feature.low)}"
    return ""


def _between(feature: Feature, low: int, high: int) -> str:
    if (low, high) == (0, feature.steps):
        return "anything"
    if low == high:
        return bound(feature, low)
    if low == 0:
        return f"at most {bound(feature, high)}"
    if high == feature.steps:
        return f"at least {bound(feature, low)}"
    unit = f" {feature.measure}" if isinstance(feature, Numeric) and feature.measure else ""
    return f"from {bound(feature, low).removesuffix(unit)} to {bound(feature, high)}"


def _listed(feature: Feature, there: Sequence[int]) -> str:
    left_out = [level for level in range(feature.steps + 1) if level not in there]
    if not left_out:
        return "anything"
    few = there if len(there) <= len(left_out) + 1 else left_out
    shown = [feature.show(feature.value(level)) for level in few]
    said = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " or " + shown[-1]
    return said if few is there else f"anything but {said}"


def bound(feature: Feature, code: int) -> str:
    """Write a level's value so that what is written falls into the level too, with as many digits as that takes."""
    value = feature.value(code)
    shown = feature.show(value)
    if not isinstance(feature, Numeric):
        return shown
    number = shown.removesuffix(feature.measure).strip().replace(",", "")
    try:
        written = float(number[:-1]) / 100 if number.endswith("%") else float(number)
        if int(feature.codes([written], clamp=True)[0]) == code:
            return shown
    except ValueError:  # written in a way that is not a number
        pass
    return f"{value:.15g} {feature.measure}".strip()
