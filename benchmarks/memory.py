"""How much memory ten million rows take: `python benchmarks/memory.py`. Codes from a mapped file, answered in blocks.

Prints what the process holds beyond what Python, NumPy and numba hold without any rows, as a multiple of the codes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from counterveil import Question, engine, make_scheme
from counterveil.randomness import Fresh

ROWS, FEATURES = 10_000_000, 32


def resident() -> int:
    """Return the bytes of memory that this process holds, mapped files included."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def main() -> None:
    """Write codes, open them, answer a question, and say what that took."""
    console = Console()
    scheme = make_scheme("table/distances", levels=15, d=FEATURES, cap=2250)
    query = scheme.query(Question(np.zeros(FEATURES, dtype=np.int64)), Fresh())[0]
    small = engine.opened(np.zeros((1000, FEATURES), dtype=np.uint8), least=0)
    scheme.form.evaluate(scheme.field, small, query)
    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes"
        generator = np.random.default_rng(1)
        with path.open("wb") as file:
            for _ in range(100):
                file.write(generator.integers(0, 16, (ROWS // 100, FEATURES), dtype=np.uint8).tobytes())
        began = time.perf_counter()
        codes = np.memmap(path, dtype=np.uint8, mode="r").reshape(ROWS, FEATURES)
        laid = engine.opened(codes)
        ready = time.perf_counter() - began
        held = resident() - before
        times = []
        for _ in range(4):
            began = time.perf_counter()
            values = scheme.form.evaluate(scheme.field, laid, query)
            times.append(time.perf_counter() - began)
        costs = scheme.form.costs(codes[:1000], Question(np.zeros(FEATURES, dtype=np.int64)))
        if values.size != ROWS or costs.size != 1000:
            raise SystemExit("wrong number of values")
    size = ROWS * FEATURES
    console.print(f"{ROWS:,} rows of {FEATURES} codes, {size / 2**20:,.0f} MiB: ready in {ready:.1f} s.")
    console.print(f"Memory held for them: {held / 2**20:,.0f} MiB, {held / size:.2f} times the codes.")
    console.print(f"One question's scan: {1000 * min(times):.0f} ms.")


if __name__ == "__main__":
    main()
