"""The command leakage: how much a deployment gives away."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table as Grid

from ..algebra.arrays import Vector
from ..errors import NotOffered
from ..institution.database import Database
from ..research import plots
from ..research.leakage import Leakage, clear_costs, estimate, in_turn, populations, simulation, some_people
from ..research.maximal import Maximal, worst_of
from ..schema.frames import Columns
from ..schema.schema import Schema
from ..schemes.protocols import PROTOCOLS
from ..schemes.reveals import REVEALS, Reveal, make_reveal
from ..terms.deployment import Deployment
from . import questions as several
from .output import JSON

PATH = click.Path(path_type=Path)
PLOTS = click.option("--plots", "folder", type=PATH, help="Draw figures into this folder.")


def numbers(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    """Read whole numbers from 1 on, with commas between them."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter("expected whole numbers, such as 20,50,100") from None
    if min(found) < 1:
        raise click.BadParameter("expected numbers from 1")
    return found


def _rungs(d_mins: Sequence[int]) -> list[Reveal]:
    made = []
    for shuffle in (False, True):
        for name, reveal in REVEALS.items():
            masks = [d for d in d_mins if d > 1] if reveal.masked else [1]
            made += [make_reveal(name, shuffle=shuffle, d_min=d) for d in masks]
    return list(dict.fromkeys(made))


@click.command()
@click.argument("bundle", type=PATH)
@JSON
@PLOTS
@click.option("--people", type=PATH, help="A CSV or Parquet file of applicants; by default rows of the bundle.")
@click.option("--applicants", default=10, show_default=True, type=click.IntRange(1), help="Applicants to average over.")
@click.option("--samples", default=100, show_default=True, type=click.IntRange(2), help="Revealed values to sample.")
@click.option("--d-min", "d_mins", default="10,100", callback=numbers, help="Widths of masks to try.")
@click.option("--questions", default=1, show_default=True, type=click.IntRange(1), help="Honest questions in a row.")
@click.option(
    "--budget",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="With --questions above 1: the share of all bits that tickets may give away.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The seed of the simulation.")
