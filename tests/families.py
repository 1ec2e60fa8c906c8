"""Servers with several workers: who they are, and ways to kill one of them, their supervisor, or all at once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Literal

from counterveil.research.processes import Process
from patience import wait_until

Victim = Literal["worker", "supervisor", "server"]

_READY = re.compile(rb'"worker ready","worker":(\d+)')


def children(process: Process) -> list[int]:
    """Return the processes that a supervisor has started and that have not ended."""
    pid = process.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _ever_ready(process: Process) -> list[int]:
    """Return all workers that have served since the supervisor started."""
    with process.log.open("rb") as log:
        log.seek(process.mark)
        return [*map(int, _READY.findall(log.read()))]


def workers(process: Process) -> list[int]:
    """Return the workers that serve, the oldest first."""
    living = set(children(process))
    return [pid for pid in _ever_ready(process) if pid in living]


def wait_ready(process: Process, count: int) -> list[int]:
    """Wait until this many workers serve; return them."""
    wait_until(lambda: len(workers(process)) == count)
    return workers(process)


def is_running(pid: int) -> bool:
    """Say whether a process has not ended; one that nobody has waited for has ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def victims(several: bool) -> Iterator[Victim]:
    """Yield whom to kill next."""
    every: list[Victim] = ["worker", "worker", "supervisor", "server"] if several else ["server"]
    return cycle(every)


def kill(process: Process, victim: Victim) -> None:
    """Kill a worker, and wait until another serves; or the supervisor, whose workers end with it; or all at once."""
    if victim == "worker":
        wait_until(lambda: workers(process) != [])
        serving, served = workers(process), len(_ever_ready(process))
        os.kill(serving[served % len(serving)], signal.SIGKILL)
        wait_until(lambda: len(_ever_ready(process)) > served)
        return
    family = children(process)
    if victim == "server":
        process.process.send_signal(signal.SIGSTOP)  # it replaces nobody
        for pid in family:
            os.kill(pid, signal.SIGKILL)
    process.kill()
    wait_until(lambda: not any(map(is_running, family)))
