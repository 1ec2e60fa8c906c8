"""The tournament of `joint` where the rows are: each part of the rows plays within its blocks, and winners meet here.

The head (`Head`) has the tape and talks to the other server. A part of the rows (`Tournament`) may be anywhere. In each
round it masks its factors with its part of the tape. The head joins the openings of all parts in row order, so the
other server sees the same bytes however the rows are cut. Only the head reads the tape, in order and only once: with
every answer a part gets its piece of what it needs next.

Security: shares and pieces of the tape travel within one server, between machines of one operator. A part that is lost
ends the run, which is never resumed: a second opening under one mask would tell the xor of the hidden values.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Bytes, Labels, Vector
from ...engine.hosting import Answer, Home, Part, Script
from ...engine.party import Party, Send, Take
from ..fetch import BYTES
from . import packed
from .circuit import Wires
from .dealing import Batch, Planned, Shares, Tape, Terms
from .packed import Bits, Layout
from .rounds import Term


class Inside(Shares):
    """Gates on the shares of some blocks of rows. Their openings, and their tape, pass through the head."""

    def __init__(self, seat: int, blocks: int) -> None:
        self._seat, self._blocks = seat, blocks
        self._masks: NDArray[Any] = np.zeros((0, blocks), dtype=np.uint64)

    def begin(self) -> Generator[Part, Answer, None]:
        """Take the masks of the first batch."""
        (self._masks,) = yield Part("begin", self._masks)

    def _multiplied(self, batch: Batch, factors: Bytes) -> Generator[Any, Any, Bytes]:
        masks = _flat(self._masks)
        factors ^= masks
        others, products, self._masks = yield Part("opening", _by_block(factors, self._blocks))
        return batch.made(self._seat, factors ^ _flat(others), masks, _flat(products))

    def meet(self, winners: Labels) -> Wires:
        """Let the winners of these blocks meet all others; return which rows won in the end, as bits in words."""
        chosen: Labels
        chosen, self._masks = yield Part("winners", winners.reshape(-1, self._blocks))
        return chosen


class OnCard(Inside):
    """The same gates, where wires are on a graphics card. The host sees openings, winners and pieces of the tape."""

    def __init__(self, seat: int, blocks: int, home: Home) -> None:
        super().__init__(seat, blocks)
        self._home = home

    def public(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return a share of a constant that everybody knows."""
        share: NDArray[Any] = self._home.to_card(super().public(a))
        return share

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return shares of `a AND b`."""
        factors = np.concatenate([a.reshape(-1), b.reshape(-1)])
        opened, masks, products = yield from self._opened(factors)
        made: Labels = self._home.made(opened, masks, products, b.size, self._seat)
        return made.reshape(np.broadcast_shapes(a.shape, b.shape))

    def products(self, factors: Labels, terms: tuple[Term, ...]) -> Wires:
        """Return shares of the products that `terms` names."""
        opened = yield from self._opened(factors.reshape(-1).copy())
        words = [each.reshape(-1, *factors.shape[1:]) for each in opened]
        return Terms(factors.shape, terms).made_of(self._seat, *words)

    def _opened(self, factors: Labels) -> Generator[Any, Any, list[Labels]]:
        masks = self._home.to_card(self._masks.reshape(-1))
        factors ^= masks
        said = Part("opening", self._home.to_host(factors).reshape(-1, self._blocks))
        others, products, self._masks = yield said
        factors ^= self._home.to_card(others.reshape(-1))
        return [factors, masks, self._home.to_card(products.reshape(-1))]

    def meet(self, winners: Labels) -> Wires:
        """Let the winners of these blocks meet all others; return which rows won in the end, as bits in words."""
        chosen = yield from super().meet(self._home.to_host(winners))
        won: Labels = self._home.to_card(chosen)
        return won


@dataclass(frozen=True)
class Tournament:
    """A job: k tournaments over the rows of some blocks, given a server's share of every row's cost."""

    seat: int
    bits: int
    layout: Layout  # of these rows
    whole: Layout  # of all rows
    k: int
    profile: str

    def __call__(self, values: Vector, home: Home | None = None) -> Script[None]:
        """Play the tournaments within the blocks, on the card that the values are on, if they are on one."""
        pad, layout = 0 if self.seat else (1 << self.bits) - 1, self.layout
        if home is None:
            gates = Inside(self.seat, layout.blocks)
            own = layout.sliced(layout.padded(values, pad), self.bits)
        else:
            gates = OnCard(self.seat, layout.blocks, home)
            own = home.slice(values, layout.rows, pad, self.bits, layout.words, layout.blocks)
        none = np.zeros_like(own)
        u, v = (none, own) if self.seat else (own, none)
        yield from gates.begin()
        yield from packed.within(gates, u, v, layout, self.k, self.profile, gates.meet, self.whole)


class Head:
    """Where the parts of the rows meet: it reads the tape, talks to the other server, and keeps the selections."""

    def __init__(
        self, seat: int, tape: Tape, batches: tuple[Planned, ...], whole: Layout, k: int, profile: str
    ) -> None:
        self._peer, self._tape, self._batches, self._at = 1 - seat, tape, batches, 0
        self._gates, self._whole, self._k, self._profile = Shares(seat, tape), whole, k, profile
        self.found = list[Bits]()

    def meet(self, part: Part) -> Party[Answer]:
        """Answer what all parts of the rows say together."""
        blocks = self._whole.blocks
        if part.topic == "begin":
            return (self._next_masks(),)
        if part.topic == "opening":
            batch, said = self._batches[self._at].batch, part.values.reshape(-1)
            self._at += 1
            yield Send(self._peer, said.view(np.uint8), BYTES)
            others = yield Take(self._peer, batch.masks, BYTES)
            products = self._tape.products(batch.products)
            return _by_block(others, blocks), _by_block(products, blocks), self._next_masks()
        winners = part.values.reshape(-1, 1, blocks)
        self.found.append((yield from packed.between(self._gates, winners, self._whole, self._profile)))
        while self._at < len(self._batches) and not self._batches[self._at].within:
            self._at += 1
        more = len(self.found) < self._k
        chosen = self._whole.flags(self.found[-1], 0)[0] if more else np.zeros((0, blocks), dtype=np.uint64)
        return chosen, self._next_masks()

    def _next_masks(self) -> NDArray[Any]:
        """Read the masks of the next batch, if it is played within blocks."""
        ahead = self._batches[self._at : self._at + 1]
        size = ahead[0].batch.masks if ahead and ahead[0].within else 0
        return _by_block(self._tape.masks(size), self._whole.blocks)


def _by_block(flat: Bytes, blocks: int) -> NDArray[Any]:
    return flat.view("<u8").reshape(-1, blocks)


def _flat(words: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)
