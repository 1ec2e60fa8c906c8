"""The tariff: the public numbers that bound what any question can cost.

Security: public. Nothing here depends on who asks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import OutOfRange
from .features import Categorical
from .layouts import Layout, RecordKind
from .schema import Schema

_LEAST_UNIT = 100  # so that partial changes have different costs even if every feature has few levels
FEWEST_STEPS = 7  # costs that the metric `fewest` tells apart, at least, if a unit was chosen


@dataclass(frozen=True)
class Tariff:
    """The public numbers that bound every cost: nothing here depends on who asks (rule 11)."""

    schema: Schema
    max_weight: int  # L
    d_min: int
    record: RecordKind = "row"
    intervals: bool = False  # whether ordered features of regions have one code over all intervals
    chosen_unit: int | None = None  # the unit, if the deployment chose one

    @cached_property
    def layout(self) -> Layout:
        """Which columns of codes there are, and what they cost."""
        return Layout(self.schema, self.record, self.intervals)

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
        return self.chosen_unit or max(self.stretch**2, _LEAST_UNIT)

    @property
    def cap(self) -> int:
        """C, the most that an allowed change of one feature costs; one-hot categories count twice.

        A chosen unit may be small. Then C is still large enough for the metric `fewest`: nobody is told who uses it.
        """
        features = self.schema.cost_features
        twice = any(isinstance(f, Categorical) and f.encoding == "one-hot" for f in features)
        cost = self.max_weight * self.unit * (2 if twice else 1)
        return cost if self.chosen_unit is None else max(cost, FEWEST_STEPS * (len(features) + 1) + 1)

    @property
    def forbidden(self) -> int:
        """F = dC + d_min, the cost of a forbidden change: more than every allowed total."""
        return len(self.schema.cost_features) * self.cap + self.d_min

    @property
    def bound(self) -> int:
        """The most that any row costs: a forbidden change of every feature. Codes do not count, features do."""
        return len(self.schema.cost_features) * self.forbidden

    def small(self, bits: int, least: int) -> Tariff:
        """Return the tariff with the largest unit whose costs fit into `bits` bits, but with no unit below `least`."""
        most = max(self.stretch**2, _LEAST_UNIT, least)
        units = range(least, most + 1)  # costs grow with the unit, so a search by halves finds the last that fits
        fitting = bisect_right(units, bits, key=lambda unit: replace(self, chosen_unit=unit).bound.bit_length())
        return replace(self, chosen_unit=units[max(0, fitting - 1)])
