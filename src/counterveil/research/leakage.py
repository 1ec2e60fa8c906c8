"""Measure how much one question gives away: the mutual information of the rows and what the applicant learns.

    I(y_1..y_M; revealed | x)        averaged over x; in bits, or to base q

Only the costs of the rows matter, and `exact` calls the reveal itself instead of deriving its formula again. `exact`
enumerates all rows, masks and orders, if they fit in memory. `estimate` assumes that rows are drawn independently from
a population. Its probabilities are exact, and only the revealed values are sampled. So it does not saturate at the
logarithm of the number of samples, as counting does. Where a closed form is known, nothing is sampled.

Paper: `eq:leakage_pcr`, `table_leakageValues`, `table_leakageValuesCompas`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ..algebra import checks
from ..algebra.arrays import Codes, Order, Vector
from ..algebra.field import Field
from ..applicant.ask import compile_question
from ..crypto.randomness import CommonRandomness
from ..errors import OutOfRange, WrongType
from ..schema.preferences import Preferences
from ..schemes.reveals import Opened, Reveal
from ..terms.deployment import Deployment
from .matchings import TooMany, log_matchings
from .maximal import Z, information

Floats = NDArray[np.float64]
Drawn = list[tuple[int, int]]  # what a reveal draws: (modulus, how many)
MOST_CASES = 10_000_000  # cases that enumeration may hold at once
_MOST_VALUES = 20_000_000  # values over which a mask may spread the costs


class Revealing(Protocol):
    """The part of a reveal that is measured: what it makes of the costs."""

    def apply(self, field: Field, values: Vector, common: CommonRandomness) -> Vector: ...


@dataclass(frozen=True)
class Leakage:
    """Mutual information in bits with a 95 % interval."""

    bits: float
    low: float
    high: float
    method: str  # "enumerated", "closed form", "sampled", or "bounded": then `bits` is the upper bound

    def base(self, q: int) -> float:
        """Return the mutual information to base q, as the paper prints it."""
        return self.bits / math.log2(q)


@dataclass(frozen=True)
class Enumerated(Leakage):
    """Mutual information without an interval, and the maximal leakage: the largest over the applicants."""

    worst: float


@dataclass(frozen=True)
class Population:
    """The costs of rows for one applicant x, how many rows have each, and the probability of x."""

    values: Vector  # distinct, ascending
    counts: Vector
    weight: float = 1.0

    @classmethod
    def of(cls, costs: Vector, weight: float = 1.0) -> Population:
        """Count equal costs."""
        values, counts = np.unique(np.asarray(costs, dtype=np.int64), return_counts=True)
        return cls(values, counts.astype(np.int64), weight)

    @property
    def total(self) -> int:
        """The number of rows in the population."""
        return int(self.counts.sum())


def some_people(deployment: Deployment, codes: Codes | Vector, count: int, generator: np.random.Generator) -> Vector:
    """Return the codes of people who might ask: some of these rows; or, since regions are nobody, people anywhere."""
    levels = [feature.largest + 1 for feature in deployment.schema.features]
    if deployment.tariff.layout.regions:
        return generator.integers(0, levels, (count, len(levels)))
    return in_turn(codes, count, generator)


def in_turn(codes: Codes | Vector, count: int, generator: np.random.Generator) -> Vector:
    """Return the codes of `count` people in a random order; if there are fewer, they come again and again."""
    return codes[np.resize(generator.permutation(len(codes)), count)].astype(np.int64)


def clear_costs(deployment: Deployment, codes: Codes | Vector, own: Vector) -> Vector:
    """Return the cost of every row, without cryptography, for a person with these codes and no preferences."""
    _, costs = compile_question(deployment, own, Preferences())
    layout = deployment.tariff.layout
    columns = [table[column] for table, column in zip(layout.tables(costs), layout.columns(codes).T, strict=True)]
    return np.asarray(np.stack(columns).sum(axis=0), dtype=np.int64)


def populations(costs: Iterable[Vector]) -> list[Population]:
    """Return one population for each applicant; equal ones are merged and their probabilities added."""
    alike: Counter[tuple[bytes, bytes]] = Counter()
    kept: dict[tuple[bytes, bytes], Population] = {}
    for each in costs:
        made = Population.of(each)
        key = (made.values.tobytes(), made.counts.tobytes())
        alike[key] += 1
        kept[key] = made
    total = sum(alike.values())
    return [Population(kept[key].values, kept[key].counts, count / total) for key, count in alike.items()]


class _Noted:
    """Common randomness that only notes what a reveal draws from it."""

    def __init__(self) -> None:
        self.ordered, self.drawn = False, list[tuple[int, int]]()

    def order(self, count: int) -> Order:
        self.ordered = True
        return np.arange(count)

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        self.drawn.append((q, count))
        return np.zeros(count, dtype=np.int64)


class _Case:
    """Common randomness with given values, for many cases at once: each column is one case."""

    def __init__(self, order: Order, drawn: list[Vector]) -> None:
        self._order, self._drawn = order, iter(drawn)

    def order(self, count: int) -> Order:
        return self._order

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        return next(self._drawn)


def exact(
    reveal: Revealing, field: Field, cases: Sequence[Population], rows: int, *, distinct: bool = False
) -> Enumerated:
    """Enumerate every tuple of rows, every mask and every order. `distinct` rows are drawn without replacement.

    >>> from counterveil import Field, REVEALS
    >>> round(exact(REVEALS["distances"], Field(7), [Population.of([0, 1, 1, 4])], rows=1).bits, 6)
    1.5
    """
    drawn, orders = noise_of(reveal, field, rows, max(len(case.values) for case in cases))
    for case in cases:
        if distinct and rows > case.total:
            raise OutOfRange("rows", got=rows, expected=f"at most {case.total}, as many as there are to draw")
    total, worst = 0.0, 0.0
    for case in cases:
        bits, most = _enumerated(reveal, field, case, rows, drawn, orders, distinct)
        total += case.weight * bits
        worst = max(worst, most)
    return Enumerated(total, total, total, "enumerated", worst)


def noise_of(reveal: Revealing, field: Field, rows: int, values: int) -> tuple[Drawn, list[tuple[int, ...]]]:
    """Return what a reveal draws and every order; refuse what cannot be enumerated."""
    noted = _Noted()
    reveal.apply(field, np.zeros(checks.integer("rows", rows, 1), dtype=np.int64), noted)
    noise = sum(count * math.log(q) for q, count in noted.drawn) + (math.lgamma(rows + 1) if noted.ordered else 0.0)
    if rows * math.log(values) + noise > math.log(MOST_CASES):
        raise OutOfRange("rows", got=f"{rows}, too many cases", expected=f"up to {MOST_CASES:,}; estimate instead")
    return noted.drawn, list(itertools.permutations(range(rows))) if noted.ordered else [tuple(range(rows))]


def _enumerated(
    reveal: Revealing,
    field: Field,
    case: Population,
    rows: int,
    drawn: Drawn,
    orders: list[tuple[int, ...]],
    distinct: bool,
) -> tuple[float, float]:
    """Return I(costs; revealed) and the maximal leakage for one applicant."""
    tuples = np.indices((len(case.values),) * rows).reshape(rows, -1)
    chance = _chances(case, tuples, distinct)
    tuples, chance = tuples[:, chance > 0], chance[chance > 0]
    return information(chance, *channel(reveal, field, case.values[tuples], drawn, orders))


def channel(
    reveal: Revealing, field: Field, costs: Vector, drawn: Drawn, orders: list[tuple[int, ...]]
) -> tuple[Vector, Vector, Floats]:
    """Return which database (a column of `costs`) can show which result, and P(result | database), for every pair."""
    noise = [np.indices((q,) * count).reshape(count, -1) for q, count in drawn]
    each = [n.shape[1] for n in noise]
    values = np.repeat(costs, math.prod(each), axis=1) % field.q
    columns = [np.tile(np.repeat(n, math.prod(each[i + 1 :]), axis=1), values.shape[1] // math.prod(each[i:]))
               for i, n in enumerate(noise)]  # fmt: skip
    revealed = [
        np.atleast_2d(reveal.apply(field, values.copy(), _Case(np.array(order), [c.copy() for c in columns])))
        for order in orders
    ]
    seen = np.concatenate(revealed, axis=1)
    which = np.tile(np.repeat(np.arange(costs.shape[1]), math.prod(each)), len(orders))
    _, shown = np.unique(seen, axis=1, return_inverse=True)
    shown = shown.reshape(-1)
    pairs, hits = np.unique(which * (int(shown.max()) + 1) + shown, return_counts=True)
    given, result = np.divmod(pairs, int(shown.max()) + 1)
    return given, result, hits / (math.prod(each) * len(orders))


def _chances(case: Population, tuples: Vector, distinct: bool) -> Floats:
    """Return the probability of each tuple of costs."""
    chance = np.ones(tuples.shape[1])
    for place, row in enumerate(tuples):
        before = (tuples[:place] == row).sum(axis=0) if distinct else 0  # equal costs that were drawn before
        chance *= np.maximum(case.counts[row] - before, 0) / (case.total - (place if distinct else 0))
    return chance


def simulation(seed: int) -> np.random.Generator:
    """Return a generator for simulations, which repeats itself. No protocol may draw from it."""
    return np.random.default_rng(seed)


def estimate(
    reveal: Reveal,
    cases: Sequence[Population],
    rows: int,
    *,
    samples: int = 2000,
    generator: np.random.Generator,
    drawn: bool = False,
    progress: bool = False,
) -> Leakage:
    """Estimate the leakage for rows drawn independently; sample only where no closed form is known.

    The `samples` are divided among the applicants by their probability, at least two for each. With a mask, a secret
    order and many close rows, the probabilities are permanents, and the leakage is only bounded. `drawn` says that the
    applicants are themselves a sample; the interval then includes how much they differ.
    """
    checks.integer("rows", rows, 1)
    if not isinstance(reveal, Reveal):
        raise WrongType("reveal", got=type(reveal).__name__, expected="one of the table; others can be enumerated")
    if not reveal.length(rows):
        return Leakage(0.0, 0.0, 0.0, "closed form")
    if type(reveal) is not Opened:  # all that is known of it here is that it tells no more than all costs
        most = sum(case.weight * rows * _entropy(case) for case in cases)
        return Leakage(most, 0.0, most, "bounded")
    try:
        return _estimated(reveal, cases, rows, samples, generator, drawn, progress)
    except TooMany:
        return bounded(reveal, cases, rows, samples, generator, drawn)


def _entropy(case: Population) -> float:
    """Return the entropy of one cost, in bits."""
    chances = case.counts / case.total
    return float(-(chances * np.log2(chances)).sum())


def bounded(
    reveal: Opened, cases: Sequence[Population], rows: int, samples: int, generator: Any, drawn: bool
) -> Leakage:
    """Bound the leakage with mask and order: at most that of either alone, at least that of the mask less the order."""
    plain = replace(reveal, masked=False, d_min=1, expansion=1)
    mask, order = (
        _estimated(each, cases, rows, samples, generator, drawn, False)
        for each in (replace(reveal, shuffle=False), plain)
    )
    orders = sum(case.weight * orderings(case, rows) for case in cases)
    high = min(mask.high, order.high)
    return Leakage(high, max(0.0, mask.low - orders), high, "bounded")


def _estimated(
    reveal: Reveal,
    cases: Sequence[Population],
    rows: int,
    samples: int,
    generator: Any,
    drawn: bool,
    progress: bool,
) -> Leakage:
    total, variance, sampled, each = 0.0, 0.0, False, []
    for case in track(cases, description="leakage", transient=True, disable=not progress):
        closed, terms = _densities(reveal, case, rows, max(2, round(samples * case.weight)), generator)
        each.append(closed + (float(np.mean(terms)) if terms.size else 0.0))
        total += case.weight * each[-1]
        if terms.size:
            sampled = True
            variance += case.weight**2 * float(np.var(terms, ddof=1)) / terms.size
    if drawn and len(cases) > 1:  # the variance between applicants includes the variance of each
        spread = sum(case.weight**2 * (value - total) ** 2 for case, value in zip(cases, each, strict=True))
        variance = max(variance, spread * len(cases) / (len(cases) - 1))
    margin = Z * math.sqrt(variance)
    method = "sampled" if sampled else "closed form"
    return Leakage(total, total - margin, total + margin, method)


def _noisy(reveal: Reveal, case: Population) -> tuple[Vector, Floats]:
    """Return the values that one row can show, ascending, and their probabilities: costs convolved with the mask."""
    width = reveal.expansion * reveal.d_min
    if case.values.size * width > _MOST_VALUES:
        raise OutOfRange("d_min", got=f"{width:,} for {case.values.size:,} costs", expected="a narrower mask")
    shown = (case.values[:, None] * reveal.expansion + np.arange(width)).reshape(-1)
    chance = np.repeat(case.counts / case.total / width, width)
    values, where = np.unique(shown, return_inverse=True)
    return values, np.bincount(where.reshape(-1), weights=chance).astype(np.float64)


def _densities(reveal: Reveal, case: Population, rows: int, samples: int, generator: Any) -> tuple[float, Floats]:
    """Return the part of I = H(Z) - H(Z | Y) with a closed form, and samples of the rest, in bits."""
    values, chance = _noisy(reveal, case)
    width = reveal.expansion * reveal.d_min
    closed, rest = 0.0, np.zeros(0)
    costs, noise = _drawn(reveal, case, rows, samples, generator)
    shown = costs * reveal.expansion + noise
    if reveal.differences:
        rest = -np.array([_log_up_to_shift(z, values, np.log2(chance)) for z in shown])
    else:
        closed += rows * float(-(chance * np.log2(chance)).sum())
    if reveal.masked and reveal.shuffle:
        given = np.array([log_matchings(y, z, reveal, width) for y, z in zip(costs, shown, strict=True)])
        rest = given if not rest.size else rest + given
    elif reveal.shuffle:
        closed -= orderings(case, rows)
    elif reveal.masked:
        closed -= _mask_differences(width, rows) if reveal.differences else rows * math.log2(width)
    return closed, rest


def _drawn(reveal: Reveal, case: Population, rows: int, samples: int, generator: Any) -> tuple[Vector, Vector]:
    if not reveal.differences and not (reveal.masked and reveal.shuffle):
        return np.zeros((0, rows), dtype=np.int64), np.zeros((0, rows), dtype=np.int64)
    costs = generator.choice(case.values, size=(samples, rows), p=case.counts / case.total)
    return costs, generator.integers(0, reveal.expansion * reveal.d_min, (samples, rows))


def _log_up_to_shift(z: Vector, values: Vector, logs: Floats) -> float:
    """Return log2 of the probability of z or any vector that is z with all entries shifted by one number."""
    shifts = values - z[0]
    total = logs.copy()
    for place, other in enumerate(z[1:], start=1):
        if shifts.size == 1:
            return float(total[0] + logs[np.searchsorted(values, z[place:] + shifts[0])].sum())
        where = np.searchsorted(values, other + shifts)
        possible = values[np.minimum(where, values.size - 1)] == other + shifts
        shifts, total = shifts[possible], total[possible] + logs[where[possible]]
    return float(np.logaddexp2.reduce(total))


def orderings(case: Population, rows: int) -> float:
    """Return the expected log2 of the number of different orders: M! over the factorials of counts of equal costs."""
    factorials = np.array([math.lgamma(n + 1) for n in range(rows + 1)]) / math.log(2)
    expected = 0.0
    for share, multiplicity in Counter((case.counts / case.total).tolist()).items():
        if share == 1.0:
            return 0.0
        n = np.arange(rows + 1)
        logs = (
            factorials[rows] - factorials - factorials[::-1] + n * math.log2(share) + (rows - n) * math.log2(1 - share)
        )
        expected += multiplicity * float((np.exp2(logs) * factorials).sum())
    return float(factorials[rows]) - expected


def _mask_differences(width: int, rows: int) -> float:
    """Return the entropy of a mask's differences: a vector of range r has width - r shifts with equal differences."""
    spread = np.arange(width, dtype=np.float64)
    within = [((spread + offset) / width) ** rows for offset in (1, 0, -1)]
    exactly = within[0] - 2 * within[1] + np.where(spread > 0, within[2], within[1])
    chance = (width - spread) * np.maximum(exactly, 0.0)
    return rows * math.log2(width) - float((chance * np.log2(width - spread)).sum())


@dataclass(frozen=True)
class Index:
    """Reveals only the index of the nearest row. No scheme offers it; it is here to be compared with the others."""

    shuffle: bool = False  # of equally near rows: False takes the first, True takes one at random

    def apply(self, field: Field, values: Vector, common: CommonRandomness) -> Vector:
        """Return the index of the least cost."""
        order = common.order(len(values)) if self.shuffle else np.arange(len(values))
        return np.asarray(order[np.argmin(values[order], axis=0)])
