"""Loops over boxes, leaves and people that numba compiles. Each is called through `run`, many boxes at a time.

A box is a row of booleans, one for each cell of each feature; `starts` says where the cells of each feature begin.
Leaf n can be reached from the cells that row n of `reach` names. `limits` lists the features that keep some cell from
leaf n, between `limit_at[n]` and `limit_at[n + 1]`; `touched` lists the trees in which a feature is limited, likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ...algebra.compiled import compiled, cores
from ...errors import MissingPackage

INTERVAL, SUBSETS, FEW = 0, 1, 2  # families of sets: intervals, all sets, sets of one or two levels and their opposites
_PIECES = 8  # for each core, so that none is left waiting


@cache
def _machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return compiled(function)
    except ImportError:
        raise MissingPackage("regions", got="no numba", expected="numba, as counterveil[server] brings") from None


def run(
    function: Callable[..., None], count: int, *arguments: Any, progress: Callable[[float], None] | None = None
) -> None:
    """Call a function with `arguments` and the range of boxes that it is to work on, in pieces, on all cores."""
    code, workers = _machine_code(function), cores()
    edges = np.unique(np.linspace(0, count, min(count, workers * _PIECES) + 1).astype(np.int64)).tolist()
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(code, *arguments, *piece) for piece in pairwise(edges)]
        for n, each in enumerate(waiting):
            each.result()
            if progress is not None:
                progress((n + 1) / len(waiting))


def bounds(
    boxes: Any,
    values: Any,
    reach: Any,
    trees: Any,
    limit_at: Any,
    limits: Any,
    starts: Any,
    out: Any,
    begin: int,
    end: int,
) -> None:
    """Write for every box the sum over trees of the least leaf that it reaches."""
    for n in range(begin, end):
        total = 0.0
        for tree in range(len(trees) - 1):
            least = np.inf
            for leaf in range(trees[tree], trees[tree + 1]):
                if values[leaf] >= least:
                    continue
                reached = True
                for at in range(limit_at[leaf], limit_at[leaf + 1]):
                    meets = False
                    for cell in range(starts[limits[at]], starts[limits[at] + 1]):
                        if boxes[n, cell] and reach[leaf, cell]:
                            meets = True
                            break
                    if not meets:
                        reached = False
                        break
                if reached:
                    least = values[leaf]
            total += least
        out[n] = total


def options(
    boxes: Any,
    values: Any,
    reach: Any,
    trees: Any,
    limit_at: Any,
    limits: Any,
    starts: Any,
    touched_at: Any,
    touched: Any,
    out: Any,
    begin: int,
    end: int,
) -> None:
    """Write for every box and every cell the bound of the box with that cell alone of the cell's feature."""
    blocked, least = np.empty(len(values), np.int64), np.empty(len(trees) - 1, np.float64)
    only = np.empty(len(values), np.int64)  # the feature that keeps a leaf out of reach, if it is one alone
    best = np.empty(np.max(starts[1:] - starts[:-1]), np.float64)
    for n in range(begin, end):
        total = 0.0
        for tree in range(len(trees) - 1):
            least[tree] = np.inf
            for leaf in range(trees[tree], trees[tree + 1]):
                blocked[leaf] = 0
                only[leaf] = -1
                for at in range(limit_at[leaf], limit_at[leaf + 1]):
                    meets = False
                    for cell in range(starts[limits[at]], starts[limits[at] + 1]):
                        if boxes[n, cell] and reach[leaf, cell]:
                            meets = True
                            break
                    if not meets:
                        blocked[leaf] += 1
                        only[leaf] = limits[at]
                        if blocked[leaf] > 1:
                            break
                if blocked[leaf] == 0:
                    least[tree] = min(least[tree], values[leaf])
            total += least[tree]
        for j in range(len(starts) - 1):
            start, count = starts[j], starts[j + 1] - starts[j]
            for cell in range(count):
                out[n, start + cell] = total
            for at in range(touched_at[j], touched_at[j + 1]):
                tree = touched[at]
                for cell in range(count):
                    best[cell] = np.inf
                for leaf in range(trees[tree], trees[tree + 1]):
                    if blocked[leaf] == 0 or (blocked[leaf] == 1 and only[leaf] == j):
                        for cell in range(count):
                            if reach[leaf, start + cell] and values[leaf] < best[cell]:
                                best[cell] = values[leaf]
                for cell in range(count):
                    out[n, start + cell] += best[cell] - least[tree]


