"""Everything that two servers and an applicant can do with the attempts of one ticket, searched state by state.

The servers are the real `Attempts`, with ledgers in memory. Their party is a script of two rounds, which can be copied.
The applicant follows the rules of `runs.Linked`. Frames and requests may be late; connections may break; a server may
crash before any of its effects, and come back with its ledger alone; every deadline may pass at any moment.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from counterveil.applicant.runs import _NOT_YET, _NOTHING_BEGAN
from counterveil.engine.party import Send, Take
from counterveil.errors import Refused
from counterveil.schemes.fetch import BYTES
from counterveil.service.attempts import Attempt, Attempts, key_of
from counterveil.service.ledger import Entry, MemoryLedger, Standing
from counterveil.service.link.frames import Frame, Run

ROUNDS = 2
FRAMES = 3  # the most that are on their way over one connection, each way
LATER = 2**40
RUNS = [Run(bytes(32), bytes(16), (1, 2), attempt) for attempt in range(4)]
ENTRIES = [Entry(key_of(run), "running", b"proof %d" % run.attempt, LATER, holder=b"holder") for run in RUNS]
Event = tuple[Any, ...]


class Crash(BaseException):
    """A server ends here."""


@dataclass(frozen=True)
class End:
    """One end of a connection, as a server sees it: it says which connection it is, and holds nothing."""

    number: int  # the peer's
    own: int
    wire: int
    boot: bytes = bytes(16)

    def send(self, frame: Frame) -> None:
        World.now.sent(self, frame)


ENDS = {(own, wire): End(3 - own, own, wire) for own in (1, 2) for wire in range(8)}


class Script:
    """A party that opens two messages, each when the peer's one before has arrived, and returns its part."""

    def __init__(self, own: int, attempt: int) -> None:
        self.own, self.attempt, self.at = own, attempt, 0

    def send(self, received: Any) -> Send | Take:
        turn, waits = divmod(self.at, 2)
        if self.at and not waits:  # the peer's message has arrived
            assert received.tolist() == [3 - self.own, self.attempt, turn - 1], "an opening of another run"
        if turn == ROUNDS:
            raise StopIteration(np.array([self.own, self.attempt], dtype=np.uint8))
        self.at += 1
        if waits:
            return Take(2 - self.own, 3, BYTES)
        World.now.opens(self.own, self.attempt, turn)
        return Send(2 - self.own, np.array([self.own, self.attempt, turn], dtype=np.uint8), BYTES)


