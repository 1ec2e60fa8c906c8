"""Attempts of two servers: everything that can happen to them, who may ask about them, and peers that lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterveil.engine.party import Take
from counterveil.errors import Refused
from counterveil.service import attempts as machine
from counterveil.service.attempts import STEPS, Attempt, Attempts, key_of
from counterveil.service.ledger import GRACE, TABLE, Entry, Key, MemoryLedger, contract
from counterveil.service.ledger.contract import Row
from counterveil.service.link.frames import Begin, Frame, Opening, Ready, Run, Standing
from interleavings import ROUNDS, RUNS, Script, World, search
from ledgers import Clock

# Everything that can happen


def found(monkeypatch: pytest.MonkeyPatch, attempts: int, faults: int) -> Any:
    monkeypatch.setattr(contract, "MOST_ATTEMPTS", attempts)
    return search(attempts, faults)


def test_whatever_breaks_once_nothing_is_opened_or_released_twice_and_no_state_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = found(monkeypatch, 3, 1)
    assert (made.trouble, made.trace) == ("", [])
    assert made.ends == {"answered"}  # one fault costs one attempt at most
    made = found(monkeypatch, 2, 1)
    assert (made.trouble, made.trace) == ("", [])
    assert made.states > 1000


@pytest.mark.slow
def test_whatever_breaks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = found(monkeypatch, 2, 2)
    assert (made.trouble, made.trace) == ("", [])
    assert made.ends == {"answered", "given up"}
    assert made.states > 50_000


def promise_first(self: Attempt, reply: bytes) -> None:
    """Tell the peer before the promise is written."""
    self._say_held(self._line, b"", answer=False)
    self._ledger.perform(self._entry._replace(state="held", reply=reply))
    self.phase, self.reply = ("released" if self._peer_holds else "held"), reply


def open_first(self: Attempt, line: Any) -> bool:
    """Play on before the attempt is entered in the ledger."""
    self._line, self.phase = line, "running"
    return True


# without these steps, with these lines in the ledger's table, with these methods: what is found
CONTROLS: dict[str, tuple[list[Any], dict[Any, str], dict[str, Any], str]] = {
    "no answer to a peer that gave up": ([("held", "given up")], {}, {}, "a dead state"),
    "a promise is told once": ([("held", "opened")], {}, {}, "a dead state"),
    "a run has no end": ([("running", "lost"), ("running", "late")], {}, {}, "a dead state"),
    "what never began is not given up": (
        [],
        {(None, "given up"): "attempt_over"},
        {},
        "an applicant was sent away before the last attempt was given up",
    ),
    "a promise is told before it is written": (
        [],
        {},
        {"_hold": promise_first},
        "an attempt was released and given up",
    ),
    "openings leave before the ledger knows": (
        [],
        {},
        {"_spent": open_first},
        "a tape was opened before the ledger said so",
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_search_finds_what_is_wrong_with_other_machines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, table, methods, trouble = CONTROLS[name]
    for step in missing:
        monkeypatch.delitem(STEPS, step)
    for line, entry in table.items():
        monkeypatch.setitem(TABLE, line, entry)
    for method, other in methods.items():
        monkeypatch.setattr(Attempt, method, other)
    made = found(monkeypatch, 2, 1)
    assert made.trouble == trouble, made.trace
    assert made.trace


@pytest.mark.slow
def test_the_search_finds_promises_that_are_broken_and_attempts_that_begin_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TABLE, ("held", "given up"), "give up")
    monkeypatch.setitem(STEPS, ("held", "late"), "give_up")
    assert found(monkeypatch, 2, 2).trouble == "an attempt was released and given up"
    monkeypatch.setattr(contract, "_first", lambda rows, entry: Row(entry.state, entry.proof, 9, entry.holder, b"", 1))
    monkeypatch.setitem(TABLE, ("running", "running"), "enter")
    monkeypatch.setitem(TABLE, ("given up", "running"), "enter")
    assert found(monkeypatch, 2, 2).trouble


# One server, and a peer or somebody else who does as they like


class Pipe:
    """A connection to server 2, which a test plays."""

    number, boot = 2, bytes(16)

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def opened(self) -> list[bytes]:
        return [frame.data for frame in self.sent if isinstance(frame, Opening)]


class One:
    """Server 1 and what a test says to it."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.ledger = MemoryLedger(clock=self.clock)
        self.attempts, self.pipe = Attempts(1, self.ledger), Pipe()
        World.now = World(2, 0)  # the scripts report their openings to it
        World.now.books[1] = self  # type: ignore[assignment]

    def states(self) -> tuple[tuple[int, str], ...]:
        state = self.ledger.state(key_of(RUNS[0]))
        return ((0, state),) if state else ()

    def entry(self, who: bytes, attempt: int = 0) -> Entry:
        return Entry(key_of(RUNS[attempt]), "running", who + bytes([attempt]), 1000, holder=who)

    def begin(self, who: bytes = b"her", attempt: int = 0) -> Attempt:
        party: Any = Script(1, attempt)
        tape = np.zeros(1, dtype=np.uint8)
        made = Attempt(RUNS[attempt], 0, self.ledger, self.entry(who, attempt), party=party, tape=tape, most=3 * ROUNDS)
        self.attempts.start(made, [self.pipe])
        return made

    def hear(self, *said: Frame) -> None:
        for frame in said:
            self.attempts.heard(self.pipe, frame)

    def play(self, attempt: int = 0) -> None:
        """Say what an honest peer says, up to its last opening."""
        run = RUNS[attempt]
        self.hear(Ready(run), *(Opening(run, bytes([2, attempt, turn])) for turn in range(ROUNDS)))

    def collect(self, who: bytes = b"her", attempt: int = 0) -> Attempt:
        return self.attempts.collect(RUNS[attempt], 0, self.entry(who, attempt), [self.pipe])


