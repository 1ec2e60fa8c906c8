"""Servers that talk to each other, in one process: connections that are lists, and a dealer who deals on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ..algebra.arrays import Bytes
from ..crypto.randomness import Randomness
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme
from ..service.attempts import Attempt, Attempts
from ..service.link.frames import Frame
from ..service.server import Server
from ..service.stock import deal


@dataclass(frozen=True, eq=False)
class Wire:
    """One end of a connection: `number` is the server at the other end."""

    number: int
    boot: bytes
    _outgoing: deque[tuple[int, int, Frame]]  # from, to, what
    _own: int

    def send(self, frame: Frame) -> None:
        """Send a frame; it arrives when `Wires.deliver` is called."""
        self._outgoing.append((self._own, self.number, frame))


class Wires:
    """Connections between all servers of this process."""

    def __init__(self, servers: Mapping[int, Server]) -> None:
        self._sent: deque[tuple[int, int, Frame]] = deque()
        self._attempts = {n: Attempts(n, server.ledger) for n, server in servers.items()}
        self._ends = {
            (here, there): Wire(there, bytes([there]) * 16, self._sent, here)
            for here in servers
            for there in servers
            if here != there
        }

    def start(self, number: int, attempt: Attempt) -> None:
        """Let a server take up an attempt."""
        self._attempts[number].start(attempt, [self._ends[number, attempt.peer]])

    def deliver(self) -> None:
        """Deliver every frame, and every frame that these cause."""
        while self._sent:
            source, to, frame = self._sent.popleft()
            self._attempts[to].heard(self._ends[to, source], frame)

    def drop(self, number: int, attempt: Attempt) -> None:
        """Let a server forget an attempt that has ended."""
        self._attempts[number].drop(attempt)


class Dealer:
    """A dealing server in the same process: it deals a tape for both servers when the first asks for one."""

    def __init__(self, scheme: Scheme, size: Size, draw: Randomness | None = None) -> None:
        self._scheme, self._size, self._draw, self._count = scheme, size, draw, 0
        self._other: dict[bytes, Bytes] = {}  # halves of tapes that the second server has not claimed yet

    def pick(self, peer: bytes, terms: bytes) -> tuple[bytes, Bytes]:
        """Deal a tape; return its name and the first server's half."""
        first, second = deal(self._scheme, self._size, self._draw)
        self._count += 1
        name = self._count.to_bytes(32, "big")
        self._other[name] = second
        return name, first

    def claim(self, peer: bytes, terms: bytes, name: bytes) -> Bytes | None:
        """Return the second server's half, once."""
        return self._other.pop(name, None)
