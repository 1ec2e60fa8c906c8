"""What protocols need from a database: rows that can be scanned, and records that can be added up.

Whoever keeps rows in other processes, on other machines or on a graphics card implements these contracts. Plans and
jobs are plain data, so that they can be sent there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Order, Vector
from ..algebra.field import Residues
from .hosting import Home, Meet, Script
from .party import Party

T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a scan computes for every row y, mod q.

    A polynomial: constant + sum_j sum_k numbers[k-1][j] * y_j^k, for codes up to `largest`. Or a table: constant +
    sum_j of entry y_j of table j. The tables stand one after the other in numbers[0], and have these `sizes`.
    """

    kind: Literal["polynomial", "table"]
    field: Residues
    numbers: tuple[Vector, ...]
    largest: int = 0
    sizes: tuple[int, ...] = ()
    constant: int = 0


class Job(Protocol[Result]):
    """Work that runs where the rows are: a script over the values of some rows. It is plain data, and can be sent.

    `home` is the graphics card that the values are on, if they are on one.
    """

    def __call__(self, values: Vector, home: Home | None = None) -> Script[Result]: ...


Jobs = Callable[[int, int], Job[Result]]
"""From the first row of a part and the row after its last, to the job for that part."""


@runtime_checkable
class Rows(Protocol):
    """A database's codes, laid out for scans."""

    def __len__(self) -> int: ...

    def scan(self, plan: Plan) -> Vector:
        """Return one value for every row, in row order."""

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Start a scan, in the background where that pays; return a function that waits for its result."""

    def host(self, plan: Plan, jobs: Jobs[T], meet: Meet) -> Party[list[T]]:
        """Play a job over the values of every part of the rows, where these rows are (see `hosting`).

        Return the result of each job, in row order. If a part of the rows is lost meanwhile, all of it fails.
        """


class Records(Protocol):
    """A database's records, all of one length."""

    def __len__(self) -> int: ...

    @property
    def length(self) -> int:
        """Bytes of one record."""

    def xor(self, chosen: NDArray[Any], start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records."""

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers; zeros for -1."""
