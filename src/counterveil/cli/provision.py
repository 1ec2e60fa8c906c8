"""The institution's commands for keys, terms and tickets."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec
from click.core import ParameterSource

from ..applicant.client import AsyncClient
from ..crypto.keys import Issuer, fingerprint, read_public, write_common_key, write_keys, write_server_keys
from ..errors import InvalidKey, WrongType
from ..institution.database import Database
from ..schema.languages import Text
from ..schemes import defaults
from ..terms.deployment import AUTO, Deployment
from ..terms.parameters import DOWNLOAD, WINDOW
from ..terms.published import check_terms, deployment_of, make_terms, read_terms, sign_terms, write_terms
from ..terms.tickets import mint, verify
from ..terms.wire import MOST_RECORDS, Terms
from .defaults import task_defaults
from .output import FORCE, JSON, check_new, counted, print_json
from .times import moment, seconds, shown
from .trust import trust

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=_PATH)
@click.option(
    "--only",
    type=click.Choice(["common", "operator"]),
    help="Make only a common key, in a new FOLDER, to take the place of the old one at every server; or only the key "
    "pair of one server, for which its operator runs this.",
)
@click.option("--operator", is_flag=True, help="The same as --only operator.")
@click.option("--common", is_flag=True, hidden=True, help="The same as --only common.")
def keygen(folder: Path, only: str | None, operator: bool, common: bool) -> None:
    """Make the keys of a deployment in FOLDER: the servers' common key and the issuer's key pair."""
    if (only == "operator" and common) or (operator and (common or only == "common")):
        raise WrongType("--only", got="both", expected="common or operator")
    if common or only == "common":
        (path,) = write_common_key(folder)
        click.echo(f"{path}: secret, for the servers alone. Stop all servers, give it to each, and start them again.")
        return
    if operator or only == "operator":
        private, public = write_server_keys(folder)
        click.echo(f"{private}: secret, for this server alone; not even the institution needs it.")
        click.echo(f"{public}: public; send it to the institution, and publish its fingerprint where people trust you:")
        click.echo(fingerprint(read_public(public)))
        return
    shared, private, public = write_keys(folder)
    click.echo(
        f"{shared}: secret, for the servers alone; the same at each. Anybody else who has it can undo every pad."
    )
    click.echo(f"{private}: secret, for the institution alone; it mints tickets and signs records and terms.")
    click.echo(f"{public}: public; clients can pin it. Its fingerprint, which doctor, verify and inspect show:")
    click.echo(fingerprint(read_public(public)))


@click.command()
@click.argument("bundle", type=_PATH)
@click.option("--key", type=_PATH, required=True, help="The file of the issuer's private key, which signed the bundle.")
@click.option(
    "--server",
    "servers",
    nargs=2,
    multiple=True,
    required=True,
    type=(str, _PATH),
    metavar="URL KEY",
    help="A server's address and the file of its public key. Repeat it for each server, in order of their numbers.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    callback=lambda _, __, given: [_text("--name", each) for each in given],
    help="Who runs a server, for people to read; or a JSON object of names by language. Repeat it for each server, in "
    "the same order, or leave it out for all.",
)
@click.option("-o", "--output", type=_PATH, required=True, help="The terms file to write.")
@FORCE
@click.option(
    "--service",
    required=True,
    help="The name of the service, such as bank.example/loans. A ticket is valid for one service.",
)
@click.option(
    "--begins",
    metavar="TIME",
    help="Of several terms that all servers have, applicants take those that begin last; by default they begin now.",
)
@click.option(
    "--ends",
    metavar="TIME",
    help="When servers stop to offer these terms: a time such as 2027-01-31T12:00Z, or 90d from when they begin; by "
    "default never.",
)
@click.option("--open", "is_open", is_flag=True, help="Let everyone ask as often as they like, without tickets.")
@click.option(
    "--window",
    default=WINDOW,
    show_default=True,
    type=click.IntRange(2, 10**9),
    help="Open mode: the most seconds until a ticket that an applicant makes expires.",
)
@click.option(
    "--scheme",
    default=AUTO,
    show_default=True,
    help="A name of the catalogue, FORM/REVEAL, or auto, which is table/sealed by the protocol that suits the size.",
)
@click.option("--linked", is_flag=True, help="auto: each server runs with --link, so servers can talk to each other.")
@click.option("--protocol", help="How the reveal is computed, if there is a choice: garbled or joint for sealed.")
@click.option("--dealer", help="The protocol joint: who deals one-time randomness, applicant (the default) or server.")
@click.option("--dealer-key", type=_PATH, help="The file of the dealing server's public key, if a server deals.")
@click.option(
    "--download-limit",
    default=DOWNLOAD,
    show_default=True,
    type=click.IntRange(0),
    help="auto: servers need not be linked if the answers to a question have at most this many MiB in all.",
)
@click.option("--collusion", type=int, help="How many servers may collude; by default as many as the scheme allows.")
@click.option(
    "-k", "--records", default=defaults.K, show_default=True, help="The most records that a question may fetch."
)
@click.option("--max-weight", default=defaults.MAX_WEIGHT, show_default=True, help="The greatest weight of a feature.")
@click.option("--d-min", default=defaults.D_MIN, show_default=True, help="Masked reveals: masks are 0 to d_min - 1.")
@click.option("--norm", default=defaults.NORM, show_default=True, help="The form even_norm: its power.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="PART.NAME=VALUE",
    callback=lambda _, __, given: _options(given),
    help="A parameter that only this form of the question has, such as form.percent=50, or only this protocol. "
    "Repeatable.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=defaults.SHUFFLE,
    show_default=True,
    help="Put rows in a new secret order for every question.",
)
@click.option(
    "--robust", default=0, show_default=True, help="The most wrong answers that a ticket may allow to correct."
)
@click.pass_context
def terms(
    context: click.Context,
    /,
    bundle: Path,
    key: Path,
    servers: tuple[tuple[str, Path], ...],
    names: list[Text],
    output: Path,
    force: bool,
    service: str,
    is_open: bool,
    window: int,
    records: int,
    robust: int,
    linked: bool,
    dealer_key: Path | None,
    begins: str | None,
    ends: str | None,
    **parameters: Any,
) -> None:
    """Write and sign the terms of a deployment of BUNDLE: what it offers, and the address of each server.

    Servers, applicants and `ticket issue` read this file. Options that are not given come from the [deployment] of the
    schema, if it has them. Tickets stay valid when addresses or data change.
    """
    check_new(output, force)
    issuer, database = Issuer.load(key), Database.open(bundle, whole=False)
    database.check([0])  # of one in parts, the servers check the others when they start
    parameters |= {"k": records, "servers": len(servers)}
    given = {name: value for name, value in parameters.items() if not _is_default(context, name)}
    chosen = parameters | database.schema.choice(given)
    deployment = Deployment.serving(database, robust=robust, linked=linked, **chosen)
    now = int(time.time())
    first = now if begins is None else moment(begins, now)
    made = make_terms(
        database,
        deployment,
        keys=[read_public(path) for _, path in servers],
        service=service,
        is_open=is_open,
        window=window,
        robust=robust,
        dealer=None if dealer_key is None else read_public(dealer_key),
        begins=first,
        ends=None if ends is None else moment(ends, first),
    )
    signed = sign_terms(made, [url for url, _ in servers], issuer, names)
    write_terms(output, signed)
    click.echo(f"{output}: {deployment.says(len(database.codes))}; {deployment.lasts()}.")
    click.echo(f"costs: {deployment.measure()}")
    if deployment.certificate and deployment.certificate.privacy():
        click.echo(f"the institution states: {deployment.certificate.privacy()}")
    for number, (url, key_) in enumerate(zip(signed.addresses, made.keys, strict=True), start=1):
        who = f"{signed.name(number)}, " if names else ""
        click.echo(f"server {number}: {who}{url}, key {fingerprint(bytes.fromhex(key_))}")
    if made.dealer:
        click.echo(f"dealer: key {fingerprint(bytes.fromhex(made.dealer))}")
    click.echo(f"begins: {shown(made.begins, 'at once')}, ends: {shown(made.ends)}")
    click.echo(f"digest: {signed.digest.hex()}")


def _text(option: str, given: str) -> Text:
    """Read a text, or a JSON object of texts by language."""
    if not given.startswith("{"):
        return given
    try:
        return msgspec.json.decode(given, type=dict[str, str])
    except msgspec.MsgspecError as error:
        expected = 'a name, or names by language: {"en": "…", "de": "…"}'
        raise WrongType(option, got=str(error)[:200], expected=expected) from None


def _options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the values of --option: whole numbers, true, false, or text."""
    made: dict[str, dict[str, Any]] = {}
    for each in given:
        name, _, text = each.partition("=")
        part, dot, own = name.partition(".")
        if not (dot and own and text):
            raise WrongType("--option", got=repr(each), expected="PART.NAME=VALUE, such as form.percent=50")
        number = re.fullmatch(r"-?[0-9]{1,18}", text)
        made.setdefault(part, {})[own] = int(text) if number else {"true": True, "false": False}.get(text, text)
    return made


