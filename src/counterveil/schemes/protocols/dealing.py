"""One-time randomness for products of shared bits: how much is needed, how it is dealt, and how it is used.

Two servers have xor shares of x and y, and want shares of x * y. A dealer gives them shares of uniform masks alpha and
beta, and of gamma = alpha * beta. The servers open delta = x + alpha and epsilon = y + beta to each other. Each server
then computes gamma + delta * beta + alpha * epsilon from its shares; server 1 also adds delta * epsilon. The results
are shares of x * y. A factor that multiplies many others has one mask.

A product of more factors is computed likewise, if the dealer gives shares of the product of every subset of their
masks. (x + alpha) + alpha = x, so the product is a sum over all subsets: the masks of the subset, times the opened
values of the other factors.

Products come in batches, and each batch takes one round. The dealer needs to know `dealt`, which makes the products of
masks. The servers need to know `made`, which makes a share of the products of factors.

Security: a mask must be used only once. Whoever sees two openings under one mask learns the xor of the hidden values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Bytes, Labels
from ...crypto.randomness import KEY_BYTES, Randomness, keystream, octets
from ...engine.party import Party, Role, Send, Take
from ..fetch import BYTES
from . import packed
from .circuit import Wires, done
from .packed import Bits, Layout
from .rounds import Term

Read = Callable[[int], Bytes]  # from a number of bytes to the next bytes of a tape


class Batch(Protocol):
    """Products that are computed in one round."""

    @property
    def masks(self) -> int:
        """How many bytes the factors have, left and right. Each factor has a mask as long, and is opened under it."""

    @property
    def products(self) -> int:
        """How many bytes the products of masks have."""

    def dealt(self, masks: Bytes) -> Bytes:
        """Return the products of masks that the dealer shares."""

    def made(self, seat: int, public: Bytes, masks: Bytes, products: Bytes) -> Bytes:
        """Return a share of the products of factors, from the opened factors and shares of masks and their products."""


class Bilinear(ABC):
    """Products of two factors each: `times(p, q)` multiplies the left factors of p by the right factors of q."""

    @abstractmethod
    def times(self, p: Bytes, q: Bytes) -> Bytes:
        """Return the left factors of p times the right factors of q."""

    def dealt(self, masks: Bytes) -> Bytes:
        """Return the products of masks that the dealer shares."""
        return self.times(masks, masks)

    def made(self, seat: int, public: Bytes, masks: Bytes, products: Bytes) -> Bytes:
        """Return a share of the products of factors."""
        made = products ^ self.times(masks, public)
        made ^= self.times(public, masks if seat else masks ^ public)
        return made


@dataclass(frozen=True)
class Words(Bilinear):
    """ANDs of words. The shapes of the two factors broadcast, as in NumPy."""

    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the products."""
        return np.broadcast_shapes(self.left, self.right)

    @property
    def masks(self) -> int:
        """How many bytes the factors have."""
        return 8 * (prod(self.left) + prod(self.right))

    @property
    def products(self) -> int:
        """How many bytes the products have."""
        return 8 * prod(self.shape)

    def times(self, p: Bytes, q: Bytes) -> Bytes:
        """Return the left factors of p times the right factors of q."""
        cut = 8 * prod(self.left)
        left, right = p[:cut].view("<u8").reshape(self.left), q[cut:].view("<u8").reshape(self.right)
        return as_bytes(left & right)


