"""The applicant's commands: ask, and look a deployment over before asking."""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table as Grid

from . import tickets, wire
from .agreement import Peer, check_agreement
from .client import AsyncClient, Client, is_loopback
from .deployment import Deployment
from .errors import CounterveilError, ServerFault, Tampered, TooManyLiars, UnknownName, WrongType
from .explain import Counterfactual, Explanation
from .features import Feature, Numeric
from .keys import fingerprint, is_pinned, read_public
from .preferences import Preferences
from .schema import Schema
from .terms import deployment_of, read_terms

_PATH = click.Path(path_type=Path)
_SKEW = 60.0  # seconds that clocks may differ before tickets and windows suffer
_VISITS = 4  # connections to each server over which `doctor` compares what it says


def _addressed(command: Any) -> Any:
    """Give a command the options that say where the servers are, and who they must be."""
    for option in (
        click.option(
            "--timeout", default=60.0, show_default=True, type=click.FloatRange(0.1, 86_400), help="Seconds to answer."
        ),
        click.option("--ca", type=_PATH, help="Trust this certificate authority, in PEM, instead of the system's."),
        click.option("--insecure", is_flag=True, help="Allow plain http to other machines: others can read along."),
        click.option(
            "--operator",
            "operators",
            multiple=True,
            metavar="KEY",
            help="The public key of a server that must be among those asked, or its fingerprint: a file, or "
            "hexadecimal digits. Get it from whoever operates that server, not from the institution. Repeatable.",
        ),
        click.option(
            "--issuer", metavar="KEY", help="The public key that must have signed the terms: a file, or hexadecimal."
        ),
        click.option(
            "--tickets",
            "ticket_file",
            type=_PATH,
            help="A file of tickets, one a line, or - for standard input. `ask` takes the first that is not marked as "
            "used, and marks it.",
        ),
        click.option(
            "--ticket",
            metavar="TICKET",
            envvar="COUNTERVEIL_TICKET",
            help="The ticket itself. Others on this machine can read it in the list of processes: better a file "
            "(--tickets), or the environment (COUNTERVEIL_TICKET).",
        ),
        click.option("--server", "servers", multiple=True, metavar="URL", help="Repeat for each server."),
        click.option(
            "--terms",
            type=_PATH,
            help="The institution's terms file. With it, what you type is checked before any server is spoken to.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@_addressed
@click.option(
    "--person", type=_PATH, help="A JSON file, or - for standard input: what the model was told, feature by feature."
)
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="FEATURE=VALUE",
    help="One of those, or over the file's. Others on this machine can read flags in the list of processes.",
)
@click.option("--preferences", type=_PATH, help="A JSON file of preferences, or -; the flags below go over it.")
@click.option("--weight", multiple=True, metavar="FEATURE=N", help="How reluctant you are to change it, from 1.")
@click.option("--immutable", multiple=True, metavar="FEATURE", help="It must stay as it is.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="FEATURE=LOW..HIGH",
    help="It must lie there; either end may be left out.",
)
@click.option("--increase-only", multiple=True, metavar="FEATURE", help="It may only go up.")
@click.option("--decrease-only", multiple=True, metavar="FEATURE", help="It may only go down.")
@click.option("--forbid", multiple=True, metavar="FEATURE=VALUE", help="It must not become that.")
@click.option("--metric", type=click.Choice(["l2", "l1", "mad", "heom"]), help="How changes are measured.")
@click.option("--spread", default=0.0, help="Where several rows come back: how much farther each must be.")
@click.option("--clamp", is_flag=True, help="Pull values beyond the schema's range to its ends.")
@click.option("--robust", default=0, help="Open mode: correct so many wrong answers; needs two more servers for each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--verbose", is_flag=True, help="Print also how many bytes went to and from each server.")
def ask(
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
    """Ask what would have got you accepted.

    No server learns what you have, what you prefer, or what you were told. Servers see your ticket, the time, and your
    network address.
    """
    known, wishes = _read_json(person), _read_json(preferences)
    Preferences.of(wishes)  # refuses a file that is none
    wishes = {name: dict(value) if isinstance(value, dict) else value for name, value in wishes.items()}
    console = Console()
    bar = Progress(
        TextColumn("working the answer out"), BarColumn(), DownloadColumn(), transient=True,
        disable=as_json or not console.is_terminal, console=console,
    )  # fmt: skip
    task = bar.add_task("answers", total=None)

    def progress(came: int, total: int) -> None:
        bar.update(task, completed=came, total=total)

    trust = _trusted(terms, timeout, ca, insecure, operators, issuer)
    with bar, Client(servers or None, progress=progress, **trust) as client:
        schema = client.deployment.schema
        known |= {name: _value(feature, text) for name, feature, text in _pairs("--set", schema, values)}
        for name in ("immutable", "increase_only", "decrease_only"):
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
        taken = _Tickets(ticket, ticket_file)

        def leaving() -> None:
            taken.mark()
            if not operators:
                click.echo(f"counterveil: warning: {_UNPINNED}", err=True)

        options = {"robust": robust, "spread": spread, "clamp": clamp}
        try:
            found = client.ask(known, wishes, ticket=taken.text, spending=leaving, **options)
        except (Tampered, TooManyLiars) as error:
            raise Tampered(f"{error}. {_LATER}") from None
        peers = client.peers
    if as_json:
        click.echo(json.dumps(found.to_dict() | ({"traffic": _traffic(peers)} if verbose else {}), ensure_ascii=False))
        return
    show(console, found)
    if not found.feasible:
        console.print(_LATER)
    if verbose:
        console.print(traffic_table(peers))


_UNPINNED = (
    "no operator's key is given (--operator): if the institution runs all these servers itself, it reads the question"
)


# Who asks again right away, or asks the institution for another ticket, tells a lying server that its lie was noticed.
_LATER = (
    "You may use another ticket of your batch, best at another time of your own choosing, such as another day: asking "
    "again right away would tell the servers that this answer was not enough."
)


def _trusted(
    terms: Path | None,
    timeout: float,
    ca: Path | None,
    insecure: bool,
    operators: Sequence[str],
    issuer: str | None,
) -> dict[str, Any]:
    """Return the client's options that say who is trusted with what."""
    return {
        "terms": None if terms is None else read_terms(terms),
        "timeout": timeout,
        "verify": _trust(ca),
        "insecure": insecure,
        "operators": [_public_key("--operator", text) for text in operators],
        "issuer": None if issuer is None else _public_key("--issuer", issuer),
    }


def _public_key(option: str, text: str) -> bytes:
    """Read a public key from a file, or from the hexadecimal digits of it or of its fingerprint."""
    if not Path(text).exists():
        try:
            pin = bytes.fromhex(text)
        except ValueError:
            pin = b""
        if len(pin) in ((16, 32) if option == "--operator" else (32,)):
            return pin
        raise WrongType(option, got=repr(text), expected="a key file, or its hexadecimal digits")
    return read_public(text)


class _Tickets:
    """The ticket to use: as given, or the first in a file that is not marked as used."""

    def __init__(self, ticket: str | None, path: Path | None) -> None:
        self._path, self._line = path, -1
        if path is None:
            self.text = None if ticket is None else wire.decode_ticket_text(ticket).text()
            return
        self._lines = _text_of(path).splitlines()
        unused = [n for n, line in enumerate(self._lines) if line.strip() and not line.startswith("#")]
        if not unused:
            raise WrongType(str(path), got="no unused ticket", expected="one on a line of its own")
        self._line = unused[0]
        self.text = wire.decode_ticket_text(self._lines[self._line]).text()

    def mark(self) -> None:
        """Mark the ticket as used; the question is about to leave."""
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
            grid = Grid(title="What would have been accepted", box=box.SIMPLE_HEAD)
            for heading in ("feature", "now", "accepted at", "share of the cost"):
                grid.add_column(heading, justify="right" if heading == "share of the cost" else "left")
            for change in each.changes:
                before, after = (escape(change.feature.show(value)) for value in (change.before, change.after))
                grid.add_row(escape(change.feature.title), before, f"[bold]{after}[/bold]", f"{change.share:.0%}")
            grid.caption = f"Unchanged: {escape(', '.join(f.title for f in each.unchanged) or 'nothing')}."
            console.print(grid)
    console.print(escape(found.text()))
    if found.liars:
        numbers = ", ".join(map(str, found.liars))
        console.print(f"[bold red]Server {numbers} lied[/bold red]; the wrong answers were corrected.")


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


def traffic_table(peers: Sequence[Peer]) -> Grid:
    """Return what went to and from each server, the manifest included."""
    grid = Grid(title="Bytes on the connections", box=box.SIMPLE_HEAD)
    for heading in ("server", "requests", "bodies up", "headers up", "bodies down", "headers down"):
        grid.add_column(heading, justify="left" if heading == "server" else "right")
    for peer, seen in zip(peers, _traffic(peers), strict=True):
        order = ("body_bytes_up", "header_bytes_up", "body_bytes_down", "header_bytes_down")
        grid.add_row(peer.name, str(seen["requests"]), *(f"{seen[name]:,} B" for name in order))
    return grid


@click.command()
@_addressed
def doctor(
    servers: tuple[str, ...],
    ticket: str | None,
    ticket_file: Path | None,
    **trusted: Any,
) -> None:
    """Look a deployment over from where you are, and say what each party would learn. Asks nothing."""
    console, problems = Console(), []
    trust = _trusted(**trusted)
    client = AsyncClient(servers or None, patience=0.0, **trust)
    visits = anyio.run(_visits, client)
    grid = Grid(title="Servers", box=box.SIMPLE_HEAD)
    for heading in ("address", "server", "time", "software", "TLS", "clock"):
        grid.add_column(heading, overflow="fold")
    for url, visit in visits.items():
        if isinstance(visit, CounterveilError):
            problems.append(str(visit))
            grid.add_row(escape(url), "[red]out of reach[/red]", "", "", "", "")
            continue
        tls, clock = _tls(visit), _clock(visit)
        problems += [f"{visit.name}: {said}" for said, bad in (tls, clock) if bad]
        grid.add_row(
            escape(url),
            f"{visit.manifest.server} of {visit.manifest.terms.parameters.servers}",
            f"{1000 * visit.seconds:.0f} ms",
            escape(visit.manifest.software),
            *(f"[red]{said}[/red]" if bad else said for said, bad in (tls, clock)),
        )
    console.print(grid)
    peers = [visit for visit in visits.values() if isinstance(visit, Peer)]
    if peers:
        console.print(_fingerprints(peers, trust["operators"]))
    try:
        if len(peers) == len(visits):
            check_agreement(peers, issuer=trust["issuer"], operators=trust["operators"])
            terms = peers[0].manifest.terms
            deployment = deployment_of(terms)
            if trust["terms"] is not None and trust["terms"] != peers[0].manifest.issued:
                problems.append("the servers have other terms, or addresses, than the terms file: get the new one")
            console.print(
                "The servers agree on their terms, their addresses, their database and their common key. Each has "
                "signed what it says with its own key; q and alphas are right."
            )
            texts = [line for line in (ticket, *_unused(ticket_file)) if line]
            for text in texts:
                _check_ticket(peers, text)
            if texts or ticket_file:
                console.print(f"Tickets that are good for these servers, unless they were used: {len(texts)}.")
            console.print(escape(f"They run {deployment.says(terms.rows)}."))
            console.print(_learned(deployment, peers))
    except CounterveilError as error:
        problems.append(str(error))
    for problem in problems:
        console.print(f"[red]Problem:[/red] {escape(problem)}")
    if problems:
        sys.exit(1)
    console.print("All is well." if trust["operators"] else f"No problem was found, but {_UNPINNED}.")


def _unused(path: Path | None) -> list[str]:
    """Return the tickets of a file that are not marked as used."""
    lines = [] if path is None else _text_of(path).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _fingerprints(peers: Sequence[Peer], pinned: Sequence[bytes]) -> Grid:
    """Return the fingerprints of all keys, to be compared with what the operators say elsewhere."""
    terms = peers[0].manifest.terms
    grid = Grid(
        title="Keys",
        box=box.SIMPLE_HEAD,
        caption="Compare a server's fingerprint with what its operator publishes, by telephone or on paper, and give "
        "the key with --operator. Whoever controls the names or certificates of all servers is all servers.",
    )
    for heading in ("whose", "fingerprint", ""):
        grid.add_column(heading)
    grid.add_row("the issuer", fingerprint(bytes.fromhex(terms.issuer)), "signs terms, tickets and records")
    for peer in sorted(peers, key=lambda peer: peer.manifest.server):
        key = bytes.fromhex(terms.keys[peer.manifest.server - 1])
        grid.add_row(
            f"server {peer.manifest.server}",
            fingerprint(key),
            "as given with --operator"
            if any(is_pinned(pin, key) for pin in pinned)
            else "[yellow]not compared[/yellow]",
        )
    return grid


async def _visits(client: AsyncClient) -> dict[str, Peer | CounterveilError]:
    """Fetch every manifest, over several connections: behind one address there may be several processes."""
    visits: dict[str, Peer | CounterveilError] = {}
    for url in client.urls:
        try:
            seen = [await client.visit(url) for _ in range(_VISITS)]
            visits[url] = seen[0]
            if len({peer.manifest.instance for peer in seen}) > 1:
                said = "has several ledgers: a ticket can be used more than once; all its processes must share one"
                visits[url] = ServerFault(seen[0].name, said)
        except CounterveilError as error:
            visits[url] = error
    return visits


def _check_ticket(peers: Sequence[Peer], text: str) -> None:
    manifest = peers[0].manifest
    read = wire.decode_ticket_text(text)
    tickets.verify(read, manifest.terms, time.time())
    missing = set(read.claims.servers) - {peer.manifest.server for peer in peers}
    if missing:
        raise UnknownName("ticket", got=f"one for server {min(missing)}", expected="servers whose address is given")


def _tls(peer: Peer) -> tuple[str, bool]:
    """Say how the connection is protected, and whether that is a problem."""
    if peer.tls is None:
        at_home = is_loopback(urlsplit(peer.url).hostname or "")
        return ("none, on this machine", False) if at_home else ("none", True)
    ends = peer.tls.get("notAfter")
    if ends is None:
        return "not verified", True
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / 86_400
    return f"for {days:.0f} more days", days < 7


def _clock(peer: Peer) -> tuple[str, bool]:
    """Say how far the server's clock is from this one, and whether that is a problem."""
    try:
        skew = parsedate_to_datetime(peer.date or "").timestamp() - time.time()
    except (ValueError, OverflowError, OSError):
        return "unknown", False
    return f"{skew:+.0f} s", abs(skew) > _SKEW


def _learned(deployment: Deployment, peers: Sequence[Peer]) -> Grid:
    terms, scheme = peers[0].manifest.terms, deployment.scheme
    grid = Grid(title="What each party learns from one question", box=box.SIMPLE_HEAD)
    grid.add_column("party")
    grid.add_column("learns")
    grid.add_row(
        "each server",
        "that someone asked, when, with which ticket, and from which network address. Of the question, the preferences "
        f"and the answer: nothing, unless more than {scheme.collusion} of them collude.",
    )
    records = "the nearest accepted row" if deployment.k == 1 else f"up to {deployment.k} accepted rows"
    more = ""
    if terms.robust:
        more = f" With a ticket that corrects {terms.robust}, one who cheats sees {1 + 2 * terms.robust} values a row."
    grid.add_row("the applicant", f"{records}; {scheme.reveal.tells(terms.rows)}.{more}")
    many = "as many questions as they like" if terms.tickets == "open" else "one question a ticket"
    grid.add_row(
        "the institution",
        "who got a ticket, if it asks. If it also runs a server, it can link the ticket, and so the person, to the "
        f"time and the network address of the question; to what was asked only if it runs more than "
        f"{scheme.collusion}. An applicant has {many}.",
    )
    grid.add_row("the network", "who asked whom and when; sizes, which are the same for every question.")
    return grid


def _trust(ca: Path | None) -> ssl.SSLContext | bool:
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise WrongType(str(ca), got=str(error), expected="a certificate authority in PEM") from None


def _text_of(path: Path) -> str:
    """Read a file, or standard input for -."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongType(str(path), got=getattr(error, "strerror", None) or "no text", expected="a file") from None


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = _text_of(path)
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
    """Read a value as a person types it; nothing at all is a missing one."""
    if not text:
        return None
    if isinstance(feature, Numeric):
        try:
            return float(text)
        except ValueError:
            return text
    for code in range(feature.steps + 1):
        value = feature.value(code)
        if text.lower() in (str(value).lower(), feature.show(value).lower()):
            return value
    return text


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongType(option, got=repr(text), expected="a whole number") from None
