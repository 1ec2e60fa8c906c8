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
from ...errors import WrongShape
from . import circuit, rounds
from .circuit import Compare, Match, Node, Wires, height

LANE_BITS = 6
LANES = 1 << LANE_BITS
TREES_FROM = 7  # comparisons are trees from this level on, since for the few rows left rounds cost more than gates
BLOCK = 1 << 16  # the most rows of a block
_WORTHWHILE = 1 << 18  # rows; NumPy is faster for fewer, since compiling takes time

LANE_OF = np.array([int(f"{run:0{LANE_BITS}b}"[::-1], 2) for run in range(LANES)])  # the lane of each run

Meet = Callable[[Labels], Wires]  # a script: from the winners of blocks to the selection that they make
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
    def block(self) -> int:
        """How many places a block has."""
        return LANES * self.words

    @property
    def places(self) -> int:
        """How many places there are, for rows and pads together."""
        return self.block * self.blocks

    @property
    def height(self) -> int:
        """How many bits a place has: of its word, of its run, and of its block."""
        return height(self.words) + LANE_BITS + height(self.blocks)

    def part(self, first: int, last: int) -> Layout:
        """Return the layout of the rows from `first` to before `last` alone, which are whole blocks."""
        if first % self.block or (last % self.block and last != self.rows):
            raise WrongShape("rows", got=f"{first} to {last}", expected=f"whole blocks of {self.block}")
        return Layout(last - first, self.words, -(-(last - first) // self.block))

    def padded(self, values: Vector, pad: int) -> Vector:
        """Append pads to the values of all rows."""
        return np.concatenate([values, np.full(self.places - self.rows, pad, dtype=values.dtype)])

    def flags(self, values: Bits, pad: int) -> Labels:
        """Return one bit for each row, and the same for all pads, packed into an array (1, words, blocks)."""
        return self.sliced(self.padded(values.astype(np.int64), pad), 1)

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


def within(
    gates: Gates, u: Labels, v: Labels, layout: Layout, k: int, profile: str, meet: Meet, whole: Layout
) -> Generator[Any, Any, None]:
    """Play k tournaments within blocks; u and v hold the bits of the shares of the costs of these blocks' rows.

    `meet` gets the winner of every block, an array (bits, 1, blocks) of costs and then places, and returns the
    selection of the row that is the nearest of all (see `between`), as bits in words. `whole` is the layout of all
    rows.

    For k > 1 every cost gets one more bit on top, which is 1 for a row that is out. The selection of each winner is
    xored into that bit before the next tournament. That takes no gate.
    """
    out = u[:0]
    if k > 1:
        out = gates.public(layout.flags(np.broadcast_to(np.uint8(0), layout.rows), 1))
    compare = _comparing(profile)
    if profile == "few" and layout.words > 1:
        cost, dearer = yield from rounds.add_and_compare(gates, u, v)
        compare = partial(_begun, dearer, k > 1)
    else:
        cost = yield from circuit.add(gates, u, v, 0)
    cost = np.concatenate([cost, out])
    for number in range(k):
        node = yield from _first_stages(gates, cost, whole, compare)
        chosen = yield from meet(np.concatenate(node))
        if number + 1 < k:
            cost[-1] ^= chosen


def between(gates: Gates, winners: Labels, layout: Layout, profile: str) -> Generator[Any, Any, Bits]:
    """Let the winners of all blocks meet; return 1 for the row that is the nearest, and 0 for every other row."""
    places = layout.height - height(layout.blocks)
    parts = winners[: len(winners) - places], winners[len(winners) - places :]
    node = Node(*(part.swapaxes(1, 2) for part in parts))
    count = 1 << layout.height
    node = yield from circuit.rounds(gates, node, places, layout.height, 0, count, _comparing(profile))
    return (yield from selection(gates, node.place[:, 0, 0] & np.uint64(1), layout))


def settled(gates: Gates, u: Labels, v: Labels, layout: Layout, k: int, profile: str = "balanced") -> Selections:
    """Return selections of the k nearest rows, the nearest first, where all rows are in one place."""
    found = list[Bits]()

    def meet(winners: Labels) -> Wires:
        found.append((yield from between(gates, winners, layout, profile)))
        out: Labels = layout.flags(found[-1], 0)[0]
        return out

    yield from within(gates, u, v, layout, k, profile, meet, layout)
    return found


def _comparing(profile: str) -> Callable[[int], Compare]:
    return _balanced if profile == "balanced" else lambda _: rounds.by_wide_tree


def _balanced(level: int) -> Compare:
    return rounds.by_tree if level >= TREES_FROM else circuit.by_ripple


def _begun(dearer: Labels, topped: bool, level: int) -> Compare:
    """Return how to compare at a level, where `dearer` says which rows cost more at the first level.

    If costs are `topped`, their highest bits must still be compared there: they change with every tournament.
    """

    def at_first(gates: Gates, a: Labels, other: Labels, *_: int) -> Wires:
        return (yield from rounds.with_top(gates, dearer, a, other)) if topped else dearer

    return rounds.by_wide_tree if level else at_first


def _first_stages(gates: Gates, cost: Labels, whole: Layout, compare: Callable[[int], Compare]) -> Match:
    """Play the tournament within blocks: words meet, then the halves of the last word. One row of each block is left.

    The lowest bits of its place come first: those of its word, then those of its run.
    """
    low, count = height(whole.words), 1 << whole.height
    node = yield from circuit.rounds(gates, Node(cost, cost[:0]), 0, low, 0, count, compare)
    for level in range(low, low + LANE_BITS):
        half = np.uint64(LANES >> (level - low + 1))
        node = Node(*(np.concatenate([part, part >> half], axis=1) for part in node))
        node = yield from circuit.rounds(gates, node, level, level + 1, 0, count, compare)
    return node


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
