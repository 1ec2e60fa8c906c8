"""The paper's worked example, and every counter-example of the protocol: it goes wrong, and we refuse it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterveil import Field, Question, Scheme, make_scheme, run
from counterveil.algebra.arrays import Vector
from counterveil.crypto.randomness import Fresh
from counterveil.crypto.sharing import split, zero_share
from counterveil.errors import InvalidAlphas, InvalidField, OversizedField
from counterveil.institution.masking import exact_share, in_closure, largest_mask, nearest_gap
from counterveil.schemes.forms import make_form
from counterveil.schemes.reveals import Opened, make_reveal
from enumeration import Fixed, FixedCommon

ACCEPTED = np.array([[20, 0], [0, 20]])
REJECTED = [Question([1, 2]), Question([2, 1])]


def mask_scheme(**parameters: Any) -> Scheme:
    return make_scheme("mask", largest=20, d=2, **parameters)


def test_the_papers_worked_example() -> None:
    """Costs 365 and 325, gap 40, support {0..39}; expanded by 10, {0..399}."""
    form = make_form("euclidean", largest=20, d=2)
    assert form.costs(ACCEPTED, REJECTED[0]).tolist() == [365, 325]
    d_min = largest_mask(form, ACCEPTED, REJECTED)
    assert d_min == 40
    assert in_closure(form, ACCEPTED, REJECTED[0], REJECTED)

    for expansion, support in [(1, 40), (10, 400)]:
        scheme = mask_scheme(d_min=d_min, expansion=expansion)
        seen: set[int] = set()
        for mu in [(0, 0), (0, support - 1), (support - 1, 0), (support - 1, support - 1)]:
            asked = run(scheme, ACCEPTED, REJECTED[0], common=FixedCommon([[3, 5]], mu))
            assert asked.revealed.tolist() == [365 * expansion + mu[0], 325 * expansion + mu[1]]
            assert asked.position == 1
        for _ in range(400):
            seen.update(run(scheme, ACCEPTED, REJECTED[0]).revealed[:1] - 365 * expansion)
        assert min(seen) >= 0
        assert support * 0.9 < max(seen) < support


def test_a_mask_may_not_wrap() -> None:
    """Rule 6: at q = 809, 800 + 399 wraps to 390, below 400, and the wrong row wins."""
    field = Field(809)
    rows, x = np.array([[20, 20], [0, 20]]), Question([0, 0])
    reveal = make_reveal("masked", d_min=400)
    costs = make_form("euclidean", largest=20, d=2).costs(rows, x)
    wrapped = reveal.apply(field, costs, FixedCommon([], (399, 0)))
    assert wrapped.tolist() == [390, 400]
    assert isinstance(reveal, Opened)
    assert reveal.nearest(field, wrapped) == 0

    with pytest.raises(InvalidField, match="q: got 809, expected a prime above 1199"):
        mask_scheme(d_min=400, q=809)
    scheme = mask_scheme(d_min=400)
    assert scheme.field.q == 1201
    assert run(scheme, rows, x, common=FixedCommon([[0, 0]], (399, 0))).position == 1


def test_alpha_zero_sends_x_in_clear() -> None:
    field = Field(809)
    x, pad = field.vector([1, 2]), np.array([[500, 600]])
    assert field.add(x, zero_share(field, 0, pad)).tolist() == [1, 2]
    for alphas in ([0, 1], [809, 1], [3, 3], [1, 810]):
        with pytest.raises(InvalidAlphas, match="distinct and non-zero mod 809"):
            split(field, x, alphas, 1, Fresh())
        with pytest.raises(InvalidAlphas):
            make_scheme("baseline", largest=20, d=2, alphas=alphas)


def test_a_composite_q_tells_of_x() -> None:
    """Rule 1: q = 10 with alpha = 5 reveals x mod 5, whatever the pad."""
    for x in range(10):
        assert {(x + 5 * z) % 10 % 5 for z in range(10)} == {x % 5}
    with pytest.raises(InvalidField, match="q: got 10, expected a prime"):
        Field(10)
    with pytest.raises(InvalidField, match="q: got 10, expected a prime"):
        make_scheme("baseline", largest=2, d=1, q=10)


def test_expanding_y_alone_does_not_keep_the_order() -> None:
    """Rule 9: the paper's T scales y but not x; we scale the cost."""
    x, rows = np.array([3, 3]), np.array([[1, 1], [3, 3]])
    assert int(np.argmin(((10 * rows - x) ** 2).sum(axis=1))) == 0
    scheme = make_scheme("mask", largest=3, d=2, d_min=8, expansion=10)
    for mu in [(0, 79), (79, 0)]:
        asked = run(scheme, rows, Question(x), common=FixedCommon([[1, 1]], mu))
        assert asked.position == 1
        assert asked.revealed.tolist() == [80 + mu[0], mu[1]]


def test_expansion_needs_its_field() -> None:
    assert mask_scheme(d_min=40, expansion=10).field.q > 10 * 800 + 10 * 40 - 1
    with pytest.raises(InvalidField):
        mask_scheme(d_min=40, expansion=10, q=853)


