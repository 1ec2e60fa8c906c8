"""Database privacy, enumerated: whatever the queries, the answers tell the value at 0 and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from counterveil import FORMS, REVEALS, Scheme
from counterveil.algebra.arrays import Bytes, Vector
from counterveil.schemes.fetch import Polynomials, Subsets
from counterveil.schemes.forms import make_form
from counterveil.schemes.reveals import Opened, make_reveal
from enumeration import Fixed, database_private, feasible, rows_for, tiny

OPENED = [name for name, reveal in REVEALS.items() if isinstance(reveal, Opened)]  # others: test_sealed, test_immutable
LARGE = ("weighted", "fixed", "even_norm")
PAIRS = [
    pytest.param(form, reveal, shuffle, marks=[pytest.mark.slow] if form in LARGE else [])
    for form, kind in FORMS.items()
    for reveal in OPENED
    for shuffle in (False, True)
    if feasible(kind.example().form, reveal)
]


def test_every_form_is_enumerated() -> None:
    """Two are too large under masked differences. Their algebra is that of `linear` and of `weighted`."""
    left_out = {(form, reveal) for form in FORMS for reveal in OPENED} - {pair.values[:2] for pair in PAIRS}
    assert left_out == {("even_norm", "masked_differences"), ("fixed", "masked_differences")}


@pytest.mark.parametrize(("form", "reveal", "shuffle"), PAIRS)
def test_answers_tell_the_value_at_0_and_nothing_else(form: str, reveal: str, shuffle: bool) -> None:
    scheme = tiny(FORMS[form].example().form, reveal, shuffle=shuffle)
    assert database_private(scheme, rows_for(scheme))


@pytest.mark.parametrize("collusion", [1, 2])
@pytest.mark.parametrize("reveal", ["distances", "differences"])
def test_so_it_is_with_a_third_server(reveal: str, collusion: int) -> None:
    form, shown = make_form("euclidean", largest=1, d=1), make_reveal(reveal)
    scheme = Scheme.of(form, shown, servers=3, collusion=collusion)
    assert database_private(scheme, 1 if reveal == "distances" else 2)


@pytest.mark.parametrize("form", FORMS)
def test_control_without_common_randomness_they_tell_more(form: str) -> None:
    scheme = tiny(FORMS[form].example().form, "differences")
    assert not database_private(scheme, 2, unfilled=range(1, scheme.servers))


@pytest.mark.parametrize("unfilled", [1, 2])
@pytest.mark.parametrize("form", ["weighted", "euclidean"])
def test_control_with_one_coefficient_unfilled_they_tell_more(form: str, unfilled: int) -> None:
    scheme = tiny(FORMS[form].example().form, "differences", servers=3)
    assert not database_private(scheme, 2, unfilled=[unfilled])


class Pads:
    """Record pads that are given, the same for every request."""

    def __init__(self, pads: list[Vector]) -> None:
        self.pads = pads

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        assert (purpose, q, count) == ("record", 256, len(self.pads[0]))
        return self.pads[max(0, coefficient - 1)]

    def order(self, count: int) -> Any:
        raise AssertionError("no order is asked for")


def subset_answers(servers: int, prepared: Bytes, position: int, pads: range) -> list[Counter[Any]]:
    """For each byte of a part, the servers' answers together, counted over every honest query and every pad."""
    spir = Subsets(servers, length=prepared.shape[1])
    part = spir.part
    counters: list[Counter[Any]] = [Counter() for _ in range(part)]
    for noise in range(2 ** (len(prepared) * spir.parts)):
        queries = spir.query(len(prepared), position, Fixed([noise]))
        for pad in pads:
            common = Pads([np.full(part, pad)])
            answers = [spir.answer(n, prepared, Q, common) for n, Q in enumerate(queries, start=1)]
            for c in range(part):
                counters[c][tuple(int(a[c]) for a in answers)] += 1
    return counters


@pytest.mark.parametrize(("servers", "width"), [(2, 2), (3, 34)])
def test_record_answers_depend_on_the_record_fetched_alone(servers: int, width: int) -> None:
    rng = np.random.default_rng(7)
    first, second = (rng.integers(0, 256, (2, width), dtype=np.uint8) for _ in range(2))
    second[0] = first[0]
    pads = range(256)
    assert subset_answers(servers, first, 0, pads) == subset_answers(servers, second, 0, pads)
    assert subset_answers(servers, first, 1, pads) != subset_answers(servers, second, 1, pads)
    assert subset_answers(servers, first, 0, range(1)) != subset_answers(servers, second, 0, range(1))


def byte_answers(records: list[int], position: int, pads: list[Vector]) -> Counter[Any]:
    """Three servers' answers for one byte, counted over all 65,536 pairs of pads, one in each column."""
    spir = Polynomials(servers=3, collusion=2, length=65536)
    prepared = np.repeat(np.array(records, dtype=np.uint8)[:, None], 65536, axis=1)
    queries = spir.query(len(records), position, Fixed([17, 99, 3, 250, 8, 120]))
    answers = [spir.answer(n, prepared, Q, Pads(pads)) for n, Q in enumerate(queries, start=1)]
    return Counter(zip(*[a.tolist() for a in answers], strict=True))


def test_record_answers_over_bytes_depend_on_the_record_fetched_alone() -> None:
    every = [np.repeat(np.arange(256), 256), np.tile(np.arange(256), 256)]
    none = [np.zeros(65536, dtype=np.int64)] * 2
    first, second = [5, 200, 31], [90, 200, 7]
    assert byte_answers(first, 1, every) == byte_answers(second, 1, every)
    assert byte_answers(first, 0, every) != byte_answers(second, 0, every)
    assert byte_answers(first, 1, none) != byte_answers(second, 1, none)
    assert byte_answers(first, 1, [every[0], none[0]]) != byte_answers(second, 1, [every[0], none[0]])
