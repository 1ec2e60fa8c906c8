"""Servers in processes of their own: they start, stop, come back, and say why when they do not start."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from counterveil import Client
from counterveil.research.bench import questions
from counterveil.research.processes import TERMS, Serve, free_port, publish, running, serving
from patience import wait_until
from service import cli, numbers_database

pytestmark = pytest.mark.slow


def test_servers_answer_while_the_block_lasts_and_come_back_with_their_ledgers(tmp_path: Path) -> None:
    with serving(tmp_path, numbers_database(30, 2), is_open=True) as servers:
        urls = [server.url for server in servers]
        for server in servers:
            server.kill()
            server.start()
            server.wait()
        assert [server.url for server in servers] == urls
        with Client(urls) as client:
            assert client.ask({"x0": 1, "x1": 1}).feasible
    assert [server.process.poll() for server in servers] == [0, 0]


def test_bench_asks_real_servers() -> None:
    asked = list(questions(20, 2, rounds=1))
    assert [each.what.split(",")[0] for each in asked] == ["in process"] * 2 + ["over HTTP"] * 2
    assert all(each.up > 0 and each.down > 0 for each in asked[2:])


def test_no_port_is_given_twice() -> None:
    """Broken: two servers of a test got one port, once in some thousand tests."""
    ports = [free_port() for _ in range(2000)]
    assert len(set(ports)) == len(ports)


def test_no_server_is_left_running_when_one_does_not_start(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    publish(tmp_path, numbers_database(30, 2), [f"http://127.0.0.1:{port}" for port in ports])
    good, bad = Serve(tmp_path, 1, ports[0]), Serve(tmp_path, 2, ports[1], "--threads", 0)
    with pytest.raises(RuntimeError, match=r"did not start: (.|\n)*--threads"), running([good, bad]):
        pass
    assert good.process.poll() is not None


def test_doctor_says_that_a_server_is_not_ready(tmp_path: Path) -> None:
    """It shows its manifest as ever, and refuses every question."""
    with serving(tmp_path, numbers_database(20, 2), scheme="table/differences") as (server, _):
        assert cli("doctor", "--terms", tmp_path / TERMS).returncode == 0
        server.ledger.rename(tmp_path / "moved")
        wait_until(lambda: httpx2.get(f"{server.url}/readyz").status_code == 503)  # it is checked once a second
        ill = cli("doctor", "--terms", tmp_path / TERMS)
    assert ill.returncode == 1
    assert f"Problem: {server.url}: is not ready (HTTP 503): the ledger" in ill.stdout, ill.stdout
