"""What a process needs before it serves: the address to listen at, and a log of JSON lines."""

from __future__ import annotations

import errno
import logging
import socket
import sys

import msgspec

from ..errors import OutOfRange


class _JsonLines(logging.Formatter):
    """Writes each log entry as one line of JSON, with what every entry of this process has in common."""

    def __init__(self, common: dict[str, int]) -> None:
        super().__init__()
        self._common = common

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        entry |= {"event": record.getMessage()} | self._common | getattr(record, "fields", {})
        return msgspec.json.encode(entry).decode()


def log_lines(level: str, **common: int) -> None:
    """Log entries of this level and above, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(common))
    for name in ("counterveil", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


def bind(host: str, port: int) -> list[socket.socket]:
    """Take the addresses of a host to listen at; refuse a port that is in use. Nothing is accepted yet."""
    bound: list[socket.socket] = []
    problem: OSError | None = None
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as error:  # this machine has no such addresses
                problem = error
                continue
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind((address[0], port, *address[2:]))
                port = made.getsockname()[1]  # where any port will do, all addresses get the same
                bound.append(made)
            except OSError as error:
                made.close()
                problem = error
                if error.errno == errno.EADDRINUSE:
                    raise
        if not bound and problem is not None:
            raise problem
    except OSError as error:
        for each in bound:
            each.close()
        expected = "an address of this machine, and a free port"
        raise OutOfRange(f"{host}, port {port}", got=error.strerror, expected=expected) from None
    return bound
