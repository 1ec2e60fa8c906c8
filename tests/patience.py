"""Waiting in tests: for a condition, within one limit that even a busy machine never reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 300.0  # seconds; only a test that fails waits this long


def wait_until(condition: Callable[[], bool], pause: Callable[[float], object] = time.sleep) -> None:
    """Wait until the condition holds; `pause` passes the seconds between two looks."""
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until, f"it did not happen within {LONG:g} seconds"
        pause(0.02)
