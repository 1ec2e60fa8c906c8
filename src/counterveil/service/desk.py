"""Serve one HTTP request from its first byte to the last byte of its answer, within limits of time, memory and cores.

Security: what is refused, and when, depends on how much others ask for and how fast they read, never on what they ask.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..algebra.compiled import cores
from ..errors import CounterveilError, Refused
from ..terms import wire
from .attempts import Attempt
from .clerk import Clerk
from .connections import GONE, HANG_UP
from .limits import GaveWay, Place, Places
from .server import Admitted, Asked, Reply, Server, Turn
from .spans import Part, Trace, untraced
from .spool import Spool
from .together import Together

T = TypeVar("T")

_BODY = 10.0  # seconds for a body to arrive, plus the time of its bytes at `_SLOWEST_WRITER`
_SLOWEST_WRITER = 1 << 14  # bytes a second
_SLOWEST_UPLOAD = 1 << 18  # bytes a second, where the applicant deals: megabytes that others wait for
_SPOOLED = 4 << 30  # bytes: the most that attempts on their way may have together, on disk
_RUNS = 64  # attempts under way at a time
_PATIENCE = 60.0  # seconds for an answer to leave, plus the time of its bytes at `_SLOWEST_READER`
_SLOWEST_READER = 1 << 16  # bytes a second
_ANSWERS = 24  # answers under way at a time; a sealed one takes some 17 MiB of memory
_BODIES = 64 << 20  # bytes: the most that the bodies being read may have together
_AT_ONCE = 1 << 17  # bytes: a longer body is read in a thread, since that takes milliseconds
_PIECE = 1 << 16  # bytes sent at a time; small, so that the server notices whether they are read


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """End a connection without sending anything more: it was replaced by a duplicate request, or is not used."""
    scope["code"] = "disconnected"
    hang_up = scope.get("extensions", {}).get(HANG_UP)
    if hang_up is not None:
        hang_up()
        while (await receive())["type"] != "http.disconnect":
            pass


async def _is_gone(scope: Scope, receive: Receive) -> bool:
    """Say whether the client has closed its connection."""
    gone: Callable[[], bool] | None = scope.get("extensions", {}).get(GONE)
    return await Request(scope, receive).is_disconnected() if gone is None else gone()


class _Body:
    """The part of an HTTP request's body that has arrived (`here`)."""

    def __init__(self, receive: Receive, place: Place) -> None:
        self._receive, self._place, self._more = receive, place, True
        self.here = bytearray()

    async def reach(self, length: int) -> bytes:
        """Wait until `length` bytes have arrived, or the body has ended; return what has arrived."""
        while self._more and len(self.here) < length:
            with self._place.waiting():
                message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, self._more = message.get("body", b""), message.get("more_body", False)
            self._place.moved(len(chunk))
            self.here += chunk
        return bytes(self.here)

    async def pour(self, spool: Spool) -> None:
        """Wait for the end of the body, and write all of it to a spool."""
        while True:
            spool.write(bytes(self.here))
            self.here.clear()
            if not self._more:
                return
            await self.reach(1)

    async def skip(self) -> None:
        """Wait for the end of the body, and throw it away."""
        while self._more:
            self.here.clear()
            await self.reach(1)


@contextmanager
def _deadline(length: int, pace: int) -> Iterator[None]:
    """Refuse a body that does not arrive in time."""
    seconds = _BODY + length / pace
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise Refused("too_slow", f"the body did not arrive within {seconds:.0f} seconds") from None


