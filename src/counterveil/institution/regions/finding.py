"""Find regions: boxes in which a model accepts everybody, near to the people whom it rejects.

Seeds are accepted people, and the sparsest accepted changes of rejected people. Each grows in several orders of
features: what people cannot change first, then what matters least to the model. Where regions are to hold several
people, seeds also grow around their neighbours first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra import checks
from ...algebra.arrays import Vector
from ...errors import EmptyDatabase, NotOffered
from ...schema.boxes import family
from ...schema.frames import Columns
from ...schema.schema import Schema
from ..verdicts import accepted_rows
from .choosing import most_helpful, people_in, ways_in, widest
from .growth import Growth, spread
from .models import read_model
from .sampled import MOST_TRIED, Draw, all_accepted, bound, proposals
from .trees import Boxes, Trees

ORDERS = 4  # in which every seed grows
_NEIGHBOURS = 4  # of a seed that are tried, for each person whom a region is to hold
_MOST_NEAR = 4096  # people among whom neighbours are looked for
_WORK = 2.0**34  # steps that growing may take for 1,000 people or fewer: some 20 seconds on two cores
_MORE = 16.0  # times as many for more people, at most
_GROWN = 2.0**17  # boxes that grow at most
_SEARCHED = 3.0  # boxes grown in the time that a rejected person's ways in take

Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Regions:
    """Boxes with the number of accepted people in each.

    Security: secret to the institution.
    """

    schema: Schema
    boxes: Boxes
    people: Vector  # accepted ones, in each box
    accepted: int  # people, in all
    inside_others: int  # boxes that were left out, since others hold all of them
    too_rare: int  # boxes that were left out, since they hold too few people
    digest: str = ""  # of the model, as it was read
    open_ended: tuple[tuple[bool, bool], ...] = ()  # of each feature, whether its end levels hold all beyond them
    sampled: int = 0  # 0: certified. Otherwise no certificate: only so many points of each box were tried
    bound: float = 0.0  # where boxes were sampled, the largest share of a box's points that may be rejected
    epsilon: float | None = None  # None: not differentially private
    delta: float = 0.0
    spent: str = ""  # what each step took of the privacy budget, in words

    @property
    def certified(self) -> bool:
        """Whether the model accepts every point, for certain."""
        return not self.sampled

    def says(self) -> str:
        """Say in one line what is known of every point."""
        if self.certified:
            return "certified: the model accepts every point of every region"
        return (
            f"not certified: {self.sampled:,} points of each region were tried and accepted, so that at most "
            f"{100 * self.bound:.2g} % of such points are rejected (95 % sure of all regions together)"
        )

    def codes(self) -> Vector:
        """Return the codes of every box, as a database of regions holds them."""
        families = [family(feature) for feature in self.schema.cost_features]
        stops = np.cumsum([feature.largest + 1 for feature in self.schema.features])[:-1]
        parts = np.split(self.boxes, stops, axis=1)
        columns: list[Vector] = []
        for each, j in zip(families, self.schema.costed, strict=True):
            sets, which = np.unique(parts[j], axis=0, return_inverse=True)
            columns += list(np.array([each.codes(members) for members in sets]).T[:, which.reshape(-1)])
        return np.stack(columns, axis=1).astype(np.int64)


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
    points: int = 0,
    progress: Progress | None = None,
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
    first : features to grow first in every order, besides those that the schema says nobody can change.
    points : for a model that cannot be certified, check every region on so many sampled points; 0 refuses the model.
    progress : called with what is being done, and which share of it is done.
    """
    checks.integer("min_people", min_people, 1)
    checks.integer("orders", orders, 1)
    checks.integer("points", points, 0)
    if most is not None:
        checks.integer("most", most, 1)
    say = progress or _say_nothing
    say("reading the model", 0.0)
    try:
        trees = read_model(model, table.rows(accepted) if accepted.any() else table, schema, label)
    except NotOffered as error:
        if points:
            options = (min_people, orders, first, say)
            return _sampled(model, table, schema, accepted, codes, label, points, most, *options)
        raise NotOffered(error.what, got=error.got, expected=f"{error.expected}; or points = 1000, to sample") from None
    boxes, inside_others = search(trees, schema, accepted, codes, min_people, orders, first, say)
    return _kept(trees, schema, boxes, inside_others, codes, accepted, min_people, most)


def _say_nothing(_what: str, _share: float) -> None:
    """Show no progress."""


def search(
    trees: Trees,
    schema: Schema,
    accepted: NDArray[np.bool_],
    codes: Vector,
    min_people: int,
    orders: int,
    first: Sequence[str],
    say: Progress,
) -> tuple[Boxes, int]:
    """Return boxes of cells that are certain to be accepted and lie in no other, and how many others were left out."""
    seeds, rejected = np.unique(codes[accepted], axis=0), np.unique(codes[~accepted], axis=0)
    growth = Growth(trees, schema, codes)
    points = _free(trees, schema, trees.points(seeds))
    certain = trees.cell_bounds(points) > trees.margin
    seeds, points = seeds[certain], points[certain]
    work = _WORK * min(max(1.0, len(codes) / 1000), _MORE)
    share = min(work / trees.work, _GROWN) / 3
    searched = rejected[spread(len(rejected), int(share / _SEARCHED) + 1)]
    ways = _free(trees, schema, growth.ways_in(searched, lambda part: say("ways in of rejected people", part)))
    ways = ways[trees.cell_bounds(ways) > trees.margin]
    if not len(seeds) and not len(ways):
        raise EmptyDatabase("regions", got="no accepted person whose cell is accepted as a whole", expected="one")
    fixed = [j for j, f in enumerate(schema.features) if f.change == "never" or f.role != "feature" or f.name in first]
    begun = np.concatenate([points[spread(len(points), int(share / orders) + 1)], ways])
    begun = begun[spread(len(begun), int(2 * share / orders) + 1)]
    grown = []
    for n, order in enumerate(growth.orders(begun, fixed, orders)):

        def growing(part: float, n: int = n) -> None:
            say("growing", (n + part) / orders)

        grown.append(growth.grow(begun, order, up_first=n % 2 == 0, progress=growing))
    if min_people > 1 and len(seeds):
        grown.append(_together(growth, schema, seeds, points, min_people, growth.orders(begun, fixed, 1)[0]))
    boxes = np.unique(np.concatenate(grown), axis=0)
    boxes = boxes[trees.cell_bounds(boxes) > trees.margin]  # once more, from the definition
    say("leaving out regions inside others", 0.0)
    kept = boxes[widest(boxes)]
    return kept, len(boxes) - len(kept)


