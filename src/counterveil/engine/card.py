"""Rows and records on a graphics card. Rows stay there: the host sees values, sums and openings only.

The kernels are given: those of a card (`cuda`), or their twins of NumPy (`twins`), which tests use. Scans that are
asked for while another runs wait, and those that look up tables of the same size then run in one pass over the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Codes, Order, Vector
from ..errors import WrongType
from . import plain
from .contract import Jobs, Plan
from .hosting import Meet, advanced, in_step
from .party import Party
from .twins import TILE, Twins

T = TypeVar("T")

_CHUNK = 1 << 20  # rows that are laid out at a time
_LANES = 32  # questions that a warp answers together; twice as many if entries have 16 bits
_LONGEST = 1 << 14  # features of a polynomial whose sums fit 64 bits
_AT_ONCE = 128  # scans that may be started at a time


@dataclass(eq=False)
class _Waiting:
    plan: Plan
    values: Vector | None = None
    failed: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class CardRows:
    """Codes on a card, as words of 32 bits (groups of features, rows)."""

    def __init__(self, codes: Codes, kernels: Twins) -> None:
        if codes.dtype not in (np.uint8, np.uint16):
            raise WrongType("codes", got=f"{codes.dtype}", expected="codes of 8 or 16 bits, for a card")
        self._count, self._d = map(int, codes.shape)
        self._kernels = kernels
        self._bits, self._top = 8 * codes.itemsize, 0
        groups, stride = -(-self._d // (32 // self._bits)), -(-self._count // TILE) * TILE
        self._columns = groups * (32 // self._bits)
        self._words = kernels.xp.zeros((groups, stride), dtype=np.uint32)
        for start in range(0, self._count, _CHUNK):
            part = np.ascontiguousarray(codes[start : start + _CHUNK])
            self._top = max(self._top, int(part.max()))
            kernels.lay(kernels.to_card(part), self._words, start)
        self._turn, self._waiting = threading.Lock(), list[_Waiting]()

    def __len__(self) -> int:
        return self._count

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Start a scan, in a thread of its own."""
        return _beside().submit(self.scan, plan).result

    def scan(self, plan: Plan) -> Vector:
        """Return one value for every row; scans that wait run together where they can."""
        own = _Waiting(plan)
        self._waiting.append(own)
        with self._turn:
            if not own.done.is_set():
                self._run([own, *self._companions(own)])
        if own.failed is not None:
            raise own.failed
        if own.values is None:
            raise AssertionError("a scan that is done has values")
        return own.values

    def host(self, plan: Plan, jobs: Jobs[T], meet: Meet) -> Party[list[T]]:
        """Play a job over the values of all rows, which stay on the card."""
        with self._turn:
            values = self._values(plan)
        script = jobs(0, len(self))(values, self._kernels)
        return in_step(lambda pieces: [advanced(script, pieces[0])], 1, meet)

    def _companions(self, own: _Waiting) -> list[_Waiting]:
        """Take scans that can run together with this one: tables of the same sizes, over the same field."""
        found, q = list[_Waiting](), own.plan.field.q
        most = 2 * _LANES if q <= 1 << 16 else _LANES
        for other in list(self._waiting):
            same = (other.plan.kind, other.plan.sizes, other.plan.field.q) == ("table", own.plan.sizes, q)
            if other is own or (same and self._is_small(own.plan) and len(found) + 1 < most):
                self._waiting.remove(other)
                found += [other] if other is not own else []
        return found

    def _run(self, scans: list[_Waiting]) -> None:
        try:
            if len(scans) == 1:
                made = [self._values(scans[0].plan)]
            else:
                made = list(self._together([scan.plan for scan in scans]))
            for scan, values in zip(scans, made, strict=True):
                scan.values = self._kernels.to_host(values[: self._count]).astype(np.int64)
        except Exception as error:
            for scan in scans:
                scan.failed = error
        for scan in scans:
            scan.done.set()

    def _values(self, plan: Plan) -> Any:
        """Return the values of all rows, and of the pads after them, on the card."""
        q, constant = plan.field.q, plan.constant % plan.field.q
        if plan.kind == "table":
            tables = self._tables(np.split(plan.numbers[0], np.cumsum(plan.sizes)[:-1]))
        elif len(plan.numbers) <= 2 and q <= 1 << 32 and self._d < _LONGEST:
            factors = np.zeros((self._columns, 2), dtype=np.uint32)
            for power, numbers in enumerate(plan.numbers):
                factors[: self._d, power] = numbers
            return self._kernels.polynomial(self._words, self._kernels.to_card(factors), self._bits, q, constant)
        else:
            largest = min(plan.largest, (1 << self._bits) - 1)
            tables = self._tables(list(plain.tabulated(plan.field, plan.numbers, largest)))
        small = self._bits == 8 and (q <= 1 << 31 or q == 1 << 32)
        held = self._kernels.to_card(tables.astype(np.uint32 if q <= 1 << 32 else np.uint64))
        if small:
            return self._kernels.table(self._words, held, 8, q, constant, self._sum_bits(q))
        return self._kernels.plain_table(self._words, held, self._bits, q, constant)

    def _is_small(self, plan: Plan) -> bool:
        q = plan.field.q
        return plan.kind == "table" and self._bits == 8 and (q <= 1 << 31 or q == 1 << 32)

    def _sum_bits(self, q: int) -> int:
        """Return how many bits sums take: 32 if they fit, or if q divides 2^32, so that they may wrap."""
        return 32 if not q & (q - 1) or (self._columns + 1) * (q - 1) < 1 << 32 else 64

    def _tables(self, tables: list[Vector]) -> NDArray[np.int64]:
        """Return tables as the rows of one array, each filled up with its last entry; columns of no feature are 0."""
        size = max(self._top + 1, *(table.size for table in tables))
        size += size % 2
        filled = np.zeros((self._columns, size), dtype=np.int64)
        for j, table in enumerate(tables):
            filled[j, : table.size], filled[j, table.size :] = table, table[-1]
        return filled

    def _together(self, plans: list[Plan]) -> Any:
        """Yield the values of several questions, from one pass over the rows."""
        ring, lanes, paired = plans[0].field, _LANES, plans[0].field.q <= 1 << 16
        all_tables = [self._tables(np.split(plan.numbers[0], np.cumsum(plan.sizes)[:-1])) for plan in plans]
        for tables, plan in zip(all_tables, plans, strict=True):
            tables[0] = (tables[0] + plan.constant) % ring.q
        held = np.zeros((*all_tables[0].shape, lanes), dtype=np.uint32)
        for number, tables in enumerate(all_tables):
            held[:, :, number % lanes] |= (tables << (16 * (number // lanes))).astype(np.uint32)
        made = self._kernels.together(
            self._words, self._kernels.to_card(held), ring.q, paired, 32 if paired else self._sum_bits(ring.q)
        )
        yield from made[: len(plans)]


class CardRecords:
    """Records on a card, each filled up to whole columns of 16 bytes."""

    def __init__(self, data: Bytes, kernels: Twins) -> None:
        self._count, self._length = map(int, data.shape)
        self._kernels = kernels
        self._held = kernels.padded(data)

    def __len__(self) -> int:
        return self._count

    @property
    def length(self) -> int:
        """Bytes of one record."""
        return self._length

    def xor(self, chosen: NDArray[Any], start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records."""
        packed = np.zeros(-(-self._count // 32) * 4, dtype=np.uint8)
        bits = np.packbits(chosen, bitorder="little")
        packed[: bits.size] = bits
        first, columns = start // 16, -(-end // 16) - start // 16
        total = self._kernels.xor_records(self._held, self._kernels.to_card(packed.view("<u4")), first, columns)
        return self._kernels.to_host(total)[start - 16 * first : end - 16 * first]

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        total = self._kernels.combine(self._held, self._kernels.to_card(scalars.astype(np.uint8)))
        return self._kernels.to_host(total)[: self._length]

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers; zeros for -1."""
        found = self._kernels.to_host(self._held[self._kernels.to_card(np.maximum(which, 0))])[:, : self._length]
        return np.where((which >= 0)[:, None], found, np.uint8(0))


@cache
def _beside() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="card")
