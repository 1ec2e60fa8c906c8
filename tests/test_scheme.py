"""Schemes: the catalogue's numbers, counted on real messages, and the conformance of every form and reveal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import counterveil
from counterveil import CATALOGUE, FORMS, REVEALS, Field, Question, Scheme, make_scheme, retrieve
from counterveil.algebra.arrays import Vector
from counterveil.algebra.field import Residues
from counterveil.crypto.randomness import Common
from counterveil.engine import Plan
from counterveil.errors import NotOffered
from counterveil.institution.masking import UNLIMITED, nearest_gap
from counterveil.schema.costs import PREFERENCES, Costs
from counterveil.schema.tariff import Tariff
from counterveil.schemes.conformance import check_form, check_kind, check_reveal
from counterveil.schemes.forms import Form, make_form
from counterveil.schemes.forms.table import Table
from counterveil.schemes.protocols import make_protocol
from counterveil.schemes.reveals import Opened, Reveal, make_reveal
from databases import Case, cases

SYMBOLS: dict[
    str, tuple[int, Callable[[int, int], int]]
] = {  # the paper's `PCR_baseline_thm`, `PCR_diff_thm`, `PCR_mask_thm`, `pcr_weighted_thm`; I-PCR; and ours
    "baseline": (2, lambda d, M: 2 * (d + M)),
    "diff": (2, lambda d, M: 2 * (d + M - 1)),
    "mask": (2, lambda d, M: 2 * (d + M)),
    "baseline+": (3, lambda d, M: 6 * d + 3 * M),
    "diff+": (3, lambda d, M: 6 * d + 3 * (M - 1)),
    "mask+": (3, lambda d, M: 6 * d + 3 * M),
    "i-pcr": (3, lambda d, M: 6 * d + 3 * M),
    "i-pcr-two-phase": (3, lambda d, M: (6 * d + 3 * M) + (3 * d + 6 * M)),
    "linear-baseline": (2, lambda d, M: 4 * d + 2 * M),
    "linear-diff": (2, lambda d, M: 4 * d + 2 * (M - 1)),
    "linear-mask": (2, lambda d, M: 4 * d + 2 * M),
}


@pytest.mark.parametrize("name", SYMBOLS)
@pytest.mark.parametrize(("d", "M"), [(1, 1), (3, 2), (20, 57)])
def test_symbols_counted_on_the_messages_are_those_of_the_theorems(name: str, d: int, M: int) -> None:
    rng = np.random.default_rng(0)
    rows, x = rng.integers(0, 11, (M, d)), rng.integers(0, 11, d)
    found = retrieve(rows, x, largest=10, scheme=name, d_min=2 if "mask" in name else 1)
    servers, total = SYMBOLS[name]
    assert len(found.views) == servers
    assert found.symbols.up == sum(view.query.size for view in found.views)
    assert found.symbols.up + found.symbols.down == total(d, M)


def test_the_catalogue_is_what_the_theorems_name() -> None:
    assert set(CATALOGUE) == set(SYMBOLS)
    for form, reveal in CATALOGUE.values():
        assert form in FORMS
        assert reveal in REVEALS


@pytest.mark.parametrize(
    ("name", "parameters", "above"),
    [
        ("baseline", {}, 10**2 * 20),
        ("diff", {}, 2 * 10**2 * 20),
        ("mask", {"d_min": 7}, 10**2 * 20 + 6),
        ("baseline+", {"max_weight": 5}, 10**2 * 5 * 20),
        ("diff+", {"max_weight": 5}, 2 * 10**2 * 5 * 20),
        ("mask+", {"max_weight": 5, "d_min": 7}, 10**2 * 5 * 20 + 6),
        ("i-pcr", {}, 10**2 * 20 * (10**2 * 20 + 1)),
        ("i-pcr-two-phase", {}, 10**2 * 20),
        ("linear-diff", {"max_weight": 5}, 2 * 10**2 * 5 * 20),
        ("linear/masked_differences", {"max_weight": 5, "d_min": 7}, 2 * (10**2 * 5 * 20 + 6)),
        ("mask", {"d_min": 7, "expansion": 3}, 3 * 10**2 * 20 + 3 * 7 - 1),
        ("dot/distances", {"max_weight": 5}, 10**2 * 5 * 20),
        ("even_norm/distances", {"max_weight": 5, "norm": 4}, 10**4 * 5 * 20),
        ("table/distances", {"cap": 33}, 33 * 20),
        ("baseline", {"largest": [1] * 10 + [3] * 10}, 10 * 1 + 10 * 9),
        ("baseline", {"largest": 1, "d": 1, "servers": 23}, 23),
    ],
)
def test_q_is_the_smallest_prime_above_the_bound(name: str, parameters: dict[str, Any], above: int) -> None:
    scheme = make_scheme(name, **({"largest": 10, "d": 20} | parameters))
    assert scheme.field.q == counterveil.smallest_prime_above(above)


@pytest.mark.parametrize(
    ("form", "servers", "collusion"),
    [
        ("euclidean", 2, 1),
        ("euclidean", 4, 3),
        ("weighted", 3, 1),
        ("weighted", 4, 1),
        ("weighted", 7, 3),
        ("table", 5, 4),
    ],
)
def test_as_much_collusion_as_the_servers_bear(form: str, servers: int, collusion: int) -> None:
    assert make_scheme(f"{form}/distances", largest=3, d=2, servers=servers).collusion == collusion
    fewest = make_scheme(f"{form}/distances", largest=3, d=2, collusion=collusion)
    assert fewest.servers == FORMS[form](largest=(3,)).degree * collusion + 1


@pytest.mark.parametrize("form", FORMS)
@given(case=cases(most_rows=30))
def test_every_form_conforms_and_costs_what_plain_arithmetic_says(form: str, case: Case) -> None:
    made = make_form(form, **case.parameters(form))
    check_form(made, case.rows, case.question(form))
    assert np.array_equal(made.costs(case.rows, case.question(form)), case.plain(form))
    assert made.name == form or (form == "even_norm" and case.norm == 2)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_deploys_as_it_is_registered(form: str) -> None:
    check_kind(FORMS[form])
    assert {f.name for f in fields(counterveil.Preferences)} == set(PREFERENCES)


def test_conformance_refuses_a_form_whose_answers_are_explained_with_other_costs() -> None:
    class Other(Table):
        def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
            return Question(costs=[table // 2 for table in costs.tables]), costs

    with pytest.raises(AssertionError, match="something else than the explanation says"):
        check_kind(Other)
    with pytest.raises(NotImplementedError, match="InTheClear has no example"):
        check_kind(InTheClear)


@dataclass(frozen=True, kw_only=True)
class Halves(Table):
    """A form that asks for |y - x|^1.5 when it is deployed, and has no distances of its own."""

    name = "halves"
    offers = frozenset({"weights"})

    def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
        tables = []
        for feature, own, weight in zip(costs.features, costs.own, costs.weights, strict=True):
            codes = np.arange(feature.largest + 1)
            away = np.abs(codes - own) / feature.steps if feature.ordered else codes != own
            tables.append(weight * np.rint(tariff.unit * away**1.5).astype(np.int64))
        return Question(costs=tables), replace(costs, tables=tables)


class Right(Halves):
    def distances(self, question: Question) -> list[list[int]]:
        features = zip(self.weights(question), self.point(question), self.largest, strict=True)
        return [[w * round(abs(v - x) ** 1.5) for v in range(R + 1)] for w, x, R in features]


class Nothing(Halves):
    def distances(self, question: Question) -> list[list[int]]:
        return [[0] * (R + 1) for R in self.largest]


class Squares(Halves):
    def distances(self, question: Question) -> list[list[int]]:
        return super().distances(question)


class Unweighted(Right):
    def distances(self, question: Question) -> list[list[int]]:
        return super().distances(replace(question, weights=None))


def test_what_retrieve_counts_is_what_a_deployment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that overrides `question` alone would inherit squared distances: it is refused, and so is a wrong one."""
    asked: dict[str, Any] = {"rows": [[20, 0], [14, 9]], "x": [1, 2], "largest": 20, "scheme": "halves/distances"}
    monkeypatch.setitem(FORMS, "halves", Halves)
    with pytest.raises(NotOffered, match="costs: got nothing, expected tables of costs, since the form halves has"):
        counterveil.retrieve(**asked)
    with pytest.raises(AssertionError, match="the form halves has a question of its own and no distances"):
        check_kind(Halves)
    for wrong in (Nothing, Squares, Unweighted):
        with pytest.raises(AssertionError, match="`distances` and `question` disagree"):
            check_kind(wrong)
    check_kind(Right)
    monkeypatch.setitem(FORMS, "halves", Right)
    assert counterveil.retrieve(**asked).revealed.tolist() == [83 + 3, 47 + 19]