def grow(
    boxes: Any,
    order: Any,
    up_first: bool,
    cut: float,
    families: Any,
    numbers: Any,
    common: Any,
    decided: Any,
    values: Any,
    reach: Any,
    trees: Any,
    limit_at: Any,
    limits: Any,
    starts: Any,
    touched_at: Any,
    touched: Any,
    begin: int,
    end: int,
) -> None:
    """Widen every box, feature by feature, as far as its bound stays above `cut`.

    `numbers` says how many cells of a feature are ordered; the one after them is what is missing. `common` lists the
    cells of every feature, those of most people first.
    """
    widest = np.max(starts[1:] - starts[:-1])
    blocked, least = np.empty(len(values), np.int64), np.empty(len(trees) - 1, np.float64)
    table, now = np.empty((len(trees) - 1, widest), np.float64), np.empty(len(trees) - 1, np.float64)
    missed = np.empty(len(values), np.bool_)
    fits, tried = np.empty(widest, np.bool_), np.empty(widest, np.bool_)
    for n in range(begin, end):
        for tree in range(len(trees) - 1):
            least[tree] = np.inf
            for leaf in range(trees[tree], trees[tree + 1]):
                blocked[leaf] = 0
                for at in range(limit_at[leaf], limit_at[leaf + 1]):
                    meets = False
                    for cell in range(starts[limits[at]], starts[limits[at] + 1]):
                        if boxes[n, cell] and reach[leaf, cell]:
                            meets = True
                            break
                    if not meets:
                        blocked[leaf] += 1
                if blocked[leaf] == 0:
                    least[tree] = min(least[tree], values[leaf])
        for place in range(len(order)):
            j = order[place]
            start, count, many = starts[j], starts[j + 1] - starts[j], touched_at[j + 1] - touched_at[j]
            own = boxes[n, start : start + count]
            rest = 0.0
            for tree in range(len(trees) - 1):
                rest += least[tree]
            # What each cell makes of each tree that the feature limits, and which leaves it keeps out of reach.
            for at in range(many):
                tree = touched[touched_at[j] + at]
                rest -= least[tree]
                for cell in range(count):
                    table[at, cell] = np.inf
                for leaf in range(trees[tree], trees[tree + 1]):
                    missed[leaf] = False
                    for position in range(limit_at[leaf], limit_at[leaf + 1] if blocked[leaf] else limit_at[leaf]):
                        if limits[position] == j:
                            missed[leaf] = True
                            for cell in range(count):
                                if own[cell] and reach[leaf, start + cell]:
                                    missed[leaf] = False
                                    break
                            break
                    if blocked[leaf] == missed[leaf]:
                        for cell in range(count):
                            if reach[leaf, start + cell] and values[leaf] < table[at, cell]:
                                table[at, cell] = values[leaf]
                now[at] = least[tree]
            if families[j] == INTERVAL:
                low, high = count, -1
                for cell in range(numbers[j]):
                    if own[cell]:
                        low, high = min(low, cell), cell
                for turn in range(3):  # one end, the other end, what is missing
                    upwards = (turn == 0) == up_first
                    while high >= 0 or turn == 2:
                        new = numbers[j] if turn == 2 else (high + 1 if upwards else low - 1)
                        if (
                            new < 0
                            or (turn < 2 and new >= numbers[j])
                            or new >= count
                            or own[new]
                            or not decided[start + new]
                        ):
                            break
                        total = rest
                        for at in range(many):
                            total += min(now[at], table[at, new])
                        if total <= cut:
                            break
                        own[new] = True
                        for at in range(many):
                            now[at] = min(now[at], table[at, new])
                        low, high = (min(low, new), max(high, new)) if turn < 2 else (low, high)
            else:
                size = 0
                for cell in range(count):
                    size += own[cell]
                for position in range(count):
                    new = common[start + position]
                    fits[new] = own[new]
                    if own[new] or not decided[start + new]:
                        continue
                    total = rest
                    for at in range(many):
                        total += min(now[at], table[at, new])
                    fits[new] = total > cut
                    if fits[new] and families[j] == SUBSETS:
                        own[new] = True
                        for at in range(many):
                            now[at] = min(now[at], table[at, new])
                if families[j] == FEW:
                    # All that fits, without none, one or two of them, if no more than two are left out in all.
                    done = False
                    for first in range(-1, count):
                        for second in range(-1, max(first, 0)):
                            wide = 0
                            for cell in range(count):
                                tried[cell] = fits[cell]
                            if first >= 0:
                                tried[common[start + count - 1 - first]] = own[common[start + count - 1 - first]]
                            if second >= 0:
                                tried[common[start + count - 1 - second]] = own[common[start + count - 1 - second]]
                            for cell in range(count):
                                wide += tried[cell]
                            if done or wide < count - 2 or wide <= size:
                                continue
                            total = rest
                            for at in range(many):
                                lowest = now[at]
                                for cell in range(count):
                                    if tried[cell]:
                                        lowest = min(lowest, table[at, cell])
                                total += lowest
                            if total > cut:
                                done = True
                                for cell in range(count):
                                    own[cell] = tried[cell]
                    if not done and size == 1:
                        for position in range(count):
                            new = common[start + position]
                            if fits[new] and not own[new]:
                                own[new] = True
                                break
            for at in range(many):
                tree = touched[touched_at[j] + at]
                least[tree] = np.inf
                for leaf in range(trees[tree], trees[tree + 1]):
                    if missed[leaf]:
                        for cell in range(count):
                            if own[cell] and reach[leaf, start + cell]:
                                blocked[leaf] -= 1
                                break
                    if blocked[leaf] == 0:
                        least[tree] = min(least[tree], values[leaf])


