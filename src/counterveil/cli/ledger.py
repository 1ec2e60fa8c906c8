"""The commands for a server's ledger."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InvalidLedger
from ..service import ledger as ledgers

_PATH = click.Path(path_type=Path)
_LEDGER = click.argument("ledger")


@click.group()
def ledger() -> None:
    """Make or look after a server's ledger of used tickets: a file, or a database at postgresql://…"""


@ledger.command()
@_LEDGER
@click.option(
    "--server", type=click.IntRange(1), required=True, help="The number of the server that the ledger is for: 1, 2, …"
)
def new(ledger: str, server: int) -> None:
    """Make LEDGER before a server starts for the first time. If it had a ledger before, change the common key first."""
    if ledgers.is_address(ledger):
        ledgers.postgres_at(ledger).make(ledger, server)
        click.echo(f"A new ledger for server {server}.")  # the address may have a password in it
    else:
        ledgers.Ledger(ledger, server, new=True).close()
        click.echo(f"{ledger}: a new ledger for server {server}.")


@ledger.command()
@_LEDGER
@click.option("-o", "--output", type=_PATH, required=True, help="Write the backup to this new file.")
def backup(ledger: str, output: Path) -> None:
    """Copy LEDGER, a file, to a new file, even while servers use it."""
    if ledgers.is_address(ledger):
        raise InvalidLedger("backup", got="a PostgreSQL database", expected="a file: PostgreSQL has tools of its own")
    count = ledgers.backup(ledger, output)
    click.echo(
        f"{output}: a backup of {count:,} requests. To restore it, give all servers a new common key first: "
        "the backup refuses the keys that it knows."
    )


@ledger.command()
@_LEDGER
def migrate(ledger: str) -> None:
    """Bring the tables at LEDGER, postgresql://…, to the version of this software. Stop the servers first."""
    before, after = ledgers.postgres_at(ledger).migrate(ledger)
    click.echo(f"Version {after}: " + ("nothing to do." if before == after else f"it was version {before}."))


@ledger.command()
@_LEDGER
def status(ledger: str) -> None:
    """Show what is at LEDGER, postgresql://…; exit with 1 if a server would refuse it."""
    found = ledgers.postgres_at(ledger).status(ledger)
    click.echo(f"server {found.server}, instance {found.instance.hex()}, tables of version {found.version}")
    click.echo(f"{found.entries:,} requests of unexpired tickets, {found.questions:,} questions ever")
    click.echo(f"cluster and timeline: {found.here}")
    for key, place in found.places.items():
        told = "" if place == found.here else ": refused here, until you confirm or change the key"
        click.echo(f"common key {key.hex() or '(none)'}, used at {place}{told}")
    for trouble in found.troubles:
        click.echo(f"refused: {trouble}")
    if found.troubles or any(place != found.here for place in found.places.values()):
        click.get_current_context().exit(1)


@ledger.command()
@_LEDGER
@click.option("--yes", is_flag=True, help="Do not ask.")
def confirm(ledger: str, yes: bool) -> None:
    """Say that the database at LEDGER, postgresql://…, lacks no entry, after a standby was promoted.

    That is so if the standby was synchronous. If it was not, or you do not know: change the common key instead.
    """
    if not yes:
        click.confirm("Was the promoted standby synchronous, and is the old primary stopped for ever?", abort=True)
    place = ledgers.postgres_at(ledger).confirm(ledger)
    click.echo(f"Confirmed: the ledger's servers go on at {place}.")
