"""The commands leakage, attack and advise: how much a deployment gives away."""

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

from ..applicant.client import Client
from ..errors import NotOffered, WrongType
from ..institution.database import Database
from ..research import attacks, plots
from ..research.advice import Option, write_choice
from ..research.advice import advise as take_advice
from ..research.leakage import Leakage, clear_costs, estimate, populations, simulation, some_people
from ..research.oracles import Asking
from ..schema.frames import Columns, as_label
from ..schema.schema import Schema
from ..schemes.protocols import PROTOCOLS
from ..schemes.reveals import REVEALS, Reveal, make_reveal
from ..schemes.scheme import Scheme
from ..terms.deployment import Deployment

PATH = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
PLOTS = click.option("--plots", "folder", type=PATH, help="Draw figures into this folder.")
_HEADINGS = ("", "levels", "reveal", "accuracy", "95 %", "up", "down", "between", "time", "bits a question", "in all")


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


def _called(scheme: Scheme) -> str:
    reveal, protocol = scheme.reveal, scheme.protocol
    extra = (f", d_min {reveal.d_min}" if reveal.masked else "") + (f", {protocol.name}" if protocol.linked else "")
    return "shuffled " * (reveal.shuffle > REVEALS[reveal.name].shuffle) + reveal.name.replace("_", " ") + extra


@click.command()
@click.argument("bundle", type=PATH)
@JSON
@PLOTS
@click.option("--people", type=PATH, help="A CSV or Parquet file of applicants; by default rows of the bundle.")
@click.option("--applicants", default=10, show_default=True, type=click.IntRange(1), help="Applicants to average over.")
@click.option("--samples", default=100, show_default=True, type=click.IntRange(2), help="Revealed values to sample.")
@click.option("--d-min", "d_mins", default="10,100", callback=numbers, help="Widths of masks to try.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The seed of the simulation.")
def leakage(
    bundle: Path,
    as_json: bool,
    folder: Path | None,
    people: Path | None,
    applicants: int,
    samples: int,
    d_mins: list[int],
    seed: int,
) -> None:
    """Say how much one question to BUNDLE gives away, for every reveal, and how many tickets rebuild the rows.

    The form of the question is that of the schema's [deployment], or else table.

    The model: the applicant knows the rows of the bundle, and the database is drawn from them independently. What is
    given away is which rows were drawn.
    """
    console, database, generator = Console(), Database.open(bundle), simulation(seed)
    deployment = Deployment.serving(database, linked=True)
    rows = deployment.rows(database.codes).astype(np.int64)
    own = some_people(deployment, database.codes, applicants, generator)
    if people:
        codes = _applicants(Columns(people), database.schema)
        own = codes[generator.choice(len(codes), min(applicants, len(codes)), replace=False)].astype(np.int64)
    cases = populations(clear_costs(deployment, database.codes, each) for each in own)
    rungs = [
        (reveal, made) for reveal in _rungs(d_mins) for how in PROTOCOLS if (made := _with(deployment, reveal, how))
    ]
    shown = track(rungs, description="reveals", transient=True, disable=as_json or not console.is_terminal)
    found = [
        (made, estimate(reveal, cases, len(rows), samples=samples, generator=generator, drawn=True))
        for reveal, made in shown
    ]
    record = math.log2(len(rows))
    whole = len(rows) * record
    if folder is not None:
        steps = [
            (_called(made.scheme) + " (at most)" * (f.method == "bounded"), f.bits, f.low, f.high) for made, f in found
        ]
        title = f"What one question gives away: {bundle.name}, {len(rows):,} rows"
        plots.ladder(folder / "leakage.png", steps, title=title, unit="bits a question")
    if as_json:
        click.echo(json.dumps({
            "rows": len(rows), "bits_of_all_rows": round(whole, 2), "bits_of_a_record": round(record, 2),
            "record_bytes": database.records.shape[1],
            "reveals": [_rung(made, f, len(rows)) for made, f in found],
        }))  # fmt: skip
        return
    grid = Grid(title=f"What one question gives away: {len(rows):,} rows", box=box.SIMPLE_HEAD)
    grid.add_column("reveal")
    for heading in ("bits", "95 % interval", "a row", "crafted, at most", "known attack"):
        grid.add_column(heading, justify="right")
    for made, leaked in found:
        interval = f"{leaked.low:,.0f} to {leaked.high:,.0f}"
        bits = ("≤ " if leaked.method == "bounded" else "") + f"{max(0.0, leaked.bits):,.1f}"
        most, tickets = _holds(made, len(rows)), made.scheme.rebuilt_after
        known = "a row a ticket" if tickets is None else f"{tickets} tickets"
        grid.add_row(_called(made.scheme), bits, interval, f"{leaked.bits / len(rows):.2f}", f"{most:,.0f}", known)
    console.print(grid)
    whose = "" if database.certificate else " that was somebody's"
    console.print(
        f"All rows together are {whole:,.0f} bits. The record that comes with every answer tells {record:.1f} of them, "
        f"and the {database.records.shape[1]} bytes of a {database.record}{whose}."
    )
    console.print(
        "'Crafted, at most': the most bits that the answer to any question can hold. 'Known attack': this many tickets "
        "recover all rows or, if rows are shuffled, most of those that differ enough; `counterveil attack` counts them."
    )
    if folder is not None:
        console.print(f"The figure is {escape(str(folder / 'leakage.png'))}.")


def _applicants(table: Columns, schema: Schema) -> Any:
    """Return the codes of people in a file; it need not have the columns that only records have."""
    given = [{f.name: person.get(f.name) for f in schema.cost_features} for person in table.people()]
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


