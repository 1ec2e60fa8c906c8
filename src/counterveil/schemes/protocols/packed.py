"""Rows packed 64 to a word; the circuit finds the least cost among them, and a selection of its row.

A public layout puts rows into blocks. A block has 64 runs of consecutive rows. Each word of a block has one row of each
run, and the rows of one run have the same lane (bit) in all words. The tournament has three stages. First whole words
meet. Then the two halves of each word meet, until one lane is left. Lanes are in bit-reversed order, so that the halves
have neighbouring runs. Last, the blocks meet. Whenever two nodes meet, all rows of the first come before all rows of
the second, so ties go to the first row of the database.

Wires have the shape (bits, words, blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Bytes, Labels, Vector
from ...algebra.compiled import where_it_pays
from . import circuit, rounds
from .circuit import Compare, Node, Wires, height

LANE_BITS = 6
LANES = 1 << LANE_BITS
TREES_FROM = 7  # comparisons are trees from this level on, since for the few rows left rounds cost more than gates
BLOCK = 1 << 16  # the most rows of a block
_WORTHWHILE = 1 << 18  # rows; NumPy is faster for fewer, since compiling takes time

LANE_OF = np.array([int(f"{run:0{LANE_BITS}b}"[::-1], 2) for run in range(LANES)])  # the lane of each run

Selections = Generator[Any, Any, list[Bytes]]  # a script that returns selections
Bits = Bytes  # one bit in each byte


PROFILES = ("balanced", "few")  # few rounds cost more bytes


class Gates(rounds.Gates, Protocol):
    """Gates on words, and two more: `public` makes a wire of a constant, and `outer` multiplies vectors of bits."""

    def public(self, a: NDArray[Any]) -> NDArray[Any]: ...
    def outer(self, pairs: Sequence[tuple[Bits, Bits]]) -> Generator[Any, Any, list[Bits]]: ...


class Layout(NamedTuple):
    """Where rows stand: at (block, run, word) is row (block * 64 + run) * words + word, or a pad if there is none."""

    rows: int
    words: int
    blocks: int

    @classmethod
    def of(cls, rows: int) -> Layout:
        """Return the layout of `rows` rows: as few blocks as possible, of equal size."""
        blocks = -(-rows // BLOCK)
        return cls(rows, -(-rows // (LANES * blocks)), blocks)

    @property
    def places(self) -> int:
        """How many places there are, for rows and pads together."""
        return LANES * self.words * self.blocks

    def padded(self, values: Vector, pad: int) -> Vector:
        """Append pads to the values of all rows."""
        return np.concatenate([values, np.full(self.places - self.rows, pad, dtype=values.dtype)])

    def sliced(self, values: Vector, bits: int) -> Labels:
        """Return the lowest bits of the values of all places, packed into an array (bits, words, blocks)."""
        runs = values.reshape(self.blocks, LANES, self.words)
        planes = np.zeros((bits, self.blocks, self.words), dtype=np.uint64)
        fast = where_it_pays(_sliced, values.size, _WORTHWHILE)
        if fast is not None:
            fast(runs, LANE_OF, planes)
        else:
            for i, run in np.ndindex(bits, LANES):
                bit = (runs[:, run] >> i & 1).astype(np.uint64)
                planes[i] |= bit << np.uint64(LANE_OF[run])
        return np.ascontiguousarray(planes.swapaxes(1, 2))


def _sliced(runs: Any, lane_of: Any, planes: Any) -> None:
    for block in range(runs.shape[0]):
        for run in range(runs.shape[1]):
            lane = lane_of[run]
            for i in range(planes.shape[0]):
                for word in range(runs.shape[2]):
                    planes[i, block, word] |= np.uint64(runs[block, run, word] >> i & 1) << np.uint64(lane)


def settled(gates: Gates, u: Labels, v: Labels, layout: Layout, k: int, profile: str = "balanced") -> Selections:
    """Return selections of the k nearest rows, the nearest first; u and v hold the bits of the shares of every cost.

    For k > 1 every cost gets one more bit on top, which is 1 for a row that is out. The selection of each winner is
    xored into that bit before the next tournament. That takes no gate.
    """
    out = u[:0]
    if k > 1:
        out = gates.public(layout.sliced(layout.padded(np.zeros(layout.rows, dtype=np.int64), 1), 1))
    compare: Callable[[int], Compare] = _balanced if profile == "balanced" else lambda _: rounds.by_wide_tree
    if profile == "few" and layout.words > 1:
        cost, dearer = yield from rounds.add_and_compare(gates, u, v)
        compare = partial(_begun, dearer, k > 1)
    else:
        cost = yield from circuit.add(gates, u, v, 0)
    cost, found = np.concatenate([cost, out]), list[Bits]()
    for _ in range(k):
        if found:
            cost[-1] ^= layout.sliced(layout.padded(found[-1].astype(np.int64), 0), 1)[0]
        place = yield from least(gates, cost, layout, compare)
        found.append((yield from selection(gates, place, layout)))
    return found


def _balanced(level: int) -> Compare:
    return rounds.by_tree if level >= TREES_FROM else circuit.by_ripple


def _begun(dearer: Labels, topped: bool, level: int) -> Compare:
    """Return how to compare at a level, where `dearer` says which rows cost more at the first level.

    If costs are `topped`, their highest bits must still be compared there: they change with every tournament.
    """

    def at_first(gates: Gates, a: Labels, other: Labels, *_: int) -> Wires:
        return (yield from rounds.with_top(gates, dearer, a, other)) if topped else dearer

    return rounds.by_wide_tree if level else at_first


def least(gates: Gates, cost: Labels, layout: Layout, compare: Callable[[int], Compare] = _balanced) -> Wires:
    """Return the bits of the place of the least cost, the lowest first: of its word, then its run, then its block."""
    low, high = height(layout.words), height(layout.words) + LANE_BITS
    top = high + height(layout.blocks)
    node = yield from circuit.rounds(gates, Node(cost, cost[:0]), 0, low, 0, 1 << top, compare)
    for level in range(low, high):
        half = np.uint64(LANES >> (level - low + 1))
        node = Node(*(np.concatenate([part, part >> half], axis=1) for part in node))
        node = yield from circuit.rounds(gates, node, level, level + 1, 0, 1 << top, compare)
    node = Node(*(part.swapaxes(1, 2) for part in node))
    node = yield from circuit.rounds(gates, node, high, top, 0, 1 << top, compare)
    return node.place[:, 0, 0] & np.uint64(1)


def selection(gates: Gates, place: Labels, layout: Layout) -> Generator[Any, Any, Bits]:
    """Return 1 for the row at a place and 0 for every other row.

    Each bit of the place becomes a one-hot vector of length 2. Each round joins neighbouring vectors by an outer
    product, which is one-hot again. The last round joins the vector of blocks and runs with the vector of words.
    """
    bits, low = place.astype(np.uint8), height(layout.words)
    one = gates.public(np.ones(1, dtype=np.uint8))
    parts = [[np.concatenate([bit ^ one, bit]) for bit in half[:, None]] for half in (bits[:low], bits[low:])]
    while any(len(part) > 1 for part in parts):
        pairs = [pair for part in parts for pair in zip(part[1::2], part[0::2], strict=False)]
        made = iter((yield from gates.outer(pairs)))
        parts = [[next(made).reshape(-1) for _ in part[1::2]] + part[len(part) // 2 * 2 :] for part in parts]
    words, runs = ((part[0] if part else one) for part in parts)
    (chosen,) = yield from gates.outer([(runs[: LANES * layout.blocks], words[: layout.words])])
    return chosen.reshape(-1)[: layout.rows]
