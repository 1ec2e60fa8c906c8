"""Servers with several workers: one port, one copy of the rows, one ledger, one set of counts; restarts unnoticed."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from counterveil import Counterfactual, local
from counterveil.applicant.client import Client
from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.research import processes
from counterveil.research.processes import TERMS, Deal, Serve, free_port, publish
from counterveil.research.processes import running as started
from counterveil.terms import wire
from counterveil.terms.published import read_terms
from counterveil.terms.tickets import mint
from families import children, is_running, kill, wait_ready, workers
from patience import LONG, wait_until
from rolling import Rolling
from service import Process, Service, cli, numbers_database, reading, running

pytestmark = pytest.mark.slow

WORKERS = 2
PERSON = {f"x{j}": 3 + j for j in range(4)}
TOKEN = "a token that is long enough"  # noqa: S105


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of settings, which tests may change and put back."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "token").write_text(TOKEN)
    path = folder / "serve.toml"
    path.write_text(f'workers = {WORKERS}\noperator-token = "{folder / "token"}"\nlog-level = "info"\n')
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("workers")
    with running(
        folder, numbers_database(20_000, 4), 2, "--scheme", "table/differences", "--config", config
    ) as service:
        for process in service.processes:
            wait_ready(process, WORKERS)
        yield service
        for process in service.processes:
            wait_ready(process, WORKERS)


def ask(service: Service, **options: Any) -> Any:
    with service.client(**options) as client:
        return client.ask(PERSON, ticket=service.ticket(client))


def metric(process: Serve, name: str) -> float:
    """Return the sum of a metric's samples, as any worker shows it."""
    text = httpx2.get(f"http://127.0.0.1:{process.port}/metrics", timeout=LONG).text
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.M))


def who_answered(process: Serve, path: str = wire.ANSWER_PATH) -> set[int]:
    """Return the workers that have answered a question."""
    return {entry["worker"] for entry in entries(process) if entry.get("path") == path and entry["code"] == "ok"}


def entries(process: Serve) -> list[dict[str, Any]]:
    lines = process.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def hang_up(process: Serve) -> None:
    """Tell a supervisor to restart its workers, and wait until all are new."""
    before = process.log.read_text().count("all workers are new")
    process.process.send_signal(signal.SIGHUP)
    wait_until(lambda: process.log.read_text().count("all workers are new") > before)


@contextmanager
def asking(work: Callable[[], object], threads: int = 3) -> Iterator[list[str]]:
    """Do some work again and again, in several threads; yield a list of what failed."""
    failed: list[str] = []
    done, lock, count = threading.Event(), threading.Lock(), [0]

    def again() -> None:
        while not done.is_set():
            try:
                work()
                with lock:
                    count[0] += 1
            except Exception as error:  # whatever it is, it counts
                failed.append(f"{type(error).__name__}: {error}")

    crew = [threading.Thread(target=again) for _ in range(threads)]
    for thread in crew:
        thread.start()
    try:
        wait_until(lambda: count[0] > threads)
        yield failed
        reached = count[0]
        wait_until(lambda: count[0] > reached + threads)  # and afterwards it works too
    finally:
        done.set()
        for thread in crew:
            thread.join()


def mapped(pid: int) -> dict[str, tuple[int, int]]:
    """Return the Rss and the Pss, in kB, of every file in memory that a process maps, by its inode."""
    found: dict[str, tuple[int, int]] = {}
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M):
        if "/memfd:counterveil" in part.split("\n", 1)[0]:
            sizes = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", part, re.M)}
            found[part.split()[4]] = sizes["Rss"], sizes["Pss"]
    return found


def test_workers_share_one_copy_of_the_rows_and_all_of_them_answer(service: Service) -> None:
    expected = local(service.database).ask(PERSON)
    assert isinstance(expected, Counterfactual)
    with asking(lambda: ask(service), threads=4):
        wait_until(lambda: all(who_answered(p) >= set(workers(p)) for p in service.processes))
    assert ask(service).cost == expected.cost
    for process in service.processes:
        maps = [mapped(pid) for pid in wait_ready(process, WORKERS)]
        assert maps[0].keys() == maps[1].keys()  # the same files
        largest = max(maps[0], key=lambda inode: maps[0][inode])
        shared = [each[largest] for each in maps]
        assert shared[0][0] >= service.database.codes.nbytes / 1024  # all rows are in it
        assert sum(pss for _, pss in shared) <= max(rss for rss, _ in shared) + 4 * len(maps)  # together, one copy
        bundle = [Path(f"/proc/{pid}/maps").read_text().count(str(service.bundle)) for pid in workers(process)]
        assert all(bundle)  # records are mapped from the file


