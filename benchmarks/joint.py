"""What the protocol joint costs: `python benchmarks/joint.py [--peers]`, `… --http 1048576`, `… --rows 10000000`.

The first table has what a question costs, with all parties in one process and no network. Each time is the best of
several. "Scan" and "slice" are times of one server. "Play" is the time of both servers' gates, without scan and slice.
"Record" is the xor of the selected packages at one server. "Deal" makes the whole tape, and "seeded" makes it from
seeds. Bytes for each row are those of each server. Garbled circuits are measured beside it.

The second table has the time to play over a network, against its round trip. In a round both servers send, and each
waits for the other's message. So a round takes half a round trip. The estimate adds that to the time without a network.
The measurement delivers every message half a round trip after it was sent.

The third table has whole questions over HTTP, with both dealers, and by garbled circuits. `--http` measures these
alone, for that many rows.

`--peers` also measures SPU and MPyC, in an environment of their own. `--rows` measures instead how much memory each
party needs, in a process of its own.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import joint_http
import joint_large
import joint_peers
import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from counterveil import Question, Scheme, make_scheme
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.engine import hold, lay_out
from counterveil.engine.party import Inbox, Party, Role, Send, Take, play
from counterveil.research.datasets import german_credit
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Size, dealing, make_protocol, packed
from counterveil.terms.deployment import Deployment

FEATURES, LEVELS, RECORD = 20, 16, 146  # a record of the German credit data, signed
SIZES, GARBLED = (1 << 14, 1 << 17, 1 << 20), 1 << 14  # garbled is measured up to this many rows
ROUND_TRIPS = (0, 1, 10, 40)  # milliseconds
QUESTION = Question(costs=[np.arange(LEVELS)] * FEATURES)

Bytes = NDArray[np.uint8]


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest time that `work` takes, in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def capped(bits: int) -> int:
    """Return the largest cost of a feature, such that costs have so many bits."""
    return ((1 << bits) - 1) // FEATURES


def scheme_of(bits: int, rounds: str, *, seeded: bool = False) -> Scheme:
    """Return a scheme by joint, for costs of so many bits."""
    made = make_scheme("table/sealed", largest=LEVELS - 1, d=FEATURES, cap=capped(bits), protocol="joint")
    protocol = make_protocol("joint", dealer="server", rounds=rounds, seeded=seeded)
    return Scheme.of(made.form, made.reveal, protocol)


def german_bits() -> int:
    """Return the bits of a cost in a sealed deployment of the German credit data."""
    return Deployment.of(german_credit()[1], scheme="table/sealed").scheme.field.bits


def servers(scheme: Scheme, shares: list[Any], tapes: list[Bytes], M: int) -> list[Party[Any]]:
    """Return both servers' parties, given their sliced shares and their tapes."""
    layout, profile = packed.Layout.of(M), scheme.protocol.rounds  # type: ignore[attr-defined]

    def server(seat: int) -> Party[Any]:
        gates, nothing = dealing.Shares(seat, dealing.Tape(seat, tapes[seat], seeded=False)), np.zeros_like(shares[0])
        u, v = (nothing, shares[1]) if seat else (shares[0], nothing)
        return (yield from packed.settled(gates, u, v, layout, 1, profile))

    return [server(0), server(1)]


def dealt(scheme: Scheme, size: Size) -> list[Bytes]:
    """Return the tapes of both servers."""

    def server(seat: int) -> Party[Any]:
        return (yield Take("dealer", scheme.requests(size)[0].dealt[seat], BYTES))

    dealer = scheme.protocol.deal(scheme, size, Fresh())
    got = play({"dealer": dealer, 0: server(0), 1: server(1)})
    return [got[0], got[1]]