class Book(MemoryLedger):
    """A ledger that notes what begins, and before whose entries a server may crash."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)

    def perform(self, entry: Entry) -> Standing:
        World.now.effect()
        standing = super().perform(entry)
        if entry.state == "running":
            World.now.begins(self, entry.key.attempt)
        return standing

    def states(self) -> tuple[tuple[int, str], ...]:
        rows = self._tickets.get(RUNS[0].ticket, {})
        return tuple(sorted((key.attempt, row.state) for key, row in rows.items()))


@dataclass
class Task:
    """What waits at a server for the end of an attempt, and whether the applicant still waits with it."""

    attempt: Attempt
    waits: bool
    left: bool = False  # the server has not noticed yet that the applicant left


@dataclass
class Wire:
    """A connection between the servers: whether it is cut, who knows that, and frames on their way, by receiver."""

    cut: bool
    gone: frozenset[int]
    frames: dict[int, tuple[Frame, ...]]


class World:
    """One situation. `step` returns the situation after an event."""

    now: ClassVar[World]
    trouble = ""

    def __init__(self, attempts: int, faults: int) -> None:
        self.attempts, self.faults = attempts, faults  # how many attempts there are, and how much may still break
        self.books = {n: Book() for n in (1, 2)}
        self.servers = {n: Attempts(n, self.books[n]) for n in (1, 2)}
        self.tasks: dict[int, list[Task]] = {1: [], 2: []}
        self.wires: dict[int, Wire] = {0: Wire(False, frozenset(), {1: (), 2: ()})}
        self.asked: dict[int, str | None] = {1: "attempt", 2: "attempt"}  # requests on their way
        self.orphans: tuple[tuple[int, str, int], ...] = ()  # requests on their way that nobody waits for
        self.said: dict[int, str | None] = {1: None, 2: None}  # what each server replied; None: nothing yet
        self.attempt, self.over, self.polled = 0, "", False
        self.begun: frozenset[tuple[int, int]] = frozenset()
        self.opened: frozenset[tuple[int, int, int]] = frozenset()
        self.released: frozenset[tuple[int, int]] = frozenset()
        self.effects, self.crash_at = 0, -1

    # --- what happens inside an event -------------------------------------------------------------------------------

    def effect(self) -> None:
        """Count an effect; crash before it if that is due."""
        if self.effects == self.crash_at:
            raise Crash
        self.effects += 1

    def sent(self, end: End, frame: Frame) -> None:
        self.effect()
        wire = self.wires.get(end.wire)
        if wire is None or end.own in wire.gone:
            raise Refused("peer_unreachable", "the link is down")
        if not wire.cut:
            wire.frames[end.number] += (frame,)

    def begins(self, book: Book, attempt: int) -> None:
        (own,) = (n for n, each in self.books.items() if each is book)
        if (own, attempt) in self.begun:
            self.trouble = "an attempt began twice"
        self.begun |= {(own, attempt)}

    def opens(self, own: int, attempt: int, turn: int) -> None:
        if (own, attempt, turn) in self.opened:
            self.trouble = "a tape was opened twice"
        if dict(self.books[own].states()).get(attempt) != "running":
            self.trouble = "a tape was opened before the ledger said so"
        self.opened |= {(own, attempt, turn)}

    # --- events -----------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """Yield all that may happen next.

        A deadline passes when nothing else happens; at any other time it is a fault. The applicant goes on at any time,
        but asks about the same attempt for a second time only when nothing else happens.
        """
        normal = list(self._normal())
        if None not in self.said.values() and not self.over and not (self.asks_again() and normal and self.polled):
            normal.append(("decide", 0))
        yield from normal
        if self.faults:
            yield from self._faults()
        if self.faults or not normal:
            for own in (1, 2):
                late = (at for at, task in enumerate(self.tasks[own]) if not task.attempt.ended)
                yield from (("late", own, at, bool(normal)) for at in late)

    def _faults(self) -> Iterator[Event]:
        yield from (("cut", 0, n) for n, wire in self.wires.items() if not wire.cut)
        for own in (1, 2):
            yield "crash", own
            if self.said[own] is None:
                yield "lose", own

    def _normal(self) -> Iterator[Event]:
        for n, wire in self.wires.items():
            for own in (1, 2):
                if own not in wire.gone and wire.frames[own]:
                    yield "deliver", own, n
                if wire.cut and own not in wire.gone:
                    yield "notice", own, n
        if all(wire.cut for wire in self.wires.values()):
            yield "connect", 0
        for own in (1, 2):
            if self.asked[own] is not None:
                yield "arrive", own, self.asked[own], self.attempt, False
            for at, task in enumerate(self.tasks[own]):
                if task.attempt.ended:
                    yield "end", own, at
                if task.left:
                    yield "left", own, at
        for orphan in set(self.orphans):
            yield "arrive", *orphan, True

    def step(self, event: Event, crash_at: int = -1) -> World:
        """Return the situation after an event, in which a server crashes before the effect with this number."""
        world = World.now = self.copied()
        world.effects, world.crash_at = 0, crash_at
        own = event[1]
        try:
            getattr(world, f"_{event[0]}")(*event[1:])
        except Crash:
            world._crash(own)
        except AssertionError as error:
            world.trouble = str(error)
        world.check()
        return world

    def _lines(self, own: int) -> list[End]:
        return [ENDS[own, n] for n, wire in self.wires.items() if own not in wire.gone]

    def _deliver(self, own: int, n: int) -> None:
        first, *rest = self.wires[n].frames[own]
        self.wires[n].frames[own] = tuple(rest)
        self.servers[own].heard(ENDS[own, n], first)

    def _cut(self, _: int, n: int) -> None:
        self.faults -= 1
        self.wires[n].cut = True

    def _notice(self, own: int, n: int) -> None:
        wire, end, server = self.wires[n], ENDS[own, n], self.servers[own]
        wire.gone |= {own}
        wire.frames[own] = ()
        if len(wire.gone) == 2:
            del self.wires[n]
        server.forget(end)
        for run in server.runs():
            server.lost(run, end)

    def _connect(self, _: int) -> None:
        n = max(self.wires, default=0) + 1
        self.wires[n] = Wire(False, frozenset(), {1: (), 2: ()})
        for own, server in self.servers.items():
            for run in server.runs():
                server.opened(run, ENDS[own, n])

    def _arrive(self, own: int, kind: str, attempt: int, orphan: bool) -> None:
        if orphan:
            orphans = list(self.orphans)
            orphans.remove((own, kind, attempt))
            self.orphans = tuple(orphans)
        else:
            self.asked[own] = None
        server, run, entry, lines = self.servers[own], RUNS[attempt], ENTRIES[attempt], self._lines(own)
        try:
            if kind == "collect":
                found = server.collect(run, own - 1, entry, lines)
            else:
                if self.books[own].state(entry.key) is not None:
                    raise Refused("attempt_over", "as `Server.asked` says")
                if not lines:
                    raise Refused("peer_unreachable", "as `Meeting.check_reaches` says")
                party: Any = Script(own, attempt)
                tape = np.zeros(1, dtype=np.uint8)
                found = Attempt(run, own - 1, self.books[own], entry, party=party, tape=tape, most=3 * ROUNDS)
                server.start(found, lines)
        except Refused as error:
            if not orphan:
                self._reply(own, error.code, kind)
            return
        for task in self.tasks[own]:
            if task.attempt is found:
                task.waits |= not orphan
                return
        self.tasks[own].append(Task(found, not orphan, left=orphan and kind == "attempt"))

    def _reply(self, own: int, code: str, kind: str = "") -> None:
        if code not in (*_NOTHING_BEGAN, *_NOT_YET, "attempt_over") and not code.startswith("answer"):
            self.trouble = f"an honest applicant was refused: {code}"
        self.said[own] = "nothing" if kind == "collect" and code in _NOTHING_BEGAN else code

    def _late(self, own: int, at: int, early: bool) -> None:
        self.faults -= early
        self.tasks[own][at].attempt.happen("late")

    def _left(self, own: int, at: int) -> None:
        task, server = self.tasks[own][at], self.servers[own]
        task.left = False
        live = server.get(task.attempt.run)
        if live is not None:
            live.happen("left")
            if live.ended:
                server.drop(live)

    def _end(self, own: int, at: int) -> None:
        task = self.tasks[own].pop(at)
        attempt = task.attempt
        self.servers[own].drop(attempt)
        if not task.waits:
            return
        if attempt.refusal is not None:
            self._reply(own, attempt.refusal.code)
        elif attempt.reply != bytes([own, attempt.run.attempt]):
            self.trouble = "an attempt was released without its part"
        else:
            self._reply(own, f"answer {attempt.run.attempt}")

    def _lose(self, own: int) -> None:
        """The applicant's connection to a server breaks. What is on its way may still arrive."""
        self.faults -= 1
        if (kind := self.asked[own]) is not None:
            self.asked[own], self.orphans = None, (*self.orphans, (own, kind, self.attempt))
        for task in self.tasks[own]:
            if task.waits:
                task.waits, task.left = False, True
        self.said[own] = "nothing"

    def _crash(self, own: int) -> None:
        self.faults -= 1
        self.servers[own] = Attempts(own, self.books[own])
        if any(task.waits for task in self.tasks[own]) or (self.said[own] is None and self.asked[own] is None):
            self.said[own] = "nothing"
        self.tasks[own] = []
        for n, wire in list(self.wires.items()):
            wire.cut = True
            wire.gone |= {own}
            wire.frames[own] = ()
            if len(wire.gone) == 2:
                del self.wires[n]

    def asks_again(self) -> bool:
        """Whether the applicant's next step is about the same attempt."""
        said = [str(code) for code in self.said.values()]
        return not all(code.startswith("answer") for code in said) and set(said) != {"attempt_over"}

    def _decide(self, _: int) -> None:
        """Do what `runs.Linked.todo` does when every request has ended."""
        self.polled = self.asks_again()
        said = {own: str(code) for own, code in self.said.items()}
        missing = [own for own in (1, 2) if not said[own].startswith("answer")]
        if not missing:
            self.over = "answered" if said[1] == said[2] else "two answers"
        elif len(missing) == 2 and all(said[own] in _NOTHING_BEGAN for own in missing):
            self._ask(self.attempt)
        elif len(missing) == 2 and all(said[own] == "attempt_over" for own in missing):
            if self.attempt + 1 == self.attempts:
                self.over = "given up"
            else:
                self._ask(self.attempt + 1)
        else:
            for own in missing:
                if said[own] != "attempt_over":
                    self.said[own], self.asked[own] = None, "collect"

    def _ask(self, attempt: int) -> None:
        self.attempt = attempt
        self.said, self.asked = {1: None, 2: None}, {1: "attempt", 2: "attempt"}

    # --- states -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Note what must never be."""
        for own, server in self.servers.items():
            attempts = {*server._live.values(), *(task.attempt for task in self.tasks[own])}
            self.released |= {(own, each.run.attempt) for each in attempts if each.phase == "released"}
        released = {attempt for _, attempt in self.released}
        states = [dict(book.states()) for book in self.books.values()]
        if len(released) > 1:
            self.trouble = "two attempts were released"
        if any(held.get(attempt) == "given up" for held in states for attempt in released):
            self.trouble = "an attempt was released and given up"
        if self.over == "given up" and any(held.get(self.attempts - 1) != "given up" for held in states):
            self.trouble = "an applicant was sent away before the last attempt was given up"
        if self.over == "two answers":
            self.trouble = "the servers answered different attempts"

    def crowded(self) -> bool:
        """Whether more frames are on their way than are searched: the earliest must arrive first."""
        return any(len(frames) > FRAMES for wire in self.wires.values() for frames in wire.frames.values())

    def is_over(self) -> bool:
        """Whether the applicant has the answer, or both servers have given up the last attempt."""
        return bool(self.over)

    def key(self) -> Any:
        """Return what tells this situation from others."""
        order = {n: at for at, n in enumerate(sorted(self.wires))}

        def of(attempt: Attempt) -> Any:
            line: Any = attempt._line
            party: Any = attempt._party
            refusal = attempt.refusal.code if attempt.refusal else ""
            over = -2 if line is None else order.get(line.wire, -1)
            at = -1 if party is None else party.at
            return attempt.run.attempt, attempt.phase, refusal, over, at, bytes(attempt._inbox), attempt._peer_holds

        def side(own: int) -> Any:
            live = self.servers[own]._live.values()
            early = self.servers[own]._early.get(3 - own, {}).items()
            tasks = sorted((of(t.attempt), t.waits, t.left, t.attempt in live) for t in self.tasks[own])
            alone = sorted(of(a) for a in live if all(a is not t.attempt for t in self.tasks[own]))
            waits = tuple((run.attempt, order.get(line.wire, -1)) for run, line in early)  # type: ignore[attr-defined]
            return self.books[own].states(), tuple(tasks), tuple(alone), waits, self.asked[own], self.said[own]

        wires = tuple((w.cut, w.gone, w.frames[1], w.frames[2]) for _, w in sorted(self.wires.items()))
        applicant = self.attempt, self.over, self.polled, tuple(sorted(self.orphans)), self.faults, self.released
        return side(1), side(2), wires, applicant

    def copied(self) -> World:
        """Return a copy that shares nothing that changes."""
        made = copy.copy(self)
        made.wires = {n: Wire(w.cut, w.gone, dict(w.frames)) for n, w in self.wires.items()}
        made.asked, made.said = dict(self.asked), dict(self.said)
        made.books, made.servers, made.tasks = {}, {}, {}
        for own in (1, 2):
            book = made.books[own] = copy.copy(self.books[own])
            book._tickets = dict(book._tickets)
            attempts: dict[int, Attempt] = {}
            for each in (*self.servers[own]._live.values(), *(task.attempt for task in self.tasks[own])):
                if id(each) not in attempts:
                    attempt = attempts[id(each)] = copy.copy(each)
                    attempt._ledger, attempt._party = book, copy.copy(each._party)
                    attempt._inbox = bytearray(each._inbox)
            server = made.servers[own] = copy.copy(self.servers[own])
            server._ledger = book
            server._live = {run: attempts[id(each)] for run, each in server._live.items()}
            server._early = {n: dict(early) for n, early in server._early.items()}
            made.tasks[own] = [Task(attempts[id(t.attempt)], t.waits, t.left) for t in self.tasks[own]]
        return made


