"""Sort many uniform 64-bit keys: by counting their upper bits, then bucket by bucket, where numba is; else by NumPy."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Order

_WORTHWHILE = 1 << 16  # keys: with fewer NumPy is done before numba has been imported

_scan: Any = None


def order_of(keys: NDArray[np.uint64]) -> Order:
    """Return the places of the keys in ascending order, equal ones as they stand.

    >>> order_of(np.array([7, 3, 9, 3], dtype=np.uint64))
    array([1, 3, 0, 2])
    """
    scan = _kernel() if keys.size >= _WORTHWHILE else None
    if scan is None:
        return np.argsort(keys, kind="stable")
    found: Order = scan(np.ascontiguousarray(keys))
    return found


def _kernel() -> Any:
    """Return the compiled sort; None where there is no numba."""
    global _scan
    if _scan is None:
        try:
            _scan = importlib.import_module("numba").njit(nogil=True)(_by_buckets)
        except ImportError:
            return None
    return _scan


def _by_buckets(keys):  # type: ignore[no-untyped-def]
    """Count the upper bits, put keys in their buckets of about four, and sort each by insertion, which is stable."""
    count, bits = len(keys), 1
    while bits < 18 and (4 << bits) < count:
        bits += 1
    shift = np.uint64(64 - bits)
    starts = np.zeros((1 << bits) + 1, np.int64)
    for i in range(count):
        starts[np.int64(keys[i] >> shift) + 1] += 1
    for bucket in range(1 << bits):
        starts[bucket + 1] += starts[bucket]
    places = starts[:-1].copy()
    sorted_, order = np.empty(count, np.uint64), np.empty(count, np.int64)
    for i in range(count):
        into = np.int64(keys[i] >> shift)
        place = places[into]
        places[into] += 1
        sorted_[place], order[place] = keys[i], i
    for bucket in range(1 << bits):
        low = starts[bucket]
        for i in range(low + 1, starts[bucket + 1]):
            key, row = sorted_[i], order[i]
            j = i - 1
            while j >= low and sorted_[j] > key:
                sorted_[j + 1], order[j + 1] = sorted_[j], order[j]
                j -= 1
            sorted_[j + 1], order[j + 1] = key, row
    return order
