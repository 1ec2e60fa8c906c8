"""How many cases tests try: few in CI, where many other tests run too, and all of them in `make long`."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("COUNTERVEIL_LONG"))


def some(count: int, share: int = 5) -> int:
    """Return the count in `make long`, and else one in `share` of it."""
    return count if ALL else -(-count // share)
