"""Measure questions under load, private and in the clear: `python benchmarks/load.py [QUESTIONS]`.

Two servers, one process each, have M = 10,000 rows of d = 20 features, and 64 connections ask all the time. The peer is
a plaintext endpoint in the same application: the applicant sends their whole cost table, and the server scans the same
rows with the same code and returns the nearest record. It has no second server, no pads, no ticket, no ledger, no
second round and no privacy. The ratio of the two is the price of all of these, the applicant's own work included.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
from fastapi import Request, Response
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from starlette.concurrency import run_in_threadpool

from counterveil import AsyncClient, Database, Field, Numeric, Preferences, Schema, engine
from counterveil.applicant.ask import compile_question
from counterveil.crypto.keys import COMMON, PRIVATE, SERVER_PRIVATE, Issuer, SigningKey, read_common
from counterveil.crypto.randomness import Fresh, key_id, new_key
from counterveil.research.processes import Process, free_port, publish, running
from counterveil.service.app import make_app
from counterveil.service.app import serve as run
from counterveil.service.ledger import Ledger
from counterveil.service.server import Server
from counterveil.terms.published import deployment_of, read_terms
from counterveil.terms.tickets import mint
from counterveil.terms.wire import Manifest, RequestKind, Ticket, decode_manifest, encode, pack, unpack
from counterveil.terms.wire import Request as Message

ROWS, FEATURES, LEVELS, CONNECTIONS = 10_000, 20, 20, 64


def make_schema() -> Schema:
    """Return d features of 21 levels."""
    return Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=LEVELS, step=1) for j in range(FEATURES)))


def make_rows(count: int) -> Database:
    """Return a database of random rows."""
    rows = np.random.default_rng(1).integers(0, LEVELS + 1, (count, FEATURES))
    data = {f"x{j}": rows[:, j] for j in range(FEATURES)} | {"ok": np.ones(count, dtype=bool)}
    return Database.build(data, make_schema(), accepted="ok")


def make_database(folder: Path, urls: Sequence[str], count: int, scheme: str) -> None:
    """Write keys, a signed bundle of random rows, and its terms."""
    publish(folder, make_rows(count), urls, scheme=scheme)


@contextmanager
def serving(folder: Path, count: int, scheme: str, host: str = "127.0.0.1") -> Iterator[list[str]]:
    """Run two servers, each with the plaintext endpoint; return their addresses."""
    ports = [free_port() for _ in range(2)]
    urls = [f"http://{host}:{port}" for port in ports]
    make_database(folder, urls, count, scheme)
    commands = [[sys.executable, __file__, "serve", folder, n, port] for n, port in enumerate(ports, start=1)]
    with running([Process(command, folder / f"log-{n}") for n, command in enumerate(commands, start=1)]):
        yield urls


def request(manifest: Manifest, kind: RequestKind, at: int, ticket: Ticket, secret: bytes, body: bytes) -> bytes:
    """Return a request to server 1. All requests of one ticket to a server carry the same secret."""
    digest, key = manifest.issued.digest, bytes.fromhex(manifest.key)
    return encode(Message(2, kind, 1, digest, key, ticket.encode(), at, (1, 2), secret, body))


def serve(folder: Path, number: int, port: int) -> None:
    """Run one server, with the plaintext endpoint beside its own routes."""
    database, issued = Database.open(folder / "bundle"), read_terms(folder / "terms")
    deployment = deployment_of(issued.terms)
    common, own = read_common(folder / COMMON), SigningKey.load(folder / str(number) / SERVER_PRIVATE)
    ledger = Ledger(folder / f"ledger-{number}", number, key_id=key_id(common), new=True)
    server = Server.open(number, database, issued, key=common, own=own, ledger=ledger, worthwhile=engine.LASTING)
    app, scheme, rows = make_app(server), deployment.scheme, deployment.rows(database.codes)

    def nearest(body: bytes) -> bytes:
        table = unpack("table", scheme.field, body, scheme.symbols)
        costs = scheme.form.evaluate(scheme.field, rows, table)
        return bytes(database.served[int(np.argmin(costs))])

    @app.post("/plain")
    async def plain(request: Request) -> Response:
        return Response(await run_in_threadpool(nearest, await request.body()))

    logging.getLogger("counterveil").disabled = True  # logging every request would cost time
    run(app, {}, host="127.0.0.1", port=port, tls_cert=None, tls_key=None, log_level="info")


async def load(
    title: str, count: int, ask: Callable[[int], Awaitable[None]], connections: int = CONNECTIONS
) -> tuple[float, np.ndarray, int]:
    """Ask `count` questions over several connections; return questions a second, latencies and the number of errors."""
    seconds, errors, left = [], 0, iter(range(count))
    with Progress(transient=True) as bar:
        task = bar.add_task(title, total=count)

        async def connection() -> None:
            nonlocal errors
            for i in left:
                began = time.perf_counter()
                try:
                    await ask(i)
                except Exception as error:
                    errors += 1
                    if errors == 1:
                        bar.console.print(f"{type(error).__name__}: {error}")
                seconds.append(time.perf_counter() - began)
                bar.advance(task)

        began = time.perf_counter()
        await asyncio.gather(*(connection() for _ in range(connections)))
        took = time.perf_counter() - began
    return count / took, np.array(seconds), errors


async def measure(folder: Path, urls: list[str], count: int) -> list[tuple[str, float, np.ndarray, int]]:
    """Run both loads, one after the other."""
    generator = np.random.default_rng(2)
    people = [{f"x{j}": int(v) for j, v in enumerate(row)} for row in generator.integers(0, LEVELS + 1, (64, FEATURES))]
    issuer, results = Issuer.load(folder / PRIVATE), []
    async with AsyncClient(urls) as client:
        peers, deployment = await client.connect()
        terms, expires = peers[0].manifest.terms, int(time.time()) + 3600
        tickets = [mint(terms, [1, 2], expires=expires, issuer=issuer) for _ in range(count + count // 20 + 1)]

        async def private(i: int) -> None:
            await client.ask(people[i % 64], ticket=tickets[i])

        results.append(("private, two servers", *await load("private", count, private)))
        fewer = max(1, count // 20)
        results.append(("private, one at a time", *await load("one at a time", fewer, lambda i: private(count + i), 1)))
    field = Field(deployment.scheme.field.q)
    bodies = []
    for person in people:
        question, _ = compile_question(deployment, deployment.schema.codes(person), Preferences())
        bodies.append(pack(field, np.concatenate(question.costs or [])))
    async with httpx2.AsyncClient(base_url=urls[0], timeout=60) as http:

        async def plain(i: int) -> None:
            (await http.post("/plain", content=bodies[i % 64])).raise_for_status()

        results.append(("in the clear, one server", *await load("in the clear", count, plain)))
    return results


async def answers(folder: Path, url: str, count: int) -> list[tuple[int, float]]:
    """Time one server on questions that were made before, so that only its answers take time."""
    issuer = Issuer.load(folder / PRIVATE)
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        manifest = decode_manifest((await http.get("/v1/manifest")).content)
    scheme = deployment_of(manifest.terms).scheme
    found = []
    for connections in (1, CONNECTIONS):
        bodies = []
        for _ in range(count):
            ticket = mint(manifest.terms, [1, 2], expires=int(time.time()) + 3600, issuer=issuer)
            share = Fresh().elements(scheme.field.q, scheme.symbols)  # a share is uniformly random
            bodies.append(request(manifest, "query", 0, ticket, new_key(), pack(scheme.field, share)))
        left = iter(bodies)

        async def connection(left: Iterator[bytes] = left) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":")[-1]))
            for body in left:
                head = f"POST /v1/answer HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                if " 200 " not in said:
                    raise SystemExit(said)
                await reader.readexactly(int(said.split("content-length:")[1].split()[0]))
            writer.close()

        began = time.perf_counter()
        await asyncio.gather(*(connection() for _ in range(connections)))
        found.append((connections, count / (time.perf_counter() - began)))
    return found


def main(count: int) -> None:
    """Start the servers, run both loads, and print the results side by side."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name), ROWS, "table/differences") as urls:
        results = asyncio.run(measure(Path(name), urls, count))
        alone = asyncio.run(answers(Path(name), urls[0], max(CONNECTIONS, count // 4)))
    table = Table(
        title=f"{count:,} questions, {CONNECTIONS} connections, M = {ROWS:,}, d = {FEATURES}", box=box.SIMPLE_HEAD
    )
    for heading in ("", "questions/s", "p50", "p99", "errors"):
        table.add_column(heading, justify="left" if not heading else "right")
    for title, rate, seconds, errors in results:
        p50, p99 = np.percentile(1000 * seconds, [50, 99])
        table.add_row(title, f"{rate:.0f}", f"{p50:.0f} ms", f"{p99:.0f} ms", str(errors))
    console = Console()
    console.print(table)
    together, single, clear = (rate for _, rate, _, _ in results)
    console.print(f"In the clear a machine answers {clear / together:.1f} times as many questions.")
    console.print(f"{CONNECTIONS} at a time are answered {together / single:.1f} times as fast as one at a time.")
    for connections, rate in alone:
        console.print(f"One server alone, its questions ready, {connections} at a time: {rate:.0f} answers a second.")
    if any(errors for *_, errors in results):
        raise SystemExit("there were errors")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
