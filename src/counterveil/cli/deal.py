"""The command deal: a dealing server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ..crypto.keys import SigningKey
from ..errors import MissingPackage
from ..terms.published import read_terms

_PATH = click.Path(path_type=Path)


@click.command()
@click.option(
    "--terms",
    "terms_files",
    type=_PATH,
    multiple=True,
    required=True,
    help="A terms file, signed by the issuer. Repeat it for all terms that the servers have.",
)
@click.option("--key", type=_PATH, required=True, help="The file of the dealer's own private key.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="URL",
    help="The address of a server's process; once for each process. By default the addresses in the terms.",
)
@click.option(
    "--stock",
    type=click.IntRange(1, 10_000),
    help="How many tapes each two processes have in stock; by default 64 MiB of them, and 2 to 32.",
)
@click.option("--insecure", is_flag=True, help="Allow --link to other machines over plain http.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log entries of this level and above.",
)
def deal(
    terms_files: tuple[Path, ...], key: Path, links: tuple[str, ...], stock: int | None, insecure: bool, log_level: str
) -> None:
    """Deal one-time randomness to the servers of a deployment, ahead of questions.

    The dealer holds no rows and no key of the database. It must not work together with either server.
    """
    try:
        from ..service.dealer import Dealer
        from ..service.outset import log_lines
    except ImportError as error:
        raise MissingPackage("deal", got=f"no {error.name}", expected="counterveil[server]") from None
    dealer = Dealer([*map(read_terms, terms_files)], SigningKey.load(key), links, stock=stock, insecure=insecure)
    log_lines(log_level)
    asyncio.run(dealer.run())
