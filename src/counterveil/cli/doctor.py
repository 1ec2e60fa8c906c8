"""The command doctor: check a deployment before asking."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from ..applicant.client import AsyncClient, is_loopback
from ..crypto.keys import fingerprint, is_pinned
from ..errors import CounterveilError, Disagreement, ServerFault, UnknownName
from ..service.link.handshake import DEALER
from ..terms import tickets, wire
from ..terms.agreement import Peer, age, check_agreement, lacking, newest
from ..terms.deployment import Deployment
from ..terms.published import deployment_of
from .output import JSON, console_for, print_json
from .times import shown
from .trust import UNPINNED, addressed, text_of, trusted

_SKEW = 60.0  # seconds; if clocks differ by more, tickets may seem to have expired
_WHOLE = 2.0  # seconds: clocks that differ by less cannot be told apart
_SOON = 86_400  # seconds: terms that end so soon should have successors
_VISITS = 4  # connections to each server, whose manifests must agree


@click.command()
@addressed
@JSON
def doctor(
    servers: tuple[str, ...],
    ticket: str | None,
    ticket_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check a deployment from this machine, and say what each party would learn. It asks no question.

    The exit code is 1 if there is a problem.
    """
    problems: list[str] = []
    trust = trusted(**options)
    client = AsyncClient(servers or None, patience=0.0, **trust)
    console = Console(quiet=True) if as_json else console_for(client.urls, 72)
    visits = anyio.run(_visits, client)
    report: dict[str, Any] = {"servers": [_reported(url, visit) for url, visit in visits.items()]}
    grid = Grid(title="Servers", box=box.SIMPLE_HEAD)
    for heading in ("address", "server", "time", "software", "TLS", "clock"):
        grid.add_column(heading, no_wrap=heading == "address")
    for url, visit in visits.items():
        if isinstance(visit, CounterveilError):
            problems.append(str(visit))
            grid.add_row(escape(url), "[red]out of reach[/red]", "", "", "", "")
            continue
        tls, clock = _tls(visit), _clock(visit)
        for what, (said, bad) in (("TLS certificate", tls), ("clock", clock)):
            problems += [f"{visit.name}: {what}: {said}"] if bad else []
        grid.add_row(
            escape(url),
            f"{visit.manifest.server} of {visit.manifest.terms.parameters.servers}",
            f"{1000 * visit.seconds:.0f} ms",
            escape(visit.manifest.software),
            *(f"[red]{said}[/red]" if bad else said for said, bad in (tls, clock)),
        )
    console.print(grid)
    if not as_json:
        console = Console()  # only the table of addresses may need more columns than the terminal has
    peers = [visit for visit in visits.values() if isinstance(visit, Peer)]
    if peers:
        problems += anyio.run(_unready, client, peers)
        console.print(_fingerprints(peers, trust["operators"]))
    try:
        if len(peers) == len(visits):
            given = trust["terms"]
            peers, offers = _common(lists := anyio.run(_lists, client, peers), peers, given)
            report["offers"] = offers
            problems += _check_offers(console, offers)
            if given is not None and (lack := lacking(given, list(zip(peers, lists, strict=True)))):
                raise Disagreement(f"terms: {lack}")
            check_agreement(peers, issuer=trust["issuer"], operators=trust["operators"])
            terms = peers[0].manifest.terms
            deployment = deployment_of(terms)
            if given is not None and given != peers[0].manifest.issued:
                problems.append("the servers have other addresses than the terms file: get the new one")
            newer = newest(lists)
            if given is not None and newer is not None and age(newer[0].issued) > age(given):
                report["newer"] = newer[0].issued.digest.hex()
                console.print(
                    f"[yellow]Your terms file is older than what the servers offer[/yellow] ({report['newer'][:16]}). "
                    "A question with this file gets the old data, which is described here. Get the new file."
                )
            console.print(
                "The servers agree on their terms, their addresses, their database and their common key. Each has "
                "signed what it says with its own key; q and alphas are right."
            )
            texts = [line for line in (ticket, *_unused(ticket_file)) if line]
            for text in texts:
                _check_ticket(peers, text)
            report |= {"tickets": len(texts), "runs": deployment.says(terms.rows), "lasts": deployment.lasts()}
            if texts or ticket_file:
                console.print(f"Tickets that are good for these servers, unless they were used: {len(texts)}.")
            console.print(escape(f"They run {deployment.says(terms.rows)}."))
            if deployment.scheme.protocol.linked:
                problems += _check_links(console, client, deployment, peers)
            console.print(_learned(deployment, peers))
    except CounterveilError as error:
        problems.append(str(error))
    if as_json:
        print_json(report | {"problems": problems, "operators_given": bool(trust["operators"])})
    for problem in problems:
        console.print(f"[red]Problem:[/red] {escape(problem)}", soft_wrap=True)  # so that no address is cut
    if problems:
        sys.exit(1)
    console.print("All is well." if trust["operators"] else f"No problem was found, but {UNPINNED}.")


