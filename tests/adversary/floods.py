"""Flood a real server, and measure what honest people notice: `python tests/adversary/floods.py [SECONDS [NAME…]]`.

Every attack runs in its own process, which opens a connection again as soon as the server closes it. Meanwhile an
applicant asks one question after the other, and others fetch /healthz and /v1/manifest over new connections.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx2
import msgspec
import numpy as np

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent))

from counterveil.applicant.client import Client
from counterveil.terms.wire import Request as Message
from counterveil.terms.wire import Ticket, decode_ticket, encode
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


def _forged(request: bytes) -> bytes:
    """Return the same request with another signature under its ticket, right in every other way."""
    head, _, body = request.partition(b"\r\n\r\n")
    message = msgspec.msgpack.decode(body, type=Message)
    ticket = decode_ticket(message.ticket)
    forged = msgspec.structs.replace(ticket, signature=bytes(64)).encode()
    return posted(encode(msgspec.structs.replace(message, ticket=forged)), head.split(b" ")[1].decode())


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


async def _refused(port: int, said: bytes) -> None:
    """Send a request that is refused, over and over, with a new connection as soon as the last one is closed."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while not reader.at_eof():
                writer.write(said)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.split("content-length:")[1].split()[0]))
                if "connection: close" in head:
                    break
        finally:
            writer.transport.abort()


def _attack(name: str, port: int, requests: list[bytes]) -> None:
    os.nice(19)  # an attacker has other machines; here it must not take the processor from those who are measured
    half = requests[0][:-10]
    plans: dict[str, tuple[int, Callable[[int], Awaitable[None]]]] = {
        "never read": (32, lambda i: _idle(port, requests[i % 16])),
        "never read, 40 tickets": (80, lambda i: _idle(port, requests[i % len(requests)])),
        "silent": (600, lambda _: _idle(port, b"")),
        "half headers": (600, lambda _: _idle(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n")),
        "half bodies": (600, lambda _: _idle(port, half)),
        "replays": (8, lambda _: _again(port, requests[0])),
        "bad tickets": (64, lambda _: _refused(port, _forged(requests[0]))),
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
    "never read", "never read, 40 tickets", "silent", "half headers", "half bodies", "replays", "bad tickets", "readyz",
    "slow readers, 2 KiB/s", "slow readers, 80 KiB/s",
]  # fmt: skip


REFUSED = ["bad tickets"]  # attacks on a service whose answers are short, measured in turn with no attack


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
            p50, p95, p99 = np.percentile(1000 * np.array(self.seconds), [50, 95, 99])
            said = f"{p50:.0f} / {p95:.0f} / {p99:.0f} ms, {said}"
        return said


async def honest(service: Service, client: Client, tickets: list[Ticket], seconds: float, seen: Sequence[Seen]) -> int:
    """Ask and fetch for some seconds; note what honest people see, and return server 1's peak memory."""
    until, most = time.monotonic() + seconds, 0

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
    return most


def main(seconds: float, names: list[str]) -> None:
    """Measure each attack on a server of its own, in turn with no attack, since the machine may be busy with more."""
    print("| attack | questions: p50 / p95 / p99 | /healthz | /v1/manifest | memory |\n|---|---|---|---|---|")  # noqa: T201
    for name in names:
        scheme = "table/differences" if name in REFUSED else "table/sealed"
        with (
            tempfile.TemporaryDirectory() as folder,
            running(Path(folder), numbers_database(ROWS, FEATURES), 2, "--scheme", scheme) as service,
            Client(service.urls) as client,
        ):
            requests = captured(service, TICKETS)
            tickets = [service.ticket(client) for _ in range(2000)]
            before, port = resident(service), int(service.urls[0].rsplit(":", 1)[1])
            phases = {attack: ([Seen(), Seen(), Seen()], [before]) for attack in ("", name)}
            for attack in ["", name] * 3 if name in REFUSED else [name]:
                seen, memory = phases[attack]
                with attacked(attack, port, requests):
                    time.sleep(5)
                    memory.append(asyncio.run(honest(service, client, tickets, seconds, seen)))
            for attack, (seen, memory) in phases.items():
                if len(memory) > 1:
                    grown = f"{before >> 20} → {max(memory) >> 20} MiB"
                    print("|", " | ".join([attack or "none", *map(str, seen), grown]), "|", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, sys.argv[2:] or ["", *ATTACKS])
