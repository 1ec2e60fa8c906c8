"""Change the common key while servers run: a folder of keys, of which each says when it begins and when it ends.

A key is pending before it begins, active until it ends, and retired after that. Both operators have the same files, so
both know the same times. A server that has a pending key answers under it already, in case the other server's clock, or
its operator, is ahead. Nothing is lost if one operator is late: applicants take a key that both servers have.

Security: a file is written under another name and then renamed, readable by its owner only. If root runs this, the
owner stays the same, so that the server can read its keys at its next start. Notes beside a key file, which say with
which ledger it was used (`keys.bind_common`), stay when the key is removed.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from ..errors import InvalidKey
from .keys import CommonKey, read_common_key, read_common_keys
from .randomness import new_key


def make_key(folder: Path, *, begins: int, ends: int | None) -> CommonKey:
    """Write a new common key to a folder."""
    return _written(folder, CommonKey(new_key(), begins, ends))


def add_key(folder: Path, path: Path) -> CommonKey:
    """Take a key that another operator made into the folder, with its times."""
    return _written(folder, read_common_key(path))


def _written(folder: Path, key: CommonKey) -> CommonKey:
    path = folder / f"{key.id.hex()[:16]}.key"
    if any(other.id == key.id for other in (read_common_keys(folder) if folder.is_dir() else [])):
        raise InvalidKey(str(path), got="this key there already", expected="a new one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidKey(str(folder), got=error.strerror, expected="a folder that can be written") from None
    return change_key(replace(key, path=path))


def change_key(key: CommonKey) -> CommonKey:
    """Write a key's file anew, atomically: a server that starts meanwhile reads the old file or the new one."""
    path = key.path
    if path is None:
        raise InvalidKey("common key", got="no file", expected="one to write")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner only
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(key.text())
            file.flush()
            os.fsync(file.fileno())
            _keep_owner(file.fileno(), path)
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidKey(str(path), got=error.strerror, expected="a folder that can be written") from None
    return key


def _keep_owner(handle: int, path: Path) -> None:
    """Let root write for the server's user: give a file the owner of the one that it replaces, or of the folder."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        before = (path if path.exists() else path.parent).stat()
        os.fchown(handle, before.st_uid, before.st_gid)


def find_key(folder: Path, name: str) -> CommonKey:
    """Return the key of a folder whose id begins with these digits."""
    found = [key for key in read_common_keys(folder) if name and key.id.hex().startswith(name.lower())]
    if len(found) != 1:
        raise InvalidKey(str(folder), got=f"{len(found)} keys with the id {name}", expected="one")
    return found[0]


def end_others(folder: Path, key: CommonKey, overlap: int) -> list[CommonKey]:
    """Let all older keys end some seconds after a new one begins, unless they end before; return those that changed."""
    ends, others = key.begins + overlap, [other for other in read_common_keys(folder) if other.id != key.id]
    older = [other for other in others if other.begins <= key.begins and (other.ends is None or other.ends > ends)]
    return [change_key(replace(other, ends=ends)) for other in older]


def remove_key(key: CommonKey) -> None:
    """Delete the file of a key. The notes beside it stay: with them, another ledger under this key is still refused."""
    if key.path is not None:
        try:
            key.path.unlink()
        except OSError as error:
            raise InvalidKey(str(key.path), got=error.strerror, expected="a file that can be deleted") from None
