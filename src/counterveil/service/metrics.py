"""What Prometheus may read of a server.

Security: metrics hold nothing of a question, an answer or a ticket.
"""

from __future__ import annotations

from functools import partial

import prometheus_client

from .attempts import Attempt
from .link.handshake import DEALER
from .server import Server
from .together import Together


class Metrics:
    """What Prometheus may read: how many requests, how long they took, how large the ledger is."""

    def __init__(self, server: Server, together: Together | None = None) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "counterveil_requests", "Requests answered or refused", ["path", "code"], registry=self.registry
        )
        self._seconds = prometheus_client.Histogram(
            "counterveil_request_seconds", "Time from first byte to last", ["path"], registry=self.registry
        )
        self._bytes = prometheus_client.Counter(
            "counterveil_body_bytes", "Bytes of bodies", ["path", "direction"], registry=self.registry
        )
        for name, says, value in (
            ("counterveil_ledger_entries", "Requests of unexpired tickets", server.ledger.count),
            ("counterveil_rows", "Rows served", lambda: server.terms.rows),
            ("counterveil_server_number", "Which server this is", lambda: server.number),
        ):
            prometheus_client.Gauge(name, says, registry=self.registry).set_function(value)
        if together is not None:
            self._count_attempts(together)

    def _count_attempts(self, together: Together) -> None:
        """Count the attempts that this server makes together with others, and watch the link."""
        counter, gauge = partial(prometheus_client.Counter, registry=self.registry), prometheus_client.Gauge
        attempts = counter("counterveil_attempts", "Attempts by how they ended", ["code"])
        rounds = counter("counterveil_rounds", "Openings sent to other servers")
        received = counter("counterveil_link_bytes", "Bytes of openings from other servers")
        peers = gauge("counterveil_linked", "Open connections to a server", ["server"], registry=self.registry)
        for number in together.peers:
            peers.labels(number).set_function(partial(together.connections, number))
        if together.tapes is not None:
            peers.labels(DEALER).set_function(partial(together.connections, DEALER))
            tapes = gauge("counterveil_tapes", "Tapes in stock for a server", ["server"], registry=self.registry)
            for number in together.peers:
                tapes.labels(number).set_function(partial(together.tapes.count, number))

        def ended(attempt: Attempt) -> None:
            attempts.labels("ok" if attempt.refusal is None else attempt.refusal.code).inc()
            rounds.inc(attempt.rounds)
            received.inc(attempt.received)

        together.meeting.watchers.append(ended)

    def count(self, path: str, code: str, seconds: float, received: int, sent: int) -> None:
        """Count one request."""
        self._requests.labels(path, code).inc()
        self._seconds.labels(path).observe(seconds)
        self._bytes.labels(path, "in").inc(received)
        self._bytes.labels(path, "out").inc(sent)
