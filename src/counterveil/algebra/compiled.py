"""Compile functions to machine code with numba, which the `server` extra installs."""

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
_MOST_LINKS = 40  # symbolic links on one path; Linux has the same limit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as machine code that lets other threads run, cached on disk where that is safe.

    Without numba this raises ImportError. The function must give the same result when it is called twice: if the cached
    code turns out to be damaged, the call is repeated with newly compiled code.

    Security: cached code is executed. So it is used only where nobody but this user (or root) can change the cache
    folder, a folder above it, or a file in it.
    """
    numba = importlib.import_module("numba")
    fresh = numba.njit(nogil=True)(function)
    try:
        cached = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder for its cache
        return fresh  # type: ignore[no-any-return]
    usable = hasattr(cached, "stats") and _writes_for_itself() and _is_ours(cached.stats.cache_path)

    def call(*arguments: Any) -> Any:
        nonlocal usable
        if usable:
            try:
                return cached(*arguments)
            except _DAMAGE:  # the cached code is damaged, or the disk is full
                usable = False
        return fresh(*arguments)

    return call


def _writes_for_itself() -> bool:
    """Tell whether only this user can write to the files that this process creates."""
    if not hasattr(os, "getuid"):
        return True
    mask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(mask)
    return mask & _OTHERS_WRITE == _OTHERS_WRITE


def _is_ours(folder: str) -> bool:
    """Tell whether only this user (or root) can change the folder, a folder above it, or a file in it.

    Symbolic links are followed one at a time, and each is checked: whoever can change a link decides what is read.
    """
    if not hasattr(os, "getuid"):
        return True
    if not os.path.isabs(folder):  # it means another folder once the process changes its own
        return False
    here, remaining, links = os.sep, folder.split(os.sep)[::-1], 0
    try:
        while remaining:
            part = remaining.pop()
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
            remaining += target.split(os.sep)[::-1]
        with os.scandir(here) as entries:
            return _only_we_write(os.lstat(here)) and all(map(_is_our_file, entries))
    except OSError:
        return False


def _is_our_file(entry: os.DirEntry[str]) -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # another process of ours has just renamed it
        return True
    return stat.S_ISREG(about.st_mode) and _only_we_write(about)


def _only_we_write(about: os.stat_result, *, sticky: bool = False) -> bool:
    """Tell whether only we can write. With `sticky`, accept a folder in which others can write but not rename ours."""
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
    """Tell whether machine code pays: numba is imported already, or the work takes longer than importing it."""
    return size >= worthwhile or "numba" in sys.modules


def where_it_pays(function: Callable[..., Any], size: int, worthwhile: int) -> Any:
    """Return the function as machine code, or None if numba is missing or there is too little work."""
    return _compiled(function) if pays(size, worthwhile) else None
