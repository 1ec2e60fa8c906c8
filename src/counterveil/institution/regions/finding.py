"""Find regions: boxes in which a model accepts everybody, near to the people whom it rejects.

Seeds are accepted people. Each grows in several orders of features, what matters least to the model first. For every
rejected person the nearest seeds grow towards them first, so that as little as possible is left to change. Seeds also
grow around their neighbours first, where regions are to hold several people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra import checks
from ...algebra.arrays import Vector
from ...errors import EmptyDatabase
from ...schema.boxes import ALL_SUBSETS, family
from ...schema.features import Categorical, Feature
from ...schema.frames import Columns
from ...schema.layouts import Layout
from ...schema.schema import Schema
from .growth import Growth
from .models import read_model
from .trees import Boxes, Floats, Trees

ORDERS = 3  # in which every seed grows
TOWARDS = 3  # seeds that grow towards each rejected person
_SPREAD = 2.5  # by how much orders differ, in powers of e
_GOLDEN = (5**0.5 - 1) / 2  # whose multiples lie evenly between whole numbers
_NEIGHBOURS = 4  # of a seed that are tried, for each person whom a region is to hold
_FEW = 2  # levels that a set of many may have, or lack
_SAMPLE = 200  # seeds that say what matters to the model
_PAIRS = 1 << 22  # of regions, or of a region and a person, compared together


@dataclass(frozen=True, eq=False)
class Regions:
    """Certified boxes, with the number of accepted people in each.

    Security: secret to the institution.
    """

    schema: Schema
    boxes: Boxes
    people: Vector  # accepted ones, in each box
    accepted: int  # people, in all
    inside_others: int  # boxes that were left out, since others hold all of them
    too_rare: int  # boxes that were left out, since they hold too few people

    def codes(self) -> Vector:
        """Return the codes of every box, as a database of regions holds them."""
        families = Layout(self.schema, "region").families
        stops = np.cumsum([feature.largest + 1 for feature in self.schema.features])[:-1]
        parts = [np.split(box, stops) for box in self.boxes]
        sets = [[each.codes(box[j]) for each, j in zip(families, self.schema.costed, strict=True)] for box in parts]
        return np.array([[code for codes in row if codes for code in codes] for row in sets], dtype=np.int64)


def find_regions(
    model: Any,
    table: Columns,
    schema: Schema,
    accepted: NDArray[np.bool_],
    codes: Vector,
    *,
    label: Any = None,
    min_people: int = 1,
    most: int | None = None,
    orders: int = ORDERS,
    first: Sequence[str] = (),
) -> Regions:
    """Find and certify regions of a model.

    Parameters
    ----------
    table, codes : people, as the model gets them and as the schema's levels.
    accepted : whom of them the model accepts; the others are those whom regions should help.
    label : the label that means accepted.
    min_people : keep only regions that hold at least so many accepted people.
    most : keep only so many regions: those that together bring rejected people's costs down the most.
    orders : in how many orders of features every seed grows.
    first : features to grow first in every order, since people cannot change them.
    """
    checks.integer("min_people", min_people, 1)
    checks.integer("orders", orders, 1)
    trees = read_model(model, table.rows(accepted), schema, label)
    seeds, rejected = np.unique(codes[accepted], axis=0), np.unique(codes[~accepted], axis=0)
    points = _points(trees, seeds)
    for part, feature in zip(trees.parts, schema.features, strict=True):
        if feature.role != "feature":
            points[:, part] = True  # nobody is told to change it, so that it may be anything
    certain = trees.accepts(points)
    seeds, points = seeds[certain], points[certain]
    if not len(seeds):
        raise EmptyDatabase("regions", got="no accepted person whose cell is accepted as a whole", expected="one")
    common = [np.argsort(-np.bincount(codes[:, j], minlength=w), kind="stable") for j, w in enumerate(trees.widths)]
    growth = Growth(trees, [family(feature) for feature in schema.features], common)
    fixed = [schema.names.index(name) for name in first]
    ways = list(_orders(trees, points, fixed, orders))
    grown = [growth.grow(points, order, up_first=n % 2 == 0) for n, order in enumerate(ways)]
    if len(rejected):
        grown.append(_towards(trees, schema, seeds, points, rejected, growth, ways[0]))
    if min_people > 1:
        grown.append(_together(trees, schema, seeds, points, min_people, growth, ways[0]))
    boxes = np.unique(np.concatenate(grown), axis=0)
    boxes = boxes[trees.accepts(boxes)]  # once more, from the definition
    kept = boxes[_widest(boxes)]
    people = _holding(trees, kept, codes[accepted])
    enough = people >= min_people
    if not enough.any():
        expected = f"at most {people.max()}, which the largest region holds"
        raise EmptyDatabase("min_people", got=f"no region of {min_people} people", expected=expected)
    found = Regions(
        schema, kept[enough], people[enough], int(accepted.sum()), len(boxes) - len(kept), int((~enough).sum())
    )
    return found if most is None or not len(rejected) else _best(found, rejected, most)


def _points(trees: Trees, codes: Vector) -> Boxes:
    """Return rows as boxes of one level for each feature."""
    boxes = np.zeros((len(codes), sum(trees.widths)), dtype=bool)
    boxes[np.arange(len(codes))[:, None], codes + np.array([part.start for part in trees.parts])] = True
    return boxes


def _orders(trees: Trees, points: Boxes, fixed: Sequence[int], count: int) -> Iterator[list[int]]:
    """Return orders of features: what is fixed, then what costs the least certainty to leave open, more or less.

    The same data and the same model give the same orders.
    """
    some = points[:: max(1, len(points) // _SAMPLE)]
    before = trees.bounds(some)
    loss = np.zeros(len(trees.widths))
    for j, part in enumerate(trees.parts):
        wide = some.copy()
        wide[:, part] = trees.decided[part]
        loss[j] = (before - trees.bounds(wide)).mean() + 1e-9
    for n in range(count):
        shaken = loss * np.exp(_SPREAD * (np.arange(1, len(loss) + 1) * n * _GOLDEN % 1))
        yield sorted(range(len(loss)), key=lambda j: (j not in fixed, shaken[j]))


def _towards(
    trees: Trees, schema: Schema, seeds: Vector, points: Boxes, rejected: Vector, growth: Growth, order: list[int]
) -> Boxes:
    """Return the seeds nearest to each rejected person, grown towards that person and then in one order."""
    near = np.empty((len(rejected), min(TOWARDS, len(seeds))), dtype=np.intp)
    for n, person in enumerate(rejected):
        changes, cost = ways_in(schema, points, person[None])
        near[n] = np.argsort(changes[:, 0] + cost[:, 0], kind="stable")[: near.shape[1]]
    who = np.repeat(np.arange(len(rejected)), near.shape[1])
    boxes = points[near.reshape(-1)]
    goals = _points(trees, rejected)[who]
    losses = np.stack([trees.bounds(_joined(schema, trees, boxes, goals, [j])) for j in range(len(trees.widths))])
    for rank in np.argsort(
        -losses, axis=0, kind="stable"
    ):  # for each box, what costs it the least certainty comes first
        wider = _joined(schema, trees, boxes, goals, rank)
        good = trees.accepts(wider)
        boxes[good] = wider[good]
    return growth.grow(np.unique(boxes, axis=0), order)


def _joined(schema: Schema, trees: Trees, boxes: Boxes, goals: Boxes, rank: Sequence[int] | NDArray[np.intp]) -> Boxes:
    """Return boxes with one feature's set joined with that of a goal; `rank` is the feature of each box, or of all."""
    wider = boxes.copy()
    chosen = np.broadcast_to(np.asarray(rank), len(boxes))
    for j in np.unique(chosen).tolist():
        rows, part = np.flatnonzero(chosen == j), trees.parts[j]
        wider[rows, part] = _union(schema.features[j], boxes[rows, part], goals[rows, part])
    return wider


def _union(feature: Feature, some: Boxes, others: Boxes) -> Boxes:
    """Return the least sets of a feature's levels that have a code and hold two sets each, or all there is."""
    both = some | others
    if feature.ordered:
        there = both[:, : feature.steps + 1]
        from_low = np.logical_or.accumulate(there, axis=1)
        from_high = np.logical_or.accumulate(there[:, ::-1], axis=1)[:, ::-1]
        both[:, : feature.steps + 1] = from_low & from_high
        return both
    size, count = both.sum(axis=1), feature.largest + 1
    if count > ALL_SUBSETS:
        both[(size > _FEW) & (size < count - _FEW)] = True
    return both


def _together(
    trees: Trees, schema: Schema, seeds: Vector, points: Boxes, wanted: int, growth: Growth, order: list[int]
) -> Boxes:
    """Return the seeds, each joined with as many of its neighbours as the model allows, and then grown in one order."""
    count = min(len(seeds), _NEIGHBOURS * wanted)
    near = np.empty((len(seeds), count), dtype=np.intp)
    for n, person in enumerate(seeds):
        changes, cost = ways_in(schema, points, person[None])
        near[n] = np.argsort(changes[:, 0] + cost[:, 0], kind="stable")[:count]
    boxes = points.copy()
    for neighbours in near.T:
        wider = np.concatenate(
            [
                _union(f, boxes[:, part], points[neighbours, part])
                for f, part in zip(schema.features, trees.parts, strict=True)
            ],
            axis=1,
        )
        good = trees.accepts(wider)
        boxes[good] = wider[good]
    return growth.grow(np.unique(boxes, axis=0), order)


def _widest(boxes: Boxes) -> NDArray[np.bool_]:
    """Tell which of the boxes, all different, lie in no other."""
    kept = np.ones(len(boxes), dtype=bool)
    outside, size = (~boxes).astype(np.float32).T, max(1, _PAIRS // max(1, len(boxes)))
    for start in range(0, len(boxes), size):
        within = boxes[start : start + size].astype(np.float32) @ outside == 0
        kept[start : start + size] = within.sum(axis=1) == 1  # in itself alone
    return kept


def _holding(trees: Trees, boxes: Boxes, codes: Vector) -> Vector:
    """Return how many people each box holds."""
    points, count = _points(trees, codes).astype(np.float32), np.zeros(len(boxes), dtype=np.int64)
    size = max(1, _PAIRS // len(points))
    for start in range(0, len(boxes), size):
        inside = boxes[start : start + size].astype(np.float32) @ points.T
        count[start : start + size] = (inside == len(trees.widths)).sum(axis=1)
    return count


def ways_in(schema: Schema, boxes: Boxes, codes: Vector) -> tuple[Vector, Floats]:
    """Return how many features each person must change to get into each box, and what that costs: (boxes, people).

    Costs are those of the metric `l2`, for choosing and reporting; an applicant's own preferences may differ.
    """
    changes = np.zeros((len(boxes), len(codes)), dtype=np.int64)
    cost = np.zeros((len(boxes), len(codes)))
    start = 0
    for j, feature in enumerate(schema.features):
        members, own = boxes[:, start : start + feature.largest + 1], codes[:, j]
        start += feature.largest + 1
        if feature.role != "feature":
            continue
        outside: Boxes = ~members[:, own]
        twice = isinstance(feature, Categorical) and feature.encoding == "one-hot"
        apart = np.full(outside.shape, 2.0 if twice else 1.0)
        if feature.ordered:
            there = members[:, : feature.steps + 1]
            low, high = there.argmax(axis=1)[:, None], feature.steps - there[:, ::-1].argmax(axis=1)[:, None]
            moved = ((np.clip(own, low, high) - own) / feature.steps) ** 2
            apart = np.where((own <= feature.steps) & np.logical_or.reduce(there, axis=1)[:, None], moved, apart)
        changes += outside
        cost += np.where(outside, apart, 0.0)
    return changes, cost


def _best(found: Regions, rejected: Vector, most: int) -> Regions:
    """Return the regions that bring the costs of rejected people down the most, chosen one after the other."""
    checks.integer("most", most, 1)
    changes, cost = ways_in(found.schema, found.boxes, rejected)
    pays = changes + cost
    left, chosen = pays.max(axis=0), list[int]()
    while len(chosen) < min(most, len(found.boxes)):
        gains = np.maximum(left - pays, 0).sum(axis=1)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        left = np.minimum(left, pays[chosen[-1]])
    kept = np.sort(chosen)
    return replace(found, boxes=found.boxes[kept], people=found.people[kept])
