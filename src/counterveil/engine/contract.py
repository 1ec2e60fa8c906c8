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
    """Work that runs where the rows are: a party over the values of some rows, from number `first` on."""

    def __call__(self, values: Vector, first: int) -> Party[Result]: ...


@runtime_checkable
class Rows(Protocol):
    """A database's codes, laid out for scans."""

    def __len__(self) -> int: ...

    def scan(self, plan: Plan) -> Vector:
        """Return one value for every row, in row order."""

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Start a scan, in the background where that pays; return a function that waits for its result."""

    def host(self, plan: Plan, job: Job[T]) -> Party[list[T]]:
        """Play a job over the values of every block of rows, where the rows are; return the result of each block."""


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
