"""What an applicant prefers, and how it becomes a cost for every level of every feature.

Security: private to the applicant. Whatever they prefer, the question has the same shape: a cost for every level, or a
weight for every feature. The numbers that bound the costs are public (`tariff`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..algebra import checks
from ..algebra.arrays import Vector
from ..errors import MissingValue, NotOffered, OutOfRange, UnknownName, UnknownValue, WrongShape, WrongType
from .costs import CONSTRAINTS, PREFERENCES, Costs
from .features import Categorical, Feature, Numeric, Value, as_numbers
from .tariff import Tariff

Metric = Literal["l2", "l1", "mad", "heom", "fewest"]
Measure = Callable[[Any, Any], float]  # the cost of a change from one value to another, 0 to 1
Floats = NDArray[np.float64]
# How many times as much a change costs that the last answer had, when another answer is asked for. Of 100 rejected
# people of the German credit data, 71 get another row by it (55 with 2, 79 with 5, 84 with 10), and the usual largest
# weight leaves room to ask so twice.
DEARER = 3


@dataclass(frozen=True, kw_only=True, repr=False)
class Preferences:
    """How an applicant weighs changes; everything may be left out.

    - `weights`: how reluctant they are to change a feature, 1 (the default) to the deployment's largest weight.
    - `immutable`: features that must stay as they are.
    - `ranges`: the lowest and the highest value that they accept; None for no bound. Each bound counts as its level.
    - `increase_only`, `decrease_only`: features that may change in one direction only.
    - `forbidden`: values that a feature must not get.
    - `metric`: how far apart two levels are. `l1` is the difference divided by the range, and `l2` is the square of
      that. `mad` is the difference divided by the median absolute deviation. A change of category costs 1, or 2 where
      the schema says one-hot. `heom` is `l2`, except that any change of category costs 1. `fewest` asks for the fewest
      changes, and among equally many for the least cost by `l2`. A mapping gives single features a metric of their own:
      a name, or a function of the value now and another value, which returns a cost from 0 to 1. It is not called for
      missing values. Other features have `l2`.
    - `costs`: for a feature, the applicant's own cost of each value, from 0 to 1 (as bad as the whole range).
    - `missing`: features that may become missing. All others stay given, if they are.
    - `override`: features for which the schema's `change` does not count; the schema says where that is possible.

    Constraints apply to levels: a value counts as the level that it is quantised to.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    immutable: Collection[str] = ()
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    increase_only: Collection[str] = ()
    decrease_only: Collection[str] = ()
    forbidden: Mapping[str, Collection[Value]] = field(default_factory=dict)
    metric: Metric | Mapping[str, Metric | Measure] = "l2"
    costs: Mapping[str, Mapping[Any, float]] = field(default_factory=dict)
    missing: Collection[str] = ()
    override: Collection[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.metric, Mapping):
            single = [name for name in get_args(Metric) if name != "fewest"]  # that one is about all features together
            for name, metric in self.metric.items():
                if not callable(metric) and metric not in single:
                    expected = f"a function, or one of {', '.join(single)}"
                    raise UnknownName(f"metric, {name}", got=repr(metric), expected=expected)
        elif self.metric not in get_args(Metric):
            raise UnknownName("metric", got=repr(self.metric), expected=f"one of {', '.join(get_args(Metric))}")
        for given in ("immutable", "increase_only", "decrease_only", "missing", "override"):
            object.__setattr__(self, given, _names(given, getattr(self, given)))
        for given in ("weights", "ranges", "forbidden", "costs"):
            if not isinstance(getattr(self, given), Mapping):
                got = type(getattr(self, given)).__name__
                raise WrongType(given, got=got, expected="a mapping from feature to value")
        for name, values in self.forbidden.items():
            if isinstance(values, str) or not isinstance(values, Collection):
                raise WrongType(f"forbidden, {name}", got=repr(values), expected="a list of values")

    @classmethod
    def of(cls, given: Preferences | Mapping[str, Any] | None = None, **keywords: Any) -> Preferences:
        """Accept preferences in any of the ways a caller may give them; refuse names that are not preferences."""
        if isinstance(given, Preferences):
            if keywords:
                raise WrongType("preferences", got="an object and keywords", expected="one or the other")
            return given
        if given is not None and not isinstance(given, Mapping):
            raise WrongType("preferences", got=type(given).__name__, expected="Preferences, or a mapping of them")
        merged = dict(given or {}) | keywords
        known = [f.name for f in fields(cls)]
        unknown = sorted(str(name) for name in set(merged) - set(known))
        if unknown:
            raise UnknownName("preference", got=repr(unknown[0]), expected=f"one of {', '.join(known)}")
        return cls(**merged)

    def unlike(self, features: Collection[Feature], most: int, *, keep: bool = False) -> Preferences:
        """Return preferences for an answer that changes other features than these, the ones that the last one changes.

        Each of them costs `DEARER` times as much, or `most` if that is less; or must stay as it is, with `keep`.
        """
        if keep:
            return replace(self, immutable=tuple(dict.fromkeys([*self.immutable, *(f.name for f in features)])))
        dearer = {f.name: min(most, DEARER * self.weights.get(f.name, f.effort)) for f in features}
        return replace(self, weights={**self.weights, **dearer})


