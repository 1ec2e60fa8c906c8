"""Rows and records in shards of a real cluster, and questions to them while shards are killed.

As a script, kill shards so many times under load, and count answers: python tests/shard_load.py 50
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from counterveil import Question, Scheme, make_scheme
from counterveil.algebra.field import Field
from counterveil.crypto.randomness import CommonRandomness
from counterveil.engine import Plan, Records, Rows, as_rows, hold
from counterveil.engine.party import Party, Role, Send, chained, play, released
from counterveil.engine.shards import ShardedRecords, ShardedRows, Shards, bounds
from counterveil.errors import Refused
from counterveil.schemes.protocols import Held, Size, make_protocol
from patience import wait_until

D, TOP = 3, 9
FEW, MANY = 301, 66_000  # rows: of most protocols, and of joint, which has blocks of up to 65,536
RECORD = 40


def data(rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(rows)
    codes = generator.integers(0, TOP + 1, (rows, D), dtype=np.uint8)
    return codes, generator.integers(0, 256, (rows, RECORD), dtype=np.uint8)


def opened(rows: int, first: int, last: int) -> tuple[Rows, Records]:
    codes, records = data(rows)
    return as_rows(codes[first:last]), hold(records[first:last])


def sharded(name: str, rows: int, together: int, count: int, **options: Any) -> Shards:
    from ray import cloudpickle  # here, since it takes a second to import

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # shards import no tests
    cuts = bounds(rows, together, count)
    assert len(cuts) == count + 1
    sources = [partial(opened, rows, first, last) for first, last in pairwise(cuts)]
    return Shards(name, sources, cuts, **options)


class Drawn:
    """Randomness that is the same every time."""

    def __init__(self, common: CommonRandomness) -> None:
        self._common, self._request = common, 0

    def elements(self, q: int, count: int) -> Any:
        self._request += 1
        return self._common.elements("pad", q, count, request=self._request)


def held_by(rows: Rows, records: Records) -> Held:
    """Return what a server holds; `said` adds the common randomness."""
    return Held(rows, records, lambda _: None)  # type: ignore[arg-type, return-value]


def said(scheme: Scheme, held: list[Held], size: Size) -> list[tuple[Any, ...]]:
    """Return every message of a question, and what the applicant has at the end; `held` is what each server holds."""
    common = scheme.common(bytes(32), bytes(32), b"ticket")
    mine = [each._replace(common=lambda _: common, k=size.k) for each in held]
    draw, messages = Drawn(scheme.common(bytes(32), bytes(32), b"drawn")), list[tuple[Any, ...]]()
    question = Question(np.arange(D) * 2)
    parties: dict[Role, Party[Any]] = {"applicant": scheme.ask(question, size, draw)}
    if scheme.protocol.dealt_by == "dealer":
        parties["dealer"] = scheme.protocol.deal(scheme, size, draw)
    for seat in range(scheme.servers):
        asked = enumerate(scheme.requests(size))
        own = mine[min(seat, 1)]
        parties[seat] = chained([released(scheme.answering(seat, n, own), each.answered) for n, each in asked])

    def watch(role: Role, send: Send) -> None:
        messages.append((str(role), str(send.to), send.request, send.symbols.tobytes()))

    seen = play(parties, watch=watch)["applicant"]
    return [*sorted(messages, key=lambda each: each[:3]), (seen.positions, seen.records)]


def processes(shards: Shards) -> list[int]:
    """Return the processes of all shards that run now."""
    import ray

    found = list[int]()

    def all_found() -> bool:
        try:
            actors = [actor for replicas in shards.actors for actor in replicas]
            found[:] = [each["process"] for each in ray.get([actor.about.remote() for actor in actors])]
        except ray.exceptions.RayError:
            return False
        return True

    wait_until(all_found)
    return found


def killed_under_load(shards: Shards, kills: int) -> dict[str, int]:
    """Ask for scans, sums of records and joint runs while shards are killed; count answers, refusals and mistakes.

    After each kill, all three kinds of question must be answered again before the next.
    """
    codes, records = data(MANY)
    plan = Plan("polynomial", Field(1_000_003), (np.array([7, 11, 13]),), TOP)
    right, chosen = as_rows(codes).scan(plan), codes[:, 0] > 4
    summed = hold(records).xor(chosen, 0, RECORD)
    rows, held = ShardedRows(shards), ShardedRecords(shards, RECORD)
    scheme, size = make_scheme("table/sealed", largest=TOP, d=D, protocol="joint"), Size(MANY, RECORD)
    here, there = held_by(as_rows(codes), hold(records)), held_by(rows, held)
    played, over = said(scheme, [here, here], size), threading.Event()
    counts = {"scan": 0, "xor": 0, "joint": 0, "refused": 0, "wrong": 0, "kills": 0}

    def load(name: str, question: Callable[[], Any], expected: Any) -> None:
        while not over.is_set():
            try:
                counts[name if np.array_equal(question(), expected) else "wrong"] += 1
            except Refused:
                counts["refused"] += 1
            except Exception as error:
                print(f"{name}: {error!r}", file=sys.stderr)  # noqa: T201
                counts["wrong"] += 1

    work: list[tuple[str, Callable[[], Any], Any]] = [
        ("scan", lambda: rows.scan(plan), right),
        ("xor", lambda: held.xor(chosen, 0, RECORD), summed),
        ("joint", lambda: said(scheme, [there, here], size) == played, True),
    ]
    threads = [threading.Thread(target=load, args=each) for each in work]
    for thread in threads:
        thread.start()
    try:
        for kill in range(kills):
            seen = dict(counts)
            wait_until(lambda: all(counts[name] > seen[name] for name in ("scan", "xor", "joint")))  # noqa: B023
            time.sleep(0.05 * (kill % 7))  # at another moment of a run every time
            running = processes(shards)
            os.kill(running[kill % len(running)], signal.SIGKILL)
            counts["kills"] += 1
        seen = dict(counts)
        wait_until(lambda: all(counts[name] > seen[name] for name in ("scan", "xor", "joint")))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return counts


def main() -> None:
    """Kill shards under load, and say what came of it."""
    from two_nodes import two_nodes

    with two_nodes():
        shards = sharded("many", MANY, make_protocol("joint").together(MANY), 2)
        counts = killed_under_load(shards, int(sys.argv[1]))
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))  # noqa: T201
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