def _kept(
    trees: Trees,
    schema: Schema,
    boxes: Boxes,
    inside_others: int,
    codes: Vector,
    accepted: NDArray[np.bool_],
    min_people: int,
    most: int | None,
) -> Regions:
    """Return the boxes that hold enough people, or the most helpful of them."""
    people = people_in(boxes, trees.places(codes[accepted]))
    enough = people >= min_people
    if not enough.any():
        expected = f"at most {people.max()}, which the largest region holds"
        raise EmptyDatabase("min_people", got=f"no region of {min_people} people", expected=expected)
    levels, people = trees.levels_of(boxes[enough]), people[enough]
    rejected = np.unique(codes[~accepted], axis=0)
    if most is not None and most < len(levels) and len(rejected):
        chosen = most_helpful(schema, levels, rejected, most)
        levels, people = levels[chosen], people[chosen]
    return Regions(
        schema=schema,
        boxes=levels,
        people=people,
        accepted=int(accepted.sum()),
        inside_others=inside_others,
        too_rare=int((~enough).sum()),
        digest=trees.digest,
        open_ended=trees.open_ended,
    )


def _sampled(
    model: Any,
    table: Columns,
    schema: Schema,
    accepted: NDArray[np.bool_],
    codes: Vector,
    label: Any,
    points: int,
    most: int | None,
    min_people: int,
    orders: int,
    first: Sequence[str],
    say: Progress,
) -> Regions:
    """Return regions of a model that only predicts, each checked on sampled points and none certified."""

    def predict(frame: Any) -> NDArray[np.bool_]:
        return np.asarray(accepted_rows(Columns(frame), schema, model, label), dtype=bool)

    draw, proposed = Draw(), []
    for other in proposals(predict, table, schema, draw):
        trees = read_model(other, table, schema)
        with suppress(EmptyDatabase):
            boxes, _ = search(
                trees,
                schema,
                accepted & other.predict(table.select(schema.names)),
                codes,
                min_people,
                orders,
                first,
                say,
            )
            enough = people_in(boxes, trees.places(codes[accepted])) >= min_people
            proposed.append(trees.levels_of(boxes[enough]))
    boxes = np.unique(
        np.concatenate([np.zeros((0, int(sum(f.largest + 1 for f in schema.features))), dtype=bool), *proposed]), axis=0
    )
    if not len(boxes):
        raise EmptyDatabase("regions", got="none that a fitted model proposes", expected="one")
    rejected = np.unique(codes[~accepted], axis=0)
    if len(boxes) > MOST_TRIED and len(rejected):
        boxes = boxes[most_helpful(schema, boxes, rejected, MOST_TRIED)]
    tried = len(boxes)
    boxes = boxes[all_accepted(predict, table, schema, boxes, points, draw, lambda part: say("checking points", part))]
    if not len(boxes):
        raise EmptyDatabase("regions", got=f"none of {tried} in which {points} points are all accepted", expected="one")
    different = len(boxes)
    boxes = boxes[widest(boxes)]
    inside_others = different - len(boxes)
    if most is not None and most < len(boxes) and len(rejected):
        boxes = boxes[most_helpful(schema, boxes, rejected, most)]
    starts = np.cumsum([0, *(f.largest + 1 for f in schema.features[:-1])])
    people = people_in(boxes, np.ascontiguousarray(codes[accepted] + starts))
    return Regions(
        schema=schema,
        boxes=boxes,
        people=people,
        accepted=int(accepted.sum()),
        inside_others=inside_others,
        too_rare=0,
        open_ended=((False, False),) * len(schema.features),
        sampled=points,
        bound=bound(points, tried),
    )


def _free(trees: Trees, schema: Schema, boxes: Boxes) -> Boxes:
    """Let features that nobody is told to change be anything that the model takes."""
    for j, feature in enumerate(schema.features):
        if feature.role != "feature":
            part = slice(trees.starts[j], trees.starts[j + 1])
            boxes[:, part] = trees.decided_cells[part]
    return boxes


def _together(growth: Growth, schema: Schema, seeds: Vector, points: Boxes, wanted: int, order: list[int]) -> Boxes:
    """Return seeds, each joined with as many of its neighbours as the model allows, and then grown in one order."""
    some = spread(len(seeds), _MOST_NEAR)
    seeds, points = seeds[some], points[some]
    count, levels = min(len(seeds), _NEIGHBOURS * wanted), growth.trees.levels_of(points)
    near = np.empty((len(seeds), count), dtype=np.intp)
    for at in range(0, len(seeds), 256):
        changes, cost = ways_in(schema, levels, seeds[at : at + 256])
        near[at : at + 256] = np.argsort((changes + cost).T, axis=1, kind="stable")[:, :count]
    return growth.grow(np.unique(growth.together(points, near, points), axis=0), order)
