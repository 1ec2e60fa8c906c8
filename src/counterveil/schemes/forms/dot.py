"""The paper's remark on the dot product: the nearest row has the largest product, two servers."""

from __future__ import annotations

from dataclasses import dataclass

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from .form import Example, Polynomial, Question


@dataclass(frozen=True, kw_only=True)
class Dot(Polynomial):
    """Share w∘x; a server evaluates B - y·Q.

    Paper: the footnote that preferences "can be implemented directly in the rejected sample".
    """

    max_weight: int = 1

    name = "dot"

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server: d."""
        return self.d

    @property
    def bound(self) -> int:
        """B = L * sum R_j²."""
        return self.max_weight * sum(R**2 for R in self.largest)

    def encode(self, question: Question) -> list[int]:
        """Return w∘x."""
        return [w * x for w, x in zip(self.weights(question), self.point(question), strict=True)]

    def coefficients(self, field: Residues, query: Vector) -> list[Vector]:
        """Return the coefficient of y: -Q."""
        return [field.mul(query, -1 % field.q)]

    def free(self, field: Residues, query: Vector) -> int:
        """Return B."""
        return self.bound % field.q

    @classmethod
    def example(cls) -> Example:
        """Return the form over one feature of two levels."""
        form = cls(largest=(1,))
        return Example(form, form.load([[0], [1]]), (Question([0]), Question([1])))
