"""Functions in machine code, by numba, which comes with the server extra."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
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


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return compiled(function)
    except ImportError:
        return None


def pays(size: int, least: int) -> bool:
    """Tell whether there is enough work: with less, NumPy is done before numba has been imported, if it is not yet."""
    return size >= least or "numba" in sys.modules


def where_it_pays(function: Callable[..., Any], size: int, least: int) -> Any:
    """Return the function as machine code, or None where there is no numba or too little work."""
    return _compiled(function) if pays(size, least) else None
