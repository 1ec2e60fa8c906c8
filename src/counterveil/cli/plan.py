"""The command plan: compute what a deployment of many rows needs, before anything is bought."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import asdict
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from ..research.constants import PLANNED, Constants, measure
from ..research.planning import Line, Machine, Plan
from .output import JSON, SIZE, print_json


class _Count(click.ParamType[int]):
    """A whole number, also as 1e9."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 1 <= number < 1 << 32 or number != int(number):
            self.fail(f"got {value!r}, expected a whole number from 1 to 4294967295, as 1000000 or 1e6", param, ctx)
        return int(number)


@click.command()
@click.option("--rows", type=_Count(), required=True, help="How many rows the database has (M), as 1e9.")
@click.option("--features", type=click.IntRange(1, 10_000), required=True, help="How many features a row has (d).")
@click.option(
    "--questions-per-second", "questions", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True
)
@click.option("--protocol", type=click.Choice(list(PLANNED)), default="joint", show_default=True)
@click.option("--levels", type=click.IntRange(2, 65_535), default=64, show_default=True, help="Levels of each feature.")
@click.option("--record-bytes", "record", type=click.IntRange(1), help="Bytes of a record; by default 8 a feature.")
@click.option("--cores", type=click.IntRange(1), default=16, show_default=True, help="Cores of a machine.")
@click.option("--machine-memory", "memory", type=SIZE, default="64GiB", show_default=True, help="Memory of a machine.")
@click.option("--network", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="Gbit/s.")
@click.option("--round-trip", type=click.FloatRange(0), default=1.0, show_default=True, help="Milliseconds.")
@click.option("--shards", type=click.IntRange(1), help="Processes that share a server's rows; by default all cores.")
@click.option("--measure", "measures", is_flag=True, help="Measure this machine first, which takes about a minute.")
@JSON
def plan(
    rows: int,
    features: int,
    questions: float,
    protocol: str,
    levels: int,
    record: int | None,
    cores: int,
    memory: int,
    network: float,
    round_trip: float,
    shards: int | None,
    measures: bool,
    as_json: bool,
) -> None:
    """Compute memory, machines, bytes and seconds of a deployment, each with its formula.

    docs/performance.md explains the formulas. Without --measure, the constants are those of the machine named there.
    """
    constants = Constants()
    if measures:
        with Console(stderr=True).status("Measuring") as status:
            constants = measure(lambda what: status.update(f"Measuring: {what}"))
    machine = Machine(cores, memory, network * 1e9 / 8, round_trip / 1000)
    made = Plan(rows, features, questions, protocol, levels, record, shards or 0, machine, constants)
    lines = made.lines()
    if as_json:
        found = {line.name: {"value": line.value, "unit": line.unit, "formula": line.formula} for line in lines}
        print_json({"plan": found, "constants": asdict(constants)})
        return
    grid = Grid(title=f"{rows:,} rows, {features} features, {questions:g} questions/s, {protocol}", box=box.SIMPLE_HEAD)
    for heading in ("what", "how much", "formula"):
        grid.add_column(heading, justify="right" if heading == "how much" else "left")
    for line in lines:
        grid.add_row(line.name, shown(line), line.formula)
    Console().print(grid)
    click.echo(
        "M rows, d features, Q questions per second, L bytes of a package, W bytes of one-time randomness a server."
    )
    click.echo("Constants: " + ", ".join(f"{name} {value:.3g}" for name, value in asdict(constants).items()))


def shown(line: Line) -> str:
    """Write the number of a line as people read it."""
    if line.unit in ("", "machines"):
        return f"{line.value:,.0f}"
    if line.unit == "seconds":
        return f"{line.value:,.2f} s" if line.value >= 0.1 else f"{1000 * line.value:,.2f} ms"
    rate = "/s" if line.unit == "bytes per second" else ""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if line.value >= size:
            return f"{line.value / size:,.2f} {unit}{rate}"
    return f"{line.value:,.0f} B{rate}"
