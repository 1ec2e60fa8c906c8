"""Rows and records in shards: actors of a Ray cluster, on one machine or many, each with its own part of the rows.

A shard opens its own part (`Source`), so rows never travel. It gets plans, selections and jobs, and returns values,
sums and openings. All answers are the same bytes as those of one machine.

There is never a part of an answer. If a shard is lost, Ray starts it again, and whoever waits asks it again, or asks
another replica: the same question has the same answer. If it does not come back in time, the whole question is refused.
A job that plays a joint run is never asked again, since it must not open anything twice: the run ends.

Security: shares, answers and pieces of tapes travel between the machines of one operator, and nothing else does: a
shard has no key and sees no ticket. Whoever can reach the cluster's ports can run code on it (`docs/scale.md`).
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Order, Vector
from ..errors import CounterveilError, Refused, ServerFault, WrongShape
from .contract import Jobs, Plan
from .hosting import Answer, Ended, Meet, Part, in_step
from .party import Party
from .shard import LEASE, Shard, Source, import_ray

T = TypeVar("T")
Call = tuple[str, tuple[Any, ...]]  # the name of a shard's method, and its arguments

NAMESPACE = "counterveil"
PATIENCE = 30.0  # seconds that a question waits for a shard that was lost
_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # Ray takes 127.0.0.1 for the machine's own address
_START = 1800.0  # seconds that shards may take to open their parts
_HEDGE = 0.25  # seconds after which another replica is asked as well
_PAUSE = 0.1  # seconds before a shard that was lost is asked again
_AT_ONCE = 64  # calls that a shard works on at a time
_SMALL = (
    90_000  # bytes of a source: Ray keeps larger arguments elsewhere, and has lost them when it starts a shard again
)


def connect(address: str | None) -> None:
    """Connect this process to a cluster; without an address, start one on this machine, for this process alone."""
    ray = import_ray()
    if ray.is_initialized():
        return
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
    if address is None:
        options |= {"include_dashboard": False, "_node_ip_address": _LOOPBACK}
    try:
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray has many errors for that, and a bare Exception
        raise ServerFault(address or "a cluster on this machine", f"Ray cannot be reached: {error}") from None


class Shards:
    """All shards of a database, as a head sees them. Several heads may share them: they are found by name.

    Parameters
    ----------
    name : what the shards hold. Heads that give the same name share them.
    sources : how each shard opens its part, in row order.
    bounds : the first row of every part, and at the end the number of all rows.
    replicas : processes that hold each part. A question that one is slow to answer is put to another as well.
    gpus : graphics cards that each shard has.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[Source],
        bounds: Sequence[int],
        *,
        replicas: int = 1,
        gpus: int = 0,
        patience: float = PATIENCE,
        lease: float = LEASE,
    ) -> None:
        self._ray, self.bounds, self._patience = import_ray(), list(bounds), patience
        self._exceptions = importlib.import_module("ray.exceptions")
        if any(len(self._ray.cloudpickle.dumps(source)) > _SMALL for source in sources):
            raise WrongShape("source", got="more bytes", expected=f"at most {_SMALL}: Ray forgets larger ones")
        kind = self._ray.remote(Shard)
        settled = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True, "max_restarts": -1}
        settled |= {"max_concurrency": _AT_ONCE, "num_cpus": 0, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}

        def make(part: int, n: int) -> Any:
            return kind.options(name=f"{name}-{part}.{n}", **settled).remote(sources[part], lease)

        self._make = make
        self.actors = [[self._make(part, n) for n in range(replicas)] for part in range(len(sources))]
        self._turns, self._lock, self._closed = 0, threading.Lock(), threading.Event()
        self.abouts = self._all("about")
        found = [about[0]["rows"] for about in self.abouts]
        if found != [end - start for start, end in pairwise(self.bounds)]:
            raise ServerFault(name, f"shards have {found} rows, expected the parts of {self.bounds[-1]}")
        threading.Thread(target=self._renew, args=(lease / 4,), daemon=True).start()

    def _all(self, method: str) -> list[list[Any]]:
        """Call every replica of every shard, and wait as long as they take to start."""
        try:
            waiting = [[getattr(actor, method).remote() for actor in replicas] for replicas in self.actors]
            return [self._ray.get(each, timeout=_START) for each in waiting]
        except self._exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._exceptions.RayError as error:
            raise ServerFault("shards", f"they did not start: {_first_line(error)}") from None

    def _renew(self, pause: float) -> None:
        """Keep the shards alive until this head ends."""
        while not self._closed.wait(pause):
            for actor in (actor for replicas in self.actors for actor in replicas):
                with suppress(Exception):
                    actor.about.remote()

    def close(self) -> None:
        """Let the shards go. They end if no other head uses them."""
        self._closed.set()

    def stop(self) -> None:
        """End all shards now, whoever else uses them."""
        self.close()
        for actor in (actor for replicas in self.actors for actor in replicas):
            with suppress(self._exceptions.RayError):
                self._ray.kill(actor, no_restart=True)

    def ask(self, calls: Sequence[Call]) -> Callable[[], list[Any]]:
        """Put one call to each shard; return a function that waits for all answers.

        The answers are whole or refused: a shard that was lost is asked again until the time is over. With replicas,
        the first answer counts.
        """
        with self._lock:
            self._turns += 1
            turn = self._turns
        asking = _Asking(self, self._ray, self._exceptions, calls, turn)
        return lambda: asking.answers(self._patience)

    def ask_once(self, actors: Sequence[Any], calls: Sequence[Call]) -> list[Any]:
        """Put one call to each of these actors, and never again; return all answers, or refuse."""
        try:
            waiting = [
                getattr(actor, method).remote(*args) for actor, (method, args) in zip(actors, calls, strict=True)
            ]
            return list(self._ray.get(waiting, timeout=self._patience))
        except self._exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._exceptions.RayError as error:
            raise Refused("not_ready", f"a part of the rows was lost: {type(error).__name__}") from None

    def revive(self, part: int, which: int) -> None:
        """Make a shard anew. Ray itself does not start one again that could not open its part, or had ended."""
        with suppress(self._exceptions.RayError, ValueError):
            self.actors[part][which] = self._make(part, which)

    def replica_of_each(self, run: bytes) -> list[Any]:
        """Return one replica of each shard, for a run that stays with it."""
        return [replicas[run[0] % len(replicas)] for replicas in self.actors]


