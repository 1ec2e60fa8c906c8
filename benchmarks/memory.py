"""Measure how soon a server of ten million rows is ready, and its memory: `python benchmarks/memory.py [ROWS]`.

It writes a bundle of 32 features, starts `counterveil serve` on it, asks it a question and a record, and reads the
memory of the process from the system. The packages are random bytes, because real ones would take ten minutes to make
and a server never looks inside them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import httpx2
import numpy as np
from load import request
from rich import box
from rich.console import Console
from rich.table import Table

from counterveil import Database, Numeric, Preferences, Schema
from counterveil.applicant.ask import compile_question
from counterveil.crypto.keys import PUBLIC, read_public, write_keys
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.institution.bundle import Counts
from counterveil.research.processes import Serve, free_port, publish, running
from counterveil.schema.layouts import layout
from counterveil.schemes.fetch import make_spir
from counterveil.terms import wire
from counterveil.terms.published import deployment_of
from counterveil.terms.tickets import mint

FEATURES, LEVELS = 32, 16
MIB = 1 << 20


def write_bundle(folder: Path, rows: int) -> None:
    """Write keys and a bundle of random rows, in the layout of a signed one."""
    write_keys(folder)
    schema = Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=LEVELS - 1, step=1) for j in range(FEATURES)))
    generator = np.random.default_rng(1)
    codes = generator.integers(0, LEVELS, (rows, FEATURES), dtype=np.uint8)
    packages = generator.integers(0, 256, (rows, layout(schema, "cell").itemsize + 64 + 32), dtype=np.uint8)
    database = Database(
        schema=schema,
        record="cell",
        min_cell=1,
        counts=Counts(rows, rows, 0, 0, rows),
        codes=codes,
        served=packages,
        signer=read_public(folder / PUBLIC),
        blind=bytes(32),
    )
    database.__dict__["records"] = packages[:, :-96]  # what unpackaging would give
    addresses = ["http://127.0.0.1:8721", "http://127.0.0.1:8722"]
    publish(folder, database, addresses, scheme="table/differences", is_open=True)


def held(process: int) -> dict[str, int]:
    """Return the bytes of memory of a process: its own, those of mapped files, and its peak."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    names = {"its own": "RssAnon", "of mapped files": "RssFile", "at most, in all": "VmHWM"}
    return {title: 1024 * int(status[name].split()[0]) for title, name in names.items()}


def ask(url: str) -> tuple[float, float]:
    """Ask one server a question and a record; return the seconds of both."""
    http = httpx2.Client(base_url=url, timeout=120)
    manifest = wire.decode_manifest(http.get("/v1/manifest").content)
    deployment, rows = deployment_of(manifest.terms), manifest.terms.rows
    ticket, secret = mint(manifest.terms, [1, 2], expires=int(time.time()) + 300), new_key()
    person = deployment.schema.codes({f"x{j}": j % LEVELS for j in range(FEATURES)})
    question, _ = compile_question(deployment, person, Preferences())
    share = wire.pack(deployment.scheme.field, deployment.scheme.query(question, Fresh())[0])
    spir = make_spir(servers=2, collusion=1, length=deployment.record_bytes)
    selection = spir.query(rows, 0, Fresh())[0].tobytes()
    seconds = []
    steps: tuple[tuple[wire.RequestKind, str, int, bytes], ...] = (
        ("query", "answer", 0, share),
        ("record-query", "record", 1, selection),
    )
    for kind, path, at, body in steps:
        message = request(manifest, kind, at, ticket, secret, body)
        began = time.perf_counter()
        http.post(f"/v1/{path}", content=message).raise_for_status()
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1]


def main(rows: int) -> None:
    """Serve a small bundle and a large one, and print what the large one takes."""
    console, size = Console(), rows * FEATURES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = Table(box=box.SIMPLE_HEAD)
        for heading in ("", "ready", "its own", "of mapped files", "at most, in all", "a question", "a record"):
            table.add_column(heading, justify="right" if heading else "left")
        own = []
        for title, count in (("2,048 rows", 2048), (f"{rows:,} rows", rows)):
            (folder / str(count)).mkdir()
            with console.status(f"writing {title}"):
                write_bundle(folder / str(count), count)
            server, began = Serve(folder / str(count), 1, free_port()), time.perf_counter()
            with running([server]):
                ready = time.perf_counter() - began
                before = held(server.process.pid)
                question, record = ask(server.url)
                after = held(server.process.pid)
            own.append((before["its own"], after["at most, in all"] - before["its own"] - before["of mapped files"]))
            memory = [f"{before[part] / MIB:,.0f} MiB" for part in ("its own", "of mapped files")]
            memory += [f"{after['at most, in all'] / MIB:,.0f} MiB"]
            table.add_row(title, f"{ready:.1f} s", *memory, f"{1000 * question:,.0f} ms", f"{1000 * record:,.0f} ms")
    console.print(
        f"{rows:,} rows of {FEATURES} codes: {size / MIB:,.0f} MiB of codes, {160 * rows / MIB:,.0f} of packages"
    )
    console.print(table)
    more, question = own[1][0] - own[0][0], own[1][1] - own[0][1]
    console.print(f"Memory of its own for the rows: {more / MIB:,.0f} MiB, {more / size:.2f} times the codes.")
    console.print(f"While it answers: {question / MIB:,.0f} MiB more, {question / rows:.0f} bytes a row.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
