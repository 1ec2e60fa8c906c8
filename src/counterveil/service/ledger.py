"""Which tickets were used, and for what: durable before an answer leaves, one ledger for each server's number.

The ledger is part of the cryptography: two different questions on one ticket would share their pads. A used ticket
is kept until it expires; then the watermark keeps it used for ever, whatever the clock says. See docs/ledger.md.

    about:  the format, the server's number, the ledger's instance id, the watermark, how many questions there were,
            how many writes: it changes with every one, so it is in every write-ahead log
    spent:  (SHA-256 of the ticket's id, request) -> SHA-256 of the request's bytes, expiry, how often it was served
    keys:   the ids of the common keys it was opened under, and whether they are refused: those of a backup are
    origin: the instance id again, which never changes. It is in no log. So a log that another file left here is
            noticed, by another id in `about`: SQLite itself would mix the two
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
from typing import Any

from ..crypto.randomness import keystream, new_id, new_key
from ..errors import InvalidLedger, Refused, WrongType
from .locks import AVAILABLE, Lock, place_of

MOST_SERVED = 64  # times that the very same request is answered
KEY_ID_BYTES = 16

_FORMAT = 2
_PATIENCE = 30.0  # seconds that one process waits for another's transaction
_PURGE_EVERY = 60.0  # seconds
_LAST_WAIT = 2.0  # seconds that one which closes waits for the others
_PROBE = 1 << 16  # bytes that a disk must still take

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
_ENTER = """
INSERT INTO spent VALUES (?1, ?2, ?3, ?4, 1, ?6) ON CONFLICT (ticket, request)
DO UPDATE SET served = served + 1 WHERE fingerprint = ?3 AND served < ?5 RETURNING served
"""
_COPY = """
INSERT INTO about SELECT format, server, ?1, watermark, questions, writes, 0 FROM source.about;
INSERT INTO origin SELECT ?1;
INSERT INTO keys SELECT id, 1 FROM source.keys;
INSERT INTO spent SELECT * FROM source.spent
"""


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
        """Open the ledger of a server under the common key of that id; `new` makes it, where there is none.

        `owner` is the server's own public key: whatever the common key, it has one ledger at a time.
        """
        if len(key_id) not in (0, KEY_ID_BYTES):
            raise WrongType("key id", got=f"{len(key_id)} bytes", expected=f"{KEY_ID_BYTES}, or none")
        self.path = Path(os.path.realpath(path))  # SQLite's log goes by the path: one file, one path
        self._clock, self._lock = clock, threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._locks: list[Lock] = []
        self._opened = False  # or the file is not ours to write
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
        alone = bool(self._locks) and self._locks[0].alone  # nobody else opens or closes it now
        log = self.path.with_name(f"{self.path.name}-wal").exists()
        self._database = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = FULL")  # on disk when a transaction returns
        with self._transaction():
            if new:
                self._create(server)
            self._admit(server, key_id)
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
        self._opened = True

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
        """Refuse a ledger of another format or server, one with another's log, and a backup under an old key."""
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

    def spend(self, ticket: bytes, request: int, fingerprint: bytes, expires: int, holder: bytes = b"") -> None:
        """Enter a request, durably. The same bytes may come again, 64 times in all.

        Other bytes are refused, and so is what expired. `holder` is a hash of the secret that the request shows:
        records are for whoever asked the question, and come after it.
        """
        try:
            if self._clock() - self._purged > _PURGE_EVERY:
                self.purge()
            with self._transaction():
                self._enter(hashlib.sha256(ticket).digest(), request, fingerprint, expires, holder)
        except (OSError, sqlite3.Error):
            raise _unwritable() from None

    def _enter(self, ticket: bytes, request: int, fingerprint: bytes, expires: int, holder: bytes) -> None:
        if expires <= max(self._watermark(), self._clock()):
            raise Refused("ticket_expired", "the ticket has expired")
        if request:
            asked = self._run("SELECT holder FROM spent WHERE ticket = ? AND request = 0", ticket)
            if not asked:
                raise Refused("question_first", "a record comes after the question of its ticket")
            if asked != [(holder,)]:
                raise _used()
        served = self._run(_ENTER, ticket, request, fingerprint, expires, MOST_SERVED, holder)
        if not served:
            ((held,),) = self._run("SELECT fingerprint FROM spent WHERE ticket = ? AND request = ?", ticket, request)
            if held != fingerprint:
                raise _used()
            raise Refused("too_often", "this request was sent again too often")
        first = int(served == [(1,)] and request == 0)
        self._run("UPDATE about SET questions = questions + ?, writes = writes + 1", first)

    def _watermark(self) -> int:
        ((instance, watermark),) = self._run("SELECT instance, watermark FROM about")
        if instance != self.instance:  # another ledger was written over this one
            raise _moved()
        return int(watermark)

    def purge(self) -> None:
        """Forget tickets that have expired, and refuse them for ever: the watermark never falls."""
        with self._transaction():
            self._purged = self._clock()
            self._run("UPDATE about SET watermark = max(watermark, ?)", int(self._purged))
            self._run("DELETE FROM spent WHERE expires <= (SELECT watermark FROM about)")

    def count(self) -> int:
        """Return how many requests are held; waits for nobody."""
        return self._read("SELECT count(*) FROM spent")

    def questions(self) -> int:
        """Return how many questions were ever answered, each ticket's once; waits for nobody."""
        return self._read("SELECT questions FROM about")

    def _read(self, statement: str) -> int:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True)) as reader:  # never makes a file
            ((number,),) = reader.execute(statement).fetchall()
        return int(number)

    def check(self) -> None:
        """Refuse unless the ledger is where it was and can be written now, and the clock is not behind it."""
        try:
            with self._transaction():
                watermark = self._watermark()
                self._run("UPDATE about SET writes = writes + 1")  # where nothing changes, SQLite writes nothing
            with tempfile.TemporaryFile(dir=self.path.parent) as probe:  # the log may have room where the disk has none
                probe.write(keystream(new_key())(_PROBE))  # which no disk can make smaller
                probe.flush()
                os.fsync(probe.fileno())
        except (OSError, sqlite3.Error):
            raise _unwritable() from None
        if watermark > self._clock() + _PURGE_EVERY:
            raise Refused("not_ready", "the clock is behind the ledger's watermark: one of them is wrong")

    def close(self) -> None:
        """Close the file. All that was entered is then in it, and not only in its log."""
        with self._lock:
            if self._database is not None:
                if self._opened and (not self._locks or self._locks[0].is_last()):
                    with suppress(sqlite3.Error):
                        self._run(f"PRAGMA busy_timeout = {int(1000 * _LAST_WAIT)}")
                        self._run("UPDATE about SET in_use = 0")
                self._empty_log()
                self._database.close()
                self._database = None
            for lock in self._locks:
                lock.release()

    def _empty_log(self) -> None:
        """Move what is in the write-ahead log to the file, unless others keep it busy."""
        with suppress(sqlite3.Error):
            self._run(f"PRAGMA busy_timeout = {int(1000 * _LAST_WAIT)}")
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")
            self._run(f"PRAGMA busy_timeout = {int(1000 * _PATIENCE)}")


