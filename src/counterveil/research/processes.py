"""Run servers on this machine, each in its own process, for benchmarks, examples and tests.

One folder holds everything that a deployment needs: the issuer's keys, the common key, the bundle and the terms. For
each server it has a folder with the server's keys, a ledger and a log, and so for a dealing server, if there is one.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..crypto.keys import (
    COMMON,
    PRIVATE,
    SERVER_PRIVATE,
    SERVER_PUBLIC,
    Issuer,
    read_public,
    write_keys,
    write_server_keys,
)
from ..institution.database import Database
from ..schema.languages import Text
from ..terms.deployment import Deployment
from ..terms.published import make_terms, sign_terms, write_terms
from ..terms.wire import SignedTerms

COMMAND = (sys.executable, "-c", "from counterveil.cli import main; main(prog_name='counterveil')")
BUNDLE, TERMS, DEALER = "bundle", "terms", "dealer"  # names in the folder
_START = 300  # seconds that a server may take to start
_STOP = 300  # seconds that a server may take to stop
_given: set[int] = set()  # ports that this process was given


def free_port() -> int:
    """Return a free port of this machine, and none twice: servers that start later would both want it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def publish(
    folder: Path,
    database: Database,
    urls: Sequence[str],
    *,
    service: str = "local",
    is_open: bool = False,
    window: int = 600,
    robust: int = 0,
    names: Sequence[Text] = (),
    **chosen: Any,
) -> SignedTerms:
    """Do what an institution does: make missing keys, sign the rows, write the bundle and its terms.

    `chosen` are parameters of `Deployment.serving`. A database that this issuer has signed is not signed again.
    """
    if not (folder / COMMON).exists():
        write_keys(folder)
    issuer = Issuer.load(folder / PRIVATE)
    signed = database if database.signer == issuer.public else database.sign(issuer)
    signed.save(folder / BUNDLE)
    deployment = Deployment.serving(signed, **{"servers": len(urls), "robust": robust} | chosen)
    keys = [_own_key(folder / str(number)) for number in range(1, len(urls) + 1)]
    terms = make_terms(
        signed,
        deployment,
        keys=keys,
        service=service,
        is_open=is_open,
        window=window,
        robust=robust,
        dealer=_own_key(folder / DEALER) if deployment.scheme.protocol.dealt_by == "dealer" else None,
    )
    issued = sign_terms(terms, urls, issuer, names)
    write_terms(folder / TERMS, issued)
    return issued


def _own_key(place: Path) -> bytes:
    """Return the public key of a server, after making its keys if there are none."""
    if not place.exists():
        write_server_keys(place)
    return read_public(place / SERVER_PUBLIC)


class Process:
    """A server in its own process, which can be killed and started again at the same address.

    It must log that it listens, as `counterveil serve` does. With `apart`, Ctrl-C in the terminal does not stop it.
    """

    def __init__(self, command: Sequence[object], log: Path, *, apart: bool = False) -> None:
        self.log, self._command, self._apart = log, command, apart

    def command(self) -> Sequence[object]:
        """Return the command that starts the server."""
        return self._command

    def start(self) -> None:
        """Start the server; its log is appended to."""
        with self.log.open("ab") as log:
            self.mark = log.tell()
            command = [*map(str, self.command())]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=self._apart)  # noqa: S603

    def wait(self) -> None:
        """Wait until the server listens."""
        found = self.wait_for(rb"running on (https?)://([^:\s]+):(\d+)")
        scheme, host, port = (part.decode() for part in found.groups())
        self.url, self.port = f"{scheme}://{host}:{port}", int(port)

    def wait_for(self, said: bytes, times: int = 1) -> re.Match[bytes]:
        """Wait until the process has logged something that matches `said`; return the match."""
        until = time.monotonic() + _START
        while time.monotonic() < until:
            found = [*re.finditer(said, self.log.read_bytes()[self.mark :])]
            if len(found) >= times:
                return found[times - 1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"a server did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill the process at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the server after its answers under way, and return the exit code."""
        self.process.terminate()
        return self.process.wait(_STOP)


class Serve(Process):
    """One `counterveil serve` on the files that `publish` wrote. `settings` are further options of the command."""

    def __init__(self, folder: Path, number: int, port: int, *settings: object, apart: bool = False) -> None:
        self.number, self.port, self.ledger = number, port, folder / f"ledger-{number}"
        fixed = [*COMMAND, "serve", folder / BUNDLE, "--terms", folder / TERMS, "--server", number]
        fixed += ["--key", folder / str(number) / SERVER_PRIVATE, "--common-key", folder / COMMON, *settings]
        super().__init__(fixed, folder / f"log-{number}", apart=apart)

    def command(self) -> Sequence[object]:
        """Return the command that starts the server; it makes the server's ledger if there is none."""
        new = () if self.ledger.exists() else ("--new-ledger",)
        return [*self._command, "--ledger", self.ledger, "--port", self.port, *new]


class Deal(Process):
    """One `counterveil deal` on the files that `publish` wrote. `settings` are further options of the command."""

    def __init__(self, folder: Path, *settings: object, apart: bool = False) -> None:
        fixed = [*COMMAND, "deal", "--terms", folder / TERMS, "--key", folder / DEALER / SERVER_PRIVATE, *settings]
        super().__init__(fixed, folder / "log-dealer", apart=apart)

    def wait(self) -> None:
        """Wait until the dealer runs."""
        self.wait_for(b'"dealing"')

    def wait_full(self, pairs: int = 1) -> None:
        """Wait until this many pairs of processes have a full stock."""
        self.wait_for(b'"stock full"', pairs)


def start(processes: Sequence[Process]) -> None:
    """Start all servers and wait until all listen; if one does not, stop the others."""
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.wait()
    except BaseException:
        stop(processes)
        raise


def stop(processes: Sequence[Process]) -> None:
    """Stop all servers at the same time, and wait until all have ended."""
    for process in processes:
        process.process.terminate()
    for process in processes:
        process.process.wait(_STOP)  # not told twice: a second signal may find it without its handler


@contextmanager
def running(processes: Sequence[Process]) -> Iterator[None]:
    """Start servers, wait until they listen, and stop them on exit."""
    start(processes)
    try:
        yield
    finally:
        stop(processes)


@contextmanager
def serving(folder: Path, database: Database, *, apart: bool = False, **chosen: Any) -> Iterator[list[Serve]]:
    """Publish a database with the parameters `chosen`, and run two servers at free ports, and a dealer if one deals."""
    ports = [free_port() for _ in range(2)]
    issued = publish(folder, database, [f"http://127.0.0.1:{port}" for port in ports], **chosen)
    servers = [Serve(folder, number, port, apart=apart) for number, port in enumerate(ports, start=1)]
    with running(servers), running([Deal(folder, apart=apart)] if issued.terms.dealer else []):
        yield servers
