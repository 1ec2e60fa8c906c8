"""The contract of a reveal: what of the rows' costs the applicant gets to see, and how it gets to them alone.

`apply` says what is seen, as if somebody trusted computed it; `query`, `stream` and `reader` say how servers that must
not know the question, and an applicant who must not know the rows, come to exactly that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from ...algebra import checks
from ...algebra.arrays import Bytes, Order, Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness, Randomness, Streams
from ...engine import Rows
from ...errors import NotOffered
from ..forms import Form, Question

Symbols = Vector | Bytes


class Setting(Protocol):
    """Who takes part, and over what they compute: a `Scheme`, as its reveal sees it."""

    @property
    def form(self) -> Form: ...
    @property
    def field(self) -> Residues: ...
    @property
    def alphas(self) -> tuple[int, ...]: ...
    @property
    def collusion(self) -> int: ...
    @property
    def liars(self) -> int: ...
    @property
    def degree(self) -> int: ...


class Outcome(NamedTuple):
    """What the answers come to."""

    revealed: Vector
    honest: tuple[int, ...]  # places 0..N-1 of the servers whose answers fit together
    record: bytes | None = None  # where the answers bring it


class Reader(Protocol):
    """Takes answers in, as they come."""

    def feed(self, place: int, symbols: Symbols) -> None:
        """Take more of the answer of the server at that place, 0..N-1."""

    def hungry(self, place: int) -> bool:
        """Say whether more of that answer is of use before more of another."""

    def outcome(self) -> Outcome:
        """Return what all answers come to."""


@dataclass(frozen=True, kw_only=True)
class Reveal(ABC):
    """What the applicant learns of the costs.

    Security: public. The mask and the order are the servers' secret, drawn anew for every ticket.
    """

    name: str
    differences: bool = False  # costs are told up to one common shift
    masked: bool = False
    shuffle: bool = False
    d_min: int = 1  # the mask is uniform on {0..expansion*d_min - 1}
    expansion: int = 1  # s: costs are multiplied by it before masking (rule 9)

    inside: ClassVar[bool] = False  # whether the answer brings the record, so that nothing is fetched
    timeless: ClassVar[bool] = False  # whether reading the answers takes a time that depends on public numbers alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "shuffle", checks.flag("shuffle", self.shuffle))
        object.__setattr__(self, "d_min", checks.integer("d_min", self.d_min, 1))
        object.__setattr__(self, "expansion", checks.integer("expansion", self.expansion, 1))

    @property
    def exact(self) -> bool:
        """Whether a nearest row is found for every question; with a mask, only where the gap reaches d_min (rule 8)."""
        return self.d_min == 1

    @property
    def most(self) -> int | None:
        """The most records that a question may get, if there is a limit."""
        return None if self.exact else 1

    @abstractmethod
    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""

    def check(self, setting: Setting) -> None:
        """Refuse a form, or servers, that this reveal is not made for."""
        if setting.liars and self.masked:
            raise NotOffered("liars", got=f"correction of {self.name}", expected="a reveal without a mask")

    @abstractmethod
    def least(self, B: int, servers: int) -> int:
        """Return what q must exceed for costs up to B."""

    @abstractmethod
    def arithmetic(self, least: int) -> Residues:
        """Return the smallest arithmetic whose q exceeds that (rule 5)."""

    @abstractmethod
    def symbols(self, form: Form) -> int:
        """Return how many symbols go up to each server."""

    @abstractmethod
    def length(self, count: int) -> int:
        """Return how many numbers are revealed of `count` rows."""

    @abstractmethod
    def capacity(self, field: Residues, count: int) -> float:
        """Return how many bits of the rows a question can reveal at the most, however it was made up."""

    @abstractmethod
    def alphabet(self, field: Residues) -> Residues:
        """Return what the symbols of an answer are."""

    @abstractmethod
    def sent(self, setting: Setting, server: int, count: int, record: int) -> int:
        """Return how many symbols server n = 1..N sends down, for `count` rows with records of so many bytes."""

    @abstractmethod
    def query(self, setting: Setting, question: Question, randomness: Randomness) -> Vector:
        """Return one query for each server, the rows of an (N, symbols) array."""

    @abstractmethod
    def stream(
        self, setting: Setting, server: int, rows: Rows, query: Vector, common: Streams, records: Bytes | None
    ) -> Iterator[Symbols]:
        """Return the answer of server n = 1..N, part by part."""

    @abstractmethod
    def reader(self, setting: Setting, question: Question, queries: Vector, count: int, record: int) -> Reader:
        """Return what takes the answers in."""

    @abstractmethod
    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return what is revealed of the costs; of several databases at once, in the columns of (M, any)."""

    @abstractmethod
    def relative(self, field: Residues, revealed: Vector) -> Vector:
        """Return, by position, the (masked) costs as far as the applicant can tell them, up to one common shift."""

    def nearest(self, field: Residues, revealed: Vector) -> int:
        """Return the position of the least cost; of equal ones the first (rule 7: all are right answers).

        Paper: `alg_difference_distance` keeps the last.
        """
        return int(np.argmin(self.relative(field, revealed)))

    def positions(self, count: int) -> int:
        """Return how many positions there are to fetch a record from."""
        return count

    def order(self, count: int, common: CommonRandomness) -> Order | None:
        """Return which row stands at each position, -1 for none; None where they stand as they are."""
        return common.order(count) if self.shuffle else None