@dataclass(frozen=True)
class Terms:
    """Products of some of many factors, which are arrays of words: `terms` says which, and `shape` is that of all."""

    shape: tuple[int, ...]
    terms: tuple[Term, ...]

    @property
    def masks(self) -> int:
        """How many bytes the factors have."""
        return 8 * prod(self.shape)

    @property
    def products(self) -> int:
        """How many bytes the products of masks have."""
        return 8 * prod(self.shape[1:]) * len(subsets(self.terms))

    def dealt(self, masks: Bytes) -> Bytes:
        """Return the products of masks that the dealer shares: of every subset of every term, from two masks on."""
        held: dict[Term, Labels] = {(n,): mask for n, mask in enumerate(self._words(masks))}
        for subset in subsets(self.terms):
            held[subset] = held[subset[:-1]] & held[subset[-1:]]
        return as_bytes(np.stack([held[subset] for subset in subsets(self.terms)]))

    def made(self, seat: int, public: Bytes, masks: Bytes, products: Bytes) -> Bytes:
        """Return a share of the products of factors."""
        return as_bytes(self.made_of(seat, *map(self._words, (public, masks, products))))

    def made_of(self, seat: int, opened: Labels, own: Labels, products: Labels) -> Labels:
        """Return a share of the products of factors, from words."""
        held: dict[Term, Labels] = {(): np.full_like(own[0], 0 if seat else ~np.uint64(0))}
        held |= {(n,): own[n] for n in range(len(own))}
        held |= dict(zip(subsets(self.terms), products, strict=True))

        def expanded(masked: Term, rest: Term) -> Labels:
            """Return the share of the masks of some factors, times the rest of the factors."""
            if not rest:
                return held[masked]
            alone: Labels = opened[rest[0]] & expanded(masked, rest[1:])
            return alone ^ expanded((*masked, rest[0]), rest[1:])

        return np.stack([expanded((), term) for term in self.terms])

    def _words(self, flat: Bytes) -> Labels:
        return flat.view("<u8").reshape(-1, *self.shape[1:])


