"""Connections to PostgreSQL that a ledger's threads share. A transaction is durable when it ends, or it failed.

PostgreSQL says that a transaction succeeded, and only warns, when somebody cancels its wait for the standby. So every
warning counts as a failure here, and there is no statement timeout, which would cancel that wait. A transaction that
takes too long loses its connection instead.

Security: a database on another machine must show its certificate (`_check_network`).
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import InvalidLedger
from ...terms.addresses import is_loopback

PATIENCE = 20.0  # seconds that a transaction may take
MOST = 8  # connections of one process: their transactions reach the disk and the standby together
_WATCH = 0.5  # seconds between two looks at the clock
_DEFAULTS = {  # the address may say otherwise
    "application_name": "counterveil",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_SETTINGS = """
SET synchronous_commit = on; SET statement_timeout = 0; SET lock_timeout = '15s'; SET client_min_messages = warning;
SET idle_in_transaction_session_timeout = '30s'; SET search_path = pg_catalog
"""


def name_of(address: str) -> str:
    """Return an address without its password and user, to be shown."""
    parts: dict[str, Any] = {}
    with suppress(psycopg.Error):  # its message may quote the password, as may messages about a host or a port
        parts = conninfo_to_dict(address)
    host, port = parts.get("host") or "localhost", str(parts.get("port") or "5432")
    if not parts or "@" in host or port.strip("0123456789,"):
        raise InvalidLedger(
            "the ledger",
            got="an address that PostgreSQL cannot read",
            expected="postgresql://user:password@host:port/database, with %40 for @ and %2F for / in a password",
        )
    return f"postgresql://{host}/{parts.get('dbname') or ''}"


def _check_network(address: str) -> None:
    """Refuse a database on another machine, unless its certificate is checked or TLS is turned off by name.

    By default libpq tries TLS, checks no certificate, and goes on in plain text. Then whoever is in between can read
    and change entries, and a used ticket is good again. `require` checks no certificate either.
    """
    parts = conninfo_to_dict(address)
    # What a service's file says, libpq alone reads. It may name any machine, and it outdoes the environment.
    service = parts.get("service") or os.environ.get("PGSERVICE")
    around = {} if service else os.environ
    hosts = str(parts.get("host") or around.get("PGHOST", "")).split(",")
    addresses = str(parts.get("hostaddr") or around.get("PGHOSTADDR", "")).split(",")
    places = [number or host for host, number in zip_longest(hosts, addresses, fillvalue="")]
    if not service and all(not place or place.startswith("/") or is_loopback(place) for place in places):
        return  # a socket of this machine, or its loopback address
    mode = parts.get("sslmode") or around.get("PGSSLMODE") or "prefer"
    if mode not in ("verify-full", "verify-ca", "disable"):
        raise InvalidLedger(
            name_of(address),
            got=f"sslmode={mode} to {'a service' if service else ', '.join(places)}, which checks no certificate",
            expected="between machines sslmode=verify-full or verify-ca; on a network that you trust, sslmode=disable",
        )


class Line:
    """One connection, and until when its transaction may take."""

    def __init__(self, address: str) -> None:
        settings: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(address)}
        self.connection = psycopg.connect(make_conninfo("", **settings), autocommit=True)
        self._socket = socket.fromfd(self.connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        self._warnings: list[str] = []
        self.connection.add_notice_handler(lambda said: self._warnings.append(said.message_primary or "a warning"))
        self.until, self._is_set = math.inf, False

    def run(self, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def begin(self) -> None:
        """Begin a transaction."""
        self.until = time.monotonic() + PATIENCE
        if not self._is_set:
            self.run(_SETTINGS)
            self._is_set = True
        self._warnings.clear()
        self.run("BEGIN ISOLATION LEVEL READ COMMITTED")  # rows are read after the lock on the ticket was got

    def commit(self) -> None:
        """End the transaction; raise an error unless it is durable here and at the standbys."""
        ended = self.connection.execute("COMMIT").statusmessage
        if ended != "COMMIT" or self._warnings:
            raise psycopg.OperationalError(f"{ended}: {', '.join(self._warnings)}")

    def cut(self) -> None:
        """Break the connection, from whatever thread: whoever waits for it gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self.connection.close()


class Lines:
    """A limited number of connections, opened when they are needed, and a thread that ends those that take too long."""

    def __init__(self, address: str) -> None:
        self.name, self._address = name_of(address), address
        _check_network(address)
        self._lock, self._places = threading.Lock(), threading.Semaphore(MOST)
        self._idle: list[Line] = []
        self._busy: set[Line] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="ledger", daemon=True).start()

    @contextmanager
    def transaction(self) -> Iterator[Line]:
        """Lend a connection in a transaction. It is durable when the block ends, and undone if that raises an error."""
        if not self._places.acquire(timeout=PATIENCE):
            raise psycopg.OperationalError("all connections are in use")
        line = None
        try:
            line = self._begin()
            try:
                yield line
            except psycopg.Error:
                raise
            except BaseException:
                line.run("ROLLBACK")
                self._give_back(line)
                line = None
                raise
            line.commit()
            self._give_back(line)
            line = None
        finally:
            if line:
                self._drop(line)
            self._places.release()

    def _begin(self) -> Line:
        """Begin a transaction on an idle connection that still works, or on a new one."""
        while True:
            with self._lock:
                if self._closed.is_set():
                    raise psycopg.OperationalError("the ledger is closed")
                idle = self._idle.pop() if self._idle else None
            line = idle or Line(self._address)
            with self._lock:
                self._busy.add(line)
            try:
                line.begin()
            except psycopg.Error:
                self._drop(line)
                if not idle:
                    raise
            else:
                return line

    def _give_back(self, line: Line) -> None:
        with self._lock:
            self._busy.discard(line)
            line.until = math.inf
            if not self._closed.is_set():
                self._idle.append(line)
                return
        line.close()

    def _drop(self, line: Line) -> None:
        """Close a connection that failed, and the idle ones, which are most likely no better."""
        with self._lock:
            self._busy.discard(line)
            dropped, self._idle = [line, *self._idle], []
        for each in dropped:
            each.close()

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH):
            with self._lock:
                for line in self._busy:
                    if line.until < time.monotonic():
                        line.cut()

    def close(self) -> None:
        """Close all connections; those that are in use, when their transactions end."""
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()
