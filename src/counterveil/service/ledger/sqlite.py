"""A ledger in an SQLite file. An entry is on disk before the answer leaves. Each server's number has its own file.

The ledger is part of the cryptography: two different questions with one ticket would share their pads. A used ticket
is kept until it expires. After that the watermark keeps it refused for ever, whatever the clock says. See
docs/ledger.md. `statements` has the tables of the file.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ...crypto.randomness import keystream, new_id, new_key
from ...errors import InvalidLedger, Refused
from .contract import GRACE, PURGE_EVERY, Entry, Key, Row, Standing, State, check_clock, check_key, decide, unwritable
from .locks import AVAILABLE, Lock, place_of
from .statements import ATTEMPT, COUNTS, CREATE, CREATE_ATTEMPTS, PURGE_ATTEMPTS, ROWS, SPEND

_FORMAT, _WITH_ATTEMPTS = 2, 3
PATIENCE = 30.0  # seconds that one process waits for another's transaction
_LAST_WAIT = 2.0  # seconds that a process which closes the ledger waits for the others
_PROBE = 1 << 16  # bytes that must still fit on the disk


@dataclass(eq=False)
class _Job:
    """An entry that a thread waits for, and what came of it once that is durable."""

    entry: Entry
    outcome: Standing | Refused | None = None


class Ledger:
    """A ledger in an SQLite file, which several processes and threads may share.

    `instance` names it: 16 bytes, drawn when it was made.
    """

    instance: bytes
    at_once = 1

    def __init__(
        self,
        path: str | Path,
        server: int,
        *,
        key_id: bytes | None = b"",
        owner: bytes = b"",
        new: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the ledger of a server for the common key with this id, or for none yet; with `new`, make it.

        `owner` is the server's own public key. A server has one ledger at a time, whatever the common key.
        """
        check_key(key_id or b"")
        self._server = server
        self.path = Path(os.path.realpath(path))  # SQLite names the log after the path, so a file must have one path
        self._clock, self._lock, self._turn = clock, threading.Lock(), threading.Lock()
        self._waiting: deque[_Job] = deque()
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
            raise unusable(path, error) from None
        except BaseException:
            self.close()
            raise

    def _open(self, server: int, key_id: bytes | None, owner: bytes, new: bool) -> None:
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
        self._database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = FULL")  # on disk when a transaction returns
        with self._transaction():
            if new:
                self._create(server)
            self._admit(server)
            self._take_up(key_id)
            for statement in CREATE_ATTEMPTS.split(";"):  # a file of format 2 may lack this table
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
        for statement in CREATE.split(";"):
            self._run(statement)
        instance = new_id()
        self._run("INSERT INTO about VALUES (?, ?, ?, 0, 0, 0, 0)", _FORMAT, server, instance)
        self._run("INSERT INTO origin VALUES (?)", instance)

    def _admit(self, server: int) -> None:
        """Refuse a ledger of another format or server, and one with another ledger's log."""
        check_format(self.path, self._run("SELECT format FROM about"))
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

    def _take_up(self, key_id: bytes | None) -> None:
        """Refuse a backup with a common key that the ledger was used with before the backup."""
        if key_id:
            self._run("INSERT INTO keys VALUES (?, 0) ON CONFLICT DO NOTHING", key_id)
            if self._run("SELECT 1 FROM keys WHERE id = ? AND refused", key_id):
                raise InvalidLedger(
                    str(self.path),
                    got="a backup taken under this common key",
                    expected="a new common key: tickets used since the backup are not in it",
                )

    def admit(self, key_id: bytes, *, bound: bool = False) -> None:
        """Take up one more common key, or refuse it. `bound` does not matter: a backup has another instance id."""
        check_key(key_id)
        try:
            with self._transaction():
                self._take_up(key_id)
            if AVAILABLE:
                lock = Lock(key_id, self._server, self.path, self._place)
                self._locks.append(lock)
                lock.refuse_others(self.instance)
                lock.share(self.instance)
        except (OSError, sqlite3.Error) as error:
            raise unusable(self.path, error) from None

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
        (outcome,) = self.perform_all([entry])
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
        """Enter several states, one after the other, durably; in place of one that is not allowed return the refusal.

        Entries that other threads bring while a transaction ends wait, and are then entered together, in one
        transaction: the disk takes as long for many entries as for one.
        """
        own = [_Job(entry) for entry in entries]
        self._waiting.extend(own)
        try:
            if self._clock() - self._purged > PURGE_EVERY:
                self.purge()
            with self._turn:
                if any(job.outcome is None for job in own):  # else a thread that had the turn before entered them all
                    others = [self._waiting.popleft() for _ in range(len(self._waiting))]
                    jobs = {id(job): job for job in (*own, *others) if job.outcome is None}
                    self._enter([*jobs.values()])
        except (OSError, sqlite3.Error):
            for job in own:
                job.outcome = unwritable()
        except BaseException:
            for job in own:
                job.outcome = unwritable()  # so that nobody enters them later
            raise
        return [job.outcome or unwritable() for job in own]

    def _enter(self, jobs: list[_Job]) -> None:
        """Enter the entries in one transaction, one after the other. One that is refused changes nothing."""
        outcomes: list[Standing | Refused] = []
        with self._transaction():
            now, questions, writes, newest = max(self._watermark(), self._clock()), 0, 0, 0
            for job in jobs:
                key, rows = job.entry.key, self._rows(job.entry.key.ticket)
                try:
                    row, question, standing = decide(rows, job.entry, now)
                except Refused as error:
                    outcomes.append(error)
                    continue
                if row != rows.get(key):
                    newest = max(newest, self._write(key, row))
                    questions, writes = questions + question, writes + 1
                outcomes.append(standing)
            if writes:
                said = "UPDATE about SET questions = questions + ?, writes = writes + ?, format = max(format, ?)"
                self._run(said, questions, writes, newest)
        for job, outcome in zip(jobs, outcomes, strict=True):  # only now, since they are durable only now
            job.outcome = outcome

    def _rows(self, ticket: bytes) -> dict[Key, Row]:
        digest = hashlib.sha256(ticket).digest()
        found = self._run(ROWS, digest, digest)  # once for each table
        return {Key(ticket, _servers(run), request, attempt): Row(*row) for run, request, attempt, *row in found}

    def _write(self, key: Key, row: Row) -> int:
        """Write a row; return the format that the file must have to hold it."""
        ticket = hashlib.sha256(key.ticket).digest()
        if row.state == "spent" and not key.run and not key.attempt:
            self._run(SPEND, ticket, key.request, row.proof, row.expires, row.served, row.holder)
            return _FORMAT
        self._run(ATTEMPT, ticket, ",".join(map(str, key.run)), key.request, key.attempt, *row)
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
            self._run(PURGE_ATTEMPTS, GRACE)

    def counts(self) -> dict[State, int]:
        """Return how many entries are in each state, without waiting for a lock."""
        counts: dict[State, int] = dict.fromkeys(get_args(State), 0)
        for state, count in self._read(COUNTS):
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
            self._run(f"PRAGMA busy_timeout = {int(1000 * PATIENCE)}")


def check_format(path: Path, found: list[tuple[Any, ...]]) -> None:
    """Refuse a file of a format that this version does not know."""
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


def unusable(path: str | Path, error: OSError | sqlite3.Error) -> InvalidLedger:
    """Return the error for a file that cannot be read or written."""
    said = getattr(error, "strerror", None) or str(error)
    return InvalidLedger(str(path), got=said, expected="a ledger that can be read and written")


def _moved() -> Refused:
    return Refused("not_ready", "the ledger's file was moved or replaced")
