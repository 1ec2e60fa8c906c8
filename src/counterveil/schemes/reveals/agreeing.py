"""The agreeing reveal shows costs up to a public limit; of every other row it shows only that it is beyond.

With the form `fixed` the limit is the largest squared distance: the applicant sees the distances of the rows that
agree on the immutable features, and which rows do not agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness
from ...errors import NotOffered
from ..forms import Form
from .reveal import Reveal


@dataclass(frozen=True, kw_only=True)
class Agreeing(Reveal):
    """Costs up to `limit`, and limit + 1 in place of every larger cost; without a limit, all costs."""

    limit: int | None = None  # the form's, set by `fitted`

    protocol = "two_phase"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_min * self.expansion != 1:
            got = f"d_min = {self.d_min}, expansion = {self.expansion}"
            raise NotOffered(self.name, got=got, expected="both 1: the reveal has no mask")

    def fitted(self, form: Form) -> Agreeing:
        """Return the reveal with the form's limit."""
        if form.limit is None:
            raise NotOffered("reveal", got=f"{self.name} of {form.name}", expected="a form with immutable features")
        return replace(self, limit=form.limit)

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        order = ", in an order of this ticket alone" if self.shuffle else ""
        return f"which of all {count:,} rows agree on what may not change, and what these cost{order}"

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Put the costs in the ticket's order, and cut them off above the limit."""
        shown = values[common.order(len(values))] if self.shuffle else values
        return shown if self.limit is None else np.minimum(shown, self.limit + 1)

    def length(self, count: int) -> int:
        """Return how many numbers are revealed of `count` rows."""
        return count

    def capacity(self, field: Residues, count: int) -> float:
        """Return the bits of an element, and of whether a row agrees, for every row: whoever cheats asks for both."""
        return count * (math.log2(field.q) + 1)

    def rebuilt_after(self, form: Form, field: Residues) -> int | None:
        """Return how many tickets rebuild the rows: without immutable features every distance is shown."""
        return form.rebuilt_after(field.q - 1, shuffled=self.shuffle)

    def plausible(self, field: Residues, revealed: Vector, bound: int) -> bool:
        """Say whether every cost is at most the largest that is shown."""
        return int(revealed.max()) <= (bound if self.limit is None else self.limit + 1)

    def fits(self, field: Residues, revealed: Vector, positions: Sequence[int], paid: Vector) -> bool:
        """Say whether the records cost what was revealed."""
        shown = paid if self.limit is None else np.minimum(paid, self.limit + 1)
        return bool((revealed[list(positions)] == shown).all())
