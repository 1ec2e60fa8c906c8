"""Probing: random people ask, and the records that they get are kept."""

from __future__ import annotations

import numpy as np

from ...algebra.arrays import Codes
from ..oracles import Oracle
from .report import Point


def probing(oracle: Oracle, rows: Codes, *, tickets: int = 100, seed: int = 1) -> list[Point]:
    """Ask for random people and keep the records that are rows. Every reveal gives away that much."""
    layout, generator = oracle.deployment.tariff.layout, np.random.default_rng(seed)
    true, found = {row.tobytes() for row in rows.astype(np.int64)}, set[bytes]()
    points = []
    for n in range(1, tickets + 1):
        own = np.array([generator.integers(0, f.largest + 1) for f in layout.schema.features], dtype=np.int64)
        found |= {layout.columns(oracle.fetch(own)[None]).astype(np.int64).tobytes()} & true
        if n in (1, 2, 5, tickets) or n % 10 == 0:
            points.append(Point(n, len(found) / len(rows), len(found) / len(rows)))
    return points
