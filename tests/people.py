"""Random frames, people and preferences, and a search in the clear. It is written from the definitions, and shares no
code with the package except the schema's fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from counterveil import Boolean, Categorical, Numeric, Ordinal, Schema

Person = Mapping[str, Any]
METRICS = ("l2", "l1", "mad", "heom")


def missing(value: Any) -> bool:
    return value is None or value != value


def level(f: Any, value: Any) -> int | None:
    """The level a value falls into; None for a missing one."""
    if missing(value):
        return None
    if isinstance(f, Numeric):
        R = levels_of(f)
        if f.points is not None:
            return min((abs(point - value), n % 2, n) for n, point in enumerate(f.points))[2]
        if f.log:
            return round(math.log(value / f.low) / math.log(f.high / f.low) * R)
        return round(float(value - f.low) / (f.high - f.low) * R)
    return int(value) if isinstance(f, Boolean) else list(f.values).index(value)


def levels_of(f: Any) -> int:
    if isinstance(f, Numeric):
        if f.points is not None:
            return len(f.points) - 1
        return f.levels if f.levels is not None else round((f.high - f.low) / (f.step or 1))
    return 1 if isinstance(f, Boolean) else max(1, len(f.values) - 1)


def number(f: Numeric, at: int) -> float:
    if f.points is not None:
        return f.points[at]
    part = at / levels_of(f)
    return f.low * (f.high / f.low) ** part if f.log else f.low + (f.high - f.low) * part


def apart(f: Any, a: int | None, b: int | None, metric: str, schema: Schema) -> float:
    """How far two levels of a feature are, as the metric's definition says."""
    one_hot = isinstance(f, Categorical) and f.encoding == "one-hot" and metric != "heom"
    if a == b:
        return 0.0
    if a is None or b is None or isinstance(f, Categorical):
        return 2.0 if one_hot else 1.0
    if metric == "mad":
        widest = max([1.0] + [(g.high - g.low) / (g.mad or 1) for g in schema.cost_features if isinstance(g, Numeric)])
        if isinstance(f, Numeric):
            return min(1.0, abs(number(f, a) - number(f, b)) / (f.mad or 1) / widest)
        return min(1.0, abs(a - b) / widest)
    share = abs(a - b) / levels_of(f)
    return share if metric == "l1" else share**2


def holds(f: Any, own: Person, row: Person, wishes: Mapping[str, Any]) -> bool:
    """Whether the constraints on a feature hold for a row."""
    a, b, name = level(f, own.get(f.name)), level(f, row[f.name]), f.name
    if b is None and a is not None and name not in wishes.get("missing", ()):
        return False
    rule = "any" if name in wishes.get("override", ()) else f.change
    if (name in wishes.get("immutable", ()) or rule == "never") and a != b:
        return False
    for kind, ruled, sign in (("increase_only", "up", 1), ("decrease_only", "down", -1)):
        one_way = name in wishes.get(kind, ()) or rule == ruled
        if one_way and a != b and (a is None or b is None or sign * (b - a) < 0):
            return False
    if name in wishes.get("ranges", {}):
        low, high = wishes["ranges"][name]
        if b is None:
            return False
        if isinstance(f, Numeric) and low is not None and high is not None and low > high:
            return False
        if (low is not None and b < level(f, low)) or (high is not None and b > level(f, high)):  # type: ignore[operator]
            return False
    return not any(b == level(f, value) for value in wishes.get("forbidden", {}).get(name, ()))


def feasible(schema: Schema, own: Person, row: Person, wishes: Mapping[str, Any]) -> bool:
    return all(holds(f, own, row, wishes) for f in schema.cost_features)


def cost(schema: Schema, own: Person, row: Person, wishes: Mapping[str, Any]) -> int:
    """The cost of a row, in units of a tariff whose full range costs max(R², 100)."""
    most = max([levels_of(f) for f in schema.cost_features if not isinstance(f, Categorical)], default=1)
    unit, total = max(most**2, 100), 0
    for f in schema.cost_features:
        a, b = level(f, own.get(f.name)), level(f, row[f.name])
        if f.name in wishes.get("costs", {}):
            said = {level(f, value): c for value, c in wishes["costs"][f.name].items()}
            distance = said.get(b, 0.0 if a == b else 1.0)
        else:
            distance = apart(f, a, b, wishes.get("metric", "l2"), schema)
        total += round(round(unit * distance, 6)) * wishes.get("weights", {}).get(f.name, f.effort)
    return total


def search(schema: Schema, own: Person, rows: list[Person], wishes: Mapping[str, Any]) -> int | None:
    """The least cost of a feasible row, in the clear; None if there is none."""
    return min((cost(schema, own, row, wishes) for row in rows if feasible(schema, own, row, wishes)), default=None)


def random_wishes(
    rng: np.random.Generator, schema: Schema, own: Person, metric: str, tightness: float
) -> dict[str, Any]:
    """Preferences of every kind, on random features."""
    wishes: dict[str, Any] = {
        "metric": metric, "weights": {}, "immutable": [], "ranges": {}, "increase_only": [], "decrease_only": [],
        "forbidden": {}, "costs": {}, "missing": [], "override": [],
    }  # fmt: skip
    for f in schema.cost_features:
        if rng.random() < 0.4:
            wishes["weights"][f.name] = int(rng.integers(1 if f.override else f.effort, 11))
        if f.override and rng.random() < 0.5:
            wishes["override"].append(f.name)
        if f.missing == "level" and rng.random() < 0.5:
            wishes["missing"].append(f.name)
        ordered = not isinstance(f, Categorical)
        kinds = ["immutable", "forbidden", "costs"] + ["ranges", "increase_only", "decrease_only"] * ordered
        if rng.random() < tightness:
            _add_wish(rng, wishes, str(rng.choice(kinds)), f, own)
    return wishes