_PLAIN = ("cut", "connect", "crash", "lose", "decide")  # no crash within these: a crash before or after is the same


@dataclass
class Found:
    """What a search found: what is wrong and how it came about, and how much was searched."""

    trouble: str
    trace: list[Event]
    states: int
    steps: int
    ends: set[str]


def search(attempts: int, faults: int) -> Found:
    """Search every situation that can be reached; say what must not be, or nothing."""
    first = World(attempts, faults)
    keys = {first.key(): 0}
    worlds: dict[int, World] = {0: first}
    before: dict[int, list[int]] = {}
    came: list[tuple[int, Event]] = [(-1, ())]
    todo, ends, steps = [0], dict[int, str](), 0

    def trace(at: int) -> list[Event]:
        events = []
        while at > 0:
            at, event = came[at]
            events.append(event)
        return events[::-1]

    while todo:
        at = todo.pop()
        world = worlds.pop(at)
        if world.is_over():
            ends[at] = world.over
        for event in world.events():
            followers = [world.step(event)]
            effects = followers[0].effects if world.faults and event[0] not in _PLAIN else 0
            followers += [world.step(event, crash) for crash in range(effects)]
            for crash, follower in enumerate(followers, start=-1):
                if follower.faults < 0 or follower.crowded():
                    continue
                steps += 1
                key = follower.key()
                place = keys.setdefault(key, len(keys))
                if place == len(came):
                    came.append((at, (*event, f"crash before effect {crash}") if crash >= 0 else event))
                    worlds[place] = follower
                    todo.append(place)
                if follower.trouble:
                    return Found(follower.trouble, [*trace(at), event], len(keys), steps, set(ends.values()))
                before.setdefault(place, []).append(at)
    lively, todo = set(ends), list(ends)
    while todo:
        for at in before.get(todo.pop(), []):
            if at not in lively:
                lively.add(at)
                todo.append(at)
    dead = [at for at in range(len(keys)) if at not in lively]
    trouble = "a dead state" if dead else ""
    return Found(trouble, trace(dead[0]) if dead else [], len(keys), steps, set(ends.values()))
