"""The institution's commands for data: schemas and bundles."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from msgspec import to_builtins
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..algebra.compiled import cores
from ..crypto.keys import Issuer, fingerprint
from ..errors import EmptyDatabase, NotOffered, Suspicious, WrongType
from ..institution import streaming
from ..institution.bundle import tallies
from ..institution.database import Database
from ..institution.regions import Thresholded, file_classes, load_model
from ..institution.verdicts import accepted_rows
from ..schema.frames import Columns, as_label
from ..schema.inference import crowded
from ..schema.layouts import RecordKind, layout
from ..schema.parquet import parquet_files, sampled, stretches
from ..schema.schema import Schema
from ..terms.deployment import Deployment
from .output import FORCE, JSON, SIZE, check_new, counted, print_json, rows_of
from .sharing import ENGINE, RAY_ADDRESS, check_engine, shared

_PATH = click.Path(path_type=Path)
_TOGETHER = 100_000  # rows from which on several processes sign sooner than one, though they must start first
_SAMPLE = 500_000  # rows of a folder from which a schema is guessed


@click.group()
def schema() -> None:
    """Make and check schema files."""


@schema.command()
@click.argument("frame", type=_PATH)
@click.option("-o", "--output", type=_PATH, help="Write the schema to this file instead of printing it.")
@FORCE
@click.option("--exclude", multiple=True, metavar="COLUMN", help="Leave a column out, such as the verdict. Repeatable.")
@click.option(
    "--include", multiple=True, metavar="COLUMN", help="Take a column that looks like an id or free text. Repeatable."
)
@click.option(
    "--quantiles",
    multiple=True,
    metavar="COLUMN",
    help="Choose the levels of this column so that each holds about as many rows, despite outliers. Repeatable.",
)
@click.option(
    "--levels", default=100, type=click.IntRange(1, 65_534), help="About how many levels a number has at most."
)
@click.option(
    "--exact-ranges", is_flag=True, help="Do not round ranges outwards; the schema then shows the data's extremes."
)
def infer(
    frame: Path, output: Path | None, force: bool, levels: int, exact_ranges: bool, **columns: tuple[str, ...]
) -> None:
    """Guess a schema from FRAME, a CSV or Parquet file or a folder of Parquet files.

    Check it before you use it, because it is public. Of a folder, at most 500,000 rows are read, from all over it.
    """
    check_new(output, force)
    read = sampled(frame, _SAMPLE) if frame.is_dir() else frame
    guessed = Schema.infer(read, **columns, most_levels=levels, round_outwards=not exact_ranges)
    if output is None:
        click.echo(guessed.to_toml(), nl=False)
        return
    guessed.save(output)
    features = counted(len(guessed.features), "feature")
    click.echo(f"{output}: {features}. Check it before you build, because it is public.")


@schema.command()
@click.argument("file", type=_PATH)
def check(file: Path) -> None:
    """Check the schema in FILE: say what is wrong with it, or what it means."""
    read = Schema.load(file)
    costed = sum(f.role == "feature" for f in read.features)
    click.echo(f"{file}: {counted(len(read.features), 'feature')}, {costed:,} of them in the cost. It is public.")
    Console().print(_described(read))


def _described(described: Schema) -> Grid:
    """Return a table of a schema's features."""
    grid = Grid(title="Features", box=box.SIMPLE_HEAD)
    grid.add_column("feature", no_wrap=True)
    grid.add_column("kind", no_wrap=True)
    grid.add_column("levels", justify="right")
    grid.add_column("from, to")
    grid.add_column("change", no_wrap=True)
    for f in described.features:
        kind = type(f).__name__.lower() + (", shown only" if f.role == "record" else "")
        ends = f"{f.show(f.value(0))},\n{f.show(f.value(f.steps))}"
        change = f.change + (f" ×{f.effort}" if f.effort > 1 else "")
        grid.add_row(*map(escape, (f.title, kind, str(f.largest + 1), ends, change)))
    return grid


