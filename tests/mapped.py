"""How much of a mapped file is in memory."""

from __future__ import annotations

import re
from pathlib import Path


def resident(path: Path) -> int:
    """Return how many bytes of a file are mapped, and in this process's memory."""
    found = re.findall(rf" {re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return 1024 * sum(map(int, found))
