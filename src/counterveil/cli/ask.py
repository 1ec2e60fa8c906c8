"""The command ask: an applicant's question."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table as Grid

from ..applicant.client import Client
from ..applicant.explain import Counterfactual, Explanation
from ..applicant.receipts import verify
from ..errors import InvalidInput, Tampered, TooManyLiars, WrongType
from ..schema.features import Boolean, Feature, Numeric
from ..schema.preferences import Metric, Preferences
from ..schema.schema import Schema
from ..terms import wire
from ..terms.agreement import Peer
from ..terms.deployment import Deployment
from .output import JSON, NO_ANSWER, console_for, print_json
from .trust import UNPINNED, addressed, text_of, trusted

_PATH = click.Path(path_type=Path)


@click.command()
@addressed
@click.option("--person", type=_PATH, help="A JSON file of your values by feature, or - for standard input.")
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="FEATURE=VALUE",
    help="One of your values; it replaces the one in the file. Others on this machine can read flags in the list of "
    "processes. Repeatable.",
)
@click.option("--preferences", type=_PATH, help="A JSON file of preferences, or -; the flags below override it.")
@click.option(
    "--weight",
    multiple=True,
    metavar="FEATURE=N",
    help="How reluctant you are to change this feature: 1 is the least. Repeatable.",
)
@click.option("--immutable", multiple=True, metavar="FEATURE", help="This feature must stay as it is. Repeatable.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="FEATURE=LOW..HIGH",
    help="This feature must lie in this range; either end may be left out. Repeatable.",
)
@click.option("--increase-only", multiple=True, metavar="FEATURE", help="This feature may only go up. Repeatable.")
@click.option("--decrease-only", multiple=True, metavar="FEATURE", help="This feature may only go down. Repeatable.")
@click.option(
    "--forbid", multiple=True, metavar="FEATURE=VALUE", help="This feature must not get this value. Repeatable."
)
@click.option("--missing", multiple=True, metavar="FEATURE", help="This feature may become missing. Repeatable.")
@click.option(
    "--override",
    multiple=True,
    metavar="FEATURE",
    help="The schema's rule on how this feature can change does not hold for you, where the schema allows that to be "
    "said. Repeatable.",
)
@click.option(
    "--cost",
    multiple=True,
    metavar="FEATURE:VALUE=COST",
    help="What it would cost you if this feature had this value, from 0 to 1; other values cost 1. Repeatable.",
)
@click.option("--metric", type=click.Choice(get_args(Metric)), help="How the cost of a change is measured.")
@click.option("--spread", default=0.0, help="If several rows come back, how much more each must cost than the last.")
@click.option("--clamp", is_flag=True, help="Move values beyond the schema's range to its ends.")
@click.option("--robust", default=0, help="Open mode: how many wrong answers to correct; each needs two more servers.")
@JSON
@click.option("--verbose", is_flag=True, help="Also print how many bytes went to and from each server.")
@click.option(
    "--receipt",
    type=_PATH,
    help="Write a receipt to this new file: what the institution signed of the answer, for `counterveil verify`.",
)
@click.option("--with-question", is_flag=True, help="The receipt holds your values too; whoever sees it sees them.")
@click.option(
    "--unlike",
    multiple=True,
    type=_PATH,
    metavar="RECEIPT",
    help="Ask for another answer than this earlier one: what it changes costs three times as much. Repeatable.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="With --unlike: what the earlier answer changes must stay as it is. There may be no such answer.",
)
@click.pass_obj
def ask(
    say: Callable[[str, str], None],
    /,
    servers: tuple[str, ...],
    ticket: str | None,
    ticket_file: Path | None,
    person: Path | None,
    values: tuple[str, ...],
    preferences: Path | None,
    spread: float,
    clamp: bool,
    robust: int,
    as_json: bool,
    verbose: bool,
    terms: Path | None,
    timeout: float,
    ca: Path | None,
    insecure: bool,
    operators: tuple[str, ...],
    issuer: str | None,
    **flags: Any,
) -> None:
    """Ask what would have been accepted.

    No server learns your values, your preferences or the answer. Servers see your ticket, the time, and your network
    address. The exit code is 3 if no accepted row satisfies your constraints.
    """
    _check_receipt(flags["receipt"])
    known, wishes = _read_json(person), _read_json(preferences)
    Preferences.of(wishes)  # raises if the file does not hold preferences
    wishes = {name: dict(value) if isinstance(value, dict) else value for name, value in wishes.items()}
    console = Console()
    bar = Progress(
        TextColumn("working the answer out"), BarColumn(), DownloadColumn(), transient=True,
        disable=as_json or not console.is_terminal, console=console,
    )  # fmt: skip
    task = bar.add_task("answers", total=None)

    def progress(came: int, total: int) -> None:
        bar.update(task, completed=came, total=total)

    trust = trusted(terms, timeout, ca, insecure, operators, issuer)
    with bar, Client(servers or None, progress=progress, **trust) as client:
        schema = client.deployment.schema
        known |= {name: _value(feature, text) for name, feature, text in _pairs("--set", schema, values)}
        for name in ("immutable", "increase_only", "decrease_only", "missing", "override"):
            if flags[name]:
                wishes[name] = list(flags[name])
        if flags["metric"]:
            wishes["metric"] = flags["metric"]
        for name, _, text in _pairs("--weight", schema, flags["weight"]):
            wishes.setdefault("weights", {})[name] = _whole("--weight", text)
        for name, feature, text in _pairs("--range", schema, flags["ranges"]):
            low, dots, high = text.partition("..")
            if not dots:
                raise WrongType(
                    f"--range {name}", got=repr(text), expected="LOW..HIGH, either of which may be left out"
                )
            wishes.setdefault("ranges", {})[name] = [_value(feature, low), _value(feature, high)]
        for name, feature, text in _pairs("--forbid", schema, flags["forbid"]):
            forbidden = wishes.setdefault("forbidden", {})
            forbidden[name] = [*forbidden.get(name, ()), _value(feature, text)]
        for name, feature, value, cost in _costs(schema, flags["cost"]):
            own = wishes.setdefault("costs", {})
            own[name] = dict(own.get(name, {})) | {_value(feature, value): cost}
        asked = _unlike(say, client.deployment, Preferences.of(wishes), known, flags["unlike"], flags["keep"])
        taken = _Tickets(ticket, ticket_file)

        def leaving() -> None:
            taken.mark()
            for fault in client.missing.values():
                say("warning", f"{fault}; the ticket does not need this server, so the others are asked")
            if not operators:
                say("warning", UNPINNED)

        options = {"robust": robust, "spread": spread, "clamp": clamp}
        try:
            found = client.ask(known, asked, ticket=taken.text, spending=leaving, **options)
        except (Tampered, TooManyLiars) as error:
            raise Tampered(f"{error}. {_LATER}") from None
        peers = client.peers
    if flags["receipt"] is not None and isinstance(found, Counterfactual):
        try:
            found.receipt(question=flags["with_question"]).save(flags["receipt"])
        except InvalidInput as error:  # the answer itself must not be lost
            say("warning", str(error))
    if as_json:
        print_json(found.to_dict() | ({"traffic": _traffic(peers)} if verbose else {}))
    else:
        show(console, found)
        if not found.feasible:
            console.print(_LATER)
        if verbose:
            print_traffic(peers)
    if not found.feasible:
        sys.exit(NO_ANSWER)


# Somebody who asks again at once, or asks the institution for another ticket, shows a lying server that it was noticed.
_LATER = (
    "You may use another ticket of your batch, best at another time of your own choosing, such as another day: asking "
    "again right away would tell the servers that this answer was not enough."
)


class _Tickets:
    """The ticket to use: the one that is given, or the first in a file that is not marked as used."""

    def __init__(self, ticket: str | None, path: Path | None) -> None:
        self._path, self._line = path, -1
        if path is None:
            self.text = None if ticket is None else wire.decode_ticket_text(ticket).text()
            return
        self._lines = text_of(path).splitlines()
        unused = [n for n, line in enumerate(self._lines) if line.strip() and not line.startswith("#")]
        if not unused:
            raise WrongType(str(path), got="no unused ticket", expected="one on a line of its own")
        self._line = unused[0]
        self.text = wire.decode_ticket_text(self._lines[self._line]).text()

    def mark(self) -> None:
        """Mark the ticket as used in its file, just before the question is sent."""
        if self._path is None or str(self._path) == "-":
            return
        self._lines[self._line] = f"# used: {self.text}"
        try:
            self._path.write_text("\n".join(self._lines) + "\n", "utf-8")
        except OSError as error:
            expected = "a file of tickets that can be written"
            raise WrongType(str(self._path), got=error.strerror, expected=expected) from None


def show(console: Console, found: Explanation) -> None:
    """Print an explanation as a table and a sentence."""
    if isinstance(found, Counterfactual) and found.changes:
        for each in (found, *found.others):
            title = "What would have been accepted" + ", approximately" * each.approximate
            grid = Grid(title=title, box=box.SIMPLE_HEAD)
            for heading in ("feature", "now", "accepted at", "share of the cost"):
                grid.add_column(heading, justify="right" if heading == "share of the cost" else "left")
            for change in each.changes:
                before, after = escape(change.feature.show(change.before)), escape(change.accepted())
                grid.add_row(escape(change.feature.title), before, f"[bold]{after}[/bold]", f"{change.share:.0%}")
            grid.caption = escape(each.caption())
            console.print(grid)
    console.print(escape(found.text()))
    if found.liars:
        numbers = ", ".join(map(str, found.liars))
        console.print(f"[bold red]Server {numbers} lied[/bold red]; the wrong answers were corrected.")


def _check_receipt(path: Path | None) -> None:
    """Refuse a place where no receipt can be written, before a ticket is used."""
    if path is not None and (path.exists() or not path.absolute().parent.is_dir()):
        got = "a file that exists" if path.exists() else "no such folder"
        raise WrongType(str(path), got=got, expected="a new file in a folder that exists")


def _unlike(
    say: Callable[[str, str], None],
    deployment: Deployment,
    wishes: Preferences,
    known: dict[str, Any],
    receipts: Sequence[Path],
    keep: bool,
) -> Preferences:
    """Return preferences for another answer than those in the receipts; say if there may be none."""
    if keep and not receipts:
        raise WrongType("--keep", got="no --unlike", expected="an earlier answer to differ from")
    for path in receipts:
        names = [feature.name for feature in verify(path).changes(known)]
        features = [deployment.schema.feature(name) for name in names]
        wishes = wishes.unlike(features, deployment.tariff.max_weight, keep=keep)
        if names and set(names) <= set(wishes.immutable):
            kept = ", ".join(feature.title for feature in features)
            none = "there may be no such answer, and the ticket is used all the same"
            say("warning", f"all that {path} changes must stay as it is ({kept}): {none}")
    return wishes


def _traffic(peers: Sequence[Peer]) -> list[dict[str, Any]]:
    return [
        {
            "server": peer.manifest.server,
            "url": peer.url,
            "requests": peer.traffic.requests,
            "body_bytes_up": peer.traffic.body_up,
            "body_bytes_down": peer.traffic.body_down,
            "header_bytes_up": peer.traffic.up - peer.traffic.body_up,
            "header_bytes_down": peer.traffic.down - peer.traffic.body_down,
        }
        for peer in peers
    ]


def print_traffic(peers: Sequence[Peer]) -> None:
    """Print a table of the bytes to and from each server, manifests included. Addresses are never cut."""
    grid = Grid(title="Bytes on the connections", box=box.SIMPLE_HEAD)
    for heading in ("server", "requests", "bodies up", "headers up", "bodies down", "headers down"):
        grid.add_column(heading, justify="left" if heading == "server" else "right", no_wrap=heading == "server")
    for peer, seen in zip(peers, _traffic(peers), strict=True):
        order = ("body_bytes_up", "header_bytes_up", "body_bytes_down", "header_bytes_down")
        grid.add_row(peer.name, str(seen["requests"]), *(f"{seen[name]:,} B" for name in order))
    console_for([peer.name for peer in peers], 60).print(grid)


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = text_of(path)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongType(str(path), got=str(error), expected="a JSON object") from None
    if not isinstance(read, dict):
        raise WrongType(str(path), got=type(read).__name__, expected="a JSON object")
    return read


def _pairs(option: str, schema: Schema, given: Sequence[str]) -> list[tuple[str, Feature, str]]:
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise WrongType(option, got=repr(text), expected="FEATURE=VALUE")
        pairs.append((name, schema.feature(name), value))
    return pairs


def _value(feature: Feature, text: str) -> Any:
    """Read a value as a person types it; an empty text is a missing value."""
    if not text:
        return None
    if isinstance(feature, Numeric):
        try:
            return float(text)
        except ValueError:
            return text
    if isinstance(feature, Boolean) and text in ("0", "1"):
        return text == "1"
    for code in range(feature.steps + 1):
        value = feature.value(code)
        if text.lower() in (str(value).lower(), feature.show(value).lower()):
            return value
    return text


def _costs(schema: Schema, given: Sequence[str]) -> Iterator[tuple[str, Feature, str, float]]:
    """Read the values of --cost: feature, value and cost. A value may itself hold = or a colon."""
    for text in given:
        place, equals, cost = text.rpartition("=")
        name, colon, value = place.partition(":")
        try:
            number = float(cost)
        except ValueError:
            number = math.nan
        if not (equals and colon) or math.isnan(number):
            raise WrongType("--cost", got=repr(text), expected="FEATURE:VALUE=COST, such as housing:rented=0.3")
        yield name, schema.feature(name), value, number


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongType(option, got=repr(text), expected="a whole number") from None
