"""Play a question by the protocol joint with every party in a process of its own; used by `joint.py --rows`.

Sockets connect the processes. Each says at the end how much memory it held at most, and how long its part took. The
first bytes of a record are the number of its row, so that the result can be checked against the rows in the clear.
"""

from __future__ import annotations

import multiprocessing
import queue
import resource
import socket
import threading
import time
from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterveil import Question, Scheme
from counterveil.crypto.randomness import Fresh
from counterveil.engine import hold, lay_out
from counterveil.engine.party import Party, Role, Send, Take, released
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Held, Size

ROLES: tuple[Role, ...] = (0, 1, "dealer", "applicant")
MIB = 1 << 20


class Part(NamedTuple):
    """What one process took."""

    role: Role
    peak: int  # bytes of memory
    ready: float  # seconds until it had its rows
    played: float  # seconds from then on


def codes_of(rows: int, features: int, levels: int) -> NDArray[np.uint8]:
    """Return the same random rows in every process."""
    return np.random.default_rng(7).integers(0, levels, (rows, features), dtype=np.uint8)


def driven(party: Party[Any], ends: dict[Role, socket.socket]) -> Any:
    """Carry a party's messages over sockets; a thread for each peer sends, so that two may send to each other."""
    waiting: dict[Role, queue.Queue[NDArray[Any] | None]] = {role: queue.Queue() for role in ends}

    def sending(role: Role) -> None:
        while (symbols := waiting[role].get()) is not None:
            ends[role].sendall(np.ascontiguousarray(symbols).view(np.uint8).data)

    threads = [threading.Thread(target=sending, args=(role,)) for role in ends]
    for thread in threads:
        thread.start()
    received: Any = None
    try:
        while True:
            effect = party.send(received)
            received = None
            if isinstance(effect, Send):
                waiting[effect.to].put(effect.symbols)
                while effect.to != "applicant" and waiting[effect.to].qsize() > 2:  # nobody holds a whole tape twice
                    time.sleep(0.0005)
            elif isinstance(effect, Take):
                received = np.empty(effect.count, dtype=np.uint8 if effect.alphabet == BYTES else np.int64)
                left = memoryview(received).cast("B")
                while len(left):
                    left = left[ends[effect.source].recv_into(left) :]
    except StopIteration as end:
        return end.value
    finally:
        for role, thread in zip(ends, threads, strict=True):
            waiting[role].put(None)
            thread.join()


def party_of(scheme: Scheme, role: Role, size: Size, question: Question) -> Party[Any]:
    """Return the party of a role. A server makes its rows and records first."""
    if role == "applicant":
        return scheme.ask(question, size, Fresh())
    if role == "dealer":
        return scheme.protocol.deal(scheme, size, Fresh())
    levels, features = scheme.form.largest[0] + 1, len(scheme.form.largest)
    rows = lay_out(codes_of(size.rows, features, levels), worthwhile=0)
    records = np.random.default_rng(8).integers(0, 256, (size.rows, size.record), dtype=np.uint8)
    records[:, :4] = np.arange(size.rows, dtype="<u4")[:, None].view(np.uint8)
    common = scheme.common(bytes(32), bytes(32), b"large")
    return released(scheme.answering(role, 0, Held(rows, hold(records), lambda _: common, size.k)), BYTES)


def played(
    scheme: Scheme, role: Role, size: Size, question: Question, ends: dict[Role, socket.socket], start: Any, said: Any
) -> None:
    """Play a role in this process, and say what it took."""
    began = time.perf_counter()
    party = party_of(scheme, role, size, question)
    ready = time.perf_counter()
    start.wait()
    waited = time.perf_counter()
    result = driven(party, ends)
    ended = time.perf_counter()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said.put((Part(role, peak, ready - began, ended - waited), result.records[0] if role == "applicant" else b""))


def parts(scheme: Scheme, size: Size, question: Question) -> Iterator[Part]:
    """Play a question among processes; return what each took. Fail unless the record is that of the nearest row."""
    context = multiprocessing.get_context("fork")
    ends: dict[Role, dict[Role, socket.socket]] = {role: {} for role in ROLES}
    for one, other in combinations(ROLES, 2):
        ends[one][other], ends[other][one] = socket.socketpair()
    start, said = context.Barrier(len(ROLES)), context.Queue()
    processes = [
        context.Process(target=played, args=(scheme, role, size, question, ends[role], start, said)) for role in ROLES
    ]
    for process in processes:
        process.start()
    record = b""
    for _ in ROLES:
        part, got = said.get(timeout=540)
        record = got or record
        yield part
    for process in processes:
        process.join()
    codes = codes_of(size.rows, len(scheme.form.largest), scheme.form.largest[0] + 1)
    costs = np.zeros(size.rows, dtype=np.int32)
    for j, table in enumerate(question.costs or ()):
        costs += np.asarray(table, dtype=np.int32)[codes[:, j]]
    nearest, found = int(np.argmin(costs)), int.from_bytes(record[:4], "little")
    if found != nearest:
        raise SystemExit(f"got the record of row {found}, expected that of row {nearest}")
