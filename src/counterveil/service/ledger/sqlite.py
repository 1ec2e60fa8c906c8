"""A ledger in an SQLite file. An entry is on disk before the answer leaves. Each server's number has its own file.

The ledger is part of the cryptography: two different questions with one ticket would share their pads. A used ticket
is kept until it expires. After that the watermark keeps it refused for ever, whatever the clock says. See
docs/ledger.md. The file has these tables:

    about:  the format, the server's number, the ledger's instance id, the watermark, the number of questions, and the
            number of writes. Every write changes it, so every write-ahead log has a copy of it
    spent:  (SHA-256 of the ticket's id, request) -> SHA-256 of the request's bytes, expiry, how often served, who asked
    attempts: all other entries: those of servers that talk to each other, one for each attempt
    keys:   the ids of the common keys that the ledger was used with, and whether it refuses them, as a backup does
    origin: the instance id once more. It never changes, so no log has a copy of it. SQLite would apply a log that
            another ledger left here; then `about` and `origin` have different ids, and the file is refused

Versions that knew no attempts wrote format 2. A file stays at format 2 until its first attempt is entered, so those
versions can still open it. From then on it is format 3, and they refuse it: they would not know the attempts.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

from ...crypto.randomness import keystream, new_id, new_key
from ...errors import InvalidLedger, Refused, WrongType
from .contract import GRACE, PURGE_EVERY, Entry, Key, Row, Standing, State, check_clock, decide, unwritable
from .locks import AVAILABLE, Lock, place_of

KEY_ID_BYTES = 16

_FORMAT, _WITH_ATTEMPTS = 2, 3
_PATIENCE = 30.0  # seconds that one process waits for another's transaction
_LAST_WAIT = 2.0  # seconds that a process which closes the ledger waits for the others
_PROBE = 1 << 16  # bytes that must still fit on the disk

_CREATE = """
CREATE TABLE about (
    format INTEGER NOT NULL, server INTEGER NOT NULL, instance BLOB NOT NULL,
    watermark INTEGER NOT NULL, questions INTEGER NOT NULL, writes INTEGER NOT NULL, in_use INTEGER NOT NULL
);
CREATE TABLE origin (instance BLOB NOT NULL);
CREATE TABLE keys (id BLOB PRIMARY KEY, refused INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE spent (
    ticket BLOB NOT NULL, request INTEGER NOT NULL, fingerprint BLOB NOT NULL, expires INTEGER NOT NULL,
    served INTEGER NOT NULL, holder BLOB NOT NULL, PRIMARY KEY (ticket, request)
) WITHOUT ROWID;
CREATE INDEX spent_by_expiry ON spent (expires);
"""
_CREATE_ATTEMPTS = """
CREATE TABLE IF NOT EXISTS attempts (
    ticket BLOB NOT NULL, run TEXT NOT NULL, request INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
    proof BLOB NOT NULL, expires INTEGER NOT NULL, holder BLOB NOT NULL, reply BLOB NOT NULL, served INTEGER NOT NULL,
    PRIMARY KEY (ticket, run, request, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_by_expiry ON attempts (expires);
"""
_ROWS = """
SELECT '', request, 0, 'spent', fingerprint, expires, holder, x'', served FROM spent WHERE ticket = ?1
UNION ALL
SELECT run, request, attempt, state, proof, expires, holder, reply, served FROM attempts WHERE ticket = ?1
"""
_SPEND = "INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET served = excluded.served"
_ATTEMPT = "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PURGE_ATTEMPTS = """
DELETE FROM attempts WHERE expires <= (SELECT watermark FROM about)
AND (state = 'spent' OR expires <= (SELECT watermark FROM about) - ?)
"""
_COUNTS = "SELECT 'spent', count(*) FROM spent UNION ALL SELECT state, count(*) FROM attempts GROUP BY state"
_COPY = """
INSERT INTO about SELECT format, server, ?1, watermark, questions, writes, 0 FROM source.about;
INSERT INTO origin SELECT ?1;
INSERT INTO keys SELECT id, 1 FROM source.keys;
INSERT INTO spent SELECT * FROM source.spent
"""
_COPY_ATTEMPTS = ";INSERT INTO attempts SELECT * FROM source.attempts"


class Ledger:
    """A ledger in an SQLite file, which several processes and threads may share.

    `instance` names it: 16 bytes, drawn when it was made.
    """

    instance: bytes

    def __init__(
        self,
        path: str | Path,
        server: int,
        *,
        key_id: bytes = b"",
        owner: bytes = b"",
        new: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the ledger of a server for the common key with this id; with `new`, make it.

        `owner` is the server's own public key. A server has one ledger at a time, whatever the common key.
        """
        if len(key_id) not in (0, KEY_ID_BYTES):
            raise WrongType("key id", got=f"{len(key_id)} bytes", expected=f"{KEY_ID_BYTES}, or none")
        self.path = Path(os.path.realpath(path))  # SQLite names the log after the path, so a file must have one path
        self._clock, self._lock = clock, threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._locks: list[Lock] = []
        self._is_open = False  # until then `close` writes nothing to the file
        self._purged = 0.0
        if not new and not self.path.is_file():
            raise InvalidLedger(str(path), got="no ledger", expected="the one it had; --new-ledger makes one")
        try:
            self._open(server, key_id, owner, new)
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise _unusable(path, error) from None
        except BaseException:
            self.close()
            raise

    def _open(self, server: int, key_id: bytes, owner: bytes, new: bool) -> None:
        if new:
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        self._place = place_of(self.path)
        if self.path.stat().st_nlink > 1:
            raise InvalidLedger(str(self.path), got="a file with several names", expected="one: each would have a log")
        if AVAILABLE:
            for name in filter(None, (key_id, owner)):
                self._locks.append(Lock(name, server, self.path, self._place))
        alone = bool(self._locks) and self._locks[0].alone  # no other process opens or closes it now
        log = self.path.with_name(f"{self.path.name}-wal").exists()
        self._database = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = FULL")  # on disk when a transaction returns
        with self._transaction():
            if new:
                self._create(server)
            self._admit(server, key_id)
            for statement in _CREATE_ATTEMPTS.split(";"):  # a file of format 2 may lack this table
                self._run(statement)
            for lock in self._locks:
                lock.refuse_others(self.instance)
            if alone and not log and self._run("SELECT 1 FROM about WHERE in_use"):
                raise InvalidLedger(
                    str(self.path),
                    got="a copy of a ledger that was in use, without the log beside it (-wal)",
                    expected="both files, or a backup: entries are missing from this one alone",
                )
            if self._locks:
                self._run("UPDATE about SET in_use = 1")
        for lock in self._locks:
            lock.share(self.instance)
        self.purge()
        self._empty_log()
        self._is_open = True

    def _create(self, server: int) -> None:
        if self._run("SELECT 1 FROM sqlite_master"):
            raise InvalidLedger(
                str(self.path), got="a ledger there already", expected="none where a new one is asked for"
            )
        for statement in _CREATE.split(";"):
            self._run(statement)
        instance = new_id()
        self._run("INSERT INTO about VALUES (?, ?, ?, 0, 0, 0, 0)", _FORMAT, server, instance)
        self._run("INSERT INTO origin VALUES (?)", instance)

    def _admit(self, server: int, key_id: bytes) -> None:
        """Refuse a ledger of another format or server, one with another ledger's log, and a backup with an old key."""
        _check_format(self.path, self._run("SELECT format FROM about"))
        ((number, self.instance, origin),) = self._run(
            "SELECT server, about.instance, origin.instance FROM about, origin"
        )
        if number != server:
            raise InvalidLedger(
                str(self.path), got=f"the ledger of server {number}", expected=f"that of server {server}"
            )
        if self.instance != origin:
            raise InvalidLedger(
                str(self.path),
                got="the write-ahead log of another ledger beside it",
                expected="a backup restored where no -wal and -shm files are left: copy it again, without them",
            )
        if key_id:
            self._run("INSERT INTO keys VALUES (?, 0) ON CONFLICT DO NOTHING", key_id)
            if self._run("SELECT 1 FROM keys WHERE id = ? AND refused", key_id):
                raise InvalidLedger(
                    str(self.path),
                    got="a backup taken under this common key",
                    expected="a new common key: tickets used since the backup are not in it",
                )

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._database is None:
            raise sqlite3.ProgrammingError("the ledger is closed")
        return self._database.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._run("BEGIN IMMEDIATE")
            try:
                if place_of(self.path) != self._place:
                    raise _moved()
                yield
                self._run("COMMIT")
            except BaseException:
                if self._database is not None and self._database.in_transaction:
                    self._run("ROLLBACK")
                raise

    def perform(self, entry: Entry) -> Standing:
        """Enter a state, durably, if the table allows it, or refuse."""
        try:
            if self._clock() - self._purged > PURGE_EVERY:
                self.purge()
            with self._transaction():
                return self._perform(entry)
        except (OSError, sqlite3.Error):
            raise unwritable() from None

    def _perform(self, entry: Entry) -> Standing:
        now, rows = max(self._watermark(), self._clock()), self._rows(entry.key.ticket)
        row, question, standing = decide(rows, entry, now)
        if row != rows.get(entry.key):
            format_now = self._write(entry.key, row)
            self._run(
                "UPDATE about SET questions = questions + ?, writes = writes + 1, format = max(format, ?)",
                int(question),
                format_now,
            )
        return standing

    def _rows(self, ticket: bytes) -> dict[Key, Row]:
        found = self._run(_ROWS, hashlib.sha256(ticket).digest())
        return {Key(ticket, _servers(run), request, attempt): Row(*row) for run, request, attempt, *row in found}

    def _write(self, key: Key, row: Row) -> int:
        """Write a row; return the format that the file must have to hold it."""
        ticket = hashlib.sha256(key.ticket).digest()
        if row.state == "spent" and not key.run and not key.attempt:
            self._run(_SPEND, ticket, key.request, row.proof, row.expires, row.served, row.holder)
            return _FORMAT
        self._run(_ATTEMPT, ticket, ",".join(map(str, key.run)), key.request, key.attempt, *row)
        return _WITH_ATTEMPTS

    def state(self, key: Key) -> State | None:
        """Return the state of a key, to tell it to the peer."""
        try:
            with self._transaction():
                self._watermark()
                row = self._rows(key.ticket).get(key)
        except (OSError, sqlite3.Error):
            raise unwritable() from None
        return row.state if row else None

    def _watermark(self) -> int:
        ((instance, watermark),) = self._run("SELECT instance, watermark FROM about")
        if instance != self.instance:  # another ledger was written over this one
            raise _moved()
        return int(watermark)

    def purge(self) -> None:
        """Remove expired entries. The watermark keeps their tickets refused for ever, since it never falls."""
        with self._transaction():
            self._purged = self._clock()
            self._run("UPDATE about SET watermark = max(watermark, ?)", int(self._purged))
            self._run("DELETE FROM spent WHERE expires <= (SELECT watermark FROM about)")
            self._run(_PURGE_ATTEMPTS, GRACE)

    def counts(self) -> dict[State, int]:
        """Return how many entries are in each state, without waiting for a lock."""
        counts: dict[State, int] = dict.fromkeys(get_args(State), 0)
        for state, count in self._read(_COUNTS):
            counts[state] += count
        return counts

    def count(self) -> int:
        """Return how many entries there are, without waiting for a lock."""
        return sum(self.counts().values())

    def questions(self) -> int:
        """Return how many tickets were ever used, without waiting for a lock."""
        ((number,),) = self._read("SELECT questions FROM about")
        return int(number)

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True)) as reader:  # rw: it never makes a file
            return reader.execute(statement).fetchall()

    def check(self) -> None:
        """Refuse unless the ledger can be written now, at its old place, and the clock is not behind its watermark."""
        try:
            with self._transaction():
                watermark = self._watermark()
                self._run("UPDATE about SET writes = writes + 1")  # SQLite writes only if something changes
            with tempfile.TemporaryFile(dir=self.path.parent) as probe:  # the log may have room when the disk is full
                probe.write(keystream(new_key())(_PROBE))  # random bytes, which a disk cannot compress
                probe.flush()
                os.fsync(probe.fileno())
        except (OSError, sqlite3.Error):
            raise unwritable() from None
        check_clock(watermark, self._clock())

    def close(self) -> None:
        """Close the file. Every entry is then in the file itself, and not only in its log."""
        with self._lock:
            if self._database is not None:
                if self._is_open and (not self._locks or self._locks[0].is_last()):
                    with suppress(sqlite3.Error):
                        self._run(f"PRAGMA busy_timeout = {int(1000 * _LAST_WAIT)}")
                        self._run("UPDATE about SET in_use = 0")
                self._empty_log()
                self._database.close()
                self._database = None
            for lock in self._locks:
                lock.release()

    def _empty_log(self) -> None:
        """Move the entries of the write-ahead log to the file, unless other processes are using it."""
        with suppress(sqlite3.Error):
            self._run(f"PRAGMA busy_timeout = {int(1000 * _LAST_WAIT)}")
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")
            self._run(f"PRAGMA busy_timeout = {int(1000 * _PATIENCE)}")


def backup(path: str | Path, target: str | Path) -> int:
    """Copy a ledger, even while it is in use, to a new file; return how many entries it has.

    The copy has another instance id, and refuses every common key that the ledger knew, because tickets used after the
    copy are missing from it. So it can be used only with a new common key.
    """
    path, target = Path(path), Path(target)
    if not path.is_file():
        raise InvalidLedger(str(path), got="no ledger", expected="one to back up")
    try:
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name}-") as folder:
            made = Path(folder, "ledger")
            os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(sqlite3.connect(made, timeout=_PATIENCE, isolation_level=None)) as database:
                count = _copy(path, database)
            os.link(made, target)  # atomic, and never replaces another file
    except FileExistsError:
        raise InvalidLedger(str(target), got="a file there already", expected="a new one") from None
    except OSError as error:
        raise InvalidLedger(str(target), got=error.strerror, expected="a file that can be written") from None
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    return count