@click.command()
@click.argument("frame", type=_PATH)
@click.option("--schema", "schema_file", type=_PATH, required=True, help="The schema file.")
@click.option(
    "--accepted",
    metavar="COLUMN[=VALUE]",
    help="The column of verdicts, and the value that means accepted. With --model: the class that means accepted, by "
    "default 1 of 0 and 1; or a column and a value, and the class is the one that agrees with them.",
)
@click.option(
    "--model",
    "model_file",
    type=_PATH,
    help="The model that decides, instead of a column: XGBoost's .json or .ubj, LightGBM's .txt, or .onnx.",
)
@click.option("--threshold", type=float, help="Accept whose score by --model is above this, instead of the usual.")
@click.option("-o", "--output", type=_PATH, required=True, help="The bundle to write.")
@FORCE
@JSON
@click.option(
    "--record",
    type=click.Choice(get_args(RecordKind)),
    default="row",
    show_default=True,
    help="What a record holds: a row, its levels alone, or a region in which the model accepts everybody.",
)
@click.option("--regions", type=click.IntRange(1), help="Keep only this many regions, those that help people the most.")
@click.option(
    "--min-people", default=1, show_default=True, help="Keep only regions that hold at least this many accepted people."
)
@click.option(
    "--points",
    default=0,
    show_default=True,
    help="If the model cannot be certified, try this many points in each region, which is then not called certified.",
)
@click.option("--epsilon", type=float, help="Find regions with differential privacy for every person of FRAME.")
@click.option("--delta", default=0.0, show_default=True, help="Of differential privacy; above 0, it takes less noise.")
@click.option(
    "--min-cell", default=1, show_default=True, help="Keep only cells that at least this many people share; needs cell."
)
@click.option("--report", is_flag=True, help="Also say what regions ask of rejected people, beside the nearest rows.")
@click.option("--clamp", is_flag=True, help="Move values beyond the schema's range to its ends.")
@click.option("--key", type=_PATH, help="Sign every record with this private key of the issuer; servers need that.")
@click.option(
    "--memory",
    type=SIZE,
    metavar="SIZE",
    help="Read Parquet a stretch at a time, and hold no more than this in memory; of a folder by default 4GiB. With "
    "--engine ray: in all machines together; by default 4GiB in each.",
)
@click.option(
    "--processes", type=click.IntRange(1), help="How many processes share the work; by default one for each core."
)
@ENGINE
@RAY_ADDRESS
def build(
    frame: Path,
    schema_file: Path,
    accepted: str | None,
    model_file: Path | None,
    threshold: float | None,
    output: Path,
    force: bool,
    as_json: bool,
    record: Any,
    regions: int | None,
    min_people: int,
    points: int,
    epsilon: float | None,
    delta: float,
    min_cell: int,
    report: bool,
    clamp: bool,
    key: Path | None,
    memory: int | None,
    processes: int | None,
    engine: str,
    ray_address: str | None,
) -> None:
    """Build a bundle from the accepted rows of FRAME, or from regions of a model.

    FRAME is a CSV or Parquet file, or a folder of Parquet files. Files in a folder may hold more than memory does.
    """
    check_new(output, force)
    progress = Console().is_terminal and not as_json
    issuer = Issuer.load(key) if key else None
    schema = Schema.load(schema_file)
    streams = frame.is_dir() or memory is not None
    if streams and record == "region":
        expected = "rows or cells; regions need all people in memory: give one file, and no --memory"
        raise NotOffered("--record", got="regions of a folder, or with --memory", expected=expected)
    check_engine(engine, streams, processes, ray_address)
    model, label, which = _decides(frame, schema, model_file, threshold, accepted, epsilon is not None)
    if streams:
        with rows_of(frame):
            built = streaming.build(
                frame,
                schema,
                model,
                label,
                output=output,
                issuer=issuer,
                record=record,
                min_cell=min_cell,
                clamp=clamp,
                progress=progress,
                **shared(engine, ray_address, memory, processes),
            )
    else:
        with rows_of(frame):
            built = Database.build(
                frame,
                schema,
                model,
                label,
                record=record,
                min_cell=min_cell,
                min_people=min_people,
                most_regions=regions,
                points=points,
                epsilon=epsilon,
                delta=delta,
                clamp=clamp,
                progress=progress,
            )
        if issuer:
            alone = processes is None and built.rows < _TOGETHER
            built = built.sign(issuer, processes=1 if alone else processes or cores(), progress=progress)
        built.save(output)
    if as_json:
        print_json({"bundle": str(output)} | _contents(built))
        return
    private = built.certificate.privacy() if built.certificate else ""
    served = counted(built.counts.rows, "region" if built.certificate else "row")
    people = counted(built.counts.accepted, "accepted person", "accepted people")
    whose = "" if private else f", from {people} of {built.counts.seen:,}" if built.certificate else f" of {people}"
    click.echo(f"{output}: {served}{whose}.")
    if which:
        click.echo(which)
    if built.certificate:
        click.echo(f"Applicants are told: {built.certificate.text()}")
    if private:
        click.echo(f"The terms will state: {private} Another build of these people adds its epsilon to this one.")
    if report and built.certificate:
        with Console(stderr=True).status("Comparing regions with rows for people who were held out"):
            chosen: dict[str, Any] = {"min_people": min_people, "most": regions, "points": points}
            chosen |= {"epsilon": epsilon, "delta": delta} if private else {}
            made = Database.report(frame, built.schema, model, label, **chosen)
        click.echo(f"What they ask, {made.text()}")
        if private:
            click.echo("This report is about the people themselves, without noise: do not publish it.")


