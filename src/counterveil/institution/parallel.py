"""Work on many tasks side by side: in this process, or in several processes of this machine, in the order of the tasks.

`cluster` has a crew of more machines: a task is plain data, names files, and needs no other task.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2  # tasks that wait for each process, so that none is idle and few results are in memory


class Crew(Protocol):
    """What does tasks. Results come in the order of the tasks."""

    def __call__(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]: ...


class Submitted(Protocol):
    """A task that was given to somebody, as `concurrent.futures.Future` is."""

    def result(self) -> Any:
        """Wait for the result; raise what the task raised."""

    def cancel(self) -> object:
        """Give the task up."""


def here(work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Do tasks in this process: the crew of one."""
    return map(work, tasks)


@contextmanager
def crew(processes: int) -> Iterator[Crew]:
    """Give a crew of this many processes; a crew of one works here, and starts none."""
    if processes == 1:
        yield here
        return
    context = multiprocessing.get_context("spawn")  # a copy of this process could hold locks of its threads for ever
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
        yield in_order(pool.submit, processes)


def in_order(submit: Callable[[Callable[[Any], Any], Any], Submitted], processes: int) -> Crew:
    """Return a crew that submits tasks some way ahead of the result that is wanted next."""

    def run(work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        waiting: deque[Submitted] = deque()
        try:
            for task in tasks:
                waiting.append(submit(work, task))
                if len(waiting) > _AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()

    return run


def watched(parts: Iterable[Any], doing: str, count: int, progress: bool) -> Iterable[Any]:
    """Return the parts, under a progress bar if one is wanted; only then import rich."""
    if not progress:
        return parts
    from rich.progress import track

    return track(parts, description=doing, total=count, transient=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