def _names(what: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Collection):
        got = f"the text {values!r}" if isinstance(values, str) else type(values).__name__
        raise WrongType(what, got=got, expected="a list of features")
    return tuple(str(value) for value in values)


def compile_costs(
    tariff: Tariff, own: Vector, preferences: Preferences, offers: Collection[str] = PREFERENCES
) -> Costs:
    """Return the applicant's costs in the units of the tariff; refuse preferences that name no feature or level.

    The schema's own rules (`change`, `effort`) count too, as far as the form `offers` the preferences that they need.
    """
    features = tariff.schema.cost_features
    weights = _weights(tariff, preferences, offers)
    names = {f.name for f in features}
    for given in (*CONSTRAINTS, "costs", "missing", "override"):
        for name in getattr(preferences, given):
            if name not in names:
                raise UnknownName(given, got=repr(name), expected="one of " + ", ".join(f.name for f in features))
    for feature in features:
        if feature.name in preferences.override and not feature.override:
            got = f"{feature.name}, for which the schema does not allow it"
            raise NotOffered("override", got=got, expected="a feature with override = true")
    pairs = list(zip(features, own.tolist(), strict=True))
    allowed = [_ruled(feature, a, preferences, offers) | _allowed(feature, a, preferences) for feature, a in pairs]
    free = [
        np.logical_and.reduce([np.ones(feature.largest + 1, dtype=bool), *may.values()])
        for feature, may in zip(features, allowed, strict=True)
    ]
    for name in preferences.metric if isinstance(preferences.metric, Mapping) else ():
        if name not in names:
            raise UnknownName("metric", got=repr(name), expected="one of " + ", ".join(f.name for f in features))
    apart = [_distance(feature, a, preferences, features) for feature, a in pairs]
    exact = [distance * weight for distance, weight in zip(apart, weights.values(), strict=True)]
    coarse = preferences.metric == "fewest" or tariff.chosen_unit is not None
    if preferences.metric == "fewest":
        costs = _fewest(tariff, own, exact, free)
    else:
        costs = [_whole(tariff.unit, d, coarse) * w for d, w in zip(apart, weights.values(), strict=True)]
    too_dear = tariff.forbidden
    tables = [np.where(may, cost, too_dear) for may, cost in zip(free, costs, strict=True)]
    asked = [f for f in features if isinstance(f, Numeric) and f.name in preferences.ranges]
    ranges = {f.name: _bounds(f, preferences.ranges[f.name]) for f in asked}
    return Costs(features, own, tables, allowed, list(weights.values()), exact if coarse else None, ranges)


def _whole(unit: float, apart: Floats, coarse: bool) -> Vector:
    """Return distances in whole units; where units are coarse, no distance above 0 becomes 0."""
    cost = np.rint(np.round(unit * apart, 6)).astype(np.int64)  # rounded twice, so that float errors decide no half
    return np.maximum(cost, apart > 0) if coarse else cost


