"""Hostile requests, thousands of them, to a real server: no 5xx, no traceback, no growth, no ticket burnt."""

from __future__ import annotations

import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import httpx2
import pytest

from adversary import hostile
from counterveil.applicant.client import Client
from counterveil.terms import wire
from counterveil.terms.wire import Ticket
from deployed import a_request, some_query
from patience import LONG
from service import ledger_rows, numbers_database, resident, running

pytestmark = pytest.mark.slow


def test_mutated_requests(tmp_path: Path) -> None:
    chance, outcomes = random.Random(11), Counter[str]()
    with running(tmp_path, numbers_database(200, 3), 2) as service, service.client() as client:
        good, record = messages(client, service.ticket(client))
        with httpx2.Client(base_url=service.urls[0], timeout=LONG) as http:
            sizes = []
            for i in range(5000):
                path = chance.choice(["/v1/answer", "/v1/record"])
                body = hostile.damaged(good if path == "/v1/answer" else record, chance.randrange(7), chance)
                reply = http.post(path, content=body)
                assert reply.status_code < 500, (reply.status_code, body.hex())
                if reply.status_code != 200:
                    outcomes[reply.json()["code"]] += 1
                    assert len(reply.content) < 2000
                if i % 500 == 499:
                    sizes.append(resident(service))
        assert outcomes["malformed"] > 2000
        assert outcomes["ticket_forged"] > 50
        assert sizes[-1] - sizes[1] < 8 << 20, sizes
        assert len(ledger_rows(service.processes[0].ledger)) <= 2  # only well-formed requests on the good ticket
        assert client.ask({"x0": 1, "x1": 2, "x2": 3}, ticket=service.ticket(client)).feasible
        assert "Traceback" not in service.processes[0].log.read_text()
        assert not [e for e in service.processes[0].entries() if e["level"] == "error"]


def messages(client: Client, ticket: Ticket) -> tuple[bytes, bytes]:
    query = some_query(client, ticket)
    record = a_request(client.peers[0].manifest, "record-query", 1, ticket, 1, (1, 2), bytes(25))
    return query, wire.encode(record)


def test_raw_sockets(tmp_path: Path) -> None:
    """What is not even HTTP, or stops in the middle."""
    chance = random.Random(3)
    with running(tmp_path, numbers_database(20, 2), 2) as service, service.client() as client:
        port = int(service.urls[0].rsplit(":", 1)[1])
        lines = [
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\nhello",
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: \xc2\xb2\r\n\r\n",
            b"POST /v1/answer HTTP/9.9\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
            b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
            b"\r\n\r\n\r\n",
        ]
        lines += [chance.randbytes(chance.randint(1, 2000)) for _ in range(200)]
        for line in lines:
            with socket.create_connection(("127.0.0.1", port), timeout=LONG) as raw:
                try:
                    raw.sendall(line)
                    raw.shutdown(socket.SHUT_WR)
                    while data := raw.recv(1 << 16):
                        assert b" 500 " not in data.split(b"\r\n")[0]
                except ConnectionError:
                    continue
        assert client.ask({"x0": 1, "x1": 2}, ticket=service.ticket(client)).feasible
        assert "Traceback" not in service.processes[0].log.read_text()


def test_a_body_in_chunks_is_refused_whatever_its_length_says(tmp_path: Path) -> None:
    """Content-Length and chunks together are no HTTP; and chunks alone have no end."""
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        before = resident(service)
        port = int(service.urls[0].rsplit(":", 1)[1])
        for length, status in ((b"content-length: 9\r\n", b"400"), (b"", b"411")):
            with socket.create_connection(("127.0.0.1", port), timeout=LONG) as raw:
                raw.sendall(b"POST /v1/answer HTTP/1.1\r\nhost: x\r\n" + length + b"transfer-encoding: chunked\r\n\r\n")
                assert raw.recv(12) == b"HTTP/1.1 " + status
                with suppress(OSError):  # it hangs up on us, as it should
                    for _ in range(2000):
                        raw.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        assert resident(service) - before < 16 << 20
        assert "length_required" in [e.get("code") for e in service.processes[0].entries()]


def test_metrics_and_health_do_not_wait_for_the_ledger(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        with closing(sqlite3.connect(service.processes[0].ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # a replica in the middle of its own transaction
            waiting = threading.Thread(target=lambda: httpx2.get(service.urls[0] + "/readyz", timeout=LONG))
            waiting.start()
            time.sleep(0.2)
            for path in ("/metrics", "/healthz", "/v1/manifest"):
                assert httpx2.get(service.urls[0] + path, timeout=LONG).status_code == 200
            assert waiting.is_alive()  # which does wait for the ledger
            other.execute("ROLLBACK")
        waiting.join()


def test_schemathesis(tmp_path: Path) -> None:
    """Requests generated from the OpenAPI description."""
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{service.urls[0]}/openapi.json"]
        options = ["--checks", "not_a_server_error,content_type_conformance", "--max-examples", "400", "--seed", "1"]
        options += ["--request-timeout", str(LONG)]
        found = subprocess.run(
            [*command, *options, "--phases", "coverage,fuzzing"],
            capture_output=True, text=True, check=False, cwd=tmp_path, timeout=LONG,
        )  # fmt: skip
        assert found.returncode == 0, found.stdout[-3000:]
        statuses = Counter(e["status"] for e in service.processes[0].entries() if e["event"] == "request")
        assert sum(statuses.values()) > 500, statuses
        assert max(statuses) < 500, statuses


@pytest.mark.parametrize(
    "options", [["--scheme", "table/differences"], ["--scheme", "table/sealed", "--protocol", "joint"]]
)
def test_hostile_requests_of_every_kind(tmp_path: Path, options: list[str]) -> None:
    """A few hundred of those that `adversary/hostile.py` sends; it fails if one is answered badly."""
    with running(tmp_path, numbers_database(hostile.ROWS, hostile.FEATURES), 2, *options) as service:
        counts = hostile.attacked(service, 300)
    assert len({code for _, code in counts}) >= 8  # of every kind there were some
