"""Deal for two servers that work together, as docs/wire.md says it: batches, and the two tapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

Batch = tuple[str, tuple[Any, ...]]  # the kind, and its numbers


def log2(n: int) -> int:
    """Return ⌈log2 n⌉."""
    return (n - 1).bit_length()


def batches(M: int, kappa: int, k: int, few: bool = False) -> list[Batch]:
    """Return the batches of a question."""
    B = -(-M // 65536)
    W = -(-M // (64 * B))
    w, b = log2(W), log2(W) + 6 + log2(B)
    bits = kappa + (k > 1)
    p = W // 2 * B
    joined = few and W > 1
    adder: list[Batch] = [("and", (p + W * B, p + W * B) if joined else (W * B, W * B))] * (kappa - 1)
    made = adder + ([("and", (p, p))] if joined else [])
    for _ in range(k):
        nodes = W
        for level in range(b):
            if level == w + 6:
                nodes = B
            P = nodes // 2 * B if level < w else B if level < w + 6 else nodes // 2
            made += compared(P, bits, level, few, at_once=joined and level == 0, several=k > 1)
            c = level if level + 1 == b else bits + level
            made.append(("and", (c * P, P)))
            if not w <= level < w + 6:
                nodes = -(-nodes // 2)
        made += selection(w, b, B, W)
    return made


def compared(P: int, bits: int, level: int, few: bool, *, at_once: bool, several: bool) -> list[Batch]:
    """Return the batches of one comparison."""
    if at_once:
        return [("and", (P, P))] if several else []
    if few:
        return wide(P, bits)
    if level < 7:
        return [("and", (P, P))] * bits
    made: list[Batch] = [("and", (bits * P, bits * P))]
    n = bits
    while n > 1:
        h = n // 2
        made.append(("and", (2 * h * P, h * P)))
        n -= h
    return made


def wide(P: int, bits: int) -> list[Batch]:
    """Return the batches of a wide tree."""
    made: list[Batch] = []
    n = bits + 1
    while n > 1:
        e = next(e for e in range(1, 99) if 4**e >= n)
        v = next(v for v in range(2, 99) if v**e >= n)
        r = -(-n // v)
        products: list[list[int]] = []
        for i in range(r):
            low, high = -(-i * n // r), -(-(i + 1) * n // r) - 1
            products += [[*range(j, high + 1), n + j] for j in range(low + 1, high + 1)]
            if low > 0 and high > low:
                products.append(list(range(low, high + 1)))
        number = {old: new for new, old in enumerate(sorted({f for product in products for f in product}))}
        made.append(("terms", (P, *(tuple(number[f] for f in product) for product in products))))
        n = r
    return made


def selection(w: int, b: int, B: int, W: int) -> list[Batch]:
    """Return the batches that make a selection of rows from the bits of a place."""
    made: list[Batch] = []
    lists = [[2] * w, [2] * (b - w)]
    while any(len(each) > 1 for each in lists):
        sizes = [(each[j + 1], each[j]) for each in lists for j in range(0, len(each) - 1, 2)]
        made.append(("outer", tuple(sizes)))
        lists = [
            [each[j] * each[j + 1] for j in range(0, len(each) - 1, 2)] + each[len(each) // 2 * 2 :] for each in lists
        ]
    return [*made, ("outer", ((64 * B, W),))]


def written(batch: Batch) -> str:
    """Write a batch as the vectors do."""
    kind, numbers = batch
    if kind == "and":
        return f"and {numbers[0]} {numbers[1]}"
    if kind == "outer":
        return " ".join(["outer", *(f"{n}x{m}" for n, m in numbers)])
    return " ".join(["terms", str(numbers[0]), *(".".join(map(str, each)) for each in numbers[1:])])


def subsets(products: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the subsets of two or more factors of all products."""
    every = {some for each in products for size in range(2, len(each) + 1) for some in combinations(each, size)}
    return sorted(every, key=lambda some: (len(some), some))


def sizes(batch: Batch) -> tuple[int, int]:
    """Return the bytes of the masks of a batch, and of its products."""
    kind, numbers = batch
    if kind == "and":
        return 8 * (numbers[0] + numbers[1]), 8 * numbers[0]
    if kind == "outer":
        masks = sum(-(-n // 8) + -(-m // 8) for n, m in numbers)
        return masks, sum(n * -(-m // 8) for n, m in numbers)
    P, products = numbers[0], numbers[1:]
    return 8 * P * (1 + max(max(each) for each in products)), 8 * P * len(subsets(products))


def multiplied(batch: Batch, masks: bytes) -> bytes:
    """Return the products of masks."""
    kind, numbers = batch
    held = np.frombuffer(masks, dtype=np.uint8)
    if kind == "and":
        left, right = 8 * numbers[0], 8 * numbers[1]
        return (held[:left].reshape(-1, right) & held[left:]).tobytes()
    if kind == "outer":
        at, middle, made = 0, sum(-(-n // 8) for n, _ in numbers), b""
        for n, m in numbers:
            rows = np.unpackbits(held[at : at + -(-n // 8)], bitorder="little")[:n]
            at += -(-n // 8)
            made += (rows[:, None] * held[middle : middle + -(-m // 8)]).tobytes()
            middle += -(-m // 8)
        return made
    factors = held.reshape(-1, 8 * numbers[0])
    return b"".join(np.bitwise_and.reduce(factors[list(some)]).tobytes() for some in subsets(numbers[1:]))


def tapes(
    todo: Sequence[Batch], draw: Callable[[int], bytes], expand: Callable[[bytes, int], bytes] | None
) -> list[bytes]:
    """Return the tapes of servers 1 and 2; `expand` makes a stream of a seed, where tapes are seeded."""
    mine, yours = bytearray(), bytearray()
    if expand is None:
        for batch in todo:
            masks, products = sizes(batch)
            a1, a2, g1 = draw(masks), draw(masks), draw(products)
            mine += a1 + g1
            yours += a2 + corrected(batch, a1, a2, g1)
        return [bytes(mine), bytes(yours)]
    seeds = [draw(32), draw(32)]
    needed = [sum(sum(sizes(batch)) for batch in todo), sum(sizes(batch)[0] for batch in todo)]
    first, second = (expand(seed, size) for seed, size in zip(seeds, needed, strict=True))
    at = below = 0
    for batch in todo:
        masks, products = sizes(batch)
        a1, g1, a2 = first[at : at + masks], first[at + masks : at + masks + products], second[below : below + masks]
        at, below = at + masks + products, below + masks
        yours += corrected(batch, a1, a2, g1)
    return [seeds[0], seeds[1] + bytes(yours)]


def corrected(batch: Batch, a1: bytes, a2: bytes, g1: bytes) -> bytes:
    """Return G2."""
    masks = np.frombuffer(a1, dtype=np.uint8) ^ np.frombuffer(a2, dtype=np.uint8)
    made = np.frombuffer(multiplied(batch, masks.tobytes()), dtype=np.uint8)
    return (made ^ np.frombuffer(g1, dtype=np.uint8)).tobytes()
