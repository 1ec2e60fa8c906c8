"""One run of a question: servers that work on it together, the messages to them, and what they answered.

`Run` is for servers that do not talk to each other. `Linked` is for two servers that do: it sends them attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from ..engine.party import Effect, Inbox, Party, Send, Take
from ..errors import Malformed, ServerFault
from ..schemes.protocols import Request as Sizes
from ..schemes.protocols import Seen
from ..terms import wire
from ..terms.agreement import Peer
from ..terms.wire import Reply, Request
from .replies import Incoming

Progress = Callable[[int, int], None]  # called with how many bytes were sent, or have arrived, and how many there are
Watch = Callable[[Peer, Request, Reply], None]

MOST_ATTEMPTS = 16
_AHEAD = 1 << 20  # bytes: the most that one answer, or one upload, may be ahead of the others
_PIECE = 1 << 16  # bytes: the least that one part of an upload has, except the last
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before servers are asked again; each pause is twice the one before
OTHER_OFFER = ("other_terms", "other_key")  # refusals of a server that has another offer than the one asked under
_NOTHING_BEGAN = ("peer_unreachable", "busy", *OTHER_OFFER)  # refusals of a server that has not taken the attempt
_NOT_YET = ("attempt_held", "attempt_first", "not_ready", "too_slow", "internal", None)  # None: no answer at all


class Line(NamedTuple):
    """One request to one server, in one run."""

    server: int  # its number
    request: int
    run: int = 0


@dataclass(frozen=True, eq=False)
class Do:
    """What a driver is to do next: send a message, wait for the next step of the public clock, or hang up.

    "wait" is a pause of some `seconds` before servers that could not answer are asked again.
    """

    what: Literal["send", "pause", "wait", "hang up"]
    line: Line | None = None
    message: Request | None = None
    seconds: float = 0.0


@dataclass(eq=False)
class Opened:
    """A request that was sent, and the reply to it as far as it has arrived."""

    seat: int
    peer: Peer
    message: Request
    incoming: Incoming


Write = Callable[[int, wire.RequestKind, int, tuple[int, ...], bytes], tuple[Peer, Request]]
Begin = Callable[[], Party[Seen]]  # returns the applicant's party, with fresh randomness


class Run:
    """A run of servers that do not talk to each other.

    Parameters
    ----------
    number : which run of the question this is.
    servers : the servers' numbers.
    requests : the sizes of everything that is sent.
    begin : returns the applicant's party.
    write : makes a message: its seat, kind, number, the seats that it is for (empty for all), and its body.
    """

    def __init__(
        self,
        number: int,
        servers: tuple[int, ...],
        requests: tuple[Sizes, ...],
        *,
        begin: Begin,
        write: Write,
        watch: Watch | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.number, self.servers, self.requests = number, servers, requests
        self._write, self._watch, self._progress = write, watch, progress
        self.error: Exception | None = None
        self._errors: dict[int, Exception] = {}
        self._seen: Seen | None = None
        self._lines: dict[Line, Opened] = {}
        self._inbox, self._out, self._received, self._over = Inbox(), list[Send](), 0, False
        self._party = begin()
        self._effect = self._next(None)
        self._start()

    def _start(self) -> None:
        self._play()

    # --- the driver's side ------------------------------------------------------------------------------------------

    def todo(self) -> Iterator[Do]:
        """Yield what is to be sent now; nothing if the run has all that it needs, or has failed."""
        if self._errors:
            self.error = self._errors[min(self._errors)]
            return
        self._play()
        sent, self._out = self._out, []
        for send in sent:
            yield self._sent(send)

    def _sent(self, send: Send) -> Do:
        kind: wire.RequestKind = "record-query" if send.request else "query"
        body, sizes = wire.pack(send.alphabet, send.symbols), self.requests[send.request]
        keep = not (send.request == 0 and sizes.streams) or self._watch is not None
        return self._begun(int(send.to), kind, send.request, sizes, send.among, body, keep=keep)

    def _begun(
        self,
        seat: int,
        kind: wire.RequestKind,
        request: int,
        sizes: Sizes,
        among: tuple[int, ...] = (),
        body: bytes = b"",
        *,
        keep: bool = True,
    ) -> Do:
        peer, message = self._write(seat, kind, request, among, body)
        ticket = wire.decode_ticket(message.ticket).claims.id
        right = Reply(wire.VERSION, wire.ROUTES[kind][1], message.server, ticket, request, message.among, b"")
        incoming = Incoming(right, sizes.answered.packed(sizes.down[seat]), keep=keep)
        line = Line(message.server, request, self.number)
        self._lines[line] = Opened(seat, peer, message, incoming)
        return Do("send", line, message)

    def opened(self, line: Line) -> Opened:
        """Return what is known of a request that was sent."""
        return self._lines[line]

    def heard(self, line: Line, data: bytes) -> None:
        """Take the next bytes of a reply."""
        begun = self._lines[line]
        fresh = begun.incoming.take(data)
        if fresh and line.request == 0 and self.requests[0].streams:
            self._received += len(fresh)
            if not self._errors:  # after an error, replies are still read to their ends, so that no server notices
                self._inbox.put(begun.seat, 0, np.frombuffer(fresh, dtype=np.uint8))
                self._play()
            if self._progress is not None:
                self._progress(self._received, sum(self.requests[0].down))

    def wants(self, line: Line) -> bool:
        """Say whether the driver should read more of a reply now, or let the server wait."""
        seat, effect = self._lines[line].seat, self._effect
        ours = isinstance(effect, Take) and effect.source == seat
        return bool(self._errors) or ours or self._inbox.size(seat, line.request) < _AHEAD

    def ended(self, line: Line) -> None:
        """Note that a reply has ended; check it and hand it to the applicant's party."""
        begun, sizes = self._lines[line], self.requests[line.request]
        body = begun.incoming.checked(begun.peer.name)
        if not (line.request == 0 and sizes.streams):
            self._inbox.put(begun.seat, line.request, self._symbols(begun, sizes, body))
        if self._watch is not None:
            self._watch(begun.peer, begun.message, begun.incoming.reply(body))

    def _symbols(self, begun: Opened, sizes: Sizes, body: bytes) -> Any:
        try:
            return wire.unpack("answer", sizes.answered, body, sizes.down[begun.seat])
        except Malformed as error:
            raise ServerFault(begun.peer.name, str(error)) from None

    def broke(self, line: Line, why: Exception) -> None:
        """Note that a request failed and will not be sent again."""
        self._errors[self._lines[line].seat] = why

    @property
    def is_untouched(self) -> bool:
        """Whether all servers refused the first request because they have another offer: no ticket is spent by that."""
        codes = [error.code if isinstance(error, ServerFault) else None for error in self._errors.values()]
        return len(codes) == len(self.servers) == len(self._lines) and all(code in OTHER_OFFER for code in codes)

    def finish(self) -> Seen | None:
        """Process the last answers, which wait until every connection is closed; return all that was seen."""
        self._over = True
        self._play()
        return self._seen

    # --- the party's side -------------------------------------------------------------------------------------------

    def _next(self, received: Any) -> Effect | None:
        try:
            return self._party.send(received)
        except StopIteration as end:
            self._seen = end.value
            return None

    def _play(self) -> None:
        """Run the applicant's party until it must wait.

        It gets the last answer only after hanging up, unless that is one that is read as it comes.
        """
        while self._effect is not None:
            received = None
            if isinstance(self._effect, Send):
                self._out.append(self._effect)
            elif isinstance(self._effect, Take):
                last = self._effect.request == len(self.requests) - 1
                held_back = last and not self.requests[self._effect.request].streams and not self._over
                if held_back or not self._inbox.has(self._effect):
                    return
                received = self._effect.check(self._inbox.take(self._effect))
            self._effect = self._next(received)


