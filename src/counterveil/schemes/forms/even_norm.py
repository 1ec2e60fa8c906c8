"""Even norms made linear in the shares: sum_j w_j (y_j - x_j)^n with two servers, preferences private.

With n = 2 this is the form `linear`: the paper's PCR+ with 2 servers instead of 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb

from ...algebra import checks
from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...errors import OutOfRange
from .. import defaults
from .form import Question
from .stretched import Stretched


@dataclass(frozen=True, kw_only=True)
class EvenNorm(Stretched):
    """Share w∘x^k for k = 0..n-1; a server evaluates the binomial expansion without w∘x^n, which the applicant adds.

    Paper: the remark that "our results can be extended easily using any l_n norm with n being even".
    """

    norm: int = defaults.NORM

    additive = True
    options = frozenset({"norm"})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "norm", checks.integer("norm", self.norm, 2))
        if self.norm % 2:
            raise OutOfRange("norm", got=self.norm, expected="an even number")

    @property
    def name(self) -> str:
        """The form's name in the table of forms."""
        return "linear" if self.norm == 2 else "even_norm"

    @property
    def power(self) -> int:
        """n, the norm."""
        return self.norm

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server: n*d."""
        return self.norm * self.d

    @property
    def bound(self) -> int:
        """B = L * sum R_j^n."""
        return self.max_weight * sum(int(R**self.norm) for R in self.largest)

    def encode(self, question: Question) -> list[int]:
        """Return w, w∘x, w∘x², …, w∘x^(n-1)."""
        x, w = self.point(question), self.weights(question)
        return [w[j] * x[j] ** k for k in range(self.norm) for j in range(self.d)]

    def coefficients(self, field: Residues, query: Vector) -> list[Vector]:
        """Return the coefficients of y^m, m = 1..n: the shares of w∘x^(n-m) times C(n, m) (-1)^(n-m)."""
        n, shares = self.norm, query.reshape(self.norm, self.d)
        return [field.mul(shares[n - m], (-1) ** m * comb(n, m) % field.q) for m in range(1, n + 1)]

    def offset(self, question: Question) -> int:
        """Return sum w_j x_j^n."""
        pairs = zip(self.weights(question), self.point(question), strict=True)
        return sum(w * int(x**self.norm) for w, x in pairs)


@dataclass(frozen=True, kw_only=True)
class Linear(EvenNorm):
    """The squared distance: n = 2."""

    norm: int = field(default=2, init=False)

    options = frozenset()
