"""Measure the time and the memory to build a bundle from a folder of Parquet files: `outofcore.py ROWS [FEATURES]`.

A folder of as many rows is made first, in files of a million rows each. `counterveil build` then runs in processes of
its own. The memory of all of them is added up five times a second: PSS, which counts a shared page once, and RSS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from counterveil.crypto.keys import write_keys

_FILE = 1_000_000  # rows of a file
_KINDS = np.array([f"kind {n}" for n in range(12)])


def make_folder(folder: Path, rows: int, features: int) -> None:
    """Write files of people: three quarters of the features are numbers, the others have 12 categories."""
    folder.mkdir()
    words = features // 4
    for n in range(-(-rows // _FILE)):
        rng, count = np.random.default_rng(n), min(_FILE, rows - n * _FILE)
        columns: dict[str, object] = {
            f"number {j}": np.minimum(rng.gamma(2.0, 1000.0, count), 19_999).round(2) for j in range(features - words)
        }
        columns |= {f"category {j}": _KINDS[rng.integers(0, 12, count)] for j in range(words)}
        columns["ok"] = rng.integers(0, 10, count) > 0
        pl.DataFrame(columns).write_parquet(folder / f"{n:04}.parquet", compression="lz4")


def schema_text(features: int) -> str:
    """Return the schema of these people."""
    words = features // 4
    numbers = [
        f'kind = "numeric"\nname = "number {j}"\nlow = 0\nhigh = 20000\nstep = 200' for j in range(features - words)
    ]
    values = ", ".join(f'"{kind}"' for kind in _KINDS)
    categories = [f'kind = "categorical"\nname = "category {j}"\nvalues = [{values}]' for j in range(words)]
    return "version = 1\n" + "".join(f"\n[[feature]]\n{each}\n" for each in numbers + categories)


def measured(command: list[str]) -> tuple[float, float, int, int]:
    """Run a command; return its seconds, the processor seconds of all its processes, and their largest RSS and PSS."""
    began, rss, pss, cpu = time.perf_counter(), 0, 0, dict[int, float]()
    process = subprocess.Popen(command)  # noqa: S603
    while process.poll() is None:
        now = [0, 0]
        for pid in family(process.pid):
            try:
                lines = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                )
                times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue  # it ended meanwhile
            now = [held + 1024 * int(lines[name].split()[0]) for held, name in zip(now, ("Rss", "Pss"), strict=True)]
            cpu[pid] = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        rss, pss = max(rss, now[0]), max(pss, now[1])
        time.sleep(0.2)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - began, sum(cpu.values()), rss, pss


def family(pid: int) -> Iterator[int]:
    """Return a process and all that it started."""
    yield pid
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = each.read_text().split()
        except OSError:
            continue  # it ended meanwhile
        for child in children:
            yield from family(int(child))


def main() -> None:
    """Build, inspect and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=lambda text: int(float(text)))
    parser.add_argument("features", type=int, nargs="?", default=30)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--processes", default="2")
    parser.add_argument("--ray", action="store_true", help="share the work in a Ray cluster on this machine instead")
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--folder", type=Path, help="use the Parquet files of this folder, or make them there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder.parent if given.folder else None) as place:
        work, data = Path(place), given.folder or Path(place) / "data"
        if not data.exists():
            make_folder(data, given.rows, given.features)
        (work / "schema.toml").write_text(schema_text(given.features))
        write_keys(work / "keys")
        signs = [] if given.unsigned else ["--key", str(work / "keys" / "issuer.key")]
        command = [str(Path(sys.executable).parent / "counterveil")]
        shared = ["--engine", "ray"] if given.ray else ["--processes", given.processes]
        options = ["--memory", given.memory, *shared, "--accepted", "ok", "--schema"]
        said = measured(
            [*command, "build", str(data), *options, str(work / "schema.toml"), *signs, "-o", str(work / "b")]
        )
        size = (work / "b").stat().st_size
        print(
            f"build: {given.rows:,} rows of {given.features}, {size / 2**30:.2f} GiB, in {said[0]:.0f} s "
            f"({said[1]:.0f} s of processors), {said[2] / 2**30:.2f} GiB RSS, {said[3] / 2**30:.2f} GiB PSS at most",
            flush=True,
        )
        for what, extra in (("inspect", []), ("inspect --verify", ["--verify"])):
            said = measured([*command, "inspect", str(work / "b"), "--json", *extra])
            print(f"{what}: {said[0]:.1f} s, {said[2] / 2**30:.2f} GiB RSS at most", flush=True)


if __name__ == "__main__":
    main()
