"""Codes laid out for the scan: blocks of 128 rows, feature by feature, so that one instruction works on 64 rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Codes, Vector
from ..algebra.maps import let_go

ROWS = 128  # rows of a block: the registers hold a sum for each
_SPLIT = 1 << 20  # bytes of blocks; with fewer, to wake a second thread takes longer than the scan
_SHARED = 1 << 19  # bytes of blocks that all waiting scans read before the next; they fit the second-level cache

Scan = Callable[[NDArray[Any], Vector], None]
"""A function that reads some blocks and writes one value for each row."""


Keep = Callable[[Callable[[], NDArray[Any]]], NDArray[Any]]
"""A function that takes one that makes an array, and returns the array: made here, or by another process before."""


def here(make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Make an array for this process alone."""
    return make()


def _in_blocks(codes: Codes) -> NDArray[Any]:
    """Return codes in blocks."""
    count, d = codes.shape
    whole = count // ROWS
    narrowest = codes.dtype if codes.dtype == np.uint8 else np.min_scalar_type(codes.max())
    data: NDArray[Any] = np.zeros((-(-count // ROWS), d + d % 2, ROWS), dtype=narrowest)
    for start in range(0, whole, 256):  # in parts, so that a memory map is never all in memory
        end = min(start + 256, whole)
        data[start:end, :d] = codes[start * ROWS : end * ROWS].reshape(-1, ROWS, d).transpose(0, 2, 1)
    if count % ROWS:
        data[-1, :d, : count % ROWS] = codes[whole * ROWS :].T
    return data


@dataclass(eq=False)
class _Job:
    scan: Scan
    values: Vector
    done: bool = False


class Blocks:
    """A database's codes as a (blocks, d, 128) array, filled up to whole blocks and an even number of features.

    Each code takes as few bytes as the largest one needs. `codes` is the array as it was given, which may be a memory
    map; some scans can only be done on it. `keep` says where the blocks are kept. One scan runs at a time, on `threads`
    threads. Scans that are asked for meanwhile wait, and then run together, so that memory is read once for all of
    them.
    """

    def __init__(self, codes: Codes, threads: int = 1, keep: Keep = here) -> None:
        self.codes, self.threads = codes, threads
        self.shape: tuple[int, int] = codes.shape
        self.data = keep(partial(_in_blocks, codes))
        let_go(codes)  # the blocks are a copy
        self._turn, self._waiting = threading.Lock(), list[_Job]()

    def __len__(self) -> int:
        return self.shape[0]

    def scanned(self, scan: Scan) -> Vector:
        """Return one value for every row, by a scan of all blocks."""
        own = _Job(scan, np.empty(ROWS * len(self.data), dtype=np.int64))
        self._waiting.append(own)
        with self._turn:
            if not own.done:  # another thread, which had the turn before, may have done it
                jobs = [own]
                while self._waiting:
                    job = self._waiting.pop()
                    if job is not own:
                        jobs.append(job)
                try:
                    self._together(jobs)
                except Exception:
                    if len(jobs) == 1:
                        raise
                    jobs = [own]  # somebody's scan failed: run ours alone; the others run theirs
                    self._together(jobs)
                for job in jobs:
                    job.done = True
        return own.values[: len(self)]

    def _together(self, jobs: list[_Job]) -> None:
        """Run jobs on all threads, each over a stretch of blocks: every job on a few blocks before the next few."""
        share = -(-len(self.data) // (self.threads if self.data.nbytes >= _SPLIT else 1))
        at_once = share if len(jobs) == 1 else max(1, _SHARED // self.data[:1].nbytes)

        def stretch(begin: int) -> None:
            for start in range(begin, min(begin + share, len(self.data)), at_once):
                end = min(start + at_once, begin + share)
                for job in jobs:
                    job.scan(self.data[start:end], job.values[start * ROWS : end * ROWS])

        begins = range(0, len(self.data), share)
        if len(begins) == 1:
            stretch(0)
        else:
            list(_pool(self.threads).map(stretch, begins))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="scan")
