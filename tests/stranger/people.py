"""Levels and costs of levels, as docs/wire-costs.md says them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

SLACK = 1e-9


class Feature:
    """One feature of a schema."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.name, self.kind = str(said["name"]), str(said["kind"])
        self.in_cost = said.get("role", "feature") == "feature"
        self.has_missing = said.get("missing", "refuse") == "level"
        self.change, self.effort = str(said.get("change", "any")), int(said.get("effort", 1))
        self.override, self.mad = bool(said.get("override", False)), said.get("mad")
        self.one_hot = said.get("encoding", "mismatch") == "one-hot"
        self.numeric, self.ordered = self.kind == "numeric", self.kind != "categorical"
        if self.numeric:
            self.low, self.high, self.log = float(said["low"]), float(said["high"]), bool(said.get("log", False))
            self.points = [float(each) for each in said.get("points") or ()]
            if self.points:
                self.R: int = len(self.points) - 1
            else:
                self.R = int(said.get("levels") or round((self.high - self.low) / said["step"]))
        else:
            self.values: list[Any] = [False, True] if self.kind == "boolean" else list(said["values"])
            self.R = max(1, len(self.values) - 1)

    @property
    def most(self) -> int:
        """The largest level, that of a missing value included."""
        return self.R + 1 if self.has_missing else self.R

    def level(self, value: Any, *, clamp: bool = False) -> int:
        """Return the level of a value, or refuse it."""
        if value is None or value != value:
            if not self.has_missing:
                raise ValueError(f"{self.name} is missing")
            return self.R + 1
        if not self.numeric:
            same = [n for n, each in enumerate(self.values) if isinstance(each, str) == isinstance(value, str)]
            return next(n for n in same if self.values[n] == value)
        slack = SLACK * (self.high - self.low)
        if not clamp and not self.low - slack <= value <= self.high + slack:
            raise ValueError(f"{self.name} is out of range")
        return round(self.part(value) * self.R)

    def part(self, value: float) -> float:
        """Return how far a number lies between the ends."""
        v = min(max(float(value), self.low), self.high)
        if self.log:
            return math.log(v / self.low) / math.log(self.high / self.low)
        if self.points:
            p = self.points
            i = max(n for n in range(self.R) if p[n] <= v)
            return (i + (v - p[i]) / (p[i + 1] - p[i])) / self.R
        return (v - self.low) / (self.high - self.low)

    def stands_for(self, level: int) -> Any:
        """Return the value that a level stands for."""
        if level > self.R:
            return None
        if not self.numeric:
            return self.values[min(level, len(self.values) - 1)]
        if self.points:
            return self.points[level]
        if self.log:
            return self.low * (self.high / self.low) ** (level / self.R)
        return float(f"{self.low + (self.high - self.low) * (level / self.R):.15g}")


class Tariff(NamedTuple):
    """What bounds a cost."""

    d: int
    L: int
    G: int
    U: int
    C: int
    F: int
    chosen: bool  # whether the terms have a unit


def tariff(features: Sequence[Feature], max_weight: int, d_min: int, unit: int | None) -> Tariff:
    """Return the numbers that bound a cost."""
    d, G = len(features), max([f.R for f in features if f.ordered], default=1)
    U = unit or max(G**2, 100)
    C = max_weight * U * (2 if any(f.one_hot for f in features) else 1)
    if unit:
        C = max(C, 7 * (d + 1) + 1)
    return Tariff(d, max_weight, G, U, C, d * C + d_min, bool(unit))


