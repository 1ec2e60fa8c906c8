"""Find regions with differential privacy: one person more or less hardly changes which regions are served.

Only two steps look at people, and both add noise by OpenDP. The first counts how many people have each level of each
feature. Random people are then drawn from these counts, feature by feature, and regions are found from them. The second
counts accepted people in regions, if regions are to hold several. All else follows from that, the model and the schema.

Security: the model and the schema count as public. The bound is void for people whom the model was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra import checks
from ...algebra.arrays import Vector
from ...errors import CounterveilError, EmptyDatabase, MissingPackage, NotOffered, OutOfRange
from ...schema.features import Numeric
from ...schema.frames import Columns, rows_as_frame
from ...schema.schema import Schema
from .choosing import most_helpful
from .ensembles import Floats
from .finding import ORDERS, Progress, Regions, search
from .models import read_model
from .sampled import Draw, points_in
from .trees import Boxes, Trees

COUNTED = 4  # regions in which a person counts at most
POINTS = 4000  # random people
_MOST = 100  # regions in which people are counted, unless a number is given
_TRIES = 1000  # random people, until the model takes one
_LARGEST_EPSILON, _LARGEST_DELTA = 50.0, 0.01
_SCALES = (0.1, 1e9)  # of noise, between which the least sufficient one is looked for
_GAUSS, _LAPLACE = 1.645, math.log(10)  # scales of noise that a count exceeds with a probability of 5 %


@dataclass(frozen=True)
class Noise:
    """How much noise OpenDP adds to each of the two steps."""

    levels: float  # the scale of the noise of people at each level
    people: float | None  # the scale of the noise of people in each region, if they are counted
    concentrated: bool  # whether budgets are of concentrated differential privacy, or of the pure one
    budget: float  # of both steps together: rho, or epsilon
    features: int  # in whose levels a person counts

    def says(self) -> str:
        """Say in one line what each step takes of the budget."""
        name = "rho" if self.concentrated else "epsilon"
        said = f"{name} = {self.budget:.4g} for people at each level of {self.features} features"
        if self.people is None:
            return f"{said}, with noise of scale {self.levels:.3g}"
        shares = f"half of it with noise of scale {self.levels:.3g}"
        return f"{said} and in each region, {shares}, and half with noise of scale {self.people:.3g}"

    @property
    def margin(self) -> int:
        """By how much a noised count must be above what is asked for: noise is larger with a chance of 5 %."""
        return math.ceil((self.people or 0.0) * (_GAUSS if self.concentrated else _LAPLACE))

    def noised(self, counts: Vector, scale: float) -> Vector:
        """Return counts with noise."""
        return np.array(_mechanism(scale, self.concentrated)(counts.tolist()), dtype=np.int64)


@cache
def least_noise(epsilon: float, delta: float, features: int, counted: bool) -> Noise:
    """Return the least noise that keeps both steps together within (epsilon, delta).

    With a delta, the rhos of both steps add up, and OpenDP says which rho (epsilon, delta) allows. Without one, their
    epsilons add up.
    """
    dp = _opendp()
    budget, concentrated = epsilon, delta > 0
    if concentrated:

        def bound(scale: float) -> Any:
            return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(_mechanism(scale, True)), delta)

        scale = dp.binary_search_param(bound, d_in=1.0, d_out=(epsilon, delta), bounds=_SCALES)
        budget = _mechanism(scale, True).map(1.0)

    def least(moved: int, share: float) -> float:
        d_in = math.sqrt(moved) if concentrated else moved
        found = dp.binary_search_param(lambda s: _mechanism(s, concentrated), d_in=d_in, d_out=share, bounds=_SCALES)
        return float(found)

    share = budget / 2 if counted else budget
    return Noise(
        levels=least(features, share),
        people=least(COUNTED, share) if counted else None,
        concentrated=concentrated,
        budget=budget,
        features=features,
    )


@cache
def _mechanism(scale: float, concentrated: bool) -> Any:
    """Return OpenDP's noisy counts: of Gauss for concentrated differential privacy, of Laplace for the pure one."""
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if concentrated:
        return dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=scale)
    return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)


def _opendp() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingPackage("epsilon", got="no opendp", expected="counterveil[dp]") from None
    dp.enable_features("contrib")
    return dp


