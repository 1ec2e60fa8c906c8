"""Wait in tests for a condition, with one limit that even a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 300.0  # seconds; only a test that fails waits this long


def wait_until(condition: Callable[[], bool], pause: Callable[[float], object] = time.sleep) -> None:
    """Wait until the condition holds; `pause` is called between two checks."""
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until, f"it did not happen within {LONG:g} seconds"
        pause(0.02)
