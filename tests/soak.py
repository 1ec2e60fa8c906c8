"""Hours of questions while both operators change data and keys: `python tests/soak.py --minutes 60 --every 5`.

Two servers run in their own processes. Applicants ask all the time, half of them with a client that lasts for the whole
run, half with a new client for each question. Every few minutes the institution publishes new data, and between these
times an operator makes a new common key. Each operator gets both at a time of its own, and lets its server read them
again. Old data and old keys end, so that the memory of the servers can be seen to stay as it is. Every answer is
compared with the nearest row of the data that it came from. The exit code is 1 if a question failed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from counterveil import Counterfactual, Database, local
from counterveil.applicant.client import AsyncClient
from counterveil.errors import CounterveilError
from patience import LONG
from rolling import Rolling
from service import numbers_frame, numbers_schema

_FEATURES, _PEOPLE = 4, 12
_SPARE = 5  # minutes for which old data and old keys outlast what a slow restart takes


class Soak:
    """One run: the load, the rollovers, and what came of both."""

    def __init__(self, made: Rolling, rows: int, minutes: float, every: float, clients: int, **chosen: Any) -> None:
        self.made, self.rows, self.minutes, self.every, self.clients, self.chosen = (
            made, rows, minutes, every, clients, chosen,
        )  # fmt: skip
        self.random = random.Random(7)
        self.people = [{f"x{j}": self.random.randint(0, 20) for j in range(_FEATURES)} for _ in range(_PEOPLE)]
        self.expected: dict[bytes, list[float]] = {}  # what each person's change costs, by the digest of the terms
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()
        self.wrong = 0
        self.used: Counter[str] = Counter()  # questions by epoch
        self.memory: list[tuple[float, list[float]]] = []  # minutes, and MiB of each server
        self.events: Counter[str] = Counter()
        self.is_over = False
        self._serial = 0

    def publish(self) -> str:
        """Publish new data, which ends some minutes after the data after next begins."""
        self._serial += 1
        name = f"epoch-{self._serial:04}"
        frame = numbers_frame(self.rows, _FEATURES, seed=self._serial)
        database = Database.build(frame, numbers_schema(_FEATURES), accepted="ok")
        issued = self.made.publish(name, database, lasts=60 * (2 * self.every + _SPARE), **self.chosen)
        bank = local(database, "table/differences")
        found = [bank.ask(person) for person in self.people]
        self.expected[issued.digest] = [each.cost if isinstance(each, Counterfactual) else -1 for each in found]
        return name

    async def run(self) -> None:
        """Ask until the time is over, and change over meanwhile."""
        began = time.monotonic()
        asking = [asyncio.create_task(self._applicant(n)) for n in range(self.clients)]
        changing = asyncio.create_task(self._change())
        watching = asyncio.create_task(self._watch(began))
        await asyncio.sleep(60 * self.minutes)
        changing.cancel()
        self.is_over = True
        await asyncio.gather(*asking)
        watching.cancel()
        self._measure(began)

    async def _applicant(self, number: int) -> None:
        lasting = AsyncClient(self.made.urls, timeout=LONG, patience=60.0)
        first = next(iter(self.made.epochs))
        while not self.is_over:
            client = lasting if number % 2 else AsyncClient(self.made.urls, timeout=LONG, patience=60.0)
            person, asked = self.random.randrange(_PEOPLE), time.perf_counter()
            try:
                found = await client.ask(self.people[person], ticket=self.made.ticket(first))
            except CounterveilError as error:
                self.failed[f"{type(error).__name__}: {error}"] += 1
                continue
            self.seconds.append(time.perf_counter() - asked)
            issued = found.issued if isinstance(found, Counterfactual) else None
            if issued is None or found.cost != self.expected[issued.digest][person]:  # type: ignore[union-attr]
                self.wrong += 1
            else:
                self.used[next(name for name, each in self.made.epochs.items() if each.digest == issued.digest)] += 1

    async def _change(self) -> None:
        """Every so many minutes: new data at one operator, then at the other; a new key at one, then at the other."""
        period = 60 * self.every
        while True:
            began = time.monotonic()
            first, second = self.random.sample([1, 2], 2)
            name = await asyncio.to_thread(self.publish)
            for n in (first, second):
                await asyncio.sleep(self.random.uniform(0, period / 8))
                await asyncio.to_thread(self.made.give, n, name)
                await asyncio.to_thread(self.made.reload, n)
                self.events[f"new data at server {n}"] += 1
            await asyncio.sleep(max(0.0, began + period / 2 - time.monotonic()))
            overlap = f"{int(period + 60 * _SPARE)}s"
            await asyncio.to_thread(self.made.rotate, first, "new", "--begins", "now", "--overlap", overlap)
            for n in (first, second):
                if n == second:
                    await asyncio.sleep(self.random.uniform(0, period / 8))
                    key = self.made.newest_key(first)
                    await asyncio.to_thread(self.made.rotate, second, "add", key, "--overlap", overlap)
                await asyncio.to_thread(self.made.reload, n)
                self.events[f"new key at server {n}"] += 1
            await asyncio.sleep(max(0.0, began + period - time.monotonic()))

    async def _watch(self, began: float) -> None:
        while True:
            self._measure(began)
            await asyncio.sleep(60 * min(self.every, 1.0))

    def _measure(self, began: float) -> None:
        held = [_memory(process.process.pid) for process in self.made.processes]
        self.memory.append(((time.monotonic() - began) / 60, held))


def _memory(pid: int) -> float:
    """Return the MiB that a process and those that it started hold; memory that several share counts once."""
    todo, total = [pid], 0
    while todo:
        at = todo.pop()
        try:
            lines = Path(f"/proc/{at}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            for task in Path(f"/proc/{at}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended meanwhile
    return total / 1024


def _report(soak: Soak, console: Console) -> None:
    taken = np.array(soak.seconds or [0.0])
    p50, p99 = np.percentile(1000 * taken, [50, 99])
    table = Table(title=f"{soak.minutes:g} minutes, something new every {soak.every:g} minutes", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("", justify="right")
    failed = sum(soak.failed.values())
    for name, value in (
        ("questions answered", f"{len(soak.seconds):,}"),
        ("failed", f"{failed:,}"),
        ("wrong answers", f"{soak.wrong:,}"),
        ("p50", f"{p50:.0f} ms"),
        ("p99", f"{p99:.0f} ms"),
        ("longest", f"{1000 * taken.max():.0f} ms"),
        ("epochs that questions were answered under", f"{len(soak.used)} of {len(soak.expected)}"),
        *sorted((what, f"{count}") for what, count in soak.events.items()),
    ):
        table.add_row(name, value)
    console.print(table)
    held = Table(title="Memory of the servers, MiB", box=box.SIMPLE_HEAD)
    for heading in ("minute", *(f"server {n}" for n in range(1, len(soak.made.processes) + 1))):
        held.add_column(heading, justify="right")
    step = max(1, len(soak.memory) // 12)
    for minute, each in [*soak.memory[::step], soak.memory[-1]]:
        held.add_row(f"{minute:.1f}", *(f"{mib:.0f}" for mib in each))
    console.print(held)
    for why, count in soak.failed.most_common(5):
        console.print(f"{count} × {why}", markup=False)


@click.command()
@click.option("--minutes", default=60.0, show_default=True, help="How long people ask.")
@click.option("--every", default=5.0, show_default=True, help="Minutes from new data to new data.")
@click.option("--clients", default=8, show_default=True, help="How many people ask at a time.")
@click.option("--rows", default=2000, show_default=True)
@click.option("--workers", type=int, help="Processes of each server, which SIGHUP replaces; by default one, restarted.")
@click.option("--ledger", "ledgers", multiple=True, help="The address of each server's ledger; by default files.")
@click.option("--joint", is_flag=True, help="The servers work on each question together.")
@click.option("--scheme", default="table/differences", show_default=True)
def main(
    minutes: float,
    every: float,
    clients: int,
    rows: int,
    workers: int | None,
    ledgers: tuple[str, ...],
    joint: bool,
    scheme: str,
) -> None:
    """Ask for a long time, while both operators change data and keys."""
    chosen = {"scheme": "table/sealed", "protocol": "joint"} if joint else {"scheme": scheme}
    with (
        tempfile.TemporaryDirectory() as name,
        Rolling(Path(name), 2, workers=workers, ledgers=ledgers or None) as made,
    ):
        soak = Soak(made, rows, minutes, every, clients, **chosen)
        first = soak.publish()
        for n in (1, 2):
            made.give(n, first)
        made.start(1, 2)
        asyncio.run(soak.run())
        _report(soak, Console())
    if soak.failed or soak.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
