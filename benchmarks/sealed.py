"""Measure what a sealed reveal costs on one core: `python benchmarks/sealed.py`.

It prints gates and bytes for each row, rows a second, and the cost of the record: fetched, or inside the answer. The
machine's own limit is AES: a gate takes eight blocks to make and four to evaluate, and OpenSSL's blocks a second are
measured too. Rates are for whole answers: the scan, the labels and the gates of server 1, and the applicant's
evaluation of both answers.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from counterveil import Question, Scheme, make_scheme
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.schemes.fetch import make_spir
from counterveil.schemes.protocols import Size, circuit

FEATURES, RECORD = 8, 146  # a record of the German credit data, signed
SIZES, BITS = (1_000, 8_000, 64_000), (12, 16, 20)


def aes_blocks_a_second() -> float:
    """Return how many AES blocks OpenSSL does in a second, on data that stay in the cache."""
    decryptor = Cipher(algorithms.AES128(bytes(16)), modes.ECB()).decryptor()  # noqa: S305 - a permutation
    data = bytes(1 << 18)
    best = min(timed(lambda: decryptor.update(data)) for _ in range(50))
    return len(data) / 16 / best


def timed(work: Any) -> float:
    """Return how many seconds a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def answers(scheme: Scheme, rows: Any, records: Any, repeats: int) -> tuple[float, float, Any]:
    """Return the best times of server 1's answer and of the applicant's evaluation, and the common randomness."""
    question = Question(costs=[np.arange(16) for _ in range(FEATURES)])
    making, evaluating = [], []
    for _ in range(repeats):
        common = scheme.common(new_key(), bytes(32), b"ticket")
        queries = scheme.query(question, Fresh())
        began = time.perf_counter()
        first = list(scheme.stream(1, rows, queries[0], common, records))
        making.append(time.perf_counter() - began)
        second = list(scheme.stream(2, rows, queries[1], common, records))
        whole = [np.concatenate(parts) for parts in (first, second)]
        began = time.perf_counter()
        scheme.recover(question, queries, whole, len(rows))
        evaluating.append(time.perf_counter() - began)
    return min(making), min(evaluating), common


def locked(scheme: Scheme, rows: Any, records: Any, before: int) -> float:
    """Return how long server 1 takes for the records, which come after `before` bytes of labels and gates."""
    common = scheme.common(new_key(), bytes(32), b"ticket")
    parts = scheme.stream(1, rows, np.zeros(scheme.symbols, dtype=np.int64), common, records)
    while before:
        before -= next(parts).size
    return timed(lambda: list(parts))


def main() -> None:
    """Measure and print."""
    console, limit = Console(), aes_blocks_a_second()
    table = Table(title="Sealed: what a row costs", box=box.SIMPLE_HEAD)
    for heading in ("k", "M", "ANDs a row", "bytes a row", "garbling", "of AES alone", "evaluating", "of AES alone"):
        table.add_column(heading, justify="right")
    other = Table(title="The record: fetched (SPIR), or inside", box=box.SIMPLE_HEAD)
    for heading in ("M", "fetched: up", "down", "server", "inside: down", "server"):
        other.add_column(heading, justify="right")
    generator = np.random.default_rng(1)
    for k, M in track([(k, M) for k in BITS for M in SIZES], description="sealed", transient=True, console=console):
        repeats = 5 if M <= 8_000 else 2
        rows = generator.integers(0, 16, (M, FEATURES), dtype=np.uint8)
        records = generator.integers(0, 256, (M, RECORD), dtype=np.uint8)
        cap = ((1 << k) - 1) // FEATURES
        scheme = make_scheme("table/sealed", largest=15, d=FEATURES, cap=cap)
        garbling, evaluating, common = answers(scheme, rows, records, repeats)
        sizes, last = circuit.ands(M, k)
        gates = (sum(sizes) + last) / M
        down = scheme.requests(Size(M))[0].down
        sent = sum(down) / M
        table.add_row(
            str(scheme.field.bits), f"{M:,}", f"{gates:.2f}", f"{sent:,.0f} B",
            f"{M / garbling:,.0f} rows/s", f"{8 * gates * M / garbling / limit:.0%}",
            f"{M / evaluating:,.0f} rows/s", f"{4 * gates * M / evaluating / limit:.0%}",
        )  # fmt: skip
        if k == BITS[0]:
            spir, positions = make_spir(servers=2, collusion=1, length=RECORD), scheme.protocol.positions(M)
            query, order = spir.query(positions, 0, Fresh())[0], scheme.protocol.order(scheme, M, common)
            fetching = min(timed(lambda: spir.answer(1, records, query, common, order=order)) for _ in range(repeats))  # noqa: B023
            inside = make_scheme("table/sealed_record", largest=15, d=FEATURES, cap=cap)
            locking = min(locked(inside, rows, records, down[0]) for _ in range(repeats))
            added = inside.requests(Size(M, RECORD))[0].down[0] - down[0]
            other.add_row(
                f"{M:,}", f"{2 * query.size / 1024:,.1f} KiB", f"{2 * RECORD} B", f"{1000 * fetching:.1f} ms",
                f"{added / 1024:,.0f} KiB", f"{1000 * locking:.1f} ms",
            )  # fmt: skip
    console.print(table)
    console.print(f"AES alone: {limit / 1e6:,.0f} million blocks a second on one core.\n")
    console.print(other)
    console.print(f"Records of {RECORD} bytes. Fetching takes one round more; inside, only the nearest row is there.")


if __name__ == "__main__":
    main()
