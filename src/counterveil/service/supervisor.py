"""The supervisor: it binds the port, starts workers, replaces those that end, and restarts all of them one by one.

A worker that was ready and then gives no sign of life for too long is killed, and so replaced. The supervisor reads
neither the database nor a key, and never answers anybody. So it stays small, and has little that can fail.

    SIGHUP            Restart the workers one by one. Each new one reads settings, terms and data anew, and serves
                      before an old one is told to leave. If a new one does not start, the old ones go on.
    SIGTERM, SIGINT   Let all workers finish what is under way, then end.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from .family import MOST, PLACE, Alive, Drain, Kept, Laid, Offered, Place, Ready, encode
from .outset import log_lines

log = logging.getLogger("counterveil")

_LIVED = 5.0  # seconds: a worker that served this long is replaced at once, others after a pause
_SHORTEST, _LONGEST = 0.1, 5.0  # seconds of that pause, which doubles each time
_STOP = 60.0  # seconds for workers to end; they give answers under way 30 seconds
_LOOK = 1.0  # seconds between two looks at everything
_FDS = 16  # file descriptors in one message, at most


@dataclass(eq=False)
class _Worker:
    seat: int
    generation: int
    process: subprocess.Popen[bytes]
    control: socket.socket
    since: float = 0.0  # when it became ready; 0 before
    silent: float = 0.0  # seconds without a sign of life since then
    leaves: bool = False  # whether it was told to end
    uses: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    said: bytes = b""  # the part of a message that has arrived
    fds: list[int] = field(default_factory=list)


class Supervisor:
    """Keeps a number of workers running.

    Parameters
    ----------
    command : starts a worker, which finds its place in the environment.
    bound : the sockets that all workers listen at.
    workers : how many.
    at : host and port, as the settings have them.
    """

    def __init__(self, command: Sequence[str], bound: list[socket.socket], workers: int, at: str) -> None:
        self._command, self._bound, self._count, self._at = list(command), bound, workers, at
        self._began, self._generation, self._rolling, self._stops_by = time.time(), 0, False, 0.0
        self._workers: list[_Worker] = []
        self._kept: dict[str, Kept] = {}
        self._offered: list[str] | None = None
        self._ever_ready, self._code = False, 0
        self._failures, self._not_before = 0, 0.0
        self._hung_after, self._looked = 0.0, 0.0
        self._selector = selectors.DefaultSelector()
        self._folder = tempfile.mkdtemp(prefix="counterveil-")  # closed to other users

    def run(self) -> int:
        """Supervise until a signal stops everything, or until the first worker does not start; return the exit code."""
        woken, wakes = socket.socketpair()
        for each in (woken, wakes):
            each.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        signal.signal(signal.SIGHUP, lambda *_: self._roll())
        log.info("supervising", extra={"fields": {"pid": os.getpid(), "workers": self._count}})
        try:
            while True:
                self._tend()
                if not self._workers and (self._stops_by or self._code):
                    return self._code
                for key, _ in self._selector.select(self._pause()):
                    if key.data is None:
                        woken.recv(MOST)
                    else:
                        self._hear(key.data)
                self._watch()
        finally:
            for worker in self._workers:
                worker.process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- signals ----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        if not self._stops_by:
            self._stops_by = time.monotonic() + _STOP
            for each in self._bound:
                each.close()

    def _roll(self) -> None:
        log.info("restarting the workers one by one")
        self._generation += 1
        self._rolling, self._failures, self._not_before = True, 0, 0.0

    # --- what is to be done -----------------------------------------------------------------------------------------

    def _pause(self) -> float:
        wait = self._not_before - time.monotonic()
        return min(wait, _LOOK) if wait > 0 else _LOOK

    def _tend(self) -> None:
        """Take the next steps towards as many workers as there should be, all of the last generation."""
        if self._stops_by or self._code:
            for worker in self._workers:
                if not worker.leaves:
                    worker.leaves = True
                    worker.process.terminate()
                elif time.monotonic() > self._stops_by:
                    worker.process.kill()
            return
        staying = [worker for worker in self._workers if not worker.leaves]
        ready = [worker for worker in staying if worker.since]
        old = [worker for worker in ready if worker.generation < self._generation] if self._rolling else []
        starting, leaving = len(staying) - len(ready), len(self._workers) - len(staying)
        if len(ready) > self._count and not leaving:
            self._drain((old or ready)[0])
        elif len(staying) < self._count and time.monotonic() >= self._not_before:
            # One alone lays out the rows; when it is ready, the others can map what it made.
            for _ in range(self._count - len(staying) if ready else 1 - starting):
                self._start()
        elif old and len(ready) == self._count and not starting and not leaving:
            self._start()
        elif self._rolling and not old and not starting and not leaving and len(ready) == self._count:
            self._rolling = False
            log.info("all workers are new", extra={"fields": {"workers": self._count}})
            self._let_go()

    def _watch(self) -> None:
        """Kill workers that have given no sign of life for too long; `_ended` then replaces them."""
        now = time.monotonic()
        # One look counts as its usual time at most: while a whole machine or container is paused, nobody gives a sign.
        passed, self._looked = min(now - self._looked, _LOOK), now
        for worker in self._workers:
            worker.silent += passed if worker.since else 0.0
            if worker.silent > self._hung_after:
                fields = {"worker": worker.process.pid, "seat": worker.seat, "silent_s": round(worker.silent)}
                log.error("worker hangs, and is killed", extra={"fields": fields})
                worker.silent = 0.0
                worker.process.kill()

    def _start(self) -> None:
        """Start a worker, at the lowest seat that is free."""
        taken = {worker.seat for worker in self._workers}
        seat = next(number for number in range(len(taken) + 1) if number not in taken)
        ours, theirs = socket.socketpair()
        sockets = [each.fileno() for each in self._bound]
        place = Place(
            control=theirs.fileno(),
            sockets=sockets,
            folder=self._folder,
            seat=seat,
            workers=self._count,
            began=self._began,
            first=not self._ever_ready,
            kept=self._kept,
            offered=self._offered,
        )
        fds = [theirs.fileno(), *sockets, *(kept.fd for kept in self._kept.values())]
        environment = dict(os.environ) | {PLACE: msgspec.json.encode(place).decode()}
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - the command that this process was started with
                self._command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment, process_group=0
            )
        ours.setblocking(False)
        worker = _Worker(seat, self._generation, process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _drain(self, worker: _Worker) -> None:
        """Tell a worker to finish what is under way, and to end."""
        worker.leaves = True
        _tell(worker, Drain())

    def _announce(self) -> None:
        """Tell all workers which offers all of them have, those that leave included: they still answer."""
        ready = [worker for worker in self._workers if worker.since]
        offered = sorted(frozenset.intersection(*(worker.offers for worker in ready))) if ready else self._offered
        if offered is not None and offered != self._offered:
            self._offered = offered
            for worker in self._workers:
                _tell(worker, Offered(offered))

    def _let_go(self) -> None:
        """Free arrays that no worker uses any more."""
        used = frozenset[str]().union(*(worker.uses for worker in self._workers))
        for name in [name for name in self._kept if name not in used]:
            os.close(self._kept.pop(name).fd)

    # --- what workers say -------------------------------------------------------------------------------------------

    def _hear(self, worker: _Worker) -> None:
        try:
            said, fds, _, _ = socket.recv_fds(worker.control, MOST, _FDS)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        worker.fds += fds
        if not said:
            self._ended(worker)
            return
        worker.silent = 0.0
        *messages, worker.said = (worker.said + said).split(b"\n")
        for message in messages:
            self._take(worker, msgspec.json.decode(message, type=Laid | Ready | Alive))

    def _take(self, worker: _Worker, message: Laid | Ready | Alive) -> None:
        if isinstance(message, Alive):
            return
        if isinstance(message, Laid):
            fd = worker.fds.pop(0)
            if message.name in self._kept:  # two workers made it at the same time
                os.close(fd)
            else:
                self._kept[message.name] = Kept(fd, message.dtype, message.shape)
            return
        worker.since, worker.uses, worker.offers = time.monotonic(), frozenset(message.uses), frozenset(message.offers)
        self._announce()
        self._ever_ready, self._count, self._hung_after = True, message.workers, message.hung_after
        log_lines(message.log_level)
        log.info("worker ready", extra={"fields": {"worker": worker.process.pid, "seat": worker.seat}})
        if message.at != self._at:
            fields = {"got": message.at, "serving": self._at}
            log.warning("another address needs a new start of the whole server", extra={"fields": fields})

    def _ended(self, worker: _Worker) -> None:
        """Take note of a worker that has ended; the next is started at once, or after a pause if it did not last."""
        self._selector.unregister(worker.control)
        worker.control.close()
        self._workers.remove(worker)
        code = worker.process.wait()
        for fd in worker.fds:
            os.close(fd)
        for gauges in Path(self._folder).glob(f"gauge_live*_{worker.seat}.db"):
            gauges.unlink(missing_ok=True)
        self._announce()
        fields: Mapping[str, int] = {"worker": worker.process.pid, "seat": worker.seat, "exit": code}
        if worker.leaves:
            log.info("worker left", extra={"fields": fields})
            return
        if not self._ever_ready:
            self._code = code if code > 0 else 1  # as if this process had been the server
            return
        lasted = worker.since and time.monotonic() - worker.since > _LIVED
        self._failures = 0 if lasted else self._failures + 1
        pause = min(_SHORTEST * 2**self._failures, _LONGEST) if self._failures else 0.0
        self._not_before = time.monotonic() + pause
        said = "worker ended" if worker.since else "worker did not start"
        log.error(said, extra={"fields": {**fields, "next_in_s": round(pause, 1)}})
        if not worker.since and self._rolling:
            self._rolling = False
            log.error("restart given up; the old workers go on")


def _tell(worker: _Worker, message: Drain | Offered) -> None:
    with suppress(OSError):  # it has ended, and `_hear` will notice
        worker.control.send(encode(message))


def supervise(bound: list[socket.socket], workers: int, at: str, log_level: str) -> int:
    """Run this process's own command as so many workers, and supervise them; return the exit code."""
    log_lines(log_level)
    return Supervisor([sys.executable, *sys.orig_argv[1:]], bound, workers, at).run()
