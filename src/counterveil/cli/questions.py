"""What several honest questions give away: a part of the command leakage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from ..research.budget import Asked, Told, together
from ..research.budget import tickets as fitting
from ..research.leakage import simulation
from ..research.maximal import vectors
from ..schemes.reveals import REVEALS
from ..schemes.scheme import Scheme
from ..terms.deployment import Deployment


def called(scheme: Scheme) -> str:
    """Return a name for people: order, reveal, mask, and the protocol if servers must be linked for it."""
    reveal, protocol = scheme.reveal, scheme.protocol
    extra = (f", d_min {reveal.d_min}" if reveal.masked else "") + (f", {protocol.name}" if protocol.linked else "")
    shuffled = reveal.shuffle and not REVEALS[reveal.name].shuffle
    return ("shuffled " if shuffled else "") + reveal.name.replace("_", " ") + extra


@dataclass(frozen=True)
class Budget:
    """What honest questions tell under one reveal, from 1 to as many as were asked for, and how many tickets fit."""

    made: Deployment
    curve: list[Told]
    tickets: int

    @property
    def name(self) -> str:
        """The reveal, without the protocol."""
        return called(self.made.scheme).removesuffix(f", {self.made.scheme.protocol.name}")

    def any_question(self, rows: int) -> float:
        """Return the bits that one question of any kind can tell at most, with its records.

        A cheat gets a mixture of rows in place of a record, and may choose it by their place (docs/paper.md, 4 and 5).
        """
        scheme, place = self.made.scheme, max(6, math.ceil(math.log2(rows)))
        return scheme.reveal.capacity(scheme.field, rows) + self.made.k * (math.log2(rows) + place)

    def any_questions(self, rows: int) -> float:
        """Return the bits that as many questions of any kind can tell at most."""
        most = vectors(rows, rows, self.made.scheme.reveal.shuffle)
        return min(self.curve[-1].questions * self.any_question(rows), most)

    def any_tickets(self, share: float, rows: int) -> int:
        """Return how many questions of any kind give away at most this share."""
        return int(share * self.curve[-1].whole / self.any_question(rows))

    def to_dict(self, share: float, rows: int) -> dict[str, Any]:
        """Return it ready for JSON."""
        reveal = self.made.scheme.reveal
        return {
            "reveal": reveal.name, "shuffle": reveal.shuffle, "d_min": reveal.d_min, "tickets": self.tickets,
            "tickets_to_anybody": self.any_tickets(share, rows),
            "bits_of_all_rows": round(self.curve[-1].whole, 2), "any_questions": round(self.any_questions(rows), 2),
            "curve": [{"questions": t.questions, "bits": [round(t.low, 2), round(t.high, 2)]} for t in self.curve],
        }  # fmt: skip


def measure(
    rungs: Sequence[Deployment], asked: Asked, questions: int, share: float, rows: int, seed: int
) -> list[Budget]:
    """Measure every reveal once: what it tells does not depend on the protocol."""
    steps = sorted({questions, *(2**n for n in range(questions.bit_length()))})
    shown = track(
        list({made.scheme.reveal: made for made in reversed(rungs)}.values()),
        description="questions", transient=True, disable=not Console().is_terminal,
    )  # fmt: skip
    found, generator = [], simulation(seed)
    for made in shown:
        reveal = made.scheme.reveal
        curve = [together(reveal, asked, t, rows, k=made.k, generator=generator) for t in steps]
        found.append(Budget(made, curve, fitting(reveal, asked, share, rows, k=made.k, generator=generator)))
    return found[::-1]


def say(console: Console, told: Sequence[Budget], share: float, rows: int) -> None:
    """Print the table: a line for each reveal."""
    title = f"What {told[0].curve[-1].questions} honest questions give away, with their records"
    grid = Grid(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)  # 80 columns; JSON has every number
    grid.add_column("reveal")
    for heading in ("one", "from", "to", "of", "share", "any", "tickets", "anybody"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for each in told:
        last = each.curve[-1]
        colour = "red" if last.share > 0.5 else "yellow" if last.share > share else "green"
        grid.add_row(
            each.name.replace("differences,", "diff.,"),
            f"{each.curve[0].high:,.0f}", f"{last.low:,.0f}", f"{last.high:,.0f}", f"{last.whole:,.0f}",
            f"[{colour}]{last.share:.0%}[/{colour}]", f"{each.any_questions(rows):,.0f}", f"{each.tickets:,}",
            f"{each.any_tickets(share, rows):,}",
        )  # fmt: skip
    console.print(grid)
    console.print(
        "'One': the bits of one question, at most. 'From', 'to': of all of them. 'Of': the bits that there are. "
        f"'Tickets': so many honest questions give away at most {share:.0%} of these. "
        "'Any': what as many questions can tell that are made up for the purpose. 'Anybody': so many "
        f"tickets keep within {share:.0%} whoever gets them."
    )