class _Question(NamedTuple):
    part: int
    which: int  # of its replicas
    since: float


class _Asking:
    """One call to each shard, under way."""

    def __init__(self, shards: Shards, ray: Any, exceptions: Any, calls: Sequence[Call], turn: int) -> None:
        self._shards, self._ray, self._exceptions, self._calls = shards, ray, exceptions, calls
        self._asked = [turn] * len(calls)  # by part: which replica is asked next
        self._waiting: dict[Any, _Question] = {}
        self._found: dict[int, Any] = {}
        self._again: dict[int, float] = {}  # by part: when to ask again
        for part in range(len(calls)):
            self._put(part)

    def _put(self, part: int) -> None:
        replicas, (method, args) = self._shards.actors[part], self._calls[part]
        which = self._asked[part] % len(replicas)
        self._asked[part] += 1
        self._waiting[getattr(replicas[which], method).remote(*args)] = _Question(part, which, time.monotonic())

    def answers(self, patience: float) -> list[Any]:
        """Wait for an answer of every part."""
        ends = time.monotonic() + patience
        while len(self._found) < len(self._calls):
            now = time.monotonic()
            if now > ends:
                missing = len(self._calls) - len(self._found)
                raise Refused("not_ready", f"{missing} of {len(self._calls)} parts of the rows gave no answer in time")
            for part in [part for part, when in self._again.items() if when <= now]:
                del self._again[part]
                self._put(part)
            if not self._waiting:
                time.sleep(_PAUSE / 4)
                continue
            done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=_PAUSE)
            for ref in done:
                self._take(ref)
            self._hedge()
        return [self._found[part] for part in range(len(self._calls))]

    def _take(self, ref: Any) -> None:
        part, which, _ = self._waiting.pop(ref)
        try:
            answer = self._ray.get(ref)
        except self._exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._exceptions.RayError as error:  # the shard was lost, or its answer
            if isinstance(error, self._exceptions.ActorDiedError):  # for good
                self._shards.revive(part, which)
            if part not in self._found and all(question.part != part for question in self._waiting.values()):
                self._again[part] = time.monotonic() + _PAUSE
        else:
            self._found.setdefault(part, answer)

    def _hedge(self) -> None:
        """Ask another replica of every part that has one and is slow."""
        now = time.monotonic()
        for part, replicas in enumerate(self._shards.actors):
            asked = [question for question in self._waiting.values() if question.part == part]
            if part not in self._found and len(asked) == 1 < len(replicas) and now - asked[0].since > _HEDGE:
                self._put(part)