def _copy(path: Path, database: sqlite3.Connection) -> int:
    """Fill a new ledger from another, in one transaction, so that the copy shows one moment."""
    database.execute("PRAGMA synchronous = FULL")
    database.execute("ATTACH ? AS source", (str(path),))
    database.execute("BEGIN")
    _check_format(path, database.execute("SELECT format FROM source.about").fetchall())
    instance = new_id()
    for statement in (_CREATE + _CREATE_ATTEMPTS).split(";"):
        database.execute(statement)
    has_attempts = database.execute("SELECT 1 FROM source.sqlite_master WHERE name = 'attempts'").fetchall()
    for statement in (_COPY + _COPY_ATTEMPTS if has_attempts else _COPY).split(";"):
        database.execute(statement, (instance,) if "?1" in statement else ())
    counts = database.execute(_COUNTS).fetchall()
    database.execute("COMMIT")
    return sum(count for _, count in counts)


def _check_format(path: Path, found: list[tuple[Any, ...]]) -> None:
    if found in ([(_FORMAT,)], [(_WITH_ATTEMPTS,)]):
        return
    if found == [(1,)]:
        raise InvalidLedger(
            str(path),
            got="a ledger of an older format",
            expected="a new one at another path, made with --new-ledger: this version refuses the old tickets anyway",
        )
    raise InvalidLedger(
        str(path), got=f"a ledger of format {found}", expected=f"one of format {_FORMAT} or {_WITH_ATTEMPTS}"
    )


def _servers(run: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, run.split(","))))


def _unusable(path: str | Path, error: OSError | sqlite3.Error) -> InvalidLedger:
    said = getattr(error, "strerror", None) or str(error)
    return InvalidLedger(str(path), got=said, expected="a ledger that can be read and written")


def _moved() -> Refused:
    return Refused("not_ready", "the ledger's file was moved or replaced")
