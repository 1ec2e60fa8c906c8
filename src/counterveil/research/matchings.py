"""Count in how many ways masked values can have come from costs in a secret order. The number is a permanent."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from ..algebra.arrays import Vector
from ..schemes.reveals import Reveal

_MOST_STATES = 500  # states of the count; with more, it gives up


class TooMany(Exception):
    """There are too many ways to match masked costs with rows to count them."""


def log_permanent(y: Vector, z: Vector, width: int) -> float:
    """Return log2 of how many ways there are to give every z its own y with 0 <= z - y < width.

    It goes through the values in ascending order. The state is how many y of each recent value are still free.
    """
    ways: dict[tuple[tuple[int, int], ...], float] = {(): 0.0}
    offered = dict(zip(*np.unique(y, return_counts=True), strict=True))
    wanted = dict(zip(*np.unique(z, return_counts=True), strict=True))
    for value in sorted({*offered, *wanted}):
        after: defaultdict[tuple[tuple[int, int], ...], list[float]] = defaultdict(list)
        for state, log in ways.items():
            if any(v <= value - width for v, _ in state):
                continue  # this y is still free, and no later z can match it
            free = dict(state)
            if value in offered:
                free[int(value)] = int(offered[value])
            for left, log_ways in _takings(sorted(free.items()), int(wanted.get(value, 0))):
                after[left].append(log + log_ways)
        if len(after) > _MOST_STATES:
            raise TooMany
        if not after:
            return -math.inf
        ways = {state: float(np.logaddexp2.reduce(logs)) for state, logs in after.items()}
    return ways.get((), -math.inf)


def _takings(free: list[tuple[int, int]], wanted: int) -> list[tuple[tuple[tuple[int, int], ...], float]]:
    """Return every state that is left after `wanted` y are taken, with log2 of how many ordered ways lead to it."""
    if sum(count for _, count in free) < wanted:
        return []
    if not free:
        return [((), 0.0)]
    (value, count), rest = free[0], free[1:]
    results = []
    for taken in range(min(count, wanted) + 1):
        ways = math.log2(math.comb(count, taken) * math.perm(wanted, taken))
        kept = ((value, count - taken),) if count > taken else ()
        results += [((*kept, *left), ways + other) for left, other in _takings(rest, wanted - taken)]
        if len(results) > _MOST_STATES:
            raise TooMany
    return results


def log_matchings(y: Vector, z: Vector, reveal: Reveal, width: int) -> float:
    """Return log2 P(z | y) for masked costs in a secret order: the fraction of orders and masks that give z."""
    shifts = range(1 - width, width) if reveal.differences else [0]
    scaled = np.sort(y * reveal.expansion)
    logs = [log_permanent(scaled, np.sort(z + shift), width) for shift in shifts]
    total = float(np.logaddexp2.reduce([log for log in logs if log > -math.inf]))
    return total - math.lgamma(len(y) + 1) / math.log(2) - len(y) * math.log2(width)