def _reported(url: str, visit: Peer | CounterveilError) -> dict[str, Any]:
    """Return what is known of a server, ready for JSON."""
    if isinstance(visit, CounterveilError):
        return {"url": url, "reached": False}
    terms, number = visit.manifest.terms, visit.manifest.server
    named = (
        {"name": visit.manifest.issued.name(number)}
        if visit.manifest.issued.names and number <= len(terms.keys)
        else {}
    )
    return named | {
        "url": url, "reached": True, "server": number, "milliseconds": round(1000 * visit.seconds, 1),
        "software": visit.manifest.software, "tls": _tls(visit)[0], "clock": _clock(visit)[0],
        "fingerprint": fingerprint(bytes.fromhex(terms.keys[number - 1])) if number <= len(terms.keys) else None,
    }  # fmt: skip


def _unused(path: Path | None) -> list[str]:
    """Return the tickets of a file that are not marked as used."""
    lines = [] if path is None else text_of(path).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _fingerprints(peers: Sequence[Peer], pinned: Sequence[bytes]) -> Grid:
    """Return the fingerprints of all keys, for comparison with what the operators publish."""
    terms = peers[0].manifest.terms
    grid = Grid(
        title="Keys",
        box=box.SIMPLE_HEAD,
        caption="Compare a server's fingerprint with what its operator publishes, by telephone or on paper, and give "
        "the key with --operator. Somebody who controls the names or certificates of all servers can replace them all.",
    )
    for heading in ("whose", "fingerprint", ""):
        grid.add_column(heading)
    grid.add_row("the issuer", fingerprint(bytes.fromhex(terms.issuer)), "signs terms, tickets and records")
    if terms.dealer:
        grid.add_row("the dealing server", fingerprint(bytes.fromhex(terms.dealer)), "signs what it deals")
    for peer in sorted(peers, key=lambda peer: peer.manifest.server):
        key = bytes.fromhex(terms.keys[peer.manifest.server - 1])
        who = peers[0].manifest.issued.name(peer.manifest.server)
        grid.add_row(
            escape(f"server {peer.manifest.server}" + (f", {who}" if who else "")),
            fingerprint(key),
            "as given with --operator"
            if any(is_pinned(pin, key) for pin in pinned)
            else "[yellow]not compared[/yellow]",
        )
    return grid


async def _lists(client: AsyncClient, peers: Sequence[Peer]) -> list[list[wire.Manifest]]:
    """Fetch all manifests of each server."""
    return [await client.manifests(peer.url) for peer in peers]


def _common(
    lists: Sequence[Sequence[wire.Manifest]], peers: Sequence[Peer], given: wire.SignedTerms | None
) -> tuple[list[Peer], list[dict[str, Any]]]:
    """Return the servers with the offer that `ask` takes, and the facts of every offer that some have.

    That is the newest offer that all have, of the given terms if there are any.
    """
    every = {(each.issued, each.key): None for manifests in lists for each in manifests}
    facts = []
    for issued, key in sorted(every, key=lambda offer: age(offer[0])):
        have = [
            peer.manifest.server
            for peer, manifests in zip(peers, lists, strict=True)
            if any((each.issued, each.key) == (issued, key) for each in manifests)
        ]
        begins, ends = (at if isinstance(at, int) else None for at in (issued.terms.begins, issued.terms.ends))
        needed = [peer.manifest.server for peer in peers if peer.url in issued.addresses]
        facts.append(
            {"terms": issued.digest.hex(), "rows": issued.terms.rows, "begins": begins, "ends": ends, "key": key,
             "servers": have, "missing": sorted(set(needed) - set(have))}
        )  # fmt: skip
    found = newest(lists, lambda issued: given is None or issued.text == given.text)
    return (
        [replace(peer, manifest=each) for peer, each in zip(peers, found, strict=True)] if found else [*peers]
    ), facts


def _check_offers(console: Console, offers: Sequence[dict[str, Any]]) -> list[str]:
    """Show all offers; return what is wrong with their times."""
    if len(offers) > 1 or any(offer["ends"] for offer in offers):
        grid = Grid(title="Offers: terms and common keys", box=box.SIMPLE_HEAD)
        for heading in ("terms", "rows or regions", "begins", "ends", "common key", "at servers"):
            grid.add_column(heading)
        for offer in offers:
            grid.add_row(
                offer["terms"][:16], f"{offer['rows']:,}", shown(offer["begins"], "at once"), shown(offer["ends"]),
                offer["key"][:8], ", ".join(map(str, offer["servers"])),
            )  # fmt: skip
        console.print(grid)
    common = [offer for offer in offers if not offer["missing"]]
    if common and all(offer["ends"] is not None and offer["ends"] < time.time() + _SOON for offer in common):
        return [f"all terms end soon, the last {shown(max(offer['ends'] for offer in common))}: publish new ones"]
    return []


