"""The scan in machine code, by numba: with vectors where the processor has them, in plain loops elsewhere.

All work through blocks of 128 rows, with a sum a row, and reduce mod q once a block or every few hundred features.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..arrays import Bytes, Vector
from ..machine_code import compiled
from . import vectors
from .blocks import ROWS, Scan

_ROOM = 1 << 63  # what sums must stay below
_LARGEST = 1 << 37  # q of three limbs of 13 bits
_TILE = 8  # blocks that are gone through a few features at a time, where the tables of all are too many
_NEAR = 24 << 10  # bytes of tables that stay at hand: most of the first cache

_inlined: Any = njit(inline="always")


@_inlined
def _rest(total, quotient, q):  # type: ignore[no-untyped-def]
    """Return total mod q, the total not negative (it may have wrapped) and the quotient estimated within a quarter.

    A quarter less than the estimate is never too much, and at most one too little.
    """
    rest = total - np.int64(quotient - 0.25) * q
    return rest - q if rest >= q else rest


@_inlined
def _settle(sums, more, first, q, inverse, values):  # type: ignore[no-untyped-def]
    """Add a block's sums and `more` to its values, if these are not the first; reduce mod q."""
    for row in range(ROWS):
        total = sums[row] + more + (np.int64(0) if first else values[row])
        values[row] = _rest(total, np.float64(total) * inverse, q)


@_inlined
def _settle_wrapped(sums, first, q, inverse, values):  # type: ignore[no-untyped-def]
    """Do the same for sums that have wrapped at 2^64, but whose upper part, worth 2^32, is there too; q beyond 2^48."""
    for row in range(ROWS):
        before = np.int64(0) if first else values[row]
        quotient = (np.float64(sums[ROWS + row]) * (1 << 32) + np.float64(before)) * inverse
        values[row] = _rest(sums[row] + before, quotient, q)


@cache
def _vector_table(size: int, planes: int) -> Any:
    step, wraps = vectors.table_step(size, planes), planes >= vectors.WRAPPING

    @njit(nogil=True)
    def scan(codes, tables, ends, q, values):  # type: ignore[no-untyped-def]
        flat, blocks, block_size = codes.reshape(-1), len(codes), codes.shape[1] * ROWS
        inverse, sums = 1.0 / q, np.empty(2 * ROWS, np.int64)
        for tile in range(0, blocks, _TILE):
            first = 0
            for end in ends:
                for block in range(tile, min(blocks, tile + _TILE)):
                    step(flat, block * block_size, block_size, first, end, tables, sums)
                    out = values[block * ROWS : (block + 1) * ROWS]
                    if wraps:
                        _settle_wrapped(sums, first == 0, q, inverse, out)
                    else:
                        _settle(sums, 0, first == 0, q, inverse, out)
                first = end

    return scan


@cache
def _vector_polynomial(limbs: int) -> Any:
    step = vectors.polynomial_step(limbs)

    @njit(nogil=True)
    def scan(codes, factors, ends, base, constant, lift, q, values):  # type: ignore[no-untyped-def]
        flat, block_size, pairs = codes.reshape(-1), codes.shape[1] * ROWS, codes.shape[1] // 2
        inverse, sums = 1.0 / q, np.empty(ROWS, np.int64)
        for block in range(len(codes)):
            first, more = 0, lift + constant
            for end in ends:
                step(flat, block * block_size, block_size, first, end, factors, pairs, base, sums)
                _settle(sums, more, first == 0, q, inverse, values[block * ROWS : (block + 1) * ROWS])
                first, more = end, lift

    return scan


@compiled
def _plain_table(codes, tables, starts, often, q, values):  # type: ignore[no-untyped-def]
    for block in range(len(codes)):
        out = values[block * ROWS : (block + 1) * ROWS]
        out[:] = 0
        for first in range(0, len(starts), often):
            for j in range(first, min(first + often, len(starts))):
                entries, levels = tables[starts[j] :], codes[block, j]
                for row in range(ROWS):
                    out[row] += np.int64(entries[levels[row]])
            for row in range(ROWS):
                out[row] = _rest(out[row], np.float64(out[row]) / q, q)


@compiled
def _plain_polynomial(codes, ones, twos, width, constant, q, values):  # type: ignore[no-untyped-def]
    """Add up limbs of c_1 y + c_2 y², one a row of `ones` and `twos`, each worth 2^width of the one before."""
    inverse, limbs, scale = 1.0 / q, len(ones), np.int64(1) << width
    sums = np.empty((limbs, ROWS), np.int64)
    for block in range(len(codes)):
        sums[:] = 0
        for j in range(ones.shape[1]):
            levels = codes[block, j]
            for limb in range(limbs):
                one, two, own = np.int64(ones[limb, j]), np.int64(twos[limb, j]), sums[limb]
                for row in range(ROWS):
                    y = np.int64(levels[row])
                    own[row] += y * one + y * y * two
        out = values[block * ROWS : (block + 1) * ROWS]
        for row in range(ROWS):
            total = np.int64(0)
            for limb in range(limbs - 1, -1, -1):  # Horner
                total = _rest(total * scale, np.float64(total) * scale * inverse, q)
                total += _rest(sums[limb, row], np.float64(sums[limb, row]) * inverse, q) - q
                total += (total >> 63) & q
            total += constant - q
            out[row] = total + ((total >> 63) & q)


