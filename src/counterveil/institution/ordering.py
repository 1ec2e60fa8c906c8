"""Put rows in the order of their codes, and find the first of each.

A row's key is its codes as bytes, the highest byte of each code first. Keys are then in the order of the codes.

Security: rows stand in the order of their codes, so their places tell nothing of the order in which people came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Codes, Order

Keys = NDArray[np.bytes_]


def keys_of(codes: Codes) -> Keys:
    """Return the key of every row of an (M, d) array of codes."""
    ordered = np.ascontiguousarray(codes, dtype=codes.dtype.newbyteorder(">"))
    return ordered.view(f"S{ordered.shape[1] * ordered.itemsize}")[:, 0]


def codes_of(keys: Keys, dtype: np.dtype[Any]) -> Codes:
    """Return the codes of every key, as an (M, d) array."""
    return keys.view(dtype.newbyteorder(">")).reshape(len(keys), -1).astype(dtype)


def prefixes(keys: Keys, width: int) -> Keys:
    """Return the first bytes of every key."""
    if width == keys.dtype.itemsize:
        return keys
    return np.ascontiguousarray(keys.view(np.uint8).reshape(len(keys), -1)[:, :width]).view(f"S{width}")[:, 0]


def grouped(keys: Keys) -> tuple[Order, Order]:
    """Return the order that sorts keys, and where in that order each new key begins. Equal keys keep their order.

    >>> order, starts = grouped(keys_of(np.array([[2, 1], [0, 3], [2, 1]], dtype=np.uint8)))
    >>> order.tolist(), starts.tolist()
    ([1, 0, 2], [0, 1])
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))


def first_of_each(keys: Keys) -> Order:
    """Return the place of the first of each key, in the order of the keys."""
    order, starts = grouped(keys)
    return order[starts]
