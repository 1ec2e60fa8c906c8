"""What differential privacy costs rejected people on German credit: changes and cost, for several epsilons.

The protocol is that of `regions.py`: gradient boosting is fitted on 700 people, regions are found from the same people,
and those of the other 300 whom the model rejects look for a way in. The model saw these people, so that the bound says
nothing of them here: this measures what noise costs, and nothing else.

Beside them stand cluster centres, our plain reimplementation of the idea of PrivRecourse (arXiv 2311.14137), whose code
we could not find: centres of differentially private k-means, of which those count that the model accepts.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import GradientBoostingClassifier

from counterveil import Numeric, Schema
from counterveil.errors import EmptyDatabase
from counterveil.institution.regions import find_private_regions, find_regions
from counterveil.institution.regions.private import least_noise
from counterveil.institution.regions.reports import Nearness, nearness, rows_as_boxes
from counterveil.schema.frames import Columns

sys.path.insert(0, str(Path(__file__).parent))
from regions import HELD_OUT, SPLITS, _data
from regions_peer import fit

EPSILONS, DELTA, MOST = (0.0, 0.1, 0.5, 1.0, 2.0, 8.0), 1e-6, 1000
CLUSTERS, STEPS, WHOLE = 50, 5, 1000  # k-means: centres, steps, and what 1 is in whole numbers
Line = tuple[Nearness | None, float]  # None: nothing was found


def main() -> None:
    """Print a line for rows, for regions without privacy, and for each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--people", type=int, default=5, help="people whom regions should hold, in the last lines")
    chosen = parser.parse_args()
    lines: dict[str, list[Line]] = {}
    for split in range(chosen.splits):
        _split(split, chosen.people, lines)
    table = Table(title=f"German credit, delta = {DELTA:g}: means of {chosen.splits} splits")
    for heading in ("", "found in", "how many", "seconds", "reached", "changes", "95 %", "cost", "95 %"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, every in lines.items():
        near = [line[0] for line in every if line[0] is not None]
        took, found = f"{np.mean([line[1] for line in every]):.1f}", f"{len(near)} of {len(every)}"
        if not near:
            table.add_row(name, found, "0", took, *["-"] * 5)
            continue
        mean = Nearness(*np.mean(near, axis=0).tolist())
        shown = [f"{x:.2f}" if x == x else "-" for x in (mean.changes, mean.changes_95, mean.cost, mean.cost_95)]
        table.add_row(name, found, f"{mean.found:,.0f}", took, f"{100 * mean.reached:.0f} %", *shown)
    Console(width=120).print(table)


def _split(split: int, least: int, lines: dict[str, list[Line]]) -> None:
    raw, schema = _data()
    schema = Schema(features=tuple(replace(f, mad=None) if isinstance(f, Numeric) else f for f in schema.features))
    rng = np.random.default_rng(split)
    held = np.isin(np.arange(len(raw)), rng.permutation(len(raw))[:HELD_OUT])
    known, others = raw[~held].reset_index(drop=True), raw[held].reset_index(drop=True)
    model = fit(known, GradientBoostingClassifier)
    features = known[schema.names]
    accepted, codes = model.predict(features) == "good", schema.quantise(features, clamp=True).astype(np.int64)
    rejected = others[model.predict(others[schema.names]) == "bad"].reset_index(drop=True)
    people = schema.quantise(rejected[schema.names], clamp=True)

    def add(name: str, find: Any) -> None:
        began = time.perf_counter()
        try:
            boxes = find()
        except EmptyDatabase:
            boxes = np.zeros((0, 1), dtype=bool)
        took = time.perf_counter() - began
        lines.setdefault(name, []).append((nearness(schema, boxes, people) if len(boxes) else None, took))

    def regions(**options: Any) -> Any:
        find: Any = find_private_regions if "epsilon" in options else find_regions
        return find(model, Columns(features), schema, accepted, codes, label="good", **options).boxes

    add("rows, no privacy", lambda: rows_as_boxes(schema, np.unique(codes[accepted], axis=0)))
    add(f"{MOST:,} regions, no privacy", lambda: regions(most=MOST))
    for epsilon in EPSILONS:
        delta = DELTA if epsilon else 0.0
        add(f"{MOST:,} regions, epsilon {epsilon:g}", lambda e=epsilon, d=delta: regions(epsilon=e, delta=d, most=MOST))
    for epsilon in EPSILONS[1:]:
        add(f"centres, epsilon {epsilon:g}", lambda e=epsilon: _centres(model, schema, codes, e, rng))
    add(f"regions of {least} people, no privacy", lambda: regions(min_people=least, most=MOST))
    for epsilon in EPSILONS[-1:]:
        options = {"epsilon": epsilon, "delta": DELTA, "min_people": least}
        add(f"regions of {least} people, epsilon {epsilon:g}", lambda o=options: regions(**o))


def _centres(model: Any, schema: Schema, codes: Any, epsilon: float, rng: np.random.Generator) -> Any:
    """Return the centres of private k-means that the model accepts, as boxes.

    A person adds 1 to one centre's count, and at most 1 for each feature to its sums, in each step.
    """
    parts = [_spread_out(feature, codes[:, j]) for j, feature in enumerate(schema.features)]
    points = np.rint(WHOLE * np.concatenate([np.ones((len(codes), 1)), *parts], axis=1)).astype(np.int64)
    moved = math.ceil(STEPS * WHOLE**2 * (1 + len(schema.features)))  # squared, in all steps together
    noise = least_noise(epsilon, DELTA, moved, counted=False)
    centres = WHOLE * rng.random((CLUSTERS, points.shape[1] - 1))
    for _ in range(STEPS):
        far = ((points[:, None, 1:] - centres[None]) ** 2).sum(axis=2)
        sums = np.zeros((CLUSTERS, points.shape[1]), dtype=np.int64)
        np.add.at(sums, far.argmin(axis=1), points)
        sums = noise.noised(sums.ravel(), noise.levels).reshape(sums.shape)
        held = np.maximum(sums[:, :1], WHOLE)
        centres = np.clip(sums[:, 1:] * (WHOLE / held), 0, WHOLE)
    made, start = np.empty((CLUSTERS, len(schema.features)), dtype=np.int64), 0
    for j, (feature, part) in enumerate(zip(schema.features, parts, strict=True)):
        each = centres[:, start : start + part.shape[1]]
        start += part.shape[1]
        made[:, j] = np.rint(feature.steps * each[:, 0] / WHOLE) if feature.ordered else each.argmax(axis=1)
    columns = {f.name: [f.value(int(code)) for code in made[:, j]] for j, f in enumerate(schema.features)}
    good = model.predict(pd.DataFrame(columns)) == "good"
    return rows_as_boxes(schema, made[good])


def _spread_out(feature: Any, codes: Any) -> Any:
    """Return a feature as numbers from 0 to 1: one for what has an order, else one for each level."""
    return codes[:, None] / feature.steps if feature.ordered else codes[:, None] == np.arange(feature.largest + 1)


if __name__ == "__main__":
    main()
