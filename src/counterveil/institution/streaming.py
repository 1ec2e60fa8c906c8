"""Build a bundle from more rows than memory holds. The file is, byte for byte, what `Database.build` and `save` make.

1. **Read.** Each stretch of the Parquet files becomes a run: its accepted rows, quantised, in the order of their codes,
   each code once.
2. **Order.** All runs are cut at the same codes into buckets that fit memory. Each bucket is merged, and the rows to
   keep are listed: in which run, and where.
3. **Write.** Each part of the bundle gathers its codes and records from the runs by that list, and has its digests.
4. **Sign.** When the digest of all parts is known, every record is signed and packaged.

The tasks of each step are in `runs`. Several processes share them, or the machines of a cluster.

Security: secret to the institution. Runs are written beside the bundle, readable by their owner alone, and removed.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..algebra import checks
from ..crypto.keys import Issuer
from ..errors import EmptyDatabase, InvalidBundle, NotOffered, UnknownName, WrongType
from ..schema.layouts import RecordKind
from ..schema.parquet import parquet_files, stretches
from ..schema.schema import Schema
from . import bundle
from .database import Database
from .ordering import Keys, prefixes
from .parallel import Crew, crew, here, watched
from .runs import KEPT, Part, Work, cuts_of, merged, read_run, written
from .signing import AT_ONCE, signed
from .verdicts import warn_of

MEMORY = 4 << 30  # bytes
LEAST_MEMORY = 1 << 29
_OWN = 220 << 20  # bytes that a process has before it works on anything
_MOST = 1 << 19  # rows of a run; more make it no faster
_SAMPLED = 256  # keys of each run among which borders of buckets are chosen


def build(
    path: str | Path,
    schema: Schema,
    model: Any = None,
    accepted: Any = None,
    *,
    output: str | Path,
    issuer: Issuer | None = None,
    record: RecordKind = "row",
    min_cell: int = 1,
    clamp: bool = False,
    memory: int = MEMORY,
    processes: int = 1,
    part_rows: int = 0,
    hire: Callable[[int], AbstractContextManager[Crew]] = crew,
    progress: bool = False,
) -> Database:
    """Build a bundle from a folder of Parquet files, or one, within some memory; return it, opened and not yet checked.

    Parameters
    ----------
    path, schema, model, accepted, record, min_cell, clamp : as for `Database.build`. A model is asked about some rows
        at a time.
    output : the bundle to write. Beside it there must be room for all accepted rows once more, while it is built.
    issuer : signs every record.
    memory : bytes that all processes together may hold.
    processes : how many share the work. The file is the same however many there are.
    part_rows : rows of a part, if not as many as usual.
    hire : gives a crew of so many processes; `cluster.ray_crew` gives one in a Ray cluster. A model that cannot be sent
        to another process is asked in this one.
    """
    if record not in ("row", "cell"):
        if record == "region":
            expected = "rows or cells; regions need all people in memory: give one file"
            raise NotOffered("record", got="regions of a folder", expected=expected)
        raise UnknownName("record", got=repr(record), expected="row or cell")
    checks.integer("min_cell", min_cell, 1)
    checks.integer("memory", memory, LEAST_MEMORY)
    checks.integer("processes", processes, 1)
    if min_cell > 1 and record != "cell":
        raise WrongType("record", got="rows with min_cell", expected='record="cell", since a row is one person\'s')
    output, path = Path(output), Path(path).absolute()  # for processes that run elsewhere
    files = parquet_files(path)
    with bundle.replacing(output) as temporary, _scratch(output) as folder:
        work = Work(schema, record, min_cell, clamp, model, accepted, folder)
        with hire(processes) as run:
            builder = _Builder(work, run, memory // processes - _OWN, progress)
            counts = builder.order(files)
            builder.write(counts, temporary, part_rows or bundle.usual_part(counts.rows), issuer)
    return Database.open(output, whole=False)


def _travels(work: Work) -> bool:
    """Say whether work can be sent to another process; a model of one's own, or an ONNX file's, may not."""
    try:
        pickle.dumps(work)
    except Exception:  # whatever a model raises
        return False
    return True


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Give a folder beside the bundle that is removed in the end."""
    try:
        folder = tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}.runs.")
    except OSError as error:
        raise InvalidBundle(str(output), got=error.strerror, expected="a place that can be written") from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Builder:
    """The four steps, one after the other."""

    work: Work
    crew: Crew
    memory: int  # bytes for one task
    progress: bool

    def order(self, files: list[tuple[str, int]]) -> bundle.Counts:
        """Read all rows into runs, and list the rows to keep in the file `kept`."""
        work, seen = self.work, sum(rows for _, rows in files)
        if not seen:
            raise EmptyDatabase("frame", got="no rows", expected="at least one")
        each = min(_MOST, max(4096, self.memory // (64 * len(work.columns) + 2 * work.width + 512)))
        tasks = list(enumerate(stretches(files, each)))
        reading = self.crew if _travels(work) else here
        runs = list(watched(reading(partial(read_run, work), tasks), "reading", len(tasks), self.progress))
        self.work = work = replace(
            work, model=None, accepted=None
        )  # nobody needs these any more, and they may be large
        people = sum(run.accepted for run in runs)
        if not people:
            raise EmptyDatabase("accepted", got=f"none of {seen} rows", expected="at least one")
        told = [set(run.repeats) for run in runs if run.repeats is not None]
        warn_of(sorted(set.intersection(*told)) if told else [])
        filled = [(number, run.rows) for number, run in enumerate(runs) if run.rows]
        frequent = rows = 0
        with (work.folder / KEPT).open("wb") as file:
            buckets = list(self._buckets(filled))
            found = self.crew(partial(merged, work), buckets)
            for bucket in watched(found, "ordering", len(buckets), self.progress):
                bucket.kept.astype(np.int64).tofile(file)
                frequent, rows = frequent + bucket.people, rows + len(bucket.kept)
        if not rows:
            raise EmptyDatabase("min_cell", got=f"no cell of {work.min_cell} people", expected="at least one")
        frequent = frequent if work.counts else people
        return bundle.Counts(seen, people, people - frequent, frequent - rows, rows)

    def _buckets(self, runs: list[tuple[int, int]]) -> Iterator[list[tuple[int, int, int]]]:
        """Cut all runs at the same borders into buckets that fit memory."""
        work, total = self.work, sum(rows for _, rows in runs)
        most = max(1024, self.memory // (6 * work.key + 80))
        borders = self._borders(runs, -(-total // most))
        found = list(self.crew(partial(cuts_of, work, borders), runs))
        for n in range(len(borders) + 1):
            spans = [(run, int(cuts[n]), int(cuts[n + 1])) for (run, _), cuts in zip(runs, found, strict=True)]
            spans = [span for span in spans if span[1] < span[2]]
            if spans:
                yield spans

    def _borders(self, runs: list[tuple[int, int]], count: int) -> Keys:
        """Return the keys at which buckets begin, but the first. Rows that may be duplicates are never parted."""
        if count == 1:
            return np.empty(0, dtype=f"S{self.work.compared}")
        sample = []
        for run, rows in runs:
            places = np.unique(np.linspace(0, rows - 1, _SAMPLED).astype(np.int64))
            sample += [self.work.keys(run, place, place + 1) for place in places.tolist()]
        keys = np.sort(prefixes(np.concatenate(sample), self.work.compared))
        return np.unique(keys[np.linspace(0, len(keys), count + 1).astype(np.int64)[1:-1]])

    def write(self, counts: bundle.Counts, temporary: Path, size: int, issuer: Issuer | None) -> None:
        """Write the parts, sign them if there is an issuer, and put the manifest before them."""
        work, count = self.work, -(-counts.rows // size)
        blank = ["0" * 64] * count
        draft = self._manifest(counts, size, blank, blank)
        draft = draft.signed_by(issuer).sealed("0" * 64, blank) if issuer else draft.sealed("0" * 64)
        codes_at, served_at = bundle.begins(draft)
        bare = (work.folder / "records", 0) if issuer else (temporary, served_at)
        bare[0].touch()
        parts = [
            Part(start, min(start + size, counts.rows), (temporary, codes_at), bare)
            for start in range(0, counts.rows, size)
        ]
        made = watched(self.crew(partial(written, work), parts), "writing", count, self.progress)
        leaves = list(made)
        for run in work.folder.glob("[0-9]*.*"):
            run.unlink()  # runs: what they hold stands in the parts now
        manifest, packed = self._manifest(counts, size, *zip(*leaves, strict=True)), list[str]()
        if issuer:
            manifest = manifest.signed_by(issuer)
            digest = hashlib.sha256(manifest.covered()).digest()
            packed = self._signed(issuer, digest, parts, temporary, served_at)
        with temporary.open("r+b") as file:
            file.write(bundle.head(manifest.sealed(hashlib.sha256(manifest.covered()).hexdigest(), packed)))

    def _manifest(
        self, counts: bundle.Counts, size: int, codes: Iterable[str], records: Iterable[str]
    ) -> bundle.Manifest:
        work, codes, records = self.work, tuple(codes), tuple(records)
        return bundle.Manifest(
            schema=work.schema.to_builtins(),
            record=work.record,
            min_cell=work.min_cell,
            counts=counts,
            codes=bundle.describe(work.dtype, (counts.rows, len(work.columns)), codes),
            records=bundle.describe(np.dtype(np.uint8), (counts.rows, work.width), records),
            parts=bundle.cut(size, codes, records),
        )

    def _signed(self, issuer: Issuer, digest: bytes, parts: list[Part], path: Path, begin: int) -> list[str]:
        """Write the packages of all records; return the digest of those of each part."""
        source, width = parts[0].records[0], self.work.width
        tasks = [(a, min(a + AT_ONCE, part.end)) for part in parts for a in range(part.start, part.end, AT_ONCE)]
        chunks = (
            np.fromfile(source, np.uint8, count=(b - a) * width, offset=a * width).reshape(-1, width) for a, b in tasks
        )
        made = watched(signed(chunks, issuer, digest, self.crew), "signing", len(tasks), self.progress)
        digests = [hashlib.sha256() for _ in parts]
        size = parts[0].end
        with path.open("r+b") as file:
            file.seek(begin)
            for (start, _), packages in zip(tasks, made, strict=True):
                data = packages.tobytes()
                file.write(data)
                digests[start // size].update(data)
        return [each.hexdigest() for each in digests]
