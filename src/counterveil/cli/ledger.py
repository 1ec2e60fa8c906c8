"""The commands for whoever looks after a server's ledger."""

from __future__ import annotations

from pathlib import Path

import click

from ..service import ledger as ledgers

_PATH = click.Path(path_type=Path)


@click.group()
def ledger() -> None:
    """Look after the ledger of used tickets."""


@ledger.command()
@click.argument("ledger", type=_PATH)
@click.option("--server", type=click.IntRange(1), required=True, help="Which server it is for: 1, 2, …")
def new(ledger: Path, server: int) -> None:
    """Make LEDGER, once, before a server first starts. If there was one before, rotate the common key first."""
    ledgers.Ledger(ledger, server, new=True).close()
    click.echo(f"{ledger}: a new ledger for server {server}.")


@ledger.command()
@click.argument("ledger", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="The file to write; never over another.")
def backup(ledger: Path, output: Path) -> None:
    """Copy LEDGER, also while servers use it."""
    count = ledgers.backup(ledger, output)
    click.echo(
        f"{output}: a backup of {count:,} requests. To restore it, give all servers a new common key first: "
        "it refuses the ones it knows."
    )
