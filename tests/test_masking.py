from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterveil import Question
from counterveil.errors import EmptyDatabase, OutOfRange
from counterveil.institution.masking import UNLIMITED, exact_share, in_closure, largest_mask, nearest_gap, order_gap
from counterveil.schemes.forms import make_form

PLANE = make_form("euclidean", largest=9, d=2)
points = st.lists(st.integers(0, 9), min_size=2, max_size=2)
sets = st.lists(points, min_size=1, max_size=8)


def distances(rows: Any, x: Any) -> list[int]:
    return [sum((a - b) ** 2 for a, b in zip(row, x, strict=True)) for row in rows]


@given(sets, sets)
def test_largest_mask_is_the_papers_d_min_over_distinct_distances(rows: Any, rejected: Any) -> None:
    gaps = [abs(a - b) for x in rejected for a in distances(rows, x) for b in distances(rows, x) if a != b]
    assert largest_mask(PLANE, rows, map(Question, rejected)) == min(gaps, default=UNLIMITED)


@given(sets, points)
def test_nearest_gap_is_that_of_the_two_least_distinct_costs(rows: Any, x: Any) -> None:
    least = sorted(set(distances(rows, x)))
    gap = nearest_gap(PLANE.costs(rows, Question(x)))
    assert gap == (least[1] - least[0] if len(least) > 1 else UNLIMITED)
    assert gap >= order_gap(PLANE.costs(rows, Question(x)))


@given(sets, points, sets)
def test_closure_is_that_of_the_definition(rows: Any, x: Any, rejected: Any) -> None:
    own = distances(rows, x)
    pairs = [(i, j) for i in range(len(rows)) for j in range(i)]
    inside = all(
        abs(own[i] - own[j]) >= abs(other[i] - other[j])
        for other in (distances(rows, x_k) for x_k in rejected)
        for i, j in pairs
    )
    expected = inside and list(x) not in [list(row) for row in rows]
    assert in_closure(PLANE, rows, Question(x), map(Question, rejected)) is expected


@given(sets, points, sets)
def test_in_the_closure_of_people_without_ties_their_d_min_is_exact(rows: Any, x: Any, rejected: Any) -> None:
    """`Mask-PCR-decoding-lemma`."""
    tied = any(len(set(distances(rows, x_k))) < len(rows) for x_k in rejected)
    if not tied and in_closure(PLANE, rows, Question(x), map(Question, rejected)):
        assert nearest_gap(PLANE.costs(rows, Question(x))) >= largest_mask(PLANE, rows, map(Question, rejected))


def test_the_closure_is_not_enough_where_a_rejected_person_has_ties() -> None:
    """Rule 7 leaves ties out of d_min, and x may break them by less: look at x's own gap instead."""
    rows, rejected, x = [[0, 0], [5, 2], [5, 4]], [Question([6, 3])], Question([6, 4])
    assert PLANE.costs(rows, rejected[0]).tolist() == [45, 2, 2]
    assert largest_mask(PLANE, rows, rejected) == 43
    assert in_closure(PLANE, rows, x, rejected)
    assert PLANE.costs(rows, x).tolist() == [52, 5, 1]
    assert exact_share(PLANE, rows, [x], 43) == 0


def test_share_of_questions_for_which_a_mask_is_exact() -> None:
    rows = [[0, 0], [3, 0], [9, 9]]
    questions = [Question([0, 0]), Question([1, 0]), Question([2, 0]), Question([9, 9])]
    gaps = [nearest_gap(PLANE.costs(rows, q)) for q in questions]
    assert gaps == [9, 3, 3, 117]
    assert [exact_share(PLANE, rows, questions, d) for d in (1, 3, 4, 10, 118)] == [1, 1, 0.5, 0.25, 0]
    with pytest.raises(EmptyDatabase, match="questions: got none"):
        exact_share(PLANE, rows, [], 1)
    with pytest.raises(OutOfRange, match="d_min: got 0"):
        exact_share(PLANE, rows, questions, 0)


def test_no_memory_of_size_m_squared() -> None:
    """M = 20,000: M x M bytes would be 400 MB; the peak stays below a hundredth of it."""
    rng = np.random.default_rng(0)
    form = make_form("euclidean", largest=50, d=4)
    rows = rng.integers(0, 51, (20_000, 4)).astype(np.uint8)
    rejected = [Question(x) for x in rng.integers(0, 51, (5, 4))]
    tracemalloc.start()
    largest_mask(form, rows, rejected)
    in_closure(form, rows, rejected[0], rejected)
    exact_share(form, rows, rejected, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
