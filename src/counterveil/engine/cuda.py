"""The engine `cuda`: rows and records on this machine's graphics card, scanned by the kernels of `kernels.cu`.

CuPy compiles the kernels when a server starts, for the card that is there. `options` has the settings of each variant.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Codes
from ..errors import MissingPackage
from .card import CardRecords, CardRows
from .twins import Twins

_TILE, _BLOCK = 1024, 256  # threads, as `kernels.cu` has them
_TILED = {32: 16_384, 64: 8192}  # by the bits of a sum: rows of a block of `table`
_MANY = 256  # rows of a block of `together`
_WAVES = 8  # blocks of 256 threads for each multiprocessor
_RESERVED = 1 << 10  # bytes of shared memory that each block needs for itself


def source() -> str:
    """Return the source of all kernels."""
    return files(__package__).joinpath("kernels.cu").read_text("utf-8")


def options(code_bits: int, value_bits: int, sum_bits: int, planes: int | None = None) -> tuple[str, ...]:
    """Return the options that a variant of the kernels is compiled with."""
    chosen = {"CODE_BITS": code_bits, "VALUE_BITS": value_bits, "SUM_BITS": sum_bits}
    if planes is not None:
        chosen["BITS"] = planes
    return ("--std=c++17", *(f"-D{name}={value}" for name, value in chosen.items()))


class Cuda(Twins):
    """A card. Every method launches the kernel of its name."""

    def __init__(self) -> None:
        try:
            self.xp = importlib.import_module("cupy")
        except ImportError as error:
            raise MissingPackage("engine", got=f"no {error.name}", expected="counterveil[cuda]") from None
        try:
            about = self.xp.cuda.Device().attributes
        except Exception as error:  # no driver, or no card: CuPy has several errors for that
            raise MissingPackage("engine", got=f"no graphics card: {error}", expected="one that CUDA can use") from None
        self._processors = int(about["MultiProcessorCount"])
        self._shared = int(about["MaxSharedMemoryPerBlockOptin"]) - _RESERVED
        self._variants: dict[tuple[str, ...], Any] = {}

    def _kernel(self, name: str, *variant: int, shared: int = 0) -> Any:
        """Return a kernel, compiled with these settings."""
        chosen = options(*variant)
        if chosen not in self._variants:
            self._variants[chosen] = self.xp.RawModule(code=source(), options=chosen)
        found = self._variants[chosen].get_function(name)
        if shared:
            found.max_dynamic_shared_size_bytes = shared
        return found

    def to_card(self, array: NDArray[Any]) -> Any:
        """Return an array of the host as one of the card."""
        return self.xp.asarray(np.ascontiguousarray(array))

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return an array of the card as one of the host."""
        found: NDArray[Any] = self.xp.asnumpy(array)
        return found

    def lay(self, codes: Any, words: Any, first: int) -> None:
        """Put codes into words."""
        (count, d), (groups, stride) = codes.shape, words.shape
        grid = (-(-count // _BLOCK), groups)
        run = self._kernel("lay", 8 * codes.itemsize, 32, 32)
        run(grid, (_BLOCK,), (codes, words, np.int64(first), np.int64(count), np.int32(d), np.int64(stride)))

    def table(self, words: Any, tables: Any, bits: int, q: int, constant: int, total: int) -> Any:
        """Return a sum of table entries for every row."""
        (groups, stride), size = words.shape, tables.shape[1]
        room, tiles = 4 * size * 128, stride // _TILED[total]
        values = self.xp.empty(stride, dtype=np.uint32)
        run = self._kernel("table", 8, 32, total, shared=room)
        numbers = (np.uint64(q), np.uint64(_inverse(q)), np.uint64(constant))
        grid = (min(tiles, self._processors * max(1, min(2, self._shared // room))),)
        given = (words, np.int64(stride), np.int32(groups), tables, np.int32(size), *numbers, values, np.int64(tiles))
        run(grid, (_TILE,), given, shared_mem=room)
        return values

    def together(self, words: Any, tables: Any, q: int, paired: bool, total: int) -> Any:
        """Return the sums of 32 questions, or, paired, of 64."""
        (groups, stride), size = words.shape, tables.shape[1]
        room, tiles = 4 * size * 128, stride // _MANY
        values = self.xp.empty((64 if paired else 32, stride), dtype=np.uint32)
        run = self._kernel("together_paired" if paired else "together", 8, 32, total, shared=room)
        numbers = (np.uint64(q), np.uint64(_inverse(q)))
        grid = (min(tiles, self._processors * max(1, min(2, self._shared // room))),)
        given = (words, np.int64(stride), np.int32(groups), tables, np.int32(size), *numbers, values, np.int64(tiles))
        run(grid, (_TILE,), given, shared_mem=room)
        return values

    def plain_table(self, words: Any, tables: Any, bits: int, q: int, constant: int) -> Any:
        """Return a sum of table entries for every row, for tables of any size and any field."""
        (groups, stride), size = words.shape, tables.shape[1]
        width = 32 if q <= 1 << 32 else 64
        room = tables.nbytes if tables.nbytes <= min(self._shared, 48 << 10) else 0
        values = self.xp.empty(stride, dtype=np.uint32 if width == 32 else np.uint64)
        run = self._kernel("plain_table", bits, width, 64)
        numbers = (np.uint64(q), np.uint64(_inverse(q)), np.uint64(constant))
        given = (words, np.int64(stride), np.int32(groups), tables, np.int32(size), np.int32(room > 0), *numbers)
        run((self._processors * _WAVES,), (_BLOCK,), (*given, values, np.int64(stride // 4)), shared_mem=room)
        return values

    def polynomial(self, words: Any, factors: Any, bits: int, q: int, constant: int) -> Any:
        """Return a polynomial of every row."""
        groups, stride = words.shape
        values = self.xp.empty(stride, dtype=np.uint32)
        room = factors.nbytes
        run = self._kernel("polynomial", bits, 32, 64, shared=room)
        numbers = (np.uint64(q), np.uint64(_inverse(q)), np.uint64(constant))
        given = (words, np.int64(stride), np.int32(groups), factors, *numbers, values, np.int64(stride // 4))
        run((self._processors * _WAVES,), (_BLOCK,), given, shared_mem=room)
        return values

    def xor_records(self, records: Any, chosen: Any, first: int, columns: int) -> Any:
        """Return the xor of some columns of 16 bytes of the chosen records."""
        count, length = records.shape
        total = self.xp.zeros(4 * columns, dtype=np.uint32)
        grid = (self._processors * _WAVES, -(-columns // _BLOCK))
        sizes = (np.int64(count), np.int32(length // 16), np.int32(first), np.int32(columns))
        self._kernel("xor_records", 8, 32, 32)(grid, (_BLOCK,), (records, chosen, total, *sizes))
        return total.view(np.uint8)

    def combine(self, records: Any, scalars: Any) -> Any:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        count, length = records.shape
        total = self.xp.zeros(length // 4, dtype=np.uint32)
        grid = (self._processors * _WAVES, -(-(length // 4) // _BLOCK))
        given = (records, scalars, total, np.int64(count), np.int32(length // 4))
        self._kernel("combine", 8, 32, 32)(grid, (_BLOCK,), given)
        return total.view(np.uint8)

    def slice(self, values: Any, rows: int, pad: int, bits: int, words: int, blocks: int) -> Any:
        """Pack the lowest bits of all places."""
        width = 8 * values.itemsize
        planes = self.xp.empty((bits, words, blocks), dtype=np.uint64)
        last = np.uint32(pad) if width == 32 else np.uint64(pad)
        given = (values, np.int64(rows), last, np.int32(words), np.int32(blocks), planes)
        self._kernel("slice", 8, width, width, bits)((-(-words // 32), -(-blocks // 8)), (_BLOCK,), given)
        return planes

    def made(self, opened: Any, masks: Any, products: Any, right: int, seat: int) -> Any:
        """Return shares of products."""
        copies = opened.size // right - 1
        shares = self.xp.empty(products.size, dtype=np.uint64)
        grid = (max(1, min(-(-right // _BLOCK), self._processors * _WAVES * 4)), copies)
        given = (opened, masks, products, shares, np.int64(right), np.int32(seat))
        self._kernel("made", 8, 32, 32)(grid, (_BLOCK,), given)
        return shares


def _inverse(q: int) -> int:
    return ((1 << 64) - 1) // q


@cache
def _card() -> Cuda:
    return Cuda()


def lay_out(codes: Codes, **_: Any) -> CardRows:
    """Put codes on the card, laid out for scans. Threads of the processor do not matter."""
    return CardRows(codes, _card())


def hold(records: Bytes) -> CardRecords:
    """Put records on the card."""
    return CardRecords(records, _card())
