"""The command advise: choose a deployment for given data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..research.advice import Option, write_choice
from ..research.advice import advise as take_advice
from ..schema.frames import as_label
from ..schema.schema import Schema
from .output import JSON, counted, rows_of

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("frame", type=_PATH)
@click.option("--schema", "schema_file", type=_PATH, required=True, help="The schema file, which gets the choice.")
@click.option("--accepted", required=True, metavar="COLUMN[=VALUE]", help="The column that says who was accepted.")
@click.option("--accuracy", default=0.95, show_default=True, help="The share of answers that must be the nearest row.")
@click.option("--questions", default=1, show_default=True, type=click.IntRange(1), help="Questions for each applicant.")
@click.option("--collusion", default=1, show_default=True, type=click.IntRange(1), help="How many servers may collude.")
@click.option("--clamp", is_flag=True, help="Move values beyond the schema's range to its ends.")
@click.option("-o", "--output", type=_PATH, help="Write the schema with the choice to this file instead.")
@click.option("--dry-run", is_flag=True, help="Show the choice and write nothing.")
@JSON
def advise(
    frame: Path,
    schema_file: Path,
    accepted: str,
    accuracy: float,
    questions: int,
    collusion: int,
    clamp: bool,
    output: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Choose levels, reveal, mask and servers for the people in FRAME, and say what to expect of the deployment.

    It is for rows. With regions you do not need it: regions hold nobody's row, and the defaults are right for them.
    """
    console, schema = Console(), Schema.load(schema_file)
    with rows_of(frame):
        best, tried = take_advice(
            frame,
            schema,
            as_label(accepted),
            accuracy=accuracy,
            questions=questions,
            collusion=collusion,
            clamp=clamp,
            progress=console.is_terminal and not as_json,
        )
    if not dry_run:
        write_choice(best).save(output or schema_file)
    if as_json:
        click.echo(json.dumps({"chosen": best.to_dict(), "tried": [option.to_dict() for option in tried]}))
        return
    console.print(_options(best, tried, questions))
    if best.accuracy < accuracy:
        console.print(
            f"[yellow]None reaches {accuracy:.0%}; this one comes nearest.[/yellow] Give numbers more levels."
        )
    console.print(
        f"Chosen: at most {best.levels} levels, {best.name}, {best.deployment.scheme.servers} servers, "
        f"q = {best.deployment.scheme.field.q:,}."
    )
    console.print(escape(f"That is {best.deployment.says(best.rows)}; {best.deployment.lasts()}."))
    if best.deployment.scheme.protocol.linked:
        console.print("The servers talk to each other: start each with --link URL of the other.")
    if not dry_run:
        console.print(
            f"Written to {escape(str(output or schema_file))}; build the bundle with it, and `terms` uses the choice."
        )


def _options(best: Option, tried: Sequence[Option], questions: int) -> Grid:
    """Return a table of options that fits 80 columns. JSON has every number."""
    title = f"{best.rows:,} rows; {counted(questions, 'question')} an applicant"
    grid = Grid(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for heading in ("", "levels", "reveal", "right", "95 %", "bytes", "time", "bits", "all ≤", "attack"):
        grid.add_column(heading, justify="left" if heading in ("", "reveal") else "right", no_wrap=True)
    for option in tried:
        tickets, sent = option.deployment.scheme.rebuilt_after, (option.up + option.down) / 1000
        took = f"{1000 * option.seconds:,.0f} ms" if option.seconds < 1 else f"{option.seconds:,.1f} s"
        grid.add_row(
            "→" if option is best else "", str(option.levels), option.name.replace(" differences", ""),
            f"{option.accuracy:.2f}", f"{option.low:.2f}-{option.high:.2f}",
            f"{sent:,.0f} kB" if sent < 1000 else f"{sent / 1000:,.1f} MB", took,
            _short(option.bits, "≤" * option.bounded), _short(option.together.high),
            "-" if tickets is None else f"[red]{tickets:,}[/red]",
        )  # fmt: skip
    grid.caption = (
        "right: the share of answers that are the nearest row. bytes: up and down. bits: what a question gives away "
        "beside its record; all: what all questions give away together, with their records, at most. "
        "attack: tickets by which a known attack rebuilds the rows; such a reveal is never chosen."
    )
    return grid


def _short(bits: float, sign: str = "") -> str:
    """Return bits in few letters: in thousands from 10,000 on, in millions from 10,000,000 on."""
    if bits < 10_000:
        return f"{sign}{bits:,.0f}"
    return f"{sign}{bits / 1e3:,.0f} k" if bits < 10_000_000 else f"{sign}{bits / 1e6:,.0f} M"