def _rung(deployment: Deployment, leaked: Leakage, rows: int) -> dict[str, Any]:
    reveal, protocol = deployment.scheme.reveal, deployment.scheme.protocol
    tickets, holds = deployment.scheme.rebuilt_after, _holds(deployment, rows)
    return {
        "reveal": reveal.name, "protocol": protocol.name, "shuffle": reveal.shuffle, "d_min": reveal.d_min,
        "bits": round(leaked.bits, 4), "interval": [round(leaked.low, 4), round(leaked.high, 4)],
        "method": leaked.method, "crafted_at_most": round(holds, 2), "known_attack_tickets": tickets,
    }  # fmt: skip


@click.command()
@click.argument("bundle", type=PATH)
@JSON
@PLOTS
@click.option("--server", "servers", multiple=True, metavar="URL", help="Attack this running server. Repeat for each.")
@click.option("--tickets", "ticket_file", type=PATH, help="A file of tickets for these servers, one a line.")
@click.option("--probes", default=100, show_default=True, type=click.IntRange(1), help="Tickets to spend on probing.")
@click.option("--d-min", type=click.IntRange(2), help="The mask to average out; by default it hides two levels.")
def attack(
    bundle: Path,
    as_json: bool,
    folder: Path | None,
    servers: tuple[str, ...],
    ticket_file: Path | None,
    probes: int,
    d_min: int | None,
) -> None:
    """Run the known attacks against deployments of BUNDLE, and say how many of its rows each recovers.

    By default each attack runs in this process, against a deployment that it is meant for. With --server the attacks
    run against running servers, with your tickets.
    """
    console, database = Console(), Database.open(bundle)
    if ticket_file and not servers:
        raise WrongType("tickets", got="tickets and no server", expected="--server URL for each server they are for")
    if servers:
        with Client(servers) as client:
            oracle = Asking(client, _tickets(ticket_file))
            reports = attacks.attack_deployment(oracle, database, tickets=probes)
    else:
        progress = console.is_terminal and not as_json
        reports = attacks.attack_all(database, d_min=d_min, tickets=probes, progress=progress)
    if folder is not None:
        title = f"Rows recovered: {bundle.name}, {len(database.codes):,} rows"
        plots.recovered(folder / "attacks.png", reports, title=title)
    if as_json:
        click.echo(json.dumps([report.to_dict() for report in reports]))
        return
    grid = Grid(title=f"Attacks on {bundle.name}, {len(database.codes):,} rows", box=box.SIMPLE_HEAD)
    for heading in ("attack", "against", "tickets", "rows", "values", "what stops it"):
        grid.add_column(heading, justify="right" if heading in ("tickets", "rows", "values") else "left")
    for report in reports:
        done = next(p for p in report.curve if p.rows == report.last.rows > 0 or p is report.last)
        colour = "red" if done.rows > 0.5 else "yellow" if done.rows > 0.05 else "green"
        grid.add_row(
            report.attack, report.against, f"{done.tickets:,}", f"[{colour}]{done.rows:.0%}[/{colour}]",
            f"{done.cells:.0%}", report.stopped_by,
        )  # fmt: skip
    console.print(grid)
    worst = [r for r in reports if r.last.rows == 1]
    if worst:
        console.print(
            f"{len(worst)} of {len(reports)} attacks recovered every row. Three things stop them: fewer tickets for "
            "each applicant; a field that is no larger than it must be; and `sealed`, which reveals no costs."
        )
    if folder is not None:
        console.print(f"The figure is {escape(str(folder / 'attacks.png'))}.")


def _tickets(path: Path | None) -> list[str]:
    if path is None:
        raise WrongType("tickets", got="none", expected="--tickets FILE, one a line")
    try:
        return path.read_text("utf-8").split()
    except OSError as error:
        raise WrongType(str(path), got=error.strerror, expected="a file of tickets") from None


@click.command()
@click.argument("frame", type=PATH)
@click.option("--schema", "schema_file", type=PATH, required=True, help="The schema file, which gets the choice.")
@click.option("--accepted", required=True, metavar="COLUMN[=VALUE]", help="The column that says who was accepted.")
@click.option("--accuracy", default=0.95, show_default=True, help="The share of answers that must be the nearest row.")
@click.option("--questions", default=1, show_default=True, type=click.IntRange(1), help="Questions for each applicant.")
@click.option("--collusion", default=1, show_default=True, type=click.IntRange(1), help="How many servers may collude.")
@click.option("--clamp", is_flag=True, help="Move values beyond the schema's range to its ends.")
@click.option("-o", "--output", type=PATH, help="Write the schema with the choice to this file instead.")
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
    """Choose levels, reveal, mask and servers for the people in FRAME, and say what to expect of the deployment."""
    console, schema = Console(), Schema.load(schema_file)
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
    grid = Grid(title=f"{best.rows:,} rows; {questions} questions an applicant", box=box.SIMPLE_HEAD)
    for heading in _HEADINGS:
        grid.add_column(heading, justify="left" if heading in ("", "reveal") else "right")
    for option in tried:
        grid.add_row(
            "→" if option is best else "", str(option.levels), option.name,
            f"{option.accuracy:.2f}", f"{option.low:.2f} to {option.high:.2f}", f"{option.up / 1000:,.1f} kB",
            f"{option.down / 1000:,.1f} kB", f"{option.between / 1000:,.1f} kB", f"{1000 * option.seconds:.1f} ms",
            "≤ " * option.bounded + f"{option.bits:,.0f}", f"{option.bits_in_all(questions):,.0f}",
        )  # fmt: skip
    return grid
