"""Faults of the authors' public notebook (private-cf), each with an input that shows it, beside what this project does.

No code of theirs is here: each test does in plain arithmetic what the notebook does wrongly.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from counterveil import Field, Question, make_scheme, retrieve, run
from counterveil.algebra.arrays import Vector
from counterveil.crypto.randomness import Fresh
from counterveil.crypto.sharing import split
from counterveil.schemes.forms import make_form
from enumeration import FixedCommon


def interpolated(field: Field, alphas: tuple[int, ...], answers: list[Vector]) -> Vector:
    """The value at 0."""
    weights = field.weights_at(alphas)
    total: Vector = np.stack([w * a for w, a in zip(weights, answers, strict=True)]).sum(axis=0) % field.q
    return total


def weighted_costs(powers: tuple[int, int, int], x: list[int], w: list[int], rows: Vector) -> Vector:
    """The costs that the applicant of PCR+ computes if alpha_n to these powers, times sum z_2 z_1², is subtracted."""
    form = make_form("weighted", largest=10, d=2, max_weight=5)
    field, alphas = Field(1009), (1, 2, 3)
    queries = split(field, field.vector([*x, *w]), alphas, 1, Fresh())
    z = (queries[1] - queries[0]) % field.q
    own = int((z[:2] ** 2 * z[2:]).sum())
    answers = [form.evaluate(field, form.load(rows), query) for query in queries]
    cleaned = [(a - alpha**power * own) % field.q for a, alpha, power in zip(answers, alphas, powers, strict=True)]
    return interpolated(field, alphas, cleaned)


def test_weighted_subtracts_squares_where_cubes_belong() -> None:
    """`RetrievalSchemeWeighted` subtracts alpha³ at server 1, and alpha² at servers 2 and 3: its costs are noise."""
    rows, x, w = np.array([[3, 4], [9, 1], [0, 10]]), [3, 3], [1, 5]
    costs = [5, 56, 254]
    assert all(weighted_costs((3, 3, 3), x, w, rows).tolist() == costs for _ in range(45))
    wrong = [weighted_costs((3, 2, 2), x, w, rows).tolist() for _ in range(45)]
    assert sum(found == costs for found in wrong) <= 2  # right only if sum z_2 z_1² is 0, once in 1,009 times
    assert len({tuple(found) for found in wrong}) > 30
    assert retrieve(rows, x, largest=10, scheme="baseline+", max_weight=5, weights=w).revealed.tolist() == costs


def test_weighted_pads_one_coefficient_and_not_the_other() -> None:
    """Both of its pads have the factor alpha. The coefficient of alpha² tells sum z_1 z_2 y of every row, mod q."""
    form, field, alphas = make_form("weighted", largest=1, d=2, max_weight=1), Field(101), (1, 2, 3)
    z = np.array([5, 7, 11, 13])  # z_1, z_2: the applicant drew them
    told = []
    for row in ([1, 0], [0, 1]):  # both cost 1, as seen from (0, 0)
        answers = [form.evaluate(field, form.load([row]), alpha * z + [0, 0, 1, 1]) for alpha in alphas]
        own = int((z[:2] ** 2 * z[2:]).sum())
        padded = [(a + alpha * (31 + 64) - alpha**3 * own) % field.q for a, alpha in zip(answers, alphas, strict=True)]
        assert interpolated(field, alphas, padded).tolist() == [1]
        second = (padded[0] - 2 * padded[1] + padded[2]) * pow(2, -1, field.q) % field.q  # the coefficient of alpha²
        told.append(int((int((z[:2] ** 2).sum()) - second[0]) * pow(2, -1, field.q) % field.q))
    assert told == [5 * 11, 7 * 13]  # which row it is, though the costs are the same


@pytest.mark.parametrize("one_for_all", [True, False])
def test_one_pad_for_all_rows_tells_rows_of_equal_cost_apart(one_for_all: bool) -> None:
    """Z' is a scalar in every scheme of the notebook, so that differences of answers are not padded at all."""
    scheme = make_scheme("baseline", largest=1, d=2)
    q, x, z = scheme.field.q, np.array([0, 0]), np.array([1, 2])
    pads = [(p, p) for p in range(q)] if one_for_all else list(product(range(q), repeat=2))
    seen = []
    for rows in ([[1, 0], [0, 1]], [[0, 1], [1, 0]]):  # every row costs 1
        answers = [
            tuple(int(v) for n in (1, 2) for v in scheme.answer(n, rows, (x + n * z) % q, FixedCommon([pad])))
            for pad in pads
        ]
        seen.append(sorted(answers))
    assert (seen[0] == seen[1]) is not one_for_all
    if one_for_all:
        assert not set(seen[0]) & set(seen[1])


