"""Changes of an answer: one feature that would have to change, or one condition of a region that does not hold yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..schema.boxes import LIMITS, Members
from ..schema.features import Feature, Value


@dataclass(frozen=True)
class Change:
    """One feature that would have to change."""

    feature: Feature
    before: Value
    after: Value
    direction: int  # 1 up, -1 down, 0 if the values have no order
    cost: float  # 1 is the cost of a change across a whole range, at weight 1
    share: float  # the part of the cost of all changes

    def text(self) -> str:
        """Describe the change in words: "raise savings from 1,000 € to 5,000 €"."""
        verb = {1: "raise", -1: "lower", 0: "change"}[self.direction]
        return f"{verb} {self.feature.title} from {self.feature.show(self.before)} to {self.accepted()}"

    def accepted(self) -> str:
        """Say what would be accepted: "5,000 €"."""
        return self.feature.show(self.after)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        return {
            "feature": self.feature.name,
            "label": self.feature.title,
            "from": self.before,
            "to": self.after,
            "from_text": self.feature.show(self.before),
            "to_text": self.accepted(),
            "cost": self.cost,
            "share": self.share,
        }


@dataclass(frozen=True, eq=False)
class Condition(Change):
    """One condition of a region that does not hold yet; `after` is the value in the region that costs the least."""

    inside: str  # which values are in the region, in words
    members: Members  # and which levels

    def text(self) -> str:
        """Describe the condition in words: "savings at least 500 DM", "housing: owned or rented"."""
        return self.feature.title + (" " if self.inside.startswith(LIMITS) else ": ") + self.inside

    def accepted(self) -> str:
        """Say what would be accepted: "at least 500 DM"."""
        return self.inside

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON; an ordered feature has the ends of its interval."""
        there = np.flatnonzero(self.members[: self.feature.steps + 1]).tolist()
        values = [self.feature.value(level) for level in there]
        inside: dict[str, Any] = {"values": values}
        if self.feature.ordered:
            inside = {"lowest": values[0] if values else None, "highest": values[-1] if values else None}
        missing = bool(self.members[self.feature.steps + 1 :].any())
        return super().to_dict() | {"inside": inside | {"missing": missing}}
