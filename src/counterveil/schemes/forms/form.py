"""The contract of a form of the question: what is shared of it, and how a server turns a share into one value per row.

A form also says how it is deployed: which preferences it takes, which codes of the rows it scans, and how costs become
a question. So no other package needs to know any form by its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from ...algebra import checks
from ...algebra.arrays import Codes, Vector
from ...algebra.field import Field, Residues, smallest_prime_above
from ...engine import Plan, Rows, as_rows
from ...errors import NotOffered, WrongShape, WrongType
from ...schema.costs import Costs
from ...schema.tariff import Tariff
from .. import defaults

LARGEST = 2**31 - 1  # the largest code that a feature may have
_SQUARE = 2  # the power of squared distances, which multilateration works on


@dataclass(frozen=True, repr=False, eq=False)
class Question:
    """What an applicant asks: their own codes x, and what changing each feature costs them.

    Either `weights` (w_j for each feature, 1 where absent) or, for the `table` form, `costs`: for each feature the cost
    of every level it may be changed to. `immutable` says of each feature, by 1 or 0, whether it must stay as it is.

    Security: private to the applicant; it has no printed form and no encoder.
    """

    x: ArrayLike | None = None
    weights: ArrayLike | None = None
    costs: Sequence[ArrayLike] | None = None
    immutable: ArrayLike | None = None


class Example(NamedTuple):
    """A form so small that tests can enumerate every share and every database, with rows and questions for it."""

    form: Form
    rows: Codes
    questions: tuple[Question, ...]  # no two have the same secret


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """A form over codes y_j in [0:R_j], j = 1..d, with weights w_j in [1:L].

    Security: public. Everything here may be known to everyone.
    """

    largest: tuple[int, ...]  # R_j, the largest code of each feature
    max_weight: int = defaults.MAX_WEIGHT  # L

    degree: ClassVar[int] = 1  # e: degree, in the shares, of the part of the cost that contains y
    additive: ClassVar[bool] = False  # whether the values of two shares add up to the secret's value

    # What a deployment must know about the form.
    offers: ClassVar[frozenset[str]] = frozenset()  # the preferences that it takes, of `schema.costs.PREFERENCES`
    options: ClassVar[frozenset[str]] = frozenset()  # its own public parameters, which a deployment may choose
    forbids_evenly: ClassVar[bool] = False  # all forbidden changes cost the same: the cheapest row breaks the fewest
    tabular: ClassVar[bool] = False  # the secret is one number for each level, and the applicant may choose any

    def __post_init__(self) -> None:
        largest = checks.integers("largest", self.largest, (None,))
        if not largest.size:
            raise WrongShape("largest", got="none", expected="one largest code for each feature")
        checks.in_range("largest", largest, 1, LARGEST)
        object.__setattr__(self, "largest", tuple(int(R) for R in largest))
        object.__setattr__(self, "max_weight", checks.integer("max_weight", self.max_weight, 1))

    @property
    @abstractmethod
    def name(self) -> str:
        """The form's name in the table of forms."""

    @property
    def power(self) -> int | None:
        """n, where the cost is sum_j w_j (y_j - x_j)^n over the columns that `prepare` returns; else None."""
        return None

    @classmethod
    def for_tariff(cls, tariff: Tariff, **options: Any) -> Form:  # noqa: ARG003
        """Return the form that a deployment with this tariff uses; `options` are the form's own parameters."""
        raise NotOffered("scheme", got=cls.name, expected="a form that is a cost of change, such as table")

    def prepare(self, tariff: Tariff, codes: Codes | Vector) -> Codes:
        """Return the (M, d) codes that a server scans, from the codes of the features that count in the cost."""
        return self.load(codes)

    def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
        """Return the question that asks for these costs, and the costs as this form counts them.

        Security: both are private to the applicant. The question has the same shape whatever the costs are.
        """
        raise NotOffered("scheme", got=self.name, expected="a form that is a cost of change, such as table")

    def unit(self, tariff: Tariff) -> int:
        """Return the cost, at weight 1, of a change across a whole range."""
        return tariff.unit

    def unbounded(self, room: int) -> Form:
        """Return the form with costs up to `room`, as a cheat asks it; servers see shares alone and cannot refuse."""
        return self

    @classmethod
    def example(cls) -> Example:
        """Return a small instance for the tests of conformance and of privacy, which run on every form."""
        raise NotImplementedError(f"{cls.__name__} has no example(): its privacy cannot be enumerated")

    @property
    def d(self) -> int:
        """Number of features."""
        return len(self.largest)

    @property
    @abstractmethod
    def symbols(self) -> int:
        """Symbols sent up to each server."""

    @property
    @abstractmethod
    def bound(self) -> int:
        """B, the largest cost there can be, from public parameters alone (rule 11)."""

    @abstractmethod
    def encode(self, question: Question) -> list[int]:
        """Check the question and return the secret that is shared, as integers."""

    @property
    def limit(self) -> int | None:
        """The largest cost of a row that keeps immutable features, if every other row costs more; else None."""
        return None

    def secret(self, field: Residues, question: Question) -> Vector:
        """Return the secret as a vector, or refuse what is not a question."""
        if not isinstance(question, Question):
            raise WrongType("question", got=type(question).__name__, expected="a Question")
        return field.vector(self.encode(question))

    @abstractmethod
    def plan(self, field: Residues, query: Vector) -> Plan:
        """Return what a server computes for every row, from its share of the secret."""

    def evaluate(self, field: Residues, rows: Codes | Rows, query: Vector) -> Vector:
        """Return a server's value for every row, from its share of the secret."""
        return as_rows(rows).scan(self.plan(field, query))

    def free(self, field: Residues, query: Vector) -> int:
        """Return the terms of `evaluate` without y; the applicant, who made the query, knows them."""
        return 0

    def offset(self, question: Question) -> int:
        """Return what the applicant adds to the value at the secret to make it the cost."""
        return 0

    def known(self, field: Residues, question: Question, queries: Vector) -> list[int]:
        """Return, for each query, the terms of the server's value that the applicant takes out before interpolating.

        What is left has degree e*T in alpha, and its value at 0 is the cost.
        """
        own = self.free(field, self.secret(field, question)) + self.offset(question)
        return [(self.free(field, query) - own) % field.q for query in queries]

    def costs(self, rows: ArrayLike, question: Question) -> Vector:
        """Return the cost of every row in the clear: the form evaluated at the secret itself.

        Security: needs both the rows and the question; for preparation, experiments and tests.
        """
        field = Field(smallest_prime_above(self.bound))
        values = self.evaluate(field, self.load(rows), self.secret(field, question))
        return field.add(values, self.offset(question) % field.q)

    def rebuilt_after(self, room: int, *, noise: int = 1, shuffled: bool = False) -> int | None:
        """Return how many tickets rebuild the rows if costs up to `room` are revealed; None if no known attack does.

        The attack on squared distances is multilateration: honest questions from the origin and from the end of every
        axis, each asked as often as it takes for noise in [0:noise-1] to average out.
        """
        if shuffled or self.power != _SQUARE:
            return None
        repeats = math.ceil(1.5 * (noise / max(self.largest)) ** 2) if noise > 1 else 1
        return repeats * (self.d + 1)

    def load(self, rows: ArrayLike) -> Codes:
        """Check rows and return them as an (M, d) array of the narrowest unsigned type; copy only if needed."""
        codes = checks.rows(rows, self.d)
        checks.in_range("rows", codes, 0, self.largest)
        return cast(Codes, codes.astype(np.min_scalar_type(max(self.largest)), copy=False))

    def point(self, question: Question) -> list[int]:
        """Check and return the applicant's own codes x."""
        if question.x is None:
            raise WrongType("x", got="nothing", expected=f"{self.d} codes")
        x = checks.integers("x", question.x, (self.d,))
        checks.in_range("x", x, 0, self.largest)
        return [int(v) for v in x]

    def weights(self, question: Question) -> list[int]:
        """Check and return the weights w, all 1 if none are given."""
        if question.immutable is not None:
            raise WrongType("immutable", got=f"a set for the form {self.name}", expected="the form fixed or table")
        if question.costs is not None:
            raise WrongType("costs", got=f"a table for the form {self.name}", expected="the form table")
        if question.weights is None:
            return [1] * self.d
        w = checks.integers("weights", question.weights, (self.d,))
        checks.in_range("weights", w, 1, self.max_weight)
        return [int(v) for v in w]

    def immutable(self, question: Question) -> list[bool]:
        """Check and return which features must stay as they are; none if none are given."""
        if question.immutable is None:
            return [False] * self.d
        h = checks.integers("immutable", question.immutable, (self.d,))
        checks.in_range("immutable", h, 0, 1)
        return [bool(v) for v in h]


class Polynomial(Form):
    """A form whose value is a polynomial in each y_j: sum_j sum_k c_k[j] y_j^k + terms free of y."""

    @abstractmethod
    def coefficients(self, field: Residues, query: Vector) -> list[Vector]:
        """Return c_1, c_2, …, each a vector of d elements."""

    def plan(self, field: Residues, query: Vector) -> Plan:
        """Return the polynomial, with the terms that are free of y."""
        coefficients = tuple(self.coefficients(field, query))
        return Plan("polynomial", field, coefficients, max(self.largest), constant=self.free(field, query))
