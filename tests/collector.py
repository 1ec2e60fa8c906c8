"""A collector of telemetry on this machine: it takes OTLP over HTTP, and keeps every byte."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def attributes(found: Sequence[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in found}


class Collector:
    """What arrived, by path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: defaultdict[str, list[bytes]] = defaultdict(list)

    def everything(self) -> bytes:
        return b"".join(body for bodies in self.bodies.values() for body in bodies)

    def resources(self) -> list[dict[str, Any]]:
        """Return what is said of the servers themselves."""
        found = []
        for body in self.bodies["/v1/traces"]:
            found += [each.resource for each in ExportTraceServiceRequest.FromString(body).resource_spans]
        for body in self.bodies["/v1/metrics"]:
            found += [each.resource for each in ExportMetricsServiceRequest.FromString(body).resource_metrics]
        return [attributes(each.attributes) for each in found]

    def spans(self) -> list[tuple[int, Span]]:
        """Return every span, with the number of its server."""
        return [
            (attributes(sent.resource.attributes)["counterveil.server"], span)
            for body in list(self.bodies["/v1/traces"])
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in sent.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> list[tuple[int, Metric]]:
        """Return every metric, with the number of its server; the last ones at the end."""
        return [
            (attributes(sent.resource.attributes)["counterveil.server"], metric)
            for body in list(self.bodies["/v1/metrics"])
            for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in sent.scope_metrics
            for metric in scope.metrics
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector at a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.bodies[self.path].append(body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        collector = Collector(f"http://127.0.0.1:{listening.server_port}")
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield collector
        listening.shutdown()