def test_a_mask_drawn_by_each_server_is_no_mask_of_the_cost() -> None:
    """With mu_1 = 0 and mu_2 = 1 the value at 0 is the cost + 2 mu_1 - mu_2: 0 becomes q - 1, and row 2 wins."""
    rows, x, d_min = np.array([[0], [2]]), Question([0]), 2  # costs 0 and 4: a gap of 4, so a mask below 2 is exact
    scheme = make_scheme("mask", largest=2, d=1, d_min=d_min)
    field, queries = Field(scheme.field.q), scheme.query(x, Fresh())
    known = scheme.form.known(field, x, queries)
    answers = [
        (scheme.answer(n, rows, queries[n - 1], FixedCommon([[3, 4]], mu)) - known[n - 1]) % field.q
        for n, mu in ((1, [0, 0]), (2, [1, 0]))
    ]
    shown = interpolated(field, (1, 2), answers)
    assert shown.tolist() == [field.q - 1, 4]
    assert int(shown.argmin()) == 1
    outside = [2 * a - b not in range(d_min) for a, b in product(range(d_min), repeat=2)]
    assert sum(outside) == 2  # of 4: this one, and 2 mu_1 - mu_2 = 2
    for mu in product(range(d_min), repeat=2):
        assert run(scheme, rows, x, common=FixedCommon([[3, 4]], mu)).position == 0


@pytest.mark.parametrize(("R", "d", "fits"), [(5, 20, True), (10, 20, False)])
def test_single_phase_overflows_64_bits_at_ten_levels(R: int, d: int, fits: bool) -> None:
    """The notebook forms 27 z_2^t diag(z_1) z_2 in 64 bits before it reduces it: too small from R = 10, d = 20 on."""
    scheme = make_scheme("i-pcr", largest=R, d=d)
    q = scheme.field.q
    z = np.full(d, q - 1)  # the largest pads; they are uniform below q
    assert (27 * d * (q - 1) ** 3 < 2**63) is fits
    with np.errstate(over="ignore"):
        assert (int(27 * z @ np.diag(z) @ z) % q == 27 * d * (q - 1) ** 3 % q) is fits
    rows = np.random.default_rng(1).integers(0, R + 1, (30, d))
    x = np.r_[rows[3, :10], rows[4, 10:]]
    found = retrieve(rows, x, scheme=scheme, immutable=[1] * 10 + [0] * 10)
    assert found.index == 3
    assert found.revealed[3] == ((rows[3] - x) ** 2).sum()


def test_two_phase_squares_in_floating_point() -> None:
    """Its set h is a float array, so (h y - h x)² of unreduced shares is rounded above 2^53: at R = 10, d = 20 too."""
    q = make_scheme("i-pcr", largest=10, d=20).field.q  # the notebook takes the field of the single phase
    share, y = 1 + 3 * (q - 1), 10  # at alpha = 3: the share of h that is largest, and the largest code
    exact = (share * y - 3) ** 2
    assert exact > 2**53
    assert int((float(share) * y - 3) ** 2 % q) != exact % q
    assert make_scheme("i-pcr-two-phase", largest=10, d=20).field.q == 2003  # here every product is reduced mod q
