"""Functions in machine code, by numba, which comes with the server extra."""

from __future__ import annotations

import importlib
import os
import pickle
import stat
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

_DAMAGE = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError, KeyError, ValueError)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as machine code that lets other threads run, kept on disk for the next time where it can be.

    Without numba this is an ImportError. The function must do the same when it is called again, in case what was kept
    turns out to be damaged.

    Security: what is kept is run, so it is kept only where nobody but this user (or root) may write.
    """
    numba = importlib.import_module("numba")
    afresh = numba.njit(nogil=True)(function)
    try:
        kept = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return afresh  # type: ignore[no-any-return]
    usable = hasattr(kept, "stats") and _is_ours(kept.stats.cache_path)

    def call(*arguments: Any) -> Any:
        nonlocal usable
        if usable:
            try:
                return kept(*arguments)
            except _DAMAGE:  # of what was kept, or the disk is full
                usable = False
        return afresh(*arguments)

    return call


def _is_ours(folder: str) -> bool:
    about = os.stat(folder)
    return not hasattr(os, "getuid") or (about.st_uid in (os.getuid(), 0) and not about.st_mode & stat.S_IWOTH)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
