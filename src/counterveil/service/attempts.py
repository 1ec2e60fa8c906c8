"""Attempts: two servers compute an answer together, promise it to each other, and release it to the applicant.

An attempt waits until both servers have their whole input. Of the two servers, the one with the lower number leads: the
other one says "ready", and the leader says "begin". Both write "running" to their ledgers before they send anything
that depends on the question. A run that breaks off is given up, and never resumed: a second opening under the same mask
would tell the xor of two values.

A server whose part is complete writes "held", with the part itself, and then tells its peer. That is a promise. If both
hold, both release. A server that holds gives up only after its peer has told that it durably did.

`STEPS` is the whole machine. There are no threads, sockets or clocks in this module: `meeting` brings those.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, Protocol

import numpy as np

from ..algebra.arrays import Bytes
from ..engine.party import Party, Send, Take
from ..errors import Refused
from .ledger import AnyLedger, Entry, Key
from .link.frames import Begin, Frame, Opening, Ready, Run, Standing

PIECE = 1 << 20  # bytes: the most that one frame brings of an opening
_EARLY = 1024  # runs that one other server is ready for, and whose input has not arrived here yet

Phase = Literal["waiting", "running", "held", "released", "over"]
Event = Literal["ready", "begin", "tape", "opening", "held", "given up", "unknown", "opened", "lost", "left", "late"]

STEPS: dict[tuple[Phase, Event], str] = {  # anything else changes nothing
    ("waiting", "opened"): "say_ready",
    ("waiting", "ready"): "begin",
    ("waiting", "tape"): "begin",
    ("waiting", "begin"): "join",
    ("waiting", "given up"): "give_up",
    ("waiting", "lost"): "part",
    ("waiting", "left"): "leave",  # nothing began, so nothing is spent
    ("waiting", "late"): "leave",
    ("running", "opening"): "play",
    ("running", "held"): "note",
    ("running", "given up"): "give_up",
    ("running", "unknown"): "give_up",  # the peer has not begun, and no longer has its input
    ("running", "lost"): "give_up",
    ("running", "late"): "give_up",
    ("held", "opened"): "say_held",
    ("held", "held"): "release",
    ("held", "given up"): "follow",
    ("held", "late"): "stop_waiting",
}


class Line(Protocol):
    """An open connection to a process of the other server. `send` keeps the order, and does not wait."""

    @property
    def number(self) -> int: ...
    @property
    def boot(self) -> bytes: ...
    def send(self, frame: Frame) -> None: ...


class Tapes(Protocol):
    """One-time randomness that a dealing server has sent ahead."""

    def pick(self, peer: bytes, terms: bytes) -> tuple[bytes, Bytes] | None:
        """Remove and return a tape for these terms whose other half that process has: its name, and its bytes."""

    def claim(self, peer: bytes, terms: bytes, name: bytes) -> Bytes | None:
        """Remove and return the tape of that name, if it is for these terms."""


class Attempt:
    """One attempt at this server, from its input to its end.

    Parameters
    ----------
    party : this server's party, which waits for its tape.
    tape : the tape, if the applicant dealt it.
    tapes : where the tape comes from, if a server deals.
    entry : the entry "running" of this attempt, for the ledger.
    most : bytes that the peer opens in a whole run.
    """

    def __init__(
        self,
        run: Run,
        seat: int,
        ledger: AnyLedger,
        entry: Entry,
        *,
        party: Party[Bytes] | None = None,
        tape: Bytes | None = None,
        tapes: Tapes | None = None,
        most: int = 0,
    ) -> None:
        self.run, self.leads, self.peer = run, seat == 0, run.servers[1 - seat]
        self._ledger, self._entry, self._party, self._tape, self._tapes = ledger, entry, party, tape, tapes
        self.phase: Phase = "waiting"
        self.reply: bytes | None = None  # this server's part of the answer, once it is held
        self.refusal: Refused | None = None  # why there is no answer
        self.rounds, self.received = 0, 0
        self._line: Line | None = None  # the connection that the attempt runs over
        self._inbox, self._most = bytearray(), most
        self._wanted: Take | None = None
        self._peer_holds = False

    @property
    def ended(self) -> bool:
        """Whether there is an answer to release, or a refusal."""
        return self.phase == "released" or self.refusal is not None

    def runs_over(self, line: Line) -> bool:
        """Whether the attempt runs over this connection."""
        return self._line is line

    def is_of(self, entry: Entry) -> bool:
        """Whether the entry comes from the sender of this attempt: only the sender knows the secret (rule 13)."""
        return self._entry.proof == entry.proof

    def hold(self, reply: bytes) -> None:
        """Take up a part that the ledger holds, of an attempt that another process, or an earlier one, completed."""
        self.phase, self.reply = "held", reply

    def happen(self, event: Event, line: Line | None = None, data: bytes = b"") -> None:
        """Take the step that follows an event, if any does."""
        step = STEPS.get((self.phase, event))
        if step is not None and not self.ended:
            getattr(self, f"_{step}")(line, data)

    # --- the steps --------------------------------------------------------------------------------------------------

    def _say_ready(self, line: Line, _: bytes) -> None:
        if not self.leads:
            _tell(line, Ready(self.run))

    def _part(self, line: Line, _: bytes) -> None:
        self._line = None  # the peer says again that it is ready

    def _begin(self, line: Line | None, _: bytes) -> None:
        line = self._line = line or self._line
        if line is None or not self.leads:
            return
        name = b""
        if self._tapes is not None:
            picked = self._tapes.pick(line.boot, self.run.terms)
            if picked is None:
                return  # until a tape arrives
            name, self._tape = picked
        if self._spent(line):
            _tell(line, Begin(self.run, name))
            self._play_on(self._tape)

    def _join(self, line: Line, name: bytes) -> None:
        if self.leads:
            return
        if self._tapes is not None:
            self._tape = self._tapes.claim(line.boot, self.run.terms, name)
        if self._tape is None:
            self._give_up(line, b"")
        elif self._spent(line):
            self._play_on(self._tape)

    def _spent(self, line: Line) -> bool:
        """Enter the attempt in the ledger, durably, before anything leaves that depends on the question."""
        self._line = line
        try:
            self._ledger.perform(self._entry)
        except Refused as error:
            self._end(error)
            tell_state(line, self.run, self._ledger)
            return False
        self.phase = "running"
        return True

    def _play(self, line: Line, data: bytes) -> None:
        if line is not self._line:
            return
        self._inbox += data
        self.received += len(data)
        if self.received > self._most:
            self._give_up(line, b"")
        elif self._wanted is not None and len(self._inbox) >= self._wanted.count:
            self._play_on(self._take(self._wanted))

    def _take(self, take: Take) -> Any:
        taken = np.frombuffer(bytes(self._inbox[: take.count]), dtype=np.uint8)
        del self._inbox[: take.count]
        return take.check(taken)

    def _play_on(self, received: Any) -> None:
        """Resume the party until it must wait for the peer."""
        if self._party is None or self._line is None:
            raise AssertionError("an attempt that runs has a party and a connection")
        self._tape, self._wanted = None, None
        try:
            while True:
                effect = self._party.send(received)
                if isinstance(effect, Send):
                    data, received = effect.symbols.tobytes(), None
                    self.rounds += 1
                    for start in range(0, len(data), PIECE):
                        self._line.send(Opening(self.run, data[start : start + PIECE]))
                elif isinstance(effect, Take) and len(self._inbox) >= effect.count:
                    received = self._take(effect)
                elif isinstance(effect, Take):
                    self._wanted = effect
                    return
        except StopIteration as end:
            self._hold(end.value.tobytes())
        except Refused:  # the connection is gone
            self._give_up(self._line, b"")

    def _hold(self, reply: bytes) -> None:
        """Promise this server's part: write it, then tell the peer."""
        try:
            self._ledger.perform(self._entry._replace(state="held", reply=reply))
        except Refused as error:
            self._end(error)
            tell_state(self._line, self.run, self._ledger)
            return
        self.phase, self.reply = "held", reply
        self._say_held(self._line, b"", answer=False)
        if self._peer_holds:
            self.phase = "released"

    def _note(self, line: Line, _: bytes) -> None:
        self._peer_holds = True

    def _say_held(self, line: Line | None, _: bytes, *, answer: bool = True) -> None:
        _tell(line, Standing(self.run, "held", answer))

    def _release(self, line: Line, _: bytes) -> None:
        self.phase = "released"

    def _give_up(self, line: Line | None, _: bytes) -> None:
        self._forget(None)
        tell_state(line or self._line, self.run, self._ledger)

    def _follow(self, line: Line, _: bytes) -> None:
        self._forget("given up")

    def _forget(self, peer: Literal["given up"] | None) -> None:
        try:
            give_up(self._ledger, self._entry, peer)
            self._end(Refused("attempt_over", "the attempt broke off; the next one may begin"))
        except Refused as error:
            self._end(error)

    def _leave(self, line: Line | None, _: bytes) -> None:
        no_tape = self.leads and self._tapes is not None and self._line is not None  # the peer was ready
        why = "the dealing server sent no tape" if no_tape else f"server {self.peer} was not ready"
        self._end(Refused("peer_unreachable", f"{why} in time; nothing is spent"))

    def _stop_waiting(self, line: Line | None, _: bytes) -> None:
        said = f"complete here; server {self.peer} has not said that it is complete there: ask again"
        self._end(Refused("attempt_held", said))

    def _end(self, why: Refused) -> None:
        self.refusal, self.phase = why, "over"
        self._party = self._tape = None


