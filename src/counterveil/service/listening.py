"""Listen for HTTP, and for other servers, until a signal stops the process, or a supervisor says that it is time."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from .connections import ACCEPTED, FIRST_MESSAGE, Listener, Upgraded
from .family import BEAT, Family
from .outset import bind as bind

log = logging.getLogger("counterveil")

_GARBAGE = 20_000  # new objects before the collector looks at them; a request makes some hundreds and frees them itself


class _Worker(Listener):
    """A process of a family. It accepts one connection at a time, so that others get their share."""

    def __init__(self, config: uvicorn.Config, family: Family, ready: Callable[[], None]) -> None:
        config.backlog = 1  # asyncio accepts this many at once
        super().__init__(config)
        self._family, self._ready = family, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so to the supervisor."""
        await super().startup(sockets)
        self._family.on_drain(self._drain)
        self._ready()
        self._beat()

    def _beat(self) -> None:
        """Give a sign of life, and repeat until the event loop ends or hangs."""
        self._family.alive()
        asyncio.get_running_loop().call_later(BEAT, self._beat)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more; let those who were accepted finish their handshake; then finish the answers under way."""
        for server in self.servers:
            server.close()
        self.crowd.hurry()
        until = asyncio.get_running_loop().time() + self.crowd.leaving
        while self.crowd.patient and self.crowd.arriving() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    def _drain(self) -> None:
        self.crowd.patient = self.should_exit = True


def configured(app: FastAPI, *, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> uvicorn.Config:
    """Return the settings of uvicorn. It speaks WebSocket only if the application is linked to others."""
    linked = any(isinstance(route, WebSocketRoute) for route in app.routes)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        ssl_certfile=None if tls_cert is None else str(tls_cert),
        ssl_keyfile=None if tls_key is None else str(tls_key),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        loop="asyncio",
        ws=Upgraded if linked else "none",
        ws_max_size=FIRST_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        backlog=ACCEPTED,  # asyncio accepts as many at a time; `Listener` lets more wait
        timeout_graceful_shutdown=30,
    )


def serve(
    app: FastAPI,
    about: dict[str, Any],
    bound: list[socket.socket],
    *,
    host: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    family: Family | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the server at a bound address until a signal stops it; then finish the answers under way.

    In a `family`, the function `ready` is called when the server listens.
    """
    config = configured(app, host=host, port=bound[0].getsockname()[1], tls_cert=tls_cert, tls_key=tls_key)
    log.info("serving", extra={"fields": about})
    gc.freeze()  # what was made until now stays, so it need not be looked at again
    gc.set_threshold(_GARBAGE)
    (Listener(config) if family is None else _Worker(config, family, ready)).run(sockets=bound)
