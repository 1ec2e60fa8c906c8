"""What an attacker would put into a file that Python unpickles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Planted:
    """An object that leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.trace,)
