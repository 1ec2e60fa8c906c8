"""The tasks of a build outside memory: make runs, merge them, and write parts. Several processes share them.

A task names files, and needs no other task of its step. A run has the accepted rows of a stretch of the data, in the
order of their codes, each code once. `streaming` says what becomes of runs.

Security: secret to the institution. Runs lie in a folder that only their owner can read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..algebra.arrays import Bytes, Order
from ..schema.layouts import RecordKind, encode, layout
from ..schema.parquet import Stretch
from ..schema.schema import Schema
from . import bundle
from .ordering import Keys, codes_of, first_of_each, grouped, keys_of, prefixes
from .quantising import quantise
from .verdicts import accepted_rows, repeats

KEPT = "kept"  # the list of the rows to keep, in the order of their codes
_GATHERED = 1 << 14  # rows that are written at a time
_INDEX = (1 << 32) - 1  # a row to keep is its run, times 2^32, and its place in the run


@dataclass(frozen=True)
class Work:
    """What every task knows."""

    schema: Schema
    record: RecordKind
    min_cell: int
    clamp: bool
    model: Any
    accepted: Any
    folder: Path

    @cached_property
    def columns(self) -> list[int]:
        """The columns of codes in the order in which they are compared: those that count first."""
        costed = list(self.schema.costed)
        return costed + [j for j in range(len(self.schema.features)) if j not in costed]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of a code."""
        return bundle.narrow(self.schema, self.record)

    @property
    def key(self) -> int:
        """Bytes of a key: all codes of a row."""
        return self.dtype.itemsize * len(self.columns)

    @property
    def compared(self) -> int:
        """Bytes of a key in which two rows differ, or are duplicates."""
        return self.dtype.itemsize * len(self.schema.costed)

    @property
    def counts(self) -> bool:
        """Whether people who share all codes are counted."""
        return self.min_cell > 1

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return layout(self.schema, self.record).itemsize

    def group(self, keys: Keys) -> tuple[Order, Order]:
        """Sort keys and find the first of each: of people who share all codes if they are counted, else of rows."""
        return grouped(keys if self.counts else prefixes(keys, self.compared))

    def file(self, run: int, what: str) -> Path:
        """Return where a run keeps its keys, records or tallies."""
        return self.folder / f"{run}.{what}"

    def load(self, run: int, what: str, dtype: Any, start: int, end: int) -> NDArray[Any]:
        """Read items of a run. They are read and not mapped, so that memory holds no more than them."""
        kind = np.dtype(dtype)
        return np.fromfile(self.file(run, what), kind, count=end - start, offset=start * kind.itemsize)

    def keys(self, run: int, start: int, end: int) -> Keys:
        """Read keys of a run."""
        return self.load(run, "keys", f"S{self.key}", start, end)


_TALLY = np.dtype([("place", "<u8"), ("people", "<u8")])  # of people who share all codes: the first, and how many


class Run(NamedTuple):
    """How many rows a run has, and of how many accepted people."""

    rows: int
    accepted: int
    repeats: list[str] | None  # features that repeat the verdict in this stretch; None if it cannot tell


def read_run(work: Work, task: tuple[int, Stretch]) -> Run:
    """Make a run of a stretch of rows."""
    number, stretch = task
    names = None
    if work.model is None:
        column = work.accepted[0] if isinstance(work.accepted, tuple) else work.accepted
        names = [*work.schema.names, *([column] if isinstance(column, str) else [])]
    table = stretch.read(names)
    table.select(work.schema.names)
    keep = accepted_rows(table, work.schema, work.model, work.accepted, anybody=False)
    told = repeats(table, work.schema, keep) if work.model is None and not keep.all() and keep.any() else None
    if not keep.any():
        return Run(0, 0, told)
    chosen = table.rows(keep)
    places = stretch.first + np.flatnonzero(keep)
    codes = quantise(chosen, work.schema, work.clamp, False, places)
    keys = keys_of(codes[:, work.columns].astype(work.dtype, copy=False))
    order, starts = work.group(keys)
    first = order[starts]
    keys[first].tofile(work.file(number, "keys"))
    encode(work.schema, work.record, codes, chosen)[first].tofile(work.file(number, "records"))
    if work.counts:
        tally = np.empty(len(first), dtype=_TALLY)
        tally["place"], tally["people"] = places[first], np.diff(starts, append=len(order))
        tally.tofile(work.file(number, "tallies"))
    return Run(len(first), len(codes), told)


