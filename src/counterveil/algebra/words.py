"""Work on many 64-bit words at once: keep those below a bound, sort 128-bit keys, pack words into bytes.

Numba does it where it is installed and there is enough work; NumPy does it elsewhere, with the same results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .arrays import Order, Vector
from .compiled import where_it_pays

_WORTHWHILE = 1 << 16  # words; for fewer, numba is not imported
_BLOCK = 1 << 16  # words that NumPy packs at a time; they fill whole bytes, however many bits each has

Words = NDArray[np.uint64]


def below(words: Words, mask: int, q: int, in_all: int = 0) -> Vector:
    """Return the masked words that are below q, in their order.

    `in_all` is how many words the caller draws altogether. It decides whether numba is worth importing.

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
        kept[count] = masked  # the next word overwrites it unless it is below q
        count += masked < q
    return count


def order_of(keys: Words) -> Order:
    """Return the order that sorts 128-bit keys; equal keys keep their order.

    `keys` is an (M, 2) array: the lower half of each key, then its upper half.

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
    """Sort keys into 1,024 buckets, each bucket into finer ones, and the few words left together by insertion.

    A word holds the upper bits of a key and, in its lowest bits, the place of the key.
    """
    count, place_bits = len(keys), 0
    while (1 << place_bits) < count:
        place_bits += 1
    place_mask = np.uint64((1 << place_bits) - 1)
    coarse = np.uint64(54)  # the top 10 bits choose a bucket; a finer bucket has about two words
    fine = min(max(place_bits - 11, 0), 14)
    shift, last = np.uint64(54 - fine), np.uint64((1 << fine) - 1)
    starts = np.zeros(1025, np.int64)
    for i in range(count):
        starts[(keys[i, 1] >> coarse) + np.uint64(1)] += 1
    for bucket in range(1024):
        starts[bucket + 1] += starts[bucket]
    ends = starts[:-1].copy()
    for i in range(count):
        bucket = keys[i, 1] >> coarse
        words[np.uint64(ends[bucket])] = (keys[i, 1] & ~place_mask) | np.uint64(i)
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
            target = (word >> shift) & last
            sorted_[np.uint32(places[target])] = word
            places[target] += 1
        for i in range(1, own.size):
            word, j = sorted_[i], i
            while j > 0:
                other = sorted_[j - 1]
                if (other | place_mask) < (word | place_mask):
                    break
                if (other | place_mask) == (word | place_mask):  # rare: compare the whole keys
                    a, b = other & place_mask, word & place_mask
                    if keys[a, 1] < keys[b, 1] or (keys[a, 1] == keys[b, 1] and keys[a, 0] < keys[b, 0]):
                        break
                    if keys[a, 1] == keys[b, 1] and keys[a, 0] == keys[b, 0] and a < b:
                        break
                sorted_[j] = other
                j -= 1
            sorted_[j] = word
        found = order[starts[bucket] : starts[bucket + 1]]
        for i in range(own.size):
            found[i] = np.int64(sorted_[i] & place_mask)


def packed(values: NDArray[np.integer], bits: int) -> bytes:
    """Pack words below 2^bits one after the other, each from its least significant bit up.

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
    word, filled, place = np.uint64(0), 0, 0
    for value in values:
        word |= np.uint64(value) << np.uint64(filled)
        filled += bits
        if filled >= 64:
            whole[place] = word
            place, filled = place + 1, filled - 64
            word = np.uint64(value) >> np.uint64(bits - filled) if filled else np.uint64(0)
    whole[place] = word
