"""Send traces and metrics to a collector by OTLP over HTTP, as the variables OTEL_… in the environment say.

`counterveil[otel]` installs what this needs, and nothing else imports this module.

Security: a span has a name, a time, and what the log says of a request: path, status, code, bytes. Of an error it has
the code alone. Metrics are those that Prometheus reads. Trace headers of a request are ignored, since they could mark
one person's requests at all servers. So every request is a trace of its own, under a number drawn here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from ..crypto.randomness import new_id
from ..errors import OutOfRange
from .server import SOFTWARE
from .spans import Note, Part

_SCOPE = InstrumentationScope("counterveil", SOFTWARE.split()[-1])
_MINUTE = "60000"  # milliseconds between two exports of metrics, if the environment does not say


class _Ids(IdGenerator):
    """Draws the numbers of traces and spans."""

    def generate_trace_id(self) -> int:
        return int.from_bytes(new_id())

    def generate_span_id(self) -> int:
        return int.from_bytes(new_id()[:8])


class Telemetry:
    """Traces and metrics of one process, sent in the background. A collector that is down delays no answer."""

    def __init__(self, server: int, metrics: Callable[[], Iterable[Metric]], name: str = "") -> None:
        """Begin to send what `metrics` returns, and the spans of this server.

        `name` is that of this process, if it continues the counts of an earlier one.
        """
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        if protocol != "http/protobuf":
            raise OutOfRange("OTEL_EXPORTER_OTLP_PROTOCOL", got=protocol, expected="http/protobuf")
        logging.getLogger("opentelemetry").parent = logging.getLogger("counterveil")  # one log, of one level
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "counterveil")}
        self._resource = Resource.create(
            named | {"service.version": _SCOPE.version or "", "service.instance.id": name or new_id().hex()}
        ).merge(Resource({"counterveil.server": server}))
        self._provider = TracerProvider(resource=self._resource, id_generator=_Ids(), shutdown_on_exit=False)
        if _wanted("OTEL_TRACES_EXPORTER"):
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_SCOPE.name, _SCOPE.version)
        self._collect, self._began, self._closed = metrics, time.time_ns(), threading.Event()
        self._exporter = OTLPMetricExporter() if _wanted("OTEL_METRICS_EXPORTER") else None
        self._interval = _milliseconds("OTEL_METRIC_EXPORT_INTERVAL", _MINUTE)
        self._thread = threading.Thread(target=self._send_metrics, name="telemetry", daemon=True)
        self._thread.start()

    @contextmanager
    def trace(self, part: Part) -> Iterator[Note]:
        """Trace one part of a request, inside the part that is open in this task."""
        with self._tracer.start_as_current_span(
            part,
            context=Context() if part == "request" else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield lambda facts: span.set_attributes(facts)

    def close(self) -> None:
        """Send what is left, within the limits of time in the environment, and stop."""
        self._closed.set()
        self._thread.join()
        self._provider.shutdown()

    def _send_metrics(self) -> None:
        if self._exporter is None:
            return
        closed = False
        while not closed:
            closed = self._closed.wait(self._interval)
            self._exporter.export(self._metrics())
        self._exporter.shutdown()

    def _metrics(self) -> export.MetricsData:
        """Return what Prometheus would read now, under the same names."""
        now = time.time_ns()
        metrics = [made for family in self._collect() for made in self._converted(family, now)]
        scope = export.ScopeMetrics(_SCOPE, [each for each in metrics if each.data.data_points], "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])

    def _converted(self, family: Metric, now: int) -> Iterator[export.Metric]:
        sums, total = export.AggregationTemporality.CUMULATIVE, f"{family.name}_total"
        about, when = family.documentation, (self._began, now)
        if family.type == "counter":
            points = [_number(each, when) for each in family.samples if each.name == total]
            yield export.Metric(total, about, "", export.Sum(points, sums, is_monotonic=True))
        elif family.type == "gauge":
            points = [_number(each, when) for each in family.samples if not math.isnan(each.value)]
            yield export.Metric(family.name, about, "", export.Gauge(points))
        elif family.type == "histogram":
            yield export.Metric(family.name, about, "", export.Histogram(_histograms(family, when), sums))


def _wanted(variable: str) -> bool:
    return os.environ.get(variable, "otlp") != "none"


def _milliseconds(variable: str, default: str) -> float:
    """Return the seconds that a variable in the environment gives, in milliseconds."""
    given = os.environ.get(variable, default)
    if not given.isdigit() or not int(given):
        raise OutOfRange(variable, got=given, expected="milliseconds")
    return int(given) / 1000


def _number(sample: Sample, when: tuple[int, int]) -> export.NumberDataPoint:
    return export.NumberDataPoint(sample.labels, *when, float(sample.value))


def _histograms(family: Metric, when: tuple[int, int]) -> list[export.HistogramDataPoint]:
    """Return a point for each set of labels. Prometheus counts what is at most a bound, OTLP what is in a bucket."""
    found: defaultdict[tuple[tuple[str, str], ...], dict[str, float]] = defaultdict(dict)
    for sample in family.samples:
        bound = sample.labels.get("le", sample.name.removeprefix(family.name))
        found[tuple((name, value) for name, value in sample.labels.items() if name != "le")][bound] = sample.value
    points = []
    for labels, values in found.items():
        bounds = sorted((bound for bound in values if not bound.startswith("_")), key=float)
        up_to = [0, *(int(values[bound]) for bound in bounds)]
        counts = [after - before for before, after in pairwise(up_to)]
        explicit = [float(bound) for bound in bounds[:-1]]
        points.append(
            export.HistogramDataPoint(
                dict(labels),
                *when,
                count=up_to[-1],
                sum=values["_sum"],
                bucket_counts=counts,
                explicit_bounds=explicit,
                min=None,  # type: ignore[arg-type]  # Prometheus does not keep it
                max=None,  # type: ignore[arg-type]
            )
        )
    return points
