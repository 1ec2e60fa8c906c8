"""The command reproduce: what the authors print, beside what this code computes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..research import experiments, newer, plots
from ..research.experiments import Claim
from ..research.immutable import immutable
from .output import JSON
from .research import PATH, PLOTS, numbers


class _Experiment(NamedTuple):
    """How claims are computed, from the folder of data, a seed and whether to show progress, and how they are shown."""

    title: str
    unit: str
    claims: Callable[[Path | None, int, bool], list[Claim]]
    drawn: str = ""  # a figure shows the claims that have this word
    mark: tuple[float, str] | None = None  # a line in it, and what the line means


_ACCURACY = "accuracy"
_EXPERIMENTS = {
    "synthetic": _Experiment(
        "Leakage, synthetic data: R = 3, d = 3, M = 3",
        "leakage to base 757",
        lambda _, __, progress: experiments.synthetic(progress=progress),
    ),
    "compas": _Experiment(
        "Leakage, COMPAS: M = 5 of 717 rows",
        "leakage to base 2003",
        lambda data, seed, progress: experiments.compas(data, seed=seed, progress=progress),
        "true",
        experiments.CEILING,
    ),
    "immutable": _Experiment(
        "Immutable features: R = 3, d = 3, M = 3",
        "counts, or leakage to base 757 with k immutable features",
        lambda _, __, progress: immutable(progress=progress),
        ": leakage",
    ),
    "maximal": _Experiment(
        "Maximal leakage, synthetic data: R = 3, d = 3, M = 3",
        "maximal leakage to base 757",
        lambda _, __, progress: newer.maximal_synthetic(progress=progress),
    ),
    "maximal-compas": _Experiment(
        "Maximal leakage, COMPAS: M = 5 of 717 rows",
        "maximal leakage to base 2003",
        lambda data, seed, progress: newer.maximal_compas(data, seed=seed, progress=progress),
        "true",
        experiments.CEILING,
    ),
    "questions": _Experiment(
        "Several honest questions, with records: 2 of 8 rows",
        "bits",
        lambda _, __, progress: newer.several_questions(progress=progress),
    ),
}


@click.command()
@click.argument("what", type=click.Choice([*_EXPERIMENTS, _ACCURACY, "all"]))
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
    """Compute the papers' tables and figure, and show each number that the authors print beside ours.

    The column "paper" is what the paper prints, the column "notebook" what the authors' public notebook prints.
    """
    console = Console()
    results: dict[str, list[Claim]] = {}
    for name in (*_EXPERIMENTS, _ACCURACY) if what == "all" else (what,):
        began, progress = time.perf_counter(), console.is_terminal and not as_json
        if name == _ACCURACY:
            title, unit = f"Accuracy, wine: M = 500, 50 queries, {rounds} rounds", "accuracy"
            found = experiments.accuracy(
                data, levels=levels, d_mins=d_mins, rounds=rounds, seed=seed, progress=progress
            )
            results[name] = experiments.accuracy_claims(found)
            if folder is not None:
                plots.accuracy(folder / "accuracy.png", found, title=title)
        else:
            title, unit, compute, drawn, mark = _EXPERIMENTS[name]
            results[name] = compute(data, seed, progress)
            if folder is not None:
                shown = [claim for claim in results[name] if drawn in claim.what]
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
    sampled = any(claim.high > claim.low for claim in claims)
    source = next((claim.source for claim in claims if claim.printed), "paper")
    for heading in (source, "ours", "95 % interval")[: 3 if sampled else 2]:  # no empty column, so that lines fit
        grid.add_column(heading, justify="right", no_wrap=True)
    for claim in claims:
        whole = float(claim.ours).is_integer() and claim.ours > 1
        interval = f"{claim.low:.4f} to {claim.high:.4f}" if claim.high > claim.low else ""
        shown = claim.printed or "", f"{claim.ours:,.0f}" if whole else f"{claim.ours:.5f}", interval
        grid.add_row(claim.what, *shown[: 3 if sampled else 2])
    grid.caption = unit + ("; notebook: the authors' privateCFTiTRevision.ipynb" if source == "notebook" else "")
    return grid
