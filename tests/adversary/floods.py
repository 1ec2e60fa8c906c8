"""Flood a real server, and measure what honest people notice: `python tests/adversary/floods.py [SECONDS [NAME…]]`.

Every attack runs in its own process, which opens a connection again as soon as the server closes it. Meanwhile an
applicant asks one question after the other, and others fetch /healthz and /v1/manifest over new connections.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx2
import numpy as np

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent))

from counterveil.applicant.client import Client
from counterveil.terms.wire import Ticket
from deployed import some_query
from service import Service, numbers_database, resident, running

ROWS, FEATURES, TICKETS = 6000, 8, 40
PERSON = {f"x{j}": 3 for j in range(FEATURES)}


def posted(body: bytes, path: str = "/v1/answer") -> bytes:
    """Return a whole request."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def captured(service: Service, count: int) -> list[bytes]:
    """Return `count` requests, each with a ticket of its own. Server 1 answers each whenever it is sent again."""
    with service.client() as client:
        return [posted(some_query(client, service.ticket(client))) for _ in range(count)]


async def _idle(port: int, said: bytes) -> None:
    """Send something, then nothing any more, and never read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    try:
        writer.write(said)
        while not reader.at_eof() and reader.exception() is None:
            await asyncio.sleep(0.1)
    finally:
        writer.transport.abort()


async def _trickle(port: int, said: bytes, rate: int) -> None:
    """Read an answer slowly and steadily."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    try:
        writer.write(said)
        while await reader.read(rate // 10):
            await asyncio.sleep(0.1)
    finally:
        writer.transport.abort()


async def _again(port: int, said: bytes) -> None:
    """Send a request and read all of the answer, over and over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            writer.write(said)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:")[1].split()[0]))
    finally:
        writer.transport.abort()


def _attack(name: str, port: int, requests: list[bytes]) -> None:
    half = requests[0][:-10]
    plans: dict[str, tuple[int, Callable[[int], Awaitable[None]]]] = {
        "never read": (32, lambda i: _idle(port, requests[i % 16])),
        "never read, 40 tickets": (80, lambda i: _idle(port, requests[i % len(requests)])),
        "silent": (600, lambda _: _idle(port, b"")),
        "half headers": (600, lambda _: _idle(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n")),
        "half bodies": (600, lambda _: _idle(port, half)),
        "replays": (8, lambda _: _again(port, requests[0])),
        "readyz": (64, lambda _: _again(port, b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")),
        "slow readers, 2 KiB/s": (len(requests), lambda i: _trickle(port, requests[i], 2 << 10)),
        "slow readers, 80 KiB/s": (len(requests), lambda i: _trickle(port, requests[i], 80 << 10)),
    }
    count, once = plans[name]

    async def keep_on(i: int) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, IndexError):
                await once(i)
            await asyncio.sleep(0.2)

    async def everyone() -> None:
        await asyncio.gather(*map(keep_on, range(count)))

    asyncio.run(everyone())


ATTACKS = [
    "never read", "never read, 40 tickets", "silent", "half headers", "half bodies", "replays", "readyz",
    "slow readers, 2 KiB/s", "slow readers, 80 KiB/s",
]  # fmt: skip


@contextmanager
def attacked(name: str, port: int, requests: list[bytes]) -> Iterator[None]:
    """Attack for as long as the context lasts."""
    if not name:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_attack, args=(name, port, requests), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@dataclass
class Seen:
    """What honest people saw of one path."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    async def measure(self, until: float, pause: float, once: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                await once()
                self.seconds.append(time.monotonic() - began)
            except Exception:
                self.failures += 1
            await asyncio.sleep(pause)

    def __str__(self) -> str:
        total = len(self.seconds) + self.failures
        said = f"{self.failures}/{total} failed"
        if self.seconds:
            p50, p95 = np.percentile(1000 * np.array(self.seconds), [50, 95])
            said = f"{p50:.0f} / {p95:.0f} ms, {said}"
        return said


async def honest(service: Service, client: Client, tickets: list[Ticket], seconds: float) -> tuple[list[Seen], int]:
    """Ask and fetch for some seconds; return what honest people saw, and server 1's peak memory."""
    seen, until, most = [Seen(), Seen(), Seen()], time.monotonic() + seconds, 0

    def ask() -> None:
        client.ask(PERSON, ticket=tickets.pop())

    async def look(path: str) -> None:
        async with httpx2.AsyncClient(base_url=service.urls[0], timeout=5) as http:
            (await http.get(path)).raise_for_status()

    async def weigh() -> None:
        nonlocal most
        while time.monotonic() < until:
            most = max(most, resident(service))
            await asyncio.sleep(0.1)

    await asyncio.gather(
        weigh(),
        seen[0].measure(until, 0.1, partial(asyncio.to_thread, ask)),
        seen[1].measure(until, 0.2, lambda: look("/healthz")),
        seen[2].measure(until, 0.2, lambda: look("/v1/manifest")),
    )
    return seen, most


def main(seconds: float, names: list[str]) -> None:
    print("| attack | questions: p50 / p95 | /healthz | /v1/manifest | memory |\n|---|---|---|---|---|")  # noqa: T201
    for name in names:
        with (
            tempfile.TemporaryDirectory() as folder,
            running(Path(folder), numbers_database(ROWS, FEATURES), 2, "--scheme", "table/sealed") as service,
            Client(service.urls) as client,
        ):
            requests = captured(service, TICKETS)
            tickets = [service.ticket(client) for _ in range(1000)]
            before, port = resident(service), int(service.urls[0].rsplit(":", 1)[1])
            with attacked(name, port, requests):
                time.sleep(5)
                seen, most = asyncio.run(honest(service, client, tickets, seconds))
            memory = f"{before >> 20} → {most >> 20} MiB"
            print("|", " | ".join([name or "none", *map(str, seen), memory]), "|", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, sys.argv[2:] or ["", *ATTACKS])
