"""Seeds and their growth: accepted people, the sparsest accepted changes of rejected people, and boxes around them.

Boxes are of cells here, as `trees` has them. Many grow at a time, and the same data and model give the same boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...schema.boxes import ALL_SUBSETS
from ...schema.schema import Schema
from . import kernels
from .ensembles import Floats
from .trees import Boxes, Trees

DEEPEST = 6  # changes that a rejected person's way in may have
_BEAM = 6  # sets of changes that are pursued for each rejected person
_WAYS = 4  # ways in that are kept of each
_TOGETHER = 512  # rejected people whose ways in are searched for together
_FEW = 2  # levels that a set of many may have, or lack
_SPREAD = 2.5  # by how much orders differ, in powers of e
_GOLDEN = (5**0.5 - 1) / 2  # whose multiples lie evenly between whole numbers
_SAMPLE = 200  # seeds that say what matters to the model

Progress = Callable[[float], None]


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Return up to `most` of `count` places, evenly spread."""
    return np.sort(np.argsort(np.arange(count) * _GOLDEN % 1, kind="stable")[:most])


class Growth:
    """Boxes that grow by one rule: each stays certified, and each feature's set stays one that has a code."""

    def __init__(self, trees: Trees, schema: Schema, codes: Vector) -> None:
        """Take all people's codes, for the common levels of a category come first."""
        self.trees, self.schema = trees, schema
        kinds = [
            kernels.INTERVAL if f.ordered else kernels.SUBSETS if f.largest < ALL_SUBSETS else kernels.FEW
            for f in schema.features
        ]
        self._families = np.array(kinds)
        held = np.bincount(trees.places(codes).ravel(), minlength=int(trees.starts[-1]))
        parts = zip(trees.starts, trees.starts[1:], strict=False)
        self._common = np.concatenate([np.argsort(-held[a:b], kind="stable") for a, b in parts])

    def grow(
        self, boxes: Boxes, order: Sequence[int], *, up_first: bool = True, progress: Progress | None = None
    ) -> Boxes:
        """Return every box grown in one order of features."""
        grown, trees = np.ascontiguousarray(boxes).copy(), self.trees
        cut = trees.margin - trees.constant
        given = (
            grown,
            np.array(order),
            up_first,
            cut,
            self._families,
            trees.numbers,
            self._common,
            trees.decided_cells,
        )
        if len(grown):
            kernels.run(kernels.grow, len(grown), *given, *trees.arrays, *trees.touched, progress=progress)
        return grown

    def orders(self, points: Boxes, first: Sequence[int], count: int) -> list[list[int]]:
        """Return orders of features: what is said, then what costs the least certainty to leave open, more or less."""
        trees = self.trees
        some = points[spread(len(points), _SAMPLE)]
        before = trees.cell_bounds(some)
        loss = np.zeros(len(trees.widths))
        for j in range(len(loss)):
            wide, part = some.copy(), slice(trees.starts[j], trees.starts[j + 1])
            wide[:, part] = trees.decided_cells[part]
            loss[j] = (before - trees.cell_bounds(wide)).mean() + 1e-9
        shaken = [loss * np.exp(_SPREAD * (np.arange(1, len(loss) + 1) * n * _GOLDEN % 1)) for n in range(count)]
        return [sorted(range(len(loss)), key=lambda j: (j not in first, each[j])) for each in shaken]

    # --- the sparsest ways in --------------------------------------------------------------------------------------

    def ways_in(self, rejected: Vector, progress: Progress | None = None) -> Boxes:
        """Return accepted points that differ from rejected people in as few features as a search finds."""
        found = []
        for at in range(0, len(rejected), _TOGETHER):
            found.append(self._ways_in(rejected[at : at + _TOGETHER]))
            if progress is not None:
                progress(min(1.0, (at + _TOGETHER) / len(rejected)))
        return np.concatenate([self.trees.points(rejected[:0]), *found])

    def _ways_in(self, rejected: Vector) -> Boxes:
        """Search breadth first: of the changes by one feature more, pursue those with the highest scores."""
        trees = self.trees
        own, who = trees.places(rejected), np.arange(len(rejected))
        points, changed = trees.points(rejected), np.zeros((len(rejected), len(trees.widths)), dtype=bool)
        found: list[Boxes] = []
        for _ in range(DEEPEST):
            best, cells = self._best(points, own[who], changed)
            good = best > trees.margin
            ways = [self._chosen(points, best, cells, who, good, _WAYS)]
            found.append(ways[0][0])
            done = np.isin(who, who[good.any(axis=1)])
            next_points, next_who, next_changed = self._chosen(
                points[~done], best[~done], cells[~done], who[~done], np.isfinite(best[~done]), _BEAM, changed[~done]
            )
            points, who, changed = next_points, next_who, next_changed
            if not len(points):
                break
        return np.unique(np.concatenate(found), axis=0)

    def _best(self, points: Boxes, own: NDArray[np.int64], changed: Boxes) -> tuple[Floats, NDArray[np.int64]]:
        """Return for every point and feature the score of its best cell, and that cell.

        The best one is the nearest that is accepted, or else the one with the highest score.
        """
        trees, options = self.trees, self.trees.options(points)
        best, cells = np.full(changed.shape, -np.inf), np.zeros(changed.shape, dtype=np.int64)
        for j, feature in enumerate(self.schema.features):
            change = feature.change
            if feature.role != "feature" or change == "never":
                continue
            start, stop = int(trees.starts[j]), int(trees.starts[j + 1])
            here = np.arange(start, stop)
            scores = options[:, start:stop].copy()
            away = here - own[:, j : j + 1]
            refused = (away == 0) | (change == "up") & (away < 0) | (change == "down") & (away > 0)
            if feature.missing == "level":
                refused[:, -1] = True  # nobody is told to leave something out
            scores[refused] = -np.inf
            far = np.abs(away) if feature.ordered else np.zeros_like(away)
            rank = np.where(scores > trees.margin, -far.astype(np.float64), -np.inf)
            chosen = np.where(np.isfinite(rank).any(axis=1), rank.argmax(axis=1), scores.argmax(axis=1))
            best[:, j], cells[:, j] = scores[np.arange(len(points)), chosen], start + chosen
        best[changed] = -np.inf
        return best, cells

    def _chosen(
        self,
        points: Boxes,
        best: Floats,
        cells: NDArray[np.int64],
        who: NDArray[np.int64],
        allowed: Boxes,
        most: int,
        changed: Boxes | None = None,
    ) -> tuple[Boxes, NDArray[np.int64], Boxes]:
        """Return points with one feature more changed: of each person, those with the highest scores."""
        rows, features = np.nonzero(allowed)
        if not rows.size:
            return points[:0], who[:0], np.zeros((0, best.shape[1]), dtype=bool)
        order = np.lexsort((-best[rows, features], who[rows]))
        rows, features = rows[order], features[order]
        if changed is not None:  # the same set of changes may be reached in several orders
            sets = changed[rows].copy()
            sets[np.arange(len(rows)), features] = True
            both = np.concatenate([who[rows][:, None], np.packbits(sets, axis=1)], axis=1)
            kept = np.sort(np.unique(both, axis=0, return_index=True)[1])
            rows, features = rows[kept], features[kept]
        begins = np.searchsorted(who[rows], who[rows])
        kept = np.flatnonzero(np.arange(len(rows)) - begins < most)
        rows, features = rows[kept], features[kept]
        made, at = points[rows].copy(), np.arange(len(rows))
        for j in np.unique(features).tolist():
            made[features == j, self.trees.starts[j] : self.trees.starts[j + 1]] = False
        made[at, cells[rows, features]] = True
        sets = np.zeros((len(rows), best.shape[1]), dtype=bool) if changed is None else changed[rows].copy()
        sets[at, features] = True
        return made, who[rows], sets

    # --- several people --------------------------------------------------------------------------------------------

    def together(self, points: Boxes, near: NDArray[np.intp], others: Boxes) -> Boxes:
        """Return points, each joined with as many of its neighbours among others as the model allows."""
        boxes = points.copy()
        for neighbours in near.T:
            wider = self.joined(boxes, others[neighbours])
            good = self.trees.cell_bounds(wider) > self.trees.margin
            boxes[good] = wider[good]
        return boxes

    def joined(self, some: Boxes, others: Boxes) -> Boxes:
        """Return the least boxes that have a code and hold two boxes each."""
        both, trees = some | others, self.trees
        for j in range(len(trees.widths)):
            part = both[:, trees.starts[j] : trees.starts[j + 1]]
            if self._families[j] == kernels.INTERVAL:
                there = part[:, : trees.numbers[j]]
                from_low = np.logical_or.accumulate(there, axis=1)
                there[:] = from_low & np.logical_or.accumulate(there[:, ::-1], axis=1)[:, ::-1]
            elif self._families[j] == kernels.FEW:
                size = part.sum(axis=1)
                part[(size > _FEW) & (size < part.shape[1] - _FEW)] = True
        return both
