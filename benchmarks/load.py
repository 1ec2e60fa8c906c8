"""Measure questions under load, private and in the clear: `python benchmarks/load.py [QUESTIONS [SCHEME…]]`.

Two servers, one process each, have M = 10,000 rows of d = 20 features, and applicants in two processes ask over 64
connections in all. They run as `counterveil serve` does, with its ledger, logs and metrics. There are two peers. For
both the applicant sends their whole cost table to one server, which scans the same rows with the same code and returns
the nearest record. So both lack a second server, pads, a second round and privacy.

- An endpoint in the same application has no ticket and no ledger either, and connections stay open.
- The same service in the clear takes the same messages over new connections, and enters tickets in a ledger.

So private questions beside the second peer show the price of privacy alone, and beside the first that of everything.

A busy machine makes every figure of time smaller or larger, so the table also has the processor time that each process
took. The last figures are those of one server alone: how many answers it gives in a second of its own processor time,
to questions that were made before; how many whole questions it has its part in, each with two requests over a new
connection; and how many the same service answers in the clear, each with one request over a new connection.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
from fastapi import Request, Response
from rich import box
from rich.console import Console
from rich.table import Table
from starlette.concurrency import run_in_threadpool

from counterveil import AsyncClient, Database, Field, Numeric, Preferences, Schema, engine
from counterveil.applicant.ask import compile_question
from counterveil.crypto.keys import COMMON, PRIVATE, SERVER_PRIVATE, Issuer, SigningKey, read_common
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.research.processes import Process, Serve, free_port, publish, running
from counterveil.schemes.protocols import Size
from counterveil.service.app import make_app
from counterveil.service.app import serve as run
from counterveil.service.ledger import Ledger
from counterveil.service.outset import bind, log_lines
from counterveil.service.server import Admitted, Reply, Server, Turn
from counterveil.terms.published import deployment_of, read_terms
from counterveil.terms.tickets import mint
from counterveil.terms.wire import ROUTES, Manifest, RequestKind, Ticket, decode_manifest, encode, pack, unpack
from counterveil.terms.wire import Request as Message

ROWS, FEATURES, LEVELS = 10_000, 20, 20
APPLICANTS, CONNECTIONS = 2, 32  # processes, and the connections of each
SCHEMES: dict[str, dict[str, Any]] = {  # parameters, and how many questions for each of `table/differences`
    "table/differences": {},
    "joint": {"scheme": "table/sealed", "protocol": "joint"},
    "garbled": {"scheme": "table/sealed", "protocol": "garbled"},
}
QUERY: tuple[RequestKind, ...] = ("query",)
WHOLE: tuple[RequestKind, ...] = ("query", "record-query")  # the requests of a whole question to each server
FEWER = {"joint": 10, "garbled": 20}  # questions of other schemes take longer, so fewer are asked


def make_schema() -> Schema:
    """Return d features of 21 levels."""
    return Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=LEVELS, step=1) for j in range(FEATURES)))


def make_rows(count: int) -> Database:
    """Return a database of random rows."""
    rows = np.random.default_rng(1).integers(0, LEVELS + 1, (count, FEATURES))
    data = {f"x{j}": rows[:, j] for j in range(FEATURES)} | {"ok": np.ones(count, dtype=bool)}
    return Database.build(data, make_schema(), accepted="ok")


@contextmanager
def started(folder: Path, count: int, *, host: str = "127.0.0.1", **chosen: Any) -> Iterator[list[Serve]]:
    """Run two servers of random rows, as `counterveil serve` does."""
    ports = [free_port() for _ in range(2)]
    publish(folder, make_rows(count), [f"http://{host}:{port}" for port in ports], **chosen)
    servers = [Serve(folder, number, port) for number, port in enumerate(ports, start=1)]
    with running(servers):
        yield servers


@contextmanager
def serving(folder: Path, count: int, scheme: str, host: str = "127.0.0.1") -> Iterator[list[str]]:
    """Run two servers; return their addresses."""
    with started(folder, count, host=host, scheme=scheme) as servers:
        yield [f"http://{host}:{server.port}" for server in servers]


def request(manifest: Manifest, kind: RequestKind, at: int, ticket: Ticket, secret: bytes, body: bytes) -> bytes:
    """Return a request to server 1. All requests of one ticket to a server carry the same secret."""
    digest, key = manifest.issued.digest, bytes.fromhex(manifest.key)
    return encode(Message(2, kind, 1, digest, key, ticket.encode(), at, (1, 2), secret, body))


class ClearServer(Server):
    """A server that takes the same messages as ours, reads a whole cost table in a question, and answers the record."""

    nearest: Callable[[bytes], bytes]

    def admit(self, head: bytes, length: int, kind: RequestKind) -> Admitted:
        """Check a request as ours does; its answer is the nearest record."""
        admitted = super().admit(head, length, kind)

        def read(body: bytes) -> Turn:
            turn = admitted.read(body)

            def answer() -> Reply:
                record = self.nearest(body[admitted.head :])
                return Reply(len(record), iter([record]))

            turn.answer, turn.last = answer, True  # type: ignore[method-assign]
            return turn

        return Admitted(admitted.head, read)


def serve_plainly(folder: Path, port: int) -> None:
    """Run the application of server 1 in the clear, with an endpoint without tickets beside its own routes."""
    database, issued = Database.open(folder / "bundle"), read_terms(folder / "terms")
    deployment = deployment_of(issued.terms)
    common, own = read_common(folder / COMMON), SigningKey.load(folder / "1" / SERVER_PRIVATE)
    ledger = Ledger(folder / "ledger", 1, new=True)
    server = ClearServer.open(1, database, issued, key=common, own=own, ledger=ledger, worthwhile=engine.LASTING)
    app, scheme, rows = make_app(server), deployment.scheme, server.epoch.rows

    def nearest(body: bytes) -> bytes:
        table = unpack("table", scheme.field, body, scheme.symbols)
        return bytes(database.served[int(np.argmin(rows.scan(scheme.form.plan(scheme.field, table))))])

    server.nearest = nearest

    @app.post("/plain")
    async def plain(request: Request) -> Response:
        return Response(await run_in_threadpool(nearest, await request.body()))

    log_lines("info")
    run(app, {}, bind("127.0.0.1", port), host="127.0.0.1", tls_cert=None, tls_key=None)


def processor(*processes: Process) -> float:
    """Return the seconds of processor time that some processes have taken (Linux)."""
    taken = [Path(f"/proc/{each.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13] for each in processes]
    return sum(int(ticks) for each in taken for ticks in each) / os.sysconf("SC_CLK_TCK")


class Part(NamedTuple):
    """What the applicants of one process saw."""

    began: float
    ended: float
    processor: float
    seconds: list[float]
    errors: list[str]


class Load(NamedTuple):
    """What all applicants saw, and what it cost."""

    title: str
    rate: float
    seconds: np.ndarray
    servers: float  # seconds of processor time of all servers, a question
    applicant: float
    errors: list[str]


async def load(count: int, ask: Callable[[int], Awaitable[None]], connections: int) -> Part:
    """Ask `count` questions over several connections, after one that is not counted."""
    seconds: list[float] = []
    errors: list[str] = []
    await ask(count)
    left, began, taken = iter(range(count)), time.time(), time.process_time()

    async def connection() -> None:
        for i in left:
            at = time.perf_counter()
            try:
                await ask(i)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            seconds.append(time.perf_counter() - at)

    await asyncio.gather(*(connection() for _ in range(connections)))
    return Part(began, time.time(), time.process_time() - taken, seconds, errors)


def people() -> list[dict[str, int]]:
    """Return 64 people."""
    rows = np.random.default_rng(2).integers(0, LEVELS + 1, (64, FEATURES))
    return [{f"x{j}": int(v) for j, v in enumerate(row)} for row in rows]


def privately(folder: Path, urls: list[str], count: int, connections: int) -> Part:
    """Ask whole questions, each with a ticket of its own."""

    async def go() -> Part:
        asked, issuer = people(), Issuer.load(folder / PRIVATE)
        async with AsyncClient(urls) as client:
            peers, _ = await client.connect()
            terms, expires = peers[0].manifest.terms, int(time.time()) + 3600
            tickets = [mint(terms, [1, 2], expires=expires, issuer=issuer) for _ in range(count + 1)]

            async def ask(i: int) -> None:
                await client.ask(asked[i % 64], ticket=tickets[i])

            return await load(count, ask, connections)

    return asyncio.run(go())


def cost_tables(folder: Path) -> list[bytes]:
    """Return the whole cost table of every person."""
    deployment = deployment_of(read_terms(folder / "terms").terms)
    field, bodies = Field(deployment.scheme.field.q), []
    for person in people():
        question, _ = compile_question(deployment, deployment.schema.codes(person), Preferences())
        bodies.append(pack(field, np.concatenate(question.costs or [])))
    return bodies


def with_tickets(folder: Path, urls: list[str], count: int, connections: int) -> Part:
    """Send whole cost tables to the service in the clear, each with a ticket and over a new connection."""
    bodies, issuer = cost_tables(folder), Issuer.load(folder / PRIVATE)

    async def go() -> Part:
        async with httpx2.AsyncClient(base_url=urls[0], timeout=60) as http:
            manifest = decode_manifest((await http.get("/v1/manifest")).content)
        expires = int(time.time()) + 3600
        tickets = [mint(manifest.terms, [1, 2], expires=expires, issuer=issuer) for _ in range(count + 1)]
        verify = httpx2.create_ssl_context()

        async def ask(i: int) -> None:
            asked = request(manifest, "query", 0, tickets[i], new_key(), bodies[i % 64])
            async with httpx2.AsyncClient(base_url=urls[0], timeout=60, verify=verify) as http:
                (await http.post("/v1/answer", content=asked)).raise_for_status()

        return await load(count, ask, connections)

    return asyncio.run(go())


def plainly(folder: Path, urls: list[str], count: int, connections: int) -> Part:
    """Send whole cost tables to the endpoint without tickets."""
    bodies = cost_tables(folder)

    async def go() -> Part:
        async with httpx2.AsyncClient(base_url=urls[0], timeout=60) as http:

            async def ask(i: int) -> None:
                (await http.post("/plain", content=bodies[i % 64])).raise_for_status()

            return await load(count, ask, connections)

    return asyncio.run(go())


def applied(
    pool: ProcessPoolExecutor, title: str, work: Callable[..., Part], servers: list[Process], args: Sequence[Any],
    count: int, processes: int = APPLICANTS, connections: int = CONNECTIONS,
) -> Load:  # fmt: skip
    """Run one load in several processes at the same time."""
    taken = processor(*servers)
    made = [pool.submit(work, *args, count // processes, connections) for _ in range(processes)]
    parts = [each.result() for each in made]
    seconds = np.array([took for part in parts for took in part.seconds])
    per = 1 / len(seconds)
    return Load(
        title,
        len(seconds) / (max(part.ended for part in parts) - min(part.began for part in parts)),
        seconds,
        per * (processor(*servers) - taken),
        per * sum(part.processor for part in parts),
        [error for part in parts for error in part.errors],
    )


async def answers(
    folder: Path, process: Process, port: int, count: int, connections: int, kinds: Sequence[RequestKind] = ()
) -> tuple[float, float]:
    """Ask one server questions that were made before; return questions a second, and for each second of its processor.

    With `kinds`, each question has these requests and a connection of its own; by default it is one request over a
    connection that stays open.
    """
    issuer = Issuer.load(folder / PRIVATE)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        manifest = decode_manifest((await http.get("/v1/manifest")).content)
    deployment, expires = deployment_of(manifest.terms), int(time.time()) + 3600
    sizes = deployment.scheme.requests(Size(manifest.terms.rows, deployment.record_bytes, 1))
    questions = []
    for _ in range(count):
        ticket, secret, bodies = mint(manifest.terms, [1, 2], expires=expires, issuer=issuer), new_key(), []
        for at, (kind, size) in enumerate(zip(kinds or QUERY, sizes, strict=False)):
            share = Fresh().elements(size.sent.q, size.up)  # a share is uniformly random
            body = request(manifest, kind, at, ticket, secret, pack(size.sent, share))
            head = f"POST {ROUTES[kind][0]} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
            bodies.append(head.encode() + body)
        questions.append(bodies)
    left = iter(questions)

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for bodies in left:
            if kinds:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for body in bodies:
                writer.write(body)
                said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                if " 200 " not in said:
                    raise SystemExit(said)
                await reader.readexactly(int(said.split("content-length:")[1].split()[0]))
        writer.close()

    taken, began = processor(process), time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(connections)))
    return count / (time.perf_counter() - began), count / (processor(process) - taken)


def measure(console: Console, pool: ProcessPoolExecutor, name: str, count: int) -> int:
    """Run the loads of one scheme one after the other, and print them side by side; return the number of errors."""
    chosen = {"scheme": name} | SCHEMES.get(name, {})
    asked = max(2 * APPLICANTS, count // FEWER.get(name, 1))
    connections = max(2, CONNECTIONS // FEWER.get(name, 1))
    with tempfile.TemporaryDirectory() as made, started(Path(made), ROWS, **chosen) as servers:
        folder, urls = Path(made), [f"http://127.0.0.1:{server.port}" for server in servers]
        open_to_all, port = folder / "clear", free_port()
        open_to_all.mkdir()
        publish(open_to_all, make_rows(ROWS), urls, scheme="table/differences")  # the scan is the same for all schemes
        plain = Process([sys.executable, __file__, "plain", open_to_all, port], folder / "log-plain")
        with running([plain]):
            clear = [f"http://127.0.0.1:{port}"]
            results = [
                applied(pool, "private, two servers", privately, [*servers], (folder, urls), asked, 2, connections),
                applied(pool, "in the clear, tickets and ledger", with_tickets, [plain], (open_to_all, clear), count),
                applied(pool, "in the clear, an endpoint", plainly, [plain], (open_to_all, clear), count),
                applied(pool, "private, one at a time", privately, [*servers], (folder, urls), asked // 20 + 2, 1, 1),
            ]  # fmt: skip
            alone, many = [], APPLICANTS * CONNECTIONS
            if name == "table/differences":
                one, own = servers[0], servers[0].port
                alone = [
                    ("answers, one at a time", *asyncio.run(answers(folder, one, own, count, 1))),
                    ("answers", *asyncio.run(answers(folder, one, own, count, many))),
                    ("its part of whole questions", *asyncio.run(answers(folder, one, own, count, many, WHOLE))),
                    ("the same in the clear", *asyncio.run(answers(open_to_all, plain, port, count, many, QUERY))),
                ]
    title = f"{name}, M = {ROWS:,}, d = {FEATURES}, {APPLICANTS * connections} connections"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for heading in ("", "questions", "questions/s", "p50", "p99", "CPU of servers", "CPU of applicant", "errors"):
        table.add_column(heading, justify="left" if not heading else "right")
    for each in results:
        p50, p99 = np.percentile(1000 * each.seconds, [50, 99])
        cpu = (f"{1000 * taken:.2f} ms" for taken in (each.servers, each.applicant))
        cells = (str(len(each.seconds)), f"{each.rate:.0f}", f"{p50:.0f} ms", f"{p99:.0f} ms", *cpu)
        table.add_row(each.title, *cells, str(len(each.errors)))
    console.print(table)
    private, *in_clear, _ = results
    for each in in_clear:
        console.print(
            f"Private questions for each {each.title}: {private.rate / each.rate:.2f} a second, "
            f"{(each.servers + each.applicant) / (private.servers + private.applicant):.2f} for the same processor "
            f"time of all processes, {each.servers / (private.servers / 2):.2f} for that of each server."
        )
    for what, rate, each_second in alone:
        console.print(
            f"One server alone, its questions ready, {what}: {rate:.0f} a second, "
            f"{each_second:.0f} for each second of its processor time."
        )
    for error in sorted({error for each in results for error in each.errors})[:5]:
        console.print(error, markup=False)
    return sum(len(each.errors) for each in results)


def main(count: int, names: Sequence[str]) -> None:
    """Measure each scheme."""
    console = Console(width=140)
    with ProcessPoolExecutor(APPLICANTS, mp_context=multiprocessing.get_context("spawn")) as pool:
        errors = sum(measure(console, pool, name, count) for name in names)
    if errors:
        raise SystemExit("there were errors")


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        serve_plainly(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000, sys.argv[2:] or [*SCHEMES])
