"""The ledger in PostgreSQL: what is answered is at the standby, and a promoted standby is refused until confirmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from clusters import Cluster, pair
from counterveil.applicant.client import Client
from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.crypto.randomness import new_id, new_key
from counterveil.errors import InvalidLedger, Refused, ServerFault
from counterveil.research.processes import COMMAND, free_port, publish, running
from counterveil.service.ledger import Key, Ledger, lines, migrations, postgres
from counterveil.service.ledger.postgres import PostgresLedger
from counterveil.terms.tickets import mint
from ledgers import LATER, A, B, code, spend
from patience import LONG, wait_until
from service import Process, numbers_database

pytestmark = pytest.mark.slow
Pair = tuple[Cluster, Cluster]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*map(str, COMMAND), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)


def either(*clusters: Cluster, database: str) -> str:
    """Return the address of whichever cluster is the primary."""
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in clusters)
    return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"


class Load:
    """Threads of several replicas that use tickets, two of them always the same one with different requests."""

    def __init__(self, replicas: Sequence[PostgresLedger]) -> None:
        self.answered: defaultdict[bytes, set[bytes]] = defaultdict(set)
        self.refused: list[str] = []
        self._stop, self._next = threading.Event(), 0
        self._threads = [
            threading.Thread(target=self._ask, args=(each, p), daemon=True) for each in replicas for p in (A, B)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, ledger: PostgresLedger, proof: bytes) -> None:
        while not self._stop.is_set():
            self._next += 1
            ticket = b"%d" % (self._next // 2)
            try:
                spend(ledger, ticket, 0, proof)
            except Refused as error:
                self.refused.append(error.code)
            else:
                self.answered[ticket].add(proof)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(LONG)


def test_a_primary_is_killed_and_a_standby_promoted_and_nothing_is_answered_twice() -> None:
    with pair() as (primary, standby):
        database = primary.new_database().rsplit("/", 1)[1]
        address, key = either(primary, standby, database=database), new_id()
        replicas = [PostgresLedger(address, 1, key_id=key, new=True)]
        replicas.append(PostgresLedger(address, 1, key_id=key))
        load = Load(replicas)
        wait_until(lambda: len(load.answered) > 300)
        primary.kill()
        seen = len(load.refused)
        wait_until(lambda: load.refused[seen:].count("not_ready") > 8)
        known = {ticket: set(proofs) for ticket, proofs in load.answered.items()}
        standby.promote()
        third = standby.copy("third")
        seen = len(load.refused)
        wait_until(lambda: load.refused[seen:].count("not_ready") > 8)
        load.end()
        assert load.answered == known  # nothing since the primary was killed
        assert all(len(proofs) == 1 for proofs in known.values())
        assert load.refused.count("ticket_used") > 50  # a control: many asked for a ticket that was used

        with pytest.raises(Refused, match="promoted or restored: its operator must confirm it"):
            spend(replicas[0], b"new")
        with pytest.raises(InvalidLedger, match=r"/00000002/\d+/\d+, where the key was used at \d+/00000001/"):
            PostgresLedger(address, 1, key_id=key)
        with closing(PostgresLedger(address, 1, key_id=new_id())) as rotated:  # another common key: no pads in common
            assert code(rotated, b"new", 0, A) == "ok"
        shown = run("ledger", "status", address)
        assert shown.returncode == 1
        assert f"common key {key.hex()}, used at" in shown.stdout
        assert "refused here, until you confirm or change the key" in shown.stdout
        assert run("ledger", "confirm", address).returncode != 0  # it asks, and nobody answers
        assert run("ledger", "confirm", "--yes", address).stdout.startswith("Confirmed")
        assert run("ledger", "status", address).returncode == 0

        for ticket, (proof,) in known.items():
            assert code(replicas[0], ticket, 0, B if proof == A else A) == "ticket_used"
        for ticket, (proof,) in list(known.items())[:20]:
            assert code(replicas[1], ticket, 0, proof) == "ok"
        third.kill()
        wait_until(lambda: standby.run("SELECT 1 FROM pg_stat_replication") == [])
        with pytest.raises(InvalidLedger, match="no synchronous standby connected"):
            PostgresLedger(address, 1, key_id=key)
        for replica in replicas:
            replica.close()


def test_an_entry_whose_wait_for_the_standby_is_cancelled_is_not_answered(replicated: Pair) -> None:
    """PostgreSQL then says COMMIT, and only warns: the entry may be lost with the primary."""
    primary, standby = replicated
    (receiver,) = standby.processes("walreceiver")
    with closing(PostgresLedger(primary.new_database(), 1, new=True)) as ledger:
        said: list[str] = []
        os.kill(receiver, signal.SIGSTOP)
        try:
            asking = threading.Thread(target=lambda: said.append(code(ledger, b"id", 0, A)), daemon=True)
            asking.start()
            waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: primary.run(f"SELECT pid {waiting}") != [])
            assert not said
            primary.run(f"SELECT pg_cancel_backend(pid) {waiting}")
            asking.join(LONG)
        finally:
            os.kill(receiver, signal.SIGCONT)
        assert said == ["not_ready"]
        assert code(ledger, b"id", 0, B) == "ticket_used"  # it was entered all the same, and stays
        assert code(ledger, b"id", 0, A) == "ok"  # and the same request is answered when it comes again


def test_a_standby_that_hangs_is_not_waited_for_for_ever(replicated: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "PATIENCE", 2.0)
    primary, standby = replicated
    (receiver,) = standby.processes("walreceiver")
    with closing(PostgresLedger(primary.new_database(), 1, new=True)) as ledger:
        assert code(ledger, b"old", 0, A) == "ok"
        os.kill(receiver, signal.SIGSTOP)
        try:
            assert code(ledger, b"id", 0, A) == "not_ready"
            with pytest.raises(Refused, match="the ledger cannot be written"):
                ledger.check()
            with pytest.raises(Refused, match="the ledger cannot be written"):
                ledger.state(Key(b"old"))  # what is told to a peer must be at the standby too
            assert ledger.count() >= 1  # what needs no promise goes on
        finally:
            os.kill(receiver, signal.SIGCONT)
        wait_until(lambda: code(ledger, b"id", 0, A) == "ok")
        ledger.check()


def test_connections_that_broke_are_replaced_unnoticed(replicated: Pair) -> None:
    primary, _ = replicated
    with closing(PostgresLedger(primary.new_database(), 1, new=True)) as ledger:
        for i in range(3):
            primary.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'counterveil'")
            assert code(ledger, b"%d" % i, 0, A) == "ok"


@pytest.mark.parametrize(
    ("setting", "value", "back", "said"),
    [
        ("fsync", "off", "on", "fsync off"),
        ("full_page_writes", "off", "on", "full_page_writes off"),
        ("synchronous_standby_names", "''", "'*'", "no synchronous_standby_names"),
        ("synchronous_standby_names", "nobody", "'*'", "no synchronous standby connected"),
    ],
)
def test_a_database_that_may_lose_entries_is_refused(
    replicated: Pair, setting: str, value: str, back: str, said: str
) -> None:
    primary, _ = replicated
    address = primary.new_database()
    with closing(PostgresLedger(address, 1, new=True)) as ledger:
        primary.set(setting, value)
        try:
            assert code(ledger, b"id", 0, A) == "not_ready"
            with pytest.raises(Refused, match=said):
                ledger.check()
            with pytest.raises(InvalidLedger, match=said):
                PostgresLedger(address, 1)
            with pytest.raises(InvalidLedger, match=said):
                postgres.confirm(address)
            shown = run("ledger", "status", address)
            assert shown.returncode == 1
            assert said in shown.stdout
        finally:
            primary.set(setting, back)
        wait_until(lambda: code(ledger, b"id", 0, A) == "ok")


def test_settings_of_the_account_change_nothing(replicated: Pair) -> None:
    """A statement timeout would cancel the wait for the standby, and hidden warnings would hide that."""
    primary, _ = replicated
    address = primary.new_database()
    for setting in ("statement_timeout = 1", "synchronous_commit = off", "client_min_messages = error"):
        primary.run(f"ALTER DATABASE {address.rsplit('/', 1)[1]} SET {setting}")
    with closing(PostgresLedger(address, 1, new=True)) as ledger, ledger._lines.transaction() as line:
        names = ("statement_timeout", "synchronous_commit", "client_min_messages")
        assert [line.run("SELECT current_setting(%s)", name) for name in names] == [[("0",)], [("on",)], [("warning",)]]


def test_an_ordinary_account_is_enough(replicated: Pair) -> None:
    """One that owns nothing, and may see no statistics of others."""
    primary, _ = replicated
    address = primary.new_database()
    postgres.make(address, 1)
    primary.run("DO $$ BEGIN CREATE ROLE plain LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("GRANT USAGE ON SCHEMA counterveil TO plain")
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA counterveil TO plain")
    with closing(PostgresLedger(address.replace("postgres@", "plain@"), 1)) as ledger:
        assert code(ledger, b"id", 0, A) == "ok"
        ledger.check()


def test_migrations(replicated: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, _ = replicated
    address = primary.new_database()
    with pytest.raises(InvalidLedger, match="got no ledger"):
        PostgresLedger(address, 1)
    assert run("ledger", "new", address, "--server", 1).stdout == "A new ledger for server 1.\n"
    again = run("ledger", "new", address, "--server", 1)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "got a ledger there already" in again.stderr
    assert run("ledger", "migrate", address).stdout == "Version 1: nothing to do.\n"
    with pytest.raises(InvalidLedger, match="the ledger of server 1, expected that of server 2"):
        PostgresLedger(address, 2)

    with closing(PostgresLedger(address, 1)) as ledger:
        assert code(ledger, b"id", 0, A) == "ok"
        more = (*migrations.MIGRATIONS, "ALTER TABLE counterveil.about ADD COLUMN more integer")
        with monkeypatch.context() as newer:
            newer.setattr(migrations, "MIGRATIONS", more)
            newer.setattr(postgres, "MIGRATIONS", more)
            with pytest.raises(InvalidLedger, match=r"version 1, expected version 2: .* `counterveil ledger migrate`"):
                PostgresLedger(address, 1)
            assert postgres.migrate(address) == (1, 2)
            assert postgres.migrate(address) == (2, 2)
            with closing(PostgresLedger(address, 1)) as upgraded:
                assert code(upgraded, b"id", 0, B) == "ticket_used"
        assert code(ledger, b"other", 0, A) == "not_ready"  # the software is older than the tables
        with pytest.raises(InvalidLedger, match="version 2, expected version 1, or newer software"):
            PostgresLedger(address, 1)
        with pytest.raises(InvalidLedger, match="or newer software"):
            postgres.migrate(address)
    shown = run("ledger", "status", address)
    assert shown.returncode == 1
    assert "or newer software" in shown.stdout
    assert "1 requests of unexpired tickets, 1 questions ever" in shown.stdout


def test_a_migration_that_fails_leaves_the_old_version(replicated: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, _ = replicated
    address = primary.new_database()
    postgres.make(address, 1)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, "DROP TABLE counterveil.keys; SELECT 1 / 0"))
    with pytest.raises(InvalidLedger, match="division by zero"):
        postgres.migrate(address)
    assert (postgres.status(address).version, postgres.status(address).places) == (1, {})


def test_one_ledger_at_a_time_in_files_and_databases(replicated: Pair, tmp_path: Path) -> None:
    primary, _ = replicated
    key, owner, address = new_id(), new_key(), primary.new_database()
    with closing(PostgresLedger(address, 1, key_id=key, owner=owner, new=True)):
        with closing(PostgresLedger(address.replace("127.0.0.1", "localhost"), 1, key_id=key, owner=owner)) as same:
            assert code(same, b"id", 0, A, LATER) == "ok"
        several: list[dict[str, Any]] = [{"key_id": key}, {"owner": owner}]
        for names in several:
            with pytest.raises(InvalidLedger, match="another ledger than the one in use"):
                Ledger(tmp_path / "-".join(names), 1, new=True, **names)
            with pytest.raises(InvalidLedger, match="another ledger than the one in use"):
                PostgresLedger(primary.new_database(), 1, new=True, **names)


def test_a_database_from_before_the_common_key_is_refused(replicated: Pair) -> None:
    """It was restored, and the entries under that key are not in it; a key never used before is welcome."""
    primary, _ = replicated
    address, old, key = primary.new_database(), new_id(), new_id()
    with pytest.raises(InvalidLedger, match="a common key that was used before, expected a new one"):
        PostgresLedger(address, 1, key_id=old, bound=True, new=True)
    PostgresLedger(address, 1, key_id=old, new=True).close()
    PostgresLedger(address, 1, key_id=old, bound=True).close()
    with pytest.raises(InvalidLedger, match="does not know this common key, which was used before"):
        PostgresLedger(address, 1, key_id=key, bound=True)
    PostgresLedger(address, 1, key_id=key).close()
    PostgresLedger(address, 1, key_id=key, bound=True).close()


def test_a_copy_of_the_database_in_the_same_cluster_is_refused(replicated: Pair) -> None:
    """Broken: one ticket was answered for one question by the original, and for another by the copy."""
    primary, _ = replicated
    original, key = primary.new_database(), new_id()
    PostgresLedger(original, 1, key_id=key, new=True).close()
    copy = f"copy_{key.hex()}"
    wait_until(lambda: _copied(primary, original.rsplit("/", 1)[1], copy))  # PostgreSQL may still hold a connection
    with pytest.raises(InvalidLedger, match="where the key was used at"):
        PostgresLedger(primary.address(copy), 1, key_id=key, bound=True)
    PostgresLedger(original, 1, key_id=key, bound=True).close()


def _copied(primary: Cluster, name: str, copy: str) -> bool:
    try:
        primary.run(f"CREATE DATABASE {copy} TEMPLATE {name}")
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_errors_are_one_line_and_hide_the_password(replicated: Pair, tmp_path: Path) -> None:
    closed = f"postgresql://somebody:hush@127.0.0.1:{free_port()}/ledger"
    broken = "postgresql://somebody:hush/hush@127.0.0.1/ledger"
    said = {
        ("status", closed): "127.0.0.1/ledger: got connection failed",
        ("migrate", broken): "the ledger: got an address that PostgreSQL cannot read",
        ("migrate", broken.replace("/hush", "@hush")): "the ledger: got an address that PostgreSQL cannot read",
        ("confirm", "--yes", closed): "127.0.0.1/ledger: got connection failed",
        ("status", tmp_path / "l"): "got a path, expected an address: postgresql://",
        ("backup", closed, "-o", tmp_path / "b"): "PostgreSQL has tools of its own",
        ("new", replicated[1].address(), "--server", 1): "recovery is in progress",
    }
    for arguments, message in said.items():
        found = run("ledger", *arguments)
        assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1), found.stderr
        assert message in found.stderr
        assert "hush" not in found.stderr
    script = "import sys; sys.modules['psycopg'] = None; from counterveil.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", script, "ledger", "status", closed], capture_output=True, text=True, check=False
    )
    assert found.stderr == "counterveil: a ledger in PostgreSQL: got no psycopg, expected counterveil[postgres]\n"


@pytest.mark.parametrize(
    ("address", "around", "refused"),
    [
        ("db/l", {}, "sslmode=prefer to db"),
        ("db/l?sslmode=require", {"PGSSLMODE": "verify-full"}, "sslmode=require to db"),
        ("db/l", {"PGSSLMODE": "allow"}, "sslmode=allow to db"),
        ("127.0.0.1,db:5433/l", {}, "sslmode=prefer to 127.0.0.1, db"),
        ("localhost/l?hostaddr=192.0.2.1", {}, "sslmode=prefer to 192.0.2.1"),
        ("/l", {"PGHOST": "db"}, "sslmode=prefer to db"),
        ("localhost/l", {"PGHOSTADDR": "192.0.2.1"}, "sslmode=prefer to 192.0.2.1"),
        ("localhost/l?service=s", {"PGSSLMODE": "verify-full"}, "sslmode=prefer to a service"),
        ("localhost/l", {"PGSERVICE": "s"}, "sslmode=prefer to a service"),
        ("db/l?sslmode=verify-full", {}, ""),
        ("a,b/l?sslmode=verify-ca", {"PGSSLMODE": "disable"}, ""),
        ("db/l", {"PGSSLMODE": "verify-full"}, ""),
        ("db/l?sslmode=disable", {}, ""),
        ("/l?service=s&sslmode=verify-full", {}, ""),
        ("127.0.0.2,[::1],localhost/l", {}, ""),
        ("db/l?hostaddr=127.0.0.1", {}, ""),
        ("%2Frun%2Fpostgresql/l", {}, ""),
        ("/l", {}, ""),
    ],
)
def test_another_machine_must_show_its_certificate(
    address: str, around: dict[str, str], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    given = f"postgresql://somebody:hush@{address}"
    if not refused:
        lines.Lines(given).close()  # nothing is dialled yet
        return
    with pytest.raises(InvalidLedger, match=f"got {refused}, which checks no certificate, expected between") as error:
        lines.Lines(given)
    assert "hush" not in str(error.value)


def test_servers_answer_with_it_through_a_crash_of_postgresql(replicated: Pair, tmp_path: Path) -> None:
    primary, _ = replicated
    database = numbers_database(50, 3)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    terms = publish(tmp_path, database, urls, service="tests").terms
    issuer = Issuer.load(tmp_path / PRIVATE)
    replicas = [Process(tmp_path, number, port) for number, port in enumerate(ports, start=1)]
    for replica in replicas:
        replica.address = primary.new_database()
        assert run("ledger", "new", replica.address, "--server", replica.number).returncode == 0
    one, two = ({"x0": x, "x1": 3, "x2": 5} for x in (1, 20))
    with running(replicas), closing(Client(urls, timeout=LONG, patience=LONG)) as client:
        tickets = [mint(terms, (1, 2), expires=LATER // 512, issuer=issuer) for _ in range(3)]
        expected = client.ask(one, ticket=tickets[0])
        with pytest.raises(ServerFault, match="ticket was used"):
            client.ask(two, ticket=tickets[0])
        primary.kill()
        asked: list[object] = []
        asking = threading.Thread(target=lambda: asked.append(client.ask(one, ticket=tickets[1])), daemon=True)
        asking.start()
        asking.join(1.0)
        assert not asked
        primary.start()
        asking.join(LONG)
        assert [str(each) for each in asked] == [str(expected)]
        with pytest.raises(ServerFault, match="ticket was used"):
            client.ask(two, ticket=tickets[1])
    assert [postgres.status(each.address).questions for each in replicas] == [2, 2]
    with running(replicas[:1]):  # the same key with the same ledger
        pass
    replicas[0].address = primary.new_database()
    postgres.make(replicas[0].address, 1)
    command = [*map(str, replicas[0].command())]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert refused.stderr.count("\n") == 1
    assert "does not know this common key, which was used before" in refused.stderr
