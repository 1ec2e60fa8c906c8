"""Compare what `counterveil plan --measure` predicts with what is measured, at sizes that fit this machine.

Processor seconds of each party and memory of a question are compared, all parties in one process. The constants come
from other sizes and shapes than those that are predicted.
"""

from __future__ import annotations

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table

from counterveil.research.constants import Constants, Played, measure
from counterveil.research.planning import Plan

CASES: tuple[tuple[str, int, int, int], ...] = (
    ("joint", 100_000, 20, 16), ("joint", 300_000, 40, 64), ("joint", 1_000_000, 10, 64),
    ("padded", 300_000, 40, 64), ("padded", 1_000_000, 20, 16), ("padded", 300_000, 20, 256),
    ("garbled", 10_000, 20, 16), ("garbled", 20_000, 40, 64),
)  # fmt: skip


def main() -> None:
    """Print a line for each number: predicted, measured, and their ratio."""
    console = Console()
    with console.status("Measuring") as status:
        found = [asdict(measure(lambda what: status.update(f"Measuring: {what}"))) for _ in range(2)]
    constants = Constants(**{name: min(each[name] for each in found) for name in found[0]})  # others may be at work
    table = Table("protocol", "rows", "features", "levels", "what", "predicted", "measured", "ratio")
    worst = 1.0
    for protocol, rows, features, levels in CASES:
        plan = Plan(rows, features, 1.0, protocol, levels, constants=constants)
        played = Played(plan.deployment, rows, plan.package)
        seconds = played.seconds()
        pairs = [("server, ms", 1000 * plan.server, 1000 * max(seconds[0], seconds[1]))]
        if plan.dealer:
            pairs.append(("dealer, ms", 1000 * plan.dealer, 1000 * seconds["dealer"]))
            held = plan.question_held / (constants.joint_held + 1) * constants.joint_held
        else:
            held = plan.question_held
        pairs.append(("memory, MB", held / 1e6, played.held() / 1e6))
        for what, predicted, measured in pairs:
            ratio = predicted / measured
            worst = max(worst, ratio, 1 / ratio)
            numbers = (f"{predicted:,.1f}", f"{measured:,.1f}", f"{ratio:.2f}")
            table.add_row(protocol, f"{rows:,}", str(features), str(levels), what, *numbers)
    console.print(table)
    console.print(f"The worst is off by a factor of {worst:.2f}. Constants: {constants}")


if __name__ == "__main__":
    main()
