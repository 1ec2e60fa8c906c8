"""Run the commands of a document in one shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from counterveil.research.processes import free_port
from patience import LONG


def run_in_shell(commands: str, folder: Path) -> str:
    """Run commands in a folder, at free ports instead of theirs; stop what they started; return what was said."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for port in sorted(set(re.findall(r"\b8[12]\d\d\b", commands))):
        commands = commands.replace(port, str(free_port()))
    with (folder / "said").open("w") as out:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", commands],  # noqa: S607
            cwd=folder, env=os.environ | {"PATH": path}, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    code: int | str
    try:
        code = shell.wait(timeout=LONG)
    except subprocess.TimeoutExpired:
        code = "it did not end"
    finally:
        os.killpg(shell.pid, signal.SIGTERM)  # the servers still run
    said = (folder / "said").read_text()
    logs = "".join(log.read_text() for log in folder.glob("*.log"))
    assert code == 0, said + logs
    return said
