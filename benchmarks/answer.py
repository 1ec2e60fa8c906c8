"""Time one server's answer, and plain NumPy on the same rows in the same run.

The peer computes ‖y‖² - 2 y·Q + ‖Q‖² in float64, as anybody would without privacy. Its rows are float64, eight times
the size of ours. Ours is exact over F_q, and adds the servers' common randomness. Rounds alternate between the two, and
the result is the median of the ratios, because other programs may use the machine too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from counterveil import CATALOGUE, Question, engine, make_scheme
from counterveil.crypto.randomness import Fresh

M, D, R = 100_000, 20, 10
ROUNDS = 60


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Time every scheme of the catalogue and print the table."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, R + 1, (M, D)).astype(np.uint8)
    x = rng.integers(0, R + 1, D)
    laid = engine.lay_out(rows)  # as a server does
    plain, Q = rows.astype(np.float64), x.astype(np.float64)

    def numpy_literal() -> object:
        return (plain**2).sum(axis=1) - 2 * (plain @ Q) + Q @ Q

    def numpy_einsum() -> object:
        return np.einsum("ij,ij->i", plain, plain) - 2 * (plain @ Q) + Q @ Q

    table = Table(
        title=f"One server's answer: M = {M:,} rows, d = {D}, R = {R}; median of {ROUNDS} rounds",
        caption="NumPy: (y**2).sum(axis=1) - 2*(y @ Q) + Q @ Q. einsum: the same with the first term as one einsum.",
    )
    table.add_column("scheme", no_wrap=True)
    for heading in ("q", "ours, ms", "NumPy, ms", "ratio", "einsum, ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in track([*CATALOGUE, "table/distances"], description="timing", transient=True):
        scheme = make_scheme(name, largest=R, d=D, d_min=8 if "mask" in name else 1)
        query = scheme.query(Question(x), Fresh())[0]
        common = scheme.common(bytes(32), scheme.digest(rows), b"benchmark")

        def answer(scheme=scheme, query=query, common=common) -> object:  # type: ignore[no-untyped-def]
            return scheme.answer(1, laid, query, common)

        times = [(seconds(answer), seconds(numpy_literal), seconds(numpy_einsum)) for _ in range(ROUNDS + 3)][3:]
        ours, literal, einsum = (statistics.median(t) * 1e3 for t in zip(*times, strict=True))
        ratios = [statistics.median(t[0] / t[k] for t in times) for k in (1, 2)]
        cells = [name, str(scheme.field.q), f"{ours:.2f}", f"{literal:.2f}", f"{ratios[0]:.2f}"]
        table.add_row(*cells, f"{einsum:.2f}", f"{ratios[1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
