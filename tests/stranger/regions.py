"""Sets of levels and their codes, as docs/wire-costs.md says them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .people import Feature


def sets_of(n: int) -> list[frozenset[int]]:
    """Return the sets of a category's levels, by code."""
    every = frozenset(range(n))
    if n <= 8:
        return [frozenset(level for level in range(n) if (code + 1) >> level & 1) for code in range(2**n - 1)]
    few = [frozenset([level]) for level in range(n)] + [frozenset(pair) for pair in combinations(range(n), 2)]
    return [*few, *(every - each for each in few), every]


def largest(f: Feature) -> list[int]:
    """Return the largest code of each column of a feature, as a record holds them."""
    if not f.ordered:
        return [len(sets_of(f.most + 1)) - 1]
    return [2 * f.R + 2 if f.has_missing else f.R, f.R]


def members(f: Feature, codes: Sequence[int]) -> frozenset[int]:
    """Return the levels in a set, or refuse its codes."""
    if any(code > most for code, most in zip(codes, largest(f), strict=True)):
        raise ValueError("a code that no set has")
    if not f.ordered:
        return sets_of(f.most + 1)[codes[0]]
    low, high = codes
    if low == 2 * f.R + 2:
        if high != f.R:
            raise ValueError("a set of the missing value with another high code")
        return frozenset([f.R + 1])
    missing = low > f.R
    low -= (f.R + 1) * missing
    if low > high:
        raise ValueError("a lowest level above the highest")
    return frozenset(range(low, high + 1)) | frozenset([f.R + 1] * missing)


def columns(f: Feature, costs: Sequence[int], *, intervals: bool) -> list[list[int]]:
    """Return the cost of each code of each column that is asked, or refuse costs that cannot be asked."""
    if not f.ordered:
        return [[min(costs[level] for level in each) for each in sets_of(f.most + 1)]]
    there = list(costs[: f.R + 1])
    if intervals:
        least = [min(there[low : high + 1]) for low in range(f.R + 1) for high in range(low, f.R + 1)]
        gone = [min(each, costs[-1]) for each in least] + [costs[-1]] if f.has_missing else []
        return [least + gone]
    low = [min(there[level:]) for level in range(f.R + 1)]
    high = [min(there[: level + 1]) - min(there) for level in range(f.R + 1)]
    if [a + b for a, b in zip(low, high, strict=True)] != there:
        raise ValueError("costs that do not rise from one level outwards")
    if f.has_missing:
        if any(high) and costs[-1] < there[0]:
            raise ValueError("a missing value that is cheaper than the lowest level")
        low += [min(each, costs[-1]) for each in low] + [costs[-1]]
    return [low, high]
