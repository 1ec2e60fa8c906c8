"""The field GF(2^8) of bytes, with the few operations that sharing needs (see `field.Arithmetic`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidAlphas
from .arrays import Bytes, Vector
from .field import check_points

_POLYNOMIAL = 0x11B  # x^8 + x^4 + x^3 + x + 1


def _double(a: int) -> int:
    return (a << 1) ^ (_POLYNOMIAL if a & 0x80 else 0)


def _product_table() -> Bytes:
    """Return the 256 x 256 table of products, from the powers of the generator x + 1."""
    powers = [1]
    while len(powers) < 255:
        powers.append(_double(powers[-1]) ^ powers[-1])
    logs = np.zeros(256, dtype=np.int64)
    logs[powers] = np.arange(255)
    table: Bytes = np.array(powers, dtype=np.uint8)[(logs[:, None] + logs[None, :]) % 255]
    table[0, :] = table[:, 0] = 0
    return table


PRODUCTS = _product_table()
INVERSES = np.argmax(PRODUCTS == 1, axis=1)


class GF256:
    """GF(2^8); a vector is an int64 array with entries in [0:255]."""

    q = 256

    def add(self, a: Vector, b: Vector) -> Vector:
        """Return a + b."""
        return a ^ b

    def mul(self, a: Vector, b: ArrayLike) -> Vector:
        """Return a * b, where b is a vector or one element."""
        products: Bytes = PRODUCTS[a, np.asarray(b)]
        return products.astype(np.int64)

    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]:
        """Refuse alphas that coincide, are zero, or are not bytes."""
        if any(not 0 <= a < self.q for a in alphas):
            raise InvalidAlphas("alphas", got=list(alphas), expected="bytes 1..255")
        return check_points(alphas, self.q)

    def weights_at(self, alphas: Sequence[int], point: int = 0) -> list[int]:
        """Return the Lagrange weights of the value at a point."""
        weights = []
        for a in alphas:
            factors = [int(PRODUCTS[b ^ point, INVERSES[b ^ a]]) for b in alphas if b != a]
            weights.append(reduce(lambda u, v: int(PRODUCTS[u, v]), factors, 1))
        return weights
