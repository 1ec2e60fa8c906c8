"""What joint costs, compared with garbled: `python benchmarks/joint.py`. One process plays all parties in turn.

Each time is the best of several. "Scan" and "slice" are times of one server. "Play" is the time of both servers' gates,
without scan and slice. "Record" is the xor of the selected packages at one server. "Deal" makes the whole tape, and
"seeded" makes it from seeds. Bytes for each row are those of each server. The times include no network: each round adds
a round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from counterveil import Question, Scheme, make_scheme
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.engine import hold
from counterveil.engine.cpu import CpuRows, lay_out
from counterveil.engine.party import Party, Role, Take, play
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Size, dealing, make_protocol, packed

FEATURES, LEVELS, RECORD = 20, 16, 146  # a record of the German credit data, signed
SIZES, BITS, GARBLED = (1 << 14, 1 << 17, 1 << 20), (12, 21), 1 << 14  # garbled is measured up to this many rows


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest time that `work` takes, in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def played(shares: list[Any], tapes: list[Any], M: int) -> None:
    """Play both servers, given their sliced shares and their tapes."""
    layout = packed.Layout.of(M)

    def server(seat: int) -> Party[Any]:
        gates, nothing = dealing.Shares(seat, dealing.Tape(seat, tapes[seat], seeded=False)), np.zeros_like(shares[0])
        u, v = (nothing, shares[1]) if seat else (shares[0], nothing)
        return (yield from packed.settled(gates, u, v, layout, 1))

    play({0: server(0), 1: server(1)})


def dealt(scheme: Scheme, size: Size, *, seeded: bool = False) -> list[NDArray[np.uint8]]:
    """Return the tapes of both servers."""
    protocol = make_protocol("joint", dealer="server", seeded=seeded)

    def server(seat: int) -> Party[Any]:
        return (yield Take("dealer", protocol.question(scheme, size).dealt[seat], BYTES))

    parties: dict[Role, Party[Any]] = {"dealer": protocol.deal(scheme, size, Fresh()), 0: server(0), 1: server(1)}
    got = play(parties)
    return [got[0], got[1]]


def measured(M: int, bits: int, rows: Any, laid: CpuRows, records: Any) -> list[str]:
    """Return a line of the table."""
    cap = ((1 << bits) - 1) // FEATURES
    scheme = make_scheme("table/sealed", largest=LEVELS - 1, d=FEATURES, cap=cap, protocol="joint", dealer="server")
    size, layout, ring = Size(M, RECORD), packed.Layout.of(M), scheme.field
    question = Question(costs=[np.arange(LEVELS)] * FEATURES)
    plans = [scheme.form.plan(ring, query[:-1]) for query in scheme.query(question, Fresh())]
    costs = [layout.padded(laid.scan(plan), 0) for plan in plans]
    shares, tapes = [layout.sliced(cost, ring.bits) for cost in costs], dealt(scheme, size)
    chosen, held = np.random.default_rng(1).integers(0, 2, M).astype(bool), hold(records)
    request = scheme.requests(size)[0]
    seeds = max(make_protocol("joint", seeded=True).question(scheme, size).dealt)
    times = [
        best(lambda: laid.scan(plans[0])),
        best(lambda: layout.sliced(costs[0], ring.bits)),
        best(lambda: played(shares, tapes, M)),
        best(lambda: held.xor(chosen, 0, RECORD)),
        best(lambda: dealt(scheme, size), 3),
        best(lambda: dealt(scheme, size, seeded=True), 3),
    ]
    rounds = len(dealing.planned(M, ring.bits, 1))
    sent = [f"{count / M:.2f} B" for count in (max(request.dealt), seeds, request.between)]
    garbled = [beside(M, cap, rows)] if M <= GARBLED else [""]
    return [str(ring.bits), f"{M:,}", str(rounds), *sent, *(f"{each:.1f} ms" for each in times), *garbled]


def beside(M: int, cap: int, rows: Any) -> str:
    """Return time and bytes of the same question by garbled circuits, for both servers and the applicant together."""
    scheme = make_scheme("table/sealed", largest=LEVELS - 1, d=FEATURES, cap=cap)
    question, common = Question(costs=[np.arange(LEVELS)] * FEATURES), scheme.common(new_key(), bytes(32), b"ticket")
    queries = scheme.query(question, Fresh())

    def whole() -> None:
        answers = [scheme.answer(n, rows, queries[n - 1], common) for n in (1, 2)]
        scheme.recover(question, queries, answers, M)

    return f"{best(whole, 2):.0f} ms, {sum(scheme.requests(Size(M))[0].down) / M:,.0f} B"


def main() -> None:
    """Measure and print."""
    console = Console(width=160)
    table = Table(title="Joint: what a question costs", box=box.SIMPLE_HEAD)
    headings = (
        "k",
        "M",
        "rounds",
        "dealt",
        "or seeded",
        "between",
        "scan",
        "slice",
        "play",
        "record",
        "deal",
        "seeded",
    )
    for heading in (*headings, "garbled"):
        table.add_column(heading, justify="right")
    generator = np.random.default_rng(1)
    for M in track(SIZES, description="joint", transient=True, console=console):
        rows = generator.integers(0, LEVELS, (M, FEATURES), dtype=np.uint8)
        records, laid = generator.integers(0, 256, (M, RECORD), dtype=np.uint8), lay_out(rows, worthwhile=0)
        for bits in BITS:
            table.add_row(*measured(M, bits, rows, laid, records))
    console.print(table)


if __name__ == "__main__":
    main()
