"""Garbled gates: one side makes them; the other side evaluates them and learns nothing about the values.

Half gates (Zahur, Rosulek, Evans, "Two halves make a whole", EUROCRYPT 2015) with free xor (Kolesnikov, Schneider,
ICALP 2008) and point-and-permute, many gates at a time. A label of a wire has 128 bits, held as two little-endian
words. The lowest bit of the first word is the label's colour. The labels of 0 and 1 differ by one secret number, delta,
whose colour is 1. Wires are arrays of shape (bits, rows, 2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Labels

LABEL = 16  # bytes
AND = 2 * LABEL  # bytes of an AND gate: two halves
_KEY = b"counterveil seal"  # fixed and public; any other value would do as well
_TAIL = LABEL - 1  # extra bytes that `update_into` needs at the end of its output

_one = np.uint64(1)


def _permutation() -> Callable[[Labels], Labels]:
    """Return AES-128 *decryption* under the fixed key: a browser can decrypt many blocks in one call."""
    decryptor = Cipher(algorithms.AES128(_KEY), modes.ECB()).decryptor()  # noqa: S305 - a permutation

    def permute(blocks: Labels) -> Labels:
        out = np.empty(blocks.nbytes + _TAIL, dtype=np.uint8)
        decryptor.update_into(blocks.reshape(-1).view(np.uint8).data, out.data)
        return out[: blocks.nbytes].view(np.uint64).reshape(blocks.shape)

    return permute


def hashed(labels: Labels, tweaks: Labels) -> Labels:
    """Return H(x, t) = π(π(x) xor t) xor π(x) of contiguous labels: TMMO, tweakable and circular correlation robust.

    Guo, Katz, Wang, Yu, "Efficient and secure multiparty computation from fixed-key block ciphers", S&P 2020.
    """
    permute = _permutation()
    inner = permute(labels)
    return permute(inner ^ tweaks) ^ inner


def colours(labels: Labels) -> NDArray[np.uint64]:
    """Return the colour of each label, 0 or 1."""
    return labels[..., 0] & _one


def tweaks(step: int, bits: int, first: int, rows: int) -> Labels:
    """Return the tweaks of the first halves of a batch of gates. No two gates of a circuit share both step and row."""
    made = np.empty((bits, rows, 2), dtype=np.uint64)
    made[..., 0] = np.arange(2 * first, 2 * (first + rows), 2, dtype=np.uint64)
    made[..., 1] = np.arange(step, step + bits, dtype=np.uint64)[:, None]
    return made


def flat(labels: Labels) -> Bytes:
    """Return labels as bytes."""
    return labels.astype("<u8", copy=False).reshape(-1).view(np.uint8)


def wires(raw: Bytes, shape: tuple[int, ...]) -> Labels:
    """Read labels from bytes."""
    return np.ascontiguousarray(raw).view("<u8").astype(np.uint64, copy=False).reshape(shape)


class Garbler:
    """Make gates. A wire is held as its label of 0.

    Security: delta and every label that was not sent are the servers' secret.
    """

    def __init__(self, delta: Labels) -> None:
        self._delta, self._permute = delta, _permutation()

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a ^ self._delta

    def both(self, a: Labels, b: Labels, step: int, first: int) -> tuple[Labels, Bytes]:
        """Return `a AND b`, and the bytes that let the other side evaluate it; `step` and `first` number the gates."""
        bits, rows = a.shape[:2]
        inputs = np.empty((4, bits, rows, 2), dtype=np.uint64)
        inputs[0], inputs[2] = a, b
        np.bitwise_xor(inputs[0], self._delta, out=inputs[1])
        np.bitwise_xor(inputs[2], self._delta, out=inputs[3])
        inner = self._permute(inputs)
        tweak = tweaks(step, bits, first, rows)
        np.bitwise_xor(inner[:2], tweak, out=inputs[:2])
        tweak[..., 0] |= _one
        np.bitwise_xor(inner[2:], tweak, out=inputs[2:])
        out = self._permute(inputs)
        out ^= inner
        a0, a1, b0, b1 = out[0], out[1], out[2], out[3]
        p_a, p_b = (np.negative(colours(x))[..., None] for x in (a, b))  # all ones where the colour is 1, else zeros
        a1 ^= a0
        a1 ^= self._delta & p_b  # T_G = H(A0) + H(A1) + p_b delta: the garbler's half
        a0 ^= a1 & p_a
        b1 ^= b0  # T_E + A0 = H(B0) + H(B1): the evaluator's half
        a0 ^= b0
        a0 ^= b1 & p_b
        b1 ^= a
        return np.asarray(a0), flat(np.stack([a1, b1]))


class Evaluator:
    """Evaluate gates. A wire is held as the one label that the applicant has."""

    def __init__(self) -> None:
        self._permute = _permutation()

    def invert(self, a: Labels) -> Labels:
        """Return not a: the label stays the same, since the garbler has swapped what it means."""
        return a

    def both(self, a: Labels, b: Labels, made: Bytes, step: int, first: int) -> Labels:
        """Return `a AND b`, from the bytes that the garbler made for these gates."""
        bits, rows = a.shape[:2]
        inputs = np.empty((2, bits, rows, 2), dtype=np.uint64)
        inputs[0], inputs[1] = a, b
        inner = self._permute(inputs)
        tweak = tweaks(step, bits, first, rows)
        np.bitwise_xor(inner[0], tweak, out=inputs[0])
        tweak[..., 0] |= _one
        np.bitwise_xor(inner[1], tweak, out=inputs[1])
        out = self._permute(inputs)
        out ^= inner
        table = wires(made, (2, bits, rows, 2))
        s_a, s_b = (np.negative(colours(x))[..., None] for x in (a, b))
        result: Labels = out[0]
        result ^= table[0] & s_a
        result ^= out[1]
        result ^= (table[1] ^ a) & s_b
        return result
