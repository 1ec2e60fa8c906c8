"""Measure the time and the memory to build, write and open a bundle of 1,000,000 rows and 30 features."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from counterveil import Database, Schema

ROWS, NUMBERS, CATEGORIES = 1_000_000, 22, 8


def main() -> None:
    """Build, save and open a bundle, and print a line for each step."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {f"number {j}": rng.gamma(2.0, 1000.0, ROWS).round(2) for j in range(NUMBERS)}
    names = np.array([f"kind {i}" for i in range(12)])
    columns |= {f"category {j}": names[rng.integers(0, 12, ROWS)] for j in range(CATEGORIES)}
    frame = pl.DataFrame(columns)
    del columns
    schema = Schema.infer(frame.head(50_000))
    table = Table(title=f"{ROWS:,} rows, {NUMBERS + CATEGORIES} features")
    for heading in ("step", "seconds", "peak memory so far, GiB"):
        table.add_column(heading, justify="left" if heading == "step" else "right")

    def note(step: str, start: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        table.add_row(step, f"{time.perf_counter() - start:.1f}", f"{peak:.2f}")

    note("(the frame itself)", time.perf_counter())
    start = time.perf_counter()
    built = Database.build(frame, schema, lambda rows: np.ones(len(rows), dtype=bool), clamp=True, progress=True)
    note("build", start)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        start = time.perf_counter()
        built.save(path)
        note(f"save, {path.stat().st_size / 2**20:,.0f} MiB", start)
        start = time.perf_counter()
        Database.open(path)
        note("open, every byte checked", start)
    Console().print(table)


if __name__ == "__main__":
    main()
