"""Comparisons that take few rounds, for gates that open: trees, and a first comparison that runs beside the adder.

A ripple takes a round for each bit. A tree takes fewer rounds and more gates. `by_tree` joins two runs of bits at a
time. `by_wide_tree` joins up to four, by products of up to four factors, each computed in one round.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache, reduce
from itertools import count as numbers
from itertools import pairwise
from operator import xor
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...algebra.arrays import Labels
from . import circuit
from .circuit import Wires

WIDTH = 4  # the most factors of a product

Term = tuple[int, ...]  # the numbers of the factors of one product, in ascending order


class Gates(circuit.Gates, Protocol):
    """Gates with one more: `products` multiplies up to four factors in one round. Factors are told by their numbers."""

    def products(self, factors: Labels, terms: tuple[Term, ...]) -> Wires: ...


def by_tree(gates: circuit.Gates, a: Labels, other: Labels, step: int, first: int) -> Wires:
    """Return whether a > b, given `other` = not b, in 1 + ⌈log2 k⌉ rounds.

    Each round joins neighbouring bits: a is more if its higher part is more, or equal while its lower part is more.
    """
    more, equal = (yield from gates.both(a, other, step, first)), a ^ other
    while len(more) > 1:
        paired = len(more) // 2 * 2
        below = np.stack([more[0:paired:2], equal[0:paired:2]])
        joined = yield from gates.both(below, equal[None, 1:paired:2], step, first)
        more = np.concatenate([more[1:paired:2] ^ joined[0], more[paired:]])
        equal = np.concatenate([joined[1], equal[paired:]])
    return more


def by_wide_tree(gates: Gates, a: Labels, other: Labels, *_: int) -> Wires:
    """Return whether a > b, given `other` = not b, in ⌈log4 (k + 1)⌉ rounds.

    For each run of bits, `equal` says whether a and b agree on it, and `ahead` is the bit of a at the highest place
    where they differ; if they agree, it is the lowest bit of a. A bit below the lowest, where a has 0, makes the last
    `ahead` say whether a > b. Of runs 0 to n, the lowest first, the highest that differs decides: ahead_n +
    equal_n (ahead_n + ahead_n-1) + equal_n equal_n-1 (ahead_n-1 + ahead_n-2) + ...
    """
    ahead = np.concatenate([np.zeros_like(a[:1]), a])
    equal = np.concatenate([np.zeros_like(a[:1]), a ^ other])
    while len(ahead) > 1:
        join = _joined(len(ahead))
        factors = np.concatenate([equal, ahead[:1], ahead[1:] ^ ahead[:-1]])[list(join.factors)]
        made = yield from gates.products(factors, join.terms)
        ahead = np.stack([reduce(xor, made[own], ahead[top]) for top, own, _ in join.runs])
        equal = np.concatenate([equal, made])[[which for _, _, which in join.runs]]
    return ahead


class _Join(NamedTuple):
    """How runs are joined in one round. Factor j is the `equal` of run j, and count + j is ahead_j + ahead_j-1."""

    factors: tuple[int, ...]  # those that are multiplied
    terms: tuple[Term, ...]  # the products, with factors numbered by where they stand in `factors`
    runs: tuple[tuple[int, slice, int], ...]  # by joined run: its highest run, its products for `ahead`, its `equal`


@cache
def _joined(count: int) -> _Join:
    """Return how `count` runs are joined: in as few rounds as possible, and then with as few factors as possible.

    The lowest joined run is among the widest, since nobody needs its `equal`.
    """
    left = next(n for n in numbers(1) if WIDTH**n >= count)
    width = next(n for n in numbers(2) if n**left >= count)
    joined = -(-count // width)
    cuts = [-(-count * n // joined) for n in range(joined + 1)]
    terms, runs = list[Term](), []
    for low, high in pairwise(cuts):
        own = [(*range(j, high), count + j) for j in range(low + 1, high)]
        which = low
        terms += own
        begin, end = len(terms) - len(own), len(terms)
        if low and own:
            which = count + len(terms)
            terms.append(tuple(range(low, high)))
        runs.append((high - 1, slice(begin, end), which))
    factors = tuple(sorted({factor for term in terms for factor in term}))
    place = {factor: number for number, factor in enumerate(factors)}
    return _Join(factors, tuple(tuple(place[factor] for factor in term) for term in terms), tuple(runs))


def add_and_compare(gates: circuit.Gates, u: Labels, v: Labels) -> Generator[Any, Any, tuple[Labels, Labels]]:
    """Return u + v mod 2^k, and whether the first of each two neighbours costs more, in k rounds.

    The comparison is a ripple that takes a bit of the sum in the round that computes the carry to the next bit.
    """
    total, paired = u ^ v, u.shape[1] // 2 * 2
    carry, dearer = np.zeros_like(u[:1]), np.zeros_like(u[:1, 0:paired:2])
    for i in range(len(u)):
        a, other = total[i : i + 1, 0:paired:2], gates.invert(total[i : i + 1, 1:paired:2])
        left, right = a ^ dearer, other ^ dearer
        if i + 1 < len(u):
            left = np.concatenate([left, u[i : i + 1] ^ carry], axis=1)
            right = np.concatenate([right, v[i : i + 1] ^ carry], axis=1)
        made = yield from gates.both(left, right, i, 0)
        dearer = dearer ^ made[:, : paired // 2]
        if i + 1 < len(u):
            carry = carry ^ made[:, paired // 2 :]
            total[i + 1] ^= carry[0]
    return total, dearer


def with_top(gates: circuit.Gates, dearer: Labels, a: Labels, other: Labels) -> Wires:
    """Return whether a > b, given `other` = not b, and `dearer`: whether that holds without their highest bits."""
    top = a[-1:]
    return dearer ^ (yield from gates.both(top ^ gates.invert(other[-1:]), top ^ dearer, 0, 0))
