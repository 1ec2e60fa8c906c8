"""Real servers in processes of their own, for tests, the fault script and the load benchmark."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterveil import Database, Numeric, Schema
from counterveil.client import Client
from counterveil.keys import COMMON, PRIVATE, PUBLIC, Issuer, write_keys
from counterveil.tickets import mint
from counterveil.wire import Ticket

COMMAND = [sys.executable, "-c", "from counterveil.cli import main; main(prog_name='counterveil')"]


def numbers_schema(d: int, levels: int = 20) -> Schema:
    return Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=levels, step=1) for j in range(d)))


def numbers_frame(count: int, d: int, levels: int = 20, seed: int = 7) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, levels + 1, (count, d))
    return pl.DataFrame({f"x{j}": rows[:, j] for j in range(d)} | {"ok": [True] * count})


def numbers_database(count: int, d: int, levels: int = 20) -> Database:
    return Database.build(numbers_frame(count, d, levels), numbers_schema(d, levels), accepted="ok")


class Process:
    """One `counterveil serve`, which can be killed and started again at the same address."""

    def __init__(self, folder: Path, bundle: Path, number: int, arguments: Sequence[object]) -> None:
        self.number, self.log, self.ledger = number, folder / f"log-{number}", folder / f"ledger-{number}"
        self._command = [*COMMAND, "serve", str(bundle), "--server", str(number), "--ledger", str(self.ledger)]
        self._command += ["--common-key", str(folder / COMMON), *map(str, arguments)]
        self._port = 0
        self.start(new=True)

    def start(self, *, new: bool = False) -> None:
        more = ["--port", str(self._port)] + (["--new-ledger"] if new else [])
        with self.log.open("ab") as log:
            mark = log.tell()
            self.process = subprocess.Popen([*self._command, *more], stderr=log, stdout=log, env=os.environ)
        self._mark = mark

    def wait(self) -> None:
        """Wait until it listens."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            said = self.log.read_bytes()[self._mark :].decode()
            found = re.search(r"running on (https?)://[^:\s]+:(\d+)", said)
            if found:
                self.scheme, self._port = found[1], int(found[2])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"server {self.number} did not start: {self.log.read_text()}")

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self._port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Service:
    """A deployment that runs: its processes, its issuer, and tickets."""

    def __init__(
        self, folder: Path, database: Database, servers: int, *arguments: object, is_open: bool = False
    ) -> None:
        self.folder = folder
        if not (folder / COMMON).exists():
            write_keys(folder)
        self.issuer = Issuer.load(folder / PRIVATE)
        self.database = database.sign(self.issuer)
        self.bundle = folder / "test.bundle"
        self.database.save(self.bundle)
        tickets = ["--open"] if is_open else ["--issuer", folder / PUBLIC]
        self.processes = [Process(folder, self.bundle, n, [*tickets, *arguments]) for n in range(1, servers + 1)]
        for process in self.processes:
            process.wait()

    @property
    def urls(self) -> list[str]:
        return [process.url for process in self.processes]

    def client(self, **options: Any) -> Client:
        return Client(self.urls, **options)

    def ticket(self, client: Client, servers: Sequence[int] | None = None, **options: Any) -> Ticket:
        manifest = client.peers[0].manifest
        chosen = servers or [peer.manifest.server for peer in client.peers]
        given: dict[str, Any] = {"expires": int(time.time()) + 3600, "issuer": self.issuer} | options
        return mint(bytes.fromhex(manifest.digest), chosen, **given)

    def stop(self) -> None:
        for process in self.processes:
            process.process.terminate()
        for process in self.processes:
            process.stop()


@contextmanager
def running(folder: Path, database: Database, servers: int, *arguments: object, **options: Any) -> Iterator[Service]:
    service = Service(folder, database, servers, *arguments, **options)
    try:
        yield service
    finally:
        service.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def resident(service: Service) -> int:
    """Return the bytes of memory that server 1 holds."""
    pages = Path(f"/proc/{service.processes[0].process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
