"""How a server scans its rows: polynomials and tables over F_q, and xors of records, exactly, in one pass each.

Rows are an (M, d) array of unsigned codes; the scan goes block by block, so that nothing of size M x d is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .arrays import Bytes, Codes, Vector
from .field import Field
from .gf256 import PRODUCTS

Matrix = NDArray[np.float64] | NDArray[np.int64]

_ROWS = 4096  # rows at a time: a block of codes as float64 stays in the cache
_EXACT = 53  # float64 adds and multiplies integers exactly below 2^53


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, count, _ROWS))


def polynomial(field: Field, rows: Codes, coefficients: Sequence[Vector], largest: int) -> Vector:
    """Return sum_j sum_k coefficients[k-1][j] * y_j^k of every row y, codes in [0:largest].

    Powers of codes and coefficients are cut into limbs so narrow that float64 products add up below 2^53.
    """
    count, degree = len(rows), len(coefficients)
    exact = largest**degree < 1 << _EXACT
    values = np.zeros(count, dtype=np.int64)
    plans = [_Limbs(field, vector, largest ** (k + 1)) for k, vector in enumerate(coefficients)]
    for block in _blocks(count):
        codes: Matrix = rows[block].astype(np.float64) if exact else rows[block].astype(np.int64)
        power, total = codes, values[block]
        for k, plan in enumerate(plans):
            power = power * codes if k else power
            total[:] = field.add(total, plan.product(power))
    return values


class _Limbs:
    """A vector of coefficients cut into limbs, ready to multiply matrices with entries up to `largest`."""

    def __init__(self, field: Field, vector: Vector, largest: int) -> None:
        room = _EXACT - max(1, vector.size).bit_length()
        self.field = field
        self.left = min(max(1, largest.bit_length()), room // 2)
        self.lefts = -(-max(1, largest.bit_length()) // self.left)
        self.right = room - self.left
        rights = -(-field.bits // self.right)
        mask = (1 << self.right) - 1
        limbs = [(vector >> (self.right * r)) & mask for r in range(rights)]
        self.vectors = [limb.astype(np.float64) for limb in limbs]

    def product(self, matrix: Matrix) -> Vector:
        """Return matrix @ vector mod q."""
        field = self.field
        total = np.zeros(len(matrix), dtype=np.int64)
        for a in range(self.lefts):
            left = matrix
            if self.lefts > 1:
                left = (matrix.astype(np.int64) >> (self.left * a)) & ((1 << self.left) - 1)
            left = left.astype(np.float64, copy=False)
            for b, vector in enumerate(self.vectors):
                product = (left @ vector).astype(np.int64) % field.q
                if a or b:
                    product = field.mul(product, pow(2, self.left * a + self.right * b, field.q))
                total = field.add(total, product)
        return total


def table(field: Field, rows: Codes, tables: Sequence[Vector]) -> Vector:
    """Return sum_j tables[j][y_j] of every row y."""
    count = len(rows)
    values = np.zeros(count, dtype=np.int64)
    safe = (2**63 - 1) // (field.q - 1) - 1  # so many elements add up without overflow
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
    for block in _blocks(len(records)):
        total ^= np.bitwise_xor.reduce(records[block][chosen[block]], axis=0)
    return total


def combine(records: Bytes, scalars: NDArray[np.integer]) -> Bytes:
    """Return sum_i scalars[i] * records[i] over GF(2^8)."""
    total = np.zeros(records.shape[1], dtype=np.uint8)
    for block in _blocks(len(records)):
        total ^= np.bitwise_xor.reduce(PRODUCTS[scalars[block, None], records[block]], axis=0)
    return total
