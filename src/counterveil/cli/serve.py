"""The command serve: one server of a deployment."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..algebra.compiled import cores
from ..errors import CounterveilError, InvalidKey, MissingPackage, WrongType
from ..service import family
from ..service.outset import bind, log_lines
from ..service.supervisor import supervise
from ..terms.addresses import is_exposed
from .defaults import check_by_task, task_defaults
from .settings import LEVELS, settings_file, take_new_log_level

if TYPE_CHECKING:  # a supervisor stays small, and starts fast, because it needs none of these
    import numpy as np

    from ..crypto.keys import SigningKey
    from ..institution.database import Database
    from ..service.epochs import Hosting
    from ..service.starting import Holding
    from ..terms.deployment import Deployment

log = logging.getLogger("counterveil")

_PATH = click.Path(path_type=Path)
_MOST_MEASURED = 20_000  # rows; for more, measuring the leakage would take too long before a server starts


@click.command()
@click.argument("bundle", type=_PATH, required=False)
@click.option(
    "--config", type=_PATH, is_eager=True, expose_value=False, callback=settings_file, help="A TOML file of settings."
)
@click.option("--terms", "terms_file", type=_PATH, help="The terms file of BUNDLE, signed by the issuer.")
@click.option(
    "--epochs",
    type=_PATH,
    help="Instead of BUNDLE and --terms: a folder of NAME.bundle and NAME.terms, all of which are served.",
)
@click.option(
    "--task",
    type=_PATH,
    is_eager=True,
    expose_value=False,
    callback=task_defaults,
    help="A task file, from which all that is not given here is taken: see counterveil provision.",
)
@click.option(
    "--server",
    type=int,
    required=True,
    is_eager=True,
    callback=task_defaults,
    help="The number of this server: 1, 2, …",
)
@click.option("--key", type=_PATH, required=True, help="The file of this server's own private key.")
@click.option(
    "--common-key",
    type=_PATH,
    required=True,
    help="The file of the key that all servers share, or a folder of such files: see counterveil rotate.",
)
@click.option("--ledger", required=True, help="What keeps used tickets: a file, or a database at postgresql://…")
@click.option("--new-ledger", is_flag=True, help="Make the ledger. If there was one, change the common key first.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    help="Run this many processes at one port, under a supervisor that restarts them one by one on SIGHUP.",
)
@click.option(
    "--hung-after",
    metavar="SECONDS",
    default=60,
    show_default=True,
    type=click.IntRange(5, 86_400),
    help="--workers: replace a worker that gives no sign of life for this long.",
)
@click.option(
    "--threads",
    show_default="as many as cores, shared by the workers",
    type=click.IntRange(1, 256),
    help="How many threads scan the rows for one question.",
)
@click.option(
    "--engine",
    "engine_name",
    default="cpu",
    show_default=True,
    type=click.Choice(["cpu", "cuda", "ray"]),
    help="What scans the rows: this machine's processors, its graphics card, or shards in a Ray cluster.",
)
@click.option("--shards", type=click.IntRange(1, 4096), help="--engine ray: into how many parts the rows are cut.")
@click.option("--ray-address", help="--engine ray: the cluster, HOST:PORT; by default one is started on this machine.")
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 16),
    help="--engine ray: how many processes hold each part.",
)
@click.option(
    "--shard-engine",
    default="cpu",
    show_default=True,
    type=click.Choice(["cpu", "cuda"]),
    help="--engine ray: what scans the rows of a shard; with cuda, each shard has a card.",
)
@click.option(
    "--shard-bundle",
    metavar="PLACE",
    help="--engine ray: where shards find the bundle: a file, or an https address; by default BUNDLE.",
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
@click.option(
    "--budget", type=click.FloatRange(0), help="/operator: how many bits may be given away in all, with records."
)
@click.option("--issued", type=click.IntRange(0), help="/operator: how many tickets were issued.")
@click.option(
    "--otel",
    is_flag=True,
    help="Send traces and metrics by OTLP, as the environment says (OTEL_EXPORTER_OTLP_ENDPOINT and others).",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(LEVELS),
    help="Log entries of this level and above.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    bundle: Path | None,
    terms_file: Path | None,
    epochs: Path | None,
    server: int,
    key: Path,
    common_key: Path,
    ledger: str,
    new_ledger: bool,
    workers: int | None,
    hung_after: int,
    threads: int | None,
    engine_name: str,
    shards: int | None,
    ray_address: str | None,
    replicas: int,
    shard_engine: str,
    shard_bundle: str | None,
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
    otel: bool,
    log_level: str,
) -> None:
    """Run one server of a deployment of BUNDLE, by its terms; or of all bundles in a folder.

    A setting is a flag, else COUNTERVEIL_SERVE_… in the environment, else a line in the --config file.
    """
    place = family.Family.joined()
    if workers is not None and place is None:
        if not family.AVAILABLE:
            raise WrongType("--workers", got="a system that is not Unix", expected="one process, without --workers")
        sys.exit(supervise(bind(host, port), workers, f"{host}, port {port}", log_level))
    log_lines(log_level, **({} if place is None else {"worker": os.getpid()}))
    warnings.showwarning = lambda message, *_, **__: log.warning(str(message))  # whoever watches the log must see them
    if hasattr(signal, "SIGHUP"):  # from now on: many rows take long to read, and the signal would end the process
        signal.signal(signal.SIGHUP, lambda *_: take_new_log_level(ctx))
    try:
        from .. import engine
        from ..crypto.keys import SigningKey
        from ..service import app
        from ..service.dashboard import Operator, read_token
        from ..service.ledger import is_address, open_ledger
        from ..service.metrics import Metrics
        from ..service.server import Server
        from ..service.spans import Trace, untraced
        from ..service.starting import admit_keys, are_bound, lay_out_all, read_keys
        from ..service.together import Together
        from ..terms.agreement import age
    except ImportError as error:
        raise MissingPackage("serve", got=f"no {error.name}", expected="counterveil[server]") from None
    if otel:
        try:
            from ..service.telemetry import Telemetry
        except ImportError as error:
            raise MissingPackage("--otel", got=f"no {error.name}", expected="counterveil[otel]") from None
    if (tls_cert is None) != (tls_key is None):
        raise WrongType("TLS", got="only one of --tls-cert and --tls-key", expected="both")
    if tls_cert and tls_key:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidKey(f"{tls_cert}, {tls_key}", got=str(error), expected="a chain and its key in PEM") from None
    own = SigningKey.load(key)
    hosting = _hosting(engine_name, shards, ray_address, replicas, shard_engine, shard_bundle, own.public)
    if hosting.place and epochs is not None:
        raise WrongType("--shard-bundle", got="it with --epochs", expected="it with BUNDLE, or no such setting")
    if hosting.shards and workers and not ray_address:
        raise WrongType("--workers", got="no --ray-address", expected="a cluster that all workers share")
    keys = read_keys(common_key, time.time())
    held = _holdings(bundle, terms_file, epochs, server, own, whole=not hosting.shards)
    check_by_task(ctx, [holding.issued for holding in held])
    token = read_token(operator_token) if operator_token else ""
    keep = family.made if place is None else place.keep
    each = threads or max(1, cores() // (workers or 1))
    lay_out = partial(lay_out_all, held, threads=each, worthwhile=engine.LASTING, keep=keep, hosting=hosting)
    new_ledger = new_ledger and (place is None or place.place.first)
    # An address that is in use, or damage that a shard finds, must not leave a new ledger behind.
    bound = bind(host, port) if place is None else place.sockets
    laid = lay_out() if new_ledger else []
    book = open_ledger(ledger, server, owner=own.public, new=new_ledger, bound=are_bound(keys, server))
    try:
        admitted = admit_keys(keys, server, book)
    except CounterveilError:
        book.close()
        if new_ledger and not is_address(ledger):
            Path(ledger).unlink()  # it was made just now, and nothing uses it
        raise
    at_the_end = ctx.call_on_close  # also after an error
    at_the_end(book.close)
    laid = laid or lay_out()
    running = Server(server, [epoch for _, epoch in laid], keys=admitted, own=own, ledger=book)
    if place is not None:
        running.offers.agreed = lambda: place.offered
    operator = None
    if operator_token:
        newest = max((each for each, _ in laid), key=lambda each: age(each.issued))
        name = f"{newest.issued.digest.hex()}/bits"
        bits = float(keep(name, lambda: _bits(newest.database, newest.deployment)))
        operator = Operator(running, token, bits=bits, budget=budget, issued=issued, family=place)
    together = None
    if running.offers.is_linked:
        together = Together(running, own, links, insecure=insecure, folder=None if place is None else place.folder)
        if operator is not None:
            operator.link(together)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again; this ends in `at_the_end`
    metrics = Metrics(running, together, place)
    trace: Trace = untraced
    if otel:
        name = "" if place is None else f"{place.place.began:.6f}-{place.place.seat}"
        telemetry = Telemetry(server, metrics.own, name)
        at_the_end(telemetry.close)
        trace = telemetry.trace

    def ready() -> None:
        if place is not None:
            names = [offer.name for offer in running.offers.all]
            place.ready(workers or place.place.workers, log_level, f"{host}, port {port}", names, hung_after)

    app.serve(
        app.make_app(
            running, origins=cors, operator=operator, together=together, family=place, metrics=metrics, trace=trace
        ),
        running.about(),
        bound,
        host=host,
        tls_cert=tls_cert,
        tls_key=tls_key,
        family=place,
        ready=ready,
    )


def _hosting(
    name: str, shards: int | None, address: str | None, replicas: int, of_shards: str, place: str | None, owner: bytes
) -> Hosting:
    """Check what the settings say of where rows are held."""
    from ..service.epochs import Hosting

    if name == "ray" and not shards:
        raise WrongType("--engine ray", got="no --shards", expected="into how many parts the rows are cut")
    if name != "ray" and (shards or address or place or replicas > 1 or of_shards != "cpu"):
        got = "--shards, --replicas, --ray-address, --shard-engine or --shard-bundle"
        raise WrongType(f"--engine {name}", got=got, expected="these with --engine ray only")
    if place and is_exposed(place):
        raise WrongType("--shard-bundle", got="plain http to another machine", expected="https: rows are secret")
    return Hosting(of_shards if name == "ray" else name, shards or 0, replicas, address, place or "", owner)


def _holdings(
    bundle: Path | None, terms: Path | None, epochs: Path | None, server: int, own: SigningKey, *, whole: bool
) -> list[Holding]:
    """Read what the server holds, one bundle and its terms or a folder of them: whole, unless shards check it."""
    from ..service.pins import pinned_by
    from ..service.starting import read_holding, read_holdings

    if epochs is not None and bundle is None and terms is None:
        held = read_holdings(epochs, server, own, time.time(), whole=whole)
        pinned_by([each.issued for each in held])  # another key is another server, whose ledger knows no used ticket
        return held
    if epochs is not None or bundle is None or terms is None:
        raise WrongType("what to serve", got="something else", expected="BUNDLE and --terms, or --epochs FOLDER")
    return [read_holding(bundle, terms, server, own, whole=whole)]


def _bits(database: Database, deployment: Deployment) -> np.float64:
    """Return the bits that one question gives away, as `counterveil leakage` does; for many rows, an upper bound."""
    import numpy as np

    from ..research.leakage import clear_costs, estimate, populations, simulation, some_people

    reveal, count = deployment.scheme.reveal, len(database.codes)
    if count > _MOST_MEASURED:
        return np.float64(reveal.capacity(deployment.scheme.field, count))
    database.check()  # where shards hold the rows, this process has read none of them
    generator = simulation(1)
    own = some_people(deployment, database.codes, 5, generator)
    cases = populations(clear_costs(deployment, database.codes, each) for each in own)
    return np.float64(estimate(reveal, cases, count, samples=10, generator=generator).bits)
