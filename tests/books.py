"""The ledgers of servers that are killed: in SQLite files, or in PostgreSQL, which is killed too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg

from clusters import Cluster, pair
from counterveil.service.ledger import postgres_at
from patience import wait_until
from service import Process, reading

Rows = list[tuple[Any, ...]]


class Files:
    """SQLite files, as `counterveil serve` makes them."""

    addresses: tuple[str, ...] = ()  # of databases

    def rows(self, process: Process) -> Iterator[Rows]:
        """Check a server's ledger; yield its entries: ticket, request, attempt, state, proof, served."""
        with reading(process.ledger) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            yield database.execute(
                "SELECT ticket, request, 0, 'spent', fingerprint, served FROM spent UNION ALL "
                "SELECT ticket, request, attempt, state, proof, served FROM attempts"
            ).fetchall()


class Databases:
    """A database for each server, each in a PostgreSQL of its own with a synchronous standby."""

    def __init__(self, pairs: list[tuple[Cluster, Cluster]]) -> None:
        self._pairs = pairs
        self.addresses = tuple(primary.new_database() for primary, _ in pairs)
        for number, address in enumerate(self.addresses, start=1):
            postgres_at(address).make(address, number)

    def kill(self, number: int, choice: random.Random) -> None:
        """Kill a server's PostgreSQL as a loss of power does, one time in four with its standby; start it again."""
        killed = self._pairs[number][: 2 if choice.random() < 0.25 else 1]
        for cluster in killed:
            cluster.kill()
        for cluster in killed:
            cluster.start()
        wait_until(lambda: self._is_safe(number))  # servers are not ready until then

    def _is_safe(self, number: int) -> bool:
        with suppress(psycopg.Error):
            return self._pairs[number][0].run("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") != []
        return False

    def rows(self, process: Process) -> Iterator[Rows]:
        """Check a server's ledger; yield its entries, and then those of its standby after the primary is lost."""
        primary, standby = self._pairs[process.number - 1]
        name = process.address.rsplit("/", 1)[1]
        at = ("-h", "127.0.0.1", "-p", primary.port, "-U", "postgres", "-d", name)
        primary.program("pg_amcheck", "--install-missing", "--heapallindexed", *at)
        yield _entries(primary.address(name))
        primary.kill()
        standby.promote()
        yield _entries(standby.address(name))


def _entries(address: str) -> Rows:
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT ticket, request, attempt, state, proof, served FROM counterveil.entries")
        return found.fetchall()


@contextmanager
def kept(kind: str, servers: int = 2) -> Iterator[Files | Databases]:
    """Run what the ledgers of this kind need: nothing, or PostgreSQL."""
    with ExitStack() as stack:
        yield Files() if kind == "sqlite" else Databases([stack.enter_context(pair()) for _ in range(servers)])
