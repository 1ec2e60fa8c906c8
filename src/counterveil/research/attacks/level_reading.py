"""Level reading: tables of costs whose sums are digits, so that a row's cost tells its levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Codes, Vector
from ...schemes.forms import Question
from ...schemes.forms.table import digit_groups, link_keys
from ...schemes.reveals import Opened
from ...terms.deployment import Deployment
from ..oracles import Oracle
from .report import Point, costs_shown, counted


class Digits:
    """Questions that give each feature of a group its own digit of the cost, so that a row's cost tells their levels.

    Larger digits defeat a mask. If only differences are revealed, the fetched record gives the cost of one row, and so
    the costs of all.
    """

    def __init__(self, deployment: Deployment, most: int, *, linked: bool = False) -> None:
        self.layout, self.reveal = deployment.tariff.layout, deployment.scheme.reveal
        self.levels = [largest + 1 for largest in self.layout.largest]
        # Whether the revealed costs are all shifted by one unknown number.
        self._shifted = self.reveal.differences or not isinstance(self.reveal, Opened)
        self._scale = (2 if self.reveal.differences else 1) * self.reveal.d_min if self.reveal.masked else 1
        largest = [levels - 1 for levels in self.levels]
        self.keys = link_keys(largest, most // self._scale) if linked else []
        self.groups = digit_groups(largest, most // self._scale, self.keys)

    def question(self, group: Sequence[int]) -> Question:
        """Return the question whose costs tell the levels of a group of features."""
        tables, place = [np.zeros(n, dtype=np.int64) for n in self.levels], self._scale
        for feature in group:
            tables[feature] = np.arange(self.levels[feature]) * place
            place *= self.levels[feature]
        return Question(costs=tables)

    def read(self, group: Sequence[int], oracle: Oracle, rows: int) -> Vector:
        """Ask, and return the levels of every row: one column for each feature of the group."""
        question, scheme = self.question(group), oracle.deployment.scheme
        seen = oracle.reveal(question)
        shown = costs_shown(scheme, seen, rows)
        if self._shifted:
            codes = self.layout.columns(seen.record[None])[0]
            own = sum(int(np.asarray(t)[code]) for t, code in zip(question.costs or [], codes, strict=True))
            shown = shown - shown[seen.position] + own + (self.reveal.d_min - 1)
        shown = shown // self._scale
        columns = []
        for feature in group:
            shown, level = np.divmod(shown, self.levels[feature])
            columns.append(level)
        return np.stack(columns, axis=1)


def levels_read(oracle: Oracle, count: int, *, most: int | None = None) -> Iterator[tuple[Vector, NDArray[np.bool_]]]:
    """Ask one question after another; after each, give the levels of every row and which columns are known so far."""
    columns = len(oracle.deployment.tariff.layout.largest)
    guess, known = np.full((count, columns), -1), np.zeros(columns, dtype=bool)
    digits = Digits(oracle.deployment, most or oracle.deployment.tariff.cap)
    for group in digits.groups:
        guess[:, group], known[group] = digits.read(group, oracle, count)[:count], True
        yield guess, known


def level_reading(oracle: Oracle, rows: Codes, *, most: int | None = None) -> list[Point]:
    """Ask with tables that tell the levels of several features at once; honest ones unless `most` is above the cap."""
    read, truth = levels_read(oracle, len(rows), most=most), rows.astype(np.int64)
    return [counted(tickets, guess, known, truth) for tickets, (guess, known) in enumerate(read, start=1)]
