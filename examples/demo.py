"""A real rejection explained, privately: two servers in processes of their own, one question, seen from every side.

A small model learns from the German credit data who is a good risk. It rejects someone. They want to know what an
accepted person like them looks like, and they do not want to tell the bank who they are, what they could change, or
what they were shown. Two servers answer; neither learns anything.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from counterveil import Client, Counterfactual, Database, Preferences
from counterveil.agreement import Peer
from counterveil.cli_applicant import show, traffic_table
from counterveil.datasets import german_credit
from counterveil.frames import Table as Frame
from counterveil.keys import COMMON, PRIVATE, PUBLIC, Issuer, write_keys
from counterveil.randomness import Fresh
from counterveil.tickets import mint
from counterveil.wire import Message, unpack

PREFERENCES = Preferences(
    immutable=["age", "personal_status", "foreign_worker", "dependants"],
    increase_only=["employment", "savings"],
    decrease_only=["amount", "duration"],
    ranges={"amount": (2000, None)},
    weights={"purpose": 5, "housing": 3},
)
TICKETS = 100
BUNDLE = "german-credit.bundle"
console = Console(width=100)


def make_bundle(folder: Path) -> tuple[Database, dict[str, Any]]:
    """Train the model, build and sign the bundle of those it accepts; return it and someone it rejects."""
    frame, schema = german_credit()
    model = make_pipeline(FunctionTransformer(schema.quantise), StandardScaler(), LogisticRegression())
    people = Frame(frame)
    model.fit(frame, people.frame["credit"].to_list())
    database = Database.build(frame, schema, model, "good").sign(Issuer.load(folder / PRIVATE))
    database.save(folder / BUNDLE)
    verdicts = model.predict(frame)
    rejected = next(p for p, v in zip(people.people(), verdicts, strict=True) if v == "bad" and p["amount"] > 2000)
    return database, {name: rejected[name] for name in schema.names}


def start_servers(folder: Path) -> tuple[list[subprocess.Popen[bytes]], list[str]]:
    """Start both servers, each as an institution would; return the processes and their addresses."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    processes = []
    for number, port in enumerate(ports, start=1):
        settings = {
            "server": number,
            "common-key": folder / COMMON,
            "issuer": folder / PUBLIC,
            "ledger": folder / f"ledger-{number}",
            "port": port,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        options += [part for url in urls for part in ("--peer", url)]
        command = [str(Path(sys.executable).parent / "counterveil"), "serve", str(folder / BUNDLE), "--new-ledger"]
        with (folder / f"server-{number}.log").open("wb") as log:
            processes.append(subprocess.Popen([*command, *options], stderr=log, start_new_session=True))  # noqa: S603
    return processes, urls


def stop_servers(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let them finish what is under way."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def show_noise(client: Client, sent: dict[int, list[Message]], person: dict[str, Any]) -> None:
    """Show what each server saw of the question, and what it would have seen of the same question asked again."""
    deployment = client.deployment
    scheme = deployment.scheme
    question, _ = deployment.question(deployment.schema.codes(person), PREFERENCES)
    again = scheme.query(question, Fresh())
    table = Table(title="What each server saw of the question", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column(f"the first six of {scheme.symbols} numbers mod {scheme.field.q:,}")
    for n in range(1, scheme.servers + 1):
        seen = unpack("query", scheme.field, sent[n][0].body, scheme.symbols)
        for label, query in (("", seen), (", if asked again", again[n - 1])):
            table.add_row(f"server {n}{label}", " ".join(f"{value:>9}" for value in query[:6]))
    console.print(table)
    console.print("Each number is uniform whatever was asked: a server could have drawn it itself.\n")


def main() -> None:
    """Start two servers, ask one question, and show every side of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_keys(folder)
        database, person = make_bundle(folder)
        processes, urls = start_servers(folder)
        try:
            run(folder, database, person, urls)
            if os.environ.get("ONCE"):
                return
            console.print("The servers keep running. Press Ctrl-C to stop them.")
            while all(process.poll() is None for process in processes):
                time.sleep(0.5)
        except KeyboardInterrupt:
            console.print("\nStopping.")
        finally:
            stop_servers(processes)


def run(folder: Path, database: Database, person: dict[str, Any], urls: list[str]) -> None:
    """Ask, show what came back and what each server saw, and leave tickets for more."""
    sent: dict[int, list[Message]] = defaultdict(list)

    def watch(peer: Peer, message: Message, _: Message) -> None:
        sent[peer.manifest.server].append(message)

    with Client(urls, patience=60, watch=watch) as client:
        count, deployment = len(database.codes), client.deployment
        console.print(f"\n[bold]Counterveil[/bold]: {count} accepted rows at two servers that do not talk.\n")
        digest, expires = bytes.fromhex(client.peers[0].manifest.digest), int(time.time()) + 86_400
        issuer = Issuer.load(folder / PRIVATE)
        first, *others = [mint(digest, [1, 2], expires=expires, issuer=issuer).text() for _ in range(1 + TICKETS)]
        found = client.ask(person, PREFERENCES, ticket=first)
        show(console, found)
        console.print()
        show_noise(client, sent, person)
        console.print(traffic_table(client.peers))
        _, costs = deployment.question(deployment.schema.codes(person), PREFERENCES)
        least = min(sum(costs.of(row)) for row in database.codes) / deployment.unit
        same = isinstance(found, Counterfactual) and found.cost == least
        console.print(f"Same cost as a search in the clear: {'yes' if same else 'NO'}.")
        console.print(f"The bank gave away the record, and {deployment.scheme.reveal.tells(count)}.\n")
        if not same:
            raise SystemExit(1)
    (folder / "tickets").write_text("\n".join(others) + "\n")
    (folder / "person.json").write_text(json.dumps(person))
    if not os.environ.get("ONCE"):
        addresses = " ".join(f"--server {url}" for url in urls)
        behind = [("ticket", others[-1]), ("person", json.dumps(person))]
        console.print("[bold]Open the applicant's page[/bold], filled in and with a ticket:")
        console.print(f"{urls[0]}/#{urlencode(behind)}\n", soft_wrap=True, style="blue")
        console.print(f"{TICKETS} tickets are in {folder / 'tickets'}. Or ask from another terminal:")
        ask = f"{Path(sys.executable).parent / 'counterveil'} ask {addresses} --person {folder / 'person.json'}"
        console.print(f'{ask} --immutable age --ticket "$(sed -n 1p {folder / "tickets"})"\n', soft_wrap=True)


if __name__ == "__main__":
    main()
