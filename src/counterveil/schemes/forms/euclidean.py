"""The paper's form for equal preferences: ‖y - x‖², two servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...algebra.arrays import Vector
from ...algebra.field import Residues
from ...errors import OutOfRange, WrongType
from .form import Question
from .stretched import Stretched


@dataclass(frozen=True, kw_only=True)
class Euclidean(Stretched):
    """Share x; a server evaluates ‖y - Q‖² = ‖y‖² - 2 y·Q + ‖Q‖².

    Paper: `queries_no_weight` and the answers that follow it, `get_d_i(x)`.
    """

    max_weight: int = 1

    name = "euclidean"
    offers = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_weight != 1:
            raise OutOfRange("max_weight", got=self.max_weight, expected="1: the form euclidean has no weights")

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server: d."""
        return self.d

    @property
    def bound(self) -> int:
        """B = sum R_j², R²d when all features have the same levels."""
        return sum(R**2 for R in self.largest)

    def encode(self, question: Question) -> list[int]:
        """Return x."""
        if any(given is not None for given in (question.weights, question.costs, question.immutable)):
            raise WrongType("preferences", got="weights or costs", expected="none: the form is euclidean")
        return self.point(question)

    def coefficients(self, field: Residues, query: Vector) -> list[Vector]:
        """Return the coefficients of y and y²: -2Q and 1."""
        return [field.mul(query, -2 % field.q), np.ones_like(query)]

    def free(self, field: Residues, query: Vector) -> int:
        """Return ‖Q‖². The difference from ‖x‖² contains the paper's alpha²‖Z‖²."""
        return field.sum(field.mul(query, query))
