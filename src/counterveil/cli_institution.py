"""The institution's commands: schemas, bundles, keys, tickets, and the server itself."""

from __future__ import annotations

import os
import ssl
import time
import tomllib
from pathlib import Path
from typing import Any

import anyio
import click
import numpy as np
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from . import checks, engine
from .agreement import deployment_of
from .client import AsyncClient
from .database import Database
from .deployment import DOWNLOAD, Deployment
from .errors import InvalidKey, MissingPackage, OutOfRange, UnknownName, WrongType
from .frames import Table, as_label
from .keys import Issuer, read_common, read_public, write_keys
from .leakage import estimate, populations
from .ledger import Ledger
from .machine_code import cores
from .operator import Operator, read_token
from .schema import Schema
from .server import Server, make_terms
from .tickets import mint, verify
from .wire import MOST_RECORDS

_PATH = click.Path(path_type=Path)
_MOST_MEASURED = 20_000  # rows whose leakage is worth the seconds before a server starts


@click.group()
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


@click.command()
@click.argument("frame", type=_PATH)
@click.option("--schema", "schema_file", type=_PATH, required=True, help="The schema file.")
@click.option("--accepted", required=True, metavar="COLUMN[=VALUE]", help="The column that says who was accepted.")
@click.option("-o", "--output", type=_PATH, required=True, help="The bundle to write.")
@click.option("--record", type=click.Choice(["row", "cell"]), default="row", show_default=True, help="What is served.")
@click.option("--min-cell", default=1, show_default=True, help="Serve cells that so many people share; needs cell.")
@click.option("--clamp", is_flag=True, help="Pull values beyond the schema's range to its ends.")
@click.option("--key", type=_PATH, help="Sign every record with the issuer's private key, as servers need it.")
def build(
    frame: Path,
    schema_file: Path,
    accepted: str,
    output: Path,
    record: Any,
    min_cell: int,
    clamp: bool,
    key: Path | None,
) -> None:
    """Build a bundle from the accepted rows of FRAME, a CSV or Parquet file."""
    issuer = Issuer.load(key) if key else None
    built = Database.build(
        frame,
        Schema.load(schema_file),
        accepted=as_label(accepted),
        record=record,
        min_cell=min_cell,
        clamp=clamp,
        progress=Console().is_terminal,
    )
    if issuer:
        built = built.sign(issuer, progress=Console().is_terminal)
    built.save(output)
    click.echo(f"{output}: {built.counts.rows:,} rows of {built.counts.accepted:,} accepted people.")


@click.command()
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
        ("signed by", held.signer.hex() or "nobody: not for servers"),
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


@click.command()
@click.argument("folder", type=_PATH)
def keygen(folder: Path) -> None:
    """Make the keys of a deployment in FOLDER: one that all servers share, and the issuer's pair."""
    common, private, public = write_keys(folder)
    click.echo(f"{common}: secret, for the servers alone; the same at each. Whoever else holds it can undo every pad.")
    click.echo(f"{private}: secret, for the institution alone; it mints tickets and signs records.")
    click.echo(f"{public}: public; servers verify tickets with it.")


@click.group()
def ticket() -> None:
    """Mint the right to ask."""


