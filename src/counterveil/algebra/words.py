"""Very many 64-bit words at a time: random ones below a bound, their order, and any of them packed.

In machine code where numba is and it pays; by NumPy elsewhere, with the same results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .arrays import Order, Vector
from .compiled import where_it_pays

_WORTHWHILE = 1 << 16  # words
_BLOCK = 1 << 16  # of words that NumPy packs at a time: a whole number of bytes, whatever their bits

Words = NDArray[np.uint64]


def below(words: Words, mask: int, q: int, in_all: int = 0) -> Vector:
    """Return the masked words below q, as they come; `in_all` says of how many.

    >>> below(np.array([7, 1, 13, 4], dtype=np.uint64), 7, 5)
    array([1, 4])
    """
    scan = where_it_pays(_below, in_all, _WORTHWHILE)
    if scan is None:
        masked = (words & np.uint64(mask)).astype(np.int64)
        return masked[masked < q]
    kept = np.empty(words.size, dtype=np.int64)
    return kept[: scan(words, mask, q, kept)]


def _below(words, mask, q, kept):  # type: ignore[no-untyped-def]
    count = 0
    for word in words:
        masked = np.int64(word & np.uint64(mask))
        kept[count] = masked  # the next one takes its place if it is not below
        count += masked < q
    return count


def order_of(keys: Words) -> Order:
    """Return the places of 128-bit keys in ascending order, given by lower and upper halves; equal ones as they stand.

    >>> order_of(np.array([[0, 7], [2, 3], [0, 9], [1, 3]], dtype=np.uint64))
    array([3, 1, 0, 2])
    """
    scan = where_it_pays(_by_buckets, len(keys), _WORTHWHILE)
    if scan is None:
        return np.lexsort((keys[:, 0], keys[:, 1]))
    words, order = np.empty(len(keys), dtype=np.uint64), np.empty(len(keys), dtype=np.int64)
    scan(keys, words, order)
    return order


def _by_buckets(keys, words, order):  # type: ignore[no-untyped-def]
    """Put words of a key's upper bits and its place in buckets, twice, then sort these few by insertion."""
    count, low = len(keys), 0
    while (1 << low) < count:
        low += 1  # bits of a place
    place = np.uint64((1 << low) - 1)
    coarse = np.uint64(54)  # 1,024 buckets, and then as many as leave about two words each
    fine = min(max(low - 11, 0), 14)
    shift, last = np.uint64(54 - fine), np.uint64((1 << fine) - 1)
    starts = np.zeros(1025, np.int64)
    for i in range(count):
        starts[(keys[i, 1] >> coarse) + np.uint64(1)] += 1
    for bucket in range(1024):
        starts[bucket + 1] += starts[bucket]
    ends = starts[:-1].copy()
    for i in range(count):
        bucket = keys[i, 1] >> coarse
        words[np.uint64(ends[bucket])] = (keys[i, 1] & ~place) | np.uint64(i)
        ends[bucket] += 1
    places, sorted_ = np.empty((1 << fine) + 1, np.int32), np.empty(np.diff(starts).max(), np.uint64)
    for bucket in range(1024):
        own = words[starts[bucket] : starts[bucket + 1]]
        places[:] = 0
        for word in own:
            places[((word >> shift) & last) + np.uint64(1)] += 1
        for i in range(1 << fine):
            places[i + 1] += places[i]
        for word in own:
            into = (word >> shift) & last
            sorted_[np.uint32(places[into])] = word
            places[into] += 1
        for i in range(1, own.size):
            word, j = sorted_[i], i
            while j > 0:
                other = sorted_[j - 1]
                if (other | place) < (word | place):
                    break
                if (other | place) == (word | place):  # hardly ever: then the whole keys decide
                    a, b = other & place, word & place
                    if keys[a, 1] < keys[b, 1] or (keys[a, 1] == keys[b, 1] and keys[a, 0] < keys[b, 0]):
                        break
                    if keys[a, 1] == keys[b, 1] and keys[a, 0] == keys[b, 0] and a < b:
                        break
                sorted_[j] = other
                j -= 1
            sorted_[j] = word
        found = order[starts[bucket] : starts[bucket + 1]]
        for i in range(own.size):
            found[i] = np.int64(sorted_[i] & place)


def packed(values: NDArray[np.integer], bits: int) -> bytes:
    """Return words below 2^bits one after the other; bits of words and of bytes from the least significant up.

    >>> packed(np.array([1, 2, 3]), 3).hex()
    'd100'
    """
    scan = where_it_pays(_pack, values.size, _WORTHWHILE)
    if scan is not None:
        whole = np.empty(-(-values.size * bits // 64) + 1, dtype="<u8")
        scan(np.ascontiguousarray(values, dtype=np.int64), bits, whole)
        return bytes(whole.view(np.uint8)[: -(-values.size * bits // 8)])
    blocks = []
    for start in range(0, values.size, _BLOCK):
        block = np.ascontiguousarray(values[start : start + _BLOCK], dtype="<u8").view(np.uint8).reshape(-1, 8)
        each = np.unpackbits(block, axis=1, count=bits, bitorder="little")
        blocks.append(np.packbits(each.reshape(-1), bitorder="little").tobytes())
    return b"".join(blocks)


def _pack(values, bits, whole):  # type: ignore[no-untyped-def]
    held, filled, at = np.uint64(0), 0, 0
    for value in values:
        held |= np.uint64(value) << np.uint64(filled)
        filled += bits
        if filled >= 64:
            whole[at] = held
            at, filled = at + 1, filled - 64
            held = np.uint64(value) >> np.uint64(bits - filled) if filled else np.uint64(0)
    whole[at] = held
