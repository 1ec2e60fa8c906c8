"""How near regions are to rejected people, beside rows: changes, cost and time on German credit, three times over.

A model is fitted on the raw values of 700 people, and regions are found from the same people. Those of the other 300
whom it rejects look for the nearest row, and for the nearest region; costs are those of the metric l2.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from counterveil import Deployment, Numeric, Schema
from counterveil.errors import EmptyDatabase
from counterveil.institution.regions import Regions, find_regions, ways_in
from counterveil.institution.regions.cells import ends
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns, rows_as_frame

MODELS: dict[str, Any] = {
    "boosting": (GradientBoostingClassifier(random_state=0), "100 boosted trees of depth 3"),
    "forest": (RandomForestClassifier(max_depth=8, random_state=0), "a forest of 100 trees of depth 8"),
    "linear": (LogisticRegression(max_iter=1000), "logistic regression"),
}
SPLITS, HELD_OUT, POINTS = 3, 300, 40_000


def main() -> None:
    """Print a line for rows and for regions that hold 1, 5 and 10 people, for the model named or for boosting."""
    estimator, title = MODELS[sys.argv[1] if len(sys.argv) > 1 else "boosting"]
    frame, schema = german_credit()
    people, lines = Columns(frame), dict[str, list[list[float]]]()
    wrong = sampled = 0
    for split in range(SPLITS):
        rng = np.random.default_rng(split)
        held = np.isin(np.arange(people.count), rng.permutation(people.count)[:HELD_OUT])
        known, others = people.rows(~held), people.rows(held)
        model = _model(estimator, schema).fit(known.select(schema.names), known.column("credit"))
        accepted, codes = model.predict(known.select(schema.names)) == "good", schema.quantise(known, clamp=True)
        rejected = schema.quantise(others, clamp=True)[model.predict(others.select(schema.names)) == "bad"]
        rows = np.unique(codes[accepted], axis=0)
        lines.setdefault("rows", []).append([len(rows), 0.0, *_nearest(schema, _points(schema, rows), rejected)])
        for least in (1, 5, 10):
            began = time.perf_counter()
            try:
                found = find_regions(model, known, schema, accepted, codes, label="good", min_people=least)
            except EmptyDatabase as error:
                print(error)
                continue
            took = time.perf_counter() - began
            name = "regions" if least == 1 else f"of {least} people"
            lines.setdefault(name, []).append([len(found.boxes), took, *_nearest(schema, found.boxes, rejected)])
            sampled += POINTS
            wrong += int((model.predict(_inside(found, rng, people)) != "good").sum())
    table = Table(title=f"German credit, {title}: means of {SPLITS} splits")
    for heading in ("", "how many", "seconds", "changes", "cost", "fewest", "at cost"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, numbers in lines.items():
        count, took, *rest = np.mean(numbers, axis=0).tolist()
        table.add_row(name, f"{count:,.0f}", f"{took:.1f}" if took else "", *(f"{number:.2f}" for number in rest))
    bits = Deployment.of(schema, scheme="table/sealed", record="region").scheme.form.bound.bit_length()
    Console().print(table)
    print(f"of {sampled:,} points sampled in regions the model rejects {wrong}; a cost has {bits} bits")


def _model(estimator: Any, schema: Schema) -> Any:
    """Return the estimator behind encoders of categories, which know the schema's values, and scaled numbers."""
    listed = [f for f in schema.features if not isinstance(f, Numeric)]
    encoder = OneHotEncoder(categories=[[f.value(code) for code in range(f.steps + 1)] for f in listed])
    return make_pipeline(
        make_column_transformer((encoder, [f.name for f in listed]), remainder=StandardScaler()), estimator
    )


def _points(schema: Schema, codes: Any) -> Any:
    """Return rows as boxes of one point."""
    return np.concatenate([codes[:, j : j + 1] == np.arange(f.largest + 1) for j, f in enumerate(schema.features)], 1)


def _nearest(schema: Schema, boxes: Any, people: Any) -> list[float]:
    """Return the mean changes and cost of the nearest box, and of the one with the fewest changes."""
    changes, cost = ways_in(schema, boxes, people)
    everybody = np.arange(len(people))
    means = []
    for order in (cost, changes + cost / (cost.max() + 1)):
        nearest = order.argmin(axis=0)
        means += [float(changes[nearest, everybody].mean()), float(cost[nearest, everybody].mean())]
    return means


def _inside(found: Regions, rng: np.random.Generator, like: Columns) -> Any:
    """Return people with raw values drawn from random regions: anywhere in a cell, or at one of its ends."""
    boxes = found.boxes[rng.integers(len(found.boxes), size=POINTS)]
    columns: dict[str, list[Any]] = {}
    start = 0
    for feature in found.schema.features:
        members = boxes[:, start : start + feature.largest + 1]
        start += feature.largest + 1
        level = (members * rng.random(members.shape)).argmax(axis=1)
        if isinstance(feature, Numeric):
            low, high = (side[level] for side in ends(feature, open_ended=False))
            part = np.clip(rng.uniform(-0.5, 1.5, POINTS), 0, 1)
            columns[feature.name] = np.clip(low + (high - low) * part, low, high).tolist()
        else:
            columns[feature.name] = [feature.value(int(code)) for code in level]
    return rows_as_frame(columns, like)


if __name__ == "__main__":
    main()
