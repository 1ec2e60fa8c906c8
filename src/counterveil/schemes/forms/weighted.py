"""The paper's form for private preferences: sum_j w_j (y_j - x_j)², three servers."""

from __future__ import annotations

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from .form import Question
from .stretched import Stretched


class Weighted(Stretched):
    """Share x and w; a server evaluates (y - Q(1))^t diag(Q(2)) (y - Q(1)), of degree 2 in the shares.

    Paper: `queries_weighted`, `interference_weighted`.
    """

    name = "weighted"
    degree = 2

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server: 2d."""
        return 2 * self.d

    @property
    def bound(self) -> int:
        """B = L * sum R_j², R²Ld when all features have the same levels."""
        return self.max_weight * sum(R**2 for R in self.largest)

    def encode(self, question: Question) -> list[int]:
        """Return x, then w."""
        return self.point(question) + self.weights(question)

    def coefficients(self, field: Residues, query: Vector) -> list[Vector]:
        """Return the coefficients of y and y²: -2 Q(1) Q(2) and Q(2)."""
        x, w = query[: self.d], query[self.d :]
        return [field.mul(field.mul(x, w), -2 % field.q), w]

    def free(self, field: Residues, query: Vector) -> int:
        """Return sum Q(1)² Q(2); its terms in alpha³ are the paper's Z_1^t Z Z_1."""
        x, w = query[: self.d], query[self.d :]
        return field.sum(field.mul(field.mul(x, x), w))
