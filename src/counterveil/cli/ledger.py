"""The commands for a server's ledger."""

from __future__ import annotations

from pathlib import Path

import click

from ..service import ledger as ledgers

_PATH = click.Path(path_type=Path)


@click.group()
def ledger() -> None:
    """Make or back up a server's ledger of used tickets."""


@ledger.command()
@click.argument("ledger", type=_PATH)
@click.option(
    "--server", type=click.IntRange(1), required=True, help="The number of the server that the ledger is for: 1, 2, …"
)
def new(ledger: Path, server: int) -> None:
    """Make LEDGER before a server starts for the first time. If it had a ledger before, change the common key first."""
    ledgers.Ledger(ledger, server, new=True).close()
    click.echo(f"{ledger}: a new ledger for server {server}.")


@ledger.command()
@click.argument("ledger", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Write the backup to this new file.")
def backup(ledger: Path, output: Path) -> None:
    """Copy LEDGER to a new file, even while servers use it."""
    count = ledgers.backup(ledger, output)
    click.echo(
        f"{output}: a backup of {count:,} requests. To restore it, give all servers a new common key first: "
        "the backup refuses the keys that it knows."
    )
