"""The tariff: the public numbers that bound what any question can cost.

Security: public. Nothing here depends on who asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import OutOfRange
from .features import Categorical
from .schema import Schema

_LEAST_UNIT = 100  # so that partial changes have different costs even if every feature has few levels


@dataclass(frozen=True)
class Tariff:
    """The public numbers that bound every cost: nothing here depends on who asks (rule 11)."""

    schema: Schema
    max_weight: int  # L
    d_min: int

    def check_efforts(self) -> None:
        """Refuse an effort above the largest weight: no bound on a cost would hold."""
        for feature in self.schema.cost_features:
            if feature.effort > self.max_weight:
                expected = f"at most {self.max_weight}, the largest weight of the deployment"
                raise OutOfRange(f"effort, {feature.name}", got=feature.effort, expected=expected)

    @cached_property
    def stretch(self) -> int:
        """The largest R of an ordered feature. All are stretched to it, so that full ranges count the same."""
        return max([f.steps for f in self.schema.cost_features if f.ordered], default=1)

    @property
    def unit(self) -> int:
        """The cost, at weight 1, of a change across a whole range."""
        return max(self.stretch**2, _LEAST_UNIT)

    @property
    def cap(self) -> int:
        """C, the most that an allowed change of one feature costs; one-hot categories count twice."""
        twice = any(isinstance(f, Categorical) and f.encoding == "one-hot" for f in self.schema.cost_features)
        return self.max_weight * self.unit * (2 if twice else 1)

    @property
    def forbidden(self) -> int:
        """F = dC + d_min, the cost of a forbidden change: more than every allowed total."""
        return len(self.schema.cost_features) * self.cap + self.d_min
