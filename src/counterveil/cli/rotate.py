"""The command rotate: change the common key while servers run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from ..crypto.keys import CommonKey, read_common_keys
from ..crypto.rotation import add_key, change_key, end_others, find_key, make_key, remove_key
from ..errors import InvalidKey
from ..service.epochs import has_ended
from ..service.ledger import GRACE
from .output import JSON, print_json
from .times import moment, seconds, shown

_KEYS = click.argument("keys", type=click.Path(path_type=Path))
_ID = click.argument("key_id", metavar="ID")
_OVERLAP = click.option(
    "--overlap", default="1d", show_default=True, metavar="TIME", help="Older keys end this long after it begins."
)
_RELOAD = "Let the server read its keys again: restart it, or, if it runs with --workers, send it SIGHUP."


@click.group()
def rotate() -> None:
    """Change the common key while servers run. KEYS is a folder, which `serve --common-key KEYS` reads.

    One operator makes a key, and brings its file to the other, who adds it. Both let their servers read it. When the
    key begins, applicants use it as soon as both servers have it. The older key ends by itself.
    """


@rotate.command()
@_KEYS
@click.option(
    "--begins",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="When it becomes active: now, 2h, or a moment such as 2027-01-31T12:00Z. Both servers must have it by then.",
)
@click.option("--lifetime", default="365d", show_default=True, metavar="TIME", help="How long it is used.")
@_OVERLAP
def new(keys: Path, begins: str, lifetime: str, overlap: str) -> None:
    """Make a new key in KEYS. It is pending until it begins."""
    first = moment(begins, int(time.time()))
    made = make_key(keys, begins=first, ends=first + seconds(lifetime))
    _say_added(keys, made, overlap)
    click.echo(f"{made.path}: secret. Bring it to every other operator, and to nobody else: see docs/deploy.md.")


@rotate.command()
@_KEYS
@click.argument("file", type=click.Path(path_type=Path))
@_OVERLAP
def add(keys: Path, file: Path, overlap: str) -> None:
    """Take FILE, a key that another operator made with `rotate new`, into KEYS."""
    _say_added(keys, add_key(keys, file), overlap)


def _say_added(keys: Path, key: CommonKey, overlap: str) -> None:
    now = time.time()
    ended = end_others(keys, key, seconds(overlap))
    click.echo(f"key {key.id.hex()}: {key.state(now)}, begins {shown(key.begins, 'at once')}, ends {shown(key.ends)}")
    for other in ended:
        click.echo(f"key {other.id.hex()}: {other.state(now)}, now ends {shown(other.ends)}")
    click.echo(_RELOAD)


@rotate.command()
@_KEYS
@_ID
@click.option("--at", default="now", metavar="TIME", help="Then, and not now.")
def activate(keys: Path, key_id: str, at: str) -> None:
    """Let a pending key begin."""
    now, key = int(time.time()), find_key(keys, key_id)
    begins = moment(at, now)
    if key.state(now) != "pending" or has_ended(key.ends, begins):
        got = f"{shown(begins)} for a key that is {key.state(now)} and ends {shown(key.ends)}"
        raise InvalidKey(str(keys), got=got, expected="a pending key, and a time before its end")
    key = change_key(replace(key, begins=begins))
    click.echo(f"key {key.id.hex()}: begins {shown(key.begins, 'at once')}, ends {shown(key.ends)}. {_RELOAD}")


@rotate.command()
@_KEYS
@_ID
@click.option("--at", default="now", metavar="TIME", help="Then, and not now.")
def retire(keys: Path, key_id: str, at: str) -> None:
    """Let a key end. Servers answer under it for 600 seconds more, so that questions under way are completed."""
    key, ends = find_key(keys, key_id), moment(at, int(time.time()))
    others = [other for other in read_common_keys(keys) if other.id != key.id]
    if not any(other.begins <= ends and not has_ended(other.ends, ends) for other in others):
        expected = "one: make it with `rotate new --begins now`, or let a pending one begin with `rotate activate`"
        raise InvalidKey(str(keys), got="no other key that is active then", expected=expected)
    key = change_key(replace(key, ends=ends))
    click.echo(f"key {key.id.hex()}: ends {shown(key.ends)}. {_RELOAD}")


@rotate.command()
@_KEYS
@_ID
def remove(keys: Path, key_id: str) -> None:
    """Delete the file of a key that has been retired for 600 seconds or more."""
    key = find_key(keys, key_id)
    if not has_ended(key.ends, time.time(), GRACE):
        raise InvalidKey(str(keys), got=f"a key that ends {shown(key.ends)}", expected="one that ended 600 s ago")
    remove_key(key)
    click.echo(f"{key.path}: deleted.")


@rotate.command()
@_KEYS
@JSON
def status(keys: Path, as_json: bool) -> None:
    """Show the keys in KEYS: pending, active or retired, and when they begin and end."""
    now, found = time.time(), sorted(read_common_keys(keys), key=lambda key: (key.begins, key.id))
    if as_json:
        facts = [
            {"id": key.id.hex(), "state": key.state(now), "begins": key.begins, "ends": key.ends, "file": str(key.path)}
            for key in found
        ]
        print_json({"keys": facts})
        return
    for key in found:
        click.echo(f"{key.id.hex()}  {key.state(now):8}  begins {shown(key.begins, 'at once')}, ends {shown(key.ends)}")