@given(case=cases(most_rows=30))
def test_without_tables_the_table_form_is_the_weighted_distance(case: Case) -> None:
    parameters = case.parameters("linear")
    table, linear = make_form("table", **parameters), make_form("linear", **parameters)
    question = case.question("linear")
    assert np.array_equal(table.costs(case.rows, question), linear.costs(case.rows, question))
    assert table.bound == linear.bound


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", REVEALS)
@given(costs=st.lists(st.integers(0, 1000), min_size=1, max_size=50), expansion=st.integers(1, 3))
def test_every_reveal_conforms(name: str, shuffle: bool, costs: list[int], expansion: int) -> None:
    vector = np.array(costs)
    reveal = make_reveal_for(name, vector, shuffle=shuffle, expansion=expansion)
    protocol = make_protocol(reveal.protocol)
    field = protocol.arithmetic(protocol.must_exceed(1001, reveal, 2))
    check_reveal(reveal, field, vector, Common(bytes(32), digest=b"", ticket=b"t", servers=()))


def make_reveal_for(name: str, costs: Vector, *, shuffle: bool, expansion: int) -> Reveal:
    """The reveal with the widest mask that is exact for these costs."""
    if not REVEALS[name].masked:
        return make_reveal(name, shuffle=shuffle)
    gap = nearest_gap(costs)
    d_min = 7 if gap == UNLIMITED else gap
    return Opened(name=name, masked=True, differences=REVEALS[name].differences, shuffle=shuffle, d_min=d_min,
                  expansion=expansion)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InTheClear(Form):
    """A plaintext no-op: the query is one made-up symbol, and every row costs its first code."""

    name = "in the clear"
    symbols = 1
    bound = 3

    def encode(self, question: Question) -> list[int]:
        return [0]

    def plan(self, field: Residues, query: Vector) -> Plan:
        return Plan("polynomial", field, (np.arange(self.d) == 0,), max(self.largest))