def code(work: Any, *args: Any) -> str:
    with pytest.raises(Refused) as refused:
        work(*args)
    return refused.value.code


@pytest.mark.parametrize("phase", ["waiting", "running", "held", "released", "held, not in memory", "given up"])
def test_without_the_secret_nobody_collects_gives_up_or_goes_on(phase: str) -> None:
    """The other server has the ticket too. With this server's part it could read the record."""
    one = One()
    made = one.begin()
    if phase != "waiting":
        one.hear(Ready(RUNS[0]))
    if phase not in ("waiting", "running", "given up"):
        one.hear(*(Opening(RUNS[0], bytes([2, 0, turn])) for turn in range(ROUNDS)))
    if phase == "released":
        one.hear(Standing(RUNS[0], "held", False))
    if phase == "held, not in memory":
        one.attempts.drop(made)
    if phase == "given up":
        made.happen("late")
        one.attempts.drop(made)
    before = one.states()
    assert code(one.collect, b"him") == "ticket_used"
    assert one.states() == before
    if phase not in ("waiting", "running"):
        one.attempts.drop(made)
        assert one.begin(b"him", 1).refusal is None
        one.hear(Ready(RUNS[1]))
        him = one.attempts.get(RUNS[1])
        assert him is not None
        assert him.refusal is not None
        assert him.refusal.code == "ticket_used"
        one.attempts.drop(him)
    if phase == "given up":
        assert one.begin(b"her", 1).phase == "waiting"
        one.play(1)
        assert one.collect(b"her", 1).phase == "held"
    elif phase != "waiting":
        assert one.collect(b"her").reply == (None if phase == "running" else bytes([1, 0]))


def test_an_answer_is_collected_until_the_grace_ends() -> None:
    one = One()
    one.begin()
    one.play()
    one.attempts = Attempts(1, one.ledger)  # a new process
    one.clock.now = 1000 + GRACE - 1
    collected = one.collect()
    assert collected.phase == "held"
    assert one.pipe.sent[-1] == Standing(RUNS[0], "held", True)
    one.hear(Standing(RUNS[0], "held", False))
    assert (collected.phase, collected.reply) == ("released", bytes([1, 0]))
    assert code(one.begin(b"her", 1)._ledger.perform, one.entry(b"her", 1)) == "ticket_expired"
    one.attempts.drop(collected)
    one.clock.now = 1000 + GRACE
    assert code(one.collect) in ("ticket_expired", "attempt_over")


def test_openings_that_are_too_long_end_the_attempt() -> None:
    one = One()
    made = one.begin()
    one.hear(Ready(RUNS[0]), Opening(RUNS[0], bytes(3 * ROUNDS + 1)))
    assert made.refusal is not None
    assert made.refusal.code == "attempt_over"
    assert one.states() == ((0, "given up"),)
    assert one.pipe.sent[-1] == Standing(RUNS[0], "given up", False)