def leakage(
    bundle: Path,
    as_json: bool,
    folder: Path | None,
    people: Path | None,
    applicants: int,
    samples: int,
    d_mins: list[int],
    questions: int,
    budget: float,
    seed: int,
) -> None:
    """Say how much questions to BUNDLE give away, for every reveal, and how many tickets rebuild the rows.

    The form of the question is that of the schema's [deployment], or else table.

    The model: the applicant knows the rows of the bundle, and the database is drawn from them independently. What is
    given away is which rows were drawn.
    """
    console, database = Console(), Database.open(bundle)
    generator = simulation(seed)
    deployment = Deployment.serving(database, linked=True)
    rows = deployment.rows(database.codes).astype(np.int64)
    codes = _applicants(Columns(people), database.schema) if people else None
    what, counted = deployment.served, f"{len(rows):,} {deployment.served}s"

    def asked(count: int) -> list[Vector]:
        own = (
            some_people(deployment, database.codes, count, generator)
            if codes is None
            else in_turn(codes, count, generator)
        )
        return [clear_costs(deployment, database.codes, each) for each in own]

    cases = populations(asked(applicants))
    rungs = [
        (reveal, made) for reveal in _rungs(d_mins) for how in PROTOCOLS if (made := _with(deployment, reveal, how))
    ]
    shown = track(rungs, description="reveals", transient=True, disable=as_json or not console.is_terminal)
    found = [
        (made, estimate(reveal, cases, len(rows), samples=samples, generator=generator, drawn=True))
        for reveal, made in shown
    ]
    branch = simulation(seed)
    worst = [worst_of(reveal, [c.values for c in cases], len(rows), generator=branch) for reveal, _ in rungs]
    told = (
        several.measure([made for _, made in rungs], asked, questions, budget, len(rows), seed) if questions > 1 else []
    )
    whole = len(rows) * math.log2(len(rows))
    record = math.log2(len(rows))
    if folder is not None:
        steps = [
            (several.called(made.scheme) + " (at most)" * (f.method == "bounded"), f.bits, f.low, f.high)
            for made, f in found
        ]
        title = f"What one question gives away: {bundle.name}, {counted}"
        plots.ladder(folder / "leakage.png", steps, title=title, unit="bits a question")
        if told:
            title = f"What honest questions give away together: {bundle.name}, {counted}"
            plots.budget(folder / "budget.png", [(each.name, each.curve) for each in told], title=title)
    if as_json:
        click.echo(json.dumps({
            "rows": len(rows), "bits_of_all_rows": round(whole, 2), "bits_of_a_record": round(record, 2),
            "record_bytes": database.records.shape[1],
            "reveals": [_rung(made, f, w, len(rows)) for (made, f), w in zip(found, worst, strict=True)],
            "questions": [each.to_dict(budget, len(rows)) for each in told],
        }))  # fmt: skip
        return
    title = f"What one question gives away: {counted}"
    grid = Grid(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)  # 80 columns; JSON has every number
    grid.add_column("reveal")
    for heading in ("bits", "95 % interval", "maximal", "crafted", "attack"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for (made, leaked), largest in zip(found, worst, strict=True):
        interval = f"{max(0.0, leaked.low):,.0f} to {leaked.high:,.0f}"
        bits = "≤" * (leaked.method == "bounded") + f"{max(0.0, leaked.bits):,.0f}"
        high = "≤" * (largest.method == "bounded") + f"{largest.bits:,.0f}"
        tickets = made.scheme.rebuilt_after
        known = "-" if tickets is None else f"{tickets:,}"
        name = several.called(made.scheme)
        mark = "→ " if name == several.called(deployment.scheme) else "  "
        grid.add_row(
            mark + name.replace("differences,", "diff.,"),
            bits,
            interval,
            high,
            f"{_holds(made, len(rows)):,.0f}",
            known,
        )
    console.print(grid)
    whose = "" if database.certificate else " that was somebody's"
    console.print(
        f"All {what}s together are {whole:,.0f} bits. The record of every answer tells {record:.1f} of them, "
        f"and the {database.records.shape[1]} bytes of a {database.record}{whose}."
    )
    console.print(
        f"'Maximal': maximal leakage, for the applicant to whom most is told, if {what}s may have any of the costs. "
        "'Crafted': the most bits that the answer to any question can hold. 'Attack': this many tickets recover all "
        f"{what}s or, if they are shuffled, most of those that differ enough; `counterveil attack` counts them. "
        f"A dash: one {what} a ticket. →: what is served unless the terms say otherwise."
    )
    if told:
        several.say(console, told, budget, len(rows))
    if folder is not None:
        console.print(f"Figures are in {escape(str(folder))}.")


def _applicants(table: Columns, schema: Schema) -> Any:
    """Return the codes of people in a file; it need not have the columns that only records have."""
    given = [{f.name: person[f.name] for f in schema.cost_features if f.name in person} for person in table.people()]
    return np.stack([schema.codes(person, clamp=True) for person in given])


def _with(deployment: Deployment, reveal: Reveal, protocol: str) -> Deployment | None:
    """Return the deployment with another reveal and protocol, and the fewest servers; None if that is not offered."""
    chosen = deployment.parameters().chosen() | {"servers": None, "collusion": None, "k": 1, "protocol": protocol}
    chosen |= {"scheme": f"{deployment.scheme.form.name}/{reveal.name}"}
    chosen |= {"shuffle": reveal.shuffle, "d_min": reveal.d_min}
    chosen["options"] = {part: own for part, own in chosen.get("options", {}).items() if part == "form"}
    try:
        return Deployment.of(deployment.schema, record=deployment.record, **chosen)
    except NotOffered:
        return None


def _holds(deployment: Deployment, rows: int) -> float:
    """Return the bits that one answer can hold (rule 5)."""
    scheme = deployment.scheme
    return min(scheme.reveal.capacity(scheme.field, rows), rows * math.log2(max(2, rows)))


def _rung(deployment: Deployment, leaked: Leakage, worst: Maximal, rows: int) -> dict[str, Any]:
    reveal, protocol = deployment.scheme.reveal, deployment.scheme.protocol
    tickets, holds = deployment.scheme.rebuilt_after, _holds(deployment, rows)
    return {
        "reveal": reveal.name, "protocol": protocol.name, "shuffle": reveal.shuffle, "d_min": reveal.d_min,
        "bits": round(leaked.bits, 4), "interval": [round(leaked.low, 4), round(leaked.high, 4)],
        "method": leaked.method, "maximal": [round(worst.low, 4), round(worst.high, 4)], "maximal_method": worst.method,
        "crafted_at_most": round(holds, 2), "known_attack_tickets": tickets,
    }  # fmt: skip