@ticket.command()
@click.option("--key", type=_PATH, required=True, help="The issuer's private key.")
@click.option("--server", "url", metavar="URL", help="A server of the deployment, to take its terms from.")
@click.option("--digest", metavar="HEX", help="Instead, the digest of its terms.")
@click.option(
    "--among", metavar="N,N,…", help="The servers it is for; with --server, by default the first that suffice."
)
@click.option("--valid", default="7d", show_default=True, metavar="TIME", help="How long: 90s, 15m, 12h, 7d.")
@click.option("-k", "--records", default=1, show_default=True, type=click.IntRange(1, MOST_RECORDS), help="Records.")
@click.option("--robust", default=0, show_default=True, type=click.IntRange(0), help="Wrong answers to be corrected.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), help="How many tickets.")
@click.option("-o", "--output", type=_PATH, help="Write them here, one a line, instead of printing them.")
def issue(
    key: Path,
    url: str | None,
    digest: str | None,
    among: str | None,
    valid: str,
    records: int,
    robust: int,
    count: int,
    output: Path | None,
) -> None:
    """Mint tickets, each for one question. Whoever holds one may use it: hand it over like cash."""
    issuer, expires = Issuer.load(key), int(time.time()) + _seconds(valid)
    servers = _servers(among) if among else None
    if url is not None:
        manifest = anyio.run(AsyncClient([url]).visit, url.rstrip("/")).manifest
        digest = manifest.digest
        scheme = deployment_of(manifest.terms).scheme
        servers = servers or list(range(1, scheme.needed(robust) + 1))
        scheme.among(servers, robust)  # refuses what the servers would refuse, and so does the next line
        trial = mint(bytes.fromhex(digest), servers, expires=expires, k=records, liars=robust, issuer=issuer)
        verify(trial, manifest.terms, bytes.fromhex(digest), time.time())
    if digest is None or servers is None:
        raise WrongType("terms", got="neither --server nor --digest with --among", expected="one of them")
    try:
        terms = bytes.fromhex(digest)
    except ValueError:
        terms = b""
    if len(terms) != 32:
        raise WrongType("digest", got=repr(digest), expected="64 hexadecimal digits")
    minted = [
        mint(terms, servers, expires=expires, k=records, liars=robust, issuer=issuer).text() for _ in range(count)
    ]
    if output is None:
        click.echo("\n".join(minted))
        return
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(minted) + "\n")
    except OSError as error:
        raise InvalidKey(str(output), got=error.strerror, expected="a new file") from None
    click.echo(f"{output}: {count} tickets for servers {', '.join(map(str, servers))}, valid for {valid}.")


def _servers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise WrongType("among", got=repr(text), expected="numbers of servers, such as 1,2") from None


