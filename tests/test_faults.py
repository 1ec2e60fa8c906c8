"""See `faults.py`: servers, and PostgreSQL, are killed with SIGKILL at random moments under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import run_faults

pytestmark = pytest.mark.slow


def test_no_ticket_is_answered_twice_whatever_is_killed(tmp_path: Path) -> None:
    fault = run_faults(tmp_path, kills=20)
    assert fault.outcomes["ServerFault ticket_used"] > 0  # some cheated, and were refused


def test_no_ticket_is_answered_twice_whatever_is_killed_with_ledgers_in_postgresql(tmp_path: Path) -> None:
    fault = run_faults(tmp_path, kills=10, ledger="postgres")
    assert fault.outcomes["kills of PostgreSQL"] == 1
    assert fault.outcomes["ServerFault ticket_used"] > 0


def test_no_ticket_is_answered_twice_whichever_worker_is_killed(tmp_path: Path) -> None:
    """Single workers, supervisors, and all at once."""
    fault = run_faults(tmp_path, kills=8, workers=2)
    assert fault.outcomes["kills of a worker"] >= 4
    assert fault.outcomes["ServerFault ticket_used"] > 0


def test_no_ticket_gives_two_records_whatever_is_killed_and_everybody_is_answered(tmp_path: Path) -> None:
    """Servers that work together, and the link between them."""
    fault = run_faults(tmp_path, kills=9, joint=True)
    assert fault.outcomes["answered"] >= 5
