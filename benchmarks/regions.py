"""How near regions are to rejected people on German credit, beside rows, DiCE and NICE: changes, cost, validity, time.

Gradient boosting is fitted on the raw values of 700 people, and regions are found from the same people. Those of the
other 300 whom it rejects look for a way in. A way in is valid if the model accepts it; of a region, every one of many
points drawn from it counts. Seconds are those of the search for regions, and of a peer's answers to all who ask; peers
count a change wherever a raw value differs. No number has more than 64 levels, and costs are those of the metric l2.

DiCE and NICE run in environments of their own, which are made at the first run in the folder that `--peers` names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import GradientBoostingClassifier

from counterveil import Numeric, Schema
from counterveil.errors import EmptyDatabase
from counterveil.institution.regions import Regions, find_regions
from counterveil.institution.regions.cells import ends
from counterveil.institution.regions.reports import Nearness, nearness, rows_as_boxes
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns

sys.path.insert(0, str(Path(__file__).parent))
from regions_peer import fit

HELD_OUT, POINTS, SPLITS, MOST_LEVELS = 300, 40_000, 3, 64
PEERS = {"DiCE, random": ("dice", "random"), "DiCE, genetic": ("dice", "genetic"), "NICE": ("nice", "sparsity")}
PACKAGES = {"dice": ["dice-ml==0.12"], "nice": ["NICEx==0.2.3", "scikit-learn"]}
Line = tuple[Nearness, float, float, float, float]  # fewest first; changes and cost of the cheapest; valid; seconds


def main() -> None:
    """Print a line for rows, for regions that hold 1, 5 and 10 people, and for each peer that can be installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="a folder for the peers' environments; without it they are left out")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--asked", type=int, default=HELD_OUT, help="rejected people of each split who look, at most")
    chosen = parser.parse_args()
    raw, schema = _data()
    lines: dict[str, list[Line]] = {}
    for split in range(chosen.splits):
        for name, line in _split(raw, schema, split, chosen.peers, chosen.asked).items():
            lines.setdefault(name, []).append(line)
    table = Table(title=f"German credit, 100 boosted trees of depth 3 on raw values: means of {chosen.splits} splits")
    for heading in ("", "how many", "seconds", "changes", "95 %", "cost", "cheapest: changes", "cost", "valid"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, found in lines.items():
        near = Nearness(*np.mean([line[0] for line in found], axis=0).tolist())
        changes, cost, valid, took = np.mean([line[1:] for line in found], axis=0).tolist()
        shown = [f"{near.changes:.2f}", f"{near.changes_95:.1f}", f"{near.cost:.2f}", f"{changes:.2f}", f"{cost:.2f}"]
        table.add_row(name, f"{near.found:,.0f}", f"{took:.1f}", *shown, f"{100 * valid:.1f} %")
    Console(width=120).print(table)


def _data() -> tuple[pd.DataFrame, Schema]:
    """Return people and their schema, no number of which has more than 64 levels."""
    frame, schema = german_credit()
    people = Columns(frame)
    features = []
    for feature in schema.features:
        if isinstance(feature, Numeric) and feature.steps >= MOST_LEVELS:
            feature = Numeric(name=feature.name, low=feature.low, high=feature.high, levels=MOST_LEVELS - 1)
        features.append(feature)
    return pd.DataFrame({name: list(people.column(name)) for name in people.names}), Schema(features=tuple(features))


def _split(raw: pd.DataFrame, schema: Schema, split: int, peers: Path | None, asked: int) -> dict[str, Line]:
    rng = np.random.default_rng(split)
    held = np.isin(np.arange(len(raw)), rng.permutation(len(raw))[:HELD_OUT])
    known, others = raw[~held].reset_index(drop=True), raw[held].reset_index(drop=True)
    model = fit(known, GradientBoostingClassifier)
    features = known[schema.names]
    accepted, codes = model.predict(features) == "good", schema.quantise(features, clamp=True)
    rejected = others[model.predict(others[schema.names]) == "bad"].reset_index(drop=True)[:asked]
    people = schema.quantise(rejected[schema.names], clamp=True)
    began = time.perf_counter()
    rows = rows_as_boxes(schema, np.unique(codes[accepted], axis=0))
    took = time.perf_counter() - began
    valid = float((model.predict(features[accepted]) == "good").mean())
    lines = {"rows": _line(schema, rows, people, valid, took)}
    for least in (1, 5, 10):
        began = time.perf_counter()
        try:
            found = find_regions(model, Columns(features), schema, accepted, codes, label="good", min_people=least)
        except EmptyDatabase as error:
            print(error)
            continue
        took = time.perf_counter() - began
        valid = float((model.predict(_inside(found, rng)) == "good").mean())
        name = "regions" if least == 1 else f"regions of {least} people"
        lines[name] = _line(schema, found.boxes, people, valid, took)
    for name, (peer, method) in PEERS.items() if peers else ():
        line = _peer(peers or Path(), peer, method, model, known, rejected, schema)
        if line is not None:
            lines[name] = line
    return lines


def _line(schema: Schema, boxes: Any, people: Any, valid: float, took: float) -> Line:
    cheapest = nearness(schema, boxes, people, fewest=False)
    return nearness(schema, boxes, people), cheapest.changes, cheapest.cost, valid, took


def _inside(found: Regions, rng: np.random.Generator) -> pd.DataFrame:
    """Return people with raw values drawn from random regions: anywhere in a cell, or at one of its ends."""
    boxes = found.boxes[rng.integers(len(found.boxes), size=POINTS)]
    columns: dict[str, Any] = {}
    start = 0
    for feature in found.schema.features:
        members = boxes[:, start : start + feature.largest + 1]
        start += feature.largest + 1
        level = (members * rng.random(members.shape)).argmax(axis=1)
        if isinstance(feature, Numeric):
            low, high = (side[level] for side in ends(feature, open_ended=False))
            part = np.clip(rng.uniform(-0.5, 1.5, POINTS), 0, 1)
            columns[feature.name] = np.clip(low + (high - low) * part, low, high)
        else:
            columns[feature.name] = [feature.value(int(code)) for code in level]
    return pd.DataFrame(columns)


def _peer(
    folder: Path, peer: str, method: str, model: Any, known: pd.DataFrame, asked: pd.DataFrame, schema: Schema
) -> Line | None:
    """Let a peer look for a way in for every person asked for, in its own environment; None if it cannot run here."""
    python = folder / peer / "bin" / "python"
    uv = Path(sys.executable).parent / "uv"
    with tempfile.TemporaryDirectory() as place:
        known.to_csv(Path(place, "known.csv"), index=False)
        asked.to_csv(Path(place, "asked.csv"), index=False)
        try:
            if not python.exists():
                _quietly([str(uv), "venv", "--python", sys.executable, str(folder / peer)])
                _quietly([str(uv), "pip", "install", "--python", str(python), *PACKAGES[peer]])
            _quietly([str(python), "-W", "ignore", str(Path(__file__).parent / "regions_peer.py"), peer, method, place])
        except subprocess.CalledProcessError as error:
            print(f"{peer}, {method}: left out, since it fails here: {error.stderr.strip().splitlines()[-1]}")
            return None
        answer = json.loads(Path(place, "answer.json").read_text("utf-8"))
    found, own = pd.DataFrame(answer["found"]), asked.iloc[answer["whose"]].reset_index(drop=True)
    found = found[schema.names].astype(own[schema.names].dtypes.to_dict())
    valid = model.predict(found) == "good"
    before, after = (schema.quantise(each[schema.names], clamp=True) for each in (own, found))
    costs, changed = np.zeros(len(own)), (own[schema.names].to_numpy() != found.to_numpy()).sum(axis=1)
    for n in range(len(own)):
        costs[n] = nearness(schema, rows_as_boxes(schema, after[n : n + 1]), before[n : n + 1]).cost
    share = float(valid.sum() / len(asked))
    high = [float(np.percentile(each[valid], 95)) for each in (changed, costs)]
    near = Nearness(len(found), share, float(changed[valid].mean()), high[0], float(costs[valid].mean()), high[1])
    return near, near.changes, near.cost, share, float(answer["seconds"])


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 (our own commands)


if __name__ == "__main__":
    main()
