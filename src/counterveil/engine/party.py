"""Parties: generators that say what they send and what they wait for, and do no input or output themselves.

An applicant, a server and a dealer are all parties. A driver carries their messages: over HTTP, in one process
(`play`), or in a test that alters them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..algebra.field import Residues
from ..errors import Stalled

T = TypeVar("T")
Role = int | Literal["applicant", "dealer"]  # a number is the seat of a server, 0..N-1


@dataclass(frozen=True, eq=False)
class Send:
    """Hand symbols to another party, without waiting."""

    to: Role
    symbols: NDArray[Any]
    alphabet: Residues  # the field or ring that the symbols belong to
    request: int = 0
    among: tuple[int, ...] = ()  # the seats that this request is for; empty for all of them


@dataclass(frozen=True)
class Take:
    """Wait for `count` symbols from another party. They arrive as an array, after `check` has accepted them."""

    source: Role
    count: int
    alphabet: Residues
    request: int = 0
    check: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray


@dataclass(frozen=True)
class Enter:
    """Write to the ledger, durably, before going on."""

    entry: Any


Effect = Send | Take | Enter
Party = Generator[Effect, Any, T]


def entered(party: Party[T], entry: Any) -> Party[T]:
    """Return the party with one ledger entry added: after its input has arrived, before it computes or sends anything.

    Every protocol spends its ticket here.
    """
    effect = next(party)
    received = (yield effect) if isinstance(effect, Take) else None
    yield Enter(entry)
    if not isinstance(effect, Take):
        received = yield effect
    while True:
        try:
            effect = party.send(received)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        received = yield effect


def released(party: Party[NDArray[Any] | None], alphabet: Residues) -> Party[None]:
    """Return the party with its result, if it has one, sent to the applicant at the end."""
    answer = yield from party
    if answer is not None:
        yield Send("applicant", answer, alphabet)


class Inbox:
    """Symbols that have arrived and were not yet taken, by sender and request."""

    def __init__(self) -> None:
        self._held: defaultdict[tuple[Role, int], deque[NDArray[Any]]] = defaultdict(deque)
        self._size: defaultdict[tuple[Role, int], int] = defaultdict(int)

    def put(self, source: Role, request: int, symbols: NDArray[Any]) -> None:
        """Add symbols that have arrived."""
        if symbols.size:
            self._held[source, request].append(symbols)
            self._size[source, request] += symbols.size

    def size(self, source: Role, request: int) -> int:
        """Return how many symbols have not been taken yet."""
        return self._size[source, request]

    def has(self, take: Take) -> bool:
        """Say whether enough has arrived."""
        return self._size[take.source, take.request] >= take.count

    def take(self, take: Take) -> NDArray[Any]:
        """Remove and return exactly as many symbols as are wanted."""
        key, wanted, parts = (take.source, take.request), take.count, []
        held = self._held[key]
        self._size[key] -= wanted
        while wanted:
            first = held[0]
            parts.append(first[:wanted])
            if first.size > wanted:
                held[0] = first[wanted:]
            else:
                held.popleft()
            wanted -= parts[-1].size
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.uint8), *parts])

    @property
    def empty(self) -> bool:
        """Whether everything was taken."""
        return not any(self._size.values())


def play(
    parties: Mapping[Role, Party[Any]],
    *,
    watch: Callable[[Role, Send], None] | None = None,
    enter: Callable[[Role, Any], Any] | None = None,
) -> dict[Role, Any]:
    """Play all parties in this process until each has ended; return what each returned.

    `watch` sees every message. `enter` performs ledger entries; without it, all are accepted. If everybody waits, a
    protocol has a mistake, and `Stalled` says who waits for whom.
    """
    inboxes: dict[Role, Inbox] = {role: Inbox() for role in parties}
    results: dict[Role, Any] = {}
    waiting: dict[Role, Effect] = {}
    for role, party in parties.items():
        _resume(role, party, None, waiting, results)
    while waiting:
        moved = False
        for role in list(waiting):
            effect = waiting[role]
            if isinstance(effect, Take):
                if not inboxes[role].has(effect):
                    continue
                received: Any = effect.check(inboxes[role].take(effect))
            elif isinstance(effect, Send):
                if effect.to not in inboxes:
                    raise Stalled(f"{role} sends to {effect.to}, who does not take part")
                if watch is not None:
                    watch(role, effect)
                inboxes[effect.to].put(role, effect.request, effect.symbols)
                received = None
            else:
                received = None if enter is None else enter(role, effect.entry)
            moved = True
            _resume(role, parties[role], received, waiting, results)
        if not moved:
            raise Stalled("; ".join(_wants(role, effect, inboxes[role]) for role, effect in waiting.items()))
    left = [role for role, inbox in inboxes.items() if not inbox.empty]
    if left:
        raise Stalled(f"{', '.join(map(str, left))} ended without taking all that was sent")
    return results


def _resume(
    role: Role, party: Party[Any], received: Any, waiting: dict[Role, Effect], results: dict[Role, Any]
) -> None:
    try:
        waiting[role] = party.send(received)
    except StopIteration as end:
        waiting.pop(role, None)
        results[role] = end.value


def _wants(role: Role, effect: Effect, inbox: Inbox) -> str:
    if not isinstance(effect, Take):
        raise AssertionError("only a party that takes can wait")
    there = inbox.size(effect.source, effect.request)
    return f"{role} waits for {effect.count} symbols of {effect.source}, and has {there}"


def chained(parties: Iterable[Party[Any]]) -> Party[None]:
    """Return one party that plays several, one after the other: a server over all requests of a run."""
    for party in parties:
        yield from party
