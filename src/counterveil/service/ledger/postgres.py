"""A ledger in a PostgreSQL database, which many machines share. An entry is at a standby before the answer leaves.

The rules that keep a used ticket used:

    One transaction enters one request. It locks the ticket, reads all its rows and the watermark at one moment,
    decides, and writes. The locks of two tickets are two, so transactions of many tickets end together.
    A transaction ends when it is on this disk and at the synchronous standbys. What was only read is written to the log
    again, because PostgreSQL shows rows after a crash that the standby may not have yet.
    Every transaction checks where it runs: on the cluster and the timeline that the common key was used with. A standby
    that was promoted has a new timeline, and may lack what its primary entered last. It is refused until the operator
    says that nothing is missing (`confirm`), or the common key is new.

See docs/ledger.md.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import psycopg

from ...errors import InvalidLedger, Refused
from .contract import (
    GRACE,
    PURGE_EVERY,
    Entry,
    Key,
    Row,
    Standing,
    State,
    check_clock,
    check_key,
    decide,
    one_by_one,
    unwritable,
)
from .lines import MOST, Line, Lines
from .locks import AVAILABLE, Lock
from .migrations import MIGRATIONS, check_version, create, upgrade, version_of

_PLACE = """
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/'
    || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    || (SELECT '/' || oid FROM pg_database WHERE datname = current_database())
    || coalesce('/' || to_regclass('counterveil.about')::oid, ''),
    current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('statement_timeout'), current_setting('synchronous_standby_names'),
    EXISTS (SELECT FROM pg_stat_replication WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum'))
"""  # an account that may not see `sync_state` gets no value, and learns it when a transaction takes too long
_ROWS = """
SELECT about.version, about.instance, about.watermark,
    (SELECT array_agg(place) FROM counterveil.keys WHERE id = ANY (%s)),
    run, request, attempt, state, proof, expires, holder, reply, served
FROM counterveil.about LEFT JOIN counterveil.entries ON ticket = %s
"""
_WRITE = """
INSERT INTO counterveil.entries VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (ticket, run, request, attempt) DO UPDATE SET state = excluded.state, proof = excluded.proof,
    expires = excluded.expires, holder = excluded.holder, reply = excluded.reply, served = excluded.served
"""
_SETTLE = "SELECT pg_logical_emit_message(true, 'counterveil', '')"  # what was read is at the standby before this is
_PURGE = """
WITH gone AS (
    DELETE FROM counterveil.entries USING counterveil.about
    WHERE expires <= watermark AND (state = 'spent' OR expires <= watermark - %s) RETURNING question
)
UPDATE counterveil.about SET questions = questions + (SELECT count(*) FROM gone WHERE question)
"""
_QUESTIONS = """
SELECT questions + (SELECT count(*) FROM counterveil.entries WHERE question) FROM counterveil.about
"""


class PostgresLedger:
    """A ledger in a PostgreSQL database, which many processes, threads and machines may share.

    `instance` names it: 16 bytes, drawn when it was made.
    """

    instance: bytes
    at_once = MOST

    def __init__(
        self,
        address: str,
        server: int,
        *,
        key_id: bytes | None = b"",
        owner: bytes = b"",
        new: bool = False,
        bound: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the ledger of a server for the common key with this id, or for none yet; with `new`, make it.

        `owner` is the server's own public key. A server has one ledger at a time, whatever the common key. `bound` says
        that the common key was used before: a database that does not know it is older than the key, and lacks entries.
        """
        self._clock, self._server = clock, server
        self._keys: list[bytes] = []  # ids of the common keys that it is used with
        self._locks: list[Lock] = []
        self._lines = Lines(address)
        try:
            if new and bound:
                raise InvalidLedger(self._lines.name, got="a common key that was used before", expected="a new one")
            if new:
                make(address, server)
            with _administering(self._lines) as line:
                self._admit(line, server)
            if owner:
                self._share_lock(owner)
            if key_id is not None:
                self.admit(key_id, bound=bound)
            self.purge()
        except BaseException:
            self.close()
            raise

    def admit(self, key_id: bytes, *, bound: bool = False) -> None:
        """Take up one more common key; refuse it where it was used at another place, or before the database was."""
        check_key(key_id)
        with _administering(self._lines) as line:
            self._take_up(line, key_id, bound)
        if key_id:
            self._share_lock(key_id)
        self._keys.append(key_id)

    def _share_lock(self, name: bytes) -> None:
        if AVAILABLE:
            self._locks.append(Lock(name, self._server, Path(f"postgresql-{self.instance.hex()}"), (0, 0)))
            self._locks[-1].refuse_others(self.instance)
            self._locks[-1].share(self.instance)

    def _admit(self, line: Line, server: int) -> None:
        """Refuse tables of another version or server."""
        name = self._lines.name
        check_version(version_of(line, name), name)
        ((number, instance),) = line.run("SELECT server, instance FROM counterveil.about")
        if number != server:
            raise InvalidLedger(name, got=f"the ledger of server {number}", expected=f"that of server {server}")
        self.instance = bytes(instance)
        _safe_place(line, name)

    def _take_up(self, line: Line, key_id: bytes, bound: bool) -> None:
        name, here = self._lines.name, _safe_place(line, self._lines.name)
        if bound and not line.run("SELECT 1 FROM counterveil.keys WHERE id = %s", key_id):
            raise InvalidLedger(
                name,
                got="a ledger that does not know this common key, which was used before",
                expected="a new common key: the database was restored from before, and entries are missing",
            )
        line.run("INSERT INTO counterveil.keys VALUES (%s, %s) ON CONFLICT DO NOTHING", key_id, here)
        ((place,),) = line.run("SELECT place FROM counterveil.keys WHERE id = %s", key_id)
        if place != here:
            raise InvalidLedger(name, got=f"a database at {here}, where the key was used at {place}", expected=_CONFIRM)

    @contextmanager
    def _transaction(self) -> Iterator[Line]:
        try:
            with self._lines.transaction() as line:
                yield line
        except psycopg.Error:
            raise unwritable() from None

    def _look(self, line: Line, ticket: bytes = b"") -> tuple[int, dict[Key, Row]]:
        """Return the watermark and the rows of a ticket at one moment; refuse a place or a version that is not ours."""
        found = line.run(_ROWS, self._keys, hashlib.sha256(ticket).digest())
        here, trouble = _place(line)
        version, instance, watermark, places = found[0][:4]
        if (version, bytes(instance)) != (len(MIGRATIONS), self.instance):
            raise Refused("not_ready", "the ledger was replaced, or is for other software")
        if (places or []) != [here] * len(self._keys):
            raise Refused("not_ready", "the ledger's database was promoted or restored: its operator must confirm it")
        if trouble:
            raise Refused("not_ready", f"the ledger's database has {trouble[0]}")
        rows = {
            Key(ticket, _servers(run), request, attempt): Row(state, proof, expires, holder, reply, served)
            for _, _, _, _, run, request, attempt, state, proof, expires, holder, reply, served in found
            if state is not None
        }
        return watermark, rows

    def perform(self, entry: Entry) -> Standing:
        """Enter a state, durably, if the table allows it, or refuse."""
        if self._clock() - self._purged > PURGE_EVERY:
            self.purge()
        key, ticket = entry.key, hashlib.sha256(entry.key.ticket).digest()
        with self._transaction() as line:
            line.run("SELECT pg_advisory_xact_lock(%s)", int.from_bytes(ticket[:8], "big", signed=True))
            watermark, rows = self._look(line, key.ticket)
            row, question, standing = decide(rows, entry, max(watermark, self._clock()))
            if row == rows.get(key):
                line.run(_SETTLE)
            else:
                run = ",".join(map(str, key.run))
                line.run(_WRITE, ticket, run, key.request, key.attempt, *row, question)
        return standing

    def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
        """Perform entries one after the other; in place of one that is not allowed return the refusal."""
        return one_by_one(self.perform, entries)

    def state(self, key: Key) -> State | None:
        """Return the state of a key, to tell it to the peer."""
        with self._transaction() as line:
            _, rows = self._look(line, key.ticket)
            line.run(_SETTLE)
        return rows[key].state if key in rows else None

    def purge(self) -> None:
        """Remove expired entries. The watermark keeps their tickets refused for ever, since it never falls."""
        self._purged = self._clock()
        with self._transaction() as line:
            self._look(line)
            line.run("UPDATE counterveil.about SET watermark = greatest(watermark, %s)", int(self._purged))
            line.run(_PURGE, GRACE)

    def counts(self) -> dict[State, int]:
        """Return how many entries are in each state, without waiting for a lock."""
        counts: dict[State, int] = dict.fromkeys(get_args(State), 0)
        with self._transaction() as line:
            counts |= dict(line.run("SELECT state, count(*) FROM counterveil.entries GROUP BY state"))
        return counts

    def count(self) -> int:
        """Return how many entries there are, without waiting for a lock."""
        return sum(self.counts().values())

    def questions(self) -> int:
        """Return how many tickets were ever used, without waiting for a lock."""
        with self._transaction() as line:
            ((number,),) = line.run(_QUESTIONS)
        return int(number)

    def check(self) -> None:
        """Refuse unless the ledger can be written now, here and at the standbys, and the clock is not behind."""
        with self._transaction() as line:
            watermark, _ = self._look(line)
            line.run(_SETTLE)
        check_clock(watermark, self._clock())

    def close(self) -> None:
        """Close all connections."""
        self._lines.close()
        for lock in self._locks:
            lock.release()


class Status(NamedTuple):
    """What an operator wants to know of a ledger."""

    version: int
    server: int
    instance: bytes
    entries: int
    questions: int
    here: str
    places: dict[bytes, str]  # where each common key was used
    troubles: tuple[str, ...]  # why a server would refuse it


_CONFIRM = (
    "the same cluster and timeline, or a new common key; if the promoted standby was synchronous, nothing is missing, "
    "and `counterveil ledger confirm` says so"
)


def make(address: str, server: int) -> None:
    """Make a new ledger in a database."""
    lines = Lines(address)
    with _administering(lines, last=True) as line:
        _safe_place(line, lines.name)
        create(line, server, lines.name)


def migrate(address: str) -> tuple[int, int]:
    """Bring the tables to the version of this software; return the version before and after."""
    lines = Lines(address)
    with _administering(lines, last=True) as line:
        _safe_place(line, lines.name)
        return upgrade(line, lines.name), len(MIGRATIONS)


def confirm(address: str) -> str:
    """Accept the place where the database is now for all common keys; return the place."""
    lines = Lines(address)
    with _administering(lines, last=True) as line:
        check_version(version_of(line, lines.name), lines.name)
        here = _safe_place(line, lines.name)
        line.run("UPDATE counterveil.keys SET place = %s", here)
    return here


def status(address: str) -> Status:
    """Return what there is to say of a ledger, even of one that a server would refuse."""
    lines = Lines(address)
    with _administering(lines, last=True) as line:
        version = version_of(line, lines.name)
        ((server, instance),) = line.run("SELECT server, instance FROM counterveil.about")
        ((entries,),) = line.run("SELECT count(*) FROM counterveil.entries")
        ((questions,),) = line.run(_QUESTIONS)
        places = dict(line.run("SELECT id, place FROM counterveil.keys ORDER BY id"))
        here, _ = _place(line)
        troubles = tuple(_troubles(lambda: check_version(version, lines.name), lambda: _safe_place(line, lines.name)))
    return Status(version, server, instance, entries, questions, here, places, troubles)


@contextmanager
def _administering(lines: Lines, *, last: bool = False) -> Iterator[Line]:
    """Lend a connection in a transaction; an error of PostgreSQL is shown. With `last`, close all connections."""
    try:
        with lines.transaction() as line:
            yield line
    except psycopg.Error as error:
        raise InvalidLedger(lines.name, got=str(error), expected="a ledger that can be read and written") from None
    finally:
        if last:
            lines.close()


def _place(line: Line) -> tuple[str, tuple[str, str] | None]:
    """Return the cluster and the timeline, and why an entry might be lost here: what was found, what should be."""
    ((here, fsync, full, commit, timeout, names, connected),) = line.run(_PLACE)
    if (fsync, full, commit, timeout) != ("on", "on", "on", "0"):
        found = f"fsync {fsync}, full_page_writes {full}, synchronous_commit {commit}, statement_timeout {timeout}"
        return here, (found, "on, on, on and 0: an entry must outlast a crash")
    if not names.strip():
        return here, ("no synchronous_standby_names", "some: an entry must outlast the loss of the primary")
    if not connected:
        return here, ("no synchronous standby connected", f"synchronous_standby_names, {names}")
    return here, None


def _safe_place(line: Line, name: str) -> str:
    """Return the cluster and the timeline; refuse a database that might lose an entry."""
    here, trouble = _place(line)
    if trouble:
        raise InvalidLedger(name, got=trouble[0], expected=trouble[1])
    return here


def _troubles(*checks: Callable[[], object]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except InvalidLedger as error:
            yield str(error)


def _servers(run: Any) -> tuple[int, ...]:
    return tuple(map(int, filter(None, run.split(","))))