@dataclass(frozen=True, kw_only=True)
class Dishonest(InTheClear):
    """The same, but the square of the made-up symbol gets into the cost."""

    bound = 2**40

    def plan(self, field: Residues, query: Vector) -> Plan:
        return replace(super().plan(field, query), constant=int(field.mul(query[:1], query[:1])[0]))


def test_conformance_accepts_a_no_op_and_refuses_a_broken_form() -> None:
    rows, question = np.array([[3], [1], [2]]), Question()
    check_form(InTheClear(largest=(3,)), rows, question)
    assert counterveil.run(Scheme.of(InTheClear(largest=(3,)), REVEALS["differences"]), rows, question).position == 1
    with pytest.raises(AssertionError, match="do not give the cost"):
        check_form(Dishonest(largest=(3,)), rows, question)


def test_conformance_refuses_a_bound_that_lies() -> None:
    class Lying(InTheClear):
        bound = 2

    with pytest.raises(AssertionError, match="a cost of 3, above the bound 2"):
        check_form(Lying(largest=(3,)), np.array([[3], [1]]), Question())


def test_conformance_refuses_a_broken_reveal() -> None:
    class Largest(Opened):
        def nearest(self, field: Residues, revealed: Vector) -> int:
            return int(np.argmax(revealed))

    common = Common(bytes(32), digest=b"", ticket=b"t", servers=())
    with pytest.raises(AssertionError, match="does not find a row of the least cost, 1"):
        check_reveal(Largest(name="largest"), Field(11), np.array([1, 9]), common)


def algorithm_1(differences: list[int], q: int, most: int) -> int:
    """`alg_difference_distance`, literally; indices from 0."""
    theta = 0
    for i in range(len(differences)):
        if not most + 1 <= sum(differences[theta : i + 1]) % q <= q - 1:
            theta = i + 1
    return theta


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_differences_find_what_the_papers_algorithm_finds(costs: list[int]) -> None:
    reveal, field = make_reveal("differences"), Field(counterveil.smallest_prime_above(200))
    revealed = reveal.apply(field, np.array(costs), Common(bytes(32), digest=b"", ticket=b"t", servers=()))
    assert isinstance(reveal, Opened)
    ours, papers = reveal.nearest(field, revealed), algorithm_1(revealed.tolist(), field.q, 100)
    assert costs[ours] == costs[papers] == min(costs)


@pytest.mark.parametrize("name", ["baseline", "diff", "mask+", "table/masked_differences"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_answer_is_the_same_in_parts(name: str, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    scheme = make_scheme(name, largest=9, d=3, shuffle=shuffle, d_min=4 if "mask" in name else 1)
    query = rng.integers(0, scheme.field.q, scheme.symbols)
    for count in (1, 2, 7, 8, 14, 15, 50):
        rows = rng.integers(0, 10, (count, 3)).astype(np.uint8)
        answers = []
        for part in (7, 1 << 16):
            monkeypatch.setattr("counterveil.schemes.protocols.padded._PART", part)
            common = scheme.common(bytes(32), bytes(32), b"ticket")
            answers.append(scheme.answer(1, rows, query, common).tolist())
        assert answers[0] == answers[1]
