"""Choose among certified boxes: leave out those inside others, count people, and keep the boxes that help the most."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...schema.features import Categorical
from ...schema.schema import Schema
from . import kernels
from .ensembles import Floats
from .growth import spread
from .trees import Boxes

_MOST_PAIRS = 1 << 25  # of a region and a rejected person, compared when regions are chosen
_CHANGES = {"any": 3, "up": 2, "down": 1, "never": 0}


def widest(boxes: Boxes) -> NDArray[np.int64]:
    """Return the boxes, all different, that lie in no other."""
    order = np.argsort(-boxes.sum(axis=1), kind="stable")
    packed = np.packbits(boxes[order], axis=1)
    words = np.zeros((len(boxes), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    kept = np.zeros(len(boxes), dtype=bool)
    if len(boxes):
        kernels.run(kernels.largest, len(boxes), words.view(np.uint64), kept)
    return np.sort(order[kept])


def people_in(boxes: Boxes, places: NDArray[np.int64]) -> Vector:
    """Return how many people each box of cells holds; `places` are the cells that each person is in."""
    count = np.zeros(len(boxes), dtype=np.int64)
    if len(boxes):
        kernels.run(kernels.inside, len(boxes), boxes, places, count)
    return count


def ways_in(schema: Schema, boxes: Boxes, codes: Vector) -> tuple[Vector, Floats]:
    """Return how many features each person must change to get into each box of levels, and the cost: (boxes, people).

    Costs are those of the metric `l2`, for choosing and reporting; an applicant's own preferences may differ. Where the
    schema says that somebody cannot get into a box, the box costs infinitely much.
    """
    widths = [feature.largest + 1 for feature in schema.features]
    starts = np.concatenate([[0], np.cumsum(widths)])
    low, high = np.ones((len(boxes), len(widths)), dtype=np.int64), np.zeros((len(boxes), len(widths)), dtype=np.int64)
    for j, feature in enumerate(schema.features):
        there = boxes[:, starts[j] : starts[j] + feature.steps + 1]
        some = there.any(axis=1)
        low[some, j], high[some, j] = there.argmax(axis=1)[some], feature.steps - there[some, ::-1].argmax(axis=1)
    ordered = np.array([feature.ordered for feature in schema.features])
    steps = np.array([feature.steps for feature in schema.features])
    doubled = [isinstance(f, Categorical) and f.encoding == "one-hot" for f in schema.features]
    counted = [feature.role == "feature" for feature in schema.features]
    effort = np.array([float(feature.effort) for feature in schema.features])
    weights = np.where(counted, np.where(doubled, 2.0, 1.0) * effort, 0.0)
    change = np.array([_CHANGES[feature.change] for feature in schema.features])
    changes, costs = np.empty((len(boxes), len(codes)), dtype=np.int64), np.empty((len(boxes), len(codes)))
    if len(boxes):
        given = (
            low,
            high,
            np.ascontiguousarray(boxes),
            ordered,
            steps,
            weights,
            change,
            starts,
            codes.astype(np.int64),
        )
        kernels.run(kernels.distances, len(boxes), *given, changes, costs)
    return changes, costs


def most_helpful(schema: Schema, boxes: Boxes, rejected: Vector, most: int) -> NDArray[np.int64]:
    """Return the boxes that bring what rejected people pay down the most, chosen one after the other.

    People pay 1 for each change, and its cost. What a box adds can only shrink as others are chosen, so that most boxes
    need not be looked at again.
    """
    few = spread(len(rejected), max(1, _MOST_PAIRS // len(boxes)))
    changes, costs = ways_in(schema, boxes, rejected[few])
    pays = (changes + costs).astype(np.float32)
    dearest = np.float32(pays[np.isfinite(pays)].max(initial=0.0) + 1)  # more than any way in
    pays[~np.isfinite(pays)] = dearest
    left = np.full(pays.shape[1], dearest, dtype=np.float32)
    waiting = [(-float(gain), n) for n, gain in enumerate(np.maximum(left - pays, 0).sum(axis=1))]
    heapq.heapify(waiting)
    chosen: list[int] = []
    while waiting and len(chosen) < most:
        promised, n = heapq.heappop(waiting)
        gain = float(np.maximum(left - pays[n], 0).sum())
        if waiting and gain < -waiting[0][0] and gain < -promised:
            heapq.heappush(waiting, (-gain, n))
            continue
        chosen.append(n)
        left = np.minimum(left, pays[n])
    return np.sort(np.array(chosen, dtype=np.int64))
