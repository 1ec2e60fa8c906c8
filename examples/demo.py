"""One private retrieval, in one process, seen from every side.

A bank rejected someone. They want to know what an accepted person like them looks like, and they do not want to tell
the bank who they are, what they can change, or what they were shown. Two servers answer; neither learns anything.
"""

from __future__ import annotations

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import counterveil

FEATURES = [  # name, step and unit of one level, how reluctant our applicant is to change it
    ("monthly income", 250, "€", 2),
    ("savings", 1000, "€", 1),
    ("years in this job", 1, "years", 4),
    ("open loans", 1, "loans", 1),
    ("age", 5, "years", 10),
]
LEVELS = 20
APPLICANT = np.array([7, 2, 3, 4, 6])

console = Console(width=100)


def accepted_rows() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Simulate people and keep those whom the bank's scoring accepts."""
    people = np.random.default_rng(2026).integers(0, LEVELS + 1, (3000, len(FEATURES)))
    people[:, 3] %= 8
    score = people @ [5, 3, 2, -4, 0]
    return np.unique(people[score > 90], axis=0)


def shown(level: int, feature: int) -> str:
    """Write one level in the applicant's own units."""
    _, step, unit, _ = FEATURES[feature]
    return f"{level * step:,} {unit}"


def show_noise(first: counterveil.Retrieval, second: counterveil.Retrieval) -> None:
    """Show what each server saw of the question, and of the same question asked again."""
    table = Table(title="What each server saw of it", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column(f"numbers mod {first.field.q}, the first eight", justify="left")
    for n in range(first.scheme.servers):
        for label, found in (("", first), (", same question again", second)):
            numbers = " ".join(f"{value:>5}" for value in found.views[n].query[:8])
            table.add_row(f"server {n + 1}{label}", numbers)
    console.print(table)


def show_answer(found: counterveil.Retrieval) -> None:
    """Show the record that was fetched, beside the applicant's own file."""
    table = Table(title="What the applicant got: the nearest accepted row", box=box.SIMPLE_HEAD)
    for heading in ("feature", "now", "accepted at", "reluctance to change"):
        table.add_column(heading, justify="left" if heading == "feature" else "right")
    row = np.frombuffer(found.record, dtype=np.uint8)
    for j, (name, _, _, weight) in enumerate(FEATURES):
        same = row[j] == APPLICANT[j]
        after = "unchanged" if same else f"[bold]{shown(int(row[j]), j)}[/bold]"
        table.add_row(name, shown(int(APPLICANT[j]), j), after, str(weight))
    console.print(table)


def main() -> None:
    """Ask once, and once more to compare; show every side; check against a search in the clear."""
    rows = accepted_rows()
    weights = np.array([weight for *_, weight in FEATURES])

    def ask() -> counterveil.Retrieval:
        return counterveil.retrieve(rows, APPLICANT, levels=LEVELS, scheme="linear-diff", weights=weights, shuffle=True)

    found = ask()
    console.print(f"\n[bold]Counterveil[/bold]: {len(rows):,} accepted rows at two servers that do not talk.\n")
    show_noise(found, ask())
    console.print("Each number is uniform whatever was asked: a server could have drawn it itself.\n")
    show_answer(found)

    in_the_clear = (weights * (rows - APPLICANT) ** 2).sum(axis=1)
    exact = in_the_clear[found.index] == in_the_clear.min()
    up, down = found.symbols
    console.print(f"Same cost as a search in the clear: {'yes' if exact else 'NO'}.")
    console.print(f"Sent {up} numbers up and {down:,} down, {found.field.bits} bits each, for both servers together.")
    console.print(
        f"The bank gave away {found.revealed.size:,} differences of costs, in an order of this ticket alone.\n"
    )
    if not exact:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
