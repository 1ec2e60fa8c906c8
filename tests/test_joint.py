"""Joint finds the nearest rows whoever deals and in however many rounds, and keeps to the sizes that it announces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import FORMS, REVEALS, Question, Scheme, make_scheme, retrieve, run
from counterveil.errors import NotOffered, UnknownName, WrongShape
from counterveil.schemes.conformance import check_protocol
from counterveil.schemes.protocols import Size, circuit, dealing, make_protocol, rounds
from databases import Case, cases
from jointly import DEALERS, PROFILES, asked, numbered, tabled, with_joint

pytestmark = pytest.mark.slow

profiles = pytest.mark.parametrize("profile", PROFILES)
dealers = pytest.mark.parametrize("dealer", DEALERS)


def first_nearest(scheme: Scheme, rows: Any, question: Question) -> int:
    """Return the row that the applicant gets, as its record says."""
    found = run(scheme, rows, question, records=numbered(len(rows)))
    assert (found.position, found.revealed.size) == (-1, 0)
    return int.from_bytes(found.record or b"", "little")


# --- right ---------------------------------------------------------------------------------------------------------


@profiles
@dealers
@pytest.mark.parametrize("form", ["table", "linear", "even_norm"])
@settings(max_examples=8, deadline=None)
@given(case=cases(most_rows=300))
def test_the_first_nearest_row_is_found(form: str, dealer: str, profile: str, case: Case) -> None:
    made = make_scheme(f"{form}/sealed", protocol="joint", **case.parameters(form))
    scheme = with_joint(made, dealer=dealer, rounds=profile)
    assert first_nearest(scheme, case.rows, case.question(form)) == int(np.argmin(case.plain(form)))


@settings(max_examples=80, deadline=None)
@given(
    bits=st.integers(1, 40),
    M=st.integers(1, 300) | st.integers(1, 5000) | st.sampled_from([16_385, 65_537, 70_000]),
    k=st.integers(1, 3),
    values=st.sampled_from([2, 17, 256]),
    seed=st.integers(0, 2**32),
    dealer=st.sampled_from(DEALERS),
    profile=st.sampled_from(PROFILES),
    seeded=st.booleans(),
)
def test_the_k_nearest_rows_come_in_order(
    bits: int, M: int, k: int, values: int, seed: int, dealer: str, profile: str, seeded: bool
) -> None:
    """This holds for costs of any width, any number of rows, and ties. Bytes and rounds are those announced."""
    rng, k = np.random.default_rng(seed), min(k, M)
    rows, costs = rng.integers(0, values, (M, 1)), rng.integers(0, 1 << bits, 256)
    scheme = tabled(bits, dealer=dealer, rounds=profile, seeded=seeded)
    found, sizes, turns = asked(scheme, rows, Question(costs=[costs]), numbered(M), k=k)
    nearest = np.argsort(costs[rows[:, 0]], kind="stable")[:k]
    assert [int.from_bytes(record, "little") for record in found] == nearest.tolist()
    assert dict(sizes) == scheme.requests(Size(M, 4, k))[0].traffic()
    assert turns == len(dealing.planned(M, bits, k, profile))


@profiles
@pytest.mark.parametrize("M", [1, 2, 63, 64, 65, 127, 129, 4095, 4097, 65_535, 65_536, 65_537, 70_000, 131_073])
def test_odd_sizes(M: int, profile: str) -> None:
    rng = np.random.default_rng(M)
    rows, costs = rng.integers(0, 256, (M, 1)), rng.integers(20, 4096, 256)
    for least in {0, M - 1, int(rng.integers(M))}:
        rows[rows == 7] = 8
        rows[least], costs[7] = 7, 3
        assert first_nearest(tabled(12, rounds=profile), rows, Question(costs=[costs])) == least


@profiles
@pytest.mark.parametrize("M", [1, 3, 64, 100, 1000, 65_540])
@pytest.mark.parametrize("cost", [0, 1, 7])
def test_ties_go_to_the_first_row_and_pads_never_win(M: int, cost: int, profile: str) -> None:
    """This holds even if every row costs as much as a pad, and for every record of three."""
    scheme, rows = tabled(3, rounds=profile), np.zeros((M, 1), dtype=np.int64)
    question = Question(costs=[[cost] + [7] * 255])
    assert first_nearest(scheme, rows, question) == 0
    found, *_ = asked(scheme, rows, question, numbered(M), k=min(3, M))
    assert [int.from_bytes(record, "little") for record in found] == list(range(min(3, M)))
    rows[: M // 2] = 1
    assert first_nearest(scheme, rows, Question(costs=[[cost, 7] + [7] * 254])) == (M // 2 if cost < 7 else 0)


@profiles
def test_a_tie_between_halves(profile: str) -> None:
    """Among costs 9, 5, 5, 9 the first 5 wins, wherever these four rows stand."""
    for start in (0, 1, 2, 60, 62, 63, 126, 509, 1020):
        rows = np.full((1024, 1), 3)
        rows[start : start + 4, 0] = [2, 1, 1, 2]
        scheme = tabled(4, rounds=profile)
        assert first_nearest(scheme, rows, Question(costs=[[0, 5, 9] + [15] * 253])) == start + 1


@profiles
@dealers
@pytest.mark.parametrize("form", ["table", "linear", "even_norm"])
def test_the_protocol_conforms(form: str, dealer: str, profile: str) -> None:
    made, rows, questions = FORMS[form].example()
    scheme = Scheme.of(made, REVEALS["sealed"], make_protocol("joint", dealer=dealer, rounds=profile))
    for question in questions:
        check_protocol(scheme, rows, question, scheme.common(bytes(32), b"", b"t"))


def test_one_call_plays_all_parties() -> None:
    rows, costs = [[0, 1], [2, 3], [1, 1]], [[5, 0, 9, 9], [9, 1, 9, 9]]
    for dealer in DEALERS:
        found = retrieve(rows, largest=3, scheme="table/sealed", costs=costs, cap=9, protocol="joint", dealer=dealer)
        assert (found.index, found.position, found.record) == (2, -1, bytes([1, 1]))


# --- comparisons, in the clear -------------------------------------------------------------------------------------


class Clear:
    """Gates on values that are not shared; each product names how many factors it has at most."""

    def __init__(self) -> None:
        self.rounds, self.most = 0, 0

    def invert(self, a: Any) -> Any:
        return a ^ 1

    def both(self, a: Any, b: Any, step: int, first: int) -> Any:
        self.rounds += 1
        return a & b
        yield

    def products(self, factors: Any, terms: Any) -> Any:
        self.rounds, self.most = self.rounds + 1, max(self.most, *map(len, terms))
        assert set(range(len(factors))) == {n for term in terms for n in term}  # a mask that is not needed costs bytes
        return np.stack([np.bitwise_and.reduce(factors[list(term)], axis=0) for term in terms])
        yield


@pytest.mark.parametrize("bits", [*range(1, 23), 40, 62])
def test_every_comparison_is_right(bits: int) -> None:
    """A wide tree takes ⌈log4 (k + 1)⌉ rounds of at most four factors. Numbers of up to five bits are enumerated."""
    rng = np.random.default_rng(bits)
    a, b = (part.reshape(-1) for part in np.meshgrid(*[np.arange(1 << min(bits, 5))] * 2))
    if bits > 5:
        a, b = rng.integers(0, 1 << bits, (2, 3000))
        b = np.where(rng.integers(0, 2, 3000), b, a ^ (1 << rng.integers(0, bits, 3000)))  # one bit apart
    planes = [np.stack([each >> i & 1 for i in range(bits)])[:, :, None] for each in (a, b)]
    for compare in (circuit.by_ripple, rounds.by_tree, rounds.by_wide_tree):
        gates = Clear()
        dearer = circuit.done(compare(gates, planes[0], gates.invert(planes[1]), 0, 0))
        assert np.array_equal(dearer[0, :, 0], a > b)
    assert gates.rounds == next(n for n in range(1, 9) if 4**n > bits)
    assert gates.most <= rounds.WIDTH


# --- sizes, refusals -----------------------------------------------------------------------------------------------


@dealers
def test_seeds_bring_fewer_bytes(dealer: str) -> None:
    first, second = tabled(12, dealer=dealer, seeded=True).requests(Size(1 << 20))[0].dealt
    assert first == 32
    assert second < 5 * (1 << 20)


@pytest.mark.parametrize(("bits", "dealt", "between", "turns"), [(12, 13, 8, (185, 75)), (21, 22, 14, (270, 103))])
def test_bytes_of_a_row(bits: int, dealt: int, between: int, turns: tuple[int, int]) -> None:
    for M in (1 << 14, 1 << 20, (1 << 20) + 1):
        request = tabled(bits).requests(Size(M, 146))[0]
        assert max(request.dealt) <= dealt * M
        assert request.between <= between * M
        assert request.down == (146, 146)
    assert tuple(len(dealing.planned(1 << 20, bits, 1, profile)) for profile in PROFILES) == turns


@pytest.mark.parametrize("bits", [12, 21])
@pytest.mark.parametrize("seeded", [False, True])
def test_few_rounds_cost_less_than_twice_the_bytes(bits: int, seeded: bool) -> None:
    for M, k in ((1 << 14, 1), (1 << 20, 1), (1 << 20, 3)):
        balanced, few = (tabled(bits, rounds=each, seeded=seeded).requests(Size(M, 146, k))[0] for each in PROFILES)
        assert max(few.dealt) <= 2 * max(balanced.dealt)
        assert few.between <= 2 * balanced.between


@profiles
def test_k_records_cost_at_most_k_times_as_much(profile: str) -> None:
    one, three = (tabled(12, rounds=profile).requests(Size(1 << 20, 146, k))[0] for k in (1, 3))
    assert max(three.dealt) <= 3 * max(one.dealt)
    assert three.between <= 3 * one.between
    assert len(dealing.planned(1 << 20, 12, 3, profile)) <= 3 * len(dealing.planned(1 << 20, 12, 1, profile))


def test_what_it_is_not_made_for() -> None:
    with pytest.raises(UnknownName):
        make_protocol("joint", dealer="nobody")
    with pytest.raises(UnknownName):
        make_protocol("joint", rounds="none")
    with pytest.raises(UnknownName):
        make_scheme("table/sealed", largest=3, d=1, dealer="server")  # the garbled protocol has no dealer
    with pytest.raises(NotOffered):
        make_scheme("table/differences", largest=3, d=1, protocol="joint")
    with pytest.raises(NotOffered):
        make_scheme("euclidean/sealed", largest=3, d=1, protocol="joint")
    with pytest.raises(NotOffered):
        make_scheme("table/sealed", largest=3, d=1, protocol="joint", servers=3, collusion=2)
    with pytest.raises(NotOffered):
        tabled(3).answer(1, [[0]], np.zeros(257, dtype=np.int64), tabled(3).common(bytes(32), b"", b"t"))
    with pytest.raises(WrongShape):
        tabled(3).requests(Size(4, 4, 5))