def inside(boxes: Any, cells: Any, out: Any, begin: int, end: int) -> None:
    """Write for every box how many people it holds; `cells` has the cell of each feature, for every person."""
    for n in range(begin, end):
        count = 0
        for person in range(len(cells)):
            holds = True
            for j in range(cells.shape[1]):
                if not boxes[n, cells[person, j]]:
                    holds = False
                    break
            count += holds
        out[n] = count


def largest(words: Any, kept: Any, begin: int, end: int) -> None:
    """Write which boxes lie in none before them; boxes are bits in words, all different, the largest ones first."""
    for n in range(begin, end):
        kept[n] = True
        for other in range(n):
            within = True
            for word in range(words.shape[1]):
                if words[n, word] & ~words[other, word]:
                    within = False
                    break
            if within:
                kept[n] = False
                break


def distances(
    low: Any,
    high: Any,
    members: Any,
    ordered: Any,
    steps: Any,
    weights: Any,
    change: Any,
    starts: Any,
    codes: Any,
    changes: Any,
    costs: Any,
    begin: int,
    end: int,
) -> None:
    """Write how many features each person must change to get into each box, and what that costs: (boxes, people).

    `low` and `high` are each box's ends of a feature, 1 and 0 where it holds the missing value alone. `change` says
    whether a feature can go down (bit 0) and up (bit 1). A box that somebody cannot get into costs infinitely much, and
    so does one that they get into only if a value becomes missing.
    """
    for n in range(begin, end):
        for person in range(len(codes)):
            count, cost = 0, 0.0
            for j in range(codes.shape[1]):
                own = codes[person, j]
                if weights[j] == 0.0 or members[n, starts[j] + own]:
                    continue
                count += 1
                if low[n, j] > high[n, j]:
                    cost = np.inf
                elif ordered[j] and own <= steps[j]:
                    up = own < low[n, j]
                    moved = low[n, j] - own if up else own - high[n, j]
                    cost += (moved / steps[j]) ** 2 * weights[j] if change[j] & (2 if up else 1) else np.inf
                else:
                    cost += weights[j] if change[j] == 3 else np.inf
            changes[n, person], costs[n, person] = count, cost
