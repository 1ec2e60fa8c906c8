"""An applicant's costs: a number for every level of every feature, and which levels their constraints allow.

`preferences` compiles them. A form of the question reads them without knowing any preference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Vector
from .features import Feature

CONSTRAINTS = ("immutable", "ranges", "increase_only", "decrease_only", "forbidden")
PREFERENCES = ("weights", *CONSTRAINTS, "metric", "costs", "missing", "override")  # what a form may offer


@dataclass(frozen=True, repr=False)
class Costs:
    """Preferences compiled for one question: what every level of every feature costs, and whether it is allowed.

    Security: private to the applicant.
    """

    features: Sequence[Feature]
    own: Vector  # the applicant's codes
    tables: list[Vector]
    allowed: list[dict[str, NDArray[np.bool_]]]  # for each feature, what each of its constraints allows
    weights: list[int]  # for each feature, how reluctant the applicant is to change it
    exact: list[NDArray[np.float64]] | None = None  # costs before rounding, in whole ranges, if `tables` are coarse
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of numbers, as they were asked for

    def of(self, codes: Sequence[int] | Vector) -> list[int]:
        """Return what each feature of a row costs."""
        return [int(table[code]) for table, code in zip(self.tables, codes, strict=True)]

    def shown(self, codes: Sequence[int] | Vector, unit: int) -> list[float]:
        """Return what each feature of a row costs, where 1 is a change across a whole range at weight 1."""
        if self.exact is None:
            return [cost / unit for cost in self.of(codes)]
        return [float(table[code]) for table, code in zip(self.exact, codes, strict=True)]

    def price(self, codes: Sequence[int] | Vector, unit: int) -> float:
        """Return what a row costs in all, in the same terms."""
        return sum(self.of(codes)) / unit if self.exact is None else sum(self.shown(codes, unit))

    def violated(self, codes: Sequence[int] | Vector) -> dict[str, list[str]]:
        """Return the constraints that a row breaks, by feature."""
        broken = {
            feature.name: [kind for kind, may in allowed.items() if not may[code]]
            for feature, allowed, code in zip(self.features, self.allowed, codes, strict=True)
        }
        return {name: kinds for name, kinds in broken.items() if kinds}
