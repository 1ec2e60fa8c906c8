"""One shard: a process of a Ray cluster with its own part of the rows. `shards` is how a head sees all of them."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Order
from ..errors import MissingPackage, Refused
from .contract import Plan, Records, Rows
from .hosting import Answer, Ended, Part, advanced

Source = Callable[[], tuple[Rows, Records]]  # opens one part; it is plain data that can be sent

LEASE = 120.0  # seconds that a shard stays without hearing of any head
_RUNS = 256  # joint runs that a shard remembers; the oldest is dropped, since its head must be gone


def import_ray() -> Any:
    """Import Ray, which tells nobody that it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingPackage("engine", got=f"no {error.name}", expected="counterveil[ray]") from None


class Shard:
    """One part of the rows. It runs in a process of its own, which Ray starts, and starts again if it is lost."""

    def __init__(self, source: Source, lease: float = LEASE) -> None:
        began = time.perf_counter()
        self.rows, self.records = source()
        self.seconds = time.perf_counter() - began
        self._scripts: dict[bytes, Any] = {}
        self._heard, self._lease = time.monotonic(), lease
        threading.Thread(target=self._expire, daemon=True).start()

    def _expire(self) -> None:
        """End this shard for good when no head has called for a while."""
        ray = import_ray()
        while time.monotonic() - self._heard < self._lease:
            time.sleep(self._lease / 8)
        with suppress(Exception):
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        os._exit(0)

    def about(self) -> dict[str, Any]:
        """Return what the operator may see of this shard. A head that calls this keeps the shard alive."""
        self._heard = time.monotonic()
        memory = {}
        with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
            lines = (line.split() for line in file)
            memory = {line[0][:-1]: int(line[1]) << 10 for line in lines if line[0] in ("VmHWM:", "RssAnon:")}
        found = {"rows": len(self.rows), "seconds": round(self.seconds, 3), "process": os.getpid()}
        found |= {"cpu": time.process_time()}
        return found | {"peak": memory.get("VmHWM", 0), "own": memory.get("RssAnon", 0)}

    def scan(self, plan: Plan) -> NDArray[Any]:
        """Return one value for every row, in as few bytes as hold any element."""
        return self.rows.scan(plan).astype(np.min_scalar_type(plan.field.q - 1))

    def xor(self, chosen: Bytes, start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records; `chosen` are packed bits."""
        bits = np.unpackbits(chosen, count=len(self.records), bitorder="little")
        return self.records.xor(bits.view(bool), start, end)

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        return self.records.combine(scalars)

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers in this part."""
        return self.records.read(which)

    def begin(self, run: bytes, plan: Plan, job: Any) -> Part | Ended:
        """Begin a job over the values of these rows; return what it says first."""
        while len(self._scripts) >= _RUNS:
            self._scripts.pop(next(iter(self._scripts)), None)
        self._scripts[run] = job(self.rows.scan(plan))
        return self._advance(run, None)

    def go_on(self, run: bytes, answer: Answer) -> Part | Ended:
        """Let a job go on; return what it says next."""
        if run not in self._scripts:
            raise Refused("not_ready", "a part of the rows was lost, and the run with it")
        return self._advance(run, answer)

    def _advance(self, run: bytes, answer: Answer | None) -> Part | Ended:
        said = advanced(self._scripts[run], answer)
        if isinstance(said, Ended):
            self.drop(run)
        return said

    def drop(self, run: bytes) -> None:
        """Forget a run."""
        self._scripts.pop(run, None)
