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
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # on the way to a folder, as Linux has it


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as machine code that lets other threads run, kept on disk for the next time where it can be.

    Without numba this is an ImportError. The function must do the same when it is called again, in case what was kept
    turns out to be damaged.

    Security: what is kept is run, so it is kept and read only where nobody but this user (or root) may write: neither
    the folder, nor a folder on the way to it, nor a file in it.
    """
    numba = importlib.import_module("numba")
    afresh = numba.njit(nogil=True)(function)
    try:
        kept = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return afresh  # type: ignore[no-any-return]
    usable = hasattr(kept, "stats") and _writes_for_itself() and _is_ours(kept.stats.cache_path)

    def call(*arguments: Any) -> Any:
        nonlocal usable
        if usable:
            try:
                return kept(*arguments)
            except _DAMAGE:  # of what was kept, or the disk is full
                usable = False
        return afresh(*arguments)

    return call


def _writes_for_itself() -> bool:
    """Tell whether files that this process makes can be written by its user alone."""
    if not hasattr(os, "getuid"):
        return True
    mask = os.umask(0o077)  # the one way to read it is to set it
    os.umask(mask)
    return mask & _OTHERS_WRITE == _OTHERS_WRITE


def _is_ours(folder: str) -> bool:
    """Tell whether nobody but this user (or root) can change the folder, the way to it, or a file in it.

    Links are followed one at a time: whoever can change one of them decides what is read.
    """
    if not hasattr(os, "getuid"):
        return True
    if not os.path.isabs(folder):  # another one when the process moves elsewhere
        return False
    here, ahead, links = os.sep, folder.split(os.sep)[::-1], 0
    try:
        while ahead:
            part = ahead.pop()
            if part in ("", ".", ".."):
                here = os.path.dirname(here) if part == ".." else here
                continue
            there = os.path.join(here, part)
            about = os.lstat(there)
            if not _only_we_write(os.lstat(here), sticky=True) or not _we_own(about):
                return False
            if not stat.S_ISLNK(about.st_mode):
                here = there
                continue
            target, links = os.readlink(there), links + 1
            if links > _MOST_LINKS:
                return False
            here = os.sep if os.path.isabs(target) else here
            ahead += target.split(os.sep)[::-1]
        with os.scandir(here) as entries:
            return _only_we_write(os.lstat(here)) and all(map(_is_our_file, entries))
    except OSError:
        return False


def _is_our_file(entry: os.DirEntry[str]) -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # another process of ours has put it in its place
        return True
    return stat.S_ISREG(about.st_mode) and _only_we_write(about)


def _only_we_write(about: os.stat_result, *, sticky: bool = False) -> bool:
    """Tell whether others cannot write; with `sticky`, they may, to a folder where they cannot rename what is ours."""
    shared = about.st_mode & _OTHERS_WRITE and not (sticky and about.st_mode & stat.S_ISVTX)
    return _we_own(about) and not shared


def _we_own(about: os.stat_result) -> bool:
    return about.st_uid in (os.getuid(), 0)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return compiled(function)
    except ImportError:
        return None


def pays(size: int, worthwhile: int) -> bool:
    """Tell whether there is enough work: with less, NumPy is done before numba has been imported, if it is not yet."""
    return size >= worthwhile or "numba" in sys.modules


def where_it_pays(function: Callable[..., Any], size: int, worthwhile: int) -> Any:
    """Return the function as machine code, or None where there is no numba or too little work."""
    return _compiled(function) if pays(size, worthwhile) else None
