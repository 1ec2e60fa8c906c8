"""The engine's contracts: plans and jobs travel to other processes, and rows held there give the same values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
import pytest

from counterveil import Question, make_scheme
from counterveil.algebra.arrays import Vector
from counterveil.algebra.field import Ring
from counterveil.crypto.randomness import Fresh
from counterveil.engine import Plan, as_rows, lay_out
from counterveil.engine.contract import Jobs
from counterveil.engine.hosting import Answer, Home, Meet, Part, Script, advanced, in_step
from counterveil.engine.party import Enter, Party, Send, Take, chained, entered, play
from counterveil.errors import Stalled
from counterveil.schemes.protocols import Held

T = TypeVar("T")
BYTES = Ring(256)


def _scanned(codes: Any, plan: bytes) -> Vector:
    return as_rows(codes).scan(pickle.loads(plan))  # noqa: S301 - our own


class Elsewhere:
    """Rows in two other processes, half of them in each, as shards would hold them."""

    def __init__(self, codes: Any, pool: ProcessPoolExecutor) -> None:
        self._parts, self._pool = np.array_split(codes, 2), pool

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        sent = pickle.dumps(plan)
        waiting = [self._pool.submit(_scanned, part, sent) for part in self._parts]
        return lambda: np.concatenate([each.result() for each in waiting])

    def scan(self, plan: Plan) -> Vector:
        return self.begin(plan)()

    def host(self, plan: Plan, jobs: Jobs[T], meet: Meet) -> Party[list[T]]:
        """Play a job over each half, in step."""
        values, ends = self.scan(plan), [0, len(self._parts[0]), len(self)]
        scripts = [jobs(first, last)(values[first:last]) for first, last in pairwise(ends)]
        return in_step(lambda pieces: [advanced(*each) for each in zip(scripts, pieces, strict=True)], 2, meet)


@pytest.mark.parametrize("name", ["baseline", "diff+", "linear-diff", "table/differences", "table/sealed"])
def test_rows_in_other_processes_give_the_same_answer(name: str) -> None:
    rng = np.random.default_rng(3)
    scheme = make_scheme(name, largest=9, d=4)
    codes = scheme.form.load(rng.integers(0, 10, (301, 4)))
    common = scheme.common(bytes(32), bytes(32), b"ticket")
    queries = scheme.query(Question(rng.integers(0, 10, 4)), Fresh())
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for n, query in enumerate(queries, start=1):
            here = scheme.answer(n, codes, query, common)
            assert np.array_equal(scheme.answer(n, Elsewhere(codes, pool), query, common), here)
            assert np.array_equal(scheme.answer(n, lay_out(codes), query, common), here)


@dataclass(frozen=True)
class Shifted:
    """A job that says its values, and returns the number of its first row and what it was answered."""

    first: int

    def __call__(self, values: Vector, home: Home | None = None) -> Script[tuple[int, list[int]]]:
        (answer,) = yield Part("values", values)
        return self.first, [int(v) for v in answer]


def test_jobs_travel_to_the_rows_and_say_one_thing_together() -> None:
    codes = np.arange(5, dtype=np.uint8).reshape(5, 1)
    plan = Plan("polynomial", Ring(1 << 20), (np.ones(1, dtype=np.int64),), 9)

    def job(first: int, last: int) -> Shifted:
        return pickle.loads(pickle.dumps(Shifted(first)))  # type: ignore[no-any-return]  # noqa: S301 - our own

    def meet(part: Part) -> Party[Answer]:
        yield Send(1, part.values.astype(np.uint8), BYTES)
        return ((yield Take(1, part.values.size, BYTES)),)

    def other(count: int) -> Party[list[int]]:
        got = yield Take(0, count, BYTES)
        yield Send(0, got + 10, BYTES)
        return [int(v) for v in got]

    whole = play({0: as_rows(codes).host(plan, job, meet), 1: other(5)})
    assert whole == {0: [(0, [10, 11, 12, 13, 14])], 1: [0, 1, 2, 3, 4]}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        halves = play({0: Elsewhere(codes, pool).host(plan, job, meet), 1: other(5)})
    assert halves == {0: [(0, [10, 11, 12]), (3, [13, 14])], 1: [0, 1, 2, 3, 4]}  # the other sees the same


# --- parties --------------------------------------------------------------------------------------------------------


def waiting(source: Any) -> Party[None]:
    yield Take(source, 3, BYTES)


def speaking(to: Any, count: int) -> Party[None]:
    yield Send(to, np.zeros(count, dtype=np.uint8), BYTES)


def test_who_waits_for_whom_is_named() -> None:
    with pytest.raises(Stalled, match=r"0 waits for 3 symbols of 1, and has 0; 1 waits for 3 symbols of 0, and has 2"):
        play({0: chained([speaking(1, 2), waiting(1)]), 1: waiting(0)})
    with pytest.raises(Stalled, match="1 ended without taking all"):
        play({0: speaking(1, 4), 1: waiting(0)})
    with pytest.raises(Stalled, match="dealer, who does not take part"):
        play({0: speaking("dealer", 1)})


def test_messages_may_be_taken_in_other_pieces_than_they_were_sent() -> None:
    def sending() -> Party[None]:
        for part in (np.arange(3), np.arange(3, 4), np.arange(4, 9)):
            yield Send(1, part, BYTES)

    def taking() -> Party[list[list[int]]]:
        got = []
        for size in (1, 5, 0, 3):
            piece = yield Take(0, size, BYTES)
            got.append(piece.tolist())
        return got

    assert play({0: sending(), 1: taking()})[1] == [[0], [1, 2, 3, 4, 5], [], [6, 7, 8]]


@pytest.mark.parametrize("name", ["table/differences", "table/sealed"])
def test_every_server_enters_after_its_input_and_before_it_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = make_scheme(name, largest=4, d=2)
    rows, log = as_rows(scheme.form.load([[1, 2], [3, 4], [0, 0]])), list[str]()
    common = scheme.common(bytes(32), bytes(32), b"ticket")

    def drawn(_: tuple[int, ...]) -> Any:
        log.append("computes")
        return common

    for seat in (0, 1):
        log.clear()
        party = entered(scheme.answering(seat, 0, Held(rows, None, drawn)), "entry")
        effect = next(party)
        assert isinstance(effect, Take)
        assert party.send(np.zeros(effect.count, dtype=np.int64)) == Enter("entry")
        assert log == []
        assert isinstance(next(party), Send)
        assert log[0] == "computes"


def test_a_party_that_speaks_first_enters_before_that() -> None:
    party = entered(speaking(1, 1), "entry")
    assert next(party) == Enter("entry")
    assert isinstance(next(party), Send)
