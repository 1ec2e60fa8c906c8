"""The institution's commands: schemas, bundles, and the server itself."""

from __future__ import annotations

import signal
import ssl
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any, get_args

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from .. import engine
from ..algebra.compiled import cores
from ..crypto.keys import Issuer, SigningKey, bind_common, read_common
from ..crypto.randomness import key_id
from ..errors import InvalidKey, MissingPackage, Suspicious, UnknownName, WrongType
from ..institution.database import Database
from ..institution.regions import Thresholded, load_model
from ..research.leakage import clear_costs, estimate, populations, simulation, some_people
from ..schema.frames import as_label
from ..schema.inference import crowded
from ..schema.layouts import RecordKind
from ..schema.schema import Schema
from ..service.dashboard import Operator, read_token
from ..service.epochs import check_holdings
from ..service.ledger import Ledger
from ..service.server import Server
from ..terms.deployment import Deployment
from ..terms.published import read_terms

_PATH = click.Path(path_type=Path)
_MOST_MEASURED = 20_000  # rows; for more, measuring the leakage would take too long before a server starts


@click.group()
def schema() -> None:
    """Make and check schema files."""


@schema.command()
@click.argument("frame", type=_PATH)
@click.option("-o", "--output", type=_PATH, help="Write the schema to this file instead of printing it.")
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
def infer(frame: Path, output: Path | None, levels: int, exact_ranges: bool, **columns: tuple[str, ...]) -> None:
    """Guess a schema from FRAME, a CSV or Parquet file. Check it before you use it, because it is public."""
    guessed = Schema.infer(frame, **columns, most_levels=levels, round_outwards=not exact_ranges)
    if output is None:
        click.echo(guessed.to_toml(), nl=False)
        return
    guessed.save(output)
    click.echo(f"{output}: {len(guessed.features)} features. Check it before you build, because it is public.")


@schema.command()
@click.argument("file", type=_PATH)
def check(file: Path) -> None:
    """Check the schema in FILE: say what is wrong with it, or what it means."""
    read = Schema.load(file)
    counted = [f for f in read.features if f.role == "feature"]
    click.echo(f"{file}: {len(read.features)} features, {len(counted)} of them in the cost. It is public.")
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
    help="The column of verdicts, and the value that means accepted; or with --model the class, 1 or 0.",
)
@click.option(
    "--model",
    "model_file",
    type=_PATH,
    help="The model that decides, instead of a column: XGBoost's .json or .ubj, LightGBM's .txt, or .onnx.",
)
@click.option("--threshold", type=float, help="Accept whose score by --model is above this, instead of the usual.")
@click.option("-o", "--output", type=_PATH, required=True, help="The bundle to write.")
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
@click.option(
    "--min-cell", default=1, show_default=True, help="Keep only cells that at least this many people share; needs cell."
)
@click.option("--report", is_flag=True, help="Also say what regions ask of rejected people, beside the nearest rows.")
@click.option("--clamp", is_flag=True, help="Move values beyond the schema's range to its ends.")
@click.option("--key", type=_PATH, help="Sign every record with this private key of the issuer; servers need that.")
def build(
    frame: Path,
    schema_file: Path,
    accepted: str | None,
    model_file: Path | None,
    threshold: float | None,
    output: Path,
    record: Any,
    regions: int | None,
    min_people: int,
    points: int,
    min_cell: int,
    report: bool,
    clamp: bool,
    key: Path | None,
) -> None:
    """Build a bundle from the accepted rows of FRAME, a CSV or Parquet file, or from regions of a model."""
    issuer = Issuer.load(key) if key else None
    model, label = _decides(model_file, threshold, accepted)
    built = Database.build(
        frame,
        Schema.load(schema_file),
        model,
        label,
        record=record,
        min_cell=min_cell,
        min_people=min_people,
        most_regions=regions,
        points=points,
        clamp=clamp,
        progress=Console().is_terminal,
    )
    if issuer:
        built = built.sign(issuer, progress=Console().is_terminal)
    built.save(output)
    rows = "regions, from" if built.certificate else "rows of"
    click.echo(f"{output}: {built.counts.rows:,} {rows} {built.counts.accepted:,} accepted people.")
    if built.certificate:
        click.echo(f"Applicants are told: {built.certificate.text()}")
    if report and built.certificate:
        with Console(stderr=True).status("Comparing regions with rows for people who were held out"):
            chosen = {"min_people": min_people, "most": regions, "points": points}
            made = Database.report(frame, built.schema, model, label, **chosen)
        click.echo(f"What they ask, {made.text()}")


