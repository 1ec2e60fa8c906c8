"""The whole service as people run it: real processes, real sockets, and what a server gets to see."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest

from certificates import certificate
from counterveil import CATALOGUE, Counterfactual, Database, Deployment, NoCounterfactual, local
from counterveil.applicant.client import AsyncClient, Client
from counterveil.crypto.keys import Issuer, SigningKey, fingerprint, read_public, write_keys, write_server_keys
from counterveil.errors import Disagreement, InvalidTerms, NotOffered, Refused, ServerFault
from counterveil.inprocess.bank import Local
from counterveil.research.datasets import german_credit
from counterveil.schemes.protocols import Size
from counterveil.service.app import REFUSALS
from counterveil.terms import wire
from counterveil.terms.published import check_terms, make_terms, read_terms, sign_terms, write_terms
from counterveil.terms.tickets import mint
from counts import some
from deployed import some_query
from patience import LONG, wait_until
from relay import Relay
from service import Process, Service, cli, ledger_rows, numbers_database, resident, running

pytestmark = pytest.mark.slow

PREFERENCES: list[dict[str, Any]] = [
    {},
    {"immutable": ["age"], "weights": {"housing": 8}},
    {"ranges": {"amount": (2000, 4000)}, "decrease_only": ["duration"], "metric": "l1"},
    {"immutable": ["age", "purpose", "amount", "duration", "checking_account"], "metric": "heom"},
]


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    frame, schema = german_credit()
    database = Database.build(frame, schema, accepted=("credit", "good"))
    with running(tmp_path_factory.mktemp("credit"), database, 2) as service:
        yield service


def test_the_same_answer_as_in_process(credit: Service, people: list[dict[str, Any]]) -> None:
    bank = local(credit.database)
    with credit.client() as client:
        for i, person in enumerate(people[:12]):
            wishes = PREFERENCES[i % len(PREFERENCES)]
            found, expected = client.ask(person, wishes, ticket=credit.ticket(client)), bank.ask(person, wishes)
            assert found.feasible == expected.feasible
            if isinstance(found, Counterfactual) and isinstance(expected, Counterfactual):
                assert found.cost == expected.cost


def test_one_implementation_for_those_who_wait(credit: Service, people: list[dict[str, Any]]) -> None:
    expected = local(credit.database).ask(people[0])

    async def ask() -> list[Any]:
        async with AsyncClient(credit.urls) as client:
            with credit.client() as other:  # only to mint
                tickets = [credit.ticket(other).text() for _ in range(4)]
            return await asyncio.gather(*(client.ask(people[0], ticket=ticket) for ticket in tickets))

    for found in asyncio.run(ask()):
        assert found.cost == expected.cost  # type: ignore[union-attr]


TWO_SERVERS = ["table/masked_differences", "table/distances", "even_norm/differences"]
TWO_SERVERS += ["table/sealed", "table/sealed_record", "linear/sealed"]


ONE_REQUEST = [name for name in CATALOGUE if name != "i-pcr-two-phase"]  # test_immutable has the other


@pytest.mark.parametrize("name", [*ONE_REQUEST, *TWO_SERVERS])
def test_every_scheme_over_sockets(name: str, tmp_path: Path) -> None:
    servers = 3 if name.endswith("+") or name == "i-pcr" else 2
    masked = "mask" in name
    parameters = {"d_min": 2} if masked else {}
    database = numbers_database(60, 3)
    arguments = ["--scheme", name, *(f"--d-min={value}" for value in parameters.values())]
    bank = local(database, name, **parameters)
    with running(tmp_path, database, servers, *arguments) as service, service.client() as client:
        for start in range(4):
            person = {f"x{j}": (3 * start + 5 * j) % 21 for j in range(3)}
            weighed = "+" in name or "linear" in name or "table" in name or "even" in name
            wishes: dict[str, Any] = {"weights": {"x1": 3}} if weighed else {}
            found = client.ask(person, wishes, ticket=service.ticket(client))
            expected = bank.ask(person, wishes)
            assert isinstance(found, Counterfactual)
            assert isinstance(expected, Counterfactual)
            if masked:  # the nearest within the mask: both are
                assert abs(found.cost - expected.cost) * bank.deployment.unit < 2 + 1e-6
            else:
                assert found.cost == expected.cost
        check_sizes(client, service)


def check_sizes(client: Client, service: Service) -> None:
    """Bodies are at most 5 % above their symbols, and an envelope of 200 bytes, 300 with a ticket and a secret."""
    scheme, rows = client.deployment.scheme, len(service.database.codes)
    positions, asked = scheme.protocol.positions(rows), scheme.requests(Size(rows, service.database.served.shape[1]))[0]
    for server, process in enumerate(service.processes, start=1):
        up = scheme.symbols * scheme.field.bits / 8
        down = asked.down[server - 1] * asked.answered.bits / 8
        sizes = [e for e in process.entries() if e.get("path") in ("/v1/answer", "/v1/record")]
        assert sizes
        for entry in sizes:
            record = service.database.served.shape[1]
            if entry["path"] == "/v1/record":
                parts = scheme.servers - 1
                up_, down_ = positions * parts / 8, -(-record // parts)
            else:
                up_, down_ = up, down
            assert entry["bytes_in"] <= 1.05 * up_ + 300
            assert entry["bytes_out"] <= 1.05 * down_ + 200


def test_a_restarted_server_garbles_the_same_for_the_same_ticket(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(300, 3), 2) as service, service.client() as client:
        assert client.deployment.scheme.reveal.name == "sealed"
        body = some_query(client, service.ticket(client))
        first = httpx2.post(service.urls[0] + "/v1/answer", content=body, timeout=LONG)
        service.processes[0].kill()
        service.processes[0].start()
        service.processes[0].wait()
        again = httpx2.post(service.urls[0] + "/v1/answer", content=body, timeout=LONG)
        assert first.status_code == again.status_code == 200
        assert len(first.content) > 300_000
        assert first.content == again.content
        other = httpx2.post(service.urls[0] + "/v1/answer", content=body[:-1] + bytes([body[-1] ^ 1]), timeout=LONG)
        assert other.json()["code"] == "ticket_used"  # two questions on one ticket would give away both labels


@pytest.mark.parametrize("scheme", ["table/sealed", "table/sealed_record"])
def test_a_connection_that_breaks_in_the_middle_of_an_answer(scheme: str, tmp_path: Path) -> None:
    database = numbers_database(5000, 3)
    person = {"x0": 3.0, "x1": 20.0, "x2": 0.0}
    expected = local(database, "table/distances").ask(person)
    came: list[tuple[int, int]] = []
    with running(tmp_path, database, 2, "--scheme", scheme) as service:
        relays = [Relay(url) for url in service.urls]
        with service.client(connect_to=through(service, relays), progress=lambda *seen: came.append(seen)) as client:
            relays[0].cut, relays[1].cut = 2_000_000, 300_000
            found = client.ask(person, ticket=service.ticket(client))
            assert relays[0].cut is relays[1].cut is None
            assert isinstance(found, Counterfactual)
            assert isinstance(expected, Counterfactual)
            assert found.cost == expected.cost
            assert [a for a, _ in came] == sorted(a for a, _ in came)
            assert (
                came[-1][0]
                == came[-1][1]
                == sum(client.deployment.scheme.requests(Size(database.rows, service.database.served.shape[1]))[0].down)
            )
        for relay in relays:
            relay.close()


def test_where_one_server_fails_the_other_is_read_to_its_end(tmp_path: Path) -> None:
    database = numbers_database(5000, 3)
    with running(tmp_path, database, 2) as service:
        relay = Relay(service.urls[1])
        with service.client(connect_to={service.urls[1]: relay.url}, patience=0.2) as client:
            relay.close()
            service.processes[1].kill()
            with pytest.raises(ServerFault, match=r"server 2 .* cannot be reached"):
                client.ask({"x0": 3.0, "x1": 20.0, "x2": 0.0}, ticket=service.ticket(client))
            whole = client.deployment.scheme.requests(Size(database.rows))[0].down[0]
            assert client.peers[0].traffic.body_down > whole

            def codes() -> list[str]:
                return [e["code"] for e in service.processes[0].entries() if e.get("path") == "/v1/answer"]

            wait_until(lambda: bool(codes()))
            assert codes() == ["ok"]


def test_readers_who_do_not_read_cost_little_and_are_cut_off(tmp_path: Path) -> None:
    """The same bytes on forty connections, and nobody reads: memory stays within bounds, and others are answered."""
    with running(tmp_path, numbers_database(6000, 3), 2) as service, service.client() as client:
        body = some_query(client, service.ticket(client))
        head = f"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        port = int(service.urls[0].rsplit(":", 1)[1])
        before = resident(service)
        stalled = []
        for _ in range(40):
            stalled.append(socket.create_connection(("127.0.0.1", port)))
            stalled[-1].sendall(head + body)
        first = service.processes[0]  # the same bytes replace themselves
        wait_until(lambda: sum(e.get("code") == "disconnected" for e in first.entries()) >= 39)
        assert resident(service) - before < 800 << 20
        for each in stalled:
            each.close()
        found = client.ask({"x0": 3.0, "x1": 20.0, "x2": 0.0}, ticket=service.ticket(client))
        assert isinstance(found, Counterfactual)
        codes = [e.get("code") for e in service.processes[0].entries() if e.get("path") == "/v1/answer"]
        assert "disconnected" in codes
        assert codes[-1] == "ok"


def test_an_answer_too_long_for_the_envelope_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    database = numbers_database(100, 3).sign(Issuer())
    deployment = Deployment.of(database.schema, scheme="table/sealed")
    many = replace(database, codes=np.broadcast_to(database.codes[0], (3_000_000, 3)))
    keys = [SigningKey().public for _ in range(2)]
    assert make_terms(database, deployment, keys=keys, service="tests").rows == 100
    with pytest.raises(NotOffered, match="less than 1 GiB"):
        make_terms(many, deployment, keys=keys, service="tests")


def test_bodies_are_as_small_as_their_symbols(credit: Service, people: list[dict[str, Any]]) -> None:
    with credit.client() as client:
        client.ask(people[0], ticket=credit.ticket(client))
        check_sizes(client, credit)


def test_more_servers_and_collusion(tmp_path: Path) -> None:
    """Three servers, two of whom may collude; and any two of three, one of whom may be silent."""
    database = numbers_database(50, 3)
    bank, person = local(database), {"x0": 3, "x1": 9, "x2": 14}
    expected = bank.ask(person)
    assert isinstance(expected, Counterfactual)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a", database, 3, "--scheme", "table/differences") as service, service.client() as client:
        assert client.deployment.scheme.collusion == 2
        found = client.ask(person, ticket=service.ticket(client))
        assert isinstance(found, Counterfactual)
        assert found.cost == expected.cost
    chosen = ["--scheme", "table/differences", "--collusion", 1, "-k", 2]
    with running(tmp_path / "b", database, 3, *chosen) as service:
        service.processes[1].kill()  # silent: the ticket is for the others
        urls = [service.urls[0], service.urls[2]]
        with service.client(patience=0.3) as client:
            assert list(client.missing) == [service.urls[1]]
            found = client.ask(person, ticket=service.ticket(servers=[1, 3]))
            assert isinstance(found, Counterfactual)
            assert found.cost == expected.cost
            with pytest.raises(ServerFault, match=f"{service.urls[1]}.*cannot be reached"):
                client.ask(person, ticket=service.ticket(servers=[1, 2]))
        with Client(urls) as client:
            found = client.ask(person, ticket=service.ticket(client, k=2))
            assert isinstance(found, Counterfactual)
            assert found.cost == expected.cost
            assert len(found.others) == 1
            one = client.ask(person, ticket=service.ticket(client, k=1))
            assert isinstance(one, Counterfactual)
            assert not one.others
            with pytest.raises(Disagreement, match=r"one for servers \[1, 2\], expected the address of each"):
                client.ask(person, ticket=service.ticket(client, [1, 2]))


def test_a_servers_view_is_the_same_for_everyone(credit: Service, people: list[dict[str, Any]]) -> None:
    """Many questions: paths, headers and lengths, read off the sockets, do not depend on who asks what."""
    relays = [Relay(url) for url in credit.urls]
    views: list[list[list[Any]]] = []
    infeasible, count = 0, some(200, 3)
    generator = np.random.default_rng(5)
    with credit.client(connect_to=through(credit, relays)) as client:
        for i in range(count):
            person = people[int(generator.integers(len(people)))]
            wishes = PREFERENCES[i % len(PREFERENCES)]
            for relay in relays:
                relay.seen.clear()
            found = client.ask(person, wishes, ticket=credit.ticket(client))
            infeasible += isinstance(found, NoCounterfactual)
            views.append([relay.view() for relay in relays])
    assert 0 < infeasible < count
    assert all(view == views[0] for view in views)
    posts = [request for request in views[0][0] if request["line"].startswith("POST")]
    assert [post["line"] for post in posts] == ["POST /v1/answer HTTP/1.1", "POST /v1/record HTTP/1.1"]
    for relay in relays:
        relay.close()


def through(service: Service, relays: list[Relay]) -> dict[str, str]:
    return dict(zip(service.urls, [relay.url for relay in relays], strict=True))


@pytest.mark.parametrize("known", [False, True])
def test_verbose_prints_what_the_sockets_carried(known: bool, people: list[dict[str, Any]], tmp_path: Path) -> None:
    frame, schema = german_credit()
    database = Database.build(frame, schema, accepted=("credit", "good"))
    with running(tmp_path, database, 2, relays=True) as service:
        ticket, before = service.ticket().text(), [(relay.up, relay.down) for relay in service.relays]
        addresses = [part for url in service.urls for part in ("--server", url)]
        where = ["--terms", tmp_path / "terms"] if known else addresses
        asked = cli(
            "ask", *where, "--tickets", "-", "--set", "age=30", "--person", write(tmp_path, people[0]), "--json",
            "--verbose", given=ticket,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        said = json.loads(asked.stdout)["traffic"]
        for relay, (up, down), seen in zip(service.relays, before, said, strict=True):
            assert seen["body_bytes_up"] + seen["header_bytes_up"] == relay.up - up
            assert seen["body_bytes_down"] + seen["header_bytes_down"] == relay.down - down
            assert seen["requests"] == 3


def write(folder: Path, person: dict[str, Any]) -> Path:
    (folder / "me.json").write_text(json.dumps(person))
    return folder / "me.json"


def test_ask_and_doctor_on_the_command_line(credit: Service, people: list[dict[str, Any]], tmp_path: Path) -> None:
    addresses = [part for url in credit.urls for part in ("--server", url)]
    issued = cli(
        "ticket", "issue", "--key", credit.folder / "issuer.key", "--terms", credit.folder / "terms", "--count", 4,
        "-o", tmp_path / "tickets",
    )  # fmt: skip
    assert issued.returncode == 0, issued.stderr
    tickets = (tmp_path / "tickets").read_text().split()
    assert len(set(tickets)) == 4
    assert (tmp_path / "tickets").stat().st_mode & 0o077 == 0
    person = people[1]
    (tmp_path / "wishes.json").write_text(json.dumps({"immutable": ["age"]}))
    values = [part for name, value in person.items() for part in ("--set", f"{name}={value}")]
    flags = ["--weight", "housing=8", "--range", "amount=..9000", "--decrease-only", "duration"]
    pinned = ["--operator", credit.folder / "2" / "server.pub", "--issuer", credit.folder / "issuer.pub"]
    asked = cli("ask", *addresses, "--ticket", tickets[0], *values, "--preferences", tmp_path / "wishes.json", *flags)
    assert "no operator's key is given" in asked.stderr
    assert asked.returncode == 0, asked.stderr
    wishes = {"immutable": ["age"], "weights": {"housing": 8}, "ranges": {"amount": (None, 9000)}}
    expected = local(credit.database).ask(person, wishes | {"decrease_only": ["duration"]})
    again = cli(
        "ask", *addresses, "--ticket", tickets[1], *values, "--preferences", tmp_path / "wishes.json", *flags, "--json"
    )
    said = json.loads(again.stdout)
    assert said["feasible"] == expected.feasible
    if isinstance(expected, Counterfactual):
        assert said["cost"] == expected.cost
        assert "What would have been accepted" in asked.stdout

    taking = ["--tickets", tmp_path / "tickets", "--person", write(tmp_path, person)]
    used = cli("ask", *addresses, *pinned, *taking)
    assert used.returncode == 2
    assert used.stderr.count("\n") == 1
    assert "refused (HTTP 409): the ticket was used for another request" in used.stderr

    assert (tmp_path / "tickets").read_text().count("# used") == 1
    (tmp_path / "tickets").write_text("\n".join(["# used", *tickets[2:]]))
    for left in (1, 0):  # each question takes the next ticket of the file
        found = cli("ask", "--terms", credit.folder / "terms", *pinned, *taking)
        assert (found.returncode, found.stderr) == (0, "")
        assert len([line for line in (tmp_path / "tickets").read_text().splitlines() if line[0] != "#"]) == left
    assert "no unused ticket" in cli("ask", *addresses, *pinned, *taking).stderr
    old = ["--person", tmp_path / "me.json", "--set", "age=9999"]
    bad = cli("ask", "--terms", credit.folder / "terms", "--tickets", "-", *old, given=tickets[0])
    assert "got 9999.0, expected 15 to 80" in bad.stderr
    other = cli("ask", *addresses, "--operator", "ab" * 32, *taking)
    assert "none of these servers has the operator's key that was given" in other.stderr
    short = fingerprint(read_public(credit.folder / "2" / "server.pub"))
    assert "All is well." in cli("doctor", *addresses, "--operator", short).stdout
    assert "No problem was found, but no operator's key" in " ".join(cli("doctor", *addresses).stdout.split())
    assert "'abc', expected a key file" in cli("doctor", *addresses, "--operator", "abc").stderr

    with credit.client() as client:
        fresh = credit.ticket(client).text()
    well = cli("doctor", *addresses, "--ticket", fresh, *pinned)
    assert well.returncode == 0, well.stdout + well.stderr
    for words in (
        "agree on their terms",
        "as given with --operator",
        "not compared",
        "Tickets that are good for these servers, unless they were used: 1.",
        "All is well.",
        "of the costs of all 700 rows nothing",
    ):
        assert words in " ".join(well.stdout.split())
    ill = cli("doctor", "--server", credit.urls[0], "--server", "http://localhost:9")
    assert ill.returncode == 1
    assert "Problem:" in ill.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--person", "/nowhere.json"], "No such file"),
        (["--set", "age"], "expected FEATURE=VALUE"),
        (["--set", "agee=4"], "agee"),
        (["--range", "age=4"], "expected LOW..HIGH"),
        (["--weight", "age=many"], "expected a whole number"),
        (["--weight", "age=99"], "weights, age: got 99"),
        (["--set", "age=old"], "age"),
        (["--set", "checking_account="], "checking_account: got nothing"),
        (["--ticket", "abc"], "ticket"),
        (["--ca", "/nowhere.pem"], "certificate authority"),
        (["--preferences", "five.json", "--weight", "age=2"], "weights: got int, expected a mapping"),
        (["--preferences", "null.json", "--range", "age=2..3"], "ranges: got NoneType, expected a mapping"),
        (["--preferences", "text.json", "--forbid", "purpose=x"], "forbidden, purpose: got 'a', expected a list"),
    ],
)
def test_bad_questions_are_refused_in_one_line(
    credit: Service, people: list[dict[str, Any]], tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "me.json").write_text(json.dumps(people[0]))
    (tmp_path / "five.json").write_text('{"weights": 5}')
    (tmp_path / "null.json").write_text('{"ranges": null}')
    (tmp_path / "text.json").write_text('{"forbidden": {"purpose": "a"}}')
    arguments = [str(tmp_path / a) if a in ("five.json", "null.json", "text.json") else a for a in arguments]
    addresses = [part for url in credit.urls for part in ("--server", url)]
    refused = cli("ask", *addresses, "--person", tmp_path / "me.json", *arguments)
    assert refused.returncode == 2, refused.stdout
    assert "Traceback" not in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--among", "1,9"], "servers: got 9, expected 1 to 2"),
        (["--among", "1"], "servers: got 1, expected at least 2"),
        (["--among", "one"], "expected numbers of servers"),
        (["--robust", "1"], "servers: got 3, expected 1 to 2"),
        (["-k", "200"], "not offered"),
        (["--valid", "soon"], "expected a number and s, m, h or d"),
        (["--key", "OTHER"], "does not carry the issuer's signature"),
        (["--key", "/nowhere"], "expected a key file"),
    ],
)
def test_no_ticket_is_minted_that_servers_would_refuse(
    credit: Service, tmp_path: Path, arguments: list[str], said: str
) -> None:
    write_keys(tmp_path / "other")
    arguments = [str(tmp_path / "other" / "issuer.key") if a == "OTHER" else a for a in arguments]
    key = [] if "--key" in arguments else ["--key", credit.folder / "issuer.key"]
    refused = cli("ticket", "issue", "--terms", credit.folder / "terms", *key, *arguments)
    assert refused.returncode == 2, refused.stdout
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr


def test_doctor_refuses_what_ask_refuses(credit: Service) -> None:
    for urls in ([credit.urls[0]], [credit.urls[0]] * 2):
        ill = cli("doctor", *[part for url in urls for part in ("--server", url)])
        assert ill.returncode == 1
        assert "two or more different addresses" in " ".join(ill.stdout.split())


def test_logs_hold_no_secrets(credit: Service, people: list[dict[str, Any]]) -> None:
    with credit.client() as client:
        ticket = credit.ticket(client)
        client.ask(people[3], ticket=ticket)
        forms = [ticket.text(), ticket.claims.id.hex(), ticket.signature.hex(), ticket.text()[40:60]]
        with pytest.raises(ServerFault, match="409"):
            client.ask(people[4], ticket=ticket)
    for process in credit.processes:
        text = process.log.read_text()
        assert not any(form in text for form in forms)
        for entry in process.entries():
            assert set(entry) <= {
                "time", "level", "event", "path", "status", "code", "ms", "bytes_in", "bytes_out",
                "server", "of", "service", "scheme", "gives", "lasts", "rows", "tickets", "digest", "offers",
            }  # fmt: skip


def test_metrics_health_and_openapi(credit: Service, people: list[dict[str, Any]]) -> None:
    with credit.client() as client:
        client.ask(people[0], ticket=credit.ticket(client))
    with httpx2.Client(base_url=credit.urls[0], timeout=LONG) as http:
        assert http.get("/healthz").text == "ok\n"
        assert http.get("/readyz").text == "ready\n"
        metrics = http.get("/metrics").text
        assert 'counterveil_requests_total{code="ok",path="/v1/answer"}' in metrics
        assert "counterveil_rows 700.0" in metrics
        paths = http.get("/openapi.json").json()["paths"]
        assert {"/v1/manifest", "/v1/answer", "/v1/record", "/healthz", "/readyz", "/metrics"} <= set(paths)
        manifest = http.get("/v1/manifest").json()
        assert manifest["server"] == 1
        assert "counts" not in json.dumps(manifest)
        assert "1000" not in json.dumps(json.loads(manifest["issued"]["terms"])["parameters"])


def test_a_long_body_is_refused_before_it_is_read(credit: Service) -> None:
    with httpx2.Client(base_url=credit.urls[0], timeout=LONG) as http:
        sent = 0

        def endless() -> Iterator[bytes]:
            nonlocal sent
            while True:
                sent += 1 << 16
                yield bytes(1 << 16)

        try:
            reply = http.post("/v1/answer", content=endless(), headers={"content-length": str(1 << 40)}, timeout=LONG)
            assert reply.status_code == 413
            assert reply.json()["code"] == "too_long"
        except httpx2.TransportError:
            pass  # it hung up while we were still talking
        assert sent < 64 << 20
        chunked = http.post("/v1/answer", content=iter([b"x"] * 3))
        assert (chunked.status_code, chunked.json()["code"]) == (411, "length_required")


def test_a_ledger_is_needed_and_is_one_servers_own(credit: Service, tmp_path: Path) -> None:
    keys = credit.folder
    common = ["serve", credit.bundle, "--common-key", keys / "common.key", "--terms", keys / "terms", "--port", 0]
    common += ["--key", keys / "1" / "server.key"]
    missing = cli(*common, "--server", 1, "--ledger", tmp_path / "none")
    assert missing.returncode == 2
    assert "got no ledger, expected the one it had; --new-ledger makes one" in missing.stderr
    again = cli(*common, "--server", 1, "--ledger", credit.processes[0].ledger, "--new-ledger")
    assert "got a ledger there already" in again.stderr
    other = cli(*common, "--server", 2, "--ledger", credit.processes[0].ledger)
    assert "expected that of server 2" in other.stderr
    (tmp_path / "junk").write_bytes(b"not a database at all, but long enough to look like one" * 100)
    junk = cli(*common, "--server", 1, "--ledger", tmp_path / "junk")
    assert junk.returncode == 2
    assert "file is not a database" in junk.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", 3], r"server: got 3, expected 1 to 2"),
        (["--server", 2], "server's key: got another one, expected that of server 2 in the terms"),
        (["--server", 1, "--tls-cert", "x.pem"], "only one of --tls-cert and --tls-key"),
        (["--server", 1, "--config", "bad.toml"], "bad.toml: got spelled-wrong"),
        (["--server", 1, "--tls-cert", "bad.toml", "--tls-key", "bad.toml"], "expected a chain and its key in PEM"),
        (["--server", 1, "--config", "cors.toml"], "cors.toml, cors: got 'https://a', expected a list of texts"),
        (["--server", 1, "--config", "list.toml"], "list.toml, port: got [1], expected one value"),
        (["--server", 1, "--config", "none.toml"], "No such file"),
        (["--server", 1, "--terms", "none.toml"], "expected a terms file"),
        (["--server", 1, "--terms", "bad.toml"], "JSON of version 2"),
        (["--server", 1, "--operator-token", "none.toml"], "No such file"),
        (["--server", 1, "--terms", "forged"], "expected that of the issuer whom they name"),
    ],
)
def test_bad_settings_are_refused_in_one_line(credit: Service, tmp_path: Path, arguments: list[Any], said: str) -> None:
    (tmp_path / "bad.toml").write_text("spelled-wrong = 1\n")
    (tmp_path / "cors.toml").write_text('cors = "https://a"\n')
    (tmp_path / "list.toml").write_text("port = [1]\n")
    keys = credit.folder
    (tmp_path / "forged").write_text((keys / "terms").read_text().replace("http://", "https://"))
    arguments = [tmp_path / a if str(a).endswith((".toml", "forged")) else a for a in arguments]
    terms = [] if "--terms" in arguments else ["--terms", keys / "terms"]
    common = ["serve", credit.bundle, "--common-key", keys / "common.key", *terms, "--port", 0]
    common += ["--key", keys / "1" / "server.key"]
    refused = cli(*common, "--ledger", tmp_path / "l", "--new-ledger", *arguments)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr
    assert not (tmp_path / "l").exists()  # so the next start may make it


@pytest.mark.parametrize(
    ("servers", "arguments", "said"),
    [
        (4, ["--scheme", "table/masked", "--collusion", 1, "--robust", 1, "--d-min", 2], "without a mask"),
        (2, ["--robust", 1], "servers: got 2, expected at least 3"),
        (2, ["--scheme", "nothing"], "scheme: got nothing"),
        (2, ["-k", 900], "k: got 900"),
        (65, [], "terms: got"),
        (2, ["--service", "two words"], "service"),
        (2, ["--key", "OTHER"], "expected the key that signed the bundle"),
        (1, [], "servers: got 1"),
    ],
)
def test_bad_terms_are_refused_in_one_line(
    credit: Service, tmp_path: Path, servers: int, arguments: list[Any], said: str
) -> None:
    write_keys(tmp_path / "other")
    given: list[Any] = ["--key", credit.folder / "issuer.key", "--service", "tests"]
    given += [tmp_path / "other" / "issuer.key" if a == "OTHER" else a for a in arguments]
    for n in range(servers):
        write_server_keys(tmp_path / str(n))
        given += ["--server", f"https://server{n}.example", tmp_path / str(n) / "server.pub"]
    refused = cli("terms", credit.bundle, *given, "-o", tmp_path / "terms")
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr
    assert not (tmp_path / "terms").exists()


def test_terms_are_written_on_the_command_line_and_served(tmp_path: Path, credit: Service) -> None:
    addresses = ["https://one.example/", "https://two.example"]
    for n in (1, 2):
        made = cli("keygen", "--operator", tmp_path / str(n))
        assert made.returncode == 0, made.stderr
    keys = [tmp_path / str(n) / "server.pub" for n in (1, 2)]
    given = [part for pair in zip(addresses, keys, strict=True) for part in ("--server", *pair)]
    issuing = ["--key", credit.folder / "issuer.key", "--service", "tests", "--begins", "2026-01-31T12:00Z"]
    wrote = cli("terms", credit.bundle, *issuing, *given, "-o", tmp_path / "terms")
    assert wrote.returncode == 0, wrote.stderr
    assert "server 1: https://one.example, key" in wrote.stdout
    again = cli("terms", credit.bundle, *issuing, *given, "-o", tmp_path / "terms")
    assert (again.returncode, "expected a new file, or --force to replace it" in again.stderr) == (2, True)
    assert cli("terms", credit.bundle, *issuing, *given, "--force", "-o", tmp_path / "terms").returncode == 0
    issued = read_terms(tmp_path / "terms")
    assert issued.addresses == ("https://one.example", "https://two.example")
    assert fingerprint(bytes.fromhex(issued.terms.keys[1])) in wrote.stdout
    moved = sign_terms(issued.terms, ["https://three.example", "https://two.example"], credit.issuer)
    assert moved.digest == issued.digest  # a change of address leaves tickets and derivations as they are
    names = ["--name", "North", "--name", '{"de": "Amt", "en": "Office"}']
    named = cli("terms", credit.bundle, *issuing, *given, *names, "-o", tmp_path / "named")
    assert "server 2: Office, https://two.example, key" in named.stdout, named.stderr
    said = read_terms(tmp_path / "named")
    assert said.names == ("North", {"de": "Amt", "en": "Office"})
    assert said.digest == issued.digest
    assert b"names" not in (tmp_path / "terms").read_bytes()
    with pytest.raises(InvalidTerms, match="signature"):
        check_terms(msgspec.structs.replace(said, names=("South", "Office")))
    with pytest.raises(InvalidTerms, match="signature"):
        check_terms(msgspec.structs.replace(said, names=msgspec.UNSET))
    for bad, expected in ((["--name", "North"], "one for each of 2"), (["--name", "A"] * 2, "each server's own")):
        assert expected in cli("terms", credit.bundle, *issuing, *given, *bad, "-o", tmp_path / "bad").stderr
    assert "--name: got" in cli("terms", credit.bundle, *issuing, *given, "--name", "{1}", "-o", "x").stderr


def test_unsigned_bundles_are_not_served(tmp_path: Path, credit: Service) -> None:
    numbers_database(5, 2).save(tmp_path / "plain.bundle")
    key = credit.folder / "1" / "server.pub"
    refused = cli(
        "terms", tmp_path / "plain.bundle", "--service", "x", "--key", credit.folder / "issuer.key",
        "-o", tmp_path / "terms", "--server", "https://one.example", key, "--server", "https://two.example", key,
    )  # fmt: skip
    assert "got records without signatures, expected a bundle built with --key" in refused.stderr


def test_settings_by_file_environment_and_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('threads = 7\nlog-level = "debug"\ncors = ["https://page.example"]\nhost = "nowhere.invalid"\n')
    monkeypatch.setenv("COUNTERVEIL_SERVE_LOG_LEVEL", "info")
    monkeypatch.setenv("COUNTERVEIL_SERVE_HOST", "nowhere.invalid")
    with running(tmp_path, numbers_database(20, 2), 2, "--config", config, "--host", "localhost") as service:
        httpx2.get(service.urls[0] + "/healthz", timeout=LONG)
        assert not [e for e in service.processes[0].entries() if e["level"] == "debug"]
        with httpx2.Client(base_url=service.urls[0], timeout=LONG) as http:
            for origin, allowed in (("https://page.example", True), ("https://other.example", False)):
                headers = {"origin": origin, "access-control-request-method": "POST"}
                reply = http.options("/v1/answer", headers=headers)
                assert ("access-control-allow-origin" in reply.headers) is allowed


def test_open_mode_says_so(tmp_path: Path) -> None:
    database = numbers_database(30, 2)
    with running(tmp_path, database, 2, is_open=True) as service, service.client() as client:
        terms = client.peers[0].manifest.terms
        assert (terms.tickets, terms.window) == ("open", 600)
        expected = local(database).ask({"x0": 3, "x1": 4})
        for _ in range(3):
            found = client.ask({"x0": 3, "x1": 4})
            assert found.cost == expected.cost  # type: ignore[union-attr]
        with pytest.raises(Refused, match="must expire within 600 seconds"):
            client.ask({"x0": 3, "x1": 4}, ticket=service.ticket(client, issuer=None))


def test_a_ticket_outlives_new_data_and_new_addresses_and_is_used_once_over_all(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(30, 2), 2) as service, service.client() as client:
        old, used = service.ticket(client), service.ticket(client)
        assert client.ask({"x0": 1, "x1": 1}, ticket=used).feasible
        service.halt()
        service.publish(numbers_database(40, 2))
        service.resume()
        found = client.ask({"x0": 1, "x1": 1}, ticket=old)  # refused, so the client looks again, and asks again
        assert isinstance(found, Counterfactual)
        assert found.issued == service.issued
        with service.client() as fresh, pytest.raises(ServerFault, match="was used for another request"):
            fresh.ask({"x0": 1, "x1": 1}, ticket=used)


def test_workers_share_a_ledger(tmp_path: Path) -> None:
    """Two processes of one server, one ledger: of two questions on one ticket exactly one is answered."""
    database = numbers_database(30, 2)
    with running(tmp_path, database, 2) as service:
        (tmp_path / "replica").mkdir()
        first = service.processes[0]
        replica = Process.__new__(Process)
        replica.__dict__.update(first.__dict__)
        replica.log, replica.port = tmp_path / "replica" / "log", 0
        replica.start()
        replica.wait()
        try:
            with service.client() as one, service.client(connect_to={service.urls[0]: replica.url}) as two:
                for _ in range(25):
                    ticket = service.ticket(one)
                    outcomes: list[Any] = []

                    def ask(client: Client, x: int, ticket: Any = ticket, outcomes: list[Any] = outcomes) -> None:
                        try:
                            outcomes.append(client.ask({"x0": x, "x1": x}, ticket=ticket))
                        except ServerFault as error:
                            outcomes.append(error.code)

                    threads = [threading.Thread(target=ask, args=(c, x)) for c, x in ((one, 2), (two, 19))]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    assert "ticket_used" in outcomes
                assert len(ledger_rows(first.ledger)) <= 25 * 2
        finally:
            replica.stop()


def test_after_sigterm_the_ledgers_file_alone_holds_everything(tmp_path: Path) -> None:
    """A real process: a ticket that was used stays used when its ledger is moved after a clean stop."""
    with running(tmp_path, numbers_database(30, 2), 2) as service:
        with service.client() as client:
            used = service.ticket(client)
            assert client.ask({"x0": 1, "x1": 1}, ticket=used).feasible
        service.halt()
        for process in service.processes:
            assert not process.ledger.with_name(process.ledger.name + "-wal").exists()
            moved = tmp_path / f"moved-{process.number}"
            process.ledger.rename(moved)
            process.ledger = moved
        service.resume()
        with service.client() as client, pytest.raises(ServerFault, match="was used for another request"):
            client.ask({"x0": 9, "x1": 1}, ticket=used)


def test_a_ticket_in_a_file_is_marked_when_its_question_leaves_and_not_before(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(30, 2), 2) as service:
        text = service.ticket().text()
        (tmp_path / "tickets").write_text(text)
        person = write(tmp_path, {"x0": 1, "x1": 1})
        ask = [
            "ask",
            "--terms",
            tmp_path / "terms",
            "--tickets",
            tmp_path / "tickets",
            "--timeout",
            LONG,
            "--person",
            person,
        ]
        old = (tmp_path / "terms").read_text()
        service.halt()
        assert "cannot be reached" in cli(*ask).stderr
        service.publish(numbers_database(31, 2))
        service.resume()
        (tmp_path / "terms").write_text(old)
        assert "other terms than the terms file; get the new one; nothing was asked" in cli(*ask).stderr
        assert "other terms than the terms file" in " ".join(
            cli("doctor", "--terms", tmp_path / "terms").stdout.split()
        )
        assert (tmp_path / "tickets").read_text() == text
        write_terms(tmp_path / "terms", service.issued)
        assert cli(*ask).returncode == 0
        assert (tmp_path / "tickets").read_text() == f"# used: {text}\n"


def test_graceful_stop(tmp_path: Path) -> None:
    """What is under way when the signal comes is still answered."""
    with (
        running(tmp_path, numbers_database(30_000, 8), 2, "--scheme", "table/differences") as service,
        service.client() as client,
    ):
        results: list[Any] = []
        ticket = service.ticket(client)
        thread = threading.Thread(
            target=lambda: results.append(client.ask({f"x{j}": 3 for j in range(8)}, ticket=ticket))
        )
        before = [len(p.entries()) for p in service.processes]
        thread.start()
        while len(ledger_rows(service.processes[0].ledger)) < 2 and thread.is_alive():
            time.sleep(0.001)
        service.processes[0].process.terminate()
        assert service.processes[0].stop() in (0, -signal.SIGTERM)
        thread.join()
        assert isinstance(results[0], Counterfactual)
        assert len(service.processes[0].entries()) > before[0]


def test_tls(tmp_path: Path) -> None:
    cert, private = certificate(tmp_path)
    database = numbers_database(20, 2)
    with running(tmp_path, database, 2, "--tls-cert", cert, "--tls-key", private) as service:
        assert all(url.startswith("https://") for url in service.urls)
        with service.client(verify=ssl.create_default_context(cafile=cert)) as client:
            assert client.ask({"x0": 1, "x1": 1}, ticket=service.ticket(client)).feasible
            assert all(peer.traffic.up > peer.traffic.body_up > 0 for peer in client.peers)
        with pytest.raises(ServerFault, match="CERTIFICATE_VERIFY_FAILED"):
            service.client()
        addresses = [part for url in service.urls for part in ("--server", url)]
        well = cli("doctor", *addresses, "--ca", cert)
        assert well.returncode == 0, well.stdout
        assert "more" in well.stdout


def test_doctor_says_that_a_certificate_ends_soon(tmp_path: Path) -> None:
    cert, private = certificate(tmp_path, days=3)
    with running(tmp_path, numbers_database(20, 2), 2, "--tls-cert", cert, "--tls-key", private) as service:
        ill = cli("doctor", *[part for url in service.urls for part in ("--server", url)], "--ca", cert)
    assert (ill.returncode, f"({service.urls[0]}): TLS certificate: for 3 more days" in ill.stdout) == (1, True)


def test_nothing_is_asked_of_servers_that_disagree(tmp_path: Path) -> None:
    """Another key, other terms, another bundle, the same server twice: refused before a query byte is sent."""
    database = numbers_database(20, 2)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with (
        running(folders[0], database, 2) as one,
        running(folders[1], database, 2) as other_keys,
        running(folders[2], numbers_database(21, 2), 2, "--max-weight", 90) as other_terms,
    ):
        cases = [
            ([one.urls[0], other_keys.urls[1]], "terms: .* do not agree on database, packages, issuer, keys"),
            (
                [one.urls[0], other_terms.urls[1]],
                "terms: .* do not agree on parameters, q, rows, data",
            ),
            ([one.urls[0], one.urls[0].replace("localhost", "127.0.0.1")], "one answers for another"),
        ]
        for urls, said in cases:
            with pytest.raises(Disagreement, match=said):
                Client(urls)
        with pytest.raises(Disagreement, match="two or more different addresses"):
            Client([one.urls[0]])
        for service in (one, other_keys, other_terms):
            for process in service.processes:
                assert not [e for e in process.entries() if e.get("path") in ("/v1/answer", "/v1/record")]


def test_a_half_done_key_rotation_is_an_error_and_not_noise(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(20, 2), 2) as service:
        service.processes[1].kill()
        (tmp_path / "common.key").write_text("ab" * 32 + "\n")
        service.processes[1].start()
        service.processes[1].wait()
        with pytest.raises(Disagreement, match=r"common key: .* do not agree; nothing was asked"):
            service.client()


def test_tickets_are_refused_each_with_its_own_code(credit: Service, people: list[dict[str, Any]]) -> None:
    with credit.client() as client:
        good = credit.ticket(client)
        client.ask(people[0], ticket=good)
        now = int(time.time())
        cases = {
            "ticket_used": good,
            "ticket_forged": credit.ticket(client, issuer=Issuer()),
            "ticket_expired": credit.ticket(client, expires=now - 1),
            "ticket_for_another_service": mint(
                msgspec.structs.replace(credit.issued.terms, service="other"),
                [1, 2],
                expires=now + 100,
                issuer=credit.issuer,
            ),
            "ticket_not_offered": credit.ticket(client, k=2),
            "ticket_for_other_servers": credit.ticket(client, [2]),
        }
        with httpx2.Client(base_url=credit.urls[0], timeout=LONG) as http:
            for code, ticket in cases.items():
                reply = http.post("/v1/answer", content=some_query(client, ticket))
                assert (reply.json()["code"], reply.status_code) == (code, REFUSALS[code][0])
            body = some_query(client, credit.ticket(client))
            first, again = (http.post("/v1/answer", content=body) for _ in range(2))
            assert first.status_code == again.status_code == 200
            assert first.content == again.content  # the very same bytes are a safe retry
            elsewhere = wire.decode_request(body, "query")
            moved = wire.encode(msgspec.structs.replace(elsewhere, server=2))
            assert http.post("/v1/answer", content=moved).json()["code"] == "wrong_server"


def test_the_deployment_a_manifest_describes_is_the_one_that_runs(credit: Service) -> None:
    with credit.client() as client:
        made = Deployment.of(credit.database.schema, scheme="table/sealed", record=credit.database.record)
        assert client.deployment == made
        assert Local(credit.database, client.deployment)
