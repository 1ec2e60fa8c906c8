"""`counterveil serve` that ends at once, as if killed, before its n-th effect: `test_crashes.py` starts it.

Effects are what a server's party asks for (its input, a ledger entry, a message), and the ledger's own write: before
it, and after it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from counterveil.cli import main
from counterveil.engine import party
from counterveil.engine.party import Party
from counterveil.errors import Refused
from counterveil.service import server
from counterveil.service.ledger import Entry, Ledger, Standing

CRASHED = 9  # the exit status
LEFT = "EFFECTS_LEFT"  # how many effects there are before the crash


def _count() -> None:
    os.environ[LEFT] = str(int(os.environ[LEFT]) - 1)
    if os.environ[LEFT] == "-1":
        os._exit(CRASHED)


def _counted(honest: Party[None], entry: Any) -> Party[None]:
    played, received = _entered(honest, entry), None
    while True:
        try:
            effect = played.send(received)
        except StopIteration:
            return
        _count()
        received = yield effect


def _performed(ledger: Ledger, entries: Sequence[Entry]) -> list[Standing | Refused]:
    _count()
    outcomes = _perform(ledger, entries)
    _count()
    return outcomes


_entered, _perform = party.entered, Ledger.perform_all

if __name__ == "__main__":
    setattr(server, "entered", _counted)  # noqa: B010
    Ledger.perform_all = _performed  # type: ignore[method-assign, assignment]
    main(prog_name="counterveil")
