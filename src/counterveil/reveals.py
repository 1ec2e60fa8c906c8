"""Reveals: what of the rows' costs the applicant gets to see, and how the nearest row is found from it.

A reveal is a linear map of the costs (the costs themselves, or consecutive differences), with or without a mask, with
or without a secret order. One table holds them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import checks
from .arrays import Vector
from .errors import OutOfRange, UnknownName
from .field import Field
from .randomness import CommonRandomness


@dataclass(frozen=True, kw_only=True)
class Reveal:
    """What the applicant learns of the costs.

    Security: public. The mask and the order are the servers' secret, drawn anew for every ticket.
    """

    name: str
    differences: bool = False
    masked: bool = False
    shuffle: bool = False
    d_min: int = 1  # the mask is uniform on {0..expansion*d_min - 1}
    expansion: int = 1  # s: costs are multiplied by it before masking (rule 9)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shuffle", checks.flag("shuffle", self.shuffle))
        object.__setattr__(self, "d_min", checks.integer("d_min", self.d_min, 1))
        object.__setattr__(self, "expansion", checks.integer("expansion", self.expansion, 1))
        if not self.masked and self.expansion * self.d_min != 1:
            got = f"d_min = {self.d_min}, expansion = {self.expansion}"
            raise OutOfRange("mask", got=got, expected=f"both 1: the reveal {self.name} has no mask")

    @property
    def exact(self) -> bool:
        """Whether a nearest row is found for every question; with a mask, only where the gap reaches d_min (rule 8)."""
        return self.d_min == 1

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        each = f"{count - 1:,} differences between costs" if self.differences else f"the costs of all {count:,} rows"
        noise = f", each cost with noise in 0..{self.expansion * self.d_min - 1}" if self.masked else ""
        return each + noise + (", in an order of this ticket alone" if self.shuffle else "")

    def bound(self, B: int) -> int:
        """Return what q must exceed for costs up to B (rules 5, 6 and 9; twice as much to tell signs apart)."""
        return (2 if self.differences else 1) * (self.expansion * (B + self.d_min) - 1)

    def length(self, count: int) -> int:
        """Return how many symbols each server sends down for `count` rows."""
        return count - 1 if self.differences else count

    def linear(self, field: Field, values: Vector) -> Vector:
        """Return the linear map of the values: themselves, or r(i) = d_i - d_(i+1)."""
        return field.sub(values[:-1], values[1:]) if self.differences else values

    def constant(self, field: Field, value: int) -> int:
        """Return what becomes of a term that is the same for every row: its multiple, or nothing in differences."""
        return 0 if self.differences else self.expansion * value % field.q

    def apply(self, field: Field, values: Vector, common: CommonRandomness) -> Vector:
        """Put the values in the ticket's order, mask them, and map them; the same at every server (rule 3)."""
        if self.shuffle:
            values = values[common.order(len(values))]
        if self.masked:
            mu = common.elements("mask", self.expansion * self.d_min, len(values))
            values = field.add(field.mul(values, self.expansion % field.q), mu % field.q)
        return self.linear(field, values)

    def relative(self, field: Field, revealed: Vector) -> Vector:
        """Return the (masked) costs that the applicant can tell, up to one common shift.

        Paper: line 4 of `alg_difference_distance`, for all i at once: d_1 - d_(i+1) is a sum of differences.
        """
        if not self.differences:
            return revealed
        return np.concatenate([[0], -np.cumsum(field.signed(revealed))])

    def nearest(self, field: Field, revealed: Vector) -> int:
        """Return the position of the least cost; of equal ones the first (rule 7: all are right answers).

        Paper: `alg_difference_distance` keeps the last.
        """
        return int(np.argmin(self.relative(field, revealed)))


REVEALS: dict[str, Reveal] = {
    reveal.name: reveal
    for reveal in [
        Reveal(name="distances"),
        Reveal(name="differences", differences=True),
        Reveal(name="masked", masked=True),
        Reveal(name="masked_differences", masked=True, differences=True),
    ]
}


def make_reveal(name: str, *, shuffle: bool = False, d_min: int = 1, expansion: int = 1) -> Reveal:
    """Build the reveal of that name."""
    if name not in REVEALS:
        raise UnknownName("reveal", got=name, expected=f"one of {', '.join(REVEALS)}")
    return replace(REVEALS[name], shuffle=shuffle, d_min=d_min, expansion=expansion)