def test_a_peer_opens_nothing_before_its_time_and_nothing_twice() -> None:
    one = One()
    made = one.begin()
    one.hear(Opening(RUNS[0], bytes([2, 0, 0])), Begin(RUNS[0], b""))  # too early, and not for the leader
    assert (made.phase, one.pipe.opened()) == ("waiting", [])
    one.hear(Ready(RUNS[0]), Ready(RUNS[0]), Begin(RUNS[0], b""))
    assert (made.phase, one.pipe.opened()) == ("running", [bytes([1, 0, 0])])
    other = Pipe()
    one.attempts.heard(other, Opening(RUNS[0], bytes([2, 0, 0])))  # over a connection that it does not run over
    assert len(one.pipe.opened()) == 1
    one.play()
    assert (made.phase, len(one.pipe.opened())) == ("held", ROUNDS)
    one.play()
    assert (made.phase, len(one.pipe.opened()), other.sent) == ("held", ROUNDS, [])


def test_a_peer_has_no_say_in_runs_that_it_is_no_part_of() -> None:
    one = One()
    made = one.begin()
    pipe = Pipe()
    pipe.number = 3
    others = [Run(bytes(32), bytes(16), servers, 0) for servers in ((1, 2), (2, 3))]
    for run in others:
        for frame in (Ready(run), Begin(run, b""), Opening(run, b"x"), Standing(run, "given up", True)):
            one.attempts.heard(pipe, frame)
    assert (made.phase, pipe.sent, one.states()) == ("waiting", [], ())


def test_a_peer_cannot_push_out_what_another_said_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_EARLY", 3)
    one = One()
    pipe = Pipe()
    pipe.number = 3
    one.hear(Ready(RUNS[0]))
    for i in range(10):
        one.attempts.heard(pipe, Ready(Run(bytes(32), bytes([i]) * 16, (1, 3), 0)))
    assert one.begin().phase == "running"
    assert len(one.attempts._early[3]) == 3


@pytest.mark.parametrize("lie", ["held", "given up", "unknown", "running"])
@pytest.mark.parametrize("after", ["waiting", "running", "held", "released"])
def test_a_peer_that_lies_spoils_the_attempt_and_no_more(lie: Any, after: str) -> None:
    one = One()
    made = one.begin()
    if after == "running":
        one.hear(Ready(RUNS[0]))
    elif after != "waiting":
        one.play()
    if after == "released":
        one.hear(Standing(RUNS[0], "held", False))
    assert made.phase == after
    one.hear(Standing(RUNS[0], lie, True), Standing(RUNS[0], lie, False))
    one.play()
    assert len(one.pipe.opened()) == len(set(one.pipe.opened())) <= ROUNDS
    if after == "released":
        assert (made.phase, one.states()) == ("released", ((0, "held"),))
    elif after == "held" and lie in ("unknown", "running"):
        assert made.phase == "held"  # a promise stands
    one.attempts.drop(made)
    again = Attempt(RUNS[0], 0, one.ledger, one.entry(b"her"), party=Script(1, 0), tape=np.zeros(1, dtype=np.uint8))  # type: ignore[arg-type]
    one.attempts.start(again, [one.pipe])
    one.hear(Ready(RUNS[0]))
    if one.states():  # it began once, or was given up: it never begins again
        assert again.refusal is None or again.refusal.code in ("ticket_used", "attempt_over")
    assert len(one.pipe.opened()) == len(set(one.pipe.opened()))


def test_a_ledger_that_cannot_be_written_ends_the_attempt_without_a_failure() -> None:
    one = One()
    made = one.begin()
    one.ledger.close()
    one.hear(Ready(RUNS[0]))
    assert made.refusal is not None
    assert (made.refusal.code, one.pipe.sent) == ("not_ready", [])


def test_the_script_is_a_party() -> None:
    """The search stands on it: it sends, waits for as much as the peer sends, and returns its part."""
    World.now = World(2, 0)
    World.now.books[1].perform(Entry(Key(RUNS[0].ticket, (1, 2)), "running", b"", 9))
    script = Script(1, 0)
    script.send(None)
    assert isinstance(script.send(None), Take)
