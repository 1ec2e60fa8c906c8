"""What Prometheus may read of a server.

Security: metrics hold nothing of a question, an answer or a ticket.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from itertools import product

import prometheus_client
from prometheus_client import multiprocess, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import Refused
from .attempts import Attempt
from .family import Family
from .link.handshake import DEALER
from .server import Server
from .together import Together

_PATIENCE = 2.0  # seconds for which a reader of the metrics waits for the ledger
_Counter = prometheus_client.Counter


class _Common(Collector):
    """What all processes of a server have in common, and read at the same place.

    It comes in time also when the ledger hangs: that is when it matters.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._thread = server, ThreadPoolExecutor(1, "metrics")
        self._asked: Future[tuple[int, float]] | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(self._look)
        try:
            ready, entries = self._asked.result(_PATIENCE)
        except TimeoutError:
            ready, entries = 0, math.nan
        yield GaugeMetricFamily("counterveil_ledger_ready", "Whether the ledger can be written: 1 or 0", value=ready)
        yield GaugeMetricFamily("counterveil_ledger_entries", "Requests of unexpired tickets", value=entries)
        yield GaugeMetricFamily("counterveil_rows", "Rows served", value=self._server.terms.rows)
        last = "When the last offer ends: seconds since 1970, +Inf for never"
        yield GaugeMetricFamily("counterveil_offers_end_timestamp_seconds", last, value=self._server.offers.end)
        yield GaugeMetricFamily("counterveil_server_number", "Which server this is", value=self._server.number)

    def _look(self) -> tuple[int, float]:
        try:
            self._server.ledger.check()
            return 1, self._server.ledger.count()
        except Refused:
            return 0, math.nan

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # else the registry would ask the ledger now


class Metrics:
    """What Prometheus may read: how many requests, how long they took, how large the ledger is.

    In a `family` every worker shows the sum over all of them. A worker that ends leaves its counts to the next one at
    its seat; what it had open does not count any more.
    """

    def __init__(self, server: Server, together: Together | None = None, family: Family | None = None) -> None:
        self.registry = own = prometheus_client.CollectorRegistry()
        if family is not None:
            own = prometheus_client.CollectorRegistry()  # of what this worker alone has; it goes to files
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(family.folder)
            values.ValueClass = values.MultiProcessValue(lambda: family.place.seat)  # type: ignore[no-untyped-call]
            multiprocess.MultiProcessCollector(self.registry, str(family.folder))  # type: ignore[no-untyped-call]
        self._own, self._gauges = own, list[tuple[prometheus_client.Gauge, Callable[[], int]]]()
        self._common = _Common(server)
        self.registry.register(self._common)
        self._requests = prometheus_client.Counter(
            "counterveil_requests", "Requests answered or refused", ["path", "code"], registry=own
        )
        self._seconds = prometheus_client.Histogram(
            "counterveil_request_seconds", "Time from first byte to last", ["path"], registry=own
        )
        self._bytes = prometheus_client.Counter(
            "counterveil_body_bytes", "Bytes of bodies", ["path", "direction"], registry=own
        )
        self._of = cache(self._labelled)  # paths and codes are few: the application has a list of each
        if together is not None:
            self._count_attempts(together)

    def text(self) -> bytes:
        """Return everything, as Prometheus reads it."""
        self.refresh()
        return prometheus_client.generate_latest(self.registry)

    def own(self) -> Iterator[Metric]:
        """Yield what this process counts itself, and what all processes have in common."""
        self.refresh()
        yield from self._own.collect()
        if self._own is not self.registry:
            yield from self._common.collect()

    def refresh(self) -> None:
        """Take down what this process has open now."""
        for gauge, value in self._gauges:
            gauge.set(value())

    def connections(self, number: int) -> int:
        """Return how many connections there are to processes of a server, from all processes of this one."""
        self.refresh()
        return int(self.registry.get_sample_value("counterveil_linked", {"server": str(number)}) or 0)

    def _count_attempts(self, together: Together) -> None:
        """Count the attempts that this server makes together with others, and watch the link."""
        counter = partial(prometheus_client.Counter, registry=self._own)
        gauge = partial(prometheus_client.Gauge, registry=self._own, multiprocess_mode="livesum")
        attempts = counter("counterveil_attempts", "Attempts by how they ended", ["code"])
        rounds = counter("counterveil_rounds", "Openings sent to other servers")
        received = counter("counterveil_link_bytes", "Bytes of openings from other servers")
        peers = gauge("counterveil_linked", "Open connections to a server", ["server"])
        for number in [*together.peers, *([DEALER] if together.tapes is not None else [])]:
            self._gauges.append((peers.labels(number), partial(together.connections, number)))
        if together.tapes is not None:
            tapes = gauge("counterveil_tapes", "Tapes in stock for a server", ["server"])
            for number in together.peers:
                self._gauges.append((tapes.labels(number), partial(together.tapes.count, number)))

        def ended(attempt: Attempt) -> None:
            attempts.labels("ok" if attempt.refusal is None else attempt.refusal.code).inc()
            rounds.inc(attempt.rounds)
            received.inc(attempt.received)

        together.meeting.watchers.append(ended)

    def expect(self, paths: Iterable[str], codes: Iterable[str]) -> None:
        """Count these from zero. Otherwise Prometheus would not see the first of its kind as an increase."""
        for path, code in product(paths, codes):
            self._requests.labels(path, code)

    def count(self, path: str, code: str, seconds: float, received: int, sent: int) -> None:
        """Count one request."""
        requests, took, bytes_in, bytes_out = self._of(path, code)
        requests.inc()
        took.observe(seconds)
        bytes_in.inc(received)
        bytes_out.inc(sent)

    def _labelled(self, path: str, code: str) -> tuple[_Counter, prometheus_client.Histogram, _Counter, _Counter]:
        """Return what counts requests of one path and code. The look-up by labels takes long, so it is done once."""
        received, sent = self._bytes.labels(path, "in"), self._bytes.labels(path, "out")
        return self._requests.labels(path, code), self._seconds.labels(path), received, sent