def _cause(error: Any) -> Exception:
    """Return the error that a shard raised, if it is one of ours."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, CounterveilError) else ServerFault("a shard", _first_line(error))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


class ShardedRows:
    """The rows of all shards."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    def __len__(self) -> int:
        return self.shards.bounds[-1]

    def begin(self, plan: Plan) -> Callable[[], Vector]:
        """Start a scan in all shards."""
        answers = self.shards.ask([("scan", (plan,))] * (len(self.shards.bounds) - 1))
        return lambda: np.concatenate(answers()).astype(np.int64)

    def scan(self, plan: Plan) -> Vector:
        """Return one value for every row, in row order."""
        return self.begin(plan)()

    def host(self, plan: Plan, jobs: Jobs[T], meet: Meet) -> Party[list[T]]:
        """Play a job in every shard, in step. If a shard is lost, the run is refused, and never played on."""
        run = uuid.uuid4().bytes
        shards, actors = self.shards, self.shards.replica_of_each(run)
        made = [jobs(first, last) for first, last in pairwise(shards.bounds)]

        def advance(pieces: list[Answer | None]) -> list[Part | Ended]:
            calls = [
                ("begin", (run, plan, job)) if piece is None else ("go_on", (run, piece))
                for job, piece in zip(made, pieces, strict=True)
            ]
            return shards.ask_once(actors, calls)

        try:
            return (yield from in_step(advance, len(made), meet))
        finally:
            for actor in actors:
                with suppress(Exception):
                    actor.drop.remote(run)


class ShardedRecords:
    """The records of all shards."""

    def __init__(self, shards: Shards, length: int) -> None:
        self._shards, self._length = shards, length

    def __len__(self) -> int:
        return self._shards.bounds[-1]

    @property
    def length(self) -> int:
        """Bytes of one record."""
        return self._length

    def xor(self, chosen: NDArray[Any], start: int, end: int) -> Bytes:
        """Return the xor of bytes start to end of the chosen records."""
        parts = (np.packbits(part, bitorder="little") for part in self._cut(chosen))
        sums = self._shards.ask([("xor", (part, start, end)) for part in parts])()
        return _added(sums)

    def combine(self, scalars: NDArray[Any]) -> Bytes:
        """Return sum_i scalars[i] * records[i] over GF(2^8)."""
        sums = self._shards.ask([("combine", (part.astype(np.uint8),)) for part in self._cut(scalars)])()
        return _added(sums)

    def read(self, which: Order) -> Bytes:
        """Return some records, by their numbers; zeros for -1."""
        part_of = np.searchsorted(self._shards.bounds, which, side="right") - 1
        places = [np.flatnonzero(part_of == part) for part in range(len(self._shards.bounds) - 1)]
        calls = [("read", (which[at] - first,)) for at, first in zip(places, self._shards.bounds, strict=False)]
        records = np.zeros((len(which), self.length), dtype=np.uint8)
        for at, found in zip(places, self._shards.ask(calls)(), strict=True):
            records[at] = found
        return records

    def _cut(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        return [values[first:last] for first, last in pairwise(self._shards.bounds)]


def _added(sums: Sequence[Bytes]) -> Bytes:
    total: Bytes = np.bitwise_xor.reduce(sums, axis=0)
    return total


def bounds(rows: int, together: int, shards: int) -> list[int]:
    """Return where each shard's rows begin, and the number of all rows: almost equal, in multiples of `together`.

    >>> bounds(1000, 128, 3), bounds(100, 128, 3)
    ([0, 384, 768, 1000], [0, 100])
    """
    units = -(-rows // together)
    shards = min(shards, units)
    return [min(rows, together * -(-units * part // shards)) for part in range(shards + 1)]
