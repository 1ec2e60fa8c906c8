"""Scan with NumPy: polynomials and tables of rows over F_q, and sums of records, exactly, in one pass each.

Rows are an (M, d) array of unsigned codes; the scan goes block by block, so that the whole array is never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Codes, Vector
from ..algebra.field import Residues
from ..algebra.gf256 import PRODUCTS

Matrix = NDArray[np.float64] | NDArray[np.int64]

_ROWS = 8192  # rows at a time: a block of codes as float64 stays in the cache
_BYTES = 1 << 20  # bytes of records at a time
_EXACT = 53  # float64 adds and multiplies integers exactly below 2^53


def _blocks(count: int, rows: int = _ROWS) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, count, rows))


def _record_blocks(records: Bytes) -> Iterator[slice]:
    return _blocks(len(records), max(1, _BYTES // records.shape[1]))


def polynomial(field: Residues, rows: Codes, coefficients: Sequence[Vector], largest: int) -> Vector:
    """Return sum_j sum_k coefficients[k-1][j] * y_j^k for every row y, codes in [0:largest].

    Powers of codes and coefficients are cut into limbs so narrow that float64 products add up below 2^53.
    """
    degree, terms = len(coefficients), sum(c.size for c in coefficients)
    widest = (largest**degree).bit_length()
    room = _EXACT - terms.bit_length()
    left = min(widest, room // 2)
    right = room - left
    lefts, rights = -(-widest // left), -(-field.bits // right)
    factors = [[_limb(c, right, b) for c in coefficients] for b in range(rights)]
    values = np.zeros(len(rows), dtype=np.int64)
    for block in _blocks(len(rows)):
        powers = _powers(rows[block], degree, exact=widest <= _EXACT)
        for a in range(lefts):
            parts = powers if lefts == 1 else [_limb(power, left, a) for power in powers]
            for b, factor in enumerate(factors):
                total = sum(part @ c for part, c in zip(parts, factor, strict=True))
                product = np.asarray(total).astype(np.int64) % field.q
                if a or b:
                    product = field.mul(product, pow(2, left * a + right * b, field.q))
                values[block] = field.add(values[block], product)
    return values


def tabulated(field: Residues, coefficients: Sequence[Vector], largest: int) -> Vector:
    """Return a polynomial as tables: what each code adds, an array (d, largest + 1)."""
    levels = np.arange(largest + 1) % field.q
    whole = np.zeros((coefficients[0].size, largest + 1), dtype=np.int64)
    for c in reversed(coefficients):  # Horner
        whole = field.mul(field.add(whole, c[:, None]), levels)
    return whole


def _powers(codes: Codes, degree: int, *, exact: bool) -> list[Matrix]:
    """Return y, y², …: as float64 if that holds them exactly, else as int64."""
    first: Matrix = codes.astype(np.float64) if exact else codes.astype(np.int64)
    powers = [first]
    for _ in range(degree - 1):
        powers.append(powers[-1] * first)
    return powers


def _limb(values: Matrix, width: int, which: int) -> NDArray[np.float64]:
    """Return bits [width * which, width * (which + 1)) of the values."""
    return ((values.astype(np.int64) >> (width * which)) & ((1 << width) - 1)).astype(np.float64)


def table(field: Residues, rows: Codes, tables: Sequence[Vector]) -> Vector:
    """Return sum_j tables[j][y_j] for every row y."""
    count = len(rows)
    values = np.zeros(count, dtype=np.int64)
    safe = (2**63 - 1) // (field.q - 1) - 1  # this many elements add up without overflow
    for block in _blocks(count):
        codes, total = rows[block], values[block]
        for j, entries in enumerate(tables):
            if j % safe == 0:
                total %= field.q
            total += entries[codes[:, j]]
        total %= field.q
    return values


def xor(records: Bytes, chosen: NDArray[np.bool_]) -> Bytes:
    """Return the xor of the chosen records, one per row of an (M, length) array."""
    total = np.zeros(records.shape[1], dtype=np.uint8)
    for block in _record_blocks(records):
        total ^= np.bitwise_xor.reduce(records[block][chosen[block]], axis=0)
    return total


def combine(records: Bytes, scalars: NDArray[np.integer]) -> Bytes:
    """Return sum_i scalars[i] * records[i] over GF(2^8)."""
    total = np.zeros(records.shape[1], dtype=np.uint8)
    for block in _record_blocks(records):
        total ^= np.bitwise_xor.reduce(PRODUCTS[scalars[block, None], records[block]], axis=0)
    return total
