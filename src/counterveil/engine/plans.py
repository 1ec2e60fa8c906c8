"""What a question becomes before the scan: tables as bytes, coefficients as limbs; and which scan is the fastest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Vector
from . import scans
from .blocks import Scan

_ROOM = 1 << 63  # what sums must stay below
_LARGEST = 1 << 37  # q of three limbs, each of 16 bits with its sign
_NEAR = 24 << 10  # bytes of tables that stay at hand: most of the first cache


def xor(records: Bytes, chosen: NDArray[np.bool_], start: int, end: int) -> Bytes:
    """Return the xor of 64 bytes or more of the chosen records; all are read, whichever are chosen."""
    total = np.empty(end - start, dtype=np.uint8)
    scans.xor(records.reshape(-1), records.shape[1], start, chosen.view(np.uint8), total)
    return total


def table(codes: NDArray[Any], entries: Vector, sizes: NDArray[np.int64], q: int) -> Scan:
    """Return the scan that finds sum_j of the y_j-th entry of table j, mod q; tables one after the other."""
    d, most, starts = len(sizes), int(sizes.max()), np.cumsum(sizes) - sizes
    if not _vectorised(codes):
        often = _ROOM // q - 1  # entries that are added to a value at a time
        tables = entries.astype(np.uint32) if q <= 1 << 32 else entries
        return lambda part, values: scans.plain_table(part, tables, starts, often, q, values)
    size = 64 if most <= 64 else 128 if most <= 128 else 256
    planes = -(-(q - 1).bit_length() // 8)
    whole = entries[starts[:, None] + np.minimum(np.arange(size), sizes[:, None] - 1)].astype("<i8", copy=False)
    apart = np.ascontiguousarray(whole.view(np.uint8).reshape(d, size, 8)[:, :, :planes].transpose(0, 2, 1)).reshape(-1)
    ends = np.array([*range(0, d, min(scans.SUMMED, _NEAR // (planes * size)))[1:], d])
    kind = (0,) * (size // 64), (0,) * planes
    return lambda part, values: scans.vector_table(*kind, part, apart, ends, q, values)


def _fits(codes: NDArray[Any], q: int) -> bool:
    """Tell whether products with squares add up in 64 bits."""
    return q <= _LARGEST and codes.shape[1] * q < _ROOM >> 16


def wants_table(codes: NDArray[Any], largest: int, q: int) -> bool:
    """Tell whether a polynomial of these codes, up to the largest, is faster as a table."""
    small = largest < 64 and q <= 1 << 24  # one instruction looks up so many levels, three bytes of each
    return _vectorised(codes) and (small or not _fits(codes, q))


def _vectorised(codes: NDArray[Any]) -> bool:
    return scans.VECTORS and codes.dtype == np.uint8


def polynomial(codes: NDArray[Any], one: Vector, two: Vector, constant: int, largest: int, q: int) -> Scan:
    """Return the scan that finds constant + sum_j one[j] y_j + two[j] y_j² mod q, codes in [0:largest]."""
    if _vectorised(codes) and _fits(codes, q):
        return _by_dot_products(codes.shape[1], one, two, constant, q)
    width = min(31, 62 - (len(one) * (largest**2 + largest)).bit_length())  # so that limbs' products add up
    limbs = -(-(q - 1).bit_length() // width)
    ones, twos = (
        np.array([(c >> width * i) & ((1 << width) - 1) for i in range(limbs)], dtype=np.uint32) for c in (one, two)
    )
    return lambda part, values: scans.plain_polynomial(part, ones, twos, width, constant, q, values)


def _by_dot_products(even: int, one: Vector, two: Vector, free: int, q: int) -> Scan:
    """Return the scan by 16-bit dot products.

    With z = y - 128 and s = z² - 8192: (c_1 + 256 c_2) z + c_2 s and a constant; both fit 16 bits.
    """
    limbs = 1 if q <= 1 << 13 else 2 if q <= 1 << 29 else 3
    base = 1 if limbs == 1 else int(np.ceil(q ** (1 / limbs))) + 1
    left, digits = np.zeros((2, even), dtype=np.int64), np.empty((2, limbs, even), dtype=np.int64)
    left[:, : one.size] = (one + 256 * two + q // 2) % q - q // 2, (two + q // 2) % q - q // 2
    for limb in range(limbs - 1):
        digits[:, limb] = (left + base // 2) % base - base // 2
        left = (left - digits[:, limb]) // base
    digits[:, -1] = left
    most = (np.abs(digits) * [[[128]], [[scans.MIDDLE]]]).sum(axis=0).reshape(limbs, -1, 2).sum(axis=2)  # of a pair
    constant = (free + 128 * int(one.sum()) + (16384 + scans.MIDDLE) * int(two.sum())) % q
    lift = -(-sum(int(each) * base**limb for limb, each in enumerate(most.sum(axis=1))) // q) * q  # above any negative
    factors = ((digits[..., ::2] & 0xFFFF) | (digits[..., 1::2] << 16)).astype(np.int32).reshape(-1)
    kind, ends = (0,) * limbs, _ends(most)
    return lambda part, values: scans.vector_polynomial(kind, part, factors, ends, base, constant, lift, q, values)


def _ends(most: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where to add up 32-bit sums and begin anew, so that what they can be at most, a limb a row, fits them."""
    ends, before, so_far = [], np.zeros(len(most), dtype=np.int64), np.cumsum(most, axis=1)
    while (so_far[:, -1] - before).max() >= 1 << 31:
        ends.append(int((so_far - before[:, None] < 1 << 31).all(axis=0).sum()))
        before = so_far[:, ends[-1] - 1]
    return np.array([*ends, most.shape[1]])
