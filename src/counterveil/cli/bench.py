"""The command bench: time answers, and compare with other software."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..research import bench as speeds
from ..research import plots
from .output import JSON


@click.command()
@JSON
@click.option("--plots", "folder", type=click.Path(path_type=Path), help="Draw figures into this folder.")
@click.option(
    "--rows",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(1_000),
    help="How many rows the database has (M).",
)
@click.option(
    "--features", default=64, show_default=True, type=click.IntRange(1), help="How many features a row has (d)."
)
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="How many threads each program may use."
)
@click.option("--quick", is_flag=True, help="Leave out private peers, whole questions and scaling.")
def bench(as_json: bool, folder: Path | None, rows: int, features: int, threads: int, quick: bool) -> None:
    """Time a server's answer, and compare it with reading memory, search in the clear, and other private software."""
    console = Console(stderr=as_json)
    missing: list[str] = []

    def measured(title: str, work: Any) -> list[Any]:
        with console.status(title):
            found = list(work)
        missing.extend(each for each in found if isinstance(each, str))
        return [each for each in found if not isinstance(each, str)]

    scanned = measured("scans", speeds.scans(rows, features, threads))
    clear = measured("in the clear", speeds.plain_peers(rows, features, threads))
    answered = measured("answers", speeds.answers(rows, features, threads))
    gathered = measured("many questions", speeds.together(rows, features, threads))
    private, asked, scaled, shaped = [], [], [], []
    if not quick:
        shaped = measured("shapes", speeds.shapes(threads))
        private = measured("other ways to be private", speeds.private_peers(16))
        asked = measured("whole questions", speeds.questions(10_000, 20))
        scaled = measured("scaling", speeds.scaling(threads))
    if folder is not None:
        title = f"One question, M = {rows:,}, d = {features}, {threads} thread" + "s" * (threads > 1)
        plots.speed(folder / "speed.png", [*scanned, *clear], scaled, title=title)
    if as_json:
        sections = {"scans": scanned, "clear": clear, "answers": answered, "private": private, "questions": asked}
        sections |= {"together": gathered, "scaling": scaled, "shapes": shaped}
        click.echo(json.dumps({name: [each.to_dict() for each in part] for name, part in sections.items()}))
        return
    title = f"The scan for one question: M = {rows:,}, d = {features}, {threads} thread" + "s" * (threads > 1)
    console.print(_speeds(title, [*scanned, *clear]))
    console.print(_speeds("Many questions", gathered))
    console.print(_speeds("One server's whole answer", answered))
    if not quick:
        console.print(_speeds("A thousand rows, 16 features: ways to be private", private))
        grid = Grid(title="Whole questions: median", box=box.SIMPLE_HEAD)
        for heading in ("", "M", "time", "bytes up", "bytes down"):
            grid.add_column(heading, justify="right" if heading else "left")
        for each in asked:
            sizes = (f"{each.up:,}", f"{each.down:,}") if each.down else ("", "")
            grid.add_row(each.what, f"{each.rows:,}", f"{each.milliseconds:,.1f} ms", *sizes)
        console.print(grid)
        console.print(_speeds("Scaling", scaled))
        console.print(_shapes(shaped))
    for name in missing:
        console.print(f"Not installed, so not timed: {escape(name)}.")
    if folder is not None:
        console.print(f"The figures are in {escape(str(folder))}.")


def _shapes(timed: Sequence[speeds.Timed]) -> Grid:
    grid = Grid(title="Shapes: scans of the same number of bytes", box=box.SIMPLE_HEAD)
    for heading in ("", "time a byte", "of the fastest"):
        grid.add_column(heading, justify="right" if heading else "left")
    each_byte = {each.what: 1e6 * each.milliseconds / each.read for each in timed}
    for what, time in each_byte.items():
        fastest = min(other for name, other in each_byte.items() if name.split(",")[0] == what.split(",")[0])
        grid.add_row(what, f"{time:.3f} ns", f"{time / fastest:.1f} x")
    return grid


def _speeds(title: str, timed: Sequence[speeds.Timed]) -> Grid:
    limits = {each.read: each.milliseconds / each.read for each in timed if not each.trust}
    grid = Grid(title=title, box=box.SIMPLE_HEAD)
    for heading in ("", "time", "a row", "of a streaming read", "whom one must trust"):
        grid.add_column(heading, justify="left" if heading in ("", "whom one must trust") else "right")
    for each in timed:
        share = ""
        if limits and each.read:
            share = f"{min(limits.values()) * each.read / each.milliseconds:.2f}"
        a_row = f"{1e6 * each.milliseconds / each.rows:,.1f} ns"
        grid.add_row(each.what, f"{each.milliseconds:,.2f} ms", a_row, share, each.trust)
    return grid
