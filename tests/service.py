"""Run real servers, each in its own process, for tests and the fault script."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from counterveil import Database, Numeric, Schema
from counterveil.applicant.client import Client
from counterveil.crypto.keys import PRIVATE, SERVER_PUBLIC, Issuer, write_keys, write_server_keys
from counterveil.research.processes import BUNDLE, COMMAND, Serve, free_port, publish, start, stop
from counterveil.terms.tickets import mint
from counterveil.terms.wire import SignedTerms, Ticket
from patience import LONG
from relay import Relay


def numbers_schema(d: int, levels: int = 20) -> Schema:
    return Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=levels, step=1) for j in range(d)))


def numbers_frame(count: int, d: int, levels: int = 20, seed: int = 7) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, levels + 1, (count, d))
    return pl.DataFrame({f"x{j}": rows[:, j] for j in range(d)} | {"ok": [True] * count})


def numbers_database(count: int, d: int, levels: int = 20) -> Database:
    return Database.build(numbers_frame(count, d, levels), numbers_schema(d, levels), accepted="ok")


# What the institution chooses in the terms; everything else is a setting of the servers.
TERMS = {"--scheme": str, "--download-limit": int, "--collusion": int, "--max-weight": int, "--d-min": int,
         "--norm": int, "--robust": int, "--window": int, "--service": str, "-k": int,
         "--protocol": str}  # fmt: skip


class Process(Serve):
    """One `counterveil serve`, whose log can be read. With an `address`, its ledger is a database that was made."""

    address = ""

    def command(self) -> Sequence[object]:
        if not self.address:
            return super().command()
        return [*self._command, "--ledger", self.address, "--port", self.port]

    def wait(self) -> None:
        super().wait()
        self.url = self.url.replace("127.0.0.1", "localhost")  # as certificates name it

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Service:
    """A running deployment: its processes, its issuer, its terms, and tickets.

    `arguments` are options of `counterveil terms` and of `counterveil serve`, mixed. With `relays=True` the terms give
    the address of a relay before each server, which keeps every byte. A function instead of True makes the relays. With
    `links` the servers dial each other through relays, which a test can cut. `ledgers` are addresses of databases.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        servers: int,
        *arguments: object,
        is_open: bool = False,
        relays: bool | Callable[[str], Any] = False,
        links: bool = False,
        ledgers: Sequence[str] = (),
    ) -> None:
        self.folder, self.is_open = folder, is_open
        self._chosen, settings = _parted(arguments)
        ports = [free_port() for _ in range(servers)]
        plain = "https" if "--tls-cert" in settings else "http"
        direct = [f"{plain}://localhost:{port}" for port in ports]
        make = Relay if relays is True else relays
        self.relays = [make(url) for url in direct] if make else []
        self.urls = [relay.url for relay in self.relays] or direct
        self.bundle = folder / BUNDLE
        self.publish(database)
        self.links = [Relay(url) for url in direct] if links else []
        self.processes = []
        for n, port in enumerate(ports, start=1):
            dialled = [part for m, link in enumerate(self.links, start=1) if m != n for part in ("--link", link.url)]
            self.processes.append(Process(folder, n, port, *settings, *dialled))
        for process, address in zip(self.processes, ledgers, strict=False):
            process.address = address
        self.resume()

    def publish(self, database: Database, **changes: Any) -> None:
        """Sign a database and its terms, and write both to the files that the servers read when they start."""
        chosen: dict[str, Any] = {"service": "tests", "is_open": self.is_open} | self._chosen | changes
        self.issued: SignedTerms = publish(self.folder, database, self.urls, **chosen)
        self.issuer, self.database = Issuer.load(self.folder / PRIVATE), Database.open(self.bundle)

    def client(self, **options: Any) -> Client:
        """Return a client that waits for servers as long as tests do; `options` may change that."""
        return Client(self.urls, **{"timeout": LONG, "patience": LONG} | options)

    def ticket(self, client: Client | None = None, servers: Sequence[int] | None = None, **options: Any) -> Ticket:
        """Mint a ticket, for all servers that the client knows."""
        terms = self.issued.terms
        known = [peer.manifest.server for peer in client.peers] if client else []
        chosen = servers or known or range(1, terms.parameters.servers + 1)
        given: dict[str, Any] = {"expires": int(time.time()) + 3600, "issuer": self.issuer} | options
        return mint(terms, chosen, **given)

    def halt(self) -> None:
        """Stop all servers."""
        stop(self.processes)

    def resume(self) -> None:
        """Start all servers, at the same addresses as before."""
        start(self.processes)

    def stop(self) -> None:
        self.halt()
        for relay in (*self.relays, *self.links):
            relay.close()


def _parted(arguments: Sequence[object]) -> tuple[dict[str, Any], list[object]]:
    """Separate what the institution chooses in the terms from the servers' settings."""
    chosen: dict[str, Any] = {}
    settings: list[object] = []
    left = [part for argument in arguments for part in str(argument).split("=")]
    while left:
        option = str(left.pop(0))
        if option in ("--shuffle", "--no-shuffle"):
            chosen["shuffle"] = option == "--shuffle"
        elif option in TERMS:
            chosen[option.lstrip("-").replace("-", "_")] = TERMS[option](left.pop(0))
        else:
            settings.append(option)
    return chosen, settings


@contextmanager
def running(folder: Path, database: Database, servers: int, *arguments: object, **options: Any) -> Iterator[Service]:
    service = Service(folder, database, servers, *arguments, **options)
    try:
        yield service
    finally:
        service.stop()


def resident(service: Service) -> int:
    """Return the bytes of memory that server 1 holds."""
    pages = Path(f"/proc/{service.processes[0].process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def reading(ledger: Path) -> Iterator[sqlite3.Connection]:
    """Read a ledger, and change nothing: to close it otherwise could remove the log that a killed server needs."""
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as database:
        yield database


def ledger_rows(path: Path) -> list[Any]:
    """Return what a ledger holds: hash of the ticket's id, request, fingerprint."""
    with reading(path) as database:
        return database.execute("SELECT ticket, request, fingerprint FROM spent").fetchall()


def terms_command(folder: Path, database: Database) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs `counterveil terms` for a database and two servers, with more options; keys are made for it."""
    write_keys(folder)
    database.sign(Issuer.load(folder / PRIVATE)).save(folder / "bundle")
    given: list[object] = ["terms", folder / "bundle", "--key", folder / PRIVATE, "--service", "x", "--force"]
    for n in (1, 2):
        write_server_keys(folder / str(n))
        given += ["--server", f"https://{n}.example", folder / str(n) / SERVER_PUBLIC]
    return lambda *more: cli(*given, "-o", folder / "terms", *more)


def cli(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=LONG, input=given
    )
