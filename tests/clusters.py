"""Real PostgreSQL for tests: a primary and its standby. Where PostgreSQL is missing, tests skip with one line."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from patience import LONG, wait_until

_SERIAL = count()
_ROOM = 4 << 30
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 60
max_wal_size = 64MB
wal_retrieve_retry_interval = 100ms
shared_buffers = 16MB
synchronous_standby_names = '*'
"""


def _programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: Debian keeps each version in its own."""
    found = shutil.which("pg_ctl")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return Path(found).resolve().parent if found else folders[-1] if folders else None


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Cluster:
    """One cluster, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()

    def address(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def program(self, name: str, *arguments: object) -> None:
        """Run one of PostgreSQL's programs, as another user than root, whom PostgreSQL refuses."""
        programs = _programs()
        assert programs
        user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
        subprocess.run(
            [programs / name, *map(str, arguments)],
            check=True,
            cwd=self.folder.parent,
            stdout=subprocess.DEVNULL,
            timeout=LONG,
            **user,
        )

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        log = self.folder.with_suffix(".log")
        self.program("pg_ctl", "-D", self.folder, "-l", log, "-o", f"-p {self.port}", "-w", "-s", "start")

    def copy(self, name: str) -> Cluster:
        """Return a standby that follows this cluster, started and synchronous."""
        standby = Cluster(self.folder.with_name(name))
        source = f"{self.address()}?application_name={name}"
        self.program("pg_basebackup", "-d", source, "-D", standby.folder, "-R", "-X", "stream", "-c", "fast")
        standby.start()
        wait_until(lambda: self.run("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") != [])
        return standby

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in the cluster's own database."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def set(self, name: str, value: str) -> None:
        """Change a setting while it runs."""
        self.run(f"ALTER SYSTEM SET {name} = {value}")
        self.run("SELECT pg_reload_conf()")
        wait_until(lambda: self.run(f"SHOW {name}") == [(value.strip("'"),)])

    def new_database(self) -> str:
        """Return the address of a new, empty database."""
        name = f"d{next(_SERIAL)}"
        self.run(f"CREATE DATABASE {name}")
        return self.address(name)

    def promote(self) -> None:
        self.program("pg_ctl", "-D", self.folder, "-w", "-s", "promote")

    def processes(self, kind: str = "") -> list[int]:
        """Return the ids of its processes, the first one first, or of those whose title contains a text."""
        try:
            first = int((self.folder / "postmaster.pid").read_text().split()[0])
            found = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        except (FileNotFoundError, IndexError):
            return []
        titles = {int(each): Path(f"/proc/{each}/cmdline") for each in found}
        inner = [each for each, title in titles.items() if title.exists() and kind in title.read_text("latin-1")]
        return inner if kind else [first, *inner]

    def kill(self) -> None:
        """Kill all its processes at once, as a loss of power does."""
        processes = self.processes()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, processes)))
        (self.folder / "postmaster.pid").unlink(missing_ok=True)  # or a process that nobody waits for keeps its id


@contextmanager
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """Run a primary and its synchronous standby."""
    if _programs() is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    shared = Path("/dev/shm")  # noqa: S108 - in memory, if there is room: a test kills processes, never the machine
    quick = shared.is_dir() and shutil.disk_usage(shared).free > _ROOM
    with tempfile.TemporaryDirectory(dir=shared if quick else None, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        primary = Cluster(folder / "primary")
        primary.program(
            "initdb",
            "-D",
            primary.folder,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--wal-segsize=1",
        )
        with (primary.folder / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
        try:
            primary.start()
            yield primary, primary.copy("standby")
        finally:
            for each in folder.glob("*/postmaster.pid"):
                Cluster(each.parent).kill()
