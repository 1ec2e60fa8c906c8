"""The institution's commands that others build on: keys, terms, tickets."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..crypto.keys import Issuer, fingerprint, read_public, write_common_key, write_keys, write_server_keys
from ..errors import InvalidKey, OutOfRange, WrongType
from ..institution.database import Database
from ..schemes import defaults
from ..terms.deployment import AUTO, Deployment
from ..terms.parameters import DOWNLOAD, WINDOW
from ..terms.published import deployment_of, make_terms, read_terms, sign_terms, write_terms
from ..terms.tickets import mint, verify
from ..terms.wire import MOST_RECORDS

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=_PATH)
@click.option("--operator", is_flag=True, help="Instead, make the key pair of one server, for whoever operates it.")
@click.option("--common", is_flag=True, help="Instead, make a common key alone, to take the place of the old one.")
def keygen(folder: Path, operator: bool, common: bool) -> None:
    """Make the keys of a deployment in FOLDER: one that all servers share, and the issuer's pair."""
    if common:
        (path,) = write_common_key(folder)
        click.echo(f"{path}: secret, for the servers alone. Stop all servers, give it to each, and start them again.")
        return
    if operator:
        private, public = write_server_keys(folder)
        click.echo(f"{private}: secret, for this server alone; not even the institution needs it.")
        click.echo(f"{public}: public; send it to the institution, and publish its fingerprint where people trust you:")
        click.echo(fingerprint(read_public(public)))
        return
    shared, private, public = write_keys(folder)
    click.echo(f"{shared}: secret, for the servers alone; the same at each. Whoever else holds it can undo every pad.")
    click.echo(f"{private}: secret, for the institution alone; it mints tickets and signs records and terms.")
    click.echo(f"{public}: public; clients can pin it.")


@click.command()
@click.argument("bundle", type=_PATH)
@click.option("--key", type=_PATH, required=True, help="The issuer's private key, which signed the bundle.")
@click.option(
    "--server",
    "servers",
    nargs=2,
    multiple=True,
    required=True,
    type=(str, _PATH),
    metavar="URL KEY",
    help="A server's address and the file of its public key. Repeat for each, in order.",
)
@click.option("-o", "--output", type=_PATH, required=True, help="The terms file to write.")
@click.option(
    "--service",
    required=True,
    help="A name for the service, such as bank.example/loans. Tickets are good for it alone.",
)
@click.option("--open", "is_open", is_flag=True, help="Let everyone ask as often as they like, without tickets.")
@click.option(
    "--window",
    default=WINDOW,
    show_default=True,
    type=click.IntRange(2, 10**9),
    help="Open mode: seconds that a ticket of one's own may last.",
)
@click.option(
    "--scheme",
    default=AUTO,
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
@click.option("--collusion", type=int, help="How many servers may collude; by default as many as they bear.")
@click.option("-k", "--records", default=defaults.K, show_default=True, help="The most records that a question gets.")
@click.option(
    "--max-weight", default=defaults.MAX_WEIGHT, show_default=True, help="The most reluctant that an applicant can be."
)
@click.option("--d-min", default=defaults.D_MIN, show_default=True, help="Masked reveals: the mask is in 0..d_min-1.")
@click.option("--norm", default=defaults.NORM, show_default=True, help="The power of even_norm.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="PART.NAME=VALUE",
    callback=lambda _, __, given: _options(given),
    help="An own parameter of the form, such as form.percent=50. Repeatable.",
)
@click.option(
    "--shuffle/--no-shuffle", default=defaults.SHUFFLE, show_default=True, help="Rows in a new secret order every time."
)
@click.option("--robust", default=0, show_default=True, help="The most wrong answers that a ticket may have corrected.")
@click.pass_context
def terms(
    context: click.Context,
    /,
    bundle: Path,
    key: Path,
    servers: tuple[tuple[str, Path], ...],
    output: Path,
    service: str,
    is_open: bool,
    window: int,
    records: int,
    robust: int,
    **parameters: Any,
) -> None:
    """Write and sign the terms of a deployment of BUNDLE: what is offered, and where each server is to be found.

    Servers, applicants and `ticket issue` read this file. What is not set here may be in the [deployment] of the
    schema. A change of address alone makes no ticket void, and neither does new data.
    """
    issuer, database = Issuer.load(key), Database.open(bundle)
    parameters |= {"k": records, "servers": len(servers)}
    given = {name: value for name, value in parameters.items() if not _is_default(context, name)}
    chosen = parameters | database.schema.choice(given)
    deployment = Deployment.serving(database, robust=robust, **chosen)
    made = make_terms(
        database,
        deployment,
        keys=[read_public(path) for _, path in servers],
        service=service,
        is_open=is_open,
        window=window,
        robust=robust,
    )
    signed = sign_terms(made, [url for url, _ in servers], issuer)
    write_terms(output, signed)
    click.echo(f"{output}: {deployment.says(len(database.codes))}.")
    for number, (url, key_) in enumerate(zip(signed.addresses, made.keys, strict=True), start=1):
        click.echo(f"server {number}: {url}, key {fingerprint(bytes.fromhex(key_))}")
    click.echo(f"digest: {signed.digest.hex()}")


def _options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read own parameters: whole numbers, true, false, or text."""
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
    """Mint the right to ask."""


@ticket.command()
@click.option("--key", type=_PATH, required=True, help="The issuer's private key.")
@click.option("--terms", "terms_file", type=_PATH, required=True, help="The institution's own terms file.")
@click.option("--among", metavar="N,N,…", help="The servers it is for; by default the first that suffice.")
@click.option("--valid", default="7d", show_default=True, metavar="TIME", help="How long: 90s, 15m, 12h, 7d.")
@click.option(
    "-k", "--records", default=defaults.K, show_default=True, type=click.IntRange(1, MOST_RECORDS), help="Records."
)
@click.option("--robust", default=0, show_default=True, type=click.IntRange(0), help="Wrong answers to be corrected.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1), help="How many: one person's batch.")
@click.option("-o", "--output", type=_PATH, help="Write them here, one a line, instead of printing them.")
def issue(
    key: Path,
    terms_file: Path,
    among: str | None,
    valid: str,
    records: int,
    robust: int,
    count: int,
    output: Path | None,
) -> None:
    """Mint one person's batch of tickets, each for one question. Whoever holds one may use it: hand it over like cash.

    Mint all tickets that a person will ever get at once. Who comes back for another tells something of what they were
    told; so nobody gets one because a question failed, or because nothing fitted.
    """
    issuer, expires = Issuer.load(key), int(time.time()) + _seconds(valid)
    made = read_terms(terms_file).terms
    scheme = deployment_of(made).scheme
    servers = _servers(among) if among else list(range(1, scheme.needed(robust) + 1))
    scheme.among(servers, robust)  # refuses what the servers would refuse, and so does the next but one line
    minted = [mint(made, servers, expires=expires, k=records, liars=robust, issuer=issuer) for _ in range(count)]
    verify(minted[0], made, time.time())
    text = "\n".join(each.text() for each in minted)
    if output is None:
        click.echo(text)
        return
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise InvalidKey(str(output), got=error.strerror, expected="a new file") from None
    many = "1 ticket" if count == 1 else f"{count} tickets"
    click.echo(f"{output}: {many} for servers {', '.join(map(str, servers))}, valid for {valid}.")


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
