"""The contract of a reveal: what the applicant gets to see of the rows' costs, as if a trusted party computed it.

A reveal has no messages. A protocol (`protocols/`) says which messages bring the applicant exactly this, and nothing
else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...algebra import checks
from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness
from .. import defaults
from ..forms import Form


@dataclass(frozen=True, kw_only=True)
class Reveal(ABC):
    """What the applicant learns of the costs.

    Security: public. The mask and the order are the servers' secret, drawn anew for every ticket.
    """

    name: str
    shuffle: bool = defaults.SHUFFLE_BARE  # rows stand in a secret order, a new one for every ticket
    d_min: int = defaults.D_MIN  # the mask is uniform on {0..expansion*d_min - 1}
    expansion: int = defaults.EXPANSION  # s: costs are multiplied by it before masking (rule 9)

    protocol: ClassVar[str]  # the protocol that computes it by default

    def __post_init__(self) -> None:
        object.__setattr__(self, "shuffle", checks.flag("shuffle", self.shuffle))
        object.__setattr__(self, "d_min", checks.integer("d_min", self.d_min, 1))
        object.__setattr__(self, "expansion", checks.integer("expansion", self.expansion, 1))

    @property
    def differences(self) -> bool:
        """Whether costs are revealed only up to one common shift."""
        return False

    @property
    def masked(self) -> bool:
        """Whether noise is added to costs."""
        return False

    @property
    def exact(self) -> bool:
        """Whether a nearest row is found for every question; with a mask, only where the gap reaches d_min (rule 8)."""
        return self.d_min == 1

    @property
    def most_records(self) -> int | None:
        """The most records that a question may get; None for no limit."""
        return None if self.exact else 1

    def fitted(self, form: Form) -> Reveal:
        """Return the reveal as it is used with this form, whose public numbers it may need."""
        return self

    @abstractmethod
    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return what is revealed of the costs, an (M,) vector, or (M, n) for n databases, one in each column."""

    @abstractmethod
    def length(self, count: int) -> int:
        """Return how many numbers are revealed of `count` rows."""

    @abstractmethod
    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""

    @abstractmethod
    def capacity(self, field: Residues, count: int) -> float:
        """Return the most bits about the rows that one question can reveal, however it was made up."""

    @abstractmethod
    def rebuilt_after(self, form: Form, field: Residues) -> int | None:
        """Return how many tickets rebuild the rows by the attacks we know; None if no attack does.

        `research.attacks` has the attacks, and tests compare this number with them.
        """

    @abstractmethod
    def plausible(self, field: Residues, revealed: Vector, bound: int) -> bool:
        """Say whether costs up to `bound` can look as revealed. If not, somebody lied."""

    @abstractmethod
    def fits(self, field: Residues, revealed: Vector, positions: Sequence[int], paid: Vector) -> bool:
        """Say whether records that cost `paid` can stand at these positions, given what was revealed."""
