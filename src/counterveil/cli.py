"""The command line. Errors are one line on standard error and exit code 2; never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from .database import Database
from .errors import CounterveilError
from .frames import Table
from .schema import Schema

_PATH = click.Path(path_type=Path)


class _Group(click.Group):
    """Turns Counterveil's own errors into one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CounterveilError as error:
            click.echo(f"counterveil: {' '.join(str(error).split())}", err=True)
            ctx.exit(2)


@click.group(cls=_Group)
@click.version_option(package_name="counterveil")
def main() -> None:
    """Explanations that cost the person who asks for them nothing of their privacy."""


@main.group()
def schema() -> None:
    """Make and check schema files."""


@schema.command()
@click.argument("frame", type=_PATH)
@click.option("-o", "--output", type=_PATH, help="Write the schema here instead of printing it.")
@click.option("--exclude", multiple=True, metavar="COLUMN", help="Leave a column out, such as the verdict. Repeatable.")
@click.option("--levels", default=100, type=click.IntRange(1, 65_534), help="The most levels of a number.")
@click.option("--exact-ranges", is_flag=True, help="Do not round ranges outwards. Tells the data's extremes.")
def infer(frame: Path, output: Path | None, exclude: tuple[str, ...], levels: int, exact_ranges: bool) -> None:
    """Guess a schema from FRAME, a CSV or Parquet file. Look it over: it is public."""
    table = Table(frame)
    guessed = Schema.infer(table, exclude=exclude, most_levels=levels, round_outwards=not exact_ranges)
    if output is None:
        click.echo(guessed.to_toml(), nl=False)
        return
    guessed.save(output)
    click.echo(f"{output}: {len(guessed.features)} features. Look it over before you build: it is public.")
    left_out = [name for name in table.names if name not in guessed.names and name not in exclude]
    if left_out:
        click.echo(f"Left out, being free text, dates or empty: {', '.join(left_out)}.")


@main.command()
@click.argument("frame", type=_PATH)
@click.option("--schema", "schema_file", type=_PATH, required=True, help="The schema file.")
@click.option("--accepted", required=True, metavar="COLUMN[=VALUE]", help="The column that says who was accepted.")
@click.option("-o", "--output", type=_PATH, required=True, help="The bundle to write.")
@click.option("--record", type=click.Choice(["row", "cell"]), default="row", show_default=True, help="What is served.")
@click.option("--min-cell", default=1, show_default=True, help="Serve cells that so many people share; needs cell.")
@click.option("--clamp", is_flag=True, help="Pull values beyond the schema's range to its ends.")
def build(frame: Path, schema_file: Path, accepted: str, output: Path, record: Any, min_cell: int, clamp: bool) -> None:
    """Build a bundle from the accepted rows of FRAME, a CSV or Parquet file."""
    column, equals, value = accepted.partition("=")
    built = Database.build(
        frame,
        Schema.load(schema_file),
        accepted=(column, _typed(value)) if equals else column,
        record=record,
        min_cell=min_cell,
        clamp=clamp,
        progress=Console().is_terminal,
    )
    built.save(output)
    click.echo(f"{output}: {built.counts.rows:,} rows of {built.counts.accepted:,} accepted people.")


@main.command()
@click.argument("bundle", type=_PATH)
def inspect(bundle: Path) -> None:
    """Check BUNDLE and show what it holds."""
    held = Database.open(bundle)
    counts = held.counts
    for name, value in (
        ("digest", held.digest),
        ("people seen", f"{counts.seen:,}"),
        ("accepted", f"{counts.accepted:,}"),
        (f"in cells of fewer than {held.min_cell}", f"{counts.too_rare:,}"),
        ("duplicates dropped", f"{counts.duplicates:,}"),
        ("rows served", f"{counts.rows:,}"),
        ("a record is", f"a {held.record} of {held.records.shape[1]} bytes"),
    ):
        click.echo(f"{name:<27}{value}")
    grid = Grid(title="Features")
    grid.add_column("feature", no_wrap=True)
    grid.add_column("kind", no_wrap=True)
    grid.add_column("levels", justify="right")
    grid.add_column("from")
    grid.add_column("to")
    for f in held.schema.features:
        kind = type(f).__name__.lower() + (", shown only" if f.role == "record" else "")
        ends = (f.show(f.value(0)), f.show(f.value(f.steps)))
        grid.add_row(*map(escape, (f.title, kind, str(f.largest + 1), *ends)))
    Console().print(grid)


def _typed(value: str) -> Any:
    """Read a label as a CSV reader would: a whole number, a truth value, or text."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
