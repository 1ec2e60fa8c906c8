"""A deployment whose operators change their data and their keys while it serves: each has folders of its own.

The institution publishes epochs; operators get them, and keys, at different times. A server reads its folders when it
starts. With `workers`, SIGHUP lets it read them again; without, it is stopped and started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterveil import Database
from counterveil.crypto.keys import (
    COMMON,
    PRIVATE,
    SERVER_PRIVATE,
    SERVER_PUBLIC,
    Issuer,
    read_common_keys,
    read_public,
    write_keys,
    write_server_keys,
)
from counterveil.research.processes import COMMAND, Process, free_port, start, stop
from counterveil.terms.deployment import Deployment
from counterveil.terms.published import make_terms, sign_terms, write_terms
from counterveil.terms.tickets import mint
from counterveil.terms.wire import SignedTerms, Ticket
from patience import LONG


class Rolling:
    """The institution, and one operator for each server.

    Parameters
    ----------
    folder : where everything lies: `made` is the institution's, 1, 2, … are the operators'.
    servers : how many servers there are in all, also those that only later terms name.
    ledgers : the ledger of each server; by default a file of its own.
    """

    def __init__(
        self,
        folder: Path,
        servers: int = 2,
        *settings: object,
        workers: int | None = None,
        ledgers: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.workers = folder, workers
        write_keys(folder / "made")
        self.issuer = Issuer.load(folder / "made" / PRIVATE)
        self.ports = [free_port() for _ in range(servers)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.epochs: dict[str, SignedTerms] = {}
        self.processes: list[Process] = []
        for n in range(1, servers + 1):
            place = folder / str(n)
            write_server_keys(place)
            for name in ("epochs", "keys"):
                (place / name).mkdir()
            shutil.copy(folder / "made" / COMMON, place / "keys" / COMMON)
            ledger = ledgers[n - 1] if ledgers else str(place / "ledger")
            run("ledger", "new", ledger, "--server", n)
            more = () if workers is None else ("--workers", workers)
            command = [*COMMAND, "serve", "--epochs", place / "epochs", "--server", n, "--key", place / SERVER_PRIVATE]
            command += ["--common-key", place / "keys", "--ledger", ledger, "--port", self.ports[n - 1], *more]
            self.processes.append(Process([*command, *settings], place / "log"))

    def publish(
        self, name: str, database: Database, *, servers: int = 2, lasts: float | None = None, **chosen: Any
    ) -> SignedTerms:
        """Do what the institution does: sign a bundle and its terms, and write both."""
        made, signed = self.folder / "made", database.sign(self.issuer)
        signed.save(made / f"{name}.bundle")
        deployment = Deployment.serving(signed, **{"servers": servers} | chosen)
        keys = [read_public(self.folder / str(n) / SERVER_PUBLIC) for n in range(1, servers + 1)]
        begins = max([int(time.time()), *(int(issued.terms.begins) + 1 for issued in self.epochs.values())])  # type: ignore[arg-type]
        ends = None if lasts is None else int(time.time() + lasts)
        terms = make_terms(signed, deployment, keys=keys, service="rolling", begins=begins, ends=ends)
        self.epochs[name] = sign_terms(terms, self.urls[:servers], self.issuer)
        write_terms(made / f"{name}.terms", self.epochs[name])
        return self.epochs[name]

    def give(self, number: int, name: str) -> None:
        """Bring an epoch to an operator: the bundle first, since the terms say that it is there."""
        for end in (".bundle", ".terms"):
            target = self.folder / str(number) / "epochs" / f"{name}{end}"
            shutil.copy(self.folder / "made" / f"{name}{end}", target.with_suffix(".part"))
            os.replace(target.with_suffix(".part"), target)

    def rotate(self, number: int, *arguments: object) -> str:
        """Run `counterveil rotate` for an operator: the command's name, and what follows the folder."""
        return run("rotate", arguments[0], self.folder / str(number) / "keys", *arguments[1:])

    def newest_key(self, number: int) -> Path:
        """Return the file of the key that begins last."""
        key = max(read_common_keys(self.folder / str(number) / "keys"), key=lambda key: key.begins)
        assert key.path is not None
        return key.path

    def start(self, *numbers: int) -> None:
        """Start servers, and wait until they listen."""
        start([self.processes[n - 1] for n in numbers])

    def reload(self, number: int) -> None:
        """Let a server read its folders again."""
        process = self.processes[number - 1]
        os.truncate(process.log, 0)  # a long log would be read again and again
        if self.workers is None:
            process.stop()
            process.start()
            process.wait()
            return
        process.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + LONG
        while _RELOADED not in process.log.read_bytes():
            assert time.monotonic() < until, process.log.read_text()
            time.sleep(0.05)

    def ticket(self, name: str, servers: Sequence[int] = (), **options: Any) -> Ticket:
        """Mint a ticket by the terms of an epoch; it is good for others too."""
        given: dict[str, Any] = {"expires": int(time.time()) + 3600, "issuer": self.issuer} | options
        return mint(self.epochs[name].terms, servers, **given)

    def stop(self) -> None:
        """Stop all servers."""
        stop([process for process in self.processes if hasattr(process, "process")])

    def __enter__(self) -> Rolling:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_RELOADED = b'"all workers are new"'  # what the supervisor of several workers logs when all of them are new


def run(*arguments: object) -> str:
    """Run the command line; return what it printed."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout
