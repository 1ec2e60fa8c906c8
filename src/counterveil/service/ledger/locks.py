"""A lock that the processes of one ledger share, so that no second ledger is used for the same server and key."""

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
except ImportError:  # not Unix, so there is no lock
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
_PATIENCE = 30.0  # seconds to wait while another process opens the same ledger
_GRACE = 0.5  # seconds to wait while another ledger is closed and releases the lock


class Lock:
    """A lock that the processes of one ledger share, so that no second ledger is used for the same server and key.

    The lock file is in a folder that only this user can use. It names the ledger: its place, its instance, its path. A
    process writes the file only while it has the lock alone. It then turns the exclusive lock into a shared one, and
    flock may release it for a moment in between, so the process reads the file again afterwards. The operating system
    releases the lock when the process ends, however it ends.
    """

    def __init__(self, key_id: bytes, server: int, path: Path, place: tuple[int, int]) -> None:
        """Take the lock, alone or shared with processes of this ledger; or note that another ledger has it."""
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
                if self._read()[2] == str(path):  # the log at this path is in use: opening the file would harm it
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
        _, other, path = self._read()
        if self._others:
            what = "a copy of a ledger" if other == instance.hex() else "another ledger than the one"
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
        """Release the lock and say whether nobody else shares it. If several leave at once, one of them is the last."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return not self._others and self._try(fcntl.LOCK_EX)

    def _refusal(self, got: str) -> InvalidLedger:
        expected = f"one ledger for all processes of server {self._server} under this common key"
        return InvalidLedger(str(self._path), got=got, expected=expected)


def _private_folder() -> Path:
    """Return the folder for locks: the same for all processes of this user, and closed to other users."""
    shared = Path("/dev/shm")  # noqa: S108 - a systemd unit often has a /tmp of its own; checked below
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"counterveil-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidLedger(str(folder), got="a folder that others can use", expected="one of our own, of mode 0700")
    return folder


def place_of(path: Path) -> tuple[int, int]:
    """Return the device and the inode of a file, which no other file of this machine has; zeros if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino
