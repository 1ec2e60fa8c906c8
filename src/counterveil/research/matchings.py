"""In how many ways masked values can have come from costs in a secret order: a permanent, counted value by value."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from ..algebra.arrays import Vector

_MOST_STATES = 500  # of the count, before it gives up


class TooMany(Exception):
    """Too many ways to match masked costs with rows to count them."""


def log_permanent(y: Vector, z: Vector, width: int) -> float:
    """Return log2 of how many ways there are to give every z its own y with 0 <= z - y < width.

    Values in ascending order; the state is how many y of each recent value are still free.
    """
    ways: dict[tuple[tuple[int, int], ...], float] = {(): 0.0}
    held = dict(zip(*np.unique(y, return_counts=True), strict=True))
    wanted = dict(zip(*np.unique(z, return_counts=True), strict=True))
    for value in sorted({*held, *wanted}):
        after: defaultdict[tuple[tuple[int, int], ...], list[float]] = defaultdict(list)
        for state, log in ways.items():
            if any(v <= value - width for v, _ in state):
                continue  # one that nothing can match any more
            free = dict(state)
            if value in held:
                free[int(value)] = int(held[value])
            for taken, more in _takings(sorted(free.items()), int(wanted.get(value, 0))):
                after[taken].append(log + more)
        if len(after) > _MOST_STATES:
            raise TooMany
        if not after:
            return -math.inf
        ways = {state: float(np.logaddexp2.reduce(logs)) for state, logs in after.items()}
    return ways.get((), -math.inf)


def _takings(free: list[tuple[int, int]], wanted: int) -> list[tuple[tuple[tuple[int, int], ...], float]]:
    """Return what is left after so many are taken, in every way, with log2 of the number of ways in order."""
    if sum(count for _, count in free) < wanted:
        return []
    if not free:
        return [((), 0.0)]
    (value, there), rest = free[0], free[1:]
    results = []
    for taken in range(min(there, wanted) + 1):
        ways = math.log2(math.comb(there, taken) * math.perm(wanted, taken))
        mine = ((value, there - taken),) if there > taken else ()
        results += [((*mine, *left), ways + more) for left, more in _takings(rest, wanted - taken)]
        if len(results) > _MOST_STATES:
            raise TooMany
    return results