class Attempts:
    """All attempts that this process works on, and the answers to what the other servers say about any attempt."""

    def __init__(self, number: int, ledger: AnyLedger) -> None:
        self.number, self._ledger = number, ledger
        self._live: dict[Run, Attempt] = {}
        self._early: dict[int, dict[Run, Line]] = {}  # by server, so that one cannot push out another's

    def get(self, run: Run) -> Attempt | None:
        """Return the attempt of a run, if this process works on it."""
        return self._live.get(run)

    def runs(self) -> list[Run]:
        """Return the runs of all attempts that this process works on."""
        return list(self._live)

    def start(self, attempt: Attempt, lines: Iterable[Line]) -> None:
        """Take up an attempt whose input has arrived; `lines` lead to the other server."""
        if attempt.run in self._live:
            raise Refused("busy", "this attempt is under way already")
        self._live[attempt.run] = attempt
        early, here = self._early.get(attempt.peer, {}).pop(attempt.run, None), list(lines)
        if early in here:
            attempt.happen("ready", early)
        for line in here:
            attempt.happen("opened", line)

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended. The ledger knows what became of it."""
        if self._live.get(attempt.run) is attempt:
            del self._live[attempt.run]

    def collect(self, run: Run, seat: int, entry: Entry, lines: Iterable[Line]) -> Attempt:
        """Return an attempt whose answer, or whose end, somebody wants to have. Only the sender of its input may ask.

        An attempt that this process does not work on was begun by another process, or by an earlier one, or never. If
        it is held, the peer is asked. Otherwise it is given up, so that the next attempt may begin.
        """
        live = self._live.get(run)
        if live is not None and not live.is_of(entry):
            raise Refused("ticket_used", "somebody else sent this attempt")
        if live is not None and live.phase != "waiting":
            return live
        attempt = Attempt(run, seat, self._ledger, entry)
        if self._ledger.state(entry.key) == "held":
            attempt.hold(self._ledger.perform(entry._replace(state="held")).reply)
            self._live[run] = attempt
            for line in lines:
                attempt.happen("opened", line)
            return attempt
        if live is not None:
            live.happen("left")
            self.drop(live)
        give_up(self._ledger, entry, None)
        attempt.refusal = Refused("attempt_over", "the attempt gave nothing; the next one may begin")
        return attempt

    def heard(self, line: Line, frame: Frame) -> None:
        """Take what the other server says."""
        run = getattr(frame, "run", None)
        if run is None or self.number not in run.servers or line.number not in run.servers:
            return
        attempt = self._live.get(run)
        if isinstance(frame, Ready):
            if attempt is not None:
                attempt.happen("ready", line)
            elif self.number == run.servers[0]:
                early = self._early.setdefault(line.number, {})
                early[run] = line
                if len(early) > _EARLY:
                    early.pop(next(iter(early)), None)
        elif isinstance(frame, Begin):
            if attempt is not None and attempt.phase == "waiting":
                attempt.happen("begin", line, frame.tape)
            elif attempt is None:
                tell_state(line, run, self._ledger)
        elif isinstance(frame, Opening):
            if attempt is not None:
                attempt.happen("opening", line, frame.data)
        elif isinstance(frame, Standing):
            self._compare(line, frame, attempt)

    def _compare(self, line: Line, frame: Standing, attempt: Attempt | None) -> None:
        if attempt is not None and frame.state != "running":
            attempt.happen(frame.state, line)
        if frame.answer:
            tell_state(line, frame.run, self._ledger)

    def opened(self, run: Run, line: Line) -> None:
        """Tell the peer of an attempt, over a new connection, what it may not have heard."""
        attempt = self._live.get(run)
        if attempt is not None and attempt.peer == line.number:
            attempt.happen("opened", line)

    def lost(self, run: Run, line: Line) -> None:
        """Give up an attempt that ran over a connection which is gone."""
        attempt = self._live.get(run)
        if attempt is not None and attempt.runs_over(line):
            attempt.happen("lost", line)

    def forget(self, line: Line) -> None:
        """Forget what was said early over a connection which is gone."""
        early = self._early.get(line.number, {})
        for run in [run for run, over in list(early.items()) if over is line]:
            early.pop(run, None)


def give_up(ledger: AnyLedger, entry: Entry, peer: Literal["given up"] | None) -> None:
    """Write durably that an attempt gave nothing."""
    ledger.perform(entry._replace(state="given up", peer=peer, reply=b""))


def key_of(run: Run) -> Key:
    """Return the key of a run's entries in the ledger."""
    return Key(run.ticket, run.servers, 0, run.attempt)


def tell_state(line: Line | None, run: Run, ledger: AnyLedger) -> None:
    """Tell the peer what this server's ledger durably has of an attempt."""
    with suppress(Refused):  # the ledger cannot be read now
        state = ledger.state(key_of(run))
        _tell(line, Standing(run, "unknown" if state is None or state == "spent" else state, False))


def _tell(line: Line | None, frame: Frame) -> None:
    """Send a frame, if the connection is still there. A lost frame is made good when the servers meet again."""
    if line is not None:
        with suppress(Refused):
            line.send(frame)
