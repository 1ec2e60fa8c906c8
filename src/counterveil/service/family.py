"""A worker's place in a family: processes of one server on one machine, which share a port, arrays and counts.

`supervisor` starts the workers. A worker says when it is ready and, from then on, that its event loop turns. It hands
over the arrays that it made, and is told when to leave. If the supervisor ends, however it ends, its workers end too.

Security: arrays are in memory that no other user can open. The folder of the family is closed to other users.
"""

from __future__ import annotations

import array
import mmap
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..errors import WrongType

try:
    import fcntl
except ImportError:  # not Unix, so there are no families
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
PLACE = "COUNTERVEIL_FAMILY"  # in the environment of a worker
MOST = 1 << 16  # bytes of one message
BEAT = 1.0  # seconds between two signs of life
_ALONE = 3  # the exit code of a worker whose supervisor has ended

Made = Callable[[], Any]
Keep = Callable[[str, Made], Any]
"""A function that takes the name of an array and a function that makes it, and returns the array."""


def made(_: str, make: Made) -> Any:
    """Make an array for this process alone."""
    return make()


class Kept(msgspec.Struct, frozen=True):
    """An array in shared memory: the file descriptor, and how to read it."""

    fd: int
    dtype: str
    shape: tuple[int, ...]


class Place(msgspec.Struct, frozen=True):
    """What a worker gets from its supervisor. Numbers of file descriptors are the worker's."""

    control: int
    sockets: list[int]
    folder: str
    seat: int  # no two workers that live at the same time have the same; a later worker takes over the seat's counts
    workers: int
    began: float  # when the supervisor began
    first: bool  # whether no worker was ready before: it makes the ledger if one is to be made
    kept: dict[str, Kept]
    offered: list[str] | None  # names of offers that all workers have; None before any was ready


class Laid(msgspec.Struct, frozen=True, tag="laid"):
    """A worker says that it made an array. The file descriptor comes with the message."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker says that it serves, by these settings."""

    workers: int
    log_level: str
    at: str  # host and port, as the settings have them now
    uses: list[str]  # names of arrays
    offers: list[str]  # names of offers
    hung_after: float  # seconds without a sign of life after which a worker is killed


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A worker that is ready says that its event loop turns."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """The supervisor says: finish what is under way, and end."""


class Offered(msgspec.Struct, frozen=True, tag="offered"):
    """The supervisor says which offers all workers have. Only these may be shown: any of them may get the question."""

    names: list[str]


def encode(message: Laid | Ready | Alive | Drain | Offered) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


class Family:
    """A worker's place in its family."""

    def __init__(self, place: Place) -> None:
        self.place, self.folder = place, Path(place.folder)
        for fd in (place.control, *place.sockets, *(kept.fd for kept in place.kept.values())):
            os.set_inheritable(fd, False)
        self._control = socket.socket(fileno=place.control)
        self.sockets = [socket.socket(fileno=fd) for fd in place.sockets]
        self.offered = None if place.offered is None else frozenset(place.offered)
        self._uses: list[str] = []
        self._drain: Callable[[], None] | None = None
        self._told = False
        threading.Thread(target=self._listen, name="family", daemon=True).start()

    @classmethod
    def joined(cls) -> Family | None:
        """Return the family that this process was started in, if any."""
        given = os.environ.pop(PLACE, None)
        if given is None:
            return None
        try:
            return cls(msgspec.json.decode(given, type=Place))
        except (msgspec.MsgspecError, OSError):
            raise WrongType(PLACE, got="something else", expected="what a supervisor sets for its workers") from None

    def keep(self, name: str, make: Made) -> Any:
        """Return the array of that name from shared memory; if there is none yet, make it and share it."""
        self._uses.append(name)
        kept = self.place.kept.get(name)
        if kept is None:
            kept = self._share(name, make())
        import numpy as np

        size = np.dtype(kept.dtype).itemsize * int(np.prod(kept.shape, dtype=np.int64))
        if not size:
            return np.zeros(kept.shape, dtype=kept.dtype)
        # Private and writable, so that the array is of the same type as one that was made here. Nobody writes to it; if
        # somebody did, the others would not see it.
        mapped = mmap.mmap(kept.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return np.frombuffer(mapped, dtype=kept.dtype).reshape(kept.shape)

    def _share(self, name: str, values: Any) -> Kept:
        """Write an array to memory that other processes can map, and hand it to the supervisor."""
        import numpy as np

        fd = _memory()
        with open(fd, "wb", closefd=False) as file:
            file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        _seal(fd)
        kept = Kept(fd, values.dtype.str, values.shape)
        self._say(Laid(name, kept.dtype, kept.shape), fd)
        return kept

    def ready(self, workers: int, log_level: str, at: str, offers: list[str], hung_after: float) -> None:
        """Say that this worker serves, by these settings."""
        self._say(Ready(workers, log_level, at, self._uses, offers, hung_after))

    def alive(self) -> None:
        """Give a sign of life, without waiting: a supervisor that is stopped reads none, and must stop nobody."""
        with suppress(OSError):
            self._control.send(encode(Alive()), socket.MSG_DONTWAIT)

    def on_drain(self, drain: Callable[[], None]) -> None:
        """Call this function, in another thread, when this worker is told to finish what is under way and to end."""
        self._drain = drain
        if self._told:
            drain()

    def _say(self, message: Laid | Ready, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._control.sendmsg([encode(message)], rights)

    def _listen(self) -> None:
        lines = self._control.makefile("rb")
        while True:
            try:
                line = lines.readline()
            except OSError:
                line = b""
            if not line:
                shutil.rmtree(self.folder, ignore_errors=True)  # the supervisor was killed, and could not do it
                os._exit(_ALONE)
            message = msgspec.json.decode(line, type=Drain | Offered)
            if isinstance(message, Offered):
                self.offered = frozenset(message.names)
                continue
            self._told = True
            if self._drain is not None:
                self._drain()


def _memory() -> int:
    """Return a file in memory without a name; where there is no such thing, a file on disk without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("counterveil", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(fd: int) -> None:
    """Let nobody change the file any more, where the system can do that."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
