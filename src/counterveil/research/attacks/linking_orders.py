"""Linking orders: answers in different orders are joined on features that every question tells."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...algebra.arrays import Codes, Vector
from ..oracles import Oracle, unbounded
from .level_reading import Digits
from .report import Point


def linking(oracle: Oracle, rows: Codes) -> list[Point]:
    """Join answers in different orders on key features that every question tells. Rows with a unique key are linked.

    The tables are as large as the field allows, which no server can notice. If one answer tells all features, there is
    nothing to join.
    """
    truth, most = rows.astype(np.int64), unbounded(oracle.deployment.scheme).form.bound
    digits = Digits(oracle.deployment, most, linked=True)
    keys = digits.keys
    if len(digits.groups) == 1:
        shown = digits.read(digits.groups[0], oracle, len(rows))[:, np.argsort(digits.groups[0])]
        common = Counter(map(tuple, shown.tolist())) & Counter(map(tuple, truth.tolist()))
        share = sum(common.values()) / len(truth)
        return [Point(1, share, share)]
    joined: dict[tuple[int, ...], dict[int, int]] = {}
    points = []
    for tickets, group in enumerate(digits.groups, start=1):
        levels = digits.read(group, oracle, len(rows))
        marks = [tuple(row) for row in levels[:, : len(keys)].tolist()]
        times = Counter(marks)
        for mark, row in zip(marks, levels.tolist(), strict=True):
            if times[mark] == 1:
                joined.setdefault(mark, {}).update(zip(group, row, strict=True))
        points.append(_linked(tickets, joined, keys, truth))
    return points


def _linked(tickets: int, joined: dict[tuple[int, ...], dict[int, int]], keys: list[int], truth: Vector) -> Point:
    whole, cells = 0, 0
    for row in truth:
        found = joined.get(tuple(int(row[f]) for f in keys), {})
        right = sum(found.get(f) == int(value) for f, value in enumerate(row))
        cells += right
        whole += right == len(row)
    return Point(tickets, whole / len(truth), cells / truth.size)