async def _visits(client: AsyncClient) -> dict[str, Peer | CounterveilError]:
    """Fetch every manifest over several connections, since one address may lead to several processes."""
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


async def _unready(client: AsyncClient, peers: Sequence[Peer]) -> list[str]:
    """Say of each server that answers nobody why it does not: its ledger is out of reach, or waits to be confirmed."""
    problems = []
    for peer in peers:
        try:
            await client.check_ready(peer.url)
        except ServerFault as error:
            problems += [str(error)] if error.code == "not_ready" else []  # a proxy may hide the path
    return problems


def _check_links(console: Console, client: AsyncClient, deployment: Deployment, peers: Sequence[Peer]) -> list[str]:
    """Say how the servers are linked, what a question will take, and how many tapes wait; return the problems."""
    problems, slowest, stocks = [], 0.0, []
    numbers = {peer.manifest.server for peer in peers}
    for peer in peers:
        for other in anyio.run(client.linked, peer.url):
            if other.server == DEALER and not other.connections:
                problems.append(f"{peer.name} is not linked to the dealing server: is counterveil deal running?")
            if other.server not in numbers:
                continue
            if not other.connections:
                problems.append(f"{peer.name} is not linked to server {other.server}: see --link of serve")
            slowest = max(slowest, other.milliseconds or 0.0)
            stocks += [] if other.tapes is None else [other.tapes]
    rows = peers[0].manifest.terms.rows
    rounds, between = deployment.rounds(rows), deployment.between(rows) / 2**20
    console.print(
        f"A message between the servers and back takes {slowest:.1f} ms. For a question they exchange {rounds} "
        f"messages one after the other, {between:,.1f} MiB each way. That takes {rounds * slowest / 2000:.2f} s, and "
        "the time of computing."
    )
    if stocks:
        console.print(
            f"The dealing server has sent tapes ahead, each for one question: at least {min(stocks)} wait for any "
            "two of these servers. A question that finds none waits for one."
        )
    return problems


def _check_ticket(peers: Sequence[Peer], text: str) -> None:
    manifest = peers[0].manifest
    read = wire.decode_ticket_text(text)
    tickets.verify(read, manifest.terms, time.time())
    asked = tickets.servers_of(read.claims, deployment_of(manifest.terms).scheme)
    missing = set(asked) - {peer.manifest.server for peer in peers}
    if missing:
        raise UnknownName("ticket", got=f"one for server {min(missing)}", expected="servers whose address is given")


def _tls(peer: Peer) -> tuple[str, bool]:
    """Say how the connection is protected, and whether that is a problem."""
    if peer.tls is None:
        is_here = is_loopback(urlsplit(peer.url).hostname or "")
        return ("none, on this machine", False) if is_here else ("none", True)
    ends = peer.tls.get("notAfter")
    if ends is None:
        return "not verified", True
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / 86_400
    return f"for {days:.0f} more days", days < 7


def _clock(peer: Peer) -> tuple[str, bool]:
    """Say how far the server's clock is from this one, and whether that is a problem.

    A server writes whole seconds, without what is left of the second, and up to a second late.
    """
    try:
        skew = parsedate_to_datetime(peer.date or "").timestamp() + 0.5 - (peer.at - peer.seconds / 2)
    except (ValueError, OverflowError, OSError):
        return "unknown", False
    if abs(skew) <= _WHOLE:
        return f"within {_WHOLE:.0f} s", False
    return f"{abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}", abs(skew) > _SKEW


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
    records = deployment.gives
    cheat = ""
    if terms.robust and scheme.protocol.pairs:
        cheat = f" A ticket that allows {terms.robust} to lie gives as much for every pair of servers that it asks."
    elif terms.robust:
        seen = f"{1 + 2 * terms.robust} values a {deployment.served}"
        cheat = f" With a ticket that corrects {terms.robust}, one who cheats sees {seen}."
    grid.add_row("the applicant", f"{records}; {deployment.tells(terms.rows)}.{cheat}")
    if terms.dealer:
        said = "that someone asked, and when; it has no rows. With one of the servers it could read the question."
        grid.add_row("the dealing server", said)
    grid.add_row("many applicants", f"{deployment.lasts()}.")
    many = "as many questions as they like" if terms.tickets == "open" else "one question a ticket"
    grid.add_row(
        "the institution",
        "who got a ticket, if it asks. If it also runs a server, it can link the ticket, and so the person, to the "
        f"time and the network address of the question; to what was asked only if it runs more than "
        f"{scheme.collusion}. An applicant has {many}.",
    )
    grid.add_row("the network", "who asked whom and when; sizes, which are the same for every question.")
    return grid