def test_the_range_of_a_mask_is_not_fixed_under_weights() -> None:
    """`lemma_range_fixed` is false: d_min = 3 is right without weights and wrong with w = (1, 3)."""
    rows, x, w = np.array([[2, 0], [0, 1]]), [0, 0], [1, 3]
    plain, weighted = make_form("euclidean", largest=2, d=2), make_form("weighted", largest=2, d=2)
    assert plain.costs(rows, Question(x)).tolist() == [4, 1]
    assert weighted.costs(rows, Question(x, w)).tolist() == [4, 3]
    assert largest_mask(plain, rows, [Question(x)]) == 3
    assert nearest_gap(weighted.costs(rows, Question(x, w))) == 1
    assert exact_share(weighted, rows, [Question(x), Question(x, w)], 3) == 0.5

    scheme = make_scheme("mask+", largest=2, d=2, d_min=3)
    wrong = run(scheme, rows, Question(x, w), common=FixedCommon([[7, 7], [9, 9]], (0, 2)))
    assert wrong.revealed.tolist() == [4, 5]
    assert wrong.position == 0
    assert not scheme.reveal.exact


def cancel_mask(answers: list[Vector], queries: list[Vector], field: Field) -> Vector:
    """What a cheating applicant computes from three answers with one pad: sum c_n A_n, sum c_n (1, alpha_n) = 0."""
    total = np.zeros_like(answers[0])
    for c, answer, Q in zip((1, -2, 1), answers, queries, strict=True):
        own = field.sum(field.mul(Q, Q))
        total = field.add(total, field.mul(field.sub(answer, own), c % field.q))
    return total


@pytest.mark.parametrize(("pads", "recovered"), [(1, True), (2, False)])
def test_spare_servers_cancel_a_mask(pads: int, recovered: bool) -> None:
    """Rule 3: three servers, one pad a row, d_min = 100: the mask is gone and 50 of 50 rows are read off."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 11, (50, 2))
    scheme = make_scheme("mask", largest=10, d=2, servers=3, collusion=1, d_min=100)
    field, reveal = Field(scheme.field.q), scheme.reveal
    coefficients = [rng.integers(0, field.q, 50) if t < pads else np.zeros(50, dtype=np.int64) for t in range(2)]
    common = FixedCommon([c.tolist() for c in coefficients], rng.integers(0, 100, 50).tolist())
    assert reveal.masked
    # inconsistent shares: sum c_n Q_n = (1, 11), so that the answers add up to -2 (y_1 + 11 y_2), which tells the row
    queries = [np.array(Q) for Q in ([1, 11], [0, 0], [0, 0])]
    answers = [scheme.answer(n, rows, Q, common) for n, Q in enumerate(queries, start=1)]
    value = field.mul(cancel_mask(answers, queries, field), pow(-2, -1, field.q))
    found = np.stack([value % 11, value // 11], axis=1)
    assert (int((found == rows).all(axis=1).sum()) == 50) is recovered


def crafted_question_reads_rows(scheme: Scheme, rows: Vector) -> int:
    """One question in base 2(R + 1), far outside [0:R]^d; the digits of the cost are then the codes of the row."""
    field, d, R = Field(scheme.field.q), scheme.form.d, max(scheme.form.largest)
    room = 4 * d * R * R + 400
    base = [room * (R + 1) ** j % field.q for j in range(d)]
    queries = np.stack([field.vector(base)] * scheme.servers)
    rng = np.random.default_rng(1)
    mask = rng.integers(0, scheme.reveal.d_min, len(rows)).tolist()
    common = FixedCommon([rng.integers(0, field.q, len(rows)).tolist()], mask)
    answers = [scheme.answer(n, rows, Q, common) for n, Q in enumerate(queries, start=1)]
    own = field.sum(field.mul(queries[0], queries[0]))
    weights = field.weights_at(scheme.alphas)
    value = np.zeros(len(rows), dtype=np.int64)
    for w, answer in zip(weights, answers, strict=True):
        value = field.add(value, field.mul(field.sub(answer, own), w))
    # value = ‖y‖² + mu - 2 room * sum y_j (R + 1)^j
    spelled = (-field.signed(value) + room) // (2 * room)
    digits = np.stack([spelled // (R + 1) ** j % (R + 1) for j in range(d)], axis=1)
    return int((digits == rows).all(axis=1).sum())


@pytest.mark.parametrize("name", ["baseline", "mask"])
def test_an_oversized_field_gives_every_row_to_one_crafted_question(name: str) -> None:
    """Rule 5: with q = 2^61 - 1, R = 10, d = 11, one question recovers 50 of 50 rows; with the smallest prime, none."""
    rows = np.random.default_rng(2).integers(0, 11, (50, 11))
    parameters: dict[str, Any] = {"largest": 10, "d": 11, "d_min": 100 if name == "mask" else 1}
    with pytest.warns(OversizedField):
        oversized = make_scheme(name, q=2**61 - 1, **parameters)
    assert crafted_question_reads_rows(oversized, rows) == 50
    assert crafted_question_reads_rows(make_scheme(name, **parameters), rows) == 0


def test_ties_leave_no_empty_mask() -> None:
    """Rule 7: equal distances would make the paper's d_min zero; the minimum is over distinct ones."""
    form = make_form("euclidean", largest=20, d=2)
    doubled = np.vstack([ACCEPTED, ACCEPTED])
    assert largest_mask(form, doubled, REJECTED) == 40


def test_fixed_randomness_gives_the_papers_queries() -> None:
    """`queries_no_weight`, literally: Q_n = x + alpha_n Z."""
    scheme = make_scheme("baseline", largest=20, d=2)
    queries = scheme.query(Question([1, 2]), Fixed([700, 808]))
    assert queries.tolist() == [[701, 1], [(1 + 1400) % 809, (2 + 1616) % 809]]
