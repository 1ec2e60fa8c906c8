"""Evaluate a sealed answer, as docs/wire.md says it. Labels are rows of 16 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

CHUNK = 4096
KEY = b"counterveil seal"


def permuted(blocks: Any) -> Any:
    """Return AES-128 decryption of every block."""
    cipher = Cipher(algorithms.AES(KEY), modes.ECB()).decryptor()  # noqa: S305
    return np.frombuffer(cipher.update(blocks.tobytes()), dtype=np.uint8).reshape(blocks.shape)


def hashed(x: Any, tweaks: Any) -> Any:
    """Return H(x, t)."""
    once = permuted(x)
    return permuted(once ^ tweaks) ^ once


def tweaks(low: Any, step: Any) -> Any:
    """Return low + 2^64 step, as rows of 16 bytes."""
    pair = np.stack(np.broadcast_arrays(np.asarray(low, dtype="<u8"), np.asarray(step, dtype="<u8")), axis=-1)
    return np.ascontiguousarray(pair).view(np.uint8).reshape(*pair.shape[:-1], 16)


class Reader:
    """Bytes of an answer, from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = np.frombuffer(data, dtype=np.uint8), 0

    def take(self, count: int) -> Any:
        """Return the next bytes."""
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise ValueError("an answer that is too short")
        self.at += count
        return taken

    def labels(self, *shape: int) -> Any:
        """Return the next labels."""
        return self.take(16 * int(np.prod(shape))).reshape(*shape, 16)


def both(gates: Reader, a: Any, b: Any, step: int, first: int) -> Any:
    """Evaluate a batch of gates: a has bits x rows labels; b has as many, or one bit for all."""
    bits, rows = a.shape[:2]
    halves = gates.labels(2, bits, rows)
    low = np.broadcast_to(2 * (first + np.arange(rows)), (bits, rows))
    steps = np.broadcast_to(step + np.arange(bits)[:, None], (bits, rows))
    b = np.broadcast_to(b, a.shape).copy()
    left = hashed(a, tweaks(low, steps)) ^ (a[..., :1] & 1) * halves[0]
    return left ^ hashed(b, tweaks(low + 1, steps)) ^ (b[..., :1] & 1) * (halves[1] ^ a)


def total(gates: Reader, u: Any, v: Any, first: int) -> Any:
    """Add two numbers, bit by bit."""
    carry, made = np.zeros_like(u[:1]), [u[0] ^ v[0]]
    for i in range(len(u) - 1):
        carry = carry ^ both(gates, u[i : i + 1] ^ carry, v[i : i + 1] ^ carry, i, first)
        made.append(u[i + 1] ^ v[i + 1] ^ carry[0])
    return np.stack(made)


def level(gates: Reader, cost: Any, place: Any, number: int, first: int, last: bool) -> tuple[Any, Any]:
    """Play one level of the tournament."""
    nodes, step = cost.shape[1], (number + 1) << 16
    pairs = nodes // 2
    a, b = cost[:, 0 : 2 * pairs : 2], cost[:, 1 : 2 * pairs : 2]
    more = np.zeros_like(a[:1])
    passed = place if last else np.concatenate([cost, place])
    winner, other = passed[:, 0 : 2 * pairs : 2], passed[:, 1 : 2 * pairs : 2]
    if pairs:
        for i in range(len(cost)):
            more = more ^ both(gates, a[i : i + 1] ^ more, b[i : i + 1] ^ more, step + i, first)
        if len(passed):
            winner = winner ^ both(gates, winner ^ other, more, step + (1 << 15), first)
    winner = np.concatenate([winner, more])
    if nodes % 2:
        alone = np.concatenate([passed[:, -1:], np.zeros((1, 1, 16), dtype=np.uint8)])
        winner = np.concatenate([winner, alone], axis=1)
    bits = 0 if last else len(cost)
    return winner[:bits], winner[bits:]


def evaluate(answers: list[bytes], rows: int, kappa: int, inside: int = 0) -> tuple[int, bytes]:
    """Return the position, and the package of `inside` bytes if the answers bring one."""
    gates, shares = Reader(answers[0]), Reader(answers[1])
    b = (rows - 1).bit_length()
    costs, places = [], []
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        u, v = gates.labels(kappa, count), shares.labels(kappa, count)
        cost = total(gates, u, v, start)
        place = cost[:0]
        for number in range(min(b, 12)):
            cost, place = level(gates, cost, place, number, start >> (number + 1), number + 1 == b)
        costs.append(cost)
        places.append(place)
    cost, place = np.concatenate(costs, axis=1), np.concatenate(places, axis=1)
    for number in range(12, b):
        cost, place = level(gates, cost, place, number, 0, number + 1 == b)
    opener = shares.take(16)
    decoding = int.from_bytes(gates.take(-(-b // 8)).tobytes(), "little")
    opened = int.from_bytes(opener.tobytes(), "little")
    colours = sum(int(place[i, 0, 0] & 1) << i for i in range(b))
    position = (colours ^ decoding ^ opened) & ((1 << b) - 1)
    if not inside:
        return position, b""
    locked = gates.take(inside << b).reshape(1 << b, inside)[position]
    key = opener
    for i in reversed(range(b)):
        key = hashed(key ^ place[i, 0], tweaks(2 * (position >> i), (1 << 40) + i))
    blocks = -(-inside // 16)
    low = 2 * (position * blocks + np.arange(blocks))
    pad = hashed(np.broadcast_to(key, (blocks, 16)).copy(), tweaks(low, 1 << 41))
    return position, (locked ^ pad.reshape(-1)[:inside]).tobytes()
