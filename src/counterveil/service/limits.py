"""A limited number of places, and who loses one: clients that keep the server waiting, never clients that wait for it.

Security: who gets a place depends on how fast others read and write, never on what they send. There is one exception:
a duplicate request in flight replaces the first. Only its sender can send such a duplicate (rule 13).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from ..errors import Refused

_TICK = 0.1  # seconds between two checks for a client that stalls


class GaveWay(Exception):
    """The place was taken away, because the client stalled or sent a duplicate of its request."""


class Place:
    """A place that a client holds, with a record of how fast the client reads or writes."""

    def __init__(self, size: int, cut: Callable[[], None]) -> None:
        self.size, self.given_up, self._cut = size, False, cut
        self._since: float | None = None  # when the server began to wait for the client; None: the client waits for us
        self._waited, self._moved = 0.0, 0
        self._called: anyio.Event | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside this context as time that the server waits for the client."""
        self._since = began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began
            self._since = None

    def moved(self, size: int) -> None:
        """Count bytes that the client read or sent."""
        self._moved += size

    def stalled(self) -> float:
        """Return for how many seconds the client has done nothing."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def behind(self, pace: float) -> float:
        """Return by how many seconds the client is behind one that moves `pace` bytes a second."""
        return self._waited + self.stalled() - self._moved / pace

    async def woken(self) -> None:
        """Wait for somebody to call `wake`."""
        self._called = anyio.Event()
        await self._called.wait()

    def wake(self) -> None:
        """Let the client that waits for this place check again."""
        if self._called is not None:
            self._called.set()

    def give_up(self) -> None:
        """Take the place away: what its holder does is cancelled."""
        self.given_up = True
        self._cut()


class Places:
    """A limited number of places. When all are taken, a newcomer gets the place of a client that stalls, or waits.

    A client that has done nothing for `stalled` seconds loses its place at once; the one that stalled longest is first.
    If there is none, the slowest client loses its place after a newcomer has waited `slow` seconds. A client that keeps
    the `pace` is safe; one that reads a few bytes now and then is not. A newcomer who still gets no place is refused.

    Parameters
    ----------
    most : how much may be held at a time: places, or bytes.
    queue : how many newcomers may wait.
    patience : seconds that a newcomer waits before it is refused.
    pace : bytes a second; a client this fast keeps its place.
    """

    def __init__(
        self,
        most: int,
        *,
        queue: int = 64,
        patience: float = 5.0,
        stalled: float = 1.0,
        slow: float = 2.0,
        pace: float = 1 << 18,
    ) -> None:
        self._most, self._places_to_wait, self._patience = most, queue, patience
        self._stalled, self._slow, self._pace = stalled, slow, pace
        self._held: list[Place] = []
        self._queue: list[Place] = []
        self._named: dict[bytes, list[Place]] = {}
        self.held = 0  # how many places, or bytes, are held now

    @asynccontextmanager
    async def hold(self, size: int = 1, name: bytes | None = None) -> AsyncIterator[Place]:
        """Hold a place inside this context; raise `GaveWay` if the place is taken away.

        A second holder of the same name replaces the first, even if the first still waits for its place. The second
        begins when the first has left.
        """
        with anyio.CancelScope() as scope:
            place = Place(min(size, self._most), scope.cancel)
            same = [] if name is None else self._named.setdefault(name, [])
            for other in same:
                other.give_up()
            if name is not None:
                same.append(place)
            try:
                while same and same[0] is not place:
                    await place.woken()
                await self._enter(place)
                yield place
            finally:
                if name is not None:
                    same.remove(place)
                    if same:
                        same[0].wake()
                    else:
                        del self._named[name]
                if place in self._held:
                    self._held.remove(place)
                    self.held -= place.size
                self._wake()
        if scope.cancelled_caught:
            raise GaveWay

    async def _enter(self, place: Place) -> None:
        """Wait for room, first come, first served."""
        if self.held + place.size <= self._most and not (self._queue and place.size):
            self._take(place)
            return
        if len(self._queue) >= self._places_to_wait:
            raise Refused("busy", "as many wait as can; come back")
        self._queue.append(place)
        began = time.monotonic()
        try:
            while self._queue[0] is not place or self.held + place.size > self._most:
                waited = time.monotonic() - began
                if waited > self._patience:
                    raise Refused("busy", "the server does as much as it can; come back")
                if self._queue[0] is place:
                    self._make_room(place.size, waited)
                with anyio.move_on_after(_TICK):
                    await place.woken()
            self._take(place)
        finally:
            self._queue.remove(place)
            self._wake()

    def _take(self, place: Place) -> None:
        self._held.append(place)
        self.held += place.size

    def _make_room(self, size: int, waited: float) -> None:
        """Take one place away, unless enough places are about to become free, or no client is slow enough."""
        kept = [place for place in self._held if not place.given_up]
        if sum(place.size for place in kept) + size <= self._most:
            return
        slowest = max(kept, key=Place.stalled)
        if slowest.stalled() < self._stalled:
            if waited < self._slow:
                return
            slowest = max(kept, key=lambda place: place.behind(self._pace))
            if slowest.behind(self._pace) < self._slow:
                return
        slowest.give_up()

    def _wake(self) -> None:
        """Let the first who waits check again for room."""
        if self._queue:
            self._queue[0].wake()