def _decides(
    frame: Path, schema: Schema, model_file: Path | None, threshold: float | None, accepted: str | None, private: bool
) -> tuple[Any, Any, str]:
    """Return the model that decides, or none; the label or column that means accepted; and what to say of it."""
    if model_file is None:
        if threshold is not None:
            raise WrongType("--threshold", got="no --model", expected="the model whose score is compared")
        if accepted is None:
            raise WrongType("--accepted", got="no column and no --model", expected="one of them")
        return None, as_label(accepted), ""
    model: Any = load_model(model_file)
    classes, label = file_classes(model), None
    which = "Class 1 of the model counts as accepted. If that is class 0, build again with --accepted 0."
    named = f"{classes[1]} or {classes[0]}, a class of --model"
    if accepted is None and classes != (0, 1):
        expected = f"{named}; or a column and a value, such as verdict=good"
        raise WrongType("--accepted", got="none, and no class of the model is called 1", expected=expected)
    if accepted is not None and accepted in map(str, classes):
        label, which = next(each for each in classes if str(each) == accepted), ""
    elif accepted is not None:
        if private:
            expected = f"{named}: with --epsilon, people are not compared with it"
            raise WrongType("--accepted", got=repr(accepted), expected=expected)
        label, share = _class(_tables(frame), schema, model, accepted)
        which = f"Class {label} of the model counts as accepted: it agrees with {accepted} for {share:.0%} of people."
    return (model, label, which) if threshold is None else (Thresholded(model, threshold, label), None, which)


def _class(tables: Iterable[Columns], schema: Schema, model: Any, accepted: str) -> tuple[Any, float]:
    """Return the class of a model that agrees with a column of verdicts for more people, and their share."""
    label, people, named, agreed = as_label(accepted), 0, 0, 0
    classes = file_classes(model)
    for table in tables:
        said = accepted_rows(table, schema, None, label, anybody=False)
        agreed += int(np.sum(said == accepted_rows(table, schema, model, classes[1], anybody=False)))
        people, named = people + table.count, named + int(said.sum())
    if isinstance(label, tuple) and not named:
        raise EmptyDatabase(f"column {label[0]!r}", got=f"no row with {label[1]!r}", expected="at least one")
    share = agreed / people
    return classes[int(share >= 0.5)], max(share, 1 - share)


