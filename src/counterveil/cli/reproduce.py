"""The command reproduce: what the papers print, beside what this code computes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..research import experiments, plots
from ..research.experiments import Claim
from ..research.immutable import immutable
from .research import JSON, PATH, PLOTS, numbers

_EXPERIMENTS = ("synthetic", "compas", "accuracy", "immutable")
_DRAWN = {  # which claims a figure shows, by a word in them, and what it marks
    "synthetic": ("", None),
    "compas": ("true", experiments.CEILING),
    "immutable": ("leakage", None),
}


@click.command()
@click.argument("what", type=click.Choice([*_EXPERIMENTS, "all"]))
@JSON
@PLOTS
@click.option("--data", type=PATH, help="The folder of data files; by default COUNTERVEIL_DATA, or a download.")
@click.option(
    "--levels",
    default=",".join(map(str, experiments.LEVELS)),
    callback=numbers,
    help="accuracy: numbers of levels to try (R).",
)
@click.option(
    "--d-min",
    "d_mins",
    default=",".join(map(str, experiments.D_MINS)),
    callback=numbers,
    help="accuracy: widths of masks to try; 1 is no mask.",
)
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(2), help="accuracy: databases to draw.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The seed of the simulation.")
def reproduce(
    what: str,
    as_json: bool,
    folder: Path | None,
    data: Path | None,
    levels: list[int],
    d_mins: list[int],
    rounds: int,
    seed: int,
) -> None:
    """Compute the papers' tables and figure, and show each number that a paper prints beside ours."""
    console = Console()
    results: dict[str, list[Claim]] = {}
    for name in _EXPERIMENTS if what == "all" else (what,):
        began, progress = time.perf_counter(), console.is_terminal and not as_json
        if name == "synthetic":
            results[name] = experiments.synthetic(progress=progress)
            title, unit = "Leakage, synthetic data: R = 3, d = 3, M = 3", "leakage to base 757"
        elif name == "compas":
            results[name] = experiments.compas(data, seed=seed, progress=progress)
            title, unit = "Leakage, COMPAS: M = 5 of 717 rows", "leakage to base 2003"
        elif name == "immutable":
            results[name] = immutable(progress=progress)
            title, unit = (
                "Immutable features: R = 3, d = 3, M = 3",
                "counts, or leakage to base 757 with k immutable features",
            )
        else:
            found = experiments.accuracy(
                data, levels=levels, d_mins=d_mins, rounds=rounds, seed=seed, progress=progress
            )
            results[name] = experiments.accuracy_claims(found)
            title, unit = f"Accuracy, wine: M = 500, 50 queries, {rounds} rounds", "accuracy"
            if folder is not None:
                plots.accuracy(folder / "accuracy.png", found, title=title)
        if folder is not None and name != "accuracy":
            word, mark = _DRAWN[name]
            shown = [claim for claim in results[name] if word in claim.what]
            plots.claims(folder / f"{name}.png", shown, title=title, unit=unit, mark=mark)
        if not as_json:
            console.print(_claims(title, unit, results[name]))
            console.print(f"{time.perf_counter() - began:.0f} s\n")
    if as_json:
        click.echo(json.dumps({name: [claim.to_dict() for claim in claims] for name, claims in results.items()}))
    elif folder is not None:
        console.print(f"Figures are in {escape(str(folder))}.")


def _claims(title: str, unit: str, claims: Sequence[Claim]) -> Grid:
    grid = Grid(title=title, box=box.SIMPLE_HEAD)
    grid.add_column("claim")
    for heading in ("printed", "ours", "95 % interval"):
        grid.add_column(heading, justify="right")
    for claim in claims:
        whole = float(claim.ours).is_integer() and claim.ours > 1
        interval = f"{claim.low:.4f} to {claim.high:.4f}" if claim.high > claim.low else ""
        grid.add_row(
            claim.what,
            claim.printed or "",
            f"{claim.ours:,.0f}" if whole else f"{claim.ours:.5f}",
            interval,
        )
    grid.caption = unit
    return grid
