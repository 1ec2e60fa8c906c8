"""Carry attempts: hand what the link brings to the attempts, in order, in threads beside the event loop; keep time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

import anyio
import anyio.to_thread

from ..errors import Refused
from .attempts import Attempt, Attempts, Event, Line, Phase
from .link.frames import Frame, Run

log = logging.getLogger("counterveil")

Work = Callable[[], None]

_LINGER = 0.005  # seconds that a thread waits for the next frame of a run, since a new thread would take as long
_THREADS = 64  # runs that are worked on at a time
_LIMITS: dict[Phase, float] = {"waiting": 10.0, "running": 60.0, "held": 5.0}  # seconds in each phase


class _Agenda:
    """What is still to be done for one run, in order, by one thread at a time."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Work] = SimpleQueue()
        self.moved = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Meeting:
    """Brings attempts and the link together. `lines` gives the connections to a server, by its number.

    All methods must be called in the event loop. The attempts themselves do their work in threads.
    """

    def __init__(self, attempts: Attempts, lines: Callable[[int], list[Line]]) -> None:
        self.attempts, self._lines = attempts, lines
        self._agendas: dict[Run, _Agenda] = {}
        self._endings: dict[Attempt, asyncio.Task[bytes]] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)
        self.watchers: list[Callable[[Attempt], None]] = []  # called with every attempt that has ended

    def heard(self, line: Line, frame: Frame) -> None:
        """Take a frame from a peer."""
        run = getattr(frame, "run", None)
        if run is not None:
            self._post(run, partial(self.attempts.heard, line, frame))

    def opened(self, line: Line) -> None:
        """Take up a new connection."""
        for run in self.attempts.runs():
            self._post(run, partial(self.attempts.opened, run, line))

    def lost(self, line: Line) -> None:
        """Take note that a connection is gone."""
        self.attempts.forget(line)
        for run in self.attempts.runs():
            self._post(run, partial(self.attempts.lost, run, line))

    def stocked(self) -> None:
        """Take note that a tape has arrived."""
        for run in self.attempts.runs():
            self._post(run, partial(self._happen, run, "tape"))

    def check_reaches(self, number: int) -> None:
        """Refuse unless there is a connection to a process of that server."""
        if not self._lines(number):
            raise Refused("peer_unreachable", f"this server has no connection to server {number}; nothing is spent")

    async def join(self, attempt: Attempt) -> bytes:
        """Play an attempt to its end; return this server's part of the answer, or refuse."""
        await self._done(attempt.run, lambda: self.attempts.start(attempt, self._lines(attempt.peer)))
        try:
            return await asyncio.shield(self._ending(attempt))
        except asyncio.CancelledError:
            self._post(attempt.run, partial(self._happen, attempt.run, "left"))  # what has begun goes on
            raise

    async def collect(self, run: Run, find: Callable[[list[Line]], Attempt]) -> bytes:
        """Return this server's part of an attempt that is complete, or refuse."""
        found: list[Attempt] = []
        (peer,) = set(run.servers) - {self.attempts.number}
        await self._done(run, lambda: found.append(find(self._lines(peer))))
        return await asyncio.shield(self._ending(found[0]))

    def _ending(self, attempt: Attempt) -> asyncio.Task[bytes]:
        """Return the task that waits for the end of an attempt. It goes on when nobody waits for it any more."""
        task = self._endings.get(attempt)
        if task is None:
            task = self._endings[attempt] = asyncio.get_running_loop().create_task(self._outcome(attempt))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody has seen it
            task.add_done_callback(lambda _: self._endings.pop(attempt))
        return task

    async def _outcome(self, attempt: Attempt) -> bytes:
        """Wait until an attempt has ended, or its time is over."""
        while not attempt.ended:
            phase, agenda = attempt.phase, self._agenda(attempt.run)
            with anyio.move_on_after(_LIMITS.get(phase, 0.0)) as limit:
                while attempt.phase == phase and not attempt.ended:
                    agenda.moved.clear()
                    await agenda.moved.wait()
            if limit.cancelled_caught:
                await self._done(attempt.run, partial(attempt.happen, "late"))
        self.attempts.drop(attempt)
        self._tidy(attempt.run)
        for watch in self.watchers:
            watch(attempt)
        if attempt.refusal is not None:
            raise Refused(attempt.refusal.code, str(attempt.refusal))
        if attempt.reply is None:
            raise AssertionError("an attempt that was released has a reply")
        return attempt.reply

    def _happen(self, run: Run, event: Event) -> None:
        attempt = self.attempts.get(run)
        if attempt is not None:
            attempt.happen(event)
            if attempt.ended:
                self.attempts.drop(attempt)

    # --- threads ----------------------------------------------------------------------------------------------------

    async def _done(self, run: Run, work: Work) -> None:
        """Wait until some work for a run is done; raise what it raised."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Exception | None] = loop.create_future()

        def tried() -> None:
            raised: Exception | None = None
            try:
                work()
            except Exception as error:
                raised = error
            loop.call_soon_threadsafe(settle, raised)

        def settle(raised: Exception | None) -> None:
            if not done.cancelled():
                done.set_result(raised)

        self._post(run, tried)
        raised = await done
        if raised is not None:
            raise raised

    def _agenda(self, run: Run) -> _Agenda:
        return self._agendas.setdefault(run, _Agenda())

    def _post(self, run: Run, work: Work) -> None:
        agenda = self._agenda(run)
        agenda.work.put(work)
        if agenda.task is None:
            agenda.task = asyncio.get_running_loop().create_task(self._work(run, agenda))

    async def _work(self, run: Run, agenda: _Agenda) -> None:
        """Work off a run's agenda in a thread."""
        while not agenda.work.empty():
            await anyio.to_thread.run_sync(self._drain, run, agenda, limiter=self._threads)
            agenda.moved.set()
        agenda.task = None
        self._tidy(run)

    def _tidy(self, run: Run) -> None:
        """Forget the agenda of a run that nobody works on. One that a thread works on stays the only one of its run."""
        agenda = self._agendas.get(run)
        if agenda is not None and agenda.task is None and self.attempts.get(run) is None:
            del self._agendas[run]

    def _drain(self, run: Run, agenda: _Agenda) -> None:
        while True:
            try:
                agenda.work.get(timeout=_LINGER)()
            except Empty:
                return
            except Exception as error:  # the attempt ends by its deadline; other runs go on
                log.error("failure", extra={"fields": {"error": type(error).__name__, "at": "an attempt"}})
            attempt = self.attempts.get(run)
            if agenda.work.empty() and (attempt is None or attempt.ended or attempt.phase == "waiting"):
                return
