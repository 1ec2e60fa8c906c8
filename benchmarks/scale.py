"""Questions to millions of rows in shards of a Ray cluster on this machine: time, and memory of each shard.

python benchmarks/scale.py 10 30 100        millions of rows, one after the other
python benchmarks/scale.py 10 --joint       also a joint run, both of whose servers ask the same shards

Rows and records are made up, and written to files that the shards map. Times are of the whole answer at the head, and
of the processor in the shards; on a machine that does other work, only the latter means much.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray

from counterveil import Question, make_scheme
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.engine import Records, Rows, hold, lay_out
from counterveil.engine.party import Party, Role, play, released
from counterveil.engine.shards import ShardedRecords, ShardedRows, Shards, bounds, connect
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Held, Size

LEVELS = 64
_CHUNK = 1 << 20


def opened(folder: str, rows: int, d: int, record: int, first: int, last: int) -> tuple[Rows, Records]:
    """Open the part of a shard: map its codes and lay them out, and map its records."""
    codes = np.memmap(Path(folder) / "codes", dtype=np.uint8, mode="r", shape=(rows, d))
    records = np.memmap(Path(folder) / "records", dtype=np.uint8, mode="r", shape=(rows, record))
    return lay_out(np.asarray(codes[first:last]), worthwhile=0), hold(np.asarray(records[first:last]))


def made(folder: Path, rows: int, d: int, record: int) -> None:
    """Write rows and records that are made up."""
    generator = np.random.default_rng(rows)
    with (folder / "codes").open("wb") as codes, (folder / "records").open("wb") as records:
        for start in range(0, rows, _CHUNK):
            count = min(_CHUNK, rows - start)
            codes.write(generator.integers(0, LEVELS, (count, d), dtype=np.uint8).tobytes())
            records.write(generator.bytes(count * record))


def timed(shards: Shards, what: str, work: Callable[[], Any]) -> None:
    """Print how long some work takes, the second time."""
    work()
    before, began = _abouts(shards), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - began, _abouts(shards)
    busy = [1000 * (b["cpu"] - a["cpu"]) for a, b in zip(before, after, strict=True)]
    print(f"  {what:<28}{1000 * seconds:>10,.0f} ms   in the shards {', '.join(f'{each:,.0f}' for each in busy)} ms")


def _abouts(shards: Shards) -> list[dict[str, Any]]:
    return list(ray.get([replicas[0].about.remote() for replicas in shards.actors]))


def joint(rows: ShardedRows, records: ShardedRecords, scheme: Any, question: Question) -> None:
    """Play a joint run, from the question to the record."""
    size, common = Size(len(rows), records.length), scheme.common(new_key(), bytes(32), b"t")
    held = Held(rows, records, lambda _: common)
    parties: dict[Role, Party[Any]] = {seat: released(scheme.answering(seat, 0, held), BYTES) for seat in (0, 1)}
    play(parties | {"applicant": scheme.ask(question, size, Fresh())})


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("millions", type=float, nargs="+")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--record", type=int, default=64, help="bytes of a record")
    parser.add_argument("--joint", action="store_true")
    parser.add_argument("--folder", help="where the files are written, for as long as the script runs")
    given = parser.parse_args()
    connect(None)
    for millions in given.millions:
        rows, d = round(millions * 1e6), given.features
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            made(Path(folder), rows, d, given.record)
            scheme = make_scheme("table/sealed", largest=LEVELS - 1, d=d, cap=(LEVELS - 1) ** 2, protocol="joint")
            cuts = bounds(rows, scheme.protocol.together(rows), given.shards)
            sources = [partial(opened, folder, rows, d, given.record, *ends) for ends in pairwise(cuts)]
            began = time.perf_counter()
            shards = Shards(f"scale-{rows}", sources, cuts)
            print(
                f"{rows:,} rows of {d} features, {len(sources)} shards, open after {time.perf_counter() - began:,.1f} s"
            )
            held, records = ShardedRows(shards), ShardedRecords(shards, given.record)
            question = Question(np.arange(d) % LEVELS)
            query = scheme.query(question, Fresh())[0]
            plan, chosen = scheme.form.plan(scheme.field, query[:-1]), np.arange(rows) % 3 == 0
            timed(shards, "scan, table", partial(held.scan, plan))
            timed(shards, f"xor of records of {given.record} B", lambda: records.xor(chosen, 0, given.record))  # noqa: B023
            if given.joint:
                timed(shards, "joint run, both servers", lambda: joint(held, records, scheme, question))  # noqa: B023
            for number, about in enumerate(_abouts(shards)):
                own, peak = about["own"] / 2**20, about["peak"] / 2**20
                print(f"  shard {number}: {about['rows']:,} rows, {own:,.0f} MiB; with mapped files {peak:,.0f} MiB")
            shards.stop()


if __name__ == "__main__":
    main()