def backup(path: str | Path, target: str | Path) -> int:
    """Copy a ledger, also one in use, to a new file; return how many requests it holds.

    The copy is another instance, and refuses every common key that the ledger knew: what is used after the copy was
    made is not in it. So it is of use only after the common key was changed.
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
            os.link(made, target)  # all at once, and never over another file
    except FileExistsError:
        raise InvalidLedger(str(target), got="a file there already", expected="a new one") from None
    except OSError as error:
        raise InvalidLedger(str(target), got=error.strerror, expected="a file that can be written") from None
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    return count


def _copy(path: Path, database: sqlite3.Connection) -> int:
    """Fill a new ledger from another: in one transaction, which sees the other as it is at one moment."""
    database.execute("PRAGMA synchronous = FULL")
    database.execute("ATTACH ? AS source", (str(path),))
    database.execute("BEGIN")
    _check_format(path, database.execute("SELECT format FROM source.about").fetchall())
    instance = new_id()
    for statement in _CREATE.split(";"):
        database.execute(statement)
    for statement in _COPY.split(";"):
        database.execute(statement, (instance,) if "?1" in statement else ())
    ((count,),) = database.execute("SELECT count(*) FROM main.spent").fetchall()
    database.execute("COMMIT")
    return int(count)


def _check_format(path: Path, found: list[tuple[Any, ...]]) -> None:
    if found == [(_FORMAT,)]:
        return
    if found == [(1,)]:
        raise InvalidLedger(
            str(path),
            got="a ledger of an older format",
            expected="a new one at another path, made with --new-ledger: this version refuses the old tickets anyway",
        )
    raise InvalidLedger(str(path), got=f"a ledger of format {found}", expected=f"one of format {_FORMAT}")


def _unusable(path: str | Path, error: OSError | sqlite3.Error) -> InvalidLedger:
    said = getattr(error, "strerror", None) or str(error)
    return InvalidLedger(str(path), got=said, expected="a ledger that can be read and written")


def _unwritable() -> Refused:
    return Refused("not_ready", "the ledger cannot be written")


def _used() -> Refused:
    return Refused("ticket_used", "the ticket was used for another request")


def _moved() -> Refused:
    return Refused("not_ready", "the ledger's file was moved or replaced")