def cuts_of(work: Work, borders: Keys, task: tuple[int, int]) -> Order:
    """Return where each bucket begins in a run, and the run's end."""
    run, rows = task
    keys = work.keys(run, 0, rows)
    return np.concatenate([[0], np.searchsorted(keys, borders.astype(keys.dtype)), [rows]])


class Bucket(NamedTuple):
    """The rows to keep of a bucket, each by its run and its place there."""

    kept: Order  # in the order of the codes
    people: int  # in cells that are frequent enough


def merged(work: Work, spans: list[tuple[int, int, int]]) -> Bucket:
    """Merge stretches (run, start, end) of runs, and list the rows to keep.

    Runs stand in the order of the people, and a stable sort keeps it, so the first of equal keys was the first person.
    """
    keys = np.concatenate([work.keys(*span) for span in spans])
    where = np.concatenate([(run << 32) + np.arange(start, end) for run, start, end in spans])
    order, starts = work.group(keys)
    first = order[starts]
    if not work.counts:
        return Bucket(where[first], 0)
    tally = np.concatenate([work.load(run, "tallies", _TALLY, start, end) for run, start, end in spans])
    people = np.add.reduceat(tally["people"][order], starts)
    often = first[people >= work.min_cell]
    often = often[np.argsort(tally["place"][often], kind="stable")]
    kept = often[first_of_each(prefixes(keys[often], work.compared))] if often.size else often
    return Bucket(where[kept], int(people[people >= work.min_cell].sum()))


class Part(NamedTuple):
    """Rows of the list to write, and where: codes and records, each a file and a place in it."""

    start: int
    end: int
    codes: tuple[Path, int]
    records: tuple[Path, int]


def written(work: Work, part: Part) -> tuple[str, str]:
    """Gather a part's codes and records from the runs, write them, and return their digests."""
    back = np.argsort(work.columns)
    digests = hashlib.sha256(), hashlib.sha256()
    with part.codes[0].open("r+b") as codes, part.records[0].open("r+b") as records:
        codes.seek(part.codes[1] + part.start * work.key)
        records.seek(part.records[1] + part.start * work.width)
        for start in range(part.start, part.end, _GATHERED):
            count = min(_GATHERED, part.end - start)
            which = np.fromfile(work.folder / KEPT, dtype=np.int64, count=count, offset=8 * start)
            keys, held = _gathered(work, which)
            for file, digest, data in (
                (codes, digests[0], codes_of(keys, work.dtype)[:, back].tobytes()),
                (records, digests[1], held.tobytes()),
            ):
                file.write(data)
                digest.update(data)
    return digests[0].hexdigest(), digests[1].hexdigest()


def _gathered(work: Work, which: Order) -> tuple[Keys, Bytes]:
    """Return the keys and records of some rows of all runs. In each run, they stand in the order of the list."""
    keys, records = np.empty(len(which), f"S{work.key}"), np.empty((len(which), work.width), np.uint8)
    order = np.argsort(which >> 32, kind="stable")
    runs, starts = np.unique((which >> 32)[order], return_index=True)
    for run, places in zip(runs.tolist(), np.split(order, starts[1:]), strict=True):
        index = which[places] & _INDEX
        low, high = int(index[0]), int(index[-1]) + 1
        keys[places] = work.keys(run, low, high)[index - low]
        records[places] = (
            work.load(run, "records", f"V{work.width}", low, high)[index - low]
            .view(np.uint8)
            .reshape(len(index), work.width)
        )
    return keys, records
