"""Maximal leakage of one question: the most that its answer can tell of the rows, however the rows are distributed.

    log2 of sum_z max_y P(z | y)        z: what is revealed, y: the costs of the rows, x: fixed

It is the factor, in bits, by which an answer can raise the chance that any guess about the rows is right. It is never
below the mutual information, and that of several questions is at most the sum. Any row may have any of the costs.

- Costs in a fixed order: n^M vectors of costs. A secret order leaves the C(n + M - 1, M) multisets.
- Masked costs in a fixed order: s^M / w^M, if a row can show s values and the mask has w.
- Differences: vectors that are shifts of each other look alike. They are counted by sampling: a vector that has k
  shifts counts 1/k. This cannot saturate, since only the mean of numbers between 1/n and 1 is sampled.
- A mask together with differences or with a secret order is bounded from both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Vector
from ..schemes.reveals import Opened, Reveal

Floats = NDArray[np.float64]
Z = 1.959964  # half the width of a 95 % interval, in standard errors
_LOG2 = math.log(2)
_FEW = 100_000


@dataclass(frozen=True)
class Maximal:
    """Maximal leakage in bits, with a 95 % interval or with bounds."""

    bits: float
    low: float
    high: float
    method: str  # "closed form", "sampled", or "bounded": then `bits` is the upper bound

    @classmethod
    def known(cls, bits: float) -> Maximal:
        """Return a value without an interval."""
        return cls(bits, bits, bits, "closed form")


def maximal(
    reveal: Reveal, values: Vector, rows: int, *, generator: np.random.Generator, samples: int = 400
) -> Maximal:
    """Return the maximal leakage of `rows` rows, each of which may have any of these costs (distinct, ascending).

    >>> from counterveil.schemes.reveals import make_reveal
    >>> one = np.random.default_rng(1)
    >>> round(maximal(make_reveal("distances"), np.arange(8), 2, generator=one).bits, 6)
    6.0
    """
    if not reveal.length(rows):
        return Maximal.known(0.0)
    plain = vectors(values.size, rows, False)
    if not isinstance(reveal, Opened):  # all that is known of it here is that it tells no more than all costs
        return Maximal(plain, 0.0, plain, "bounded")
    if not reveal.masked:
        return _unmasked(reveal, values, rows, samples, generator)
    width, shown = reveal.expansion * reveal.d_min, masked_values(reveal, values)
    mask = max(0.0, rows * math.log2(shown.size / width))
    if not reveal.differences and not reveal.shuffle:
        return Maximal.known(mask)
    order = _unmasked(replace(reveal, masked=False, d_min=1, expansion=1), values, rows, samples, generator)
    low, high = mask, min(mask, order.high)
    if reveal.differences:  # the first masked cost and the differences tell all masked costs
        low -= math.log2(shown.size)
        if shown.size * rows <= _FEW:  # with more, hardly any vector has more shifts than the mask is wide
            shares = _shares(shown, rows, samples, generator, shuffle=False, most=width)
            high = min(high, mask + math.log2(min(1.0, _interval(shares)[1])))
    if reveal.shuffle:
        low -= math.lgamma(rows + 1) / _LOG2
    return Maximal(high, max(0.0, min(low, high)), high, "bounded")


def worst_of(reveal: Reveal, costs: Iterable[Vector], rows: int, *, generator: np.random.Generator) -> Maximal:
    """Return the largest maximal leakage over applicants, each with the costs that rows can have for them.

    Few samples choose the applicant, and fresh ones measure, so that the largest of many is not the luckiest.
    """
    distinct = list({values.tobytes(): values for values in costs}.values())
    rough = [maximal(reveal, values, rows, generator=generator, samples=40).bits for values in distinct]
    samples = min(2000, 50 + 20_000_000 // rows)
    return maximal(reveal, distinct[int(np.argmax(rough))], rows, generator=generator, samples=samples)


def information(chance: Floats, given: Vector, result: Vector, conditional: Floats) -> tuple[float, float]:
    """Return the mutual information and the maximal leakage of a channel, in bits."""
    marginal = np.bincount(result, weights=chance[given] * conditional)
    bits = float(np.sum(chance[given] * conditional * np.log2(conditional / marginal[result])))
    largest = np.zeros(marginal.size)
    np.maximum.at(largest, result, conditional)
    return bits, math.log2(float(largest.sum()))


def _unmasked(reveal: Opened, values: Vector, rows: int, samples: int, generator: np.random.Generator) -> Maximal:
    count = vectors(values.size, rows, reveal.shuffle)
    if not reveal.differences:
        return Maximal.known(count)
    shares = _shares(values, rows, samples, generator, shuffle=reveal.shuffle)
    low, high = _interval(shares)
    least = max(low, 1 / values.size)  # no vector has more shifts than there are costs
    bits, low, high = (count + math.log2(share) for share in (shares.mean(), least, min(1.0, high)))
    return Maximal(max(0.0, bits), max(0.0, low), max(0.0, high), "sampled")


def _interval(shares: Floats) -> tuple[float, float]:
    margin = Z * float(np.std(shares, ddof=1)) / math.sqrt(shares.size)
    return float(shares.mean()) - margin, float(shares.mean()) + margin


def vectors(values: int, rows: int, shuffle: bool) -> float:
    """Return log2 of the number of vectors of costs; of multisets, if the order is secret."""
    if not shuffle:
        return rows * math.log2(values)
    return (math.lgamma(values + rows) - math.lgamma(values) - math.lgamma(rows + 1)) / _LOG2


def _shares(
    values: Vector, rows: int, samples: int, generator: np.random.Generator, *, shuffle: bool, most: int = 1
) -> Floats:
    """Return, for vectors (or multisets) drawn uniformly, `most` over the number of their shifts, and at most 1."""
    shares = np.empty(samples)
    for n in range(samples):
        if shuffle:
            chosen = np.sort(generator.choice(values.size + rows - 1, rows, replace=False)) - np.arange(rows)
        else:
            chosen = generator.integers(0, values.size, rows)
        shares[n] = min(1.0, most / _shifts(values[chosen], values))
    return shares


def _shifts(z: Vector, values: Vector) -> int:
    """Return by how many numbers, 0 among them, z can be shifted so that all its entries are values."""
    shifts = values - z[0]
    for other in z[1:]:
        if shifts.size == 1:
            break
        where = np.searchsorted(values, other + shifts)
        shifts = shifts[values[np.minimum(where, values.size - 1)] == other + shifts]
    return int(shifts.size)


def masked_values(reveal: Reveal, values: Vector) -> Vector:
    """Return the values that one row can show, ascending."""
    width = reveal.expansion * reveal.d_min
    return np.unique((values[:, None] * reveal.expansion + np.arange(width)).reshape(-1))