def check_privacy(schema: Schema, epsilon: Any, delta: Any, min_people: int, points: int) -> None:
    """Refuse budgets that mean nothing, and whatever would tell something of people beside them."""
    for name, value, high in (("epsilon", epsilon, _LARGEST_EPSILON), ("delta", delta, _LARGEST_DELTA)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise OutOfRange(name, got=repr(value), expected=f"a number from 0 to {high:g}")
    if not epsilon and (delta or min_people > 1):
        got = "0 with delta" if delta else "0 with min_people, for which people are counted"
        raise OutOfRange("epsilon", got=got, expected="more than 0; with 0 nobody's data is looked at")
    if points:
        raise NotOffered("points", got=f"{points} with epsilon", expected="0: sampled regions are found from people")
    for feature in schema.features:
        if isinstance(feature, Numeric) and feature.mad is not None:
            expected = "no mad with epsilon, since it is a statistic of people"
            raise NotOffered(f"schema, {feature.name}", got=f"mad = {feature.mad:g}", expected=expected)


def find_private_regions(
    model: Any,
    table: Columns,
    schema: Schema,
    accepted: NDArray[np.bool_],
    codes: Vector,
    *,
    epsilon: float,
    delta: float = 0.0,
    label: Any = None,
    min_people: int = 1,
    most: int | None = None,
    orders: int = ORDERS,
    first: Sequence[str] = (),
    points: int = 0,
    progress: Progress | None = None,
) -> Regions:
    """Find and certify regions with (epsilon, delta) differential privacy for every person of the table.

    The parameters are those of `find_regions`. An epsilon of 0 looks at nobody's data. If `min_people` is above 1,
    people are counted in `most` regions, 100 by default, and a region of fewer is kept with a chance of 5 % at most.
    Otherwise nobody is counted, and a region may hold nobody.
    """
    checks.integer("min_people", min_people, 1)
    if most is not None:
        checks.integer("most", most, 1)
    check_privacy(schema, epsilon, delta, min_people, points)
    say = progress or (lambda _what, _share: None)
    say("reading the model", 0.0)
    draw = Draw()
    trees = _read(model, table, schema, label, draw)
    told = np.flatnonzero(np.diff(trees.starts) > 1)  # features of which the model tells levels apart
    noise = least_noise(epsilon, delta, len(told), min_people > 1) if epsilon and told.size else None
    held = None if noise is None else noise.noised(people_at(trees, codes, told), noise.levels)
    others = draw_people(trees, held, 0.0 if noise is None else noise.levels, draw)
    good = trees.cell_bounds(trees.points(others)) > trees.margin
    boxes, inside_others = search(trees, schema, good, others, min_people, orders, first, say)
    levels = trees.levels_of(boxes)
    people, too_rare = np.zeros(len(boxes), dtype=np.int64), 0
    if noise is not None and noise.people is not None:
        levels = levels[_crowded(levels, places(trees, others[good]), most or _MOST)]
        people = noise.noised(people_in_first(levels, places(trees, codes[accepted])), noise.people)
        enough = people >= min_people + noise.margin
        levels, people, too_rare = levels[enough], people[enough], int((~enough).sum())
        if not len(levels):
            got = f"no region of {min_people} people, {noise.margin} more against the noise"
            raise EmptyDatabase("min_people", got=got, expected="fewer, or a larger epsilon")
    elif most is not None and most < len(levels) and not good.all():
        chosen = most_helpful(schema, levels, np.unique(others[~good], axis=0), most)
        levels, people = levels[chosen], people[chosen]
    return Regions(
        schema=schema,
        boxes=levels,
        people=people,
        accepted=0,  # not told
        inside_others=inside_others,
        too_rare=too_rare,
        digest=trees.digest,
        open_ended=trees.open_ended,
        epsilon=float(epsilon),
        delta=float(delta),
        spent="nobody's data was looked at" if noise is None else noise.says(),
    )


def _read(model: Any, like: Columns, schema: Schema, label: Any, draw: Draw) -> Trees:
    """Read the model at a random person whom it takes. Of `like`, only the kind of frame matters."""
    every = np.ones((1, sum(feature.largest + 1 for feature in schema.features)), dtype=bool)
    for _ in range(_TRIES):
        someone = Columns(rows_as_frame(points_in(schema, every, draw), like))
        try:
            return read_model(model, someone, schema, label)
        except CounterveilError:
            raise
        except Exception as error:  # the model's own code, which may refuse a level
            refused = type(error).__name__
    raise NotOffered("model", got=f"{refused} for every random person", expected="one that takes the schema's levels")


# --- what looks at people ---------------------------------------------------------------------------------------------


def people_at(trees: Trees, codes: Vector, told: NDArray[np.int64]) -> Vector:
    """Return how many people are in each cell of each feature. A person counts in one cell of each of those `told`."""
    return np.bincount(trees.places(codes)[:, told].ravel(), minlength=int(trees.starts[-1])).astype(np.int64)


def people_in_first(boxes: Boxes, levels: Vector) -> Vector:
    """Return how many people are in each box of levels. A person counts in the first COUNTED that hold them."""
    times, counts = np.zeros(len(levels), dtype=np.int64), np.zeros(len(boxes), dtype=np.int64)
    for n, members in enumerate(boxes):
        inside = members[levels].all(axis=1) & (times < COUNTED)
        times += inside
        counts[n] = inside.sum()
    return counts


# --- what follows from noised counts ----------------------------------------------------------------------------------


def places(trees: Trees, codes: Vector) -> Vector:
    """Return where the levels of people stand in a box of levels."""
    return np.asarray(codes + np.array([part.start for part in trees.parts]))


def draw_people(trees: Trees, held: Vector | None, scale: float, draw: Draw) -> Vector:
    """Return codes of random people: each feature drawn by its noised counts, or evenly without them.

    The scale of the noise is added to every count, so that the less the counts tell, the more evenly levels are drawn.
    """
    codes = np.empty((POINTS, len(trees.parts)), dtype=np.int64)
    in_cell = np.bincount(trees.cell)
    weight: Floats = np.ones(len(in_cell)) if held is None else (np.maximum(held, 0) + scale) / in_cell
    for j, part in enumerate(trees.parts):
        each = np.cumsum(np.where(trees.decided[part], weight[trees.cell[part]], 0.0))
        codes[:, j] = np.searchsorted(each, draw.fractions(POINTS) * each[-1], side="right")
    return codes


def _crowded(boxes: Boxes, levels: Vector, most: int) -> NDArray[np.int64]:
    """Return the boxes that together hold the most random people, each counted as often as a real one would be."""
    inside = np.array([members[levels].all(axis=1) for members in boxes], dtype=np.float32)
    left, chosen = np.full(len(levels), COUNTED), list[int]()
    while len(chosen) < min(most, len(boxes)):
        gain = inside @ (left > 0).astype(np.float32)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        left -= inside[chosen[-1]] > 0
    return np.array(chosen, dtype=np.int64)
