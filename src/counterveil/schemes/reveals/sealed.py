"""Sealed reveals show no cost: the applicant gets the nearest rows, and learns only that no row is nearer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness
from ...errors import NotOffered
from ..forms import Form
from .reveal import Reveal


@dataclass(frozen=True, kw_only=True)
class Sealed(Reveal):
    """The nearest rows, and nothing about the costs. The rows' order is not told either, so it counts as shuffled."""

    shuffle: bool = True

    protocol = "garbled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shuffle or self.d_min * self.expansion != 1:
            raise NotOffered(self.name, got=f"d_min = {self.d_min}", expected="1: there is nothing to mask")

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        return f"of the costs of all {count:,} rows nothing"

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return no numbers, for one database or for several in columns."""
        return np.zeros((0, *values.shape[1:]), dtype=np.int64)

    def length(self, count: int) -> int:
        """Return 0."""
        return 0

    def capacity(self, field: Residues, count: int) -> float:
        """Return 0."""
        return 0.0

    def rebuilt_after(self, form: Form, field: Residues) -> None:
        """Return None: a ticket gives k rows, however the question was made up."""

    def plausible(self, field: Residues, revealed: Vector, bound: int) -> bool:
        """Return True: nothing was revealed that could be wrong."""
        return True

    def fits(self, field: Residues, revealed: Vector, positions: Sequence[int], paid: Vector) -> bool:
        """Return True: no cost was promised."""
        return True
