"""A model as trees over levels, and the least that it can say of a box.

Every leaf holds, for each feature, the levels that can reach it. A box reaches a leaf if it has such a level for every
feature. The sum over trees of the least leaf that is reached is then a lower bound of the model's score in
the box. A linear model is a tree for each feature with a leaf for each level, and the bound is its worst corner.

Levels of all features stand side by side, so that a box is one row of booleans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.bool_]  # (N, all levels of all features)
Floats = NDArray[np.float64]

_CHUNK = 1 << 22  # pairs of a box and a leaf looked at together


class Limit(NamedTuple):
    """The leaves that one feature limits: each has one of a few sets of levels that can come to it."""

    leaves: NDArray[np.intp]
    sets: NDArray[np.float32]  # (levels of the feature, sets)
    which: NDArray[np.intp]  # the set of each leaf


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees whose sum is the score; the model accepts where it is above `margin`.

    `margin` is above 0 by more than all roundings of the model's sum and of ours together.
    """

    widths: tuple[int, ...]  # levels of each feature
    values: Floats  # (leaves,)
    reach: Boxes  # (leaves, all levels): which levels can come to each leaf
    first: NDArray[np.intp]  # where each tree's leaves begin
    constant: float
    margin: float
    decided: NDArray[np.bool_]  # (all levels,): whether the model takes the level at all

    @cached_property
    def parts(self) -> list[slice]:
        """Where the levels of each feature stand."""
        stops = np.cumsum(self.widths).tolist()
        return [slice(stop - width, stop) for stop, width in zip(stops, self.widths, strict=True)]

    @cached_property
    def limits(self) -> list[Limit]:
        """For each feature the leaves that not all of its levels can come to."""
        made = []
        for part in self.parts:
            leaves = np.flatnonzero(~self.reach[:, part].all(axis=1))
            sets, which = np.unique(self.reach[leaves, part], axis=0, return_inverse=True)
            made.append(Limit(leaves, sets.T.astype(np.float32), which.reshape(-1)))
        return made

    def misses(self, feature: int, members: Boxes) -> Boxes:
        """Return, for sets of one feature's levels, which of the leaves it limits they cannot come to."""
        limit = self.limits[feature]
        return np.asarray(members.astype(np.float32) @ limit.sets == 0)[:, limit.which]

    def blocked(self, boxes: Boxes) -> NDArray[np.int16]:
        """Return by how many features every leaf is out of reach of every box: (boxes, leaves)."""
        count = np.zeros((len(boxes), len(self.values)), dtype=np.int16)
        for feature, part in enumerate(self.parts):
            count[:, self.limits[feature].leaves] += self.misses(feature, boxes[:, part])
        return count

    def least(self, reached: Boxes) -> Floats:
        """Return the sum over trees of the least leaf reached, for every row of leaves reached."""
        leaves = np.where(reached, self.values, np.inf)
        return np.asarray(self.constant + np.minimum.reduceat(leaves, self.first, axis=1).sum(axis=1))

    def bounds(self, boxes: Boxes) -> Floats:
        """Return a lower bound of the score in every box; -inf where the model does not take one of its levels."""
        size = max(1, _CHUNK // len(self.values))
        chunks = [boxes[start : start + size] for start in range(0, len(boxes), size)]
        least = np.concatenate([self.least(self.blocked(chunk) == 0) for chunk in chunks] or [np.zeros(0)])
        return np.where((boxes & ~self.decided).any(axis=1), -np.inf, least)

    def accepts(self, boxes: Boxes) -> NDArray[np.bool_]:
        """Tell for every box whether it is certain that the model accepts all of it."""
        return self.bounds(boxes) > self.margin