def _tables(frame: Path) -> Iterable[Columns]:
    """Return the rows of a file at once, those of a folder some at a time."""
    if not frame.is_dir():
        return [Columns(frame)]
    return (stretch.read(None) for stretch in stretches(parquet_files(frame), 1 << 17))


def _contents(database: Database) -> dict[str, Any]:
    """Return what a bundle holds, ready for JSON."""
    counts, certificate = database.counts, database.certificate
    private = certificate is not None and certificate.privacy() != ""
    return {
        "digest": database.digest, "people_seen": None if private else counts.seen,
        "accepted": None if private else counts.accepted,
        "min_people": database.min_cell, "too_rare": counts.too_rare, "duplicates": counts.duplicates,
        "rows": counts.rows, "parts": database.parts, "record": database.record,
        "record_bytes": layout(database.schema, database.record).itemsize,
        "signed_by": database.signer.hex() or None,
        "fingerprint": fingerprint(database.signer) if database.signer else None,
        "certificate": None if certificate is None else to_builtins(certificate) | {"text": certificate.text()},
    }  # fmt: skip


def _left_out(database: Database) -> str:
    """Say what a bundle does without because too few people are there."""
    few = "no accepted person" if database.min_cell == 1 else f"fewer than {database.min_cell:,} accepted people"
    if database.certificate:
        return f"{counted(database.counts.too_rare, 'region')} with {few}"
    return f"{counted(database.counts.too_rare, 'person', 'people')} in cells of fewer than {database.min_cell:,}"


@click.command()
@click.argument("bundle", type=_PATH)
@click.option("--verify", is_flag=True, help="Also read every part of a bundle in parts, and name those that are bad.")
@JSON
def inspect(bundle: Path, verify: bool, as_json: bool) -> None:
    """Check BUNDLE and show what it holds.

    Of a bundle in parts, which has more than a million rows, the manifest and the first part are checked.
    """
    database = Database.open(bundle, whole=False)
    database.check(None if verify else [0], threads=cores(), progress=Console().is_terminal and not as_json)
    if as_json:
        measure, schema_ = Deployment.serving(database, linked=True).measure(), database.schema.to_builtins()
        print_json(_contents(database) | {"costs": measure, "schema": schema_})
        return
    counts, certificate = database.counts, database.certificate
    what, private = "regions" if certificate else "rows", certificate.privacy() if certificate else ""
    for name, value in (
        ("digest", database.digest),
        ("people seen", f"{counts.seen:,}" if not private else "not told"),
        ("accepted", f"{counts.accepted:,}" if not private else "not told"),
        *([("left out", _left_out(database))] if counts.too_rare else []),
        ("inside other regions" if certificate else "duplicates dropped", f"{counts.duplicates:,}"),
        (f"{what} served", f"{counts.rows:,}"),
        ("in parts", f"{database.parts:,}, {'all' if verify or database.parts == 1 else 'the first'} checked"),
        ("a record is", f"a {database.record} of {layout(database.schema, database.record).itemsize} bytes"),
        ("signed by", f"the key {fingerprint(database.signer)}" if database.signer else "nobody: not for servers"),
        ("costs, by default", Deployment.serving(database, linked=True).measure()),
        *([("the model", certificate.model), ("which means", certificate.text())] if certificate else []),
        *([("the institution states", private)] if private else []),
    ):
        click.echo(f"{name:<27}{value}")
    Console().print(_described(database.schema))
    whole = verify or database.parts == 1  # a part is no sample: rows stand in the order of their codes
    features = () if certificate or not whole else database.schema.features
    for f, people in zip(features, tallies(database.codes, [f.largest + 1 for f in features]), strict=True):
        notice = crowded(f, people)
        if notice:
            warnings.warn(notice, Suspicious, stacklevel=1)
