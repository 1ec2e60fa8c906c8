"""Trees as a fitted model or its file holds them, read the way that the model itself reads its inputs.

A split sends a number to one side, and what is missing to a side of its own choice. Models differ: in whether a number
on the threshold goes left, in how many bits they compare and add, and in what they take for missing. All of that is
said here, so that a whole interval of inputs is sent to every side that one of its numbers can come to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import OutOfRange

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ZERO = float(np.float32(1e-35))  # LightGBM takes numbers up to this for zero
_ROUNDING = 8.0  # units in the last place for each number added up: of the model's sum and of ours, with room
_LINK_ROUNDING = 32.0  # units in the last place of a probability


class Column(NamedTuple):
    """One input of the trees: the feature it comes from, and between which numbers it lies at each level."""

    feature: int  # -1 for an input that is the same for everybody
    low: Floats  # (levels of the feature,); nan where it is missing
    high: Floats


class Leaf(NamedTuple):
    """A leaf: its value, and for each feature on the way to it the levels that can come here."""

    value: float
    path: Mapping[int, Flags]


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree, its nodes numbered from 0. Node 0 is the root."""

    column: NDArray[np.int64]  # the input that a node splits; -1 at a leaf
    threshold: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Floats
    missing_left: Flags
    # At splits of categories: which go to one side, and whether that side is the left one. All others go to the other.
    categories: Mapping[int, tuple[frozenset[int], bool]] = field(default_factory=dict)
    missing_is_zero: Flags | None = None  # at these splits a missing number counts as 0
    zero_is_missing: Flags | None = None  # at these splits 0 counts as missing

    def __post_init__(self) -> None:
        """Refuse nodes that are no tree, so that whoever walks through it comes to an end."""
        split = self.column >= 0
        children = np.concatenate([self.left[split], self.right[split]])
        if children.size and not (children.min() >= 1 and children.max() < len(self.column)):
            raise ValueError("a split without a node on one of its sides")
        if children.size and np.bincount(children).max() > 1:
            raise ValueError("a node below two splits")


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees whose leaves are added up."""

    trees: Sequence[Tree]
    constant: float
    inclusive: bool  # a number on the threshold goes left
    single: bool  # inputs are rounded to 32 bits before they are compared
    bits: int = 53  # of the numbers that the model adds up

    @property
    def rounding(self) -> float:
        """By how much the model's sum and ours may differ at most."""
        return rounding(len(self.trees), self._scale, self.bits)

    @property
    def _scale(self) -> float:
        return abs(self.constant) + sum(float(np.abs(tree.value[tree.column < 0]).max()) for tree in self.trees)

    def leaves(self, columns: Sequence[Column], sign: int) -> list[list[Leaf]]:
        """Return for each tree the leaves that some level of every feature can come to."""
        seen = [Column(c.feature, self._rounded(c.low), self._rounded(c.high)) for c in columns]
        return [[Leaf(sign * leaf.value, leaf.path) for leaf in self._leaves(tree, seen)] for tree in self.trees]

    def scores(self, inputs: Floats) -> Floats:
        """Return the sum of leaves for every row of inputs."""
        inputs = self._rounded(inputs)
        total = np.full(len(inputs), self.constant)
        for tree in self.trees:
            waiting: list[tuple[int, NDArray[np.intp]]] = [(0, np.arange(len(inputs)))]
            while waiting:
                at, rows = waiting.pop()
                if tree.column[at] < 0:
                    total[rows] += tree.value[at]
                elif rows.size:
                    points = inputs[rows, tree.column[at]]
                    left, _ = self._sides(tree, at, points, points)
                    waiting += [(int(tree.left[at]), rows[left]), (int(tree.right[at]), rows[~left])]
        return total

    def splits_categories(self, column: int) -> bool:
        """Tell whether some split takes this input for a category."""
        return any(tree.column[at] == column for tree in self.trees for at in tree.categories)

    def _rounded(self, numbers: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32).astype(np.float64) if self.single else numbers

    def _leaves(self, tree: Tree, columns: Sequence[Column]) -> list[Leaf]:
        leaves: list[Leaf] = []
        waiting: list[tuple[int, dict[int, Flags]]] = [(0, {})]
        while waiting:
            at, path = waiting.pop()
            if tree.column[at] < 0:
                leaves.append(Leaf(float(tree.value[at]), {j: levels for j, levels in path.items() if j >= 0}))
                continue
            column = columns[tree.column[at]]
            sides = self._sides(tree, at, column.low, column.high)
            for child, levels in zip((int(tree.left[at]), int(tree.right[at])), sides, strict=True):
                onwards = path[column.feature] & levels if column.feature in path else levels
                if onwards.any():
                    waiting.append((child, path | {column.feature: onwards}))
        return leaves

    def _sides(self, tree: Tree, at: int, low: Floats, high: Floats) -> tuple[Flags, Flags]:
        """Tell for intervals of inputs whether a number of theirs goes left, and whether one goes right."""
        gone, missing_left = np.isnan(low), bool(tree.missing_left[at])
        if at in tree.categories:
            named, to_left = tree.categories[at]
            inside = np.isin(low, list(named))
            left = np.where(gone, missing_left, inside if to_left else ~inside)
            return left, ~left
        if tree.missing_is_zero is not None and tree.missing_is_zero[at]:
            low, high, gone = np.where(gone, 0.0, low), np.where(gone, 0.0, high), np.zeros_like(gone)
        threshold = tree.threshold[at]
        left, right = (low <= threshold, high > threshold) if self.inclusive else (low < threshold, high >= threshold)
        if tree.zero_is_missing is not None and tree.zero_is_missing[at]:
            some, only = (low <= _ZERO) & (high >= -_ZERO), (low >= -_ZERO) & (high <= _ZERO)
            left, right = left & ~only | some & missing_left, right & ~only | some & (not missing_left)
        return np.where(gone, missing_left, left), np.where(gone, not missing_left, right)


def rounding(terms: int, scale: float, bits: int) -> float:
    """Return by how much two sums of the same terms may differ; `scale` is the sum of their sizes."""
    return _ROUNDING * 2.0**-bits * (terms + 1) * scale


@dataclass(frozen=True)
class Link:
    """How a model's sum becomes the score that it shows, and a threshold of that score a threshold of the sum."""

    kind: str = "identity"  # or "logistic", or "share": of trees, from the sum of what speaks for and against
    factor: float = 1.0  # of a logistic link
    usual: float | None = 0.5  # the threshold where none is given; None where one must be

    def cut(self, threshold: float | None, sign: int, bits: int = 53) -> float:
        """Return what the sum, times `sign`, must be above of."""
        given = self.usual if threshold is None else threshold
        if given is None:
            raise OutOfRange("threshold", got="none", expected="the score above which this model accepts")
        if self.kind == "identity":
            return sign * given + abs(given) * _LINK_ROUNDING * 2.0**-bits
        if not 0 < given < 1:
            raise OutOfRange("threshold", got=given, expected="a probability between 0 and 1")
        if self.kind == "share":
            return 2 * given - 1 + _LINK_ROUNDING * 2.0**-bits
        slack = _LINK_ROUNDING * 2.0**-bits / (given * (1 - given))
        return (math.log(given / (1 - given)) + slack) / self.factor
