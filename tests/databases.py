"""Random databases and questions, with costs by plain arithmetic that shares no code with the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from counterveil import Question

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    rows: IntArray
    x: IntArray
    weights: IntArray
    levels: tuple[int, ...]
    max_weight: int
    costs: list[IntArray]  # a table for each feature
    cap: int
    norm: int

    def parameters(self, form: str) -> dict[str, Any]:
        """The public parameters of that form for this case."""
        own: dict[str, dict[str, Any]] = {
            "euclidean": {},
            "fixed": {},
            "even_norm": {"max_weight": self.max_weight, "norm": self.norm},
            "table": {"cap": self.cap},
        }
        return {"largest": self.levels, "d": len(self.levels)} | own.get(form, {"max_weight": self.max_weight})

    def question(self, form: str) -> Question:
        if form == "euclidean":
            return Question(self.x)
        if form == "table":
            return Question(costs=self.costs)
        if form == "fixed":
            return Question(self.x, immutable=self.weights % 2)
        return Question(self.x, self.weights)

    def plain(self, form: str) -> IntArray:
        """The cost of every row, in the clear."""
        away = self.rows - self.x
        if form == "dot":
            most = self.max_weight * sum(R * R for R in self.levels)
            return np.asarray(most - (self.rows * self.x * self.weights).sum(axis=1))
        if form == "table":
            return np.asarray(sum(entries[self.rows[:, j]] for j, entries in enumerate(self.costs)))
        w = np.ones_like(self.weights) if form == "euclidean" else self.weights
        if form == "fixed":
            w = np.where(self.weights % 2, 1 + sum(R * R for R in self.levels), 1)
        power = self.norm if form == "even_norm" else 2
        return np.asarray((w * away**power).sum(axis=1))


def make_case(seed: int, M: int, levels: Sequence[int], max_weight: int, *, pool: int, norm: int) -> Case:
    """A database whose rows come from `pool` different ones; a small pool makes duplicates and ties common."""
    rng = np.random.default_rng(seed)
    high = np.array(levels) + 1
    rows = rng.integers(0, high, (pool, len(levels)))[rng.integers(0, pool, M)]
    cap = int(rng.integers(1, 2000))
    return Case(
        rows=rows,
        x=rng.integers(0, high),
        weights=rng.integers(1, max_weight + 1, len(levels)),
        levels=tuple(levels),
        max_weight=max_weight,
        costs=[rng.integers(0, cap + 1, R + 1) for R in levels],
        cap=cap,
        norm=norm,
    )


@st.composite
def cases(draw: st.DrawFn, most_rows: int = 300) -> Case:
    M, d = draw(st.integers(1, most_rows)), draw(st.integers(1, 20))
    R = draw(st.integers(1, 255) | st.sampled_from([1, 2, 255]))
    each = draw(st.booleans())
    levels = draw(st.lists(st.integers(1, R), min_size=d, max_size=d)) if each else [R] * d
    pool = draw(st.integers(1, 8) | st.just(most_rows))
    norm = draw(st.sampled_from([2, 4, 6]))
    return make_case(draw(st.integers(0, 2**63)), M, levels, draw(st.integers(1, 20)), pool=pool, norm=norm)