def test_counts_are_those_of_all_workers_whoever_is_asked(service: Service) -> None:
    process = service.processes[0]

    def answered() -> int:
        status = httpx2.get(
            f"{process.url}/operator/status", headers={"authorization": f"Bearer {TOKEN}"}, timeout=LONG
        )
        return sum(minute["answered"] for minute in status.json()["minutes"])

    logged = sum(e.get("path") == wire.ANSWER_PATH and e["code"] == "ok" for e in entries(process))
    before, seen = metric(process, "counterveil_requests_total"), answered()
    assert seen == logged
    for _ in range(5):
        ask(service)
    assert metric(process, "counterveil_requests_total") >= before + 3 * 5  # manifest, question, record
    assert answered() == seen + 5
    kill(process, "worker")
    wait_ready(process, WORKERS)
    assert metric(process, "counterveil_requests_total") >= before + 3 * 5  # nothing is lost with a worker
    assert answered() == seen + 5


def test_a_request_is_answered_64_times_over_all_workers(service: Service) -> None:
    sent: list[wire.Request] = []
    with service.client(watch=lambda _, request, __: sent.append(request)) as client:
        client.ask(PERSON, ticket=service.ticket(client))
    question = next(wire.encode(each) for each in sent if (each.kind, each.server) == ("query", 1))
    url = service.processes[0].url + wire.ANSWER_PATH
    codes = [httpx2.post(url, content=question, timeout=LONG).status_code for _ in range(64)]
    assert codes == [200] * 63 + [429]
    assert len(who_answered(service.processes[0])) > 1


def test_a_restart_of_all_workers_is_not_noticed_by_anybody(service: Service) -> None:
    process = service.processes[0]
    old = wait_ready(process, WORKERS)
    with (
        asking(lambda: ask(service)) as failed,
        asking(lambda: httpx2.get(process.url + wire.MANIFEST_PATH, timeout=LONG).raise_for_status()) as broken,
    ):
        hang_up(process)
    assert (failed, broken) == ([], [])
    assert not set(workers(process)) & set(old)
    assert not any(map(is_running, old))


def test_killed_workers_cost_nobody_an_answer(service: Service) -> None:
    process = service.processes[0]
    with asking(lambda: ask(service)) as failed:
        for _ in range(3):
            kill(process, "worker")
    assert failed == []
    wait_ready(process, WORKERS)
    with reading(process.ledger) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_worker_that_hangs_is_replaced_and_one_that_was_frozen_with_its_supervisor_is_not(tmp_path: Path) -> None:
    limit, killed = 10, "worker hangs, and is killed"
    with running(tmp_path, numbers_database(20, 4), 2, "--workers", WORKERS, "--hung-after", limit) as service:
        process = service.processes[0]
        hung, healthy = wait_ready(process, WORKERS)
        os.kill(hung, signal.SIGSTOP)
        wait_until(lambda: hung not in children(process))
        assert [entry["worker"] for entry in entries(process) if entry["event"] == killed] == [hung]
        family = wait_ready(process, WORKERS)
        assert healthy in family  # it gave signs of life all the time
        for pid in (*family, process.process.pid):  # as if the whole container were paused
            os.kill(pid, signal.SIGSTOP)
        time.sleep(limit + 1)
        for pid in (process.process.pid, *family):
            os.kill(pid, signal.SIGCONT)
            time.sleep(1)  # the supervisor looks before a worker gives a sign
        ask(service)
        assert workers(process) == family


def test_new_data_is_laid_out_once_and_old_data_is_let_go(service: Service) -> None:
    def held(process: Process) -> int:
        folder = Path(f"/proc/{process.process.pid}/fd")
        return sum("memfd:counterveil" in os.readlink(fd) for fd in folder.iterdir())

    before = [held(process) for process in service.processes]
    old = [mapped(workers(process)[0]).keys() for process in service.processes]
    service.publish(numbers_database(19_000, 4))
    for process in service.processes:
        hang_up(process)
        assert metric(process, "counterveil_rows") == len(service.database.codes)
    assert [held(process) for process in service.processes] == before
    for process, inodes in zip(service.processes, old, strict=True):
        assert all(not mapped(pid).keys() & inodes for pid in workers(process))
    expected = local(service.database).ask(PERSON)
    assert isinstance(expected, Counterfactual)
    assert ask(service).cost == expected.cost


