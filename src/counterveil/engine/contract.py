"""What the protocols need of a database: rows that are scanned, records that are added up.

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
    """What a scan computes of every row y, mod q.

    A polynomial: constant + sum_j sum_k numbers[k-1][j] * y_j^k, for codes up to `largest`. Or tables, one after the
    other in numbers[0], of such sizes: constant + sum_j of the y_j-th entry of table j.
    """

    kind: Literal["polynomial", "table"]
    field: Residues
    numbers: tuple[Vector, ...]
    largest: int = 0
    sizes: tuple[int, ...] = ()
    constant: int = 0


class Job(Protocol[Result]):
    """Work that goes to where the rows are: a party over the values of some of them, the first of which is named."""

    def __call__(self, values: Vector, first: int) -> Party[Result]: ...


@runtime_checkable
class Rows(Protocol):
    """A database's codes, laid out for scans."""

    def __len__(self) -> int: ...

    def scan(self, plan: Plan) -> Vector:
        """Return a value of every row, in their order."""

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Begin a scan, beside other work where that pays; return what waits for its result."""

    def host(self, plan: Plan, job: Job[T]) -> Party[list[T]]:
        """Play a job over the values of every block of rows, where they are; return what each block comes to."""


class Records(Protocol):
    """A database's records, all of one length."""

    def __len__(self) -> int: ...

    @property
    def length(self) -> int:
        """Bytes of one record."""

    def xor(self, chosen: NDArray[Any], start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records; all are read, whichever are chosen."""

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers; zeros for -1."""