def _add_wish(rng: np.random.Generator, wishes: dict[str, Any], kind: str, f: Any, own: Person) -> None:
    values = [f.value(code) for code in range(levels_of(f) + 1)]
    if kind in ("immutable", "increase_only", "decrease_only"):
        wishes[kind].append(f.name)
    elif kind == "ranges":
        low, high = (values[at] for at in sorted(rng.integers(0, len(values), 2).tolist()))
        if isinstance(f, Numeric) and rng.random() < 0.5:  # bounds between levels
            low, high = sorted(rng.uniform(f.low, f.high, 2).tolist())
        wishes[kind][f.name] = (None if rng.random() < 0.3 else low, None if rng.random() < 0.3 else high)
    elif kind == "forbidden":
        banned = [v for v in values if v != f.value(level(f, own.get(f.name)) or 0)][:2]
        wishes[kind][f.name] = banned
    else:
        chosen = rng.choice(len(values), size=min(3, len(values)), replace=False)
        wishes[kind][f.name] = {values[i]: float(rng.random()) for i in chosen}


def random_case(seed: int, count: int) -> tuple[Schema, dict[str, list[Any]]]:
    """A schema of random kinds, and a frame that fits it; the column `accepted` says who was accepted."""
    rng = np.random.default_rng(seed)
    features: list[Any] = []
    frame: dict[str, list[Any]] = {}
    for j in range(int(rng.integers(1, 7))):
        name, gaps = f"f{j}", bool(rng.random() < 0.3)
        role = "record" if j and rng.random() < 0.2 else "feature"
        common: dict[str, Any] = {"name": name, "missing": "level" if gaps else "refuse", "role": role}
        kind = int(rng.integers(0, 6))
        if rng.random() < 0.3:
            ways = ["up", "down", "never"] if kind != 4 else ["never"]
            common |= {"change": str(rng.choice(ways)), "override": bool(rng.integers(0, 2))}
        if rng.random() < 0.3:
            common["effort"] = int(rng.integers(2, 5))
        if kind == 5:
            points = tuple(float(v) for v in np.cumsum(rng.integers(1, 50, int(rng.integers(2, 9)))))
            f: Any = Numeric(low=points[0], high=points[-1], points=points, mad=5.0, **common)
            column: list[Any] = [float(v) for v in rng.uniform(f.low, f.high, count)]
        elif kind == 0:
            low, R = float(rng.integers(-50, 50)), int(rng.integers(1, 60))
            f = Numeric(low=low, high=low + R / 2, step=0.5, mad=float(rng.integers(1, 9)), **common)
            column = [float(v) for v in rng.uniform(f.low, f.high, count)]
        elif kind == 1:
            f = Numeric(low=1, high=10_000, levels=int(rng.integers(1, 40)), log=True, mad=20.0, **common)
            column = [float(v) for v in np.exp(rng.uniform(0, math.log(10_000), count))]
        elif kind == 2:
            f = Boolean(**common)
            column = [bool(v) for v in rng.integers(0, 2, count)]
        else:
            values = tuple(f"v{i}" for i in range(int(rng.integers(1, 7))))
            encoding: Any = "one-hot" if rng.random() < 0.4 else "mismatch"
            f = (
                Ordinal(values=values, **common)
                if kind == 3
                else Categorical(values=values, encoding=encoding, **common)
            )
            column = [str(v) for v in rng.choice(values, count)]
        if gaps:
            column = [None if rng.random() < 0.15 else v for v in column]
        features.append(f)
        frame[name] = column
    frame["accepted"] = [bool(v) for v in rng.random(count) < 0.6]
    frame["accepted"][0] = True
    return Schema(features=tuple(features)), frame


def without_rules(schema: Schema) -> Schema:
    """Return the schema without what it says on how people can change."""
    free = {"change": "any", "effort": 1, "override": False}
    return Schema(features=tuple(msgspec.structs.replace(f, **free) for f in schema.features))


def rows_of(frame: Mapping[str, list[Any]]) -> list[Person]:
    names = list(frame)
    return [dict(zip(names, row, strict=True)) for row in zip(*frame.values(), strict=True)]


def possible_codes(f: Any) -> list[int]:
    """The codes that a value can have."""
    values = list(range(levels_of(f) + 1 if isinstance(f, Numeric | Boolean) else len(f.values)))
    return values + ([f.largest] if f.missing == "level" else [])


def allowed_costs(schema: Schema, own: Person, wishes: Mapping[str, Any], codes: Any) -> tuple[Any, Any]:
    """The cost of every row of codes, a column for each cost feature, and whether its constraints hold."""
    unchanged = cost(schema, own, own, wishes)
    costs, allowed = np.full(len(codes), unchanged), np.ones(len(codes), dtype=bool)
    for j, f in enumerate(schema.cost_features):
        added, holding = np.zeros(f.largest + 1, dtype=np.int64), np.zeros(f.largest + 1, dtype=bool)
        for code in possible_codes(f):
            row = dict(own) | {f.name: f.value(code) if code <= levels_of(f) else None}
            added[code], holding[code] = cost(schema, own, row, wishes) - unchanged, holds(f, own, row, wishes)
        costs += added[codes[:, j]]
        allowed &= holding[codes[:, j]]
    return costs, allowed
