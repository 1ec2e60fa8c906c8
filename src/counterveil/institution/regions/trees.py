"""A model as trees over levels, and the least that it can say of a box.

Every leaf holds, for each feature, the levels that can reach it. A box reaches a leaf if it has such a level for every
feature. The sum over trees of the least leaf that is reached is then a lower bound of the model's score in the box. A
linear model is a tree for each feature with a leaf for each level, and the bound is its worst corner.

Levels of all features stand side by side, so that a box is one row of booleans. Neighbouring levels that no leaf tells
apart are one cell: boxes grow cell by cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...schema.schema import Schema
from . import kernels
from .ensembles import Floats, Leaf

Boxes = NDArray[np.bool_]  # (N, all levels of all features), or all cells


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees whose sum is the score; the model accepts where it is above `margin`.

    `margin` is above the model's own threshold by more than all roundings of its sum and of ours together.
    """

    widths: tuple[int, ...]  # levels of each feature
    ordered: tuple[int, ...]  # of each feature, how many levels have an order
    values: Floats  # (leaves,)
    reach: Boxes  # (leaves, all levels): which levels can come to each leaf
    first: NDArray[np.int64]  # where each tree's leaves begin, and where the last one's end
    constant: float
    margin: float
    decided: Boxes  # (all levels,): whether the model takes the level at all
    open_ended: tuple[tuple[bool, bool], ...]  # of each feature, whether its end levels hold all that lies beyond

    @classmethod
    def of(
        cls,
        schema: Schema,
        trees: Sequence[Sequence[Leaf]],
        constant: float,
        margin: float,
        decided: Boxes,
        open_ended: Sequence[tuple[bool, bool]] | None = None,
    ) -> Trees:
        """Put trees together from their leaves."""
        trees = trees or [[Leaf(0.0, {})]]
        widths = tuple(feature.largest + 1 for feature in schema.features)
        starts = np.concatenate([[0], np.cumsum(widths)])
        leaves = [leaf for tree in trees for leaf in tree]
        reach = np.ones((len(leaves), int(starts[-1])), dtype=bool)
        for leaf, row in zip(leaves, reach, strict=True):
            for feature, levels in leaf.path.items():
                row[starts[feature] : starts[feature + 1]] = levels
        return cls(
            widths=widths,
            ordered=tuple(f.steps + 1 if f.ordered else 0 for f in schema.features),
            values=np.array([leaf.value for leaf in leaves]),
            reach=reach,
            first=np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64),
            constant=constant,
            margin=margin,
            decided=decided,
            open_ended=tuple(open_ended or [(True, True)] * len(widths)),
        )

    @cached_property
    def parts(self) -> list[slice]:
        """Where the levels of each feature stand."""
        return _slices(self.widths)

    @cached_property
    def digest(self) -> str:
        """A digest of all that decides."""
        sha = hashlib.sha256(np.array([self.constant, self.margin]).tobytes())
        for array in (np.array(self.widths), self.values, np.packbits(self.reach), self.first, self.decided):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()

    # --- cells -----------------------------------------------------------------------------------------------------

    @cached_property
    def cell(self) -> NDArray[np.int64]:
        """The cell of every level."""
        both = np.concatenate([self.reach, self.decided[None]])
        new = np.ones(both.shape[1], dtype=bool)
        for part, ordered in zip(self.parts, self.ordered, strict=True):
            numbers = both[:, part.start : part.start + ordered]
            new[part.start + 1 : part.start + ordered] = (numbers[:, 1:] != numbers[:, :-1]).any(axis=0)
        return np.cumsum(new) - 1

    @cached_property
    def _first_level(self) -> NDArray[np.int64]:
        """The first level of every cell."""
        return np.unique(self.cell, return_index=True)[1]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where the cells of each feature begin, and where the last one's end."""
        return np.append(self.cell[[part.start for part in self.parts]], self.cell[-1] + 1)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Of each feature, how many cells have an order."""
        last = [
            self.cell[p.start + ordered - 1] + 1 if ordered else 0
            for p, ordered in zip(self.parts, self.ordered, strict=True)
        ]
        return np.maximum(np.array(last) - self.starts[:-1], 0)

    @cached_property
    def decided_cells(self) -> Boxes:
        """Whether the model takes each cell."""
        return self.decided[self._first_level]

    def cells_of(self, boxes: Boxes) -> Boxes:
        """Return the cells of boxes of levels: those of which a box has a level."""
        if not len(boxes):
            return np.zeros((0, len(self._first_level)), dtype=bool)
        return np.logical_or.reduceat(boxes, self._first_level, axis=1)

    def levels_of(self, boxes: Boxes) -> Boxes:
        """Return the levels of boxes of cells."""
        return boxes[:, self.cell]

    def places(self, codes: Vector) -> NDArray[np.int64]:
        """Return the cells that people are in, one for each feature."""
        return np.ascontiguousarray(self.cell[codes + np.array([part.start for part in self.parts])])

    def points(self, codes: Vector) -> Boxes:
        """Return people as boxes of one cell for each feature."""
        boxes = np.zeros((len(codes), len(self._first_level)), dtype=bool)
        boxes[np.arange(len(codes))[:, None], self.places(codes)] = True
        return boxes

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """Leaves and the features that limit them, as the loops in machine code take them."""
        reach = np.ascontiguousarray(self.reach[:, self._first_level])
        limited = ~np.logical_and.reduceat(reach, self.starts[:-1], axis=1)
        leaves, features = np.nonzero(limited)
        limit_at = np.searchsorted(leaves, np.arange(len(reach) + 1))
        return self.values, reach, self.first, limit_at, features, self.starts

    @cached_property
    def touched(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The trees that each feature limits, and where those of each feature begin."""
        _, reach, first, *_ = self.arrays
        limited = ~np.logical_and.reduceat(reach, self.starts[:-1], axis=1)
        features, trees = np.nonzero(np.logical_or.reduceat(limited, first[:-1], axis=0).T)
        return np.searchsorted(features, np.arange(len(self.widths) + 1)), trees

    @cached_property
    def work(self) -> float:
        """About how many steps it takes to grow one box."""
        at, trees = self.touched
        sizes, cells = np.diff(self.first), np.diff(self.starts)
        return float(
            sum(cells[j] * sizes[trees[at[j] : at[j + 1]]].sum() for j in range(len(cells))) + len(self.values)
        )

    # --- bounds ----------------------------------------------------------------------------------------------------

    def bounds(self, boxes: Boxes) -> Floats:
        """Return a lower bound of the score in every box of levels; -inf where the model does not take one of them."""
        return self.cell_bounds(self.cells_of(boxes))

    def accepts(self, boxes: Boxes) -> NDArray[np.bool_]:
        """Tell for every box of levels whether it is certain that the model accepts all of it."""
        return self.bounds(boxes) > self.margin

    def cell_bounds(self, boxes: Boxes) -> Floats:
        """Return a lower bound of the score in every box of cells."""
        out = np.empty(len(boxes))
        if len(boxes):
            kernels.run(kernels.bounds, len(boxes), boxes, *self.arrays, out)
        return np.where((boxes & ~self.decided_cells).any(axis=1), -np.inf, out + self.constant)

    def options(self, boxes: Boxes) -> Floats:
        """Return the bound of every box with one cell alone of one feature, for every cell: (boxes, cells)."""
        out = np.empty((len(boxes), len(self._first_level)))
        if len(boxes):
            kernels.run(kernels.options, len(boxes), boxes, *self.arrays, *self.touched, out)
        return np.where(self.decided_cells, out + self.constant, -np.inf)


def _slices(widths: Sequence[int]) -> list[slice]:
    stops = np.cumsum(widths).tolist()
    return [slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True)]
