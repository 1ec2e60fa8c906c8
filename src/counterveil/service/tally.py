"""Counts that the processes of a server share: each writes a file of its own, and anybody adds them up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..algebra.arrays import Vector

MINUTES = 24 * 60
_SUMS = ("complete", "broke off", "rounds", "bytes")


class Minute(NamedTuple):
    """What was counted in one minute."""

    answered: int
    refused: int


class Tally:
    """Counts by the minute, for a day, and sums since the start.

    `folder` is the family's, and `seat` this process's in it; without them the counts are this process's alone. A
    process that takes a seat goes on from the counts of the one before.
    """

    def __init__(self, folder: Path | None = None, seat: int = 0) -> None:
        self._folder = folder
        size = 3 * MINUTES + len(_SUMS)
        self._own: Vector = np.zeros(size, dtype=np.int64)
        if folder is not None:
            path = folder / f"tally_{seat}"
            if not path.exists():
                path.write_bytes(self._own.tobytes())
            self._own = np.memmap(path, dtype=np.int64, mode="r+", shape=(size,))

    def count(self, *, answered: int = 0, refused: int = 0) -> None:
        """Count requests in this minute."""
        now = int(time.time()) // 60
        minute = self._own[3 * (now % MINUTES) :][:3]  # the number of the minute, and what was counted in it
        if minute[0] != now:
            minute[:] = now, 0, 0
        minute[1:] += answered, refused

    def add(self, **sums: int) -> None:
        """Add to sums since the start; spaces in names are underscores."""
        for name, amount in sums.items():
            self._own[3 * MINUTES + _SUMS.index(name.replace("_", " "))] += amount

    def _all(self) -> Iterable[Vector]:
        if self._folder is None:
            return [self._own]
        return [np.fromfile(path, dtype=np.int64) for path in self._folder.glob("tally_*")]

    def sums(self) -> dict[str, int]:
        """Return the sums over all processes."""
        total = sum((each[3 * MINUTES :] for each in self._all()), start=np.zeros(len(_SUMS), dtype=np.int64))
        return dict(zip(_SUMS, map(int, total), strict=True))

    def minutes(self) -> list[Minute]:
        """Return the counts of the last day over all processes, from the first minute that has any to this minute."""
        now = int(time.time()) // 60
        totals: dict[int, Vector] = {}
        for each in self._all():
            for number, *counted in each[: 3 * MINUTES].reshape(-1, 3).tolist():
                if now - MINUTES < number <= now:
                    totals[number] = totals.get(number, 0) + np.array(counted)
        span = range(min(totals, default=now), now + 1)
        return [Minute(*map(int, totals.get(number, (0, 0)))) for number in span]
