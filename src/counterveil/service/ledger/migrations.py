"""The tables of a PostgreSQL ledger, as migrations: version n is what the first n of them make.

A migration is never changed once it was released: another one is added after it. The tables are:

    about:   the version, the server's number, the ledger's instance id, the watermark, and how many questions were
             asked on tickets that are no longer among the entries
    keys:    the common keys that the ledger was used with, and the place where each may be used: a cluster's identifier
             and its timeline. A standby that was promoted has another timeline, a restored dump another identifier
    entries: the rows of the contract, under the SHA-256 of the ticket's id; `question` marks the first of a ticket
"""

from __future__ import annotations

from typing import LiteralString

from ...crypto.randomness import new_id
from ...errors import InvalidLedger
from .lines import Line

MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE SCHEMA counterveil;
    CREATE TABLE counterveil.about (
        single boolean PRIMARY KEY DEFAULT true CHECK (single), version integer NOT NULL, server integer NOT NULL,
        instance bytea NOT NULL, watermark bigint NOT NULL DEFAULT 0, questions bigint NOT NULL DEFAULT 0
    );
    CREATE TABLE counterveil.keys (id bytea PRIMARY KEY, place text NOT NULL);
    CREATE TABLE counterveil.entries (
        ticket bytea NOT NULL, run text NOT NULL, request bigint NOT NULL, attempt integer NOT NULL,
        state text NOT NULL, proof bytea NOT NULL, expires bigint NOT NULL, holder bytea NOT NULL,
        reply bytea NOT NULL, served integer NOT NULL, question boolean NOT NULL,
        PRIMARY KEY (ticket, run, request, attempt)
    );
    CREATE INDEX entries_by_expiry ON counterveil.entries (expires);
    """,
)
_ONE_AT_A_TIME = 0x6C6564676572  # the number of a lock; any other would do


def create(line: Line, server: int, name: str) -> None:
    """Make all tables, where there are none."""
    line.run("SELECT pg_advisory_xact_lock(%s)", _ONE_AT_A_TIME)
    if line.run("SELECT 1 FROM pg_namespace WHERE nspname = 'counterveil'"):
        raise InvalidLedger(name, got="a ledger there already", expected="none where a new one is asked for")
    for migration in MIGRATIONS:
        line.run(migration)
    line.run(
        "INSERT INTO counterveil.about (version, server, instance) VALUES (%s, %s, %s)",
        len(MIGRATIONS),
        server,
        new_id(),
    )


def version_of(line: Line, name: str) -> int:
    """Return the version of the tables; refuse a database without them."""
    if line.run("SELECT to_regclass('counterveil.about') IS NULL") == [(True,)]:
        raise InvalidLedger(name, got="no ledger", expected="the one it had; --new-ledger makes one")
    ((version,),) = line.run("SELECT version FROM counterveil.about")
    return int(version)


def check_version(version: int, name: str) -> None:
    """Refuse tables of another version than this software knows."""
    if version < len(MIGRATIONS):
        expected = f"version {len(MIGRATIONS)}: stop the servers, and run `counterveil ledger migrate`"
        raise InvalidLedger(name, got=f"tables of version {version}", expected=expected)
    if version > len(MIGRATIONS):
        expected = f"version {len(MIGRATIONS)}, or newer software"
        raise InvalidLedger(name, got=f"tables of version {version}", expected=expected)


def upgrade(line: Line, name: str) -> int:
    """Run the migrations that are missing; return the version that was there before."""
    line.run("SELECT pg_advisory_xact_lock(%s)", _ONE_AT_A_TIME)
    version = version_of(line, name)
    if version > len(MIGRATIONS):
        check_version(version, name)
    for migration in MIGRATIONS[version:]:
        line.run(migration)
    if version < len(MIGRATIONS):
        line.run("UPDATE counterveil.about SET version = %s", len(MIGRATIONS))
    return version
