"""A lock that the processes of one ledger share, so that no other ledger serves in its place on this machine."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
import weakref
from pathlib import Path

from ...crypto.randomness import delimited
from ...errors import InvalidLedger

try:
    import fcntl
except ImportError:  # no Unix: no lock
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
_PATIENCE = 30.0  # seconds that one waits for others which are just opening the ledger
_GRACE = 0.5  # seconds for a ledger that is just being closed to let go of the lock


class Lock:
    """A lock that the processes of one ledger share, so that no other ledger serves for the same server and key.

    A file in a folder of the user's own says which ledger it is: its place, its instance, its path. It is written by
    one that holds the lock alone, and nobody writes it while others share it. Flock may let go between the one and the
    other, so whoever shares it reads it again. The lock goes with the process, however that ends.
    """

    def __init__(self, key_id: bytes, server: int, path: Path, place: tuple[int, int]) -> None:
        """Hold the lock, alone or with others of this ledger; or keep what other ledger has it."""
        self._path, self._place, self._server = path, "{}:{}".format(*place), server
        name = _private_folder() / hashlib.sha256(delimited([key_id, server])).hexdigest()
        self._file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.release = weakref.finalize(self, os.close, self._file)
        self.alone, self._others = False, False
        until, last = time.monotonic() + _GRACE, time.monotonic() + _PATIENCE
        while not self._try(fcntl.LOCK_EX):
            if self._try(fcntl.LOCK_SH):
                if self._read()[::2] == [self._place, str(path)]:
                    return
                fcntl.flock(self._file, fcntl.LOCK_UN)
                last = until
            if time.monotonic() > last:
                self._others = True
                if self._read()[2] == str(path):  # its log is in use: even to open this file would do harm
                    raise self._refusal("another file, which was there before and is in use")
                return
            time.sleep(0.01)
        self.alone = True

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self) -> list[str]:
        """Return the place, the instance and the path of the ledger that has the lock."""
        return [*os.fsdecode(os.pread(self._file, 1 << 16, 0)).split("\n", 2), "", "", ""][:3]

    def refuse_others(self, instance: bytes) -> None:
        """Refuse this ledger if another has the lock."""
        _, held, path = self._read()
        if self._others:
            what = "a copy of a ledger" if held == instance.hex() else "another ledger than the one"
            raise self._refusal(f"{what} in use, {path}")

    def share(self, instance: bytes) -> None:
        """Share the lock with other processes of this ledger."""
        if self.alone:
            content = os.fsencode(f"{self._place}\n{instance.hex()}\n{self._path}")
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, content, 0)
            fcntl.flock(self._file, fcntl.LOCK_SH)
        self._others = self._read()[:2] != [self._place, instance.hex()]
        self.refuse_others(instance)

    def is_last(self) -> bool:
        """Let go of the lock, and say whether nobody else shares it. Of several who leave at once, one is the last."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return not self._others and self._try(fcntl.LOCK_EX)

    def _refusal(self, got: str) -> InvalidLedger:
        expected = f"one ledger for all processes of server {self._server} under this common key"
        return InvalidLedger(str(self._path), got=got, expected=expected)


def _private_folder() -> Path:
    """Return the folder for locks: the same for all of the user's processes, and nobody else's."""
    shared = Path("/dev/shm")  # noqa: S108 - a systemd unit often has a /tmp of its own; checked below
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"counterveil-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidLedger(str(folder), got="a folder that others can use", expected="one of our own, of mode 0700")
    return folder


def place_of(path: Path) -> tuple[int, int]:
    """Return what tells a file from every other file of this machine."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino
