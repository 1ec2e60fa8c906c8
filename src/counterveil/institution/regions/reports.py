"""Report how near regions are to people whom a model rejects, beside the nearest accepted rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...errors import EmptyDatabase
from ...schema.frames import Columns
from ...schema.schema import Schema
from .choosing import ways_in
from .finding import Regions, find_regions
from .growth import spread
from .private import find_private_regions
from .trees import Boxes

HELD_OUT = 0.3  # of all people
_PEOPLE = 1000  # at most, for whom the nearest is looked for
_PAIRS = 1 << 24  # of a row or region and a person, compared at a time


class Nearness(NamedTuple):
    """What the nearest one asks of people: how many there are, who gets to one, and their changes and costs."""

    found: int
    reached: float  # the share of people who can get to one at all
    changes: float
    changes_95: float  # the 95th percentile
    cost: float
    cost_95: float


@dataclass(frozen=True)
class Report:
    """What rows and regions ask of rejected people who were held out, fewest changes first."""

    people: int
    lines: Mapping[str, Nearness]
    privacy: str = ""  # of the regions: what was spent on which step

    def text(self) -> str:
        """Return a line of text for rows and one for regions, and one for what privacy took."""
        said = [f"for {self.people} rejected people who were held out, fewest changes first:"]
        for name, near in self.lines.items():
            asks = f"{near.changes:.2f} changes (95 % at most {near.changes_95:.0f})"
            costs = f"cost {near.cost:.2f} (95 % at most {near.cost_95:.2f})"
            reached = "" if near.reached == 1 else f"; {100 * (1 - near.reached):.0f} % of them can get to none"
            said.append(f"  {near.found:,} {name}: {asks}, {costs}{reached}")
        return "\n".join([*said, *([f"  {self.privacy}"] if self.privacy else [])])


def nearness(schema: Schema, boxes: Boxes, people: Vector, *, fewest: bool = True) -> Nearness:
    """Return what the nearest of boxes asks of people: the one with the fewest changes, or the one that costs least."""
    changes, costs = np.empty(len(people)), np.empty(len(people))
    size = max(1, _PAIRS // len(boxes))
    for at in range(0, len(people), size):
        some, cost = ways_in(schema, boxes, people[at : at + size])
        there = np.isfinite(cost)
        most = cost[there].max(initial=0.0) + 1
        rank = np.where(there, some + cost / most, np.inf) if fewest else cost
        nearest, each = rank.argmin(axis=0), np.arange(cost.shape[1])
        changes[at : at + size], costs[at : at + size] = some[nearest, each], cost[nearest, each]
    there = np.isfinite(costs)
    if not there.any():
        return Nearness(len(boxes), 0.0, *[float("nan")] * 4)
    high = [float(np.percentile(each[there], 95)) for each in (changes, costs)]
    return Nearness(
        len(boxes), float(there.mean()), float(changes[there].mean()), high[0], float(costs[there].mean()), high[1]
    )


def rows_as_boxes(schema: Schema, codes: Vector) -> Boxes:
    """Return rows as boxes of one level for each feature."""
    return np.concatenate([codes[:, j : j + 1] == np.arange(f.largest + 1) for j, f in enumerate(schema.features)], 1)


def held_out_report(
    model: Any, table: Columns, schema: Schema, accepted: NDArray[np.bool_], codes: Vector, **options: Any
) -> tuple[Report, Regions]:
    """Find regions from a part of the people, and report how near they are to the rejected ones of the rest.

    The options are those of `find_regions`, or with an `epsilon` those of `find_private_regions`.
    """
    held = np.zeros(table.count, dtype=bool)
    held[spread(table.count, int(HELD_OUT * table.count))] = True
    rejected = np.unique(codes[held & ~accepted], axis=0)
    if not len(rejected):
        raise EmptyDatabase("report", got="no rejected person among those held out", expected="one")
    rejected = rejected[spread(len(rejected), _PEOPLE)]
    find = find_private_regions if "epsilon" in options else find_regions
    found = find(model, table.rows(~held), schema, accepted[~held], codes[~held], **options)
    rows = rows_as_boxes(schema, np.unique(codes[accepted & ~held], axis=0))
    lines = {"rows": nearness(schema, rows, rejected), "regions": nearness(schema, found.boxes, rejected)}
    private = found.epsilon is not None
    said = f"epsilon = {found.epsilon:g}, delta = {found.delta:g}: {found.spent}" if private else ""
    return Report(len(rejected), lines, said), found
