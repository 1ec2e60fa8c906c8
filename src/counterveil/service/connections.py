"""Connections over which nothing comes, or nothing is read: they end after a while, and at once where others need room.

uvicorn has no deadline for headers, and refuses newcomers when it has many connections: a few hundred silent ones shut
it. So this says who has to go. granian, which has such a deadline, does not help: where its limit is reached newcomers
wait, and not even health checks are answered under a flood of silent connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HANG_UP = "counterveil.hang_up"  # in a request's extensions: a function that ends the connection now
_HERE, _KERNEL = 1 << 16, 1 << 17  # bytes that wait to be sent, in this process and in the kernel

State = Literal["asks", "sends", "reads"]  # what is waited for: a request, its body, that an answer be read


@dataclass
class Crowd:
    """All connections of a server, and how long each has kept it waiting; those that wait for the server are safe.

    Parameters
    ----------
    most : connections at a time. One more, and the one that has kept the server waiting longest is closed.
    asking : seconds for the head of a request to come, and for the handshake before it.
    reading : seconds in which something of an answer must be read.
    leaving : the same, when the server is about to stop.
    """

    most: int = 512
    asking: float = 10.0
    reading: float = 20.0
    leaving: float = 3.0
    _all: set[Connection] = field(default_factory=set, init=False)
    _waited_for: dict[State, dict[Connection, float]] = field(
        default_factory=lambda: {"asks": {}, "sends": {}, "reads": {}}, init=False
    )
    _sweeping: bool = field(default=False, init=False)

    def enter(self, connection: Connection) -> None:
        """Count a new connection, and make room for it."""
        self._all.add(connection)
        self.wait_for(connection, "asks")
        if len(self._all) > self.most:
            firsts = [next(iter(each.items())) for each in self._waited_for.values() if each]
            min(firsts, key=lambda each: each[1])[0].hang_up()
        if not self._sweeping:
            self._sweeping = True
            self._sweep()

    def wait_for(self, connection: Connection, state: State | None) -> None:
        """Note what a connection is waited for from now on; nothing, where it waits for the server."""
        for each in self._waited_for.values():
            each.pop(connection, None)
        if state is not None and connection in self._all:
            self._waited_for[state][connection] = asyncio.get_running_loop().time()

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self.wait_for(connection, None)

    def hurry(self) -> None:
        """Have less patience, since the server is about to stop."""
        self.reading = self.asking = min(self.leaving, self.reading, self.asking)

    def _sweep(self) -> None:
        """Close those whose time is up, every now and then; bodies have a deadline of their own, with their length."""
        loop = asyncio.get_running_loop()
        limits: list[tuple[State, float]] = [("asks", self.asking), ("reads", self.reading)]
        for state, limit in limits:
            for connection, since in list(self._waited_for[state].items()):
                if loop.time() - since < limit:
                    break  # the others came later
                connection.hang_up()
        self._sweeping = bool(self._all)
        if self._sweeping:
            loop.call_later(min(0.5, *(limit / 4 for _, limit in limits)), self._sweep)


class Connection(H11Protocol):
    """A connection as uvicorn has it, which tells the crowd what it is waited for.

    It begins TLS by itself: otherwise nobody would count connections before their handshake.
    """

    def __init__(self, *args: Any, crowd: Crowd, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crowd, self._tls, self._early, self._state = crowd, tls, b"", cast(State | None, "asks")
        self._raw: asyncio.Transport | None = None
        self._lost = False
        self._handshake: asyncio.Task[None] | None = None
        app = self.app

        async def with_end(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {HANG_UP: self.hang_up}
            await app(scope, receive, send)

        self.app = with_end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, then begin TLS or HTTP."""
        self._raw = transport
        kernel = transport.get_extra_info("socket")
        if kernel is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):  # or megabytes wait there, and nobody sees it
            kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL)
        self._crowd.enter(self)
        if self._tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._begin_tls(transport, self._tls))

    async def _begin_tls(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            patience = self._crowd.asking
            made = await self.loop.start_tls(transport, self, tls, server_side=True, ssl_handshake_timeout=patience)
        except OSError:
            made = None
        if made is None or self._lost:
            self._crowd.leave(self)
        else:
            self._begin(made)

    def _begin(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_HERE)
        super().connection_made(transport)
        if self._early:
            self.data_received(self._early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._lost = True
        self._crowd.leave(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first of a request begin its time."""
        if self.transport is None:  # the handshake is over, and `_begin` about to be called
            self._early += data
            return
        if self.timeout_keep_alive_task is not None:
            self._crowd.wait_for(self, "asks")
        super().data_received(data)

    def handle_events(self) -> None:
        """Read what came, and see what is waited for then."""
        super().handle_events()
        self._note()

    def pause_writing(self) -> None:
        """Wait for the other end to read."""
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        """Go on: the other end reads."""
        super().resume_writing()
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note()

    def _note(self) -> None:
        state: State | None = None
        if self.flow.write_paused:
            state = "reads"
        elif self.cycle is None or self.cycle.response_complete:
            state = "asks"
        elif self.cycle.more_body:
            state = "sends"
        if state != self._state:
            self._state = state
            self._crowd.wait_for(self, state)

    def shutdown(self) -> None:
        """Finish what is under way, unless the other end does not read it."""
        self._crowd.hurry()
        super().shutdown()

    def hang_up(self) -> None:
        """End the connection now, whatever is still to be sent."""
        self._crowd.leave(self)
        transport = self.transport or self._raw
        if transport is not None:
            transport.abort()


class Listener(uvicorn.Server):
    """uvicorn with such connections; TLS is theirs."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd | None = None) -> None:
        config.load()
        self._tls, config.ssl = config.ssl, None
        made = partial(Connection, crowd=crowd or Crowd(), tls=self._tls)
        config.http_protocol_class = cast(type[asyncio.Protocol], made)
        super().__init__(config)

    def _log_started_message(self, listeners: Any) -> None:
        self.config.ssl = self._tls  # it says whether the address is one of https
        super()._log_started_message(listeners)
