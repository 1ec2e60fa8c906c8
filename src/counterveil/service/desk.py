"""A request from its first byte to the last of its answer, within limits of time, memory and cores.

Security: what is refused, and when, depends on how much others ask for and how fast they read, never on what they ask.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..algebra.compiled import cores
from ..errors import CounterveilError, Refused
from ..terms import wire
from .connections import HANG_UP
from .limits import GaveWay, Place, Places
from .server import Reply, Server, Turn

T = TypeVar("T")

_BODY = 10.0  # seconds for a body to arrive, and what it takes at the slowest
_SLOWEST_WRITER = 1 << 14  # bytes a second
_PATIENCE = 60.0  # seconds for an answer to leave, and what it takes at the slowest
_SLOWEST_READER = 1 << 16  # bytes a second
_ANSWERS = 24  # under way at a time: some 17 MiB each, where they are sealed
_BODIES = 64 << 20  # bytes of bodies that are being read
_PIECE = 1 << 16  # bytes sent at a time, so that it is seen whether they are read


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """End a connection whose other end gave it up, or does not use it: nothing more is sent."""
    scope["code"] = "disconnected"
    hang_up = scope.get("extensions", {}).get(HANG_UP)
    if hang_up is not None:
        hang_up()
        while (await receive())["type"] != "http.disconnect":
            pass


class _Body:
    """The body of an HTTP request, as far as it has arrived."""

    def __init__(self, receive: Receive, place: Place) -> None:
        self._receive, self._place, self._more = receive, place, True
        self.here = bytearray()

    async def reach(self, length: int) -> bytes:
        """Wait for so many bytes, or for the end; return what is there."""
        while self._more and len(self.here) < length:
            with self._place.waiting():
                message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, self._more = message.get("body", b""), message.get("more_body", False)
            self._place.moved(len(chunk))
            self.here += chunk
        return bytes(self.here)

    async def skip(self) -> None:
        """Wait for the end, and keep nothing."""
        while self._more:
            self.here.clear()
            await self.reach(1)


class _Source:
    """A reply that is let go at the end, whoever still holds this: megabytes would else wait for the collector."""

    def __init__(self, answer: Callable[[], Reply]) -> None:
        self.length, self._parts = answer()
        self.first = self.part()  # often all of it

    def part(self) -> bytes:
        """Return the next part."""
        return next(self._parts)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._parts = iter(())


class Desk:
    """Answers requests: body, checks, place, ledger, answer, in that order, and each within its limits.

    Refusals never wait for the answers of others: only what comes after the ledger is limited by the cores.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._most = server, server.longest
        self._answers, self._bodies = Places(_ANSWERS), Places(_BODIES, queue=512)
        self._checking = anyio.CapacityLimiter(cores())
        self._computing = anyio.CapacityLimiter(cores())  # more at a time only get in each other's way

    async def serve(self, kind: wire.RequestKind, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise why not."""
        try:
            turn = await self._turn(Request(scope, receive), kind)
            async with self._answers.hold(name=turn.fingerprint) as place:
                if await Request(scope, receive).is_disconnected():
                    raise ClientDisconnect  # before the ticket is spent
                await run_in_threadpool(turn.spend)
                reply = await self._compute(partial(_Source, turn.answer))
                # After its last answer a ticket's connection has served: a page cannot close it, and two questions
                # over one connection are one person's.
                headers = {"content-length": str(reply.length)} | ({"connection": "close"} if turn.last else {})
                await self._send(reply, headers, place, scope, receive, send)
        except GaveWay:
            await _hang_up(scope, receive)

    async def _turn(self, request: Request, kind: wire.RequestKind) -> Turn:
        """Read a request no longer than the terms allow. Its head is checked before the rest is waited for."""
        length = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
            raise Refused("length_required", "a request must say how long its body is")
        if len(length) > 20 or int(length) > self._most:
            raise Refused("too_long", f"{length[:20]} bytes, where the longest request has {self._most}")
        async with self._bodies.hold(int(length)) as place:
            seconds = _BODY + int(length) / _SLOWEST_WRITER
            body = _Body(request.receive, place)
            try:
                with anyio.fail_after(seconds):
                    head = await body.reach(min(int(length), wire.ENVELOPE))
                    try:
                        admitted = await self._check(self._server.admit, head[: wire.ENVELOPE], int(length), kind)
                    except CounterveilError:
                        await body.skip()  # or the other end may not read why it is refused
                        raise
                    whole = await body.reach(int(length) + 1)  # to its end
            except TimeoutError:
                raise Refused("too_slow", f"the body did not arrive within {seconds:.0f} seconds") from None
            return await self._check(admitted.read, whole)

    async def _check(self, work: Callable[..., T], *args: Any) -> T:
        """Do what takes a moment, beside the answers of others."""
        return await anyio.to_thread.run_sync(partial(work, *args), limiter=self._checking)

    async def _send(
        self, reply: _Source, headers: dict[str, str], place: Place, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send an answer as it is made and read; one who takes too long for it is cut off."""

        async def sending(message: Message) -> None:
            with place.waiting():
                await send(message)
            place.moved(len(message.get("body", b"")))

        answer = StreamingResponse(self._pieces(reply), media_type=wire.MEDIA_TYPE, headers=headers)
        with reply, anyio.move_on_after(_PATIENCE + reply.length / _SLOWEST_READER) as limit:
            await answer(scope, receive, sending)
        if limit.cancelled_caught:
            raise GaveWay

    async def _compute(self, work: Callable[[], T]) -> T:
        """Do what takes long, when there is a core for it, and no more if the place was lost meanwhile."""
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
