"""Any private cost: sum_j c_j[y_j], where the applicant chooses the cost tables c_j, two servers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from numpy.typing import ArrayLike

from ...algebra import checks
from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...engine import Plan
from ...errors import NotOffered, TableOverflow, WrongShape, WrongType
from ...schema.costs import PREFERENCES, Costs
from ...schema.tariff import Tariff
from .form import Example, Form, Question


@dataclass(frozen=True, kw_only=True)
class Table(Form):
    """Share the tables; a server adds up the shares of the entries that a row's codes point at.

    `cap` is the public bound on the average cost of a feature: all d features together cost at most d * cap. Without
    it, the bound is that of the weighted squared distance. That distance is also the cost if a question has no tables.
    A change of an immutable feature then costs more than all other changes together.

    `owners` says which feature each column belongs to, if features have several. A row's codes of one feature cost no
    more together than the dearest code of that feature, so d counts features, not columns.
    """

    cap: int | None = None
    owners: tuple[int, ...] = ()

    name = "table"
    additive = True
    offers = frozenset(PREFERENCES)
    forbids_evenly = True
    tabular = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None:
            object.__setattr__(self, "cap", checks.integer("cap", self.cap, 1))

    @classmethod
    def for_tariff(cls, tariff: Tariff, **options: Any) -> Form:
        """Return the form over the schema's levels, or sets of them, bounded by a forbidden change of every feature."""
        layout = tariff.layout
        return cls(largest=layout.largest, cap=tariff.forbidden, owners=layout.owners, **options)

    def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
        """Ask with the tables as they are: every preference is in them."""
        return Question(costs=tariff.layout.tables(costs)), costs

    def unbounded(self, room: int) -> Form:
        """Return a table whose entries may be as large as the field holds."""
        return Table(largest=self.largest, max_weight=self.max_weight, cap=room // self.d)

    def rebuilt_after(self, room: int, *, noise: int = 1, shuffled: bool = False) -> int | None:
        """Return how many questions read all levels, if each cost up to `room` tells several levels as its digits.

        If rows stand in a secret order, some features are asked in every question, to link the answers by row.
        """
        most = self.d * (room // self.d) // noise
        return len(digit_groups(self.largest, most, link_keys(self.largest, most) if shuffled else ()))

    @classmethod
    def example(cls) -> Example:
        """Return the form over one feature of two levels that cost 0 or 1, with all its possible tables."""
        form = cls(largest=(1,), cap=1)
        return Example(form, form.load([[0], [1]]), tuple(Question(costs=[t]) for t in product((0, 1), repeat=2)))

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server: one for each level of each feature."""
        return sum(R + 1 for R in self.largest)

    @property
    def bound(self) -> int:
        """B = d * cap, or L * sum R_j²."""
        if self.cap is None:
            return self.max_weight * sum(R**2 for R in self.largest)
        return (len(set(self.owners)) or self.d) * self.cap

    def encode(self, question: Question) -> list[int]:
        """Return the tables, one after the other; x is not needed beside them."""
        if question.x is not None:
            self.point(question)
        if question.costs is None:
            self._check_own_distances()
            tables = self.distances(question)
        elif question.weights is not None or question.immutable is not None:
            raise WrongType("weights", got="weights or a set beside costs", expected="one or the other")
        else:
            costs = checks.listed("costs", question.costs, f"{self.d} tables")
            if len(costs) != self.d:
                raise WrongShape("costs", got=f"{len(costs)} tables", expected=f"{self.d}")
            tables = [self._entries(j, entries) for j, entries in enumerate(costs)]
        dearest: dict[int, int] = {}
        for owner, entries in zip(self.owners or range(self.d), tables, strict=True):
            dearest[owner] = max(dearest.get(owner, 0), *entries)
        total = sum(dearest.values())
        if total > self.bound:
            raise TableOverflow("costs", got=f"a largest total of {total}", expected=f"at most {self.bound}")
        return [entry for entries in tables for entry in entries]

    def distances(self, question: Question) -> list[list[int]]:
        """Return the tables of a question without any: weighted squared distances; immutable features must not change.

        Such a change costs 1 more than all weighted distances together can. A form with another `question` has another
        cost, so it needs another `distances` too.
        """
        weights, own = self.weights(replace(question, immutable=None)), self.point(question)
        too_dear = sum(w * R**2 for w, R in zip(weights, self.largest, strict=True)) + 1
        features = zip(weights, own, self.largest, self.immutable(question), strict=True)
        return [[too_dear * (v != x) if kept else w * (v - x) ** 2 for v in range(R + 1)] for w, x, R, kept in features]

    def _check_own_distances(self) -> None:
        """Refuse to count squared distances for a form that asks for another cost when it is deployed."""
        kind = type(self)
        if kind.question is not Table.question and kind.distances is Table.distances:
            expected = f"tables of costs, since the form {self.name} has a question of its own and no distances"
            raise NotOffered("costs", got="nothing", expected=expected)

    def _entries(self, j: int, entries: ArrayLike) -> list[int]:
        array = checks.integers(f"costs[{j}]", entries, (self.largest[j] + 1,))
        checks.in_range(f"costs[{j}]", array, 0)
        whole: list[int] = array.tolist()
        return whole

    def plan(self, field: Residues, query: Vector) -> Plan:
        """Return the plan to add up, for every row, the entries of the share that its codes point at."""
        return Plan("table", field, (query,), sizes=tuple(R + 1 for R in self.largest))


def fits(largest: Sequence[int], features: Iterable[int], most: int) -> bool:
    """Say whether a number up to `most` can hold the levels of these features, each as a digit of its own."""
    return math.prod(largest[feature] + 1 for feature in features) <= max(1, most)


def digit_groups(largest: Sequence[int], most: int, keys: Sequence[int] = ()) -> list[list[int]]:
    """Group the features so that one number can tell the levels of a group; every group begins with the keys."""
    groups: list[list[int]] = []
    for feature in (f for f in range(len(largest)) if f not in keys):
        if groups and fits(largest, [*groups[-1], feature], most):
            groups[-1].append(feature)
        else:
            groups.append([*keys, feature])
    return groups


def link_keys(largest: Sequence[int], most: int) -> list[int]:
    """Return the features to link answers by: those with the most levels, as long as any other fits beside them."""
    features, keys = range(len(largest)), list[int]()
    if fits(largest, features, most):
        return []
    for feature in sorted(features, key=lambda f: -largest[f]):
        others = [f for f in features if f not in (*keys, feature)]
        if others and all(fits(largest, [*keys, feature, other], most) for other in others):
            keys.append(feature)
    return keys
