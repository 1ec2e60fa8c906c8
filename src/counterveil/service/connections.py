"""Close idle connections: after a deadline, and at once when a new connection needs room.

uvicorn has no deadline for headers, and refuses new connections when it has many. So a few hundred silent connections
would block it. This module decides which connection to close. granian has such a deadline, but it does not help: at
its limit new connections wait, and a flood of silent connections leaves even health checks unanswered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

BACKLOG = 256  # new connections that wait in the kernel
ACCEPTED = 4  # new connections at a time; clients that have a connection are served between
HANG_UP = "counterveil.hang_up"  # in a request's extensions: a function that ends the connection now
GONE = "counterveil.gone"  # in a request's extensions: a function that says whether the connection was lost
WIDEN = "counterveil.widen"  # in a WebSocket's extensions: a function that admits messages of this many bytes
FIRST_MESSAGE = 1 << 10  # bytes: the longest message on a WebSocket before that
_HEAD = 1 << 16  # bytes: the longest head of a request
_HERE, _KERNEL = 1 << 16, 1 << 17  # bytes: the most that wait to be sent, in this process and in the kernel

State = Literal["asks", "sends", "reads"]  # what the client must do next: send a head, send a body, read an answer


@dataclass
class Crowd:
    """All connections of a server, and how long each has kept it waiting. Connections that wait for it stay open.

    Parameters
    ----------
    most : connections at a time. For one more, the connection that has kept the server waiting longest is closed.
    asking : seconds for the head of a request to arrive, and for the TLS handshake before it.
    reading : seconds within which the client must read some part of an answer.
    leaving : replaces `asking` and `reading` when the server is about to stop.
    """

    most: int = 512
    asking: float = 10.0
    reading: float = 20.0
    leaving: float = 3.0
    patient: bool = False  # whether connections that have asked nothing yet are answered before the server stops
    _all: set[Connection] = field(default_factory=set, init=False)
    _waited_for: dict[State, dict[Connection, float]] = field(
        default_factory=lambda: {"asks": {}, "sends": {}, "reads": {}}, init=False
    )
    _sweeping: bool = field(default=False, init=False)

    def enter(self, connection: Connection) -> None:
        """Add a new connection, and close another if there are too many."""
        self._all.add(connection)
        self.wait_for(connection, "asks")
        if len(self._all) > self.most:
            firsts = [next(iter(each.items())) for each in self._waited_for.values() if each]
            min(firsts, key=lambda each: each[1])[0].hang_up()
        if not self._sweeping:
            self._sweeping = True
            self._sweep()

    def wait_for(self, connection: Connection, state: State | None) -> None:
        """Note what the client must do next from now on; None if it waits for the server."""
        for each in self._waited_for.values():
            each.pop(connection, None)
        if state is not None and connection in self._all:
            self._waited_for[state][connection] = asyncio.get_running_loop().time()

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self.wait_for(connection, None)

    def arriving(self) -> bool:
        """Say whether a connection is in its TLS handshake: uvicorn does not know of it yet."""
        return any(connection.transport is None for connection in self._all)

    def hurry(self) -> None:
        """Shorten the deadlines, since the server is about to stop."""
        self.reading = self.asking = min(self.leaving, self.reading, self.asking)

    def _sweep(self) -> None:
        """Close connections past their deadline, and repeat. `desk` has the deadline of bodies, by their length."""
        loop = asyncio.get_running_loop()
        limits: list[tuple[State, float]] = [("asks", self.asking), ("reads", self.reading)]
        for state, limit in limits:
            for connection, since in list(self._waited_for[state].items()):
                if loop.time() - since < limit:
                    break  # the dictionary is in order of time: the rest began to wait later
                connection.hang_up()
        self._sweeping = bool(self._all)
        if self._sweeping:
            loop.call_later(min(0.5, *(limit / 4 for _, limit in limits)), self._sweep)


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's that tells the crowd what its client must do next.

    It starts TLS itself, so that connections are counted before their handshake. It refuses a head of a request that
    goes on for too long, since httptools itself has no limit.
    """

    def __init__(self, *args: Any, crowd: Crowd, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crowd, self._tls, self._early, self._state = crowd, tls, b"", cast(State | None, "asks")
        self._raw: asyncio.Transport | None = None
        self._lost = self._leaves = self._begun = False
        self._head = 0
        self._handshake: asyncio.Task[None] | None = None
        app = self.app

        async def with_end(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = extensions
            await app(scope, receive, send)

        extensions = {HANG_UP: self.hang_up, GONE: lambda: self._lost}
        self.app = with_end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Add the connection to the crowd, then start TLS or HTTP."""
        self._raw = transport
        kernel = transport.get_extra_info("socket")
        if kernel is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Without this limit megabytes would wait in the kernel, and the server could not see that nobody reads.
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
        """Remove the connection from the crowd."""
        self._lost = True
        self._crowd.leave(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first byte of a request starts its deadline."""
        if self.transport is None:  # the handshake is over, but `_begin` was not called yet
            self._early += data
            return
        if self.timeout_keep_alive_task is not None:
            self._crowd.wait_for(self, "asks")
        self._begun = False
        super().data_received(data)
        if self._lost or self.transport.is_closing():
            return
        if self._head and not self._begun:  # all that arrived belongs to a head that has not ended
            self._head += len(data)
            if self._head > _HEAD:
                self.send_400_response(f"The head of a request is longer than {_HEAD} bytes.")
        self._note()

    def on_message_begin(self) -> None:
        """Count the bytes of a head from here on."""
        super().on_message_begin()
        self._head, self._begun = 1, True

    def on_headers_complete(self) -> None:
        """Note that the head has ended."""
        self._head = 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Note that the client must read before more is sent."""
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        super().resume_writing()
        self._note()

    def on_response_complete(self) -> None:
        """Note that the client may send its next request."""
        super().on_response_complete()
        self._note()

    def _note(self) -> None:
        if self._leaves and self.cycle is not None:
            self.cycle.keep_alive = False
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

    def handle_websocket_upgrade(self) -> None:
        """Leave the crowd: `link` has limits of its own for its connections, and closes the silent ones."""
        self._crowd.leave(self)
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        """Finish answers under way, but with shorter deadlines for clients that do not read.

        A connection that was accepted just now, and has asked nothing yet, may still ask once if the crowd is patient:
        its client has done nothing wrong, and another worker cannot take it over.
        """
        self._crowd.hurry()
        if self._crowd.patient and self.cycle is None:
            self._leaves = True
        else:
            super().shutdown()

    def hang_up(self) -> None:
        """Close the connection now, even if something is still to be sent."""
        self._crowd.leave(self)
        transport = self.transport or self._raw
        if transport is not None:
            transport.abort()


_quiet = logging.getLogger("uvicorn.error.websockets")
_quiet.setLevel(logging.WARNING)  # uvicorn logs the address of everybody who connects, at a lower level


class Upgraded(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket: it can be ended at once, and admits short messages only at first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger, self.conn.logger, self.conn.debug = _quiet, _quiet, False
        app = self.app

        async def with_end(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {HANG_UP: self.hang_up, WIDEN: self.widen}
            await app(scope, receive, send)

        self.app = with_end

    def hang_up(self) -> None:
        """Close the connection now, even if something is still to be sent."""
        self.transport.abort()

    def widen(self, most: int) -> None:
        """Admit messages of this many bytes, after the next message."""
        self.conn.max_message_size = most

    def handle_ping(self) -> None:
        """Hang up: pongs to somebody who never reads them would fill the memory, and servers ping within the link."""
        self.hang_up()

    def shutdown(self) -> None:
        """Stay open until the answers under way are finished, since they may need the link."""
        if all(isinstance(each, Upgraded) for each in self.connections):
            super().shutdown()
        else:
            self.loop.call_later(0.1, self.shutdown)


class Listener(uvicorn.Server):
    """uvicorn with connections of the class above, which start TLS themselves.

    It accepts a few connections at a time. A refused request ends its connection, so a flood of them comes over new
    connections, and waits in the kernel, while everybody who has a connection is served.
    """

    def __init__(self, config: uvicorn.Config, crowd: Crowd | None = None) -> None:
        config.load()
        self._tls, config.ssl = config.ssl, None
        self.crowd = crowd or Crowd()
        made = partial(Connection, crowd=self.crowd, tls=self._tls)
        config.http_protocol_class = cast(type[asyncio.Protocol], made)
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and log where; uvicorn does not log sockets that it is given."""
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio has used its `backlog` for this too
        if sockets and self.started:
            self._log_started_message(sockets)

    def _log_started_message(self, listeners: Any) -> None:
        self.config.ssl = self._tls  # uvicorn logs http:// or https:// by this
        super()._log_started_message(listeners)
