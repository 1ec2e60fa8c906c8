"""One-time randomness for products of shared bits: which is needed, how it is dealt, and how it is used up.

Two servers hold xor shares of x and y. A dealer shares uniform masks alpha and beta, and gamma = alpha * beta, between
them. They open delta = x + alpha and epsilon = y + beta to each other. Then z = gamma + delta * beta + alpha * epsilon
(+ delta * epsilon at the first) are shares of x * y. A factor that multiplies many others has one mask.

Products come in batches, one to a round. A batch is bilinear, and that is all that the dealer and the servers need to
know of it: `times(p, q)` multiplies the left factors of p by the right factors of q.

Security: a mask is used once. Whoever sees two openings under one mask sees the difference of what was hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Bytes, Labels
from ...crypto.randomness import KEY_BYTES, Randomness, keystream, octets
from ...engine.party import Party, Role, Send, Take
from ..fetch import BYTES
from . import packed
from .circuit import Wires, done
from .packed import Bits, Layout

Read = Callable[[int], Bytes]  # the next bytes of a tape


class Batch(Protocol):
    """Products that are made in one round."""

    @property
    def masks(self) -> int:
        """Bytes of all factors, which is what is opened: the left ones, then the right ones."""

    @property
    def products(self) -> int:
        """Bytes of all products."""

    def times(self, p: Bytes, q: Bytes) -> Bytes:
        """Return the left factors of p times the right factors of q."""


@dataclass(frozen=True)
class Words:
    """ANDs of words; the factors have shapes that go together, as arrays do in NumPy."""

    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the products."""
        return np.broadcast_shapes(self.left, self.right)

    @property
    def masks(self) -> int:
        """Bytes of all factors."""
        return 8 * (prod(self.left) + prod(self.right))

    @property
    def products(self) -> int:
        """Bytes of all products."""
        return 8 * prod(self.shape)

    def times(self, p: Bytes, q: Bytes) -> Bytes:
        """Return the left factors of p times the right factors of q."""
        cut = 8 * prod(self.left)
        left, right = p[:cut].view("<u8").reshape(self.left), q[cut:].view("<u8").reshape(self.right)
        return as_bytes(left & right)


