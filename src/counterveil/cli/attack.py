"""The command attack: what somebody with many tickets learns of the rows, of people, and of the model."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..applicant.client import Client
from ..errors import WrongType
from ..institution.database import Database
from ..research import attacks, plots
from ..research.datasets import german_credit
from ..research.oracles import Asking
from ..schema.frames import Columns, as_label
from ..schema.schema import Schema
from .output import JSON, counted
from .research import PATH, PLOTS, numbers

_GERMAN = "age,personal_status,job,housing,residence,dependants,foreign_worker"  # what neighbours know of each other


@click.command()
@click.argument("bundle", type=PATH, required=False)
@JSON
@PLOTS
@click.option("--list", "listed", is_flag=True, help="List the attacks, and end.")
@click.option("--only", "names", multiple=True, metavar="ATTACK", help="Run only this attack. Repeat for more.")
@click.option("--server", "servers", multiple=True, metavar="URL", help="Attack this running server. Repeat for each.")
@click.option("--tickets", "ticket_file", type=PATH, help="A file of tickets for these servers, one a line.")
@click.option("--probes", default=100, show_default=True, type=click.IntRange(1), help="Tickets to spend on probing.")
@click.option("--d-min", type=click.IntRange(2), help="The mask to average out; by default it hides two levels.")
@click.option("--people", type=PATH, help="A CSV or Parquet file of people; by default German credit.")
@click.option("--schema", "schema_file", type=PATH, help="The schema of these people.")
@click.option("--accepted", metavar="COLUMN[=VALUE]", help="The column that says who of them was accepted.")
@click.option("--known", metavar="NAMES", help="Features that everybody knows of everybody, with commas: for linkage.")
@click.option("--records", "kinds", multiple=True, metavar="KIND", help="Attack only this kind of record.")
@click.option("--after", default="1,4,16,64,256", callback=numbers, help="After how many tickets to look.")
@click.option(
    "--scenes", default=8, show_default=True, type=click.IntRange(2), help="Times that people are drawn anew."
)
@click.option("--most", default=1000, show_default=True, type=click.IntRange(20), help="People in a scene, at most.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The seed of the simulation.")
def attack(
    bundle: Path | None,
    as_json: bool,
    folder: Path | None,
    listed: bool,
    names: tuple[str, ...],
    servers: tuple[str, ...],
    ticket_file: Path | None,
    probes: int,
    d_min: int | None,
    people: Path | None,
    schema_file: Path | None,
    accepted: str | None,
    known: str | None,
    kinds: tuple[str, ...],
    after: list[int],
    scenes: int,
    most: int,
    seed: int,
) -> None:
    """Run the known attacks, and say how well each does by the number of tickets.

    With BUNDLE, attacks on rows run in this process, each against a deployment that it is meant for. With --server they
    run against running servers, with your tickets.

    Without BUNDLE, attacks on people and on the model run: on --people, or on German credit, which comes with the
    package. A part of the people is the institution's, on whom its model is fitted. Another part is the attacker's.
    """
    console = Console()
    if listed:
        _list(console, as_json)
        return
    if bundle is not None:
        if people or schema_file or accepted or known or kinds:
            raise WrongType(
                "people", got="people and a bundle", expected="one of them: attacks on people need no bundle"
            )
        _on_rows(console, bundle, as_json, folder, names, servers, ticket_file, probes, d_min)
        return
    if servers or ticket_file:
        raise WrongType("bundle", got="none", expected="the bundle of these servers, to compare with")
    if people is None:
        if schema_file or accepted:
            raise WrongType("people", got="none", expected="--people FILE with --schema and --accepted")
        (frame, schema), label, where = german_credit(), ("credit", "good"), "German credit"
    else:
        if schema_file is None or accepted is None:
            raise WrongType("people", got="no schema or no verdicts", expected="--schema FILE and --accepted COLUMN")
        frame, schema, label, where = Columns(people), Schema.load(schema_file), as_label(accepted), people.name
    features = (known or (_GERMAN if people is None else "")).split(",")
    trials = attacks.attack_people(
        frame,
        schema,
        label,
        names=names,
        kinds=kinds,
        tickets=after,
        scenes=scenes,
        most=most,
        known=[name for name in features if name],
        seed=seed,
        progress=console.is_terminal and not as_json,
    )
    if folder is not None:
        plots.attacked(folder / "people.png", trials.findings, title=f"Attacks on people: {where}")
    if as_json:
        click.echo(json.dumps([finding.to_dict() for finding in trials.findings]))
        return
    _show(console, trials, where, scenes)
    if folder is not None:
        console.print(f"The figure is {escape(str(folder / 'people.png'))}.")


def _list(console: Console, as_json: bool) -> None:
    """List all attacks, with what each needs."""
    table = attacks.ATTACKS.values()
    if as_json:
        click.echo(json.dumps([{"name": each.name, "needs": each.needs, "tells": each.tells} for each in table]))
        return
    grid = Grid(box=box.SIMPLE_HEAD)
    for heading in ("attack", "needs", "what it tries"):
        grid.add_column(heading)
    for each in table:
        grid.add_row(each.name, each.needs, each.tells)
    console.print(grid)


def _show(console: Console, trials: attacks.Trials, where: str, scenes: int) -> None:
    """Print a table for each attack: a line for each kind of record and reveal, a column for each number of tickets."""
    for attack in attacks.PEOPLE_ATTACKS.values():
        found = [finding for finding in trials.findings if finding.attack == attack.name]
        if not found:
            continue
        grid = Grid(title=f"{attack.name}: {where}", box=box.SIMPLE_HEAD)
        grid.add_column("against", no_wrap=True)
        for heading in [*(f"{point.tickets:,}" for point in found[0].curve), "also"]:
            grid.add_column(heading, justify="right", no_wrap=True)
        for finding in found:
            cells = [f"{p.value:.2f}±{p.high - p.value:.2f}".replace("±0", "±") for p in finding.curve]
            grid.add_row(finding.against, *cells, f"{finding.curve[-1].second:.0%}")
        console.print(grid)
        each = "with one ticket for each person" if attack.most_tickets else "by the number of tickets"
        console.print(
            f"{attack.measure}, {each}: the mean of {scenes} scenes, and half of its 95 % interval. By chance it is "
            f"{attack.chance:g}. Also, with the most tickets: {attack.second}. What stops it: {attack.stopped_by}. "
            f"Source: {attack.source}.",
            highlight=False,
        )
    for kind, why in trials.left_out.items():
        console.print(f"Left out, since there is nothing to serve: {kind} ({escape(why)}).")


def _on_rows(
    console: Console,
    bundle: Path,
    as_json: bool,
    folder: Path | None,
    names: tuple[str, ...],
    servers: tuple[str, ...],
    ticket_file: Path | None,
    probes: int,
    d_min: int | None,
) -> None:
    """Run attacks on rows, and say how many of the bundle's rows each recovers."""
    database = Database.open(bundle)
    what = "region" if database.certificate else "row"
    if ticket_file and not servers:
        raise WrongType("tickets", got="tickets and no server", expected="--server URL for each server they are for")
    if servers:
        with Client(servers) as client:
            oracle = Asking(client, _tickets(ticket_file))
            reports = attacks.attack_deployment(oracle, database, tickets=probes, names=names)
    else:
        progress = console.is_terminal and not as_json
        reports = attacks.attack_all(database, d_min=d_min, tickets=probes, names=names, progress=progress)
    if folder is not None:
        title = f"{what.capitalize()}s recovered: {bundle.name}, {len(database.codes):,} {what}s"
        plots.recovered(folder / "attacks.png", reports, title=title)
    if as_json:
        click.echo(json.dumps([report.to_dict() for report in reports]))
        return
    title = f"Attacks on {bundle.name}, {counted(len(database.codes), what)}"
    grid = Grid(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("attack, and against what", "tickets", f"{what}s", "values", "what stops it"):
        number = heading in ("tickets", f"{what}s", "values")
        grid.add_column(heading, justify="right" if number else "left", no_wrap=number)
    for report in reports:
        done = next(p for p in report.curve if p.rows == report.last.rows > 0 or p is report.last)
        colour = "red" if done.rows > 0.5 else "yellow" if done.rows > 0.05 else "green"
        named, rows = f"[bold]{report.attack}[/bold]\n{report.against}", f"[{colour}]{done.rows:.0%}[/{colour}]"
        grid.add_row(named, f"{done.tickets:,}", rows, f"{done.cells:.0%}", report.stopped_by)
    console.print(grid)
    worst = [r for r in reports if r.last.rows == 1]
    if worst:
        console.print(
            f"{len(worst)} of {len(reports)} attacks recovered every {what}. Three things stop them: fewer tickets for "
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
