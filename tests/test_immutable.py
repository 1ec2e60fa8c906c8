"""I-PCR, in one and in two phases: exact, its sizes as published, and its privacy enumerated; our `table` beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterveil import Deployment, Field, Question, Scheme, make_scheme, retrieve, run
from counterveil.algebra.arrays import Order, Vector
from counterveil.engine import as_rows
from counterveil.engine.party import Inbox, Send, Take
from counterveil.errors import InvalidInput, NotOffered, WrongType
from counterveil.research import immutable, newer
from counterveil.schemes.conformance import check_protocol
from counterveil.schemes.protocols import Held
from enumeration import Fixed, user_private
from service import numbers_database

SCHEMES = ["i-pcr", "i-pcr-two-phase", "table/distances", "table/sealed"]
IMMUTABLE = make_scheme("i-pcr-two-phase", largest=1, d=1)


def made(name: str, R: int, d: int, **parameters: Any) -> Scheme:
    own: dict[str, Any] = {"cap": R * R * d + 1} if name.startswith("table") else {}
    return make_scheme(name, largest=R, d=d, **own, **parameters)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
@given(data=st.data())
def test_the_nearest_row_that_keeps_what_is_immutable_or_none(name: str, shuffle: bool, data: st.DataObject) -> None:
    R, d, M = (data.draw(st.integers(1, most)) for most in (4, 5, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, x, h = rng.integers(0, R + 1, (M, d)), rng.integers(0, R + 1, d), rng.integers(0, 2, d)
    found = retrieve(rows, x, scheme=made(name, R, d, shuffle=shuffle), immutable=h)
    keep, away = (rows == x)[:, h == 1].all(axis=1), ((rows - x) ** 2).sum(axis=1)
    if not keep.any():
        assert (found.index, found.position, found.record) == (-1, -1, b"")
    else:
        assert keep[found.index]
        assert away[found.index] == away[keep].min()


@pytest.mark.parametrize("servers", [3, 5, 6])
@pytest.mark.parametrize("shuffle", [False, True])
def test_two_phases_show_the_agreeing_reveal_and_nothing_else(shuffle: bool, servers: int) -> None:
    scheme = made("i-pcr-two-phase", 3, 3, shuffle=shuffle, servers=servers)
    rows = np.array([[0, 1, 2], [0, 3, 3], [1, 1, 2], [0, 0, 2]])
    question = Question([0, 1, 1], immutable=[1, 0, 0])
    common = scheme.common(bytes(32), scheme.digest(rows), b"t")
    check_protocol(scheme, rows, question, common)
    shown = run(scheme, rows, question, common=common).revealed
    assert sorted(shown) == [1, 2, 8, 28]  # 28 = R²d + 1: the row that does not agree
    assert scheme.collusion == (servers - 1) // 2


def test_our_table_does_it_with_two_servers_and_a_smaller_field() -> None:
    table, single, double = (made(name, 10, 20) for name in ("table/distances", "i-pcr", "i-pcr-two-phase"))
    assert (table.servers, single.servers, double.servers) == (2, 3, 3)
    assert double.field.q < table.field.q < single.field.q


def test_questions_that_are_none() -> None:
    rows = [[0, 1], [1, 1]]
    for scheme in ("baseline", "baseline+", "linear-diff"):
        with pytest.raises(WrongType):
            retrieve(rows, [0, 0], largest=1, scheme=scheme, immutable=[1, 0])
    for wrong in ([2, 0], [1], "10", [0.5, 0]):
        for scheme in ("i-pcr", "i-pcr-two-phase"):
            with pytest.raises(InvalidInput, match=r"^immutable(\[0\])?: got"):
                retrieve(rows, [0, 0], largest=1, scheme=scheme, immutable=wrong)
    with pytest.raises(WrongType, match="1, or 3 if immutable"):
        retrieve(rows, [0, 0], largest=1, scheme="i-pcr", weights=[2, 1])
    with pytest.raises(NotOffered, match="expected a form with immutable features"):
        make_scheme("weighted/agreeing", largest=1, d=2)
    with pytest.raises(NotOffered, match="expected the reveal agreeing"):
        make_scheme("fixed/distances", largest=1, d=2, protocol="two_phase")
    with pytest.raises(NotOffered, match="got two_phase, expected a protocol that asks every server once"):
        Deployment.of(numbers_database(5, 2).schema, scheme="i-pcr-two-phase")


# --- what a server sees --------------------------------------------------------------------------------------------


def conversations(rows: Sequence[Sequence[int]], question: Question) -> list[Counter[Any]]:
    """What each server, and then two of them, get in both phases, counted over every pad of the applicant."""
    scheme, M = IMMUTABLE, len(rows)
    common = scheme.common(bytes(32), scheme.digest(rows), b"t")
    seen: list[Counter[Any]] = [Counter() for _ in range(scheme.servers + 1)]
    for pads in product(range(scheme.field.q), repeat=2 + M + 1):
        played = run(scheme, rows, question, randomness=Fixed(pads), common=common)
        for n, query in enumerate(played.queries):
            seen[n][tuple(query.tolist())] += 1
        seen[-1][tuple(played.queries[:2].reshape(-1).tolist())] += 1
    return seen


@pytest.mark.parametrize("row", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_both_phases_look_the_same_to_a_server_whatever_is_asked_and_whether_the_row_agrees(row: int) -> None:
    every = [conversations([[row]], Question([x], immutable=[h])) for x in (0, 1) for h in (0, 1)]
    assert all(seen[:3] == every[0][:3] for seen in every)
    assert all(len(counter) == IMMUTABLE.field.q**4 for counter in every[0])  # uniform: one for every pad
    assert all(not a[-1] & b[-1] for a, b in combinations(every, 2))  # the control: two servers tell them apart


@pytest.mark.slow
def test_single_phase_hides_x_and_the_set_of_immutable_features() -> None:
    """Two features: every x and every set, also sets of different sizes, look the same to every server."""
    scheme = make_scheme("i-pcr", largest=1, d=2)
    asked = [Question(x, immutable=h) for x in product((0, 1), repeat=2) for h in product((0, 1), repeat=2)]
    assert user_private(scheme, asked)


# --- what the applicant sees ---------------------------------------------------------------------------------------


class Given:
    """The servers' randomness with given pads and multiples."""

    def __init__(self, pads: Sequence[int], multiple: int) -> None:
        self.pads, self.multiple = pads, multiple

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        assert q == {"pad": IMMUTABLE.field.q, "multiple": IMMUTABLE.field.q - 1}[purpose]
        return np.array([self.pads[coefficient - 1] if purpose == "pad" else self.multiple] * count)

    def order(self, count: int) -> Order:
        raise AssertionError("rows are not shuffled")

    def substream(self, *_: Any) -> Any:
        raise AssertionError("two_phase takes elements")


