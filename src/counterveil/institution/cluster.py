"""A crew in a Ray cluster: every task runs on some machine of it, so a build takes as many cores as the cluster has.

A task names files, so all machines need the same folders at the same paths: a file system that they share. If a machine
is lost, Ray gives its tasks to another. A task that runs twice writes the same bytes to the same place.

Security: for a cluster of the institution's own. Tasks that sign carry the issuer's private key. It is a small argument
of each task, which Ray sends with the task. So it is neither in Ray's store of objects, which may go to disk, nor in
its table of functions, which everybody in the cluster can read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..engine.shard import import_ray
from ..engine.shards import connect
from ..errors import InvalidData, ServerFault
from .parallel import Crew, in_order

_ENDS = 10.0  # seconds that a task which is given up may take to end


class Size(NamedTuple):
    """How large a cluster is."""

    machines: int
    cores: int


def size_of(address: str | None) -> Size:
    """Connect to a cluster, or start one on this machine, and return how many machines and cores it has."""
    connect(address)
    alive = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
    return Size(len(alive), max(1, int(sum(each.get("CPU", 0) for each in alive))))


@contextmanager
def ray_crew(address: str | None, processes: int) -> Iterator[Crew]:
    """Give a crew whose tasks run in a cluster, each on a core. `processes` says how many of them there are."""
    connect(address)
    ray = import_ray()
    remote = ray.remote(_done)  # what it held itself would stand in the table of functions

    def submit(work: Callable[[Any], Any], task: Any) -> _Submitted:
        return _Submitted(ray, remote.remote(work, task))

    yield in_order(submit, processes)


def _done(work: Callable[[Any], Any], task: Any) -> Any:
    return work(task)


class _Submitted:
    """A task in the cluster."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray, self._ref = ray, ref

    def result(self) -> Any:
        """Wait for the result; raise what the task raised."""
        exceptions = importlib.import_module("ray.exceptions")
        try:
            return self._ray.get(self._ref)
        except exceptions.RayTaskError as error:
            raise _told(error.cause) from None
        except exceptions.RayError as error:
            raise ServerFault("the cluster", f"a task was lost: {type(error).__name__}") from None

    def cancel(self) -> None:
        """Give the task up, and wait until it writes no more."""
        with suppress(Exception):
            self._ray.cancel(self._ref)
            self._ray.wait([self._ref], timeout=_ENDS, fetch_local=False)


def _told(cause: Exception) -> Exception:
    """Return what a task raised; a file that it did not find is explained."""
    if isinstance(cause, FileNotFoundError):
        expected = "files at the same path on all machines of the cluster"
        return InvalidData(str(cause.filename), got="no such file", expected=expected)
    return cause
