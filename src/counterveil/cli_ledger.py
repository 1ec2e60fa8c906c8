"""The commands for whoever looks after a server's ledger."""

from __future__ import annotations

from pathlib import Path

import click

from . import ledger as ledgers

_PATH = click.Path(path_type=Path)


@click.group()
def ledger() -> None:
    """Look after the ledger of used tickets."""


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
