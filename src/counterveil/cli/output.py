"""What commands print and write: JSON, counted things, addresses in full, and files that are not overwritten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..errors import InvalidInput, OutOfRange, WrongType

NO_ANSWER = 3  # the exit code of `ask` if no accepted row satisfies the constraints

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, and errors as JSON too.")
FORCE = click.option("--force", is_flag=True, help="Replace the output file if there is one.")


_UNITS = {"": 1} | {"kMGT"[n - 1]: 1000**n for n in range(1, 5)} | {"KMGT"[n - 1] + "i": 1024**n for n in range(1, 5)}


class _Size(click.ParamType[int]):
    """A number of bytes, as 4GiB or 500MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(|[kMGT]|[KMGT]i)B?", str(value))
        if found is None:
            self.fail(f"got {value!r}, expected a size as 4GiB or 500MB", param, ctx)
        return int(float(found[1]) * _UNITS[found[2]])


SIZE = _Size()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def counted(count: int, one: str, many: str = "") -> str:
    """Write a number and what it counts: "1 ticket", "2 tickets"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def check_new(output: Path | None, force: bool) -> None:
    """Refuse to replace a file, before any work is done for it."""
    if output is not None and not force and output.is_file():
        raise WrongType(str(output), got="a file that exists", expected="a new file, or --force to replace it")


@contextmanager
def rows_of(frame: Path) -> Iterator[None]:
    """Let errors name a row of a data file as people count, from 1, and say what to do about its value."""
    try:
        yield
    except InvalidInput as error:
        if error.row is None:
            raise
        beyond = isinstance(error, OutOfRange)
        out = "; give the schema another low or high, or move such values to its ends with --clamp" if beyond else ""
        where = f"{frame}, row {error.row + 1:,}, {error.what}"
        raise type(error)(where, got=error.got, expected=f"{error.expected}{out}") from None


def console_for(texts: list[str], around: int = 0) -> Console:
    """Return a console that is wide enough for the longest of these texts, and `around` columns beside it."""
    console = Console()
    console.width = max(console.width, max(map(len, texts), default=0) + around)
    return console