def _decides(model_file: Path | None, threshold: float | None, accepted: str | None) -> tuple[Any, Any]:
    """Return the model that decides, or none, and the label or column that means accepted."""
    if model_file is None:
        if threshold is not None:
            raise WrongType("--threshold", got="no --model", expected="the model whose score is compared")
        if accepted is None:
            raise WrongType("--accepted", got="no column and no --model", expected="one of them")
        return None, as_label(accepted)
    if accepted not in (None, "0", "1"):
        raise WrongType("--accepted", got=repr(accepted), expected="1 or 0, a class of --model")
    model, label = load_model(model_file), None if accepted is None else int(accepted)
    return (model, label) if threshold is None else (Thresholded(model, threshold, label), None)


@click.command()
@click.argument("bundle", type=_PATH)
def inspect(bundle: Path) -> None:
    """Check BUNDLE and show what it holds."""
    database = Database.open(bundle)
    counts, certificate = database.counts, database.certificate
    what = "regions" if certificate else "rows"
    for name, value in (
        ("digest", database.digest),
        ("people seen", f"{counts.seen:,}"),
        ("accepted", f"{counts.accepted:,}"),
        (f"{'regions' if certificate else 'in cells'} of fewer than {database.min_cell}", f"{counts.too_rare:,}"),
        ("inside other regions" if certificate else "duplicates dropped", f"{counts.duplicates:,}"),
        (f"{what} served", f"{counts.rows:,}"),
        ("a record is", f"a {database.record} of {database.records.shape[1]} bytes"),
        ("signed by", database.signer.hex() or "nobody: not for servers"),
        ("costs, by default", Deployment.serving(database).measure()),
        *([("the model", certificate.model), ("which means", certificate.text())] if certificate else []),
    ):
        click.echo(f"{name:<27}{value}")
    Console().print(_described(database.schema))
    for j, f in enumerate(() if certificate else database.schema.features):
        notice = crowded(f, database.codes[:, j])
        if notice:
            warnings.warn(notice, Suspicious, stacklevel=1)