@cache
def subsets(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return all subsets of two factors or more of any term, those with fewer factors first, and then by number."""
    chosen = {each for term in terms for size in range(2, len(term) + 1) for each in combinations(term, size)}
    return tuple(sorted(chosen, key=lambda each: (len(each), each)))


@dataclass(frozen=True)
class Outers(Bilinear):
    """Outer products of pairs of bit vectors of these lengths. Vectors, and rows of products, are packed into bytes."""

    sizes: tuple[tuple[int, int], ...]

    @property
    def masks(self) -> int:
        """How many bytes the factors have."""
        return sum(-(-n // 8) + -(-m // 8) for n, m in self.sizes)

    @property
    def products(self) -> int:
        """How many bytes the products have."""
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
        """Return all factors as bytes: the left ones, then the right ones."""
        return np.concatenate([np.packbits(pair[side], bitorder="little") for side in (0, 1) for pair in pairs])

    def unpacked(self, products: Bytes) -> list[Bits]:
        """Return the products, one bit in each byte."""
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


class _Outline(Layout):
    """A layout whose wires carry nothing. They have one more axis, of length 0, so they take no memory."""

    def flags(self, values: Bits, pad: int) -> Labels:
        """Return a wire of one bit for each row."""
        return self.wires(1)

    def wires(self, bits: int) -> Labels:
        """Return wires for all rows."""
        return np.zeros((bits, self.words, self.blocks, 0), dtype=np.uint64)


class Planner:
    """Gates that are only listed, batch by batch. Their wires carry nothing, and are those of an `_Outline`."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a

    def public(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return a constant that everybody knows."""
        return a

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Add a batch of ANDs to the list."""
        batch = Words(a.shape[:-1], b.shape[:-1])
        self.batches.append(batch)
        return np.zeros((*batch.shape, 0), dtype=a.dtype)
        yield

    def products(self, factors: Labels, terms: tuple[Term, ...]) -> Wires:
        """Add a batch of products of several factors to the list."""
        self.batches.append(Terms(factors.shape[:-1], terms))
        return np.zeros((len(terms), *factors.shape[1:]), dtype=factors.dtype)
        yield

    def outer(self, pairs: Sequence[tuple[Bits, Bits]]) -> Generator[Any, Any, list[Bits]]:
        """Add a batch of outer products to the list."""
        self.batches.append(Outers(tuple((len(left), len(right)) for left, right in pairs)))
        return [np.broadcast_to(np.uint8(0), (len(left), len(right))) for left, right in pairs]  # one byte in memory
        yield


class Planned(NamedTuple):
    """A batch of a question, and whether it is played within blocks, where the rows are."""

    batch: Batch
    within: bool


@lru_cache(maxsize=16)
def script(rows: int, bits: int, k: int, profile: str = "balanced") -> tuple[Planned, ...]:
    """Return the batches of a question, in order. They are public, and a dealer needs to know nothing else."""
    planner, layout, met = Planner(), _Outline(*Layout.of(rows)), set[int]()
    shares = layout.wires(bits)

    def meet(winners: Labels) -> Wires:
        first = len(planner.batches)
        chosen = yield from packed.between(planner, winners, layout, profile)
        met.update(range(first, len(planner.batches)))
        out: Labels = layout.flags(chosen, 0)[0]
        return out

    done(packed.within(planner, shares, shares, layout, k, profile, meet, layout))
    return tuple(Planned(batch, number not in met) for number, batch in enumerate(planner.batches))


def planned(rows: int, bits: int, k: int, profile: str = "balanced") -> tuple[Batch, ...]:
    """Return the batches of a question, in order."""
    return tuple(each.batch for each in script(rows, bits, k, profile))


def opened(batches: Sequence[Batch]) -> int:
    """Return how many bytes each server sends the other."""
    return sum(batch.masks for batch in batches)


def dealt(batches: Sequence[Batch], *, seeded: bool) -> tuple[int, int]:
    """Return how many bytes each server gets from the dealer."""
    products = sum(batch.products for batch in batches)
    if seeded:
        return KEY_BYTES, KEY_BYTES + products
    return (opened(batches) + products,) * 2


def deal(batches: Sequence[Batch], draw: Randomness, *, seeded: bool) -> Party[None]:
    """Play the dealer: send each server its shares of masks and products, batch by batch.

    All shares of server 1 are uniform, and so are server 2's shares of the masks. Server 2's shares of the products are
    corrections: they make both servers' shares add up to the products. If `seeded`, each server gets a seed and derives
    its uniform shares from it. Only the corrections are then sent in full.
    """
    seeds = [octets(draw, KEY_BYTES) for _ in range(2 * seeded)]
    for seat, seed in enumerate(seeds):
        yield Send(seat, seed, BYTES)
    first, second = [_stream(seed) for seed in seeds] or [lambda count: octets(draw, count)] * 2
    for batch in batches:
        masks, others, products = first(batch.masks), second(batch.masks), first(batch.products)
        both = masks ^ others
        corrections = products ^ batch.dealt(both)
        if not seeded:
            yield Send(0, np.concatenate([masks, products]), BYTES)
        yield Send(1, corrections if seeded else np.concatenate([others, corrections]), BYTES)


def _stream(seed: Bytes) -> Read:
    read = keystream(seed.tobytes())
    return lambda count: np.frombuffer(read(count), dtype=np.uint8)


class Tape:
    """The bytes that a server got from the dealer. They are handed out in order, and each only once."""

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
    """Gates on xor shares: the server at seat 0 or 1 opens masked factors to the other, in one message for each round.

    Security: what this server sends is uniform, whatever the other server does, as long as each mask is used only once.
    """

    def __init__(self, seat: int, tape: Tape) -> None:
        self._seat, self._tape = seat, tape

    def invert(self, a: Labels) -> Labels:
        """Return not a."""
        return a if self._seat else ~a

    def public(self, a: NDArray[Any]) -> NDArray[Any]:
        """Return a share of a constant that everybody knows."""
        return np.zeros_like(a) if self._seat else a

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return shares of `a AND b`."""
        batch = Words(a.shape, b.shape)
        made = yield from self._multiplied(batch, np.concatenate([as_bytes(a), as_bytes(b)]))
        return made.view("<u8").reshape(batch.shape)

    def products(self, factors: Labels, terms: tuple[Term, ...]) -> Wires:
        """Return shares of the products that `terms` names, each of up to four factors."""
        batch = Terms(factors.shape, terms)
        made = yield from self._multiplied(batch, as_bytes(factors).copy())
        return made.view("<u8").reshape(-1, *factors.shape[1:])

    def outer(self, pairs: Sequence[tuple[Bits, Bits]]) -> Generator[Any, Any, list[Bits]]:
        """Return shares of the outer product of each pair."""
        batch = Outers(tuple((len(left), len(right)) for left, right in pairs))
        return batch.unpacked((yield from self._multiplied(batch, batch.packed(pairs))))

    def _multiplied(self, batch: Batch, factors: Bytes) -> Generator[Any, Any, Bytes]:
        peer: Role = 1 - self._seat
        masks = self._tape.masks(batch.masks)
        factors ^= masks
        yield Send(peer, factors, BYTES)
        public = factors ^ (yield Take(peer, batch.masks, BYTES))
        return batch.made(self._seat, public, masks, self._tape.products(batch.products))