class Inputs:
    """What the servers have when they begin to play: shares of every cost, and tapes."""

    def __init__(self, M: int, bits: int, rounds: str) -> None:
        self.scheme, self.size = scheme_of(bits, rounds), Size(M, RECORD)
        self.rows = np.random.default_rng(1).integers(0, LEVELS, (M, FEATURES), dtype=np.uint8)
        self.laid, self.layout, ring = lay_out(self.rows, worthwhile=0), packed.Layout.of(M), self.scheme.field
        self.plans = [self.scheme.form.plan(ring, query[:-1]) for query in self.scheme.query(QUESTION, Fresh())]
        self.costs = [self.layout.padded(self.laid.scan(plan), 0) for plan in self.plans]
        self.shares = [self.layout.sliced(cost, ring.bits) for cost in self.costs]
        self.tapes = dealt(self.scheme, self.size)

    def play(self) -> None:
        """Play both servers in turn."""
        play(dict(enumerate(servers(self.scheme, self.shares, self.tapes, self.size.rows))))

    def play_apart(self, round_trip: float) -> None:
        """Play each server in a thread of its own; messages arrive half a round trip after they were sent."""
        parties = servers(self.scheme, self.shares, self.tapes, self.size.rows)
        lines: list[queue.Queue[tuple[float, Any]]] = [queue.Queue(), queue.Queue()]

        def drive(seat: int) -> None:
            inbox, received = Inbox(), None
            try:
                while True:
                    effect = parties[seat].send(received)
                    received = None
                    if isinstance(effect, Send):
                        lines[1 - seat].put((time.perf_counter() + round_trip / 2000, effect.symbols))
                    elif isinstance(effect, Take):
                        while not inbox.has(effect):
                            due, symbols = lines[seat].get()
                            time.sleep(max(0.0, due - time.perf_counter()))
                            inbox.put(effect.source, 0, symbols)
                        received = inbox.take(effect)
            except StopIteration:
                return

        threads = [threading.Thread(target=drive, args=(seat,)) for seat in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def measured(M: int, bits: int, rounds: str, records: Any) -> list[str]:
    """Return a line of the first table."""
    inputs = Inputs(M, bits, rounds)
    seeded, held = scheme_of(bits, rounds, seeded=True), hold(records)
    chosen = np.random.default_rng(1).integers(0, 2, M).astype(bool)
    request, seeds = inputs.scheme.requests(inputs.size)[0], max(seeded.requests(inputs.size)[0].dealt)
    times = [
        best(lambda: inputs.laid.scan(inputs.plans[0])),
        best(lambda: inputs.layout.sliced(inputs.costs[0], inputs.scheme.field.bits)),
        best(inputs.play),
        best(lambda: held.xor(chosen, 0, RECORD)),
        best(lambda: dealt(inputs.scheme, inputs.size), 2),
        best(lambda: dealt(seeded, inputs.size), 2),
    ]
    sent = [f"{count / M:.2f} B" for count in (max(request.dealt), seeds, request.between)]
    garbled = garbling(M, bits, inputs.rows) if M <= GARBLED and rounds == "balanced" else ""
    number = len(dealing.planned(M, bits, 1, rounds))
    return [str(bits), f"{M:,}", rounds, str(number), *sent, *(f"{each:.1f} ms" for each in times), garbled]


def garbling(M: int, bits: int, rows: Any) -> str:
    """Return time and bytes of the same question by garbled circuits, for both servers and the applicant together."""
    scheme = make_scheme("table/sealed", largest=LEVELS - 1, d=FEATURES, cap=capped(bits))
    common, queries = scheme.common(new_key(), bytes(32), b"ticket"), scheme.query(QUESTION, Fresh())

    def whole() -> None:
        answers = [scheme.answer(n, rows, queries[n - 1], common) for n in (1, 2)]
        scheme.recover(QUESTION, queries, answers, M)

    return f"{best(whole, 2):.0f} ms, {sum(scheme.requests(Size(M))[0].down) / M:,.0f} B"


def costs(console: Console, widths: list[int]) -> None:
    """Print the first table."""
    headings = "k;M;rounds;;dealt;or seeded;between;scan;slice;play;record;deal;seeded;garbled"
    table = ruled("Joint: what a question costs, and garbled beside it", headings)
    for M in track(SIZES, description="joint", transient=True, console=console):
        records = np.random.default_rng(2).integers(0, 256, (M, RECORD), dtype=np.uint8)
        for bits in widths:
            for rounds in packed.PROFILES:
                table.add_row(*measured(M, bits, rounds, records))
    console.print(table)


def delays(console: Console, widths: list[int]) -> None:
    """Print the second table."""
    headings = "k;rounds;" + "".join(f";{trip} ms: estimated;measured" for trip in ROUND_TRIPS)
    table = ruled(f"Joint: milliseconds to play {SIZES[-1]:,} rows, against the round trip between servers", headings)
    for bits in widths:
        for rounds in packed.PROFILES:
            inputs = Inputs(SIZES[-1], bits, rounds)
            alone, number = best(inputs.play), len(dealing.planned(SIZES[-1], bits, 1, rounds))
            cells = [str(bits), rounds, str(number)]
            for trip in ROUND_TRIPS:
                took = best(lambda trip=trip, inputs=inputs: inputs.play_apart(trip), 2)  # type: ignore[misc]
                cells += [f"{alone + number * trip / 2:,.0f}", f"{took:,.0f}"]
            table.add_row(*cells)
    console.print(table)


def questions(console: Console, rows: int) -> None:
    """Print the third table."""
    title = f"Whole questions over HTTP, {FEATURES} features of {LEVELS} levels, the median of {joint_http.QUESTIONS}"
    table = ruled(title, "by;k;M;seconds;applicant sends;applicant gets")
    for M, protocols in ((GARBLED, joint_http.GARBLED), (rows, joint_http.JOINT)):
        for each in joint_http.measured(M, protocols):
            sizes = [f"{count:,} B" for count in (each.up, each.down)]
            table.add_row(each.by, str(each.bits), f"{M:,}", f"{each.seconds:.3f} s", *sizes)
    console.print(table)


def peers(console: Console) -> None:
    """Print what others take, beside joint and garbled."""
    table = ruled(f"The least of {joint_peers.ROWS:,} shared costs of {joint_peers.BITS} bits", "software;time")
    for rounds in packed.PROFILES:
        inputs = Inputs(joint_peers.ROWS, joint_peers.BITS, rounds)
        table.add_row(f"joint, {rounds} rounds, 2 servers", f"{best(inputs.play):.1f} ms")
    garbled = garbling(joint_peers.ROWS, joint_peers.BITS, inputs.rows)
    table.add_row("garbled, 2 servers and the applicant", garbled.split(",")[0])
    for peer in joint_peers.measured():
        if isinstance(peer, str):
            console.print(peer)
        else:
            table.add_row(peer.what, f"{peer.milliseconds:.1f} ms")
    console.print(table)


def large(console: Console, rows: int, bits: int, rounds: str) -> None:
    """Print what each party takes in a process of its own."""
    scheme = scheme_of(bits, rounds)
    title = f"Joint: {rows:,} rows, {FEATURES} features, {RECORD} bytes a record, k = {bits}, {rounds} rounds"
    table = ruled(title, "party;peak memory;until its rows are laid out;its part of the question")
    names: dict[Role, str] = {0: "server 1", 1: "server 2", "dealer": "dealer", "applicant": "applicant"}
    parts = {part.role: part for part in joint_large.parts(scheme, Size(rows, RECORD), QUESTION)}
    for role, name in names.items():
        part = parts[role]
        peak = f"{part.peak / joint_large.MIB:,.0f} MiB"
        table.add_row(name, peak, f"{part.ready:.1f} s", f"{part.played:.1f} s")
    console.print(table)


def ruled(title: str, headings: str) -> Table:
    """Return an empty table with these headings."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings.split(";")):
        table.add_column(heading, justify="right" if number else "left")
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure what the protocol joint costs.")
    parser.add_argument("--rows", type=int, help="measure the memory of each party instead, for so many rows")
    parser.add_argument("--http", type=int, help="measure whole questions over HTTP alone, for so many rows")
    parser.add_argument("--bits", type=int, default=21, help="bits of a cost, with --rows")
    parser.add_argument("--rounds", choices=packed.PROFILES, default="balanced", help="the profile, with --rows")
    parser.add_argument("--peers", action="store_true", help="also measure SPU and MPyC")
    given, console = parser.parse_args(), Console(width=180)
    if given.rows:
        large(console, given.rows, given.bits, given.rounds)
        return
    if given.http:
        questions(console, given.http)
        return
    own = german_bits()
    console.print(f"A sealed deployment of the German credit data has costs of k = {own} bits.")
    widths = sorted({12, 21, own})
    costs(console, widths)
    delays(console, widths)
    questions(console, SIZES[1])
    if given.peers:
        peers(console)


if __name__ == "__main__":
    main()