def test_workers_that_do_not_start_leave_the_old_ones_alone(service: Service) -> None:
    process, terms = service.processes[0], service.folder / "terms"
    old, good = wait_ready(process, WORKERS), terms.read_bytes()
    terms.write_bytes(b"{}")
    process.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "restart given up" in process.log.read_text())
    terms.write_bytes(good)
    assert re.search(r"^counterveil: .*terms", process.log.read_text(), re.M)  # why, in one line
    assert workers(process) == old
    ask(service)
    hang_up(process)
    assert not set(workers(process)) & set(old)


def test_the_number_of_workers_and_the_log_level_are_read_anew(service: Service, config: Path) -> None:
    process, settings = service.processes[0], config.read_text()
    assert not [entry for entry in entries(process) if entry["level"] == "debug"]
    config.write_text(settings.replace(f"workers = {WORKERS}", "workers = 1").replace("info", "debug"))
    hang_up(process)
    wait_ready(process, 1)
    httpx2.get(process.url + "/healthz", timeout=LONG)
    wait_until(lambda: any(entry["level"] == "debug" for entry in entries(process)))
    config.write_text(settings)
    hang_up(process)
    wait_ready(process, WORKERS)


def test_workers_end_with_their_supervisor(service: Service) -> None:
    process = service.processes[0]
    family = children(process)
    kill(process, "supervisor")
    assert not any(map(is_running, family))
    process.start()
    process.wait()
    wait_ready(process, WORKERS)
    ask(service)


def test_after_sigterm_the_ledgers_file_alone_holds_everything(service: Service) -> None:
    process = service.processes[1]
    family = children(process)
    with service.client() as client:
        client.ask(PERSON, ticket=service.ticket(client))
    assert process.stop() == 0
    assert not any(map(is_running, family))
    assert not process.ledger.with_name(f"{process.ledger.name}-wal").exists()
    with reading(process.ledger) as database:
        assert database.execute("SELECT in_use FROM about").fetchall() == [(0,)]
    process.start()
    process.wait()
    wait_ready(process, WORKERS)


def test_a_server_that_cannot_start_says_why_and_ends(service: Service, tmp_path: Path) -> None:
    process, taken = service.processes[0], service.processes[0].port
    command = [str(part) for part in process.command()[3:]]
    port = command.index("--port") + 1
    refused = cli(*command)
    assert (refused.returncode, "free port" in refused.stderr) == (2, True)
    command[port] = str(free_port())
    command[command.index("--terms") + 1] = str(tmp_path / "nowhere")
    refused = cli(*command)
    assert refused.returncode == 2
    assert re.search(r"^counterveil: .*nowhere", refused.stderr, re.M)
    assert taken != int(command[port])


def test_sighup_does_not_end_a_process_that_still_starts(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        command = [*map(str, service.processes[0].command())]
    own, slow = command.index("--key") + 1, tmp_path / "slow.key"
    os.mkfifo(slow)
    process = processes.Process([*command[:own], slow, *command[own + 1 :]], tmp_path / "log")
    process.start()
    with slow.open("wb") as file:  # opens when the server waits for its key
        process.process.send_signal(signal.SIGHUP)
        process.wait_for(b"nothing is changed")
        file.write(Path(command[own]).read_bytes())
    process.wait()
    assert process.stop() == 0


def test_one_process_takes_a_new_log_level_on_sighup(tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('log-level = "warning"\n')
    with running(tmp_path, numbers_database(20, 2), 2, "--config", config, "--log-level", "info") as service:
        first = service.processes[0]
        first.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "nothing is changed" in first.log.read_text())  # the flag decides
        assert "epochs, keys and all else are read at a start" in first.log.read_text()
    config.write_text('log-level = "info"\n')
    with running(tmp_path, numbers_database(20, 2), 2, "--config", config) as service:
        first = service.processes[0]
        for level in ("debug", "info"):
            config.write_text(f'log-level = "{level}"\n')
            first.process.send_signal(signal.SIGHUP)
            wait_until(lambda level=level: f'"log level","is":"{level}"' in first.log.read_text())  # type: ignore[misc]
            before = first.log.read_text().count('"/healthz"')
            httpx2.get(first.url + "/healthz", timeout=LONG)
            httpx2.get(first.url + wire.MANIFEST_PATH, timeout=LONG)
            wait_until(lambda: wire.MANIFEST_PATH in first.log.read_text()[-1000:])
            assert first.log.read_text().count('"/healthz"') == before + (level == "debug")
        config.write_text('log-level = "loud"\n')
        first.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "expected one of debug" in first.log.read_text())
        assert httpx2.get(first.url + "/readyz", timeout=LONG).text == "ready\n"


