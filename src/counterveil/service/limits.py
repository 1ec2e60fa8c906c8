"""Scarce places, and who must give one up: those who keep the server waiting, never those whom it keeps waiting.

Security: who gets a place depends on how fast others read and write, and never on what they say; except that the very
same request, which nobody else can send, replaces itself.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from ..errors import Refused

_TICK = 0.1  # seconds between two looks at who stalls


class GaveWay(Exception):
    """The place was taken away: the other end kept it and did nothing, or sent the same request again."""


class Place:
    """A place that somebody holds, and how well they use it."""

    def __init__(self, size: int, cut: Callable[[], None]) -> None:
        self.size, self.given_up, self._cut = size, False, cut
        self._since: float | None = None  # when it began to wait for the other end; None: the other end waits for us
        self._waited, self._moved = 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the other end is waited for, for as long as this lasts."""
        self._since = began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began
            self._since = None

    def moved(self, size: int) -> None:
        """Say that the other end took or sent so many bytes."""
        self._moved += size

    def stalled(self) -> float:
        """Return for how many seconds the other end has done nothing."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def behind(self, pace: float) -> float:
        """Return by how many seconds it is behind one who takes so many bytes a second."""
        return self._waited + self.stalled() - self._moved / pace

    def give_up(self) -> None:
        """End what is done here."""
        self.given_up = True
        self._cut()


class Places:
    """So many places; whoever wants one when all are taken gets that of a holder who stalls, or waits a little.

    Holders who have done nothing for `stalled` seconds give way at once, the longest first. If there is none, the
    slowest gives way once somebody has waited for `slow` seconds, unless it keeps the `pace`: one who reads a few bytes
    every now and then is no better than one who does not read. Beyond that, whoever comes is told to come back.

    Parameters
    ----------
    most : how much may be held at a time: places, or bytes.
    queue : how many may wait.
    patience : seconds that one waits.
    pace : bytes a second at which a holder is left in peace.
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
        self._changed = anyio.Event()

    @property
    def held(self) -> int:
        """How much is held now."""
        return sum(place.size for place in self._held)

    @asynccontextmanager
    async def hold(self, size: int = 1, name: bytes | None = None) -> AsyncIterator[Place]:
        """Hold a place while this lasts; it ends with `GaveWay` when another needs the place.

        A second one of the same name replaces the first, whether that has its place yet or not, and waits until the
        first has left.
        """
        with anyio.CancelScope() as scope:
            place = Place(min(size, self._most), scope.cancel)
            same = [] if name is None else self._named.setdefault(name, [])
            for other in same:
                other.give_up()
            same.append(place)
            try:
                while same[0] is not place:
                    await self._changed.wait()
                await self._enter(place)
                yield place
            finally:
                same.remove(place)
                if name is not None and not same:
                    del self._named[name]
                if place in self._held:
                    self._held.remove(place)
                self._wake()
        if scope.cancelled_caught:
            raise GaveWay

    async def _enter(self, place: Place) -> None:
        """Wait for room, first come, first served."""
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
                    await self._changed.wait()
            self._held.append(place)
        finally:
            self._queue.remove(place)
            self._wake()

    def _make_room(self, size: int, waited: float) -> None:
        """Take one place away, unless enough are being given up already, or nobody deserves it."""
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
        """Let all who wait look again."""
        self._changed.set()
        self._changed = anyio.Event()
