"""Connections that carry a channel: dialled by this process, or accepted by its web server."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

import websockets
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from ...errors import Malformed
from ...terms.addresses import canonical, is_exposed
from ...terms.wire import LINK_PATH
from ..connections import HANG_UP, WIDEN
from .channel import MOST_SEALED, Gone
from .siblings import HEADER, QUERY, names_in

OPENING = 5.0  # seconds for a connection to open, and as long for its handshake
_AHEAD = 4  # messages that are read before they are taken
_REFUSED = 1008  # the WebSocket code of an end by a rule; the reason says which
_MISSING = 403  # the HTTP status for a connection to a process that is not there
_REASON = 100  # characters; all reasons are ASCII


def link_url(given: str, *, insecure: bool = False) -> str:
    """Return the WebSocket address of a peer's web address; refuse plain http to other machines."""
    url = canonical(given)
    if is_exposed(url) and not insecure:
        raise Malformed("link", got=f"plain http to another machine, {url}", expected="https")
    return f"ws{url.removeprefix('http')}{LINK_PATH}"


class Missing(Gone):
    """There is no such process behind this address, or no longer."""


class _Straight(connect):
    """A connection to this address and no other: redirects are not followed."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Dialled:
    """A connection that this process opened."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        answer = connection.response
        self.processes = names_in(answer.headers.get(HEADER) if answer else None)  # those behind this address

    @classmethod
    async def open(cls, url: str, verify: ssl.SSLContext | None, process: str = "") -> Dialled:
        """Open a connection, to a certain process if one is named; raise `Gone` if that fails."""
        if process:
            url = f"{url}?{QUERY}={process}"
        tls: dict[str, Any] = {"ssl": verify} if verify is not None and url.startswith("wss:") else {}
        try:
            made = await _Straight(
                url,
                compression=None,
                max_size=MOST_SEALED,
                max_queue=_AHEAD,
                open_timeout=OPENING,
                close_timeout=1,
                ping_interval=None,
                proxy=None,
                user_agent_header=None,
                **tls,
            )
        except websockets.InvalidStatus as error:
            raise (Missing if process and error.response.status_code == _MISSING else Gone)(_told(error)) from None
        except (OSError, websockets.WebSocketException, EOFError) as error:
            raise Gone(_told(error)) from None
        return cls(made)

    async def send(self, data: bytes) -> None:
        """Send a message; wait while many bytes are on their way."""
        try:
            await self._connection.send(data)
        except websockets.ConnectionClosed as error:
            raise Gone(_told(error)) from None

    async def receive(self) -> bytes:
        """Return the next message."""
        try:
            return _binary(await self._connection.recv())
        except websockets.ConnectionClosed as error:
            raise Gone(_told(error)) from None

    async def refuse(self, reason: str) -> None:
        """Say why, and end the connection."""
        await self._connection.close(_REFUSED, reason[:_REASON])

    def abort(self) -> None:
        """End the connection now."""
        self._connection.transport.abort()


class Accepted:
    """A connection that the web server accepted. Its first message, the hello, must be short."""

    def __init__(self, websocket: WebSocket) -> None:
        extensions = websocket.scope["extensions"]
        self._websocket, self._hang_up, self._widen = websocket, extensions[HANG_UP], extensions[WIDEN]

    async def send(self, data: bytes) -> None:
        """Send a message; wait while many bytes are on their way."""
        try:
            await self._websocket.send_bytes(data)
        except (WebSocketDisconnect, RuntimeError):
            raise Gone("the connection is closed") from None

    async def receive(self) -> bytes:
        """Return the next message."""
        try:
            message = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError):
            raise Gone("the connection is closed") from None
        if message["type"] == "websocket.disconnect":
            raise Gone(message.get("reason") or "the peer closed the connection")
        self._widen(MOST_SEALED)
        return _binary(message.get("bytes"))

    async def refuse(self, reason: str) -> None:
        """Say why, and end the connection."""
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(_REFUSED, reason[:_REASON])
        self._hang_up()

    def abort(self) -> None:
        """End the connection now."""
        self._hang_up()


def _binary(data: bytes | str | None) -> bytes:
    if not isinstance(data, bytes):
        raise Malformed("message", got="text", expected="bytes")
    return data


def _told(error: Exception) -> str:
    """Say in a few words why a connection ended or was not made."""
    if isinstance(error, websockets.ConnectionClosed):
        return (error.rcvd.reason if error.rcvd else "") or "the connection is closed"
    if isinstance(error, TimeoutError):
        return f"no connection within {OPENING:g} seconds"
    return str(error)[:200] or type(error).__name__