def _settings(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Read settings from a TOML file; flags and the environment override it."""
    if path is None:
        return
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WrongType(str(path), got=error.strerror, expected="a file of settings") from None
    except ValueError as error:
        raise WrongType(str(path), got=str(error), expected="TOML") from None
    known = {option.opts[-1].lstrip("-"): option for option in ctx.command.params if isinstance(option, click.Option)}
    del known["config"]
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownName(str(path), got=name, expected=f"one of {', '.join(sorted(known))}")
        option = known[name]
        parts = value if option.multiple and isinstance(value, list) else [value]
        if option.multiple != isinstance(value, list) or not all(isinstance(v, str | int | float) for v in parts):
            expected = "a list of texts" if option.multiple else "one value"
            raise WrongType(f"{path}, {name}", got=repr(value), expected=expected)
        settings[str(option.name)] = value
    ctx.default_map = settings


@click.command()
@click.argument("bundle", type=_PATH)
@click.option(
    "--config", type=_PATH, is_eager=True, expose_value=False, callback=_settings, help="A TOML file of settings."
)
@click.option("--terms", "terms_file", type=_PATH, required=True, help="The terms file, signed by the issuer.")
@click.option("--server", type=int, required=True, help="The number of this server: 1, 2, …")
@click.option("--key", type=_PATH, required=True, help="The file of this server's own private key.")
@click.option("--common-key", type=_PATH, required=True, help="The file of the key that all servers share.")
@click.option("--ledger", type=_PATH, required=True, help="The file that keeps used tickets.")
@click.option("--new-ledger", is_flag=True, help="Make the ledger. If there was one, change the common key first.")
@click.option(
    "--threads",
    default=cores,
    show_default="as many as cores",
    type=click.IntRange(1, 256),
    help="How many threads scan the rows for one question.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65_535), help="The port to listen at; 0 for any."
)
@click.option("--tls-cert", type=_PATH, help="The PEM file of the certificate chain, for https.")
@click.option("--tls-key", type=_PATH, help="The PEM file of the certificate's private key.")
@click.option(
    "--cors",
    multiple=True,
    default=("*",),
    metavar="ORIGIN",
    help="An origin whose web pages may ask; by default any. Repeatable.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="URL",
    help="Where servers work together: the address of a process of another server; by default those in the terms.",
)
@click.option("--insecure", is_flag=True, help="Allow --link to other machines over plain http.")
@click.option("--operator-token", type=_PATH, help="Enable /operator, for those who have the token in this file.")
@click.option("--budget", type=click.FloatRange(0), help="/operator: how many bits may be given away in all.")
@click.option("--issued", type=click.IntRange(0), help="/operator: how many tickets were issued.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log entries of this level and above.",
)
def serve(
    bundle: Path,
    terms_file: Path,
    server: int,
    key: Path,
    common_key: Path,
    ledger: Path,
    new_ledger: bool,
    threads: int,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    cors: tuple[str, ...],
    links: tuple[str, ...],
    insecure: bool,
    operator_token: Path | None,
    budget: float | None,
    issued: int | None,
    log_level: str,
) -> None:
    """Run one server of a deployment of BUNDLE, by its terms.

    A setting is a flag, else COUNTERVEIL_SERVE_… in the environment, else a line in the --config file.
    """
    try:
        from ..service import app
        from ..service.together import Together
    except ImportError as error:
        raise MissingPackage("serve", got=f"no {error.name}", expected="counterveil[server]") from None
    if (tls_cert is None) != (tls_key is None):
        raise WrongType("TLS", got="only one of --tls-cert and --tls-key", expected="both")
    if tls_cert and tls_key:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidKey(f"{tls_cert}, {tls_key}", got=str(error), expected="a chain and its key in PEM") from None
    terms = read_terms(terms_file)
    database = Database.open(bundle)
    common, own = read_common(common_key), SigningKey.load(key)
    deployment = check_holdings(server, database, terms, own)  # before a ledger is made
    book = Ledger(ledger, server, key_id=key_id(common), owner=own.public, new=new_ledger)
    try:
        bind_common(common_key, server, book.instance)
    except InvalidKey:
        book.close()
        if new_ledger:
            ledger.unlink()  # it was made just now, and nothing uses it
        raise
    running = Server.open(
        server, database, terms, key=common, own=own, ledger=book, threads=threads, worthwhile=engine.LASTING
    )
    operator = None
    if operator_token:
        bits = _bits(database, deployment)
        operator = Operator(running, read_token(operator_token), bits=bits, budget=budget, issued=issued)
    together = None
    if deployment.scheme.protocol.linked:
        together = Together(running, own, links, insecure=insecure)
        if operator is not None:
            operator.link(together)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again; this lets `finally` run
    try:
        app.serve(
            app.make_app(running, origins=cors, operator=operator, together=together),
            running.about(),
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            log_level=log_level,
        )
    finally:
        book.close()


def _bits(database: Database, deployment: Deployment) -> float:
    """Return the bits that one question gives away, as `counterveil leakage` does; for many rows, an upper bound."""
    reveal, count = deployment.scheme.reveal, len(database.codes)
    if count > _MOST_MEASURED:
        return reveal.capacity(deployment.scheme.field, count)
    generator = simulation(1)
    own = some_people(deployment, database.codes, 5, generator)
    cases = populations(clear_costs(deployment, database.codes, each) for each in own)
    return estimate(reveal, cases, count, samples=10, generator=generator).bits