def answered(seat: int, request: int, row: int, query: Sequence[int], common: Given) -> int:
    """One server's answer for a database of one row."""
    held = Held(as_rows(IMMUTABLE.form.load([[row]])), None, lambda _: common)
    party, inbox = IMMUTABLE.answering(seat, request, held), Inbox()
    inbox.put("applicant", request, np.array(query))
    take = next(party)
    assert isinstance(take, Take)
    sent = party.send(inbox.take(take))
    assert isinstance(sent, Send)
    return int(sent.symbols[0])


def no_more_told(request: int, multiples: range, pads: Sequence[Sequence[int]]) -> bool:
    """Whether, for every three queries, the answers given what they may tell are alike for both databases.

    What they may tell is the value at 0; in phase 1 only whether it is 0.
    """
    q, weights = IMMUTABLE.field.q, Field(IMMUTABLE.field.q).weights_at(IMMUTABLE.alphas)
    queries = list(product(range(q), repeat=2))
    commons = [Given(pad, multiple) for pad in pads for multiple in multiples]
    answers = {
        (row, seat, query): np.array([answered(seat, request, row, query, common) for common in commons])
        for row in (0, 1)
        for seat in range(3)
        for query in queries
    }
    for asked in product(queries, repeat=3):
        alike: dict[int, bytes] = {}
        for row in (0, 1):
            parts = [answers[row, seat, query] for seat, query in enumerate(asked)]
            value = np.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(axis=0) % q
            may_tell = value if request else (value != 0).astype(np.int64)
            joint = (parts[0] * q + parts[1]) * q + parts[2]
            for v in np.unique(may_tell):
                codes, counts = np.unique(joint[may_tell == v], return_counts=True)
                shape = codes.tobytes() + (counts // np.gcd.reduce(counts)).tobytes()
                if alike.setdefault(int(v), shape) != shape:
                    return False
    return True


ALL_PADS = list(product(range(5), repeat=2))


@pytest.mark.parametrize(("request_", "multiples"), [(0, range(4)), (1, range(1))])
def test_however_the_queries_are_made_up_the_answers_tell_no_more_than_the_reveal(
    request_: int, multiples: range
) -> None:
    """Phase 1 tells only whether a row agrees, phase 2 only the value at 0, over every query, pad and multiple."""
    assert no_more_told(request_, multiples, ALL_PADS)


@pytest.mark.parametrize(
    ("request_", "multiples", "pads"),
    [
        (0, range(1), ALL_PADS),  # no random multiple: phase 1 tells the distance on the immutable features
        (0, range(4), [(0, 0)]),
        (0, range(4), [(z, 0) for z in range(5)]),
        (1, range(1), [(0, z) for z in range(5)]),
    ],
)
def test_control_with_less_randomness_they_tell_more(
    request_: int, multiples: range, pads: list[tuple[int, int]]
) -> None:
    assert not no_more_told(request_, multiples, pads)


def test_one_ticket_answers_two_questions_of_a_cheat() -> None:
    """Nothing ties phase 2 to phase 1: e = 1 for a row that does not agree gives its distance as well."""
    scheme, row, x = make_scheme("i-pcr-two-phase", largest=3, d=2), [[3, 1]], [0, 0]
    field, held = Field(scheme.field.q), Held(as_rows(scheme.form.load(row)), None, lambda _: common)
    common = scheme.common(bytes(32), scheme.digest(row), b"t")
    values = []
    for request, secret in enumerate([[1, 0, *x], [1, *x]]):  # feature 1 must stay; then e = 1 all the same
        answers = []
        for seat in range(3):
            party = scheme.answering(seat, request, held)
            next(party)
            sent = party.send(np.array(secret))  # constant shares of a cheat
            assert isinstance(sent, Send)
            answers.append(int(sent.symbols[0]))
        values.append(sum(w * a for w, a in zip(field.weights_at(scheme.alphas), answers, strict=True)) % field.q)
    assert values[0] != 0  # the row does not agree
    assert values[1] == 3**2 + 1**2  # and its distance is told
    assert run(scheme, row, Question(x, immutable=[1, 0]), common=common).revealed.tolist() == [19]  # R²d + 1: honest


# --- the table of `reproduce` ----------------------------------------------------------------------------------------


def seen_of_rows(k: int, scheme: str) -> tuple[float, float]:
    """Both leakages to base 757 from the definitions alone.

    What is seen follows from the rows. So one is the entropy of what is seen, and the other counts what can be seen.
    """
    points, total, most, done = list(product(range(4), repeat=3)), 0.0, 0.0, dict[Any, tuple[float, float]]()
    for x in points:
        costs = Counter[int]()
        for y in points:
            squares = [(a - b) ** 2 for a, b in zip(y, x, strict=True)]
            costs[
                {
                    "I-PCR, single-phase": sum(squares) + 27 * sum(squares[:k]),
                    "I-PCR, two-phase": sum(squares) if not sum(squares[:k]) else 28,
                    "table, distances": sum(squares[k:]) + 28 * sum(map(bool, squares[:k])),
                }[scheme]
            ] += y != x
        key = tuple(sorted((+costs).items()))
        if key not in done:
            triples = product(key, repeat=3)  # of different rows: 63 * 62 * 61 = 238,266
            ways = [n * (m - (a == b)) * (o - (c == a) - (c == b)) for (a, n), (b, m), (c, o) in triples]
            entropy = -sum(w / 238_266 * math.log(w / 238_266, 757) for w in ways if w > 0)
            done[key] = entropy, math.log(sum(w > 0 for w in ways), 757)
        total, most = total + done[key][0] / 64, max(most, done[key][1])
    return total, most


def test_the_table_of_immutable_features() -> None:
    claims = {claim.what: claim for claim in immutable.immutable()}
    printed = {claim.printed for what, claim in claims.items() if "maximal" not in what}
    assert printed == {None, "6d + 3M", "3d + 6M", "> R²d(R²d + 1)"}  # what the authors state, and nothing else
    for k, cell in enumerate(newer.SINGLE):
        claim = claims[f"I-PCR, single-phase: maximal leakage, k = {k}"]
        assert (claim.printed, f"{claim.ours:.5f}", claim.source) == (cell, cell, "notebook")
    assert [claims[f"I-PCR, two-phase: maximal leakage, k = {k}"].printed for k in range(4)] == list(newer.TWO)
    assert claims["I-PCR, single-phase: symbols"].ours == 6 * 3 + 3 * 3
    assert claims["I-PCR, two-phase: symbols of phase 1"].ours == 6 * 3 + 3 * 3
    assert claims["I-PCR, two-phase: symbols of phase 2"].ours == 3 * 3 + 6 * 3
    assert claims["I-PCR, single-phase: q"].ours == 757
    assert [claims[f"table, {reveal}: servers"].ours for reveal in ("distances", "sealed")] == [2, 2]
    for k in range(4):
        for name in ("leakage", "maximal leakage"):
            assert claims[f"table, sealed: {name}, k = {k}"].ours == pytest.approx(0, abs=1e-9)
        for what in ("I-PCR, single-phase", "I-PCR, two-phase", "table, distances"):
            found = [claims[f"{what}: {name}, k = {k}"].ours for name in ("leakage", "maximal leakage")]
            assert found == pytest.approx(seen_of_rows(k, what), abs=1e-9)