def _is_default(context: click.Context, name: str) -> bool:
    source = {"k": "records"}.get(name, name)
    return source != "servers" and context.get_parameter_source(source) is ParameterSource.DEFAULT


@click.group()
def ticket() -> None:
    """Mint tickets. Each allows one question."""


@ticket.command()
@click.option(
    "--task",
    type=_PATH,
    is_eager=True,
    expose_value=False,
    callback=task_defaults,
    help="A task file, from which all that is not given here is taken: see counterveil provision.",
)
@click.option("--key", type=_PATH, required=True, help="The file of the issuer's private key.")
@click.option("--terms", "terms_file", type=_PATH, help="The institution's terms file.")
@click.option("--server", metavar="URL", help="Read the terms from this server, instead of from a file.")
@click.option("--ca", type=_PATH, help="--server: trust the certificate authority in this PEM file, not the system's.")
@click.option("--insecure", is_flag=True, help="--server: allow plain http to another machine.")
@click.option(
    "--among",
    metavar="N,N,…",
    help="The servers that the tickets are for; by default the first ones of the terms, by number and not by name.",
)
@click.option(
    "--valid",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="How long the tickets are valid: 90s, 15m, 12h, 7d.",
)
@click.option(
    "-k",
    "--records",
    type=click.IntRange(1, MOST_RECORDS),
    help="How many records each question may fetch; by default 1. Where a server deals, it is what the terms say.",
)
@click.option(
    "--robust", default=0, show_default=True, type=click.IntRange(0), help="How many wrong answers can be corrected."
)
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), help="How many tickets to mint.")
@click.option(
    "-o", "--output", type=_PATH, help="Write the tickets to this file, one a line, instead of printing them."
)
@JSON
def issue(
    key: Path,
    terms_file: Path | None,
    server: str | None,
    ca: Path | None,
    insecure: bool,
    among: str | None,
    valid: str,
    records: int | None,
    robust: int,
    count: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Mint one person's batch of tickets, each for one question. Anybody who has a ticket may use it.

    Mint all tickets that a person will ever get at once. Somebody who comes back for another ticket gives away
    something about the answer. So never give one because a question failed, or because nothing fitted.
    """
    issuer, expires = Issuer.load(key), int(time.time()) + seconds(valid)
    made = _offered(terms_file, server, ca, insecure)
    scheme = deployment_of(made).scheme
    servers = _servers(among) if among else []
    k = records or (made.parameters.k if made.dealer else defaults.K)
    asked = servers or list(range(1, scheme.needed(robust) + 1))
    scheme.among(asked, robust)  # raises for a set of servers that could not answer
    minted = [mint(made, servers, expires=expires, k=k, robust=robust, issuer=issuer) for _ in range(count)]
    verify(minted[0], made, time.time())  # raises for a ticket that the servers would refuse
    text = "\n".join(each.text() for each in minted)
    about = {"servers": servers, "k": k, "robust": robust, "expires": expires, "count": count}
    if output is None:
        if as_json:
            print_json(about | {"tickets": text.split()})
        else:
            click.echo(text)
        return
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise InvalidKey(str(output), got=error.strerror, expected="a new file") from None
    if as_json:
        print_json(about | {"file": str(output)})
        return
    click.echo(f"{output}: {counted(count, 'ticket')} for servers {', '.join(map(str, asked))}, valid for {valid}.")


def _offered(path: Path | None, url: str | None, ca: Path | None, insecure: bool) -> Terms:
    """Return the terms in a file, or those that a server shows; the issuer must have signed either."""
    if (path is None) == (url is None):
        raise WrongType("--terms", got="both it and --server" if url else "nothing", expected="it, or --server")
    if path is not None:
        if ca or insecure:
            raise WrongType("--terms", got="a file, with --ca or --insecure", expected="--server with them")
        return read_terms(path).terms
    client = AsyncClient([str(url)], verify=trust(ca), insecure=insecure)
    return check_terms(anyio.run(client.visit, client.urls[0]).manifest.issued).terms


def _servers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise WrongType("among", got=repr(text), expected="numbers of servers, such as 1,2") from None
