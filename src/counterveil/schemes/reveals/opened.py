"""Opened reveals show costs or consecutive differences, with or without a mask, in a secret order or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness
from ...errors import OutOfRange
from ..forms import Form
from .reveal import Reveal


@dataclass(frozen=True, kw_only=True)
class Opened(Reveal):
    """A linear map of the costs, which every server can apply to its shares."""

    differences: bool = False
    masked: bool = False

    protocol = "padded"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.masked and self.expansion * self.d_min != 1:
            got = f"d_min = {self.d_min}, expansion = {self.expansion}"
            raise OutOfRange("mask", got=got, expected=f"both 1: the reveal {self.name} has no mask")

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        each = f"{count - 1:,} differences between costs" if self.differences else f"the costs of all {count:,} rows"
        noise = f", each cost with noise in 0..{self.expansion * self.d_min - 1}" if self.masked else ""
        return each + noise + (", in an order of this ticket alone" if self.shuffle else "")

    def length(self, count: int) -> int:
        """Return how many numbers are revealed of `count` rows."""
        return count - 1 if self.differences else count

    def capacity(self, field: Residues, count: int) -> float:
        """Return the bits that the revealed elements hold (rule 5)."""
        return self.length(count) * math.log2(field.q)

    def rebuilt_after(self, form: Form, field: Residues) -> int | None:
        """Return how many tickets a cheat needs. Their costs are as large as the field holds, which outdoes a mask."""
        room = ((field.q - 1) // (2 if self.differences else 1) + 1) // self.expansion - self.d_min
        noise = (2 if self.differences else 1) * self.expansion * self.d_min if self.masked else 1
        return form.rebuilt_after(room, noise=noise, shuffled=self.shuffle)

    def bound(self, B: int) -> int:
        """Return what q must exceed for costs up to B (rules 5, 6 and 9; twice as much to tell signs apart)."""
        return (2 if self.differences else 1) * (self.expansion * (B + self.d_min) - 1)

    def linear(self, field: Residues, values: Vector) -> Vector:
        """Return the linear map of the values: themselves, or r(i) = d_i - d_(i+1)."""
        return field.sub(values[:-1], values[1:]) if self.differences else values

    def constant(self, field: Residues, value: int) -> int:
        """Return what a term that is the same for every row becomes: its multiple, or 0 in differences."""
        return 0 if self.differences else self.expansion * value % field.q

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Put the values in the ticket's order, mask them, and map them; the same at every server (rule 3)."""
        return self.linear(field, self.in_order(field, values, common))

    def in_order(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return the values in the ticket's order, masked."""
        if self.shuffle:
            values = values[common.order(len(values))]
        if self.masked:
            mu = common.elements("mask", self.expansion * self.d_min, len(values))
            values = field.add(field.mul(values, self.expansion % field.q), mu % field.q)
        return values

    def relative(self, field: Residues, revealed: Vector) -> Vector:
        """Return, by position, the costs (masked ones, if there is a mask) up to one common shift.

        Paper: line 4 of `alg_difference_distance`, for all i at once: d_1 - d_(i+1) is a sum of differences.
        """
        if not self.differences:
            return revealed
        return np.concatenate([[0], -np.cumsum(field.signed(revealed))])

    def nearest(self, field: Residues, revealed: Vector) -> int:
        """Return the position of the least cost; of equal costs the first (rule 7: all are right answers).

        Paper: `alg_difference_distance` keeps the last.
        """
        return int(np.argmin(self.relative(field, revealed)))

    def plausible(self, field: Residues, revealed: Vector, bound: int) -> bool:
        """Say whether every cost is at most the largest possible one."""
        relative = self.relative(field, revealed)
        largest = self.expansion * (bound + self.d_min) - 1
        return int(relative.max() - min(0, int(relative.min()))) <= largest

    def fits(self, field: Residues, revealed: Vector, positions: Sequence[int], paid: Vector) -> bool:
        """Say whether the records cost what was revealed, apart from the mask and, for differences, a common shift."""
        excess = self.relative(field, revealed)[list(positions)] - self.expansion * paid
        excess = excess - excess[0] if self.differences else excess
        mask = self.expansion * self.d_min - 1
        return bool((excess >= (-mask if self.differences else 0)).all() and (excess <= mask).all())
