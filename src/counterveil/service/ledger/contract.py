"""The contract of a ledger. One table says which state may follow which; all implementations use it.

An entry has a key: the ticket, the run (the servers that work on the question together; empty if they do not talk to
each other), the request (0 is the question, 1..k are records) and the attempt. It is in one of four states:

    spent      The request was answered, or is about to be. An identical request may be answered again.
    running    An attempt of servers that talk to each other began. It is never begun again.
    held       The attempt is complete and its reply is stored. This is a promise: a server that has told its peer so
               leaves this state only after the peer has durably given up.
    given up   The attempt gave no reply and never will. The next attempt may begin.

`docs/ledger.md` shows the table. A test searches everything that two servers can do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from ...errors import Refused, WrongType

State = Literal["spent", "running", "held", "given up"]

KEY_ID_BYTES = 16  # of the id of a common key
MOST_SERVED = 64  # times that an identical request is answered
MOST_ATTEMPTS = 16  # attempts at one request
GRACE = 600  # seconds after a ticket's expiry; an attempt that began before may be completed and collected until then
PURGE_EVERY = 60.0  # seconds between two removals of expired entries


class Key(NamedTuple):
    """What an entry is about. `run` names the servers that talk to each other; attempts are numbered from 0."""

    ticket: bytes
    run: tuple[int, ...] = ()
    request: int = 0
    attempt: int = 0


class Entry(NamedTuple):
    """A state that a server wants a key to have.

    `proof` and `holder` are hashes. `proof` says which request this is, `holder` who sends it (rule 13). An applicant
    collects the reply of an attempt without sending its long input again, so the proof of an attempt must not cover
    that input.
    """

    key: Key
    state: State
    proof: bytes
    expires: int  # when the ticket expires
    reply: bytes = b""  # to be stored with "held"
    holder: bytes = b""
    peer: State | None = None  # the state that the peer says its own ledger durably has


class Standing(NamedTuple):
    """The state of a key, whether this entry changed it, and the stored reply."""

    new: bool
    state: State
    reply: bytes


class Row(NamedTuple):
    """What a ledger keeps under a key. `served` is 0 if the attempt was given up before it began."""

    state: State
    proof: bytes
    expires: int
    holder: bytes
    reply: bytes
    served: int


class Decision(NamedTuple):
    """The row that a ledger must write, and what `perform` then returns."""

    row: Row
    question: bool  # whether the ticket is used for the first time
    standing: Standing


class AnyLedger(Protocol):
    """A ledger, wherever it is kept. `instance` names it: 16 bytes, drawn when it was made.

    `at_once` says how many threads may write at a time and gain by it. If it is 1, many entries are best performed
    together.
    """

    instance: bytes
    at_once: int

    def admit(self, key_id: bytes, *, bound: bool = False) -> None:
        """Take up one more common key, or refuse it: see `open_ledger`."""

    def perform(self, entry: Entry) -> Standing:
        """Enter a state if the table allows it, or refuse. The entry is durable on return, if this ledger can be."""

    def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
        """Perform entries one after the other; in place of one that is not allowed return the refusal."""

    def state(self, key: Key) -> State | None:
        """Return the state of a key, to tell it to the peer."""

    def purge(self) -> None:
        """Remove expired entries. The watermark keeps their tickets refused for ever, since it never falls."""

    def counts(self) -> dict[State, int]:
        """Return how many entries are in each state, without waiting for a lock."""

    def count(self) -> int:
        """Return how many entries there are, without waiting for a lock."""

    def questions(self) -> int:
        """Return how many tickets were ever used, without waiting for a lock."""

    def check(self) -> None:
        """Refuse unless the ledger can be written now, and the clock is not behind its watermark."""

    def close(self) -> None:
        """Close the ledger: it refuses every entry from now on."""


TABLE: dict[tuple[State | None, State], str] = {  # (current state, wanted state): a step of `_next`, or a refusal
    (None, "spent"): "enter",
    (None, "running"): "enter",
    (None, "held"): "attempt_over",
    (None, "given up"): "give up",
    ("spent", "spent"): "serve again",
    ("spent", "running"): "ticket_used",
    ("spent", "held"): "ticket_used",
    ("spent", "given up"): "ticket_used",
    ("running", "spent"): "ticket_used",
    ("running", "running"): "ticket_used",
    ("running", "held"): "hold",
    ("running", "given up"): "give up",
    ("held", "spent"): "ticket_used",
    ("held", "running"): "ticket_used",
    ("held", "held"): "collect",
    ("held", "given up"): "follow the peer",
    ("given up", "spent"): "attempt_over",
    ("given up", "running"): "attempt_over",
    ("given up", "held"): "attempt_over",
    ("given up", "given up"): "stay",
}


REFUSALS = {
    "ticket_used": "the ticket was used for another request",
    "attempt_over": "the attempt was given up, or never began here",
    "attempt_first": "an attempt begins when those before it were given up",
    "attempt_held": "the attempt is complete: it is given up only after the peer has given it up",
}


def decide(rows: Mapping[Key, Row], entry: Entry, now: float) -> Decision:
    """Apply the table to an entry. `rows` are all rows of its ticket; `now` is the later of clock and watermark."""
    current, begins = rows.get(entry.key), entry.state in ("spent", "running")
    if entry.expires + (0 if begins else GRACE) <= now:
        raise Refused("ticket_expired", "the ticket has expired")
    if entry.key.request and begins:
        _check_question(rows, entry)
    if entry.holder:
        _check_holder(rows, entry)
    step = TABLE[current.state if current else None, entry.state]
    if step in REFUSALS:
        raise _refused(step)
    if current is None or step == "enter":
        _check_place(rows, entry.key)
        row = _first(rows, entry) if step == "enter" else Row("given up", b"", entry.expires, b"", b"", 0)
    else:
        row = _next(step, current, entry)
    question = begins and not any(each.served for each in rows.values())
    return Decision(row, question, Standing(current is None or current.state != row.state, row.state, row.reply))


def _check_question(rows: Mapping[Key, Row], entry: Entry) -> None:
    """Refuse a record before the question of its run was answered, and a record that somebody else asked for."""
    run = entry.key.run
    asked = [row for key, row in rows.items() if (key.run, key.request) == (run, 0) and row.state in ("spent", "held")]
    if not asked:
        raise Refused("question_first", "a record comes after the question of its ticket")
    if asked[0].holder != entry.holder:
        raise _refused("ticket_used")


def _check_holder(rows: Mapping[Key, Row], entry: Entry) -> None:
    """Refuse all but the sender of the ticket's first request here; a peer, who speaks for no applicant, has no name.

    A sender's name covers the terms and the common key of the request, so a server answers a ticket under one offer.
    """
    if any(row.holder not in (b"", entry.holder) for row in rows.values()):
        raise _refused("ticket_used")


def _check_place(rows: Mapping[Key, Row], key: Key) -> None:
    """Refuse an attempt with too high a number, and one ticket both with a run and without one."""
    if not 0 <= key.attempt < MOST_ATTEMPTS:
        raise Refused("too_often", f"a request has at most {MOST_ATTEMPTS} attempts")
    if any(bool(other.run) != bool(key.run) for other in rows):
        raise _refused("ticket_used")


def _first(rows: Mapping[Key, Row], entry: Entry) -> Row:
    """Return the row of an attempt that begins; refuse it unless all attempts before it were given up here."""
    key = entry.key
    attempts = {k.attempt: row.state for k, row in rows.items() if (k.run, k.request) == (key.run, key.request)}
    if set(attempts.values()) - {"given up"} or (key.attempt and key.attempt - 1 not in attempts):
        raise _refused("attempt_first")
    return Row(entry.state, entry.proof, entry.expires, entry.holder, b"", 1)


def _next(step: str, current: Row, entry: Entry) -> Row:
    """Return the row that replaces the current one."""
    if step in ("serve again", "hold", "collect") and current.proof != entry.proof:
        raise _refused("ticket_used")
    if step == "serve again":
        if current.served >= MOST_SERVED:
            raise Refused("too_often", "this request was sent again too often")
        return current._replace(served=current.served + 1)
    if step == "hold":
        return current._replace(state="held", reply=entry.reply)
    if step == "follow the peer" and entry.peer != "given up":
        raise _refused("attempt_held")
    if step in ("give up", "follow the peer"):
        return current._replace(state="given up", reply=b"")
    return current  # the steps "collect" and "stay"


def _refused(code: str) -> Refused:
    return Refused(code, REFUSALS[code])


def one_by_one(perform: Callable[[Entry], Standing], entries: Sequence[Entry]) -> list[Standing | Refused]:
    """Perform entries, each on its own; in place of one that is not allowed return the refusal."""
    outcomes: list[Standing | Refused] = []
    for entry in entries:
        try:
            outcomes.append(perform(entry))
        except Refused as error:
            outcomes.append(error)
    return outcomes


def unwritable() -> Refused:
    """Return the refusal for a ledger that cannot be written now."""
    return Refused("not_ready", "the ledger cannot be written")


def check_key(key_id: bytes) -> None:
    """Refuse what cannot be the id of a common key."""
    if len(key_id) not in (0, KEY_ID_BYTES):
        raise WrongType("key id", got=f"{len(key_id)} bytes", expected=f"{KEY_ID_BYTES}, or none")


def check_clock(watermark: int, now: float) -> None:
    """Refuse if the clock is behind the watermark."""
    if watermark > now + PURGE_EVERY:
        raise Refused("not_ready", "the clock is behind the ledger's watermark: one of them is wrong")
