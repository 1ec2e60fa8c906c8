"""A server that crashes before any one of its effects and comes back: each ticket is answered once, none is lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import crashing
from counterveil import Counterfactual, local
from counterveil.errors import ServerFault
from counterveil.research.processes import COMMAND
from counts import ALL
from patience import LONG, wait_until
from service import Process, ledger_rows, numbers_database, running

pytestmark = pytest.mark.slow
EVERY = [*range(8), *range(8, 200, 1 if ALL else 15)]  # effects before which it crashes
PERSON, OTHER = {"x0": 3, "x1": 9, "x2": 14}, {"x0": 20, "x1": 0, "x2": 1}


def armed(process: Process, effects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the server anew, so that it ends before its effect of that number."""
    plain = process._command

    def command() -> Sequence[object]:
        script = [sys.executable, crashing.__file__]
        return [*script, *plain[len(COMMAND) :], "--ledger", process.ledger, "--port", process.port]

    monkeypatch.setattr(process, "command", command)
    monkeypatch.setenv(crashing.LEFT, str(effects))
    process.stop()
    process.start()
    process.wait()
    monkeypatch.undo()


@pytest.mark.parametrize("reveal", ["sealed"])
def test_a_server_that_crashes_before_any_effect(reveal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = numbers_database(30, 3)
    expected = local(database, f"table/{reveal}").ask(PERSON)
    assert isinstance(expected, Counterfactual)
    steps = 1 if reveal == "sealed_record" else 2  # the question, and the record
    with running(tmp_path, database, 2, "--scheme", f"table/{reveal}") as service, service.client() as client:
        first, crashes = service.processes[0], 0
        for number, effects in enumerate(EVERY, start=1):
            armed(first, effects, monkeypatch)
            ticket, found = service.ticket(client), list[Any]()
            asking = threading.Thread(target=lambda: found.append(client.ask(PERSON, ticket=ticket)), daemon=True)  # noqa: B023
            asking.start()
            wait_until(lambda: first.process.poll() is not None or not asking.is_alive())  # noqa: B023
            crashed = first.process.poll()
            if crashed is not None:
                assert crashed == crashing.CRASHED
                crashes += 1
                first.start()
                first.wait()
            asking.join(LONG)
            if crashed is None:  # it has effects left, and would crash at a later one
                first.kill()
                first.start()
                first.wait()
            assert found[0].cost == expected.cost
            entries = [request for _, request, *_ in ledger_rows(first.ledger)]
            assert len(entries) == steps * number  # each ticket once, however it went
            with pytest.raises(ServerFault) as refused:
                client.ask(OTHER, ticket=ticket)
            assert refused.value.code == "ticket_used"
            if crashed is None:
                break
        assert crashes >= 5 * steps  # input, entry, before and after the write, and a message
        assert os.environ.get(crashing.LEFT) is None
