"""Capped L1: a change costs its share of the range, and beyond a cap it costs no more.

This form of the question comes from another package. `docs/adding.md` of Counterveil explains it line by line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from counterveil.algebra import checks
from counterveil.schema.costs import CONSTRAINTS, Costs
from counterveil.schema.tariff import Tariff
from counterveil.schemes.forms import Question
from counterveil.schemes.forms.table import Table


@dataclass(frozen=True, kw_only=True)
class CappedL1(Table):
    """Share tables of w_j * min(|y_j - x_j|, c); a server adds up their entries as for any table.

    `percent` is the cap c as a share of every feature's range. It is public.
    """

    percent: int = 50

    name = "capped_l1"
    offers = frozenset({"weights", *CONSTRAINTS})
    options = frozenset({"percent"})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "percent", checks.integer("percent", self.percent, 1, 100))

    def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
        """Ask with tables of capped differences; what the constraints forbid keeps the cost of the tariff."""
        tables, most = [], self.percent / 100
        for feature, own, table, weight in zip(costs.features, costs.own, costs.tables, costs.weights, strict=True):
            codes = np.arange(feature.largest + 1)
            away = (codes != own).astype(np.float64)  # 1 for another category, and where a value is missing
            if feature.ordered and own <= feature.steps:
                present = codes <= feature.steps
                away[present] = np.abs(codes[present] - own) / feature.steps
            capped = np.rint(tariff.unit * np.minimum(away, most)).astype(np.int64)
            tables.append(np.where(table == tariff.forbidden, table, weight * capped))
        return Question(costs=tables), replace(costs, tables=tables)

    def distances(self, question: Question) -> list[list[int]]:
        """Return the tables, in levels, of a question that has only x and weights; `retrieve` needs them."""
        features = zip(self.weights(question), self.point(question), self.largest, strict=True)
        return [[w * min(abs(v - x), -(-R * self.percent // 100)) for v in range(R + 1)] for w, x, R in features]
