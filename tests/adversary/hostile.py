"""Send hostile requests to real servers over HTTP: `python tests/adversary/hostile.py [REQUESTS]`, by default 100,000.

Two pairs of servers run, one that answers alone and one whose servers talk to each other. Requests of every kind are
captured from honest applicants, and then sent mutated, cut, too long, again, to the wrong server, to the wrong path,
with stale digests, expired and forged tickets, with huge heads, and as what is no HTTP at all. Every answer is counted.
There must be no status 500, 503 only with the code of a limit, no traceback, and an honest question must be answered
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent))

from counterveil import Counterfactual
from counterveil.crypto.keys import Issuer
from counterveil.crypto.randomness import new_key
from counterveil.schemes.protocols import Size
from counterveil.terms import wire
from counterveil.terms.published import deployment_of
from service import Service, numbers_database, running

ROWS, FEATURES = 200, 3
PERSON = {"x0": 1, "x1": 2, "x2": 3}
LIMITS = {"busy", "peer_unreachable", "attempt_held", "not_ready"}  # the codes that go with 503
CAPTURED = 24  # questions whose requests are mutated
_PATIENCE = 120.0  # seconds for one answer
_ODD: list[Any] = [None, 0, -1, 2**64 - 1, "", b"", [], {}, [[[[]]]], "query", b"\0" * 600, True, 1.5, bytes(32)]


class Good(NamedTuple):
    """A request that an honest applicant made: the server and the path it is for, and its bytes."""

    server: int
    path: str
    body: bytes


def captured(service: Service) -> list[Good]:
    """Return requests of every kind: with tickets that were used for them, and with expired, forged and unused ones."""
    seen: list[wire.Request] = []
    with service.client(watch=lambda peer, message, reply: seen.append(message)) as client:
        for _ in range(CAPTURED):
            client.ask(PERSON, ticket=service.ticket(client))
    deployment = deployment_of(service.issued.terms)
    scheme, size = deployment.scheme, Size(ROWS, deployment.record_bytes, 1)
    made: list[Good] = []
    unused = 0
    for message in seen:
        kind, body = message.kind, message.body
        if kind == "attempt":  # what the applicant dealt was not kept; any bytes will do
            (asked,) = scheme.requests(size)
            body += bytes(asked.body(message.server - 1) - len(body))
        tickets = [
            service.ticket(expires=int(time.time()) - 5),
            service.ticket(issuer=Issuer()),
            service.ticket(servers=[1]),
        ]
        if kind != "attempt" or (unused := unused + 1) <= 2:  # an attempt waits ten seconds for the other server
            tickets.append(service.ticket())
        changed = [msgspec.structs.replace(message, ticket=each.encode(), secret=new_key()) for each in tickets]
        for each in [message, *changed]:
            whole = wire.encode(msgspec.structs.replace(each, body=body))
            made.append(Good(message.server, wire.ROUTES[kind][0], whole))
    return made


def damaged(good: bytes, way: int, chance: random.Random) -> bytes:
    """Return a message with bytes changed, cut, doubled, or fields of it replaced, in one of 7 ways."""
    body = bytearray(good)
    if way == 0:
        for _ in range(chance.randint(1, 8)):
            body[chance.randrange(len(body))] = chance.randrange(256)
    elif way == 1:
        del body[chance.randrange(len(body)) :]
    elif way == 2:
        start = chance.randrange(len(body))
        body[start:start] = body[start : start + chance.randint(1, 50)]
    elif way == 3:
        body = bytearray(chance.randbytes(chance.randrange(len(body) + 50)))
    elif way == 4:
        fields = msgspec.msgpack.decode(good)
        fields[chance.randrange(len(fields))] = chance.choice(_ODD)
        body = bytearray(msgspec.msgpack.encode(fields))
    elif way == 5:
        body = bytearray(b"\x91" * chance.randint(1, 2000))
    else:
        body[chance.randrange(60)] ^= 1 << chance.randrange(8)
    return bytes(body)


def mutated(good: Good, chance: random.Random) -> bytes:
    """Return the bytes of one hostile request over HTTP."""
    path, body, head = good.path, good.body, b""
    way = chance.randrange(12)
    if way < 7:
        body = damaged(body, way, chance)
    elif way == 7:
        path = chance.choice(["/v1/answer", "/v1/record", "/v1/attempt", "/v1/link", "/v1/manifest", "/", "/metrics"])
    elif way == 8:
        message = msgspec.msgpack.decode(good.body, type=wire.Request)
        changes: dict[str, Any] = chance.choice(
            [{"terms": new_key()}, {"key": new_key()[:16]}, {"request": chance.randrange(20)}, {"secret": new_key()},
             {"among": (1,)}, {"among": (1, 2, 3)}, {"server": 3 - message.server}, {"kind": "collect", "body": b""},
             {"kind": "query"}, {"kind": "record-query"}, {"kind": "attempt"}]
        )  # fmt: skip
        body = wire.encode(msgspec.structs.replace(message, **changes))
    elif way == 9:
        head = b"x: " + b"y" * chance.choice([100, 10_000, 70_000, 200_000]) + b"\r\n"
    elif way == 10:
        length = chance.choice([b"-5", b"99999999999999999999999", b"0", b"5, 6", b"", b"%d" % (len(body) + 7)])
        return _posted(path, body, head, length, close=True)
    return _posted(path, body, head, b"%d" % len(body))  # 11: as it is, again


def _posted(path: str, body: bytes, head: bytes, length: bytes, *, close: bool = False) -> bytes:
    ending = b"connection: close\r\n" if close else b""
    line = f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode()
    return line + head + ending + b"content-length: " + length + b"\r\n\r\n" + body


class Sender:
    """Sends requests to one server, over one connection at a time, and counts what it answers."""

    def __init__(self, port: int, counts: Counter[tuple[int, str]]) -> None:
        self._port, self._counts = port, counts
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> None:
        """Send one request, and count its answer: the status, and the code of a refusal."""
        try:
            async with asyncio.timeout(_PATIENCE):
                status, code = await self._answer(request)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, code = 0, "connection closed"
            self.close()
        except TimeoutError:
            status, code = 0, "no answer"
            self.close()
        self._counts[status, code] += 1

    async def _answer(self, request: bytes) -> tuple[int, str]:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._line
        writer.write(request)
        if b"connection: close" in request[:1000]:
            writer.write_eof()  # it announced another length than it has
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        length = head.partition("content-length:")[2].split()
        body = await (reader.readexactly(int(length[0])) if length else reader.read())
        if not length or "connection: close" in head or status == 400:
            self.close()
        if status < 400:
            return status, "ok"
        try:
            return status, str(msgspec.json.decode(body)["code"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return status, "without a code"

    def close(self) -> None:
        """Close the connection; the next request gets a new one."""
        if self._line is not None:
            self._line[1].transport.abort()
            self._line = None


async def _flood(service: Service, goods: list[Good], count: int, seed: int) -> Counter[tuple[int, str]]:
    """Send `count` hostile requests, over 16 connections at a time."""
    counts: Counter[tuple[int, str]] = Counter()
    ports = {process.number: process.port for process in service.processes}
    left = iter(range(count))

    async def connection(number: int) -> None:
        chance = random.Random(seed + number)
        senders = {server: Sender(port, counts) for server, port in ports.items()}
        for _ in left:
            good = chance.choice(goods)
            server = good.server if chance.random() < 0.9 else 3 - good.server
            await senders[server].send(mutated(good, chance))
        for sender in senders.values():
            sender.close()

    await asyncio.gather(*map(connection, range(16)))
    return counts


def attacked(service: Service, count: int, seed: int = 1) -> Counter[tuple[int, str]]:
    """Send hostile requests to a service; fail unless it refuses them well and still serves honest people."""
    counts = asyncio.run(_flood(service, captured(service), count, seed))
    assert sum(counts.values()) == count
    for (status, code), times in counts.items():
        assert status < 500 or (status == 503 and code in LIMITS), (status, code, times)
        assert code != "no answer", times
    with service.client() as client:
        assert isinstance(client.ask(PERSON, ticket=service.ticket(client)), Counterfactual)
    for process in service.processes:
        said = process.log.read_text()
        assert "Traceback" not in said
        assert '"level":"error"' not in said
    return counts


@contextlib.contextmanager
def services() -> Iterator[list[tuple[str, Service]]]:
    """Run one service for each kind of request: servers that answer alone, and servers that talk to each other."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, options in (
            ("table/differences", ["--scheme", "table/differences"]),
            ("joint", ["--scheme", "table/sealed", "--protocol", "joint"]),
        ):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made.append((name, stack.enter_context(running(folder, numbers_database(ROWS, FEATURES), 2, *options))))
        yield made


def main(count: int) -> None:
    with services() as made:
        for name, service in made:
            began = time.monotonic()
            counts = attacked(service, count // len(made))
            print(f"{name}: {sum(counts.values()):,} requests in {time.monotonic() - began:.0f} s")  # noqa: T201
            for (status, code), times in sorted(counts.items()):
                print(f"  {times:7,} × {status or '---'} {code}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
