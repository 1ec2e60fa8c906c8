"""Grow boxes from accepted points outwards, feature by feature, as far as the model certainly accepts all of them.

Many boxes grow at a time. A larger box has a lower bound, so that how far one side can go is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...schema.boxes import ALL_SUBSETS, Interval, Subsets
from .trees import Boxes, Trees

_CHUNK = 1 << 21  # pairs of a box and a leaf that grow together

Rows = NDArray[np.intp]
_Holds = Callable[[Rows, Boxes], NDArray[np.bool_]]


class Growth:
    """Boxes that grow by one rule: each stays certified, and each feature's set stays one that has a code."""

    def __init__(
        self, trees: Trees, families: Sequence[Interval | Subsets], common: Sequence[NDArray[np.intp]]
    ) -> None:
        """Take the families of sets of every feature, and its levels with the most common ones first."""
        self.trees, self.families, self.common = trees, families, common

    def grow(self, boxes: Boxes, order: Sequence[int], *, up_first: bool = True) -> Boxes:
        """Return every box grown in one order of features."""
        size = max(1, _CHUNK // len(self.trees.values))
        return np.concatenate([self._grow(boxes[at : at + size], order, up_first) for at in range(0, len(boxes), size)])

    def _grow(self, boxes: Boxes, order: Sequence[int], up_first: bool) -> Boxes:
        boxes, trees = boxes.copy(), self.trees
        blocked = trees.blocked(boxes)
        for j in order:
            part, leaves = trees.parts[j], trees.limits[j].leaves
            blocked[:, leaves] -= trees.misses(j, boxes[:, part])
            free = blocked == 0  # the leaves that this feature alone keeps out of reach, or nothing does
            boxes[:, part] = self._widest(j, boxes[:, part], self._test(j, free), up_first)
            blocked[:, leaves] += trees.misses(j, boxes[:, part])
        return boxes

    def _test(self, j: int, free: Boxes) -> _Holds:
        """Return what tells whether boxes stay certified with other sets of one feature."""

        def holds(rows: Rows, members: Boxes) -> NDArray[np.bool_]:
            reached = free[rows]
            reached[:, self.trees.limits[j].leaves] &= ~self.trees.misses(j, members)
            sure = self.trees.least(reached) > self.trees.margin
            return np.asarray(sure & ~(members & unknown).any(axis=1))

        unknown = ~self.trees.decided[self.trees.parts[j]]
        return holds

    def _widest(self, j: int, members: Boxes, holds: _Holds, up_first: bool) -> Boxes:
        """Return wider sets of one feature: all of it where that holds, else as far as it does."""
        family, decided = self.families[j], self.trees.decided[self.trees.parts[j]]
        members = members.copy()
        rows: Rows = np.arange(len(members))
        if family.codes(decided) is not None:
            every = holds(rows, np.broadcast_to(decided, members.shape))
            members[every] = decided
            rows = np.flatnonzero(~every)
        if not rows.size:
            return members
        if isinstance(family, Interval):
            members[rows] = self._stretched(family, members[rows], rows, holds, up_first)
        elif family.count <= ALL_SUBSETS:
            for level in self.common[j]:
                members[rows] = _with(members[rows], [level], rows, holds)
        else:
            members[rows] = self._most(family, j, members[rows], rows, holds)
        return members

    def _stretched(self, family: Interval, members: Boxes, rows: Rows, holds: _Holds, up_first: bool) -> Boxes:
        """Return intervals with each end as far out as it can go, found by halving; then with what is missing."""
        levels = np.arange(members.shape[1])
        there = members[:, : family.steps + 1]
        some: NDArray[np.bool_] = np.logical_or.reduce(there, axis=1)  # a box may hold the missing value alone
        low, high = there.argmax(axis=1), family.steps - there[:, ::-1].argmax(axis=1)
        gone = members & (levels > family.steps)
        for up in (up_first, not up_first):
            sure, beyond = (
                (high.copy(), np.full(len(rows), family.steps + 1)) if up else (low.copy(), np.full(len(rows), -1))
            )
            while (open_ := some & (np.abs(beyond - sure) > 1)).any():
                middle = (sure + beyond) // 2
                first, last = (low, middle) if up else (middle, high)
                tried = np.flatnonzero(open_)
                inside = (levels >= first[tried, None]) & (levels <= last[tried, None])
                good = holds(rows[tried], inside | gone[tried])
                sure[tried[good]], beyond[tried[~good]] = middle[tried[good]], middle[tried[~good]]
            low, high = (low, sure) if up else (sure, high)
        members = ((levels >= low[:, None]) & (levels <= high[:, None]) & some[:, None]) | gone
        missing = levels[family.steps + 1 :].tolist()
        return _with(members, missing, rows, holds) if missing else members

    def _most(self, family: Subsets, j: int, members: Boxes, rows: Rows, holds: _Holds) -> Boxes:
        """Return sets of a category with many levels: without one or two of them, or else pairs."""
        fits = np.stack([_with(members, [level], rows, holds)[:, level] for level in range(family.count)], 1)
        made, wide = members.copy(), fits
        for level in (None, *self.common[j][::-1]):  # leave out the least common ones too, while that may help
            if level is not None:
                wide[:, level] &= members[:, level]
            tried = np.flatnonzero(((~wide).sum(axis=1) <= 2) & (made.sum(axis=1) < wide.sum(axis=1)))
            if tried.size:
                good = tried[holds(rows[tried], wide[tried])]
                made[good] = wide[good]
        for level in self.common[j]:
            single = np.flatnonzero(made.sum(axis=1) == 1)
            made[single] = _with(made[single], [level], rows[single], holds)
        return made


def _with(members: Boxes, levels: Sequence[int], rows: Rows, holds: _Holds) -> Boxes:
    """Return the sets with more levels where that holds, as they were where it does not."""
    wider = members.copy()
    wider[:, levels] = True
    return np.where(holds(rows, wider)[:, None], wider, members)