class Linked(Run):
    """A run of two servers that talk to each other: attempts, until one of them brings an answer.

    An attempt that broke off is never repeated: the next one has fresh shares and fresh randomness. Before that, both
    servers must say that the attempt before gave nothing and never will. If it did give something, they say so too.
    """

    def __init__(self, *args: Any, begin: Begin, patience: float = 10.0, **options: Any) -> None:
        self._begin, self._patience, self._waited, self._pause = begin, patience, 0.0, _PAUSE
        self.attempt, self._asked = 0, False
        super().__init__(*args, begin=begin, **options)

    def _start(self) -> None:
        self._uploads: list[deque[bytes]] = [deque(), deque()]
        self._sent_bytes, self._uploaded = [0, 0], 0
        self._answers: dict[int, Any] = {}
        self._refusals: dict[int, str] = {}  # by seat: how the attempt ended there
        self._dropped: set[int] = set()
        self._queries: dict[int, bytes] = {}  # by seat: its share of the question, before what was dealt to it

    def todo(self) -> Iterator[Do]:
        """Yield the next attempt, or what finds out how the last one ended."""
        if self._errors:
            self.error = self._errors[min(self._errors)]
        if self.error is not None or (self._asked and len(self._answers) == 2):
            return
        if not self._asked:
            yield from self._attempted()
            return
        missing = [seat for seat in (0, 1) if seat not in self._answers]
        said = [self._refusals.get(seat) for seat in missing]
        if all(code in _NOTHING_BEGAN for code in said) and len(missing) == 2:
            yield from self._again(self.attempt)
        elif all(code == "attempt_over" for code in said) and len(missing) == 2:
            yield from self._again(self.attempt + 1)
        else:
            yield from self._wait()
            for seat in missing:
                if self._refusals.get(seat) != "attempt_over" and self.error is None:
                    yield self._begun(seat, "collect", self.attempt, self.requests[0])

    def _attempted(self) -> Iterator[Do]:
        self._asked = True
        for seat in (0, 1):
            yield self._begun(seat, "attempt", self.attempt, self.requests[0])

    def _again(self, attempt: int) -> Iterator[Do]:
        """Share the question anew, and send it under this number."""
        yield from self._wait()
        if attempt >= MOST_ATTEMPTS:
            self.error = self.error or ServerFault("the servers", f"broke off {MOST_ATTEMPTS} attempts in a row")
        if self.error is not None:
            return
        if attempt > self.attempt:  # the servers moved, so patience starts again
            self._waited, self._pause = 0.0, _PAUSE
        self.attempt, self._party = attempt, self._begin()
        self._effect = self._next(None)
        self._start()
        yield from self._attempted()

    def _wait(self) -> Iterator[Do]:
        self._waited += self._pause
        if self._waited > self._patience:
            failed = self._last or ServerFault("the servers", "did not answer in time")
            self.error = failed
            return
        yield Do("wait", seconds=self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    _last: Exception | None = None

    def more(self, line: Line) -> bytes | None:
        """Return the next bytes of an upload; nothing if the other upload must catch up, None at the end."""
        begun = self._lines[line]
        seat = begun.seat
        if begun.message.kind == "collect" or self._sent_bytes[seat] == self.requests[0].body(seat):
            return None
        while sum(map(len, self._uploads[seat])) < _PIECE and isinstance(self._effect, Send):
            if 1 - seat not in self._dropped and sum(map(len, self._uploads[1 - seat])) > _AHEAD:
                break
            send = self._effect
            packed = wire.pack(send.alphabet, send.symbols)
            self._queries.setdefault(int(send.to), packed)
            if int(send.to) not in self._dropped:
                self._uploads[int(send.to)].append(packed)
            self._effect = self._next(None)
        part = b"".join(self._uploads[seat])
        self._uploads[seat].clear()
        self._sent_bytes[seat] += len(part)
        self._uploaded += len(part)
        if self._progress is not None and part:
            self._progress(self._uploaded, sum(self.requests[0].body(each) for each in (0, 1)))
        return part

    def heard(self, line: Line, data: bytes) -> None:
        """Take the next bytes of a reply."""
        self._lines[line].incoming.take(data)

    def wants(self, line: Line) -> bool:
        """Return True: replies are short."""
        return True

    def ended(self, line: Line) -> None:
        """Note that a reply has ended."""
        begun, (sizes,) = self._lines[line], self.requests
        body = begun.incoming.checked(begun.peer.name)
        self._answers[begun.seat] = self._symbols(begun, sizes, body)
        if self._watch is not None:
            query = self._queries.get(begun.seat, b"")  # a watcher sees that much: what was dealt has megabytes
            self._watch(begun.peer, replace(begun.message, body=query), begun.incoming.reply(body))

    def broke(self, line: Line, why: Exception) -> None:
        """Note how a request failed; some failures only mean that the servers must be asked again."""
        begun, code = self._lines[line], why.code if isinstance(why, ServerFault) else "fatal"
        seat = begun.seat
        if begun.message.kind == "collect" and code in _NOTHING_BEGAN:
            code = None  # a server that is too busy to say how an attempt ended has not said that it never began
        self._dropped.add(seat)
        self._uploads[seat].clear()
        if code in (*_NOTHING_BEGAN, *_NOT_YET, "attempt_over"):
            self._refusals[seat], self._last = code or "", why
        else:
            self._errors[seat] = why

    @property
    def is_untouched(self) -> bool:
        """Whether no attempt ever began, and a server has another offer."""
        codes = [self._refusals.get(seat) for seat in (0, 1)]
        other = any(code in OTHER_OFFER for code in codes)
        return self.attempt == 0 and other and all(code in _NOTHING_BEGAN for code in codes)

    def finish(self) -> Seen | None:
        """Hand both answers to the applicant's party; return all that was seen."""
        while isinstance(self._effect, Send):
            self._effect = self._next(None)
        for seat, symbols in self._answers.items():
            self._inbox.put(seat, 0, symbols)
        self._answers = {}
        return super().finish()
