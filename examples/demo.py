"""Explain a real rejection privately: two servers, each in its own process, and one question, seen from every side.

A model learns from the German credit data who is a good risk. The bank looks for regions in which the model accepts
everybody, and certifies them. The model rejects someone. They want to know the nearest way into such a region, and they
do not want to tell the bank who they are, what they could change, or what they were shown. Two servers answer; neither
learns anything.

With ROWS=1000000 the bank has a million accepted rows instead, made up by mixing those of the data. The two servers
then settle between them which is the nearest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import narwhals as nw
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from counterveil import Client, Counterfactual, Database, Preferences
from counterveil.applicant.ask import compile_question
from counterveil.cli.ask import print_traffic, show
from counterveil.crypto.keys import PRIVATE, SERVER_PUBLIC, Issuer, read_public
from counterveil.crypto.randomness import Fresh
from counterveil.research.datasets import german_credit, german_credit_model
from counterveil.research.processes import serving
from counterveil.schema.frames import Columns as Frame
from counterveil.terms.agreement import Peer
from counterveil.terms.tickets import mint
from counterveil.terms.wire import Reply, Request, unpack

PREFERENCES = Preferences(
    immutable=["age", "personal_status", "foreign_worker", "dependants"],
    increase_only=["employment", "savings"],
    decrease_only=["amount", "duration"],
    ranges={"amount": (2000, None)},
    weights={"purpose": 5, "housing": 3},
)
TICKETS = 100
REJECTED = 29  # where a person stands in the data whom the model rejects
console = Console(width=100)


def make_database() -> tuple[Database, dict[str, Any]]:
    """Train the model; return the database of regions in which it accepts everybody, and someone it rejects."""
    frame, schema = german_credit()
    model, people = german_credit_model(), Frame(frame)
    with console.status("Looking for regions in which the model accepts everybody; some seconds"):
        database = Database.build(frame, schema, model, "good", record="region")
    rejected = people.people()[REJECTED]
    if model.predict(people.select(schema.names))[REJECTED] != "bad":
        raise SystemExit(f"The model accepts person {REJECTED}; the demonstration needs somebody whom it rejects.")
    return database, {name: rejected[name] for name in schema.names}


def make_large(count: int) -> tuple[Database, dict[str, Any]]:
    """Return a database of `count` made-up people whom the model accepts, and the same rejected person."""
    frame, schema = german_credit()
    model, people, drawn = german_credit_model(), Frame(frame), np.random.default_rng(1)
    with console.status(f"Mixing {count:,} people whom the model accepts; some seconds"):
        mixed = {name: drawn.choice(people.column(name), 2 * count) for name in schema.names}
        verdicts = model.predict(nw.from_dict(mixed, backend=people.backend).to_native())
        good = np.flatnonzero(verdicts == "good")[:count]
        everyone = {name: values[good] for name, values in mixed.items()}
        database = Database.build(everyone | {"credit": np.ones(len(good), dtype=bool)}, schema, accepted="credit")
    return database, {name: people.people()[REJECTED][name] for name in schema.names}


def show_noise(client: Client, sent: dict[int, list[Request]], person: dict[str, Any]) -> None:
    """Show what server 1 saw of the question, and what it would have seen of the same question asked again.

    What server 2 saw is not shown, because the numbers of both servers together tell the question.
    """
    deployment = client.deployment
    scheme = deployment.scheme
    question, _ = compile_question(deployment, deployment.schema.codes(person), PREFERENCES)
    table = Table(title="What server 1 saw of the question", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column(f"the first six of {scheme.symbols} numbers mod {scheme.field.q:,}")
    seen = unpack("query", scheme.field, sent[1][0].body, scheme.symbols)
    again = scheme.query(question, Fresh())[0]
    for label, query in (("this time", seen), ("if asked again", again)):
        table.add_row(label, " ".join(f"{value:>9}" for value in query[:6]))
    console.print(table)
    console.print(
        "Each number is uniform whatever was asked: the server could have drawn it itself. Server 2 saw as many"
    )
    console.print("other numbers. They are not shown, because both together tell the question.\n")


def main() -> None:
    """Start two servers, ask one question, and show every side of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = int(os.environ.get("ROWS") or 0)
        database, person = make_large(rows) if rows else make_database()
        with serving(folder, database, service="demo", linked=True, apart=True) as servers:
            try:
                run(folder, database, person, [server.url for server in servers])
                if os.environ.get("ONCE"):
                    return
                console.print("The servers keep running. Press Ctrl-C to stop them.")
                while all(server.process.poll() is None for server in servers):
                    time.sleep(0.5)
            except KeyboardInterrupt:
                console.print("\nStopping.")


def run(folder: Path, database: Database, person: dict[str, Any], urls: list[str]) -> None:
    """Ask, show the answer and what server 1 saw, and write tickets for more questions."""
    sent: dict[int, list[Request]] = defaultdict(list)

    def watch(peer: Peer, message: Request, _: Reply) -> None:
        sent[peer.manifest.server].append(message)

    operator = read_public(folder / "2" / SERVER_PUBLIC)  # as its operator would publish it
    with Client(urls, watch=watch, operators=[operator]) as client:
        count, deployment = len(database.codes), client.deployment
        linked = deployment.scheme.protocol.linked
        how = "settle it between them" if linked else "do not talk"
        console.print(f"\n[bold]Counterveil[/bold]: {count:,} {deployment.served}s at two servers that {how}.\n")
        terms, expires = client.peers[0].manifest.terms, int(time.time()) + 86_400
        issuer = Issuer.load(folder / PRIVATE)
        first, *others = [mint(terms, [1, 2], expires=expires, issuer=issuer).text() for _ in range(1 + TICKETS)]
        began = time.perf_counter()
        found = client.ask(person, PREFERENCES, ticket=first)
        took = time.perf_counter() - began
        show(console, found)
        console.print()
        show_noise(client, sent, person)
        print_traffic(client.peers)
        question, costs = compile_question(deployment, deployment.schema.codes(person), PREFERENCES)
        lowest = deployment.scheme.form.costs(deployment.rows(database.codes), question).min()
        same = isinstance(found, Counterfactual) and sum(costs.of(deployment.schema.codes(found.values))) == lowest
        console.print(f"The question took {took:.1f} s.")
        console.print(f"Same cost as a search in the clear: {'yes' if same else 'NO'}.")
        console.print(f"The bank gave away the record, and {deployment.tells(count)}.\n")
        if not same:
            raise SystemExit(1)
    (folder / "tickets").write_text("\n".join(others) + "\n")
    (folder / "person.json").write_text(json.dumps(person))
    if not os.environ.get("ONCE"):
        fragment = [("ticket", others[-1]), ("person", json.dumps(person))]
        console.print("[bold]Open the applicant's page[/bold], filled in and with a ticket:")
        console.print(f"{urls[0]}/#{urlencode(fragment)}\n", soft_wrap=True, style="blue")
        console.print(f"{TICKETS} tickets are in {folder / 'tickets'}. Or ask from another terminal:")
        key = folder / "2" / SERVER_PUBLIC
        ask = f"{Path(sys.executable).parent / 'counterveil'} ask --terms {folder / 'terms'} --operator {key}"
        mine = f"--tickets {folder / 'tickets'} --person {folder / 'person.json'} --immutable age"
        console.print(f"{ask} {mine}\n", soft_wrap=True)


if __name__ == "__main__":
    main()