@compiled
def _xor(records, length, chosen, total):  # type: ignore[no-untyped-def]
    """Xor the chosen records into total, 64 bytes at a time; the last 64 of a record are taken apart."""
    strips = length // 64
    sums = np.zeros((strips + 1, 64), np.uint8)
    for i in range(chosen.size):
        mask, start = np.uint8(0) - chosen[i], i * length
        for strip in range(strips + 1):
            at = start + min(64 * strip, length - 64)
            part, each = records[at : at + 64], sums[strip]
            for b in range(64):
                each[b] ^= part[b] & mask
    for strip in range(strips + 1):
        at = min(64 * strip, length - 64)
        total[at : at + 64] = sums[strip]


def xor(records: Bytes, chosen: NDArray[np.bool_]) -> Bytes:
    """Return the xor of the chosen records of 64 bytes or more; all are read, whichever are chosen."""
    total = np.empty(records.shape[1], dtype=np.uint8)
    _xor(records.reshape(-1), records.shape[1], chosen.view(np.uint8), total)
    return total


def table(codes: NDArray[Any], entries: Vector, sizes: NDArray[np.int64], q: int) -> Scan:
    """Return the scan that finds sum_j of entries[j][y_j] mod q, the entries of all features one after the other."""
    d, most = len(sizes), int(sizes.max())
    if not _vectorised(codes):
        often = _ROOM // q - 1  # entries that are added to a value at a time
        starts, tables = np.cumsum(sizes) - sizes, entries.astype(np.uint32) if q <= 1 << 32 else entries
        return lambda codes, values: _plain_table(codes, tables, starts, often, q, values)
    size = 64 if most <= 64 else 128 if most <= 128 else 256
    planes = -(-(q - 1).bit_length() // 8)
    whole = np.zeros((d, size), dtype="<i8")
    whole[np.arange(size) < sizes[:, None]] = entries
    apart = np.ascontiguousarray(whole.view(np.uint8).reshape(d, size, 8)[:, :, :planes].transpose(0, 2, 1)).reshape(-1)
    ends = np.array([*range(0, d, min(vectors.SUMMED, _NEAR // (planes * size)))[1:], d])
    scan = _vector_table(size, planes)
    return lambda codes, values: scan(codes, apart, ends, q, values)


def _fits(codes: NDArray[Any], q: int) -> bool:
    """Tell whether products with squares add up in 64 bits."""
    return q <= _LARGEST and codes.shape[1] * q < _ROOM >> 16


def wants_table(codes: NDArray[Any], largest: int, q: int) -> bool:
    """Tell whether a polynomial of these codes, up to the largest, is faster as a table."""
    small = largest < 64 and q <= 1 << 24  # one instruction looks up so many levels, three bytes of each
    return _vectorised(codes) and (small or not _fits(codes, q))


def _vectorised(codes: NDArray[Any]) -> bool:
    return vectors.AVAILABLE and codes.dtype == np.uint8


def polynomial(codes: NDArray[Any], one: Vector, two: Vector, constant: int, q: int) -> Scan:
    """Return the scan that finds constant + sum_j one[j] y_j + two[j] y_j² mod q."""
    if _vectorised(codes) and _fits(codes, q):
        return _by_dot_products(codes.shape[1], one, two, constant, q)
    most = int(np.iinfo(codes.dtype).max)
    width = min(31, 62 - (len(one) * (most * most + most)).bit_length())  # so that limbs' products add up
    limbs = -(-(q - 1).bit_length() // width)
    ones, twos = (
        np.array([(c >> width * i) & ((1 << width) - 1) for i in range(limbs)], dtype=np.uint32) for c in (one, two)
    )
    return lambda codes, values: _plain_polynomial(codes, ones, twos, width, constant, q, values)


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
    most = (np.abs(digits) * [[[128]], [[vectors.MIDDLE]]]).sum(axis=0).reshape(limbs, -1, 2).sum(axis=2)  # of a pair
    constant = (free + 128 * int(one.sum()) + (16384 + vectors.MIDDLE) * int(two.sum())) % q
    lift = -(-sum(int(each) * base**limb for limb, each in enumerate(most.sum(axis=1))) // q) * q  # above any negative
    factors = ((digits[..., ::2] & 0xFFFF) | (digits[..., 1::2] << 16)).astype(np.int32).reshape(-1)
    scan, ends = _vector_polynomial(limbs), _ends(most)
    return lambda codes, values: scan(codes, factors, ends, base, constant, lift, q, values)


def _ends(most: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where to add up 32-bit sums and begin anew, so that what they can be at most, a limb a row, fits them."""
    ends, before, so_far = [], np.zeros(len(most), dtype=np.int64), np.cumsum(most, axis=1)
    while (so_far[:, -1] - before).max() >= 1 << 31:
        ends.append(int((so_far - before[:, None] < 1 << 31).all(axis=0).sum()))
        before = so_far[:, ends[-1] - 1]
    return np.array([*ends, most.shape[1]])
