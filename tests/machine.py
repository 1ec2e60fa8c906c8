"""What this machine can do. Cases that it cannot run are not collected; the head of the report says which."""

from __future__ import annotations

import shutil
import subprocess

from counterveil.engine import scans

INSIDE = ["unshare", "--map-root-user", "--mount"]  # a mount in here ends with its process


def _mounts() -> bool:
    """Say whether a small disk of our own can be mounted."""
    command = [*INSIDE, "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


VECTORS = [True, False] if scans.VECTORS else [False]  # scans by vectors, and without
FULL = ["disk", "limit"] if _mounts() else ["limit"]  # where a ledger runs out of room


def left_out() -> list[str]:
    """Return a line for each kind of case that is left out."""
    lines = [] if True in VECTORS else ["left out: scans by vectors, since this processor lacks AVX-512"]
    return lines + ([] if "disk" in FULL else ["left out: a full disk, since none can be mounted here"])
