"""The circuit of `sealed`: add two shares of every cost, then a knock-out tournament for the least and where it stands.

Written once over gates: a server makes it, the applicant evaluates it, tests run it in the clear. Rows come in chunks,
so that nobody holds all of it; which gates there are does not depend on that, since a pair at level l always covers the
same 2^(l+1) slots. Where a level has an odd one out, it goes on without a gate, and its place gets a constant 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from .arrays import Labels

CHUNK_BITS = 12
CHUNK = 1 << CHUNK_BITS  # rows
LEVEL_STEPS = 1 << 16  # names of gates that a level of the tournament has
PASS_STEP = 1 << 15  # of those, where passing on begins


class Gates(Protocol):
    """What a circuit is written over; xor is xor of arrays."""

    def invert(self, a: Labels) -> Labels: ...
    def both(self, a: Labels, b: Labels, step: int, first: int) -> Labels: ...


class Node(NamedTuple):
    """Those still in the tournament, in order of their slots: bits of their costs and of their places, lowest first."""

    cost: Labels
    place: Labels


def height(count: int) -> int:
    """Return how many bits the place of one of `count` rows takes: ⌈log2 count⌉."""
    return (count - 1).bit_length()


def chunks(count: int) -> Iterator[slice]:
    """Return the slots in chunks."""
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def ands(count: int, bits: int) -> tuple[list[int], int]:
    """Return the AND gates of every chunk, and of the rounds between chunks.

    An adder has k - 1, a match at level l has 2k + l: k to compare, k + l to pass on; the final passes no cost on.
    """
    within, top = min(height(count), CHUNK_BITS), height(count)

    def played(nodes: int, low: int, high: int) -> int:
        total = 0
        for level in range(low, high):
            total += nodes // 2 * (2 * bits + level)
            nodes = (nodes + 1) // 2
        return total

    each = [c.stop - c.start for c in chunks(count)]
    sizes = [n * (bits - 1) + played(n, 0, within) for n in each]
    rounds = played(len(each), within, top)
    if len(each) == 1:
        sizes[0] -= bits if top else 0
    else:
        rounds -= bits
    return sizes, rounds


def chunk(gates: Gates, u: Labels, v: Labels, start: int, count: int) -> Node:
    """Return the winner of the rows from slot `start` on, of `count` in all; u and v hold the bits of the shares."""
    cost = add(gates, u, v, start)
    entered = Node(cost, cost[:0])
    return rounds(gates, entered, 0, min(height(count), CHUNK_BITS), start, count)


def rounds(gates: Gates, node: Node, low: int, high: int, start: int, count: int) -> Node:
    """Play levels low..high-1 among those who cover the slots from `start` on."""
    for level in range(low, high):
        node = _round(gates, node, level, start >> (level + 1), last=level + 1 == height(count))
    return node


def final(gates: Gates, winners: list[Node], count: int) -> Labels:
    """Let the winners of all chunks meet; return the bits of the slot of the least of all, the lowest first."""
    met = Node(*(np.concatenate(parts, axis=1) for parts in zip(*winners, strict=True)))
    return rounds(gates, met, min(height(count), CHUNK_BITS), height(count), 0, count).place[:, 0]


def add(gates: Gates, u: Labels, v: Labels, start: int) -> Labels:
    """Return u + v mod 2^k, ripple by ripple: carry' = carry + (u + carry)(v + carry), one AND a bit."""
    total = u ^ v
    carry = np.zeros_like(u[:1])
    for i in range(len(u) - 1):
        carry = carry ^ gates.both(u[i : i + 1] ^ carry, v[i : i + 1] ^ carry, i, start)
        total[i + 1] ^= carry[0]
    return total


def _round(gates: Gates, node: Node, level: int, first: int, *, last: bool) -> Node:
    """Play one level: neighbours meet, the second wins if the first costs more."""
    bits, nodes = node.cost.shape[:2]
    met = nodes // 2 * 2
    step = (level + 1) * LEVEL_STEPS
    a, b = node.cost[:, 0:met:2], node.cost[:, 1:met:2]
    more = np.zeros_like(a[:1])  # the carry of a + not b: whether a > b
    if met:
        other = gates.invert(b)
        for i in range(bits):
            more = more ^ gates.both(a[i : i + 1] ^ more, other[i : i + 1] ^ more, step + i, first)
    carried = node.place if last else np.concatenate([node.cost, node.place])
    winner, second = carried[:, 0:met:2], carried[:, 1:met:2]
    if met and len(carried):
        passed = gates.both(winner ^ second, np.broadcast_to(more, winner.shape), step + PASS_STEP, first)
        winner = winner ^ passed
    winner = np.concatenate([winner, more])
    if nodes % 2:
        alone = np.concatenate([carried[:, -1:], np.zeros_like(node.cost[:1, -1:])])
        winner = np.concatenate([winner, alone], axis=1)
    split = 0 if last else bits
    return Node(winner[:split], winner[split:])
