"""What every ledger does: what was used stays used, and attempts follow the table, wherever it is kept."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from clusters import Cluster
from counterveil.errors import Refused
from counterveil.service.ledger import (
    GRACE,
    MOST_ATTEMPTS,
    MOST_SERVED,
    AnyLedger,
    Entry,
    Key,
    Ledger,
    MemoryLedger,
    Standing,
    State,
)
from counterveil.service.ledger.postgres import PostgresLedger
from ledgers import LATER, A, B, Clock, code, spend

PAIR = (1, 2)


class Books:
    """Makes ledgers of one kind, with one clock: at a path or at an address, or in memory if there is no place."""

    def __init__(self, place: Path | str | None) -> None:
        self.clock, self.place, self._made = Clock(1000), place, False
        self._kept = MemoryLedger(clock=self.clock)

    def open(self) -> AnyLedger:
        """Return the ledger: the one in memory, or another, opened anew."""
        if self.place is None:
            return self._kept
        new, self._made = not self._made, True
        kind = PostgresLedger if isinstance(self.place, str) else Ledger
        return kind(self.place, 1, new=new, clock=self.clock)  # type: ignore[arg-type]


LASTING = ["file", pytest.param("postgres", marks=pytest.mark.slow)]


def made(kind: str, request: pytest.FixtureRequest) -> Books:
    if kind == "postgres":
        primary: Cluster = request.getfixturevalue("replicated")[0]
        return Books(primary.new_database())
    return Books(request.getfixturevalue("tmp_path") / "l" if kind == "file" else None)


@pytest.fixture(params=["memory", *LASTING])
def books(request: pytest.FixtureRequest) -> Books:
    return made(request.param, request)


@pytest.fixture
def ledger(books: Books) -> Iterator[AnyLedger]:
    ledger = books.open()
    yield ledger
    ledger.close()


def again(books: Books, ledger: AnyLedger) -> AnyLedger:
    """Stop and start, where a ledger outlives that."""
    if books.place:
        ledger.close()
    return books.open()


def outcome(ledger: AnyLedger, entry: Entry) -> str:
    """Return the state that an entry led to, or why it was refused."""
    try:
        standing = ledger.perform(entry)
    except Refused as error:
        return error.code
    assert standing.state == entry.state == ledger.state(entry.key)
    return standing.state


def attempts(
    ledger: AnyLedger, ticket: bytes = b"id", run: tuple[int, ...] = PAIR, expires: int = LATER
) -> Callable[..., str]:
    """Return what performs an attempt of one ticket: its number, the state, whatever else is in the entry."""

    def attempt(number: int, state: State, proof: bytes = A, **more: object) -> str:
        entry = Entry(Key(ticket, run, more.pop("request", 0), number), state, proof, expires, **more)  # type: ignore[arg-type]
        return outcome(ledger, entry)

    return attempt


def test_the_same_bytes_may_come_again_and_others_may_not(books: Books, ledger: AnyLedger) -> None:
    assert spend(ledger, b"id") == Standing(True, "spent", b"")
    assert spend(ledger, b"id") == Standing(False, "spent", b"")
    assert code(ledger, b"id", 0, B) == "ticket_used"
    assert code(ledger, b"id", 1, B) == "ok"  # another request of the same ticket
    assert code(ledger, b"di", 0, B) == "ok"
    assert ledger.questions() == 2
    ledger = again(books, ledger)
    assert code(ledger, b"id", 0, B) == "ticket_used"
    assert (ledger.count(), ledger.questions()) == (3, 2)
    assert ledger.counts() == {"spent": 3, "running": 0, "held": 0, "given up": 0}
    ledger.close()


def test_a_request_is_served_so_often_and_no_more(books: Books, ledger: AnyLedger) -> None:
    assert [code(ledger, b"id", 0, A) for _ in range(40)] == ["ok"] * 40
    ledger = again(books, ledger)  # it does not start again at zero
    assert [code(ledger, b"id", 0, A) for _ in range(25)] == ["ok"] * (MOST_SERVED - 40) + ["too_often"]
    with pytest.raises(Refused, match="this request was sent again too often"):
        spend(ledger, b"id")
    assert code(ledger, b"id", 0, B) == "ticket_used"
    assert code(ledger, b"id", 1, A) == "ok"  # counted by itself
    if isinstance(ledger, Ledger):
        assert ledger._run("SELECT request, served FROM spent ORDER BY request") == [(0, MOST_SERVED), (1, 1)]
    assert ledger.questions() == 1
    ledger.close()


def test_a_purge_forgets_and_never_forgives(books: Books, ledger: AnyLedger) -> None:
    for i in range(100):
        assert code(ledger, b"%d" % i, 0, A, 1100 + i) == "ok"
    books.clock.now = 1150
    ledger.purge()
    assert ledger.count() == 49  # those that expire at 1151 and later
    assert code(ledger, b"new", 0, A, 1150) == "ticket_expired"
    books.clock.now = 10  # the clock goes back: the watermark does not
    ledger.purge()
    assert code(ledger, b"0", 0, B, 1100) == "ticket_expired"
    assert code(ledger, b"new", 0, A, 1150) == "ticket_expired"
    assert code(ledger, b"new", 0, A, 1151) == "ok"
    with pytest.raises(Refused, match="the clock is behind"):
        ledger.check()
    ledger = again(books, ledger)
    assert code(ledger, b"0", 0, B, 1120) == "ticket_expired"
    ledger.close()


def test_its_size_is_bounded_by_what_is_unexpired(books: Books, ledger: AnyLedger) -> None:
    for i in range(2000):
        books.clock.now += 1  # one ticket a second, each good for 100
        assert code(ledger, b"%d" % i, 0, A, int(books.clock.now) + 100) == "ok"
    assert ledger.count() <= 100 + 61  # and those of the minute between purges


def test_records_are_for_whoever_asked_and_come_after_the_question(ledger: AnyLedger) -> None:
    assert code(ledger, b"id", 1, A, LATER, b"h") == "question_first"
    assert code(ledger, b"id", 0, A, LATER, b"h") == "ok"
    assert code(ledger, b"id", 1, B, LATER, b"other") == "ticket_used"
    assert code(ledger, b"id", 1, B, LATER, b"h") == "ok"
    attempt = attempts(ledger, b"joint")
    assert attempt(0, "running", holder=b"h") == "running"
    assert attempt(0, "running", request=1, holder=b"h") == "question_first"  # not answered yet
    assert attempt(0, "held") == "held"
    assert attempt(0, "running", request=1, holder=b"other") == "ticket_used"
    assert attempt(0, "running", request=1, holder=b"h") == "running"


def test_threads_race_and_one_wins(ledger: AnyLedger) -> None:
    outcomes: list[list[str]] = []

    def race(which: int) -> None:
        proof = bytes([which]) * 32
        spent = [code(ledger, b"%d" % i, 0, proof) for i in range(50)]
        outcomes.append(spent + [attempts(ledger, b"joint %d" % i)(0, "running", proof) for i in range(50)])

    racers = [threading.Thread(target=race, args=(n,)) for n in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    results = [sorted(each) for each in zip(*outcomes, strict=True)]
    assert results == [["ok", *["ticket_used"] * 3]] * 50 + [["running", *["ticket_used"] * 3]] * 50
    assert ledger.questions() == 100


def test_an_attempt_begins_once_and_after_the_one_before_was_given_up(books: Books, ledger: AnyLedger) -> None:
    attempt = attempts(ledger)
    assert attempt(1, "running") == "attempt_first"
    assert attempt(0, "running") == "running"
    assert attempt(0, "running") == "ticket_used"  # the same bytes too: nothing is run twice
    assert attempt(1, "running") == "attempt_first"
    assert attempt(0, "given up") == attempt(0, "given up") == "given up"
    ledger = again(books, ledger)
    attempt = attempts(ledger)
    assert attempt(0, "running") == attempt(0, "held") == "attempt_over"
    for number in range(1, MOST_ATTEMPTS):
        assert attempt(number + 1, "running") in ("attempt_first", "too_often")
        assert attempt(number, "running") == "running"
        assert attempt(number, "given up") == "given up"
    assert attempt(MOST_ATTEMPTS, "running") == attempt(MOST_ATTEMPTS, "given up") == "too_often"
    assert attempt(-1, "given up") == "too_often"
    assert ledger.counts() == {"spent": 0, "running": 0, "held": 0, "given up": MOST_ATTEMPTS}
    assert ledger.questions() == 1
    ledger.close()


def test_a_reply_is_held_and_collected_by_whoever_asked(books: Books, ledger: AnyLedger) -> None:
    attempt, held = attempts(ledger), Entry(Key(b"id", PAIR), "held", A, LATER)
    assert attempt(0, "held", reply=b"record") == "attempt_over"  # it never began
    assert attempt(0, "running") == "running"
    assert attempt(0, "held", B, reply=b"record") == "ticket_used"
    assert ledger.perform(held._replace(reply=b"record")) == Standing(True, "held", b"record")
    assert ledger.perform(held._replace(reply=b"other")) == Standing(False, "held", b"record")
    ledger = again(books, ledger)
    attempt = attempts(ledger)
    for _ in range(MOST_SERVED + 1):
        assert ledger.perform(held) == Standing(False, "held", b"record")
    assert attempt(0, "held", B) == "ticket_used"
    assert attempt(0, "running") == attempt(0, "spent") == "ticket_used"
    ledger.close()


def test_what_is_held_is_given_up_only_after_the_peer_gave_it_up(ledger: AnyLedger) -> None:
    attempt = attempts(ledger)
    assert attempt(0, "running") == "running"
    assert attempt(0, "held", reply=b"record") == "held"
    for peer in (None, *(state for state in get_args(State) if state != "given up")):
        assert attempt(0, "given up", peer=peer) == "attempt_held"
    assert attempt(1, "running") == "attempt_first"
    assert attempt(0, "given up", b"", peer="given up") == "given up"
    assert attempt(0, "held") == "attempt_over"
    assert ledger.perform(Entry(Key(b"id", PAIR), "given up", b"", LATER)).reply == b""  # it is not kept
    assert attempt(1, "running") == "running"


def test_what_never_began_may_be_given_up(ledger: AnyLedger) -> None:
    attempt = attempts(ledger)
    assert attempt(0, "given up", b"") == "given up"
    assert ledger.questions() == 0
    assert attempt(0, "running") == "attempt_over"
    assert attempt(1, "running") == "running"
    assert attempt(1, "held") == "held"
    assert ledger.questions() == 1
    assert attempt(5, "given up", b"") == "given up"
    assert attempt(6, "running") == "attempt_first"  # one is held: nothing begins after it
    assert ledger.state(Key(b"id", PAIR, 0, 6)) is None


def test_an_attempt_that_began_in_time_may_end_within_the_grace(books: Books, ledger: AnyLedger) -> None:
    attempt = attempts(ledger, expires=1100)
    other = attempts(ledger, b"other", expires=1100)
    assert attempt(0, "running") == other(0, "running") == "running"
    books.clock.now = 1100
    ledger.purge()
    assert other(0, "given up") == "given up"
    assert other(1, "running") == "ticket_expired"
    assert attempts(ledger, b"third", expires=1100)(0, "given up") == "given up"
    assert attempt(0, "held", reply=b"record") == "held"
    books.clock.now = 1099 + GRACE
    ledger.purge()
    assert attempt(0, "held") == "held"
    assert ledger.count() == 3
    books.clock.now = 1100 + GRACE
    assert attempt(0, "held") == "ticket_expired"
    ledger.purge()
    assert ledger.count() == 0
    books.clock.now = 1000  # whatever the clock says
    for state in get_args(State):
        assert attempt(0, state) == "ticket_expired"


def test_a_ticket_is_for_servers_that_talk_or_for_servers_that_do_not(ledger: AnyLedger) -> None:
    assert code(ledger, b"one", 0, A) == "ok"
    assert attempts(ledger, b"one")(0, "running") == attempts(ledger, b"one")(0, "given up") == "ticket_used"
    assert attempts(ledger, b"two")(0, "given up") == "given up"
    assert code(ledger, b"two", 0, A) == "ticket_used"
    for run in (PAIR, (1, 3)):  # several pairs may work on one ticket
        assert attempts(ledger, b"three", run)(0, "running") == "running"
    assert attempts(ledger, b"three", (1, 3))(0, "held") == "held"
    assert attempts(ledger, b"three")(0, "given up") == "given up"
    assert ledger.questions() == 2
    for ticket, servers in ((b"four", ()), (b"five", PAIR)):
        assert attempts(ledger, ticket, servers)(0, "spent") == "spent"
        assert attempts(ledger, ticket, servers)(0, "given up") == "ticket_used"


def test_a_closed_ledger_enters_nothing(ledger: AnyLedger) -> None:
    ledger.check()
    ledger.close()
    assert code(ledger, b"id", 0, A) == "not_ready"
    uses: list[Callable[[], object]] = [ledger.check, lambda: ledger.state(Key(b"id"))]
    for use in uses:
        with pytest.raises(Refused, match="the ledger cannot be written"):
            use()
    assert len(ledger.instance) == 16


@pytest.mark.parametrize("kind", LASTING)
def test_all_kinds_always_say_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    """Entries of all sorts in a random order, with a clock that jumps and restarts in between."""
    draw, books = random.Random(1), [made(kind, request), Books(None)]
    ledgers = [each.open() for each in books]
    seen = set()
    for _ in range(3000):
        run, state = draw.choice([(), PAIR, PAIR, (1, 3)]), draw.choice(get_args(State))
        key = Key(draw.choice([b"1", b"2", b"3", b"4"]), run, draw.choice([0, 0, 0, 1]), draw.choice([0, 0, 1, 2, 16]))
        proof, holder = draw.choice([A, A, A, B]), draw.choice([b"h", b"h", b"h", b"g"])
        peer: State | None = draw.choice([None, "held", "given up"])
        expires = int(books[0].clock.now) + draw.randrange(-2 * GRACE, 4 * GRACE)
        entry = Entry(key, state, proof, expires, draw.choice([b"x", b"y"]), holder, peer)
        told = [outcome(each, entry) for each in ledgers]
        seen.add(told[0])
        if draw.random() < 0.02:
            now = books[0].clock.now + draw.randrange(-GRACE, 2 * GRACE)
            for each in books:
                each.clock.now = now
            for ledger in ledgers:
                ledger.purge()
        if draw.random() < 0.01:
            ledgers = [again(each, ledger) for each, ledger in zip(books, ledgers, strict=True)]
        assert told[0] == told[1], entry
        assert ledgers[0].counts() == ledgers[1].counts()
        assert ledgers[0].questions() == ledgers[1].questions()
    assert seen == {*get_args(State), "ticket_expired", "ticket_used", "question_first", "too_often"} | {
        "attempt_over",
        "attempt_first",
        "attempt_held",
    }
    ledgers[0].close()
