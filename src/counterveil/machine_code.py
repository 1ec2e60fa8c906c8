"""Functions in machine code, by numba, which comes with the server extra."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any]) -> Any:
    """Return the function as machine code that lets other threads run, kept on disk for the next time where it can be.

    Without numba this is an ImportError.
    """
    njit = importlib.import_module("numba").njit
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return njit(nogil=True)(function)
