"""Prepare a scan: cut tables into bytes and coefficients into limbs, and choose the fastest scan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Vector
from . import scans
from .blocks import Scan

_ROOM = 1 << 63  # sums must stay below it
_LARGEST = 1 << 37  # the largest q whose coefficients fit three signed limbs of 16 bits
_NEAR = 24 << 10  # bytes of tables used at a time: most of the first-level cache


def xor(records: Bytes, chosen: NDArray[np.bool_], start: int, end: int) -> Bytes:
    """Return the xor of 64 bytes or more of the chosen records; all are read, whichever are chosen."""
    total = np.empty(end - start, dtype=np.uint8)
    scans.xor(records.reshape(-1), records.shape[1], start, chosen.view(np.uint8), total)
    return total


def table(codes: NDArray[Any], entries: Vector, sizes: NDArray[np.int64], q: int) -> Scan:
    """Return the scan for sum_j of entry y_j of table j, mod q; the tables stand one after the other in `entries`."""
    d, longest, starts = len(sizes), int(sizes.max()), np.cumsum(sizes) - sizes
    if not _vectorised(codes):
        often = _ROOM // q - 1  # entries that are added before the sum must be reduced
        tables = entries.astype(np.uint32) if q <= 1 << 32 else entries
        return lambda part, values: scans.plain_table(part, tables, starts, often, q, values)
    size = 64 if longest <= 64 else 128 if longest <= 128 else 256
    planes = -(-(q - 1).bit_length() // 8)
    filled = entries[starts[:, None] + np.minimum(np.arange(size), sizes[:, None] - 1)].astype("<i8", copy=False)
    by_byte = filled.view(np.uint8).reshape(d, size, 8)[:, :, :planes].transpose(0, 2, 1)
    flat = np.ascontiguousarray(by_byte).reshape(-1)
    ends = np.array([*range(0, d, min(scans.SUMMED, _NEAR // (planes * size)))[1:], d])
    kind = (0,) * (size // 64), (0,) * planes
    return lambda part, values: scans.vector_table(*kind, part, flat, ends, q, values)


def _fits(codes: NDArray[Any], q: int) -> bool:
    """Tell whether sums of products with squares fit 64 bits."""
    return q <= _LARGEST and codes.shape[1] * q < _ROOM >> 16


def wants_table(codes: NDArray[Any], largest: int, q: int) -> bool:
    """Tell whether a polynomial of these codes, up to the largest, is faster as a table."""
    small = largest < 64 and q <= 1 << 24  # one instruction looks up 64 levels; an entry has up to three bytes
    return _vectorised(codes) and (small or not _fits(codes, q))


def _vectorised(codes: NDArray[Any]) -> bool:
    return scans.VECTORS and codes.dtype == np.uint8


def polynomial(codes: NDArray[Any], one: Vector, two: Vector, constant: int, largest: int, q: int) -> Scan:
    """Return the scan for constant + sum_j (one[j] y_j + two[j] y_j²) mod q, codes in [0:largest]."""
    if _vectorised(codes) and _fits(codes, q):
        return _by_dot_products(codes.shape[1], one, two, constant, q)
    width = min(31, 62 - (len(one) * (largest**2 + largest)).bit_length())  # so that products fit 62 bits
    limbs = -(-(q - 1).bit_length() // width)
    ones, twos = (
        np.array([(c >> width * i) & ((1 << width) - 1) for i in range(limbs)], dtype=np.uint32) for c in (one, two)
    )
    return lambda part, values: scans.plain_polynomial(part, ones, twos, width, constant, q, values)


def _by_dot_products(even: int, one: Vector, two: Vector, free: int, q: int) -> Scan:
    """Return the scan by 16-bit dot products.

    With z = y - 128 and s = z² - 8192, which fit 16 bits, c_1 y + c_2 y² = (c_1 + 256 c_2) z + c_2 s + a constant.
    """
    limbs = 1 if q <= 1 << 13 else 2 if q <= 1 << 29 else 3
    base = 1 if limbs == 1 else int(np.ceil(q ** (1 / limbs))) + 1
    rest, digits = np.zeros((2, even), dtype=np.int64), np.empty((2, limbs, even), dtype=np.int64)
    rest[:, : one.size] = (one + 256 * two + q // 2) % q - q // 2, (two + q // 2) % q - q // 2
    for limb in range(limbs - 1):
        digits[:, limb] = (rest + base // 2) % base - base // 2
        rest = (rest - digits[:, limb]) // base
    digits[:, -1] = rest
    # The largest that each limb's sum can grow by with each pair of features, an array (limbs, pairs).
    growth = (np.abs(digits) * [[[128]], [[scans.MIDDLE]]]).sum(axis=0).reshape(limbs, -1, 2).sum(axis=2)
    constant = (free + 128 * int(one.sum()) + (16384 + scans.MIDDLE) * int(two.sum())) % q
    reach = sum(int(each) * base**limb for limb, each in enumerate(growth.sum(axis=1)))
    lift = -(-reach // q) * q  # a multiple of q; no sum is below -lift
    factors = ((digits[..., ::2] & 0xFFFF) | (digits[..., 1::2] << 16)).astype(np.int32).reshape(-1)
    kind, ends = (0,) * limbs, _ends(growth)
    return lambda part, values: scans.vector_polynomial(kind, part, factors, ends, base, constant, lift, q, values)


def _ends(growth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs at which 32-bit sums are added to 64-bit ones and start at 0 again, so that none overflows."""
    ends, before, total = [], np.zeros(len(growth), dtype=np.int64), np.cumsum(growth, axis=1)
    while (total[:, -1] - before).max() >= 1 << 31:
        ends.append(int((total - before[:, None] < 1 << 31).all(axis=0).sum()))
        before = total[:, ends[-1] - 1]
    return np.array([*ends, growth.shape[1]])
