"""Servers that work on questions together: right answers over HTTP, liars, spares, and servers that are killed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import polars as pl
import pytest

from counterveil import Counterfactual, Database, Preferences, local
from counterveil.applicant.ask import compile_question
from counterveil.applicant.client import Client
from counterveil.applicant.runs import Do
from counterveil.errors import CounterveilError, ServerFault, Tampered
from counterveil.service import meeting
from counterveil.service.ledger import GRACE
from counterveil.terms import wire
from deployed import PERSON, Altered, deployed, garbage
from patience import LONG, wait_until
from service import Service, numbers_schema, reading, running

pytestmark = pytest.mark.slow


def distinct(count: int, seed: int = 5) -> Database:
    """Return a database of exactly this many rows."""
    places = np.random.default_rng(seed).choice(21**3, count, replace=False)
    frame = pl.DataFrame({f"x{j}": places // 21**j % 21 for j in range(3)} | {"ok": [True] * count})
    return Database.build(frame, numbers_schema(3), accepted="ok")


def cheapest(client: Client, database: Database, person: dict[str, int]) -> list[int]:
    """Return the cost of every row for a person, the cheapest first: by brute force."""
    deployment = client.deployment
    _, costs = compile_question(deployment, deployment.schema.codes(person), Preferences())
    return sorted(int(sum(costs.of(row))) for row in database.codes)


def paid(client: Client, found: Any, person: dict[str, int]) -> list[int]:
    """Return what the rows that were found cost."""
    deployment = client.deployment
    _, costs = compile_question(deployment, deployment.schema.codes(person), Preferences())
    rows = [deployment.schema.codes(each.record) for each in (found, *found.others)]
    return [int(sum(costs.of(row))) for row in rows]


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (2, 2), (63, 1), (64, 1), (65, 3), (1000, 3)])
def test_answers_are_right_at_every_size(rows: int, k: int, tmp_path: Path) -> None:
    database = distinct(rows)
    with (
        deployed(tmp_path, database, 2, scheme="table/sealed", protocol="joint", k=k) as made,
        Client(made.urls, patience=LONG, timeout=LONG) as client,
    ):
        for seed in range(3):
            person = {f"x{j}": int(v) for j, v in enumerate(np.random.default_rng(seed).integers(0, 21, 3))}
            found = client.ask(person, ticket=made.ticket(k=k))
            assert isinstance(found, Counterfactual)
            assert paid(client, found, person) == cheapest(client, database, person)[:k]
        states = [server.ledger.counts() for server in made.servers]
        assert [counts["held"] for counts in states] == [3, 3]


def test_one_record_that_comes_twice_is_a_lie() -> None:
    """Otherwise a pair that lies could give the nearest row twice, and be the cheapest."""
    bank = local(distinct(20), "table/sealed", protocol="joint", k=2)
    question, costs = compile_question(bank.deployment, bank.deployment.schema.codes(PERSON), Preferences())
    conversation = bank._carried(question)
    assert len(conversation.checked(costs, bank._issuer)) == 2
    (run,) = conversation._runs
    assert run._seen is not None
    run._seen = run._seen._replace(records=run._seen.records[:1] * 2)
    with pytest.raises(Tampered, match="one record twice"):
        conversation.checked(costs, bank._issuer)


@pytest.mark.parametrize("protocol", ["joint", "garbled"])
@pytest.mark.parametrize("servers", [3, 4])
def test_a_liar_is_outvoted_by_a_pair_without_it_and_named(protocol: str, servers: int, tmp_path: Path) -> None:
    database = distinct(40)
    chosen: dict[str, Any] = {"scheme": "table/sealed", "protocol": protocol, "robust": 1}
    with (
        deployed(tmp_path, database, servers, **chosen) as made,
        Client(made.urls, patience=LONG, timeout=LONG) as client,
    ):
        best = cheapest(client, database, PERSON)[:1]
        found = client.ask(PERSON, ticket=made.ticket(robust=1))
        assert isinstance(found, Counterfactual)
        assert (paid(client, found, PERSON), found.liars) == (best, ())
        alter: Altered = garbage
        made.servers[1].on_answer, made.servers[1].on_part = alter, lambda part: bytes([part[0] ^ 1]) + part[1:]
        for _ in range(5):  # garbage may bring the right record by chance, one time in 40
            found = client.ask(PERSON, ticket=made.ticket(robust=1))
            assert isinstance(found, Counterfactual)
            assert paid(client, found, PERSON) == best
            if found.liars:
                break
        assert 2 in found.liars
        assert found.liars == ((2,) if servers == 3 else found.liars)  # of two pairs, the other server may be it too


def test_a_refused_attempt_says_why_and_is_collected_until_the_grace_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(meeting._LIMITS, "waiting", 0.1)
    with deployed(tmp_path, distinct(20), 2, scheme="table/sealed", protocol="joint") as made:
        server, ticket = made.servers[0], made.ticket()
        wait_until(lambda: httpx2.get(made.urls[0] + wire.LINK_PATH, timeout=LONG).json()[0]["connections"] > 0)
        (sizes,) = server.epoch.deployment.scheme.requests(server.epoch.size)

        def refusal(kind: wire.RequestKind) -> tuple[int, str]:
            body = bytes(sizes.body(0)) if kind == "attempt" else b""
            message = made.request(kind, 1, ticket, 0, (1, 2), body)
            reply = httpx2.post(made.urls[0] + wire.ATTEMPT_PATH, content=wire.encode(message), timeout=LONG)
            return reply.status_code, reply.json()["code"]

        assert refusal("attempt") == (503, "peer_unreachable")  # the other server never gets its part
        assert server.ledger.count() == 0
        assert refusal("collect") == refusal("attempt") == (409, "attempt_over")
        server._clock = lambda: ticket.claims.expires + GRACE - 1
        assert refusal("attempt") == (410, "ticket_expired")
        assert refusal("collect") == (409, "attempt_over")
        server._clock = lambda: ticket.claims.expires + GRACE
        assert refusal("collect") == (410, "ticket_expired")


def test_an_applicant_collects_after_an_upload_that_broke_off() -> None:
    """A collect has no body, and a server that is too busy to answer it has not said that nothing began."""
    bank = local(distinct(65), "table/sealed", protocol="joint")
    question, _ = compile_question(bank.deployment, bank.deployment.schema.codes(PERSON), Preferences())
    conversation = bank.begun(question)

    def sent() -> list[Do]:
        return [do for do in conversation.todo() if do.what == "send"]

    def kinds(asked: list[Do], code: str | None) -> list[str]:
        for do in asked:
            assert do.line is not None
            conversation.broke(do.line, ServerFault("a server", "failed", code))
        return [str(do.message and do.message.kind) for do in asked]

    assert kinds(sent(), None) == ["attempt", "attempt"]
    collects = sent()
    assert [(conversation.upload(do.line), conversation.more(do.line)) for do in collects if do.line] == [(0, None)] * 2
    assert kinds(collects, "busy") == ["collect", "collect"]
    assert kinds(sent(), "attempt_over") == ["collect", "collect"]
    following = sent()
    assert [do.message.request for do in following if do.message] == [1, 1]
    assert kinds(following, "busy") == ["attempt", "attempt"]
    assert [do.message.request for do in sent() if do.message] == [1, 1]  # nothing began, so the number is the same


def states(service: Service) -> list[dict[str, int]]:
    """Return how many attempts each server's ledger has, by state."""
    counts = []
    for process in service.processes:
        with reading(process.ledger) as ledger:
            counts.append(dict(ledger.execute("SELECT state, count(*) FROM attempts GROUP BY state").fetchall()))
    return counts


