"""Half gates one at a time, on integers, as in the figure of Zahur, Rosulek and Evans: an oracle for `garbling`."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from counterveil.algebra.arrays import Labels
from counterveil.schemes.protocols.circuit import Wires

_KEY = b"counterveil seal"


def permuted(x: int) -> int:
    """AES-128 decryption of one block; numbers are little-endian."""
    decryptor = Cipher(algorithms.AES128(_KEY), modes.ECB()).decryptor()  # noqa: S305 - a permutation
    return int.from_bytes(decryptor.update(x.to_bytes(16, "little")), "little")


def hashed(x: int, tweak: int) -> int:
    return permuted(permuted(x) ^ tweak) ^ permuted(x)


def tweak(step: int, row: int, half: int) -> int:
    return (step << 64) | (2 * row + half)


def garbled(a0: int, b0: int, delta: int, step: int, row: int) -> tuple[int, int, int]:
    """Return the label of 0 of a AND b, and the two halves of the gate."""
    j, k = tweak(step, row, 0), tweak(step, row, 1)
    p_a, p_b = a0 & 1, b0 & 1
    t_g = hashed(a0, j) ^ hashed(a0 ^ delta, j) ^ (delta if p_b else 0)
    w_g = hashed(a0, j) ^ (t_g if p_a else 0)
    t_e = hashed(b0, k) ^ hashed(b0 ^ delta, k) ^ a0
    w_e = hashed(b0, k) ^ (t_e ^ a0 if p_b else 0)
    return w_g ^ w_e, t_g, t_e


def evaluated(a: int, b: int, t_g: int, t_e: int, step: int, row: int) -> int:
    w_g = hashed(a, tweak(step, row, 0)) ^ (t_g if a & 1 else 0)
    w_e = hashed(b, tweak(step, row, 1)) ^ (t_e ^ a if b & 1 else 0)
    return w_g ^ w_e


class Clear:
    """The same gates in the clear. Wires are (bits, rows) arrays of 0 and 1; `ands` counts the AND gates."""

    def __init__(self) -> None:
        self.ands = 0

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a ^ np.uint64(1)

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return a and b."""
        self.ands += a.shape[0] * a.shape[1]
        return a & b
        yield
