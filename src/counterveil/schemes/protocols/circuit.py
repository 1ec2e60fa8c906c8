"""The circuit of sealed reveals: add two shares of every cost, then a knock-out tournament for the least.

It is written once, as a script over gates that may send, take or open. A server garbles it, the applicant evaluates it,
two servers evaluate it on shares, a counter counts its gates, and tests run it in the clear. A wire is an array whose
first two axes are bits and rows. The other axes belong to the gates: a label of two words, or words of 64 rows each.

Rows of garbled gates come in chunks, so that nobody holds the whole circuit. The gates do not depend on the chunks,
since a pair at level l always covers the same 2^(l+1) slots. If a level has an odd number of nodes, the last one moves
up without a gate, and its place gets a constant 0 as its next bit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...algebra.arrays import Labels

CHUNK_BITS = 12
CHUNK = 1 << CHUNK_BITS  # rows
LEVEL_STEPS = 1 << 16  # numbers reserved for the gates of one level of the tournament
PASS_STEP = 1 << 15  # where, among those, the gates begin that pass the winner on

Wires = Generator[Any, Any, Labels]  # a script that returns wires


class Gates(Protocol):
    """The gates of a circuit: `invert` is NOT; `both` is AND, and may send, take or open. XOR is the xor of arrays.

    An axis of the second factor of `both` may have length 1 where the first has more. Then one factor multiplies many.
    """

    def invert(self, a: Labels) -> Labels: ...
    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires: ...


class Node(NamedTuple):
    """The rows still in the tournament, by slot: the bits of their costs and of their places, the lowest bit first."""

    cost: Labels
    place: Labels


Match = Generator[Any, Any, Node]  # a script that returns the rows that are left
Compare = Callable[[Any, Labels, Labels, int, int], Wires]  # a script over gates, given a and not b; it returns a > b


def height(count: int) -> int:
    """Return how many bits the place of one of `count` rows takes: ⌈log2 count⌉."""
    return (count - 1).bit_length()


def chunks(count: int) -> Iterator[slice]:
    """Return the slots in chunks."""
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def chunk(gates: Gates, u: Labels, v: Labels, start: int, count: int) -> Match:
    """Return the winner of the rows from slot `start` on, of `count` in all; u and v hold the bits of the shares."""
    cost = yield from add(gates, u, v, start)
    entered = Node(cost, cost[:0])
    return (yield from rounds(gates, entered, 0, min(height(count), CHUNK_BITS), start, count))


def by_ripple(gates: Gates, a: Labels, other: Labels, step: int, first: int) -> Wires:
    """Return whether a > b, given `other` = not b: the carry of a + not b, with one AND for each bit, in sequence."""
    dearer = np.zeros_like(a[:1])
    for i in range(len(a)):
        dearer = dearer ^ (yield from gates.both(a[i : i + 1] ^ dearer, other[i : i + 1] ^ dearer, step + i, first))
    return dearer


def rounds(
    gates: Gates,
    node: Node,
    low: int,
    high: int,
    start: int,
    count: int,
    compare: Callable[[int], Compare] = lambda _: by_ripple,
) -> Match:
    """Play levels low..high-1 among the nodes that cover the slots from `start` on; `compare` names each comparison."""
    for level in range(low, high):
        last, script = level + 1 == height(count), compare(level)
        node = yield from _round(gates, node, level, start >> (level + 1), script, last=last)
    return node


def final(gates: Gates, winners: list[Node], count: int) -> Wires:
    """Let the winners of all chunks meet; return the bits of the slot of the least cost, the lowest bit first."""
    met = Node(*(np.concatenate(parts, axis=1) for parts in zip(*winners, strict=True)))
    last = yield from rounds(gates, met, min(height(count), CHUNK_BITS), height(count), 0, count)
    return last.place[:, 0]


def add(gates: Gates, u: Labels, v: Labels, start: int) -> Wires:
    """Return u + v mod 2^k, with one AND for each bit: the next carry is carry + (u + carry)(v + carry)."""
    total = u ^ v
    carry = np.zeros_like(u[:1])
    for i in range(len(u) - 1):
        carry = carry ^ (yield from gates.both(u[i : i + 1] ^ carry, v[i : i + 1] ^ carry, i, start))
        total[i + 1] ^= carry[0]
    return total


def _round(gates: Gates, node: Node, level: int, first: int, compare: Compare, *, last: bool) -> Match:
    """Play one level: neighbours meet, and the second wins if the first costs more."""
    bits, nodes = node.cost.shape[:2]
    paired = nodes // 2 * 2
    step = (level + 1) * LEVEL_STEPS
    a, b = node.cost[:, 0:paired:2], node.cost[:, 1:paired:2]
    dearer = np.zeros_like(a[:1])
    if paired:
        dearer = yield from compare(gates, a, gates.invert(b), step, first)
    carried = node.place if last else np.concatenate([node.cost, node.place])
    winner, second = carried[:, 0:paired:2], carried[:, 1:paired:2]
    if paired and len(carried):
        winner = winner ^ (yield from gates.both(winner ^ second, dearer, step + PASS_STEP, first))
    winner = np.concatenate([winner, dearer])
    if nodes % 2:
        alone = np.concatenate([carried[:, -1:], np.zeros_like(node.cost[:1, -1:])])
        winner = np.concatenate([winner, alone], axis=1)
    split = 0 if last else bits
    return Node(winner[:split], winner[split:])


class Counter:
    """Gates that are only counted. Their wires carry nothing."""

    def __init__(self) -> None:
        self.ands = 0

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Count the gates of a batch."""
        self.ands += a.shape[0] * a.shape[1]
        return a
        yield


def ands(count: int, bits: int) -> tuple[list[int], int]:
    """Return the AND gates of every chunk, and of the rounds between chunks."""
    sizes = [_ands_of(c.stop - c.start, bits, height(count)) for c in chunks(count)]
    return sizes, _ands_between(len(sizes), bits, count)


@cache
def _ands_of(rows: int, bits: int, top: int) -> int:
    counter, shares = Counter(), np.zeros((bits, rows, 0), dtype=np.uint64)
    done(chunk(counter, shares, shares, 0, 1 << top))
    return counter.ands


@cache
def _ands_between(winners: int, bits: int, count: int) -> int:
    counter = Counter()
    places = min(height(count), CHUNK_BITS)
    cost = np.zeros((0 if height(count) <= CHUNK_BITS else bits, winners, 0), dtype=np.uint64)
    done(final(counter, [Node(cost, np.zeros((places, winners, 0), dtype=np.uint64))], count))
    return counter.ands


def done(script: Generator[Any, Any, Any]) -> Any:
    """Run a script over gates that neither send nor take; return its result."""
    try:
        effect = next(script)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"got the effect {effect}, expected none")
