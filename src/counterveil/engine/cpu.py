"""Rows and records in this machine's memory, scanned by its processors, exactly, in one pass each.

The plain way is NumPy (`plain`). The fast way (`plans`, `scans`) needs numba, which the `server` extra installs; it
lays codes out in blocks where that pays. Both give the same values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Codes, Order, Vector
from ..algebra.compiled import pays
from ..algebra.field import Residues
from . import plain
from .blocks import Blocks, Keep, here
from .contract import Jobs, Plan
from .hosting import Meet, advanced, in_step
from .party import Party

T = TypeVar("T")

WORTHWHILE = 1 << 20  # bytes of codes; with fewer, the plain way ends before numba has compiled anything
LASTING = 1 << 16  # the same for a server, which runs long enough to repay the compiling
_BESIDE = 1 << 20  # bytes of blocks; a scan of fewer takes less time than to hand it to another thread
_AT_ONCE = 64  # scans that may be started at a time; those that wait run together

Laid = Codes | Blocks  # as they came, or laid out in blocks


@cache
def _plans() -> Any:
    """Return the module `plans`, or None without numba."""
    try:
        return importlib.import_module(".plans", __package__)
    except ImportError:
        return None


class CpuRows:
    """Codes in memory, laid out in blocks or as they are."""

    def __init__(self, data: Laid) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def scan(self, plan: Plan) -> Vector:
        """Return one value for every row."""
        if plan.kind == "polynomial":
            return polynomial(plan.field, self.data, plan.numbers, plan.largest, plan.constant)
        values = table(plan.field, self.data, plan.numbers[0], np.array(plan.sizes))
        return plan.field.add(values, plan.constant) if plan.constant else values

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Start a scan: of many blocks, in a thread of its own; of few, or of codes as they came, at once."""
        if isinstance(self.data, Blocks) and self.data.data.nbytes >= _BESIDE:
            return _beside().submit(self.scan, plan).result
        values = self.scan(plan)
        return lambda: values

    def host(self, plan: Plan, jobs: Jobs[T], meet: Meet) -> Party[list[T]]:
        """Play a job over the values of all rows: here they are one part."""
        script = jobs(0, len(self))(self.scan(plan))
        return in_step(lambda pieces: [advanced(script, pieces[0])], 1, meet)


class CpuRecords:
    """Records in memory: the rows of an (M, length) array."""

    def __init__(self, data: Bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @property
    def length(self) -> int:
        """Bytes of one record."""
        return int(self.data.shape[1])

    def xor(self, chosen: NDArray[np.bool_], start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records."""
        return xor(self.data, chosen, start, end)

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        return plain.combine(self.data, scalars)

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers; zeros for -1."""
        return np.where((which >= 0)[:, None], self.data[which], np.uint8(0))


def lay_out(codes: Codes, *, threads: int = 1, worthwhile: int = WORTHWHILE, keep: Keep = here) -> CpuRows:
    """Return the codes laid out for many scans, or as they are where that does not pay or cannot be done."""
    narrow = codes.dtype in (np.uint8, np.uint16)
    return CpuRows(Blocks(codes, threads, keep) if narrow and codes.nbytes >= worthwhile and _plans() else codes)


def hold(records: Bytes) -> CpuRecords:
    """Return an array of records as `Records`, which can be added up."""
    return CpuRecords(records)


@cache
def _beside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="scans")


def polynomial(field: Residues, rows: Laid, coefficients: Sequence[Vector], largest: int, constant: int = 0) -> Vector:
    """Return constant + sum_j sum_k coefficients[k-1][j] * y_j^k for every row y, codes in [0:largest].

    What a feature adds depends on its level alone, so a polynomial can be scanned as a table. If there are many levels,
    polynomials up to squares have a faster way.
    """
    wide = isinstance(rows, Blocks) and rows.data.dtype != np.uint8
    if not isinstance(rows, Blocks) or (wide and len(coefficients) > 2):
        values = plain.polynomial(field, rows.codes if isinstance(rows, Blocks) else rows, coefficients, largest)
        return field.add(values, constant) if constant else values
    largest = min(largest, int(np.iinfo(rows.data.dtype).max))
    if len(coefficients) <= 2 and not _plans().wants_table(rows.data, largest, field.q):
        one, two = [*coefficients, np.zeros_like(coefficients[0])][:2]
        return rows.scanned(_plans().polynomial(rows.data, one, two, constant, largest, field.q))
    whole = plain.tabulated(field, coefficients, largest)
    whole[0] = field.add(whole[0], constant)
    return table(field, rows, whole.reshape(-1), np.full(len(whole), largest + 1))


def table(field: Residues, rows: Laid, entries: Vector, sizes: NDArray[np.int64]) -> Vector:
    """Return sum_j of entry y_j of table j for every row y; the tables stand one after the other in `entries`."""
    if isinstance(rows, Blocks):
        return rows.scanned(_plans().table(rows.data, entries, sizes, field.q))
    return plain.table(field, rows, np.split(entries, np.cumsum(sizes)[:-1]))


def xor(
    records: Bytes,
    chosen: NDArray[np.bool_],
    start: int = 0,
    end: int | None = None,
    *,
    worthwhile: int = 8 * WORTHWHILE,
) -> Bytes:
    """Return the xor of bytes start to end of the chosen records, one per row of an (M, length) array."""
    end = records.shape[1] if end is None else end
    worth_it = pays(len(records) * (end - start), worthwhile) and end - start >= 64 and records.flags.c_contiguous
    if not worth_it or not _plans():
        return plain.xor(records[:, start:end], chosen)
    total: Bytes = _plans().xor(records, chosen, start, end)
    return total