@dataclass(frozen=True)
class Outers:
    """Outer products of pairs of bit vectors, of such lengths; vectors and rows of products are packed into bytes."""

    sizes: tuple[tuple[int, int], ...]

    @property
    def masks(self) -> int:
        """Bytes of all factors."""
        return sum(-(-n // 8) + -(-m // 8) for n, m in self.sizes)

    @property
    def products(self) -> int:
        """Bytes of all products."""
        return sum(n * -(-m // 8) for n, m in self.sizes)

    def times(self, p: Bytes, q: Bytes) -> Bytes:
        """Return the left factors of p times the right factors of q."""
        made, start, middle = [], 0, sum(-(-n // 8) for n, _ in self.sizes)
        for n, m in self.sizes:
            left = np.unpackbits(p[start : start + -(-n // 8)], count=n, bitorder="little")
            right = q[middle : middle + -(-m // 8)]
            made.append((np.negative(left)[:, None] & right).reshape(-1))
            start, middle = start + -(-n // 8), middle + right.size
        return np.concatenate(made)

    def packed(self, pairs: Sequence[tuple[Bits, Bits]]) -> Bytes:
        """Return all factors: the left ones, then the right ones."""
        return np.concatenate([np.packbits(pair[side], bitorder="little") for side in (0, 1) for pair in pairs])

    def unpacked(self, products: Bytes) -> list[Bits]:
        """Return the products, one bit to a byte."""
        made, start = [], 0
        for n, m in self.sizes:
            end = start + n * -(-m // 8)
            rows = products[start:end].reshape(n, -(-m // 8))
            made.append(np.unpackbits(rows, axis=1, count=m, bitorder="little"))
            start = end
        return made


def as_bytes(words: NDArray[Any]) -> Bytes:
    """Return words as bytes."""
    return np.ascontiguousarray(words, dtype="<u8").reshape(-1).view(np.uint8)


class Planner:
    """Gates that are only listed, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a

    def public(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return what everybody knows."""
        return a

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """List ANDs."""
        batch = Words(a.shape, b.shape)
        self.batches.append(batch)
        return np.zeros(batch.shape, dtype=a.dtype)
        yield

    def outer(self, pairs: Sequence[tuple[Bits, Bits]]) -> Generator[Any, Any, list[Bits]]:
        """List outer products."""
        self.batches.append(Outers(tuple((len(left), len(right)) for left, right in pairs)))
        return [np.zeros((len(left), len(right)), dtype=np.uint8) for left, right in pairs]
        yield


@lru_cache(maxsize=16)
def planned(rows: int, bits: int, k: int) -> tuple[Batch, ...]:
    """Return the batches of a question, in order: public, and all that a dealer must know."""
    planner, layout = Planner(), Layout.of(rows)
    shares = np.zeros((bits, layout.words, layout.blocks), dtype=np.uint64)
    done(packed.settled(planner, shares, shares, layout, k))
    return tuple(planner.batches)


def opened(batches: Sequence[Batch]) -> int:
    """Return how many bytes each server sends the other."""
    return sum(batch.masks for batch in batches)


def dealt(batches: Sequence[Batch], *, seeded: bool) -> tuple[int, int]:
    """Return how many bytes each server gets of the dealer."""
    products = sum(batch.products for batch in batches)
    if seeded:
        return KEY_BYTES, KEY_BYTES + products
    return (opened(batches) + products,) * 2


def deal(batches: Sequence[Batch], draw: Randomness, *, seeded: bool) -> Party[None]:
    """Play the dealer: each server gets its shares of masks and products, batch by batch.

    The first server's are uniform. So are the second's masks; its products are what is missing. With seeds, what is
    uniform comes from a seed that the server gets, and the second gets what is missing.
    """
    seeds = [octets(draw, KEY_BYTES) for _ in range(2 * seeded)]
    for seat, seed in enumerate(seeds):
        yield Send(seat, seed, BYTES)
    first, second = [_stream(seed) for seed in seeds] or [lambda count: octets(draw, count)] * 2
    for batch in batches:
        masks, others, products = first(batch.masks), second(batch.masks), first(batch.products)
        both = masks ^ others
        missing = products ^ batch.times(both, both)
        if not seeded:
            yield Send(0, np.concatenate([masks, products]), BYTES)
        yield Send(1, missing if seeded else np.concatenate([others, missing]), BYTES)


def _stream(seed: Bytes) -> Read:
    read = keystream(seed.tobytes())
    return lambda count: np.frombuffer(read(count), dtype=np.uint8)


class Tape:
    """What a server got of the dealer, handed out once, in order."""

    def __init__(self, seat: int, received: Bytes, *, seeded: bool) -> None:
        self._left, self._at = received, 0
        self.masks: Read = self._next
        self.products: Read = self._next
        if seeded:
            self.masks = _stream(self._next(KEY_BYTES))
            self.products = self._next if seat else self.masks

    def _next(self, count: int) -> Bytes:
        self._at += count
        return self._left[self._at - count : self._at]


class Shares:
    """Gates on xor shares: the server at a seat, 0 or 1, opens masked factors to the other. A round is one message.

    Security: what is sent is uniform, whatever the other server does, as long as its masks are used once.
    """

    def __init__(self, seat: int, tape: Tape) -> None:
        self._seat, self._tape = seat, tape

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a if self._seat else ~a

    def public(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return a share of what everybody knows."""
        return np.zeros_like(a) if self._seat else a

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return a and b."""
        batch = Words(a.shape, b.shape)
        made = yield from self._multiplied(batch, np.concatenate([as_bytes(a), as_bytes(b)]))
        return made.view("<u8").reshape(batch.shape)

    def outer(self, pairs: Sequence[tuple[Bits, Bits]]) -> Generator[Any, Any, list[Bits]]:
        """Return the outer product of each pair."""
        batch = Outers(tuple((len(left), len(right)) for left, right in pairs))
        return batch.unpacked((yield from self._multiplied(batch, batch.packed(pairs))))

    def _multiplied(self, batch: Batch, factors: Bytes) -> Generator[Any, Any, Bytes]:
        peer: Role = 1 - self._seat
        masks = self._tape.masks(batch.masks)
        factors ^= masks
        yield Send(peer, factors, BYTES)
        public = factors ^ (yield Take(peer, batch.masks, BYTES))
        made = self._tape.products(batch.products) ^ batch.times(masks, public)
        made ^= batch.times(public, masks if self._seat else masks ^ public)
        return made
