"""Measure how much several honest questions give away together, so that one can say how many tickets to hand out.

    I(y_1..y_M; revealed_1, record_1, .., revealed_t, record_t | x_1..x_t)        in bits

Every ticket has its own mask and its own secret order. `exact` enumerates all databases. `together` assumes, as
`leakage.estimate` does, that rows are drawn independently from a population that is known:

- In a fixed order the answers belong to rows, so one row has one vector of t costs, and what rows tell adds up.
- In a secret order nobody tells which cost of one answer belongs to which cost of another. That is no more than if it
  were told, no more than the sum of the single answers, and no less than any one of them. These are the bounds.
- The records tell which rows are nearest. The probability of t records is exact, and only records are sampled.

Of rows in a secret order, and of sealed ones, nothing can ever tell more than which rows there are, in whatever order.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Vector
from ..algebra.field import Field
from ..errors import OutOfRange
from ..schemes.reveals import Opened, Reveal
from .leakage import MOST_CASES, Enumerated, Population, Revealing, bounded, channel, estimate, noise_of, orderings
from .maximal import Z, information

Floats = NDArray[np.float64]
_Channel = tuple[Vector, Vector, Floats]  # database, result, and P(result | database), for every pair
Asked = Callable[[int], Sequence[Vector]]  # what every row costs each of so many people who ask
_DRAWS = 5  # groups of people over whom is averaged
_MOST_TICKETS = 4096  # the search for a number of tickets ends here


@dataclass(frozen=True)
class Told:
    """What honest questions tell of the rows: between `low` and `high` bits, and never more than `whole`."""

    questions: int
    low: float
    high: float
    whole: float

    @property
    def share(self) -> float:
        """The upper bound as a share of all that there is to tell."""
        return self.high / self.whole if self.whole else 0.0


def exact(
    reveal: Revealing, field: Field, questions: Sequence[Vector], rows: int, *, records: bool = False
) -> Enumerated:
    """Enumerate all databases of `rows` rows, and all that these questions can show together.

    A question is the cost of each row of the population. With `records` it also tells which row is nearest; of equally
    near ones it is the first of the population.
    """
    population = len(questions[0])
    drawn, orders = noise_of(reveal, field, rows, population)
    tuples = np.indices((population,) * rows).reshape(rows, -1)
    each = np.arange(tuples.shape[1])
    seen: _Channel = (each, np.zeros_like(each), np.ones(each.size))
    for costs in questions:
        parts = [channel(reveal, field, costs[tuples], drawn, orders)]
        if records:
            nearest = np.sort(tuples, axis=0)
            parts.append((each, nearest[np.argmin(costs[nearest], axis=0), each], np.ones(each.size)))
        for part in parts:
            seen = _beside(seen, part)
    bits, worst = information(np.full(each.size, 1 / each.size), *seen)
    return Enumerated(bits, bits, bits, "enumerated", worst)


def _beside(one: _Channel, other: _Channel) -> _Channel:
    """Return the channel that shows both results. Given the database, they are independent."""
    counts = np.bincount(other[0], minlength=int(one[0].max()) + 1)
    first = np.concatenate([[0], np.cumsum(counts)])
    each = counts[one[0]]
    if each.sum() > MOST_CASES:
        raise OutOfRange("questions", got="too many cases", expected=f"up to {MOST_CASES:,}; estimate instead")
    left = np.repeat(np.arange(one[0].size), each)
    offset = np.arange(left.size) - np.repeat(np.cumsum(each) - each, each)
    right = first[one[0][left]] + offset
    both = np.stack([one[1][left], other[1][right]])
    _, result = np.unique(both, axis=1, return_inverse=True)
    return one[0][left], result.reshape(-1), one[2][left] * other[2][right]


def whole(reveal: Reveal, population: int, rows: int) -> float:
    """Return the bits of all rows; without their order, if that is secret."""
    each = Population.of(np.arange(population))
    return rows * math.log2(population) - (orderings(each, rows) if reveal.shuffle else 0.0)


def together(
    reveal: Reveal, asked: Asked, questions: int, rows: int, *, k: int = 1, generator: np.random.Generator,
    samples: int = 40, draws: int = _DRAWS,
) -> Told:  # fmt: skip
    """Bound what `questions` honest questions, each with k records, tell of `rows` rows drawn from a population.

    `asked` says what each row of the population costs so many people. The bounds are 95 % bounds: they include how much
    groups of people differ.
    """
    found, most = [], 0.0
    for _ in range(draws):
        costs = [np.asarray(each, dtype=np.int64) for each in asked(questions)]
        most = whole(reveal, costs[0].size, rows)
        shown = _shown(reveal, costs, rows, samples, generator)
        told = _records(costs, rows, samples, generator)
        high = told[1] if k == 1 else questions * k * math.log2(costs[0].size)
        found.append((max(shown[0], told[0]), shown[1] + high))
    lows, highs = (np.array(each) for each in zip(*found, strict=True))
    low, high = (float(np.mean(each)) + sign * _margin(each) for each, sign in ((lows, -1), (highs, 1)))
    return Told(questions, min(max(0.0, low), most), min(high, most), most)


def _margin(values: Floats) -> float:
    return Z * float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0


def tickets(
    reveal: Reveal, asked: Asked, share: float, rows: int, *, k: int = 1, generator: np.random.Generator
) -> int:
    """Return how many honest questions tell at most this share of all there is, by the upper bound; the search ends."""

    def within(count: int) -> bool:
        return together(reveal, asked, count, rows, k=k, generator=generator, draws=2, samples=10).share <= share

    if not within(1):
        return 0
    good, bad = 1, 2
    while bad <= _MOST_TICKETS and within(bad):
        good, bad = bad, 2 * bad
    if bad > _MOST_TICKETS:
        return good
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if within(middle) else (good, middle)
    return good


def _joint(costs: Sequence[Vector], generator: np.random.Generator) -> Population:
    """Return each row's vector of costs as one number: a random linear map mod 2^64. A shift remains a shift.

    Two different vectors get the same number with a probability of 2^-64, times the power of two in their difference.
    """
    factors = generator.integers(-(2**63), 2**63 - 1, len(costs), dtype=np.int64, endpoint=True) | 1
    return Population.of((np.stack(costs) * factors[:, None]).sum(axis=0))


def _shown(
    reveal: Reveal, costs: Sequence[Vector], rows: int, samples: int, generator: np.random.Generator
) -> tuple[float, float]:
    """Return bounds of what the revealed values tell together, without records."""
    if not reveal.length(rows):
        return 0.0, 0.0
    if type(reveal) is not Opened:
        return 0.0, _bits(Opened(name="distances"), [_joint(costs, generator)], rows, samples, generator)[1]
    plain = replace(reveal, masked=False, d_min=1, expansion=1)
    aligned = _bits(plain, [_joint(costs, generator)], rows, samples, generator)
    if not reveal.masked and (not reveal.shuffle or len(costs) == 1):
        return aligned
    fixed = _masked(reveal, costs, rows, samples, generator) if reveal.masked else aligned
    if not reveal.shuffle:
        return fixed
    single = [_bits(reveal, [Population.of(each)], rows, samples, generator) for each in costs]
    high = min(aligned[1], fixed[1], sum(high for _, high in single))
    return min(high, max(low for low, _ in single)), high


def _bits(
    reveal: Reveal, cases: Sequence[Population], rows: int, samples: int, generator: np.random.Generator
) -> tuple[float, float]:
    few = max(2, samples // 4)
    if isinstance(reveal, Opened) and reveal.masked and reveal.shuffle:  # counting how they match takes too long here
        found = bounded(reveal, cases, rows, few, generator, False)
    else:
        found = estimate(reveal, cases, rows, samples=few, generator=generator)
    return max(0.0, found.low), found.high


def _masked(
    reveal: Opened, costs: Sequence[Vector], rows: int, samples: int, generator: np.random.Generator
) -> tuple[float, float]:
    """Bound what masked costs tell in a fixed order: rows times log2 of population over those that fit, on average."""
    table, width = np.stack(costs, axis=1) * reveal.expansion, reveal.expansion * reveal.d_min
    chosen = generator.integers(0, len(table), 10 * samples)
    bits = np.empty(chosen.size)
    for n, row in enumerate(chosen):
        mask = table[row] + generator.integers(0, width, table.shape[1]) - table
        bits[n] = math.log2(len(table) / np.count_nonzero(((mask >= 0) & (mask < width)).all(axis=1)))
    mean, margin = rows * float(bits.mean()), rows * _margin(bits)
    first = 0.0  # the first masked costs, which differences do not tell
    if reveal.differences:
        ranges = sum(math.log2(int(np.ptp(each)) + width) for each in table.T)
        first = min(ranges, math.log2(len(table)) + len(costs) * math.log2(width))
    return max(0.0, mean - margin - first), mean + margin


def _records(costs: Sequence[Vector], rows: int, samples: int, generator: np.random.Generator) -> tuple[float, float]:
    """Return a 95 % interval of what the nearest records tell: the entropy of which they are."""
    table = np.stack(costs)
    population = table.shape[1]
    surprise = np.empty(samples)
    for n in range(samples):
        present = np.unique(generator.integers(0, population, rows))
        nearest = present[np.argmin(table[:, present], axis=1)]
        paid = table[np.arange(len(costs)), nearest][:, None]
        before = (table < paid) | ((table == paid) & (np.arange(population) < nearest[:, None]))
        absent = int(before.any(axis=0).sum())
        surprise[n] = -_log_chance(population, rows, absent, np.unique(nearest).size)
    mean, margin = float(surprise.mean()), _margin(surprise)
    return max(0.0, mean - margin), mean + margin


def _log_chance(population: int, rows: int, absent: int, present: int) -> float:
    """Return log2 of the probability that of a population some given ones are absent and some given ones present."""
    with decimal.localcontext(prec=50 + present * len(str(population))):
        terms = (
            (-1) ** n * math.comb(present, n) * (decimal.Decimal(population - absent - n) / population) ** rows
            for n in range(present + 1)
        )
        return float(sum(terms, decimal.Decimal(0)).ln()) / math.log(2)