def test_servers_in_processes(tmp_path: Path) -> None:
    """A spare takes over, an unreachable peer costs nothing, and a killed server costs an attempt at most."""
    database = distinct(3000)
    options = ["--scheme", "table/sealed", "--protocol", "joint", "--collusion", 1]
    with running(tmp_path, database, 3, *options) as service:
        with service.client() as client:
            best = cheapest(client, database, PERSON)[:1]
            ticket = service.ticket(servers=[1, 2])
            found = client.ask(PERSON, ticket=ticket)
            assert paid(client, found, PERSON) == best
        service.processes[1].kill()
        urls = [service.urls[0], service.urls[2]]
        with Client(urls, timeout=LONG, patience=LONG) as client:  # a ticket for another pair works
            found = client.ask(PERSON, ticket=service.ticket(servers=[1, 3]))
            assert paid(client, found, PERSON) == best
        ticket, before = service.ticket(servers=[1, 2]), states(service)[0]
        with pytest.raises(CounterveilError):
            Client([service.urls[0], service.urls[1]], timeout=5, patience=1).ask(PERSON, ticket=ticket)
        assert states(service)[0] == before
        service.processes[1].start()
        service.processes[1].wait()
        with service.client() as client:  # the ticket still works
            found = client.ask(PERSON, ticket=ticket)
            assert paid(client, found, PERSON) == best
            for victim in service.processes[:2]:
                asked = threading.Thread(target=lambda p=victim: (p.kill(), p.start()))
                ticket = service.ticket(servers=[1, 2])
                asked.start()
                found = client.ask(PERSON, ticket=ticket)
                asked.join()
                assert paid(client, found, PERSON) == best
                victim.wait()
        assert all(counts.get("running", 0) == 0 for counts in states(service))


def test_a_ticket_of_a_server_without_its_peer_is_not_spent(tmp_path: Path) -> None:
    """The peer is killed after the applicant has met it; it comes back while the applicant waits."""
    options = ["--scheme", "table/sealed", "--protocol", "joint"]
    with running(tmp_path, distinct(50), 2, *options, links=True) as service, service.client(patience=2.0) as client:
        assert client.ask(PERSON, ticket=service.ticket()).feasible
        wait_until(lambda: all(link.up for link in service.links))
        for link in service.links:
            link.close()  # nobody gets through any more
            link.sever()
        ticket, before = service.ticket(), states(service)
        with pytest.raises(ServerFault, match=r"no connection to server|did not get its part"):
            client.ask(PERSON, ticket=ticket)
        assert states(service) == before