def tables(
    features: Sequence[Feature], own: Sequence[int], wishes: dict[str, Any], bounds: Tariff
) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the cost of every level of every feature, and which levels are allowed."""
    metric = wishes.get("metric", "l2")
    apart = [distances(f, a, wishes, features) for f, a in zip(features, own, strict=True)]
    w = weights(features, wishes, bounds)
    free = [allowed(f, a, wishes) for f, a in zip(features, own, strict=True)]
    coarse = bounds.chosen or metric == "fewest"
    if metric != "fewest":
        cost = [[w[j] * whole(bounds.U * x, coarse) for x in each] for j, each in enumerate(apart)]
    else:
        exact = [[w[j] * x for x in each] for j, each in enumerate(apart)]
        n = sum(any(may and level != a for level, may in enumerate(each)) for each, a in zip(free, own, strict=True))
        s = (bounds.C - 1) // (n + 1)
        if not s:
            raise ValueError("fewest: the unit is too small")
        dear = [x for each, may in zip(exact, free, strict=True) for x, ok in zip(each, may, strict=True) if ok]
        top = max(dear, default=0.0) or 1.0
        cost = [
            [whole(s / top * x, True) + (n * s + 1) * (level != a) for level, x in enumerate(each)]
            for each, a in zip(exact, own, strict=True)
        ]
    made = [
        [c if ok else bounds.F for c, ok in zip(each, may, strict=True)] for each, may in zip(cost, free, strict=True)
    ]
    return made, free


def whole(x: float, coarse: bool) -> int:
    """Make a number whole."""
    made = round(round(10**6 * x) / 10**6)
    return max(made, 1) if coarse and x > 0 else made


def weights(features: Sequence[Feature], wishes: dict[str, Any], bounds: Tariff) -> list[int]:
    """Return the weight of every feature."""
    given = wishes.get("weights", {})
    made = []
    for f in features:
        w = given.get(f.name, f.effort)
        if not (1 if f.override else f.effort) <= w <= bounds.L:
            raise ValueError(f"the weight of {f.name} is not offered")
        made.append(w)
    return made


def distances(f: Feature, a: int, wishes: dict[str, Any], features: Sequence[Feature]) -> list[float]:
    """Return how far every level is from a."""
    metric, levels = wishes.get("metric", "l2"), range(f.most + 1)
    if f.name in wishes.get("costs", {}):
        own = {f.level(value): float(cost) for value, cost in pairs(wishes["costs"][f.name])}
        return [own.get(level, 0.0 if level == a else 1.0) for level in levels]
    full = 2.0 if f.one_hot and metric != "heom" else 1.0
    made = []
    for level in levels:
        if level == a:
            made.append(0.0)
        elif max(level, a) > f.R or not f.ordered:
            made.append(full)
        elif metric == "mad":
            made.append(deviations(f, a, level, features))
        else:
            made.append((abs(level - a) / f.R) ** (1 if metric == "l1" else 2))
    return made


def pairs(table: Any) -> list[tuple[Any, float]]:
    """Return pairs of value and cost, from a table of either shape."""
    return list(table.items()) if isinstance(table, dict) else [(value, cost) for value, cost in table]


def deviations(f: Feature, a: int, level: int, features: Sequence[Feature]) -> float:
    """Return the metric `mad`."""
    widest = max([1.0, *((other.high - other.low) / float(other.mad or "nan") for other in features if other.numeric)])
    if not f.numeric:
        return min(1.0, abs(level - a) / widest)
    return min(1.0, abs(float(f.stands_for(level)) - float(f.stands_for(a))) / float(f.mad or "nan") / widest)


def allowed(f: Feature, a: int, wishes: dict[str, Any]) -> list[bool]:
    """Return which levels are allowed."""
    change = "any" if f.name in wishes.get("override", ()) else f.change
    may = [True] * (f.most + 1)
    for level in range(f.most + 1):
        given = max(level, a) <= f.R
        if f.name in wishes.get("immutable", ()) or change == "never":
            may[level] &= level == a
        if f.name in wishes.get("increase_only", ()) or change == "up":
            may[level] &= level == a or (given and level > a)
        if f.name in wishes.get("decrease_only", ()) or change == "down":
            may[level] &= level == a or (given and level < a)
        if level > f.R and level != a and f.name not in wishes.get("missing", ()):
            may[level] = False
    for value in wishes.get("forbidden", {}).get(f.name, ()):
        may[f.level(value)] = False
    if f.name in wishes.get("ranges", {}):
        inside = in_range(f, *wishes["ranges"][f.name])
        may = [ok and level in inside for level, ok in enumerate(may)]
    return may


def in_range(f: Feature, lowest: Any, highest: Any) -> range:
    """Return the levels in a range."""
    if not f.ordered:
        raise ValueError("a range of values without order")
    if not f.numeric:
        return range(0 if lowest is None else f.level(lowest), 1 + (f.R if highest is None else f.level(highest)))
    low = -math.inf if lowest is None else float(lowest)
    high = math.inf if highest is None else float(highest)
    slack = SLACK * (f.high - f.low)
    if low > min(high, f.high) + slack or high < f.low - slack:
        return range(0)
    return range(f.level(low, clamp=True), 1 + f.level(high, clamp=True))
