"""Which tickets were used, and for what: durable before an answer leaves, one ledger for each server's number.

The ledger is part of the cryptography: two different questions on one ticket would share their pads. A used ticket
is kept until it expires; then the watermark keeps it used for ever, whatever the clock says.

    spent: (ticket's id, request) -> SHA-256 of the request's bytes, expiry
    about: the server's number, the watermark, how many questions there were
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .errors import InvalidLedger, Refused

_FORMAT = 1
_PATIENCE = 30.0  # seconds that one process waits for another's transaction
_PURGE_EVERY = 60.0  # seconds

_CREATE = """
CREATE TABLE about (
    format INTEGER NOT NULL, server INTEGER NOT NULL, watermark INTEGER NOT NULL, questions INTEGER NOT NULL
);
CREATE TABLE spent (
    id BLOB NOT NULL, request INTEGER NOT NULL, fingerprint BLOB NOT NULL, expires INTEGER NOT NULL,
    PRIMARY KEY (id, request)
) WITHOUT ROWID;
CREATE INDEX spent_by_expiry ON spent (expires);
"""


class Ledger:
    """A ledger in an SQLite file, which several processes and threads may share."""

    def __init__(
        self, path: str | Path, server: int, *, new: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the ledger of a server; `new` makes it, where there is none."""
        self.path, self._clock, self._lock = Path(path), clock, threading.Lock()
        if not new and not self.path.is_file():
            raise InvalidLedger(str(path), got="no ledger", expected="the one it had; --new-ledger makes one")
        try:
            if new:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")  # on disk when a transaction returns
            with self._transaction():
                if new:
                    self._create(server)
                found = self._database.execute("SELECT format, server FROM about").fetchall()
        except (OSError, sqlite3.Error) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise InvalidLedger(str(path), got=said, expected="a ledger that can be read and written") from None
        if found != [(_FORMAT, server)]:
            raise InvalidLedger(str(path), got=f"a ledger of {found}", expected=f"that of server {server}")
        self._purged = 0.0
        self.purge()

    def _create(self, server: int) -> None:
        if self._database.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise InvalidLedger(
                str(self.path), got="a ledger there already", expected="none where a new one is asked for"
            )
        for statement in _CREATE.split(";"):
            self._database.execute(statement)
        self._database.execute("INSERT INTO about VALUES (?, ?, 0, 0)", (_FORMAT, server))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def spend(self, ticket: bytes, request: int, fingerprint: bytes, expires: int) -> None:
        """Enter a request, durably. The same bytes may come again; other bytes are refused, and so is what expired."""
        try:
            if self._clock() - self._purged > _PURGE_EVERY:
                self.purge()
            self._enter(ticket, request, fingerprint, expires)
        except sqlite3.Error:
            raise Refused("not_ready", "the ledger cannot be written") from None

    def _enter(self, ticket: bytes, request: int, fingerprint: bytes, expires: int) -> None:
        with self._transaction():
            ((watermark,),) = self._database.execute("SELECT watermark FROM about").fetchall()
            if expires <= max(watermark, self._clock()):
                raise Refused("ticket_expired", "the ticket has expired")
            entered = self._database.execute(
                "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING fingerprint",
                (ticket, request, fingerprint, expires),
            ).fetchone()
            if entered is not None and request == 0:
                self._database.execute("UPDATE about SET questions = questions + 1")
            if entered is None:
                key = (ticket, request)
                ((held,),) = self._database.execute(
                    "SELECT fingerprint FROM spent WHERE id = ? AND request = ?", key
                ).fetchall()
                if held != fingerprint:
                    raise Refused("ticket_used", "the ticket was used for another request")

    def purge(self) -> None:
        """Forget tickets that have expired, and refuse them for ever: the watermark never falls."""
        with self._transaction():
            self._purged = self._clock()
            self._database.execute("UPDATE about SET watermark = max(watermark, ?)", (int(self._purged),))
            self._database.execute("DELETE FROM spent WHERE expires <= (SELECT watermark FROM about)")

    def count(self) -> int:
        """Return how many requests are held; waits for nobody."""
        return self._read("SELECT count(*) FROM spent")

    def questions(self) -> int:
        """Return how many questions were ever answered, each ticket's once; waits for nobody."""
        return self._read("SELECT questions FROM about")

    def _read(self, statement: str) -> int:
        with closing(sqlite3.connect(self.path)) as reader:
            ((number,),) = reader.execute(statement).fetchall()
        return int(number)

    def check(self) -> None:
        """Refuse unless the ledger can be written now, and the clock is not behind it."""
        try:
            with self._transaction():
                self._database.execute("UPDATE about SET watermark = watermark")
                ((watermark,),) = self._database.execute("SELECT watermark FROM about").fetchall()
        except sqlite3.Error:
            raise Refused("not_ready", "the ledger cannot be written") from None
        if watermark > self._clock() + _PURGE_EVERY:
            raise Refused("not_ready", "the clock is behind the ledger's watermark: one of them is wrong")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()
