"""User privacy, enumerated: counted over all pads, a server sees the same for every question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from counterveil import FORMS, Question, Scheme, make_scheme, retrieve
from counterveil.algebra.gf256 import GF256
from counterveil.crypto.randomness import Fresh
from counterveil.crypto.sharing import split
from counterveil.schemes.fetch import Polynomials, Subsets, make_spir
from counterveil.schemes.playing import run
from enumeration import Fixed, FixedCommon, tiny, told_apart, user_private, views

SMALL = {
    "euclidean": make_scheme("baseline", largest=1, d=2),
    "euclidean, q = 5": make_scheme("baseline", largest=2, d=1),
    "euclidean, T = 2": make_scheme("baseline", largest=1, d=1, servers=3),
    "euclidean, T = 1 of 3": make_scheme("baseline", largest=1, d=2, servers=3, collusion=1),
    "weighted": make_scheme("baseline+", largest=1, d=2, max_weight=2),
    "weighted, T = 2": make_scheme("baseline+", largest=1, d=1, max_weight=2, servers=5),
    "linear": make_scheme("linear-baseline", largest=1, d=2, max_weight=2),
    "linear, T = 2": make_scheme("linear-baseline", largest=1, d=1, max_weight=2, servers=3),
    "dot": make_scheme("dot/distances", largest=1, d=2, max_weight=2),
    "even_norm": make_scheme("even_norm/distances", largest=1, d=1, max_weight=2),
    "table": make_scheme("table/distances", largest=1, d=2, cap=1),
    "table, T = 2": make_scheme("table/distances", largest=1, d=1, cap=2, servers=3),
    "sealed table": make_scheme("table/sealed", largest=1, d=2, cap=1),
    "sealed table, one feature": make_scheme("table/sealed", largest=2, d=1, cap=3),
    "sealed linear": make_scheme("linear/sealed", largest=1, d=1, max_weight=2),
    "other alphas": make_scheme("linear-diff", largest=1, d=1, max_weight=2, alphas=[4, 2]),
}

LARGE = ("weighted", "weighted, T = 2", "linear", "table, T = 2", "sealed table", "sealed table, one feature")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in SMALL]


def questions(scheme: Scheme) -> Iterator[Question]:
    """Every possible question of this scheme."""
    form = scheme.form
    if form.name == "table":
        entries = [list(product(range(form.bound // form.d + 1), repeat=R + 1)) for R in form.largest]
        yield from (Question(costs=tables) for tables in product(*entries))
        return
    for x in product(*[range(R + 1) for R in form.largest]):
        if form.name == "euclidean":
            yield Question(x)
        else:
            yield from (Question(x, w) for w in product(range(1, form.max_weight + 1), repeat=form.d))


@pytest.mark.parametrize("name", NAMES)
def test_any_t_servers_see_the_same_whatever_is_asked(name: str) -> None:
    scheme = SMALL[name]
    everything = list(questions(scheme))
    assert len(everything) > 1
    assert user_private(scheme, everything)


@pytest.mark.parametrize("name", NAMES)
def test_all_servers_together_do_tell_questions_apart(name: str) -> None:
    assert told_apart(SMALL[name], list(questions(SMALL[name])))


@pytest.mark.parametrize("form", FORMS)
def test_so_it_is_with_every_form_that_is_registered(form: str) -> None:
    """The example that the form provides is private. A form without an example fails here."""
    example = FORMS[form].example()
    for reveal in ("distances", "sealed") if example.form.additive else ("distances",):
        scheme = tiny(example.form, reveal)
        assert user_private(scheme, example.questions)
        assert told_apart(scheme, example.questions)


def test_t_plus_1_servers_do_tell_questions_apart() -> None:
    scheme = SMALL["euclidean, T = 1 of 3"]
    first, second = (views(scheme, Question(x), (0, 1)) for x in ([0, 0], [1, 0]))
    assert first != second


@pytest.mark.parametrize("servers", [2, 3])
def test_record_query_of_one_server_is_the_same_for_every_position(servers: int) -> None:
    spir = Subsets(servers, length=4)
    seen: dict[tuple[int, ...], list[Counter[Any]]] = {}
    for position in range(3):
        queries = [spir.query(3, position, Fixed([noise])) for noise in range(256)]
        for group in [(n,) for n in range(servers)] + [(0, servers - 1)]:
            seen.setdefault(group, []).append(Counter(Q[list(group)].tobytes() for Q in queries))
    for n in range(servers):
        assert seen[n,][0] == seen[n,][1] == seen[n,][2]
        assert len(seen[n,][0]) == 2 ** (3 * (servers - 1))
    together = seen[0, servers - 1]
    assert together[0] != together[1] != together[2]


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_record_query_of_any_two_of_three_servers_is_the_same_for_every_position(pair: tuple[int, int]) -> None:
    """Over GF(2^8) each coordinate has pads of its own: all 65,536 of them, for a coordinate of 0 and for one of 1."""
    every = [z for pads in zip(*product(range(256), repeat=2), strict=True) for z in pads]
    counters = []
    for bit in (0, 1):
        shares = split(GF256(), np.full(65536, bit), range(1, 4), 2, Fixed(every))
        counters.append(Counter(zip(*shares[list(pair)].tolist(), strict=True)))
        assert len(set(zip(*shares.tolist(), strict=True))) == 65536
    assert counters[0] == counters[1]
    assert set(counters[0].values()) == {1}


def test_record_query_over_bytes_is_that_sharing_of_the_unit_vector() -> None:
    spir = Polynomials(servers=3, collusion=2, length=4)
    pads = list(range(10))
    shares = split(GF256(), np.array([0, 0, 1, 0, 0]), range(1, 4), 2, Fixed(pads))
    assert np.array_equal(spir.query(5, 2, Fixed(pads)), shares)


def test_the_whole_conversation_is_the_same_for_every_question() -> None:
    """Query and record request together, over every pad of both, while the nearest row changes with x."""
    scheme = make_scheme("baseline", largest=2, d=1)
    rows = np.array([[0], [2], [2]], dtype=np.uint8)
    common = FixedCommon([[1, 2, 3]])
    found = set()
    seen: list[list[Counter[Any]]] = []
    for x in range(3):
        counters: list[Counter[Any]] = [Counter(), Counter()]
        for z in range(scheme.field.q):
            asked = run(scheme, rows, Question([x]), randomness=Fixed([z]), common=common)
            found.add(asked.position)
            for noise in range(256):
                queries = Subsets(2, length=1).query(3, asked.position, Fixed([noise]))
                for n in range(2):
                    counters[n][asked.queries[n].tobytes(), queries[n].tobytes()] += 1
        seen.append(counters)
    assert found == {0, 1}
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("scheme", ["baseline", "mask+", "linear-diff", "table/distances"])
def test_views_at_full_size_look_uniform(scheme: str) -> None:
    """Chi-square over 64 bins, for two very different people; ten standard deviations off would fail."""
    rows = np.array([[0] * 8, [10] * 8])
    for x in ([0] * 8, [10] * 8):
        parameters: dict[str, Any] = {"d_min": 4} if scheme == "mask+" else {}
        found = [retrieve(rows, x, largest=10, scheme=scheme, **parameters) for _ in range(150)]
        for n in range(found[0].scheme.servers):
            q = found[0].field.q
            drawn = np.concatenate([f.views[n].query for f in found])
            expected = np.diff(np.ceil(np.linspace(0, q, 65))) * drawn.size / q
            counts = np.histogram(drawn, bins=np.ceil(np.linspace(0, q, 65)))[0]
            chi = float(((counts - expected) ** 2 / expected).sum())
            assert abs(chi - 63) < 10 * np.sqrt(2 * 63)


def test_two_questions_of_one_person_share_nothing() -> None:
    spir = make_spir(servers=2, collusion=1, length=1)
    scheme = make_scheme("baseline", largest=10, d=20)
    queries = [scheme.query(Question([5] * 20), Fresh()).tobytes() for _ in range(50)]
    records = [spir.query(200, 7, Fresh()).tobytes() for _ in range(50)]
    assert len(set(queries)) == len(set(records)) == 50
