"""The command verify: check a receipt without asking a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..applicant.receipts import Verified, conditions
from ..applicant.receipts import verify as verified
from ..crypto.keys import fingerprint, read_public
from ..errors import InvalidReceipt, WrongType

UNPINNED = 4  # the exit code if all is right, and nobody said which key it must be


@click.command()
@click.argument("receipt", type=click.Path(path_type=Path))
@click.option(
    "--issuer",
    metavar="KEY",
    help="The institution's public key, or its fingerprint: a file, or hexadecimal digits. Get it from the "
    "institution, not from whoever shows you the receipt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and errors as JSON too.")
def verify(receipt: Path, issuer: str | None, as_json: bool) -> None:
    """Check a receipt: did the institution sign this answer? No server is asked.

    Exit code 0: it did. 2: the receipt is refused. 4: all signatures hold, but you did not say whose key it must be
    (--issuer), so compare the fingerprint.
    """
    try:
        found = verified(receipt, None if issuer is None else _key(issuer))
    except InvalidReceipt as error:
        if not as_json:
            raise
        click.echo(json.dumps({"valid": False, "error": str(error)}, ensure_ascii=False))
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _show(Console(), found)
    if not found.pinned:
        sys.exit(UNPINNED)


def _key(text: str) -> bytes:
    """Read a public key from a file, or a key or fingerprint from hexadecimal digits."""
    if Path(text).exists():
        return read_public(text)
    try:
        pin = bytes.fromhex(text)
    except ValueError:
        pin = b""
    if len(pin) not in (16, 32):
        raise WrongType("--issuer", got=repr(text), expected="a key file, or the digits of a key or fingerprint")
    return pin


def _show(console: Console, found: Verified) -> None:
    receipt, terms = found.receipt, found.receipt.terms.terms
    regions = terms.record == "region"
    for n, (answer, record) in enumerate(zip(receipt.answers, found.records, strict=True), start=1):
        place = f", answer {n} of {len(receipt.answers)}" if len(receipt.answers) > 1 else ""
        console.print(("A signed region" if regions else "A signed row") + place)
        grid = Grid(box=box.SIMPLE_HEAD)
        question = receipt.question if isinstance(receipt.question, dict) else None
        for heading in ("feature", *(["the person's value"] if question else []), "accepted at"):
            grid.add_column(heading)
        changes = answer.changes if isinstance(answer.changes, tuple) else ()
        unmet = conditions(found.schema, record, question) if regions and question else {}
        for feature in found.schema.cost_features if regions else found.schema.features:
            said = record.values[feature.name]
            after = unmet.get(feature.name, str(said)) if regions else feature.show(said)
            own = [escape(feature.show(question[feature.name])) if feature.name in question else ""] if question else []
            bold = f"[bold]{escape(after)}[/bold]" if feature.name in changes else escape(after)
            grid.add_row(escape(feature.title), *own, bold)
        console.print(grid)
    shown = fingerprint(found.issuer)
    console.print(f"Every signature holds, for the service {escape(terms.service)}. The key's fingerprint: {shown}")
    if not found.pinned:
        console.print("Whose key that is was not checked: compare it with what the institution publishes.")
    console.print(f"The date, by the word of whoever made the receipt: {receipt.date}")
    for heading, lines in (("It proves", receipt.about.proves), ("It does not prove", receipt.about.does_not_prove)):
        console.print(f"\n{heading}:")
        for line in lines:
            console.print(f"- {line}")