def _fewest(tariff: Tariff, own: Vector, exact: list[Floats], free: list[NDArray[np.bool_]]) -> list[Vector]:
    """Return costs by which fewer changes always cost less, and equally many cost what they cost in a few steps.

    A change costs more than all steps of all features that can change. The dearest allowed change has all steps.
    """
    changes = [np.arange(len(may)) != a for may, a in zip(free, own.tolist(), strict=True)]
    able = sum(bool((may & other).any()) for may, other in zip(free, changes, strict=True))
    steps = (tariff.cap - 1) // (able + 1)
    if not steps:
        expected = "a deployment with a larger unit of cost"
        raise NotOffered("metric", got=f"fewest, over {able} features that may change", expected=expected)
    dearest = max((float(cost[may].max()) for cost, may in zip(exact, free, strict=True) if may.any()), default=0.0)
    costs = [_whole(steps / (dearest or 1.0), cost, True) for cost in exact]
    return [cost + (able * steps + 1) * other for cost, other in zip(costs, changes, strict=True)]


def _weights(tariff: Tariff, preferences: Preferences, offers: Collection[str]) -> dict[str, int]:
    """Return the weight of every feature: the applicant's, or else the schema's `effort`, which is the least."""
    features = {f.name: f for f in tariff.schema.cost_features}
    for name, weight in preferences.weights.items():
        if name not in features:
            raise UnknownName("weights", got=repr(name), expected="one of " + ", ".join(features))
        least = 1 if features[name].override else features[name].effort
        checks.integer(f"weights, {name}", weight, least, tariff.max_weight)
    usual = {name: f.effort if "weights" in offers else 1 for name, f in features.items()}
    return {name: int(preferences.weights.get(name, usual[name])) for name in features}


def _distance(feature: Feature, a: int, preferences: Preferences, features: Sequence[Feature]) -> Floats:
    """Return how far every level is from level a, 0 to 1 (2 for one-hot categories)."""
    if feature.name in preferences.costs:
        return _own_table(feature, a, preferences.costs[feature.name])
    codes, chosen = np.arange(feature.largest + 1), preferences.metric
    metric = chosen.get(feature.name, "l2") if isinstance(chosen, Mapping) else chosen
    if callable(metric):
        return _measured(feature, a, metric)
    full = 2.0 if metric != "heom" and isinstance(feature, Categorical) and feature.encoding == "one-hot" else 1.0
    if a > feature.steps or not feature.ordered:
        apart = np.where(codes == a, 0.0, full)
    elif metric == "mad":
        apart = _deviations(feature, a, features)
    else:
        apart = (np.abs(codes - a) / feature.steps) ** (1 if metric == "l1" else 2)
    apart[(codes > feature.steps) & (codes != a)] = full
    return apart


def _measured(feature: Feature, a: int, measure: Measure) -> Floats:
    """Return what the applicant's own function says of every level; 0 for their own, 1 if a value is missing."""
    costs = np.where(np.arange(feature.largest + 1) == a, 0.0, 1.0)
    for code in range(feature.steps + 1) if a <= feature.steps else ():
        if code != a:
            before, after = feature.value(a), feature.value(code)
            cost = measure(before, after)
            if isinstance(cost, bool) or not isinstance(cost, Real) or not 0 <= float(cost) <= 1:
                what = f"metric, {feature.name}, from {before!r} to {after!r}"
                raise OutOfRange(what, got=repr(cost)[:60], expected="0 to 1")
            costs[code] = float(cost)
    return costs


def _deviations(feature: Feature, a: int, features: Sequence[Feature]) -> Floats:
    """Return differences in units of the median absolute deviation, divided by the widest range in those units."""
    widest = 1.0
    for other in features:
        if isinstance(other, Numeric):
            if other.mad is None:
                raise MissingValue(f"metric mad, {other.name}", got="no mad", expected="a mad in the schema")
            widest = max(widest, (other.high - other.low) / other.mad)
    values = np.arange(feature.largest + 1, dtype=np.float64)
    width = 1.0
    if isinstance(feature, Numeric):
        values = feature.numbers()
        width = float(feature.mad or 1)
    return np.asarray(np.minimum(1.0, np.abs(values - values[a]) / width / widest))


def _own_table(feature: Feature, a: int, table: Mapping[Any, float]) -> Floats:
    """Return the applicant's own cost of every level; by default 0 for the level they have and 1 for others."""
    if not isinstance(table, Mapping):
        raise WrongType(f"costs, {feature.name}", got=type(table).__name__, expected="a mapping from value to cost")
    costs = np.ones(feature.largest + 1)
    costs[a] = 0.0
    for value, cost in table.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 1:
            raise OutOfRange(f"costs, {feature.name}, {value!r}", got=cost, expected="0 to 1")
    costs[_codes(f"costs, {feature.name}", feature, list(table))] = list(table.values())
    return costs