async def _unless_gone(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Wait for some work; stop when the client is gone."""
    made: list[T] = []
    refused: list[CounterveilError] = []  # kept, since a task group would wrap it

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            made.append(await work())
        except CounterveilError as error:
            refused.append(error)
        group.cancel_scope.cancel()
    if refused:
        raise refused[0]
    if not made:
        raise ClientDisconnect
    return made[0]


class _Source:
    """A reply whose memory is freed on exit. Otherwise megabytes would wait for the garbage collector."""

    def __init__(self, answer: Callable[[], Reply]) -> None:
        self.length, self._parts = answer()
        self.first = self.part()  # often the whole answer

    def part(self) -> bytes:
        """Return the next part."""
        return next(self._parts)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._parts = iter(())


class Desk:
    """Answers requests: reads the body, checks it, takes a place, writes the ledger, answers; each within limits.

    A refusal never waits for long answers to others, because other threads compute those. Checks and short answers take
    less than a millisecond, and run in the event loop, since it takes longer to hand one to a thread. The limits are
    the machine's: each of several `workers` has its part of them.
    """

    def __init__(
        self, server: Server, together: Together | None = None, workers: int = 1, trace: Trace = untraced
    ) -> None:
        self._server, self._most, self._trace = server, server.longest, trace
        self._together = together
        self._answers, self._bodies = Places(-(-_ANSWERS // workers)), Places(_BODIES // workers, queue=512)
        self._spooled, self._runs = Places(_SPOOLED // workers, queue=512), Places(-(-_RUNS // workers))
        self._checking = anyio.CapacityLimiter(cores())
        # more threads than cores would slow each other down
        self._computing = anyio.CapacityLimiter(-(-cores() // workers))
        self._clerk = Clerk(server.ledger)

    async def serve(self, kind: wire.RequestKind, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise the reason for a refusal."""
        try:
            with self._trace("receive"):
                turn = await self._turn(Request(scope, receive), kind)
            async with self._answers.hold(name=turn.fingerprint) as place:
                if await _is_gone(scope, receive):
                    raise ClientDisconnect  # now, so that the ticket is not spent
                with self._trace("ledger"):
                    await self._clerk.perform(turn.entry)
                with self._trace("scan" if kind == "query" else "record"):
                    make = partial(_Source, turn.answer)
                    reply = make() if turn.short else await self._compute(make)
                # Close the connection after a ticket's last answer. A page cannot do that itself, and two questions
                # over one connection would show that one person asked both.
                headers = {"content-length": str(reply.length), "content-type": wire.MEDIA_TYPE}
                headers |= {"connection": "close"} if turn.last else {}
                await self._send(reply, headers, place, scope, receive, send)
        except GaveWay:
            await _hang_up(scope, receive)

    async def serve_attempt(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Play an attempt with another server, or give out the answer to one; or raise the reason for a refusal."""
        if self._together is None:
            raise Refused("malformed", "an attempt, where servers do not talk to each other")
        meeting = self._together.meeting
        try:
            request = Request(scope, receive)
            length = self._length(request)
            async with self._spooled.hold(length) as place:
                with self._trace("receive"):
                    asked, attempt = await self._asked(_Body(request.receive, place), length, self._together)
                name: Part = "collect" if attempt is None else "attempt"
                if attempt is None:
                    find = partial(meeting.attempts.collect, asked.run, asked.seat, asked.entry)
                    work = partial(meeting.collect, asked.run, find)
                else:
                    work = partial(meeting.join, attempt)
                async with self._runs.hold():  # only now, so that nobody waits for a slow upload
                    with self._trace(name):
                        part = await _unless_gone(request, work)
                answer = Response(asked.reply + part, media_type=wire.MEDIA_TYPE, headers={"connection": "close"})
                await answer(scope, receive, send)
        except GaveWay:
            await _hang_up(scope, receive)

    async def _asked(self, body: _Body, length: int, together: Together) -> tuple[Asked, Attempt | None]:
        """Read an attempt. Its head is checked before its body has arrived, and so is the way to the other server."""

        def check(head: bytes) -> Asked:
            asked = self._server.asked(head, length, together.tapes)
            if asked.kind == "attempt":
                (other,) = set(asked.run.servers) - {self._server.number}
                together.check_reaches(other, asked.run.terms)
            return asked

        spool = Spool(length)
        with _deadline(length, _SLOWEST_UPLOAD):
            asked = await self._admitted(body, length, lambda head: self._check(partial(check, head)))
            await body.pour(spool)
        return asked, None if asked.kind == "collect" else await self._check(partial(asked.join, spool.array()))

    def _length(self, request: Request) -> int:
        """Return how long a request says it is; refuse one that does not say, or is longer than the terms allow."""
        length = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
            raise Refused("length_required", "a request must say how long its body is")
        if len(length) > 20 or int(length) > self._most:
            raise Refused("too_long", f"{length[:20]} bytes, where the longest request has {self._most}")
        return int(length)

    async def _admitted(self, body: _Body, length: int, check: Callable[[bytes], Awaitable[T]]) -> T:
        """Check the head of a request, before its body has arrived."""
        head = await body.reach(min(length, wire.ENVELOPE))
        try:
            return await check(head[: wire.ENVELOPE])
        except CounterveilError:
            await body.skip()  # a client may read the refusal only after it has sent everything
            raise

    async def _turn(self, request: Request, kind: wire.RequestKind) -> Turn:
        """Read a request, no longer than the terms allow. Its head is checked before its body has arrived."""
        length = self._length(request)

        async def check(head: bytes) -> Admitted:
            return self._server.admit(head, length, kind)

        # Up to `_PIECE` bytes of each connection are read whatever is done here, so a body that short needs no place.
        async with self._bodies.hold(length if length > _PIECE else 0) as place:
            body = _Body(request.receive, place)
            with _deadline(length, _SLOWEST_WRITER):
                admitted = await self._admitted(body, length, check)
                whole = await body.reach(length + 1)  # one more than there are, so wait for the end
        return admitted.read(whole) if length <= _AT_ONCE else await self._check(partial(admitted.read, whole))

    async def _check(self, work: Callable[[], T]) -> T:
        """Run a check that may take milliseconds in a thread that does not wait for the answers to others."""
        return await anyio.to_thread.run_sync(work, limiter=self._checking)

    async def _send(
        self, reply: _Source, headers: dict[str, str], place: Place, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an answer while it is computed; cut off an applicant who reads it too slowly."""

        async def sending(message: Message) -> None:
            with place.waiting():
                await send(message)
            place.moved(len(message.get("body", b"")))

        if len(reply.first) == reply.length <= _PIECE:
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await sending({"type": "http.response.start", "status": 200, "headers": raw})
            await sending({"type": "http.response.body", "body": reply.first})
            return
        answer = StreamingResponse(self._pieces(reply), headers=headers)
        with reply, anyio.move_on_after(_PATIENCE + reply.length / _SLOWEST_READER) as limit:
            await answer(scope, receive, sending)
        if limit.cancelled_caught:
            raise GaveWay

    async def _compute(self, work: Callable[[], T]) -> T:
        """Run a long computation when a core is free; stop after it if the place was lost meanwhile."""
        done = await anyio.to_thread.run_sync(work, limiter=self._computing)
        await anyio.lowlevel.checkpoint_if_cancelled()
        return done

    async def _pieces(self, reply: _Source) -> AsyncIterator[memoryview]:
        part, left = reply.first, reply.length
        while True:
            for start in range(0, len(part), _PIECE):
                yield memoryview(part)[start : start + _PIECE]
            left -= len(part)
            if not left:
                return
            part = await self._compute(reply.part)
