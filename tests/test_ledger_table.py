"""The ledger's state table: all that two servers can do with it, and that the document shows the same table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from counterveil.errors import Refused
from counterveil.service.ledger import TABLE, Entry, Key, State, contract
from counterveil.service.ledger.contract import REFUSALS, Row

pytestmark = pytest.mark.slow

ATTEMPTS = 3  # in place of 16
States = tuple[State | None, ...]


@cache
def allows(states: States, attempt: int, state: State, peer: State | None) -> bool:
    """Whether a ledger allows an entry, from what it holds of all attempts."""
    rows = {Key(b"", (1, 2), 0, a): Row(s, b"", 9, b"", b"", 1) for a, s in enumerate(states) if s}
    try:
        contract.decide(rows, Entry(Key(b"", (1, 2), 0, attempt), state, b"", 9, peer=peer), now=0)
    except Refused:
        return False
    return True


class Server(NamedTuple):
    """One of two servers: what its ledger holds of each attempt, and what else matters of its past."""

    states: States = (None,) * ATTEMPTS
    told: frozenset[tuple[int, State]] = frozenset()  # what it may have told the peer: whatever was ever durable
    alive: frozenset[int] = frozenset()  # attempts whose inputs it still has in memory
    begun: tuple[int, ...] = (0,) * ATTEMPTS  # how often each was begun
    released: frozenset[int] = frozenset()

    def perform(self, attempt: int, state: State, peer: State | None = None) -> Server | None:
        """Return the server after an entry that the table allows and that changes something."""
        if not allows(self.states, attempt, state, peer):
            return None
        states = (*self.states[:attempt], state, *self.states[attempt + 1 :])
        return self._replace(states=states, told=self.told | {(attempt, state)})


def steps(me: Server, peer: Server) -> Iterator[Server | None]:
    """Yield all that one server may do next. A message may be lost: then the step that it causes does not come.

    A message may also be late. So a server may hear whatever was ever durable at its peer.
    """
    yield me._replace(alive=frozenset())  # a crash
    for a in range(ATTEMPTS):
        if begun := me.perform(a, "running"):
            times = (*me.begun[:a], me.begun[a] + 1, *me.begun[a + 1 :])
            yield begun._replace(alive=begun.alive | {a}, begun=times)
        if a in me.alive and peer.begun[a]:
            yield me.perform(a, "held")
        yield me.perform(a, "given up")
        if (a, "given up") in peer.told:
            yield me.perform(a, "given up", peer="given up")
        if (a, "held") in peer.told and me.states[a] == "held":
            yield me._replace(released=me.released | {a})


Pair = tuple[Server, Server]


def trouble() -> str:
    """Search all that two servers can do; return the first thing that must not be, or nothing."""
    allows.cache_clear()
    seen: dict[Pair, list[Pair]] = {}
    todo = [(Server(), Server())]
    while todo:
        pair = todo.pop()
        if pair in seen:
            continue
        one, two = pair
        if len(one.released | two.released) > 1:
            return "two attempts were released"
        if any("given up" in (one.states[a], two.states[a]) for a in one.released | two.released):
            return "an attempt was released and given up"
        if max(one.begun + two.begun) > 1:
            return "an attempt was begun twice"
        seen[pair] = [(next_one, two) for next_one in steps(one, two) if next_one]
        seen[pair] += [(one, next_two) for next_two in steps(two, one) if next_two]
        todo += seen[pair]
    before: dict[Pair, list[Pair]] = {}
    for pair, followers in seen.items():
        for follower in followers:
            if not is_idle(pair, follower):
                before.setdefault(follower, []).append(pair)
    todo = [pair for pair in seen if is_over(*pair)]
    assert {bool(one.released) for one, _ in todo} == {True, False}  # both ends were reached
    lively = set(todo)
    while todo:
        for pair in before.get(todo.pop(), []):
            if pair not in lively:
                lively.add(pair)
                todo.append(pair)
    return "" if len(lively) == len(seen) else "a dead state"


def is_idle(pair: Pair, follower: Pair) -> bool:
    """Whether a server begins what its peer has given up: it may, but no applicant who went on sends it that."""
    return any(
        (a, "given up") in peer.told and old.begun[a] < new.begun[a]
        for old, new, peer in zip(pair, follower, reversed(pair), strict=True)
        for a in range(ATTEMPTS)
    )


def is_over(one: Server, two: Server) -> bool:
    """Whether both released the same attempt, or both gave up the last."""
    if one.released or two.released:
        return one.released == two.released
    return one.states[-1] == two.states[-1] == "given up"


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "MOST_ATTEMPTS", ATTEMPTS)


def test_nothing_is_released_twice_and_no_state_is_dead() -> None:
    assert trouble() == ""


@pytest.mark.parametrize(
    ("held", "wanted", "step", "found"),
    [
        ("held", "given up", "give up", "an attempt was released and given up"),  # a promise that is broken
        ("held", "given up", "ticket_used", "a dead state"),  # the peer gave up, and this one never may
        (None, "given up", "attempt_over", "a dead state"),  # the peer waits for one that never began
        ("given up", "running", "enter", "an attempt was begun twice"),
        ("given up", "held", "hold", "an attempt was released and given up"),
        ("running", "given up", "follow the peer", "a dead state"),
    ],
)
def test_the_search_finds_what_is_wrong_with_other_tables(
    monkeypatch: pytest.MonkeyPatch, held: State | None, wanted: State, step: str, found: str
) -> None:
    monkeypatch.setitem(TABLE, (held, wanted), step)
    assert trouble() == found


def test_the_search_finds_attempts_that_begin_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of attempts is no line of the table: without it two are released."""
    monkeypatch.setattr(contract, "_first", lambda rows, entry: Row(entry.state, b"", 9, b"", b"", 1))
    assert trouble() == "two attempts were released"


def test_the_table_is_whole_and_the_document_shows_it() -> None:
    states = (*get_args(State),)
    assert set(TABLE) == {(held, wanted) for held in (None, *states) for wanted in states}
    text = (Path(__file__).parents[1] / "docs" / "ledger.md").read_text()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    header = next(i for i, row in enumerate(rows) if row[0] == "held \\ wanted")
    assert rows[header][1:] == list(states)
    shown = {
        (None if row[0] == "nothing" else row[0], wanted): cell.strip("`")
        for row in rows[header + 2 : header + 7]
        for wanted, cell in zip(states, row[1:], strict=True)
    }
    assert shown == TABLE
    described = set(re.findall(r"^- \*\*(.+?)\*\*:", text, flags=re.M))
    assert described >= {step for step in TABLE.values() if step not in REFUSALS}
    assert set(re.findall(r"`(attempt_\w+)`", text)) == {code for code in REFUSALS if code.startswith("attempt_")}
