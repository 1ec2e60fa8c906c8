"""What the kernels of `kernels.cu` compute, with NumPy: their specification, and a card that is none, for tests.

Each method does what the kernel of its name does. `benchmarks/cuda_device.py` compares the two on a card.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Labels
from . import plain

TILE = 16_384  # rows: their number is filled up to whole tiles
_CHUNK = 1 << 16  # rows at a time


class Twins:
    """A card that is none: arrays are NumPy's, and kernels are their twins."""

    xp: Any = np

    def to_card(self, array: NDArray[Any]) -> Any:
        """Return an array of the host as one of the card."""
        return np.array(array)

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return an array of the card as one of the host."""
        return np.array(array)

    def lay(self, codes: NDArray[Any], words: NDArray[np.uint32], first: int) -> None:
        """Put codes into words (groups, rows): as many codes of a row as fit 32 bits, the first the lowest."""
        count, d = codes.shape
        per, bits = 4 // codes.itemsize, 8 * codes.itemsize
        words[:, first : first + count] = 0
        for j in range(d):
            words[j // per, first : first + count] |= codes[:, j].astype(np.uint32) << np.uint32(bits * (j % per))

    def codes(self, words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
        """Return the codes that words hold, an array (columns, rows)."""
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        split: NDArray[np.uint32] = (words[:, None, :] >> shifts[:, None]) & np.uint32((1 << bits) - 1)
        return split.reshape(-1, words.shape[1])

    def table(self, words: Any, tables: Any, bits: int, q: int, constant: int, total: int) -> Any:
        """Return constant + sum_j tables[j][code j] mod q for every row; `total` is the bits that a sum takes."""
        values, wrap = np.empty(words.shape[1], dtype=np.uint32), np.uint64((1 << total) - 1)
        for start in range(0, values.size, _CHUNK):
            part = np.full(min(_CHUNK, values.size - start), constant, dtype=np.uint64)
            for j, column in enumerate(self.codes(words[:, start : start + _CHUNK], bits)):
                part = (part + tables[j][column]) & wrap
            values[start : start + _CHUNK] = part % np.uint64(q)
        return values

    def plain_table(self, words: Any, tables: Any, bits: int, q: int, constant: int) -> Any:
        """Do the same for tables of any size, and any field."""
        values = np.full(words.shape[1], constant, dtype=np.int64)
        for j, column in enumerate(self.codes(words, bits)):
            values = (values + tables[j].astype(np.int64)[column]) % q
        return values.astype(np.uint32 if q <= 1 << 32 else np.uint64)

    def polynomial(self, words: Any, factors: Any, bits: int, q: int, constant: int) -> Any:
        """Return constant + sum_j (factors[j][0] y_j + factors[j][1] y_j²) mod q for every row."""
        values = np.full(words.shape[1], constant, dtype=np.uint64)
        for (one, two), column in zip(
            factors.astype(np.uint64), self.codes(words, bits).astype(np.uint64), strict=True
        ):
            values = (values + (two * column + one) % np.uint64(q) * column) % np.uint64(q)
        return values.astype(np.uint32)

    def together(self, words: Any, tables: Any, q: int, paired: bool, total: int) -> Any:
        """Return the sums of 32 questions, or, paired, of 64; `tables` has a column of 32 words for each entry."""
        halves = [tables & np.uint32(0xFFFF), tables >> np.uint32(16)] if paired else [tables]
        return np.concatenate(
            [
                np.stack([self.table(words, half[:, :, lane], 8, q, 0, total) for lane in range(half.shape[2])])
                for half in halves
            ]
        )

    def xor_records(self, records: Any, chosen: Any, first: int, columns: int) -> Any:
        """Return the xor of some columns of 16 bytes of the chosen records; `chosen` are bits in words."""
        bits = np.unpackbits(chosen.view(np.uint8), count=len(records), bitorder="little").view(bool)
        return plain.xor(records[:, 16 * first : 16 * (first + columns)], bits)

    def combine(self, records: Any, scalars: Any) -> Any:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        return plain.combine(records, scalars)

    def slice(self, values: Any, rows: int, pad: int, bits: int, words: int, blocks: int) -> Labels:
        """Pack the lowest bits of all places: at (block, run, word) is value (block * 64 + run) * words + word."""
        places = np.full(64 * words * blocks, pad, dtype=np.uint64)
        places[:rows] = values[:rows]
        runs, planes = places.reshape(blocks, 64, words), np.zeros((bits, blocks, words), dtype=np.uint64)
        for run in range(64):
            lane = np.uint64(int(f"{run:06b}"[::-1], 2))
            for bit in range(bits):
                planes[bit] |= (runs[:, run] >> np.uint64(bit) & np.uint64(1)) << lane
        return np.ascontiguousarray(planes.swapaxes(1, 2))

    def made(self, opened: Any, masks: Any, products: Any, right: int, seat: int) -> Any:
        """Return shares of products; the last `right` factors are right ones, each for one or more left ones."""
        left = opened.size - right
        ours, theirs = (each[:left].reshape(-1, right) for each in (masks, opened))
        mask, other = masks[left:], opened[left:]
        made = products.reshape(-1, right) ^ (ours & other) ^ (theirs & (mask if seat else mask ^ other))
        return made.reshape(-1)

    def padded(self, records: Bytes) -> Any:
        """Return records on the card, each filled up to whole columns of 16 bytes."""
        count, length = records.shape
        held = self.xp.zeros((count, -(-length // 16) * 16), dtype=self.xp.uint8)
        for start in range(0, count, _CHUNK):  # in parts, so that a memory map is never all in memory
            held[start : start + _CHUNK, :length] = self.to_card(records[start : start + _CHUNK])
        return held