def _seconds(text: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not (number.isascii() and number.isdigit()) or len(number) > 9 or not int(number):
        raise OutOfRange("valid", got=repr(text), expected="a number and s, m, h or d, such as 7d")
    return int(number) * units[unit]


def _settings(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take settings from a TOML file: flags and the environment go before it."""
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
@click.option("--config", type=_PATH, is_eager=True, expose_value=False, callback=_settings, help="Settings, in TOML.")
@click.option("--server", type=int, required=True, help="Which server this is: 1, 2, …")
@click.option("--common-key", type=_PATH, required=True, help="The key that all servers share.")
@click.option("--issuer", type=_PATH, help="The public key of whoever mints tickets.")
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    envvar="COUNTERVEIL_SERVE_OPEN",
    help="Instead, let everyone ask as often as they like.",
)
@click.option(
    "--window",
    default=600,
    show_default=True,
    type=click.IntRange(2, 10**9),
    help="Open mode: seconds that a ticket of one's own may last.",
)
@click.option("--ledger", type=_PATH, required=True, help="Where used tickets are kept.")
@click.option("--new-ledger", is_flag=True, help="Make the ledger. If there was one, rotate the common key first.")
@click.option(
    "--scheme",
    default="auto",
    show_default=True,
    help="A name of the catalogue, form/reveal, or auto: sealed if it fits.",
)
@click.option(
    "--download-limit",
    default=DOWNLOAD,
    show_default=True,
    type=click.IntRange(0),
    help="auto: the most MiB that a question may bring down.",
)
@click.option("--servers", type=int, help="How many servers there are; by default as few as the scheme needs.")
@click.option("--collusion", type=int, help="How many of them may collude; by default as many as they bear.")
@click.option("-k", "--records", default=1, show_default=True, help="The most records that a question gets.")
@click.option("--max-weight", default=10, show_default=True, help="The most reluctant that an applicant can be.")
@click.option("--d-min", default=1, show_default=True, help="Masked reveals: the mask is in 0..d_min-1.")
@click.option("--norm", default=4, show_default=True, help="The power of even_norm.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Rows in a new secret order every time.")
@click.option("--robust", default=0, show_default=True, help="The most wrong answers that a ticket may have corrected.")
@click.option(
    "--threads",
    default=cores,
    show_default="as many as cores",
    type=click.IntRange(1, 256),
    help="Threads that the scan for one question is spread over.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65_535), help="The port to listen at; 0 for any."
)
@click.option("--tls-cert", type=_PATH, help="The certificate chain, in PEM.")
@click.option("--tls-key", type=_PATH, help="The certificate's private key, in PEM.")
@click.option(
    "--cors",
    multiple=True,
    default=("*",),
    metavar="ORIGIN",
    help="Web pages that may ask: by default any. Repeatable.",
)
@click.option("--operator-token", type=_PATH, help="Enable /operator, for whoever has the token in this file.")
@click.option("--budget", type=click.FloatRange(0), help="/operator: bits that may be given away.")
@click.option("--issued", type=click.IntRange(0), help="/operator: how many tickets there are.")
@click.option(
    "--peer", multiple=True, metavar="URL", help="An address of a server, for the page. Repeat for each of them."
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
@click.pass_context
def serve(
    context: click.Context,
    /,
    bundle: Path,
    server: int,
    common_key: Path,
    issuer: Path | None,
    is_open: bool,
    window: int,
    ledger: Path,
    new_ledger: bool,
    records: int,
    robust: int,
    threads: int,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    cors: tuple[str, ...],
    operator_token: Path | None,
    budget: float | None,
    issued: int | None,
    peer: tuple[str, ...],
    log_level: str,
    **parameters: Any,
) -> None:
    """Run one server of a deployment on BUNDLE.

    Every setting is a flag, or COUNTERVEIL_SERVE_… in the environment, or a line in the --config file, in that order;
    what is not set there may be in the [deployment] of the schema.
    """
    try:
        from . import app
    except ImportError as error:
        raise MissingPackage("serve", got=f"no {error.name}", expected="counterveil[server]") from None
    if (issuer is None) != is_open:
        raise WrongType("tickets", got="both or neither of --issuer and --open", expected="one of them")
    if (tls_cert is None) != (tls_key is None):
        raise WrongType("TLS", got="only one of --tls-cert and --tls-key", expected="both")
    if tls_cert and tls_key:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidKey(f"{tls_cert}, {tls_key}", got=str(error), expected="a chain and its key in PEM") from None
    database = Database.open(bundle)
    parameters["k"] = records
    given = {name: value for name, value in parameters.items() if not _is_default(context, name)}
    chosen = parameters | database.schema.choice(given)
    deployment = Deployment.serving(database, robust=robust, **chosen)
    public = read_public(issuer) if issuer else None
    terms = make_terms(database, deployment, issuer=public, window=window, robust=robust)
    key = read_common(common_key)
    checks.integer("server", server, 1, deployment.scheme.servers)
    book = Ledger(ledger, server, new=new_ledger)
    running = Server(server, database, deployment, terms, key=key, ledger=book, threads=threads, least=engine.LASTING)
    operator = None
    if operator_token:
        bits = _bits(database, deployment)
        operator = Operator(running, read_token(operator_token), bits=bits, budget=budget, issued=issued)
    app.serve(
        app.make_app(running, origins=cors, peers=peer, operator=operator),
        running.about(),
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        log_level=log_level,
    )


def _bits(database: Database, deployment: Deployment) -> float:
    """Return what one question gives away: as `counterveil leakage` says, or for many rows all that an answer holds."""
    reveal, count = deployment.scheme.reveal, len(database.codes)
    if count > _MOST_MEASURED:
        return reveal.capacity(deployment.scheme.field, count)
    generator = np.random.default_rng(1)  # noqa: TID251 - a simulation
    own = database.codes[generator.integers(0, count, 5)].astype(np.int64)
    cases = populations(deployment.clear_costs(database.codes, each) for each in own)
    return estimate(reveal, cases, count, samples=10, generator=generator).bits


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source("records" if name == "k" else name) is ParameterSource.DEFAULT
