"""A real rejection explained, privately, in one process and seen from every side.

A small model learns from the German credit data who is a good risk. It rejects someone. They want to know what an
accepted person like them looks like, and they do not want to tell the bank who they are, what they could change, or
what they were shown. Two servers answer; neither learns anything.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from counterveil import Counterfactual, Database, Local, Preferences, local
from counterveil.datasets import german_credit
from counterveil.frames import Table as Frame
from counterveil.randomness import Fresh

PREFERENCES = Preferences(
    immutable=["age", "personal_status", "foreign_worker", "dependants"],
    increase_only=["employment", "savings"],
    decrease_only=["amount", "duration"],
    ranges={"amount": (2000, None)},
    weights={"purpose": 5, "housing": 3},
)
console = Console(width=100)


def make_bank() -> tuple[Local, dict[str, Any]]:
    """Train the model, build the bundle of those it accepts, open it; return the bank and someone it rejects."""
    frame, schema = german_credit()
    model = make_pipeline(FunctionTransformer(schema.quantise), StandardScaler(), LogisticRegression())
    people = Frame(frame)
    model.fit(frame, people.frame["credit"].to_list())
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "german-credit.bundle"
        Database.build(frame, schema, model, "good").save(bundle)
        bank = local(Database.open(bundle))
    verdicts = model.predict(frame)
    rejected = next(p for p, v in zip(people.people(), verdicts, strict=True) if v == "bad" and p["amount"] > 2000)
    return bank, {name: rejected[name] for name in schema.names}


def show_noise(bank: Local, person: dict[str, Any]) -> None:
    """Show what each server sees of the question, and of the same question asked again."""
    scheme = bank.deployment.scheme
    question, _ = bank.deployment.question(bank.deployment.schema.codes(person), PREFERENCES)
    asked = [scheme.query(question, Fresh()) for _ in range(2)]
    table = Table(title="What each server saw of it", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column(f"the first six of {scheme.form.symbols} numbers mod {scheme.field.q:,}")
    for n in range(scheme.servers):
        for label, queries in (("", asked[0]), (", same question again", asked[1])):
            table.add_row(f"server {n + 1}{label}", " ".join(f"{value:>9}" for value in queries[n][:6]))
    console.print(table)


def show_answer(found: Counterfactual) -> None:
    """Show what would have to change."""
    table = Table(title="What the applicant got: the nearest accepted row", box=box.SIMPLE_HEAD)
    for heading in ("feature", "now", "accepted at", "share of the cost"):
        table.add_column(heading, justify="right" if heading == "share of the cost" else "left")
    for change in found.changes:
        shown = change.feature.show
        table.add_row(
            change.feature.title, shown(change.before), f"[bold]{shown(change.after)}[/bold]", f"{change.share:.0%}"
        )
    table.caption = f"Unchanged: {', '.join(feature.title for feature in found.unchanged)}."
    console.print(table)
    console.print(found.text() + "\n")


def main() -> None:
    """Ask one question and show every side of it."""
    bank, person = make_bank()
    count = len(bank.database.codes)
    console.print(f"\n[bold]Counterveil[/bold]: {count} accepted rows at two servers that do not talk.\n")
    show_noise(bank, person)
    console.print("Each number is uniform whatever was asked: a server could have drawn it itself.\n")
    found = bank.ask(person, PREFERENCES)
    if not isinstance(found, Counterfactual):
        raise SystemExit(found.text())
    show_answer(found)
    _, costs = bank.deployment.question(bank.deployment.schema.codes(person), PREFERENCES)
    least = min(sum(costs.of(row)) for row in bank.database.codes) / bank.deployment.unit
    console.print(f"Same cost as a search in the clear: {'yes' if found.cost == least else 'NO'}.")
    scheme = bank.deployment.scheme
    up, down = scheme.servers * scheme.form.symbols, scheme.servers * scheme.reveal.length(count)
    console.print(f"Sent {up} numbers up and {down:,} down, {scheme.field.bits} bits each, for both servers together.")
    console.print(
        f"The bank gave away the record, and {count - 1} differences of costs in an order of this ticket alone.\n"
    )


if __name__ == "__main__":
    main()
