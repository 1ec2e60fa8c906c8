"""Traces and metrics over OTLP: the parts of a request, the names that Prometheus has, and nothing of a question."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collector import Collector, attributes, collecting
from counterveil import Client
from counterveil.errors import ServerFault
from counterveil.service.app import REFUSALS
from counterveil.terms import wire
from patience import LONG, wait_until
from service import Service, cli, numbers_database, running

PEOPLE = [{"x0": 1, "x1": 2, "x2": 20}, {"x0": 18, "x1": 9, "x2": 0}]
MARK = "0af7651916cd43dd8448eb211c80319c"
PATHS = {wire.MANIFEST_PATH, wire.ANSWER_PATH, wire.RECORD_PATH, wire.ATTEMPT_PATH, "other"}
PUBLIC = {"path", "status", "code", "bytes_in", "bytes_out"}
OF_A_SERVER = {"service.name", "service.version", "service.instance.id", "counterveil.server",
               "telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version"}  # fmt: skip
LABELS = {"path", "code", "direction", "server"}


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Any:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield collector


def parts(collector: Collector) -> Counter[tuple[Any, ...]]:
    """Return what spans say apart from times and numbers: server, name, the name of the parent, attributes."""
    spans = collector.spans()
    names = {span.span_id: span.name for _, span in spans}
    return Counter(
        (server, span.name, names.get(span.parent_span_id, ""), *sorted(attributes(span.attributes).items()))
        for server, span in spans
    )


def requests(collector: Collector, path: str) -> int:
    """Return how many requests to a path were traced."""
    return sum(attributes(span.attributes).get("path") == path for _, span in collector.spans())


def told(seen: bytes, sent: bytes, length: int = 8) -> bool:
    """Say whether some of the bytes that a server saw are in what was sent: as they are, or in hexadecimal."""
    pieces = {bytes(seen[i : i + length]) for i in range(len(seen) - length + 1)}
    texts = {piece.hex().encode() for piece in pieces}
    raw = any(sent[i : i + length] in pieces for i in range(len(sent) - length + 1))
    return raw or any(sent[i : i + 2 * length] in texts for i in range(len(sent) - 2 * length + 1))


def bodies(seen: bytes) -> bytes:
    """Return the bodies of the requests among some bytes of HTTP: tickets, secrets and shares, and what names them."""
    found = b""
    while (head := seen.partition(b"\r\n\r\n"))[1]:
        lengths = [line for line in head[0].lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        found, seen = found + head[2][:length], head[2][length:]
    return found


def check_private(collector: Collector, service: Service) -> None:
    """Fail if anything was sent that is not public."""
    sent = collector.everything()
    for relay in service.relays:
        asked = bodies(bytes(relay.seen))
        assert len(asked) > 500
        assert not told(asked, sent)
        assert told(asked, sent + asked[100:120])  # a control
    assert MARK.encode() not in sent
    assert bytes.fromhex(MARK) not in sent
    for found in collector.resources():
        assert set(found) == OF_A_SERVER
    for _, span in collector.spans():
        facts = attributes(span.attributes)
        assert set(facts) <= PUBLIC
        assert facts.get("path", "other") in PATHS
        assert facts.get("code", "ok") in {"ok", "other", "disconnected", *REFUSALS}
        assert not span.events
        assert not span.links
        assert not span.status.message
        assert not span.trace_state
    for _, metric in collector.metrics():
        kind = str(metric.WhichOneof("data"))
        for point in getattr(metric, kind).data_points:
            assert set(attributes(point.attributes)) <= LABELS
            assert not point.exemplars


def same_names(collector: Collector, text: str) -> None:
    """Fail unless the metrics of server 1 have the names, labels and values that Prometheus reads."""
    theirs: dict[tuple[Any, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket", "_sum")) and not math.isnan(sample.value):
                theirs[(sample.name, *sorted(sample.labels.items()))] = sample.value
    ours: dict[tuple[Any, ...], float] = {}
    for server, metric in collector.metrics():
        kind = str(metric.WhichOneof("data"))
        for point in getattr(metric, kind).data_points if server == 1 else ():
            labels = sorted(attributes(point.attributes).items())
            if kind == "histogram":
                assert sum(point.bucket_counts) == point.count
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                ours[(f"{metric.name}_count", *labels)] = point.count
            else:
                ours[(metric.name, *labels)] = point.as_double
    scraped = {name: value for name, value in theirs.items() if ("path", "/metrics") not in name}
    assert scraped == {name: value for name, value in ours.items() if ("path", "/metrics") not in name}


def test_spans_say_how_long_each_part_took_and_nothing_of_the_question(tmp_path: Path, otlp: Collector) -> None:
    options = ("--scheme", "table/differences", "--otel")
    with running(tmp_path, numbers_database(300, 3), 2, *options, relays=True) as service:
        with closing(service.client()) as client:
            assert client.peers
            found = []
            for n, person in enumerate(PEOPLE, start=1):
                ticket = service.ticket()
                client.ask(person, ticket=ticket)
                for path in (wire.ANSWER_PATH, wire.RECORD_PATH):
                    wait_until(lambda path=path, n=n: requests(otlp, path) == 2 * n)  # type: ignore[misc]
                found.append(parts(otlp))
            with pytest.raises(ServerFault, match="ticket was used"):
                client.ask(PEOPLE[0], ticket=ticket)
        marks = {"traceparent": f"00-{MARK}-00f067aa0ba902b7-01", "tracestate": f"a={MARK}", "baggage": f"a={MARK}"}
        httpx2.get(f"{service.urls[0]}/{MARK}", headers=marks)
        text = httpx2.get(f"{service.processes[0].url}/metrics").text
        service.halt()  # which sends what is left
        check_private(otlp, service)
        same_names(otlp, text)
        manifests = Counter({said: n for said, n in found[0].items() if ("path", wire.MANIFEST_PATH) in said})
        asked = found[0] - manifests, found[1] - found[0]
        for server in (1, 2):
            mine = {name: parent for number, name, parent, *_ in asked[0] if number == server}
            assert mine == {"request": ""} | dict.fromkeys(("receive", "ledger", "scan", "record"), "request")
        assert asked[0] == asked[1]  # whatever was asked
        assert any(("code", "ticket_used") in said for said in parts(otlp))
        traces = [span.trace_id for _, span in otlp.spans() if span.name == "request"]
        assert len(traces) == len(set(traces))
        service.resume()


def test_servers_that_work_together_and_a_collector_that_is_down(
    tmp_path: Path, otlp: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--scheme", "table/sealed", "--protocol", "joint", "--otel")
    database = numbers_database(300, 3)
    with running(tmp_path, database, 2, *options, relays=True) as service:
        with closing(Client(service.urls, timeout=LONG, patience=LONG)) as client:
            answered = str(client.ask(PEOPLE[0], ticket=service.ticket()))
            service.halt()
            check_private(otlp, service)
            names = {key[:3] for key in parts(otlp)}
            assert {(n, name, "request") for n in (1, 2) for name in ("receive", "attempt")} <= names
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
            service.resume()
            assert str(client.ask(PEOPLE[0], ticket=service.ticket())) == answered
        service.halt()
        assert all("event" in entry for process in service.processes for entry in process.entries())  # JSON alone
        service.resume()


def test_what_is_missing_or_wrong_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        command = [*map(str, service.processes[0].command())]
        service.halt()
        script = "import sys; sys.modules['opentelemetry.sdk'] = None; from counterveil.cli import main; main()"
        missing = subprocess.run(
            [sys.executable, "-c", script, *command[3:], "--otel"], capture_output=True, text=True, check=False
        )
        assert missing.stderr.startswith("counterveil: --otel: got no opentelemetry.sdk")
        assert missing.stderr.endswith("expected counterveil[otel]\n")
        for name, value in {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_METRIC_EXPORT_INTERVAL": "often"}.items():
            with monkeypatch.context() as wrong:
                wrong.setenv(name, value)
                said = cli(*command[3:], "--otel")
            assert said.returncode == 2
            assert said.stderr.startswith(f"counterveil: {name}: got {value}, expected")
        service.resume()  # a start that failed leaves the ledger as it was