def test_a_new_epoch_is_shown_when_all_workers_have_it_and_no_question_fails(tmp_path: Path) -> None:
    databases = {"one": numbers_database(300, 3), "two": numbers_database(310, 3)}
    person = {f"x{j}": 3 for j in range(3)}
    with Rolling(tmp_path, workers=WORKERS) as made:
        made.publish("one", databases["one"], scheme="table/differences")
        for number in (1, 2):
            made.give(number, "one")
        made.start(1, 2)
        for process in made.processes:
            wait_ready(process, WORKERS)
        made.publish("two", databases["two"], scheme="table/differences")
        seen: set[bytes] = set()

        def ask_one() -> None:
            with Client(made.urls, timeout=LONG, patience=LONG) as client:
                assert client.ask(person, ticket=made.ticket("one")).feasible
                seen.update(peer.manifest.issued.digest for peer in client.peers)

        with asking(ask_one) as failed:
            for number in (1, 2):
                made.give(number, "two")
                made.reload(number)
            wait_until(lambda: made.epochs["two"].digest in seen)
        assert failed == []


@pytest.mark.parametrize("dealer", ["applicant", "server"])
def test_any_two_workers_of_two_servers_work_together(dealer: str, tmp_path: Path) -> None:
    """Each server is one address. A question's two halves reach any of its workers."""
    database = numbers_database(300, 3)
    person = {f"x{j}": 3 for j in range(3)}
    ports = [free_port() for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    publish(tmp_path, database, urls, scheme="table/sealed", protocol="joint", dealer=dealer)
    servers = [Serve(tmp_path, n, port, "--workers", WORKERS) for n, port in enumerate(ports, start=1)]
    expected = local(database).ask(person)
    assert isinstance(expected, Counterfactual)
    terms, issuer = read_terms(tmp_path / TERMS), Issuer.load(tmp_path / PRIVATE)

    def ask_one() -> None:
        ticket = mint(terms.terms, (1, 2), expires=int(time.time()) + 3600, issuer=issuer)
        with Client(urls, timeout=LONG, patience=LONG) as client:
            found = client.ask(person, ticket=ticket)
        assert isinstance(found, Counterfactual)
        assert found.cost == expected.cost

    def met() -> int:
        """Return how many pairs of workers are linked, each as both of them log it."""
        pairs = set()
        for server in servers:
            living = workers(server)
            for entry in entries(server):
                if entry["event"] == "link up" and entry["worker"] in living and entry["peer"].startswith("server"):
                    pairs.add((server.number, entry["worker"], entry["boot"]))
        return len(pairs)

    dealing = [Deal(tmp_path, "--stock", 3)] if dealer == "server" else []
    with started(servers), started(dealing):
        for server in servers:
            wait_ready(server, WORKERS)
        wait_until(lambda: met() >= 2 * WORKERS**2)
        for each in dealing:
            each.wait_full(WORKERS**2)
        with asking(ask_one, threads=3) as failed:
            wait_until(
                lambda: all(who_answered(server, wire.ATTEMPT_PATH) >= set(workers(server)) for server in servers)
            )
            for server in servers:
                hang_up(server)
            kill(servers[0], "worker")
        assert failed == []
        for server in servers:
            wait_ready(server, WORKERS)
        ask_one()
        assert metric(servers[0], "counterveil_attempts_total") >= 4
        # Connections of workers that have ended do not count.
        wait_until(lambda: WORKERS**2 <= metric(servers[0], "counterveil_linked") <= 4 * WORKERS**2)
