"""Listen for HTTP, and for other servers, until a signal stops the process. Logs are lines of JSON."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from .connections import FIRST_MESSAGE, Listener, Upgraded

log = logging.getLogger("counterveil")

_BACKLOG = 256  # new connections that wait in the kernel


class _JsonLines(logging.Formatter):
    """Writes each log entry as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        entry |= {"event": record.getMessage()} | getattr(record, "fields", {})
        return msgspec.json.encode(entry).decode()


def log_lines(level: str) -> None:
    """Log entries of this level and above, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("counterveil", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


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
        backlog=_BACKLOG,
        timeout_graceful_shutdown=30,
    )


def serve(
    app: FastAPI,
    about: dict[str, Any],
    *,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_level: str,
) -> None:
    """Run the server until a signal stops it; then finish the answers under way."""
    log_lines(log_level)
    config = configured(app, host=host, port=port, tls_cert=tls_cert, tls_key=tls_key)
    log.info("serving", extra={"fields": about})
    Listener(config).run()