def _ruled(feature: Feature, a: int, preferences: Preferences, offers: Collection[str]) -> dict[str, NDArray[np.bool_]]:
    """Return which levels the schema's rules allow. Where a form takes no direction, such a feature must stay."""
    codes, ruled = np.arange(feature.largest + 1), dict[str, NDArray[np.bool_]]()
    there = codes <= feature.steps
    if feature.change != "any" and feature.name not in preferences.override and "immutable" in offers:
        given = {"up": "increase_only", "down": "decrease_only", "never": "immutable"}[feature.change]
        onwards = codes >= a if feature.change == "up" else codes <= a
        turns = given in offers and given != "immutable"
        ruled["change"] = (onwards & there & (a <= feature.steps)) | (codes == a) if turns else codes == a
    if "missing" in offers and a <= feature.steps < feature.largest and feature.name not in preferences.missing:
        ruled["missing"] = there
    return ruled


def _allowed(feature: Feature, a: int, preferences: Preferences) -> dict[str, NDArray[np.bool_]]:
    """Return which levels each constraint on a feature allows."""
    name, codes = feature.name, np.arange(feature.largest + 1)
    there = codes <= feature.steps
    allowed: dict[str, NDArray[np.bool_]] = {}
    if name in preferences.immutable:
        allowed["immutable"] = codes == a
    if name in preferences.ranges:
        allowed["ranges"] = _in_range(feature, preferences.ranges[name]) & there
    for given, onwards in (("increase_only", codes >= a), ("decrease_only", codes <= a)):
        if name in getattr(preferences, given):
            if not feature.ordered:
                raise NotOffered(given, got=f"{name}, whose values have no order", expected="an ordered feature")
            allowed[given] = (onwards & there & (a <= feature.steps)) | (codes == a)
    if name in preferences.forbidden:
        may = np.ones(feature.largest + 1, dtype=bool)
        may[_codes(f"forbidden, {name}", feature, list(preferences.forbidden[name]))] = False
        allowed["forbidden"] = may
    return allowed


def _in_range(feature: Feature, bounds: tuple[Any, Any]) -> NDArray[np.bool_]:
    """Return the levels from the one that the lower bound falls into to the one that the upper bound falls into."""
    lowest, highest = _bounds(feature, bounds)
    codes = np.arange(feature.largest + 1)
    if not isinstance(feature, Numeric):
        return np.asarray((codes >= lowest) & (codes <= highest))
    slack = 1e-9 * (feature.high - feature.low)
    if lowest > min(highest, feature.high) + slack or highest < feature.low - slack:
        return np.zeros(feature.largest + 1, dtype=bool)
    first, last = np.rint(feature.position(np.array([lowest, highest])) * feature.steps)
    return np.asarray((codes >= first) & (codes <= last))


def _bounds(feature: Feature, bounds: tuple[Any, Any]) -> tuple[float, float]:
    """Return the lowest and the highest number that is asked for, or level of a feature that has no numbers."""
    what = f"ranges, {feature.name}"
    if not feature.ordered:
        raise NotOffered("ranges", got=f"{feature.name}, whose values have no order", expected="an ordered feature")
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise WrongShape(what, got=repr(bounds), expected="lowest and highest value, or None")
    low, high = bounds
    if not isinstance(feature, Numeric):
        lowest = 0 if low is None else int(_codes(what, feature, [low])[0])
        return lowest, feature.largest if high is None else int(_codes(what, feature, [high])[0])
    numbers = as_numbers(what, [-np.inf if low is None else low, np.inf if high is None else high])
    if np.isnan(numbers).any():
        raise WrongType(what, got="nan", expected="a number or None")
    return float(numbers[0]), float(numbers[1])


def _codes(what: str, feature: Feature, values: list[Any]) -> Vector:
    """Return the levels of all values in one call: a call for each would take a time that tells how many there are."""
    try:
        return feature.codes(values) if values else np.zeros(0, dtype=np.int64)
    except (MissingValue, OutOfRange, UnknownValue, WrongType) as error:
        raise error.at(what) from None
