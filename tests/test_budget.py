"""Maximal leakage, and what several questions tell together: against enumerations that are written a second time."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import REVEALS, Field
from counterveil.algebra.arrays import Vector
from counterveil.errors import OutOfRange
from counterveil.research import budget, newer
from counterveil.research.leakage import Population, in_turn
from counterveil.research.leakage import exact as one_question
from counterveil.research.maximal import maximal
from counterveil.schemes.reveals import Reveal, make_reveal
from datafiles import OTHERS, needs_compas

RUNGS = [
    make_reveal(name, shuffle=shuffle, d_min=2 if REVEALS[name].masked else 1)
    for name in REVEALS
    for shuffle in (False, True)
]


def answers(reveal: Reveal, costs: list[int]) -> dict[tuple[int, ...], float]:
    """What one question can show of these costs, and how likely each is. The definition, with dictionaries."""
    if reveal.name == "sealed":
        return {(): 1.0}
    masks = list(itertools.product(range(reveal.d_min), repeat=len(costs))) if reveal.masked else [(0,) * len(costs)]
    orders = list(itertools.permutations(range(len(costs)))) if reveal.shuffle else [tuple(range(len(costs)))]
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for mask, order in itertools.product(masks, orders):
        shown = [costs[i] + m for i, m in zip(order, mask, strict=True)]
        view = tuple(a - b for a, b in itertools.pairwise(shown)) if reveal.differences else tuple(shown)
        found[view] += 1 / len(masks) / len(orders)
    return found


def brute_force(reveal: Reveal, questions: list[list[int]], rows: int, records: bool) -> tuple[float, float]:
    """Mutual information and maximal leakage of several questions: every database, every answer to each."""
    population = range(len(questions[0]))
    shown: list[dict[Any, float]] = []
    for database in itertools.product(population, repeat=rows):
        views: dict[Any, float] = {(): 1.0}
        for costs in questions:
            nearest = min((costs[i], i) for i in database)[1] if records else None
            views = {
                (*before, view, nearest): chance * other
                for before, chance in views.items()
                for view, other in answers(reveal, [costs[i] for i in database]).items()
            }
        shown.append(views)
    marginal: defaultdict[Any, float] = defaultdict(float)
    largest: defaultdict[Any, float] = defaultdict(float)
    for views in shown:
        for view, chance in views.items():
            marginal[view] += chance / len(shown)
            largest[view] = max(largest[view], chance)
    bits = sum(p / len(shown) * math.log2(p / marginal[view]) for views in shown for view, p in views.items())
    return bits, math.log2(sum(largest.values()))


def some_questions(count: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1, max_size=count)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RUNGS), some_questions(3), st.booleans())
def test_several_questions_are_enumerated_as_defined(reveal: Reveal, questions: list[list[int]], records: bool) -> None:
    found = budget.exact(reveal, Field(101), [np.array(each) for each in questions], 2, records=records)
    assert (found.bits, found.worst) == pytest.approx(brute_force(reveal, questions, 2, records), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RUNGS), st.sets(st.integers(0, 12), min_size=2, max_size=5), st.integers(2, 3))
def test_maximal_leakage_of_one_question(reveal: Reveal, costs: set[int], rows: int) -> None:
    """The closed forms, the sampled counts and the bounds, against two enumerations."""
    values = sorted(costs)
    truth = one_question(reveal, Field(101), [Population.of(np.array(values))], rows).worst
    assert truth == pytest.approx(brute_force(reveal, [values], rows, False)[1], abs=1e-9)
    found = maximal(reveal, np.array(values), rows, generator=np.random.default_rng(3), samples=2000)
    if found.method == "closed form":
        assert found.bits == pytest.approx(truth, abs=1e-9)
    slack = 2 * (found.high - found.low) + 1e-6 if found.method == "sampled" else 0.02
    assert found.low - slack <= truth <= found.high + slack


def test_the_counts_that_are_known() -> None:
    """Of n^M vectors of costs without gaps, n^M - (n-1)^M differ by more than a shift."""
    one = np.random.default_rng(1)
    found = maximal(make_reveal("differences"), np.arange(10), 4, generator=one, samples=4000)
    assert found.low <= math.log2(10**4 - 9**4) <= found.high < found.low + 0.2
    found = maximal(make_reveal("differences", shuffle=True), np.arange(10), 4, generator=one, samples=4000)
    assert found.low <= math.log2(math.comb(13, 4) - math.comb(12, 4)) <= found.high
    assert maximal(make_reveal("distances", shuffle=True), np.arange(10), 4, generator=one).bits == pytest.approx(
        math.log2(math.comb(13, 4))
    )


def test_sampled_counts_do_not_saturate() -> None:
    found = maximal(make_reveal("differences"), np.arange(100), 50, generator=np.random.default_rng(1), samples=10)
    assert found.low > 300 > math.log2(10)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RUNGS), some_questions(3))
def test_bounds_hold_what_is_enumerated(reveal: Reveal, questions: list[list[int]]) -> None:
    """With mask or differences a part is sampled: the slack is three more standard errors or so."""
    costs: list[Vector] = [np.array(each) for each in questions]
    truth = budget.exact(reveal, Field(101), costs, 2, records=True)
    told = budget.together(
        reveal, lambda count: costs[:count], len(costs), 2, generator=np.random.default_rng(5), samples=400, draws=2
    )
    assert told.low - 0.15 <= truth.bits <= told.high + 0.15
    assert truth.bits <= told.whole + 1e-9
    assert truth.bits <= truth.worst + 1e-9


def test_more_questions_tell_more_and_never_more_than_all() -> None:
    one, people = np.random.default_rng(2), np.random.default_rng(3).integers(0, 40, (50, 30))
    for reveal in RUNGS:
        told = [
            budget.together(reveal, lambda count: list(people[:count]), count, 20, generator=one, samples=20)
            for count in (1, 4, 16)
        ]
        assert told[0].low < told[2].high
        assert all(0 <= each.low <= each.high <= each.whole + 1e-9 for each in told), reveal
    records = [
        budget.exact(REVEALS["sealed"], Field(101), list(people[:t, :5]), 3, records=True).bits for t in (1, 2, 3)
    ]
    assert 0 < records[0] < records[1] <= records[2]


def test_how_many_tickets() -> None:
    """Sealed: a share of a half allows tickets, one of nothing allows none; opened costs spend it with the first."""
    people = np.random.default_rng(3).permuted(np.tile(np.arange(200), (400, 1)), axis=1)
    one = np.random.default_rng(2)

    def asked(count: int) -> list[Vector]:
        return list(people[:count])

    sealed = REVEALS["sealed"]
    assert budget.tickets(sealed, asked, 0.0, 200, generator=one) == 0
    some = budget.tickets(sealed, asked, 0.25, 200, generator=one)
    assert budget.together(sealed, asked, some, 200, generator=one).share == pytest.approx(0.25, abs=0.03)
    assert 5 < some < budget.tickets(sealed, asked, 0.35, 200, generator=one) < 400
    assert budget.tickets(make_reveal("distances"), asked, 0.5, 200, generator=one) == 0


def test_who_is_fewer_than_the_questions_asks_again() -> None:
    """A mask hides less from the same people with each of their tickets, so that none of these may be left out."""
    people = np.random.default_rng(3).integers(0, 40, (3, 30))
    one, masked = np.random.default_rng(2), make_reveal("masked", d_min=40)

    def told(count: int) -> float:
        return budget.together(masked, lambda n: list(in_turn(people, n, one)), count, 30, generator=one).high

    assert sorted(map(tuple, in_turn(people, 6, one)[:3])) == sorted(map(tuple, people))
    assert in_turn(people, 7, one).shape == (7, 30)
    assert told(12) > told(3) + 5


def test_too_many_cases_are_refused() -> None:
    costs = [np.arange(50)] * 2
    with pytest.raises(OutOfRange, match="estimate instead"):
        budget.exact(make_reveal("masked", d_min=9), Field(997), costs, 2)


@pytest.mark.slow
def test_the_table_of_several_questions() -> None:
    """The numbers of the table once more, with dictionaries."""
    claims = {claim.what: claim for claim in newer.several_questions()}
    points = list(itertools.product(range(2), repeat=3))
    people = [[sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in points] for x in points]
    for name, reveal in (
        ("distances (baseline)", make_reveal("distances")),
        ("masked differences, d_min 2", make_reveal("masked_differences", d_min=2)),
        ("shuffled distances", make_reveal("distances", shuffle=True)),
        ("shuffled masked, d_min 2", make_reveal("masked", shuffle=True, d_min=2)),
        ("sealed", REVEALS["sealed"]),
    ):
        for t in (1, 2, 3) if name == "sealed" else (1, 2):
            groups = list(itertools.combinations(people, t))
            found = [brute_force(reveal, list(group), 2, True)[0] for group in groups]
            assert claims[f"{name}, t = {t}"].ours == pytest.approx(float(np.mean(found)), abs=1e-9)
    assert len(claims) == 3 * 9


@pytest.mark.slow
def test_the_authors_maximal_leakage_and_the_definition() -> None:
    """What the notebook prints comes out to all its digits; of its two-phase cells only by its own recipe."""
    claims = {claim.what: claim for claim in newer.maximal_synthetic()}
    printed = {what: claim for what, claim in claims.items() if claim.printed is not None}
    right = {w for w, claim in printed.items() if claim.ours == pytest.approx(float(claim.printed or 0), abs=6e-6)}
    assert set(printed) - right == {f"I-PCR two-phase, {k} immutable" for k in range(4)}
    assert len(right) == 11
    points = list(itertools.product(range(4), repeat=3))
    for k in range(4):
        most = 0
        for fixed, x in itertools.product(itertools.combinations(range(3), k), points):
            told = [
                sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) if all(x[j] == y[j] for j in fixed) else None
                for y in points
                if y != x
            ]
            most = max(most, len(set(itertools.permutations(told, 3))))
        assert claims[f"I-PCR two-phase, {k} immutable"].ours == pytest.approx(math.log(most, 757), abs=1e-9)


@pytest.mark.slow
@needs_compas
def test_the_authors_maximal_leakage_of_compas_is_a_ceiling() -> None:
    claims = newer.maximal_compas(OTHERS, applicants=1)
    for sampled, true in zip(claims[::2], claims[1::2], strict=True):
        assert sampled.ours == pytest.approx(1.51438, abs=2e-4)
        assert true.low > 3.3
