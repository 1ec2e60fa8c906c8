"""Small floods: a client that keeps the server waiting loses its place, and nobody else has to wait for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import httpx2
import pytest
import uvicorn

from adversary.floods import captured, posted
from certificates import certificate
from counterveil import Counterfactual
from counterveil.algebra.compiled import cores
from counterveil.errors import Refused
from counterveil.service import app, limits
from counterveil.service.app import REFUSALS, _Answer, _Readiness
from counterveil.service.connections import HANG_UP, Crowd, Listener
from counterveil.service.desk import Desk
from counterveil.service.ledger import Standing
from counterveil.service.limits import GaveWay, Place, Places
from counterveil.service.server import Admitted, Reply
from counterveil.terms import wire
from patience import LONG, wait_until
from service import Service, numbers_database, resident, running

pytestmark = pytest.mark.slow

WORD = "a token of the operator's own"
PERSON = {f"x{j}": 3 for j in range(8)}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("sealed")
    (folder / "token").write_text(WORD)
    options = ["--scheme", "table/sealed", "--operator-token", folder / "token"]
    with running(folder, numbers_database(4000, 8), 2, *options) as service:
        yield service


def port_of(service: Service) -> int:
    return int(service.urls[0].rsplit(":", 1)[1])


def connect(port: int, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=LONG)
    made.sendall(said)
    return made


def rest(connection: socket.socket) -> bytes:
    """Read until the other end closes."""
    read = bytearray()
    with suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            read += data
    return bytes(read)


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.slow
def test_questions_are_answered_while_forty_answers_are_never_read(sealed: Service) -> None:
    requests = captured(sealed, 40)
    before = resident(sealed)
    with sealed.client() as client, ExitStack() as held:
        for request in requests * 2:
            held.enter_context(connect(port_of(sealed), request))
        for _ in range(3):
            assert isinstance(client.ask(PERSON, ticket=sealed.ticket(client)), Counterfactual)
        assert resident(sealed) - before < 700 << 20
    assert not [e for e in sealed.processes[0].entries() if e["level"] == "error"]


@pytest.mark.slow
def test_health_is_told_while_six_hundred_connections_say_nothing(sealed: Service) -> None:
    half = posted(bytes(300))[:-9]
    for said in (b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n", half):
        with ExitStack() as held:
            for _ in range(600):
                held.enter_context(connect(port_of(sealed), said))
            for path in ("/healthz", "/v1/manifest"):
                assert httpx2.get(sealed.urls[0] + path, timeout=LONG).status_code == 200


@pytest.mark.slow
def test_the_same_request_again_replaces_the_one_under_way(sealed: Service) -> None:
    (request,) = captured(sealed, 1)
    with connect(port_of(sealed), request) as first:
        assert first.recv(12) == b"HTTP/1.1 200"
        with connect(port_of(sealed), request.replace(b"host: x", b"connection: close\r\nhost: x")) as second:
            whole = rest(second)
        assert whole.startswith(b"HTTP/1.1 200")
        assert len(rest(first)) + 12 < len(whole) - 100
    assert len(whole) > 1 << 20


@pytest.mark.slow
def test_a_server_stops_although_somebody_does_not_read(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(4000, 8), 2, "--scheme", "table/sealed") as service:
        (request,) = captured(service, 1)
        with connect(port_of(service), request) as stalled:
            assert stalled.recv(12) == b"HTTP/1.1 200"
            service.processes[0].stop()
    assert "graceful shutdown exceeded" not in service.processes[0].log.read_text()


@pytest.mark.slow
def test_metrics_are_for_this_machine_and_the_operator(sealed: Service) -> None:
    right = {"authorization": f"Bearer {WORD}"}
    others: list[dict[str, str]] = [
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=::1"},
        {"host": "evil.example"},
    ]
    with httpx2.Client(base_url=sealed.urls[0], timeout=LONG) as http:
        assert "counterveil_rows 4000.0" in http.get("/metrics").text
        for headers in others:
            refused = http.get("/metrics", headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert "counterveil_" not in refused.text
            assert http.get("/metrics", headers=headers | {"authorization": "Bearer no"}).status_code == 401
            assert "counterveil_rows" in http.get("/metrics", headers=headers | right).text


@pytest.mark.slow
def test_without_an_operator_metrics_are_for_this_machine_alone(tmp_path: Path) -> None:
    with (
        running(tmp_path, numbers_database(20, 2), 2) as service,
        httpx2.Client(base_url=service.urls[0], timeout=LONG) as http,
    ):
        assert http.get("/metrics").status_code == 200
        assert http.get("/metrics", headers={"x-forwarded-for": "10.0.0.1"}).status_code == 403
        assert http.get("/metrics", headers={"via": "1.1 x", "authorization": "Bearer x"}).status_code == 403


@pytest.mark.slow
def test_pages_of_others_may_ask_and_read_nothing_else(sealed: Service) -> None:
    origin = {"origin": "https://elsewhere.example"}
    with httpx2.Client(base_url=sealed.urls[0], timeout=LONG, headers=origin) as http:
        assert http.get("/v1/manifest").headers["access-control-allow-origin"] == "*"
        asked = http.options("/v1/answer", headers={"access-control-request-method": "POST"})
        assert asked.headers["access-control-allow-origin"] == "*"
        for path in ("/metrics", "/operator", "/operator/status", "/healthz", "/readyz", "/", "/openapi.json"):
            assert "access-control-allow-origin" not in http.get(path).headers, path
        asked = http.options("/metrics", headers={"access-control-request-method": "GET"})
        assert "access-control-allow-origin" not in asked.headers


def test_readiness_is_looked_at_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_FRESH", LONG)

    class Book:
        checks = 0

        def check(self) -> None:
            self.checks += 1
            time.sleep(0.05)
            if self.checks > 1:
                raise Refused("not_ready", "the ledger cannot be written")

    book, outcomes = Book(), list[str]()
    readiness = _Readiness(book)  # type: ignore[arg-type]

    async def ask() -> None:
        try:
            await readiness.check()
            outcomes.append("ready")
        except Refused as error:
            outcomes.append(error.code)

    async def flood() -> None:
        await asyncio.gather(*(ask() for _ in range(200)))
        readiness._until = 0.0  # later
        await asyncio.gather(*(ask() for _ in range(200)))

    asyncio.run(flood())
    assert outcomes == ["ready"] * 200 + ["not_ready"] * 200
    assert book.checks == 2


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers at once, or without end, or after the body, or not at all."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    while scope["path"] == "/endless" and not (await _gone(receive)):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    if scope["path"] == "/never":
        await receive()
        await receive()
    await send({"type": "http.response.body", "body": b"hello"})


async def _gone(receive: Any) -> bool:
    with anyio.move_on_after(0):
        while (await receive())["type"] != "http.disconnect":
            pass
        return True
    return False


@contextmanager
def listening(crowd: Crowd, **options: Any) -> Iterator[int]:
    """Run the application with such connections in a thread; give its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(_hello, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1, **options)
    server = Listener(config, crowd)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n", b"G"])
def test_a_request_that_does_not_come_is_not_waited_for(said: bytes) -> None:
    with listening(Crowd(asking=0.3)) as port, connect(port, said) as connection:
        assert rest(connection) == b""


@pytest.mark.slow
def test_the_next_request_on_a_connection_has_its_time_too(sealed: Service) -> None:
    with connect(port_of(sealed), b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /he") as connection:
        assert rest(connection).count(b"200 OK") == 1


def test_a_head_without_an_end_is_refused() -> None:
    with listening(Crowd(asking=10 * LONG)) as port, connect(port, b"GET / HTTP/1.1\r\nx: ") as connection:
        with suppress(ConnectionError):
            for _ in range(2000):
                connection.sendall(b"y" * (1 << 12))
                time.sleep(0.0005)
            raise AssertionError("eight megabytes of one head were read")
        assert rest(connection)[:12] in (b"HTTP/1.1 400", b"")  # the refusal may be lost with the connection


def test_an_answer_that_is_not_read_is_not_waited_for() -> None:
    crowd = Crowd(reading=0.3)
    with listening(crowd) as port, connect(port, b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n") as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: not crowd._all)
        rest(connection)  # it has an end


def test_the_one_that_waited_longest_makes_room_for_one_more() -> None:
    with listening(Crowd(most=4, asking=10 * LONG)) as port, ExitStack() as held:
        served = held.enter_context(connect(port, b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n"))
        assert served.recv(12) == b"HTTP/1.1 200"
        silent = [held.enter_context(connect(port)) for _ in range(3)]
        for gone in range(3):
            with connect(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") as one_more:
                assert rest(one_more).endswith(b"hello\r\n0\r\n\r\n")
            if gone == 0:
                wait_until(lambda: not is_open(silent[0]))
            assert [is_open(each) for each in silent[1:]] == [True, True]
        assert is_open(served)  # it waits for the server, and not the server for it


@pytest.mark.slow
def test_tls_handshakes_are_counted_and_have_their_time(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    options = {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}
    for crowd in (Crowd(most=4, asking=10 * LONG), Crowd(asking=3.0)):
        with listening(crowd, **options) as port, ExitStack() as held:
            silent = [held.enter_context(connect(port)) for _ in range(9)]
            with trusted.wrap_socket(connect(port), server_hostname="localhost") as secure:
                secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                with suppress(ssl.SSLError):
                    assert secure.recv(12) == b"HTTP/1.1 200"
            wait_until(lambda held_open=silent[:5]: not any(map(is_open, held_open)))  # type: ignore[misc]


class Stub:
    """A server whose answers wait until the test lets them go."""

    longest = 1000

    def __init__(self) -> None:
        self.go, self.admitted, self.begun, self.spent = threading.Event(), 0, 0, list[bytes]()
        self.under_way = self.most = 0
        self.ledger = SimpleNamespace(at_once=1, perform_all=lambda entries: [*map(self.perform, entries)])

    def perform(self, entry: bytes) -> Standing | Refused:
        if entry == b"used":
            return Refused("ticket_used", "the ticket was used for another request")
        self.spent.append(entry)
        return Standing(True, "spent", b"")

    def admit(self, head: bytes, length: int, kind: str) -> Admitted:
        if head == b"forged":
            raise Refused("ticket_forged", "the ticket is forged")
        return Admitted(len(head), self.read)

    def read(self, body: bytes) -> Any:
        """Return a turn, as a server does."""

        self.admitted += 1

        def answer() -> Reply:
            self.begun, self.under_way = self.begun + 1, self.under_way + 1
            self.most = max(self.most, self.under_way)
            assert self.go.wait(LONG)
            self.under_way -= 1
            return Reply(5, iter([b"right"]))

        return SimpleNamespace(fingerprint=body, entry=body, answer=answer, last=False, short=False)


async def ask(desk: Desk, body: bytes) -> tuple[int, bytes]:
    """Send one request to the desk; return the status, 0 for none, and the answer."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status, said, over = 0, b"", anyio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, said
        status, said = message.get("status", status), said + bytes(message.get("body", b""))

    headers = [(b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/answer",
        "headers": headers,
        "asgi": {"spec_version": "2.3"},
    }
    await _Answer(partial(desk.serve, "query"))(scope | {"extensions": {HANG_UP: over.set}}, receive, send)
    return status, said


def test_a_head_is_refused_before_its_body_has_come() -> None:
    """The ticket is checked first. What comes behind a refused head is read to its end, and not kept."""
    came: list[str] = []

    class Doorkeeper(Stub):
        longest = 1 << 17

        def admit(self, head: bytes, length: int, kind: str) -> Admitted:
            came.append("head checked")
            assert (len(head), length) == (wire.ENVELOPE, 1 << 16)
            raise Refused("ticket_forged", "the ticket is forged")

    async def run() -> None:
        desk, parts = Desk(cast(Any, Doorkeeper())), [bytes(wire.ENVELOPE), *[bytes(1008)] * 64]

        async def receive() -> Any:
            came.append("part")
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            came.append(str(message.get("status", "sent")))

        headers = [(b"content-length", b"65536")]
        scope = {"type": "http", "method": "POST", "path": "/v1/answer", "headers": headers, "extensions": {}}
        await _Answer(partial(desk.serve, "query"))(scope, receive, send)

    anyio.run(run)
    assert came[:2] == ["part", "head checked"]
    assert came.count("part") == 65
    assert came[-2:] == ["401", "sent"]


def asked(work: Callable[[Desk, Stub], Awaitable[None]]) -> None:
    async def go() -> None:
        stub = Stub()
        with anyio.fail_after(LONG):
            await work(Desk(stub), stub)  # type: ignore[arg-type]

    asyncio.run(go())


def test_refusals_do_not_wait_for_answers() -> None:
    async def work(desk: Desk, stub: Stub) -> None:
        waiting = [asyncio.create_task(ask(desk, b"%d" % i)) for i in range(cores() + 3)]
        while stub.begun < cores() or len(stub.spent) < cores() + 3:
            await asyncio.sleep(0.01)
        assert (await ask(desk, b"forged"))[0] == REFUSALS["ticket_forged"][0]
        assert (await ask(desk, b"used"))[0] == REFUSALS["ticket_used"][0]
        assert stub.begun == cores()
        assert len(stub.spent) == cores() + 3
        stub.go.set()
        assert await asyncio.gather(*waiting) == [(200, b"right")] * len(waiting)

    asked(work)


def test_of_the_same_request_only_the_last_is_answered() -> None:
    async def work(desk: Desk, stub: Stub) -> None:
        repeats = []
        for count in range(1, 6):
            repeats.append(asyncio.create_task(ask(desk, b"same")))
            while stub.admitted < count or not stub.begun:
                await asyncio.sleep(0.01)
        stub.go.set()
        outcomes = await asyncio.gather(*repeats)
        assert outcomes[-1] == (200, b"right")
        assert [status for status, _ in outcomes[:-1]] == [0] * 4
        assert stub.most == 1

    asked(work)


async def hold(places: Places, done: list[str], name: str, use: Callable[[Place], Awaitable[None]]) -> None:
    try:
        async with places.hold() as place:
            await use(place)
        done.append(f"{name} done")
    except GaveWay:
        done.append(f"{name} gave way")
    except Refused as error:
        done.append(f"{name} {error.code}")


def test_who_stalls_gives_way_and_who_is_kept_waiting_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock advances only while the server waits for a steady client, so a busy machine makes nobody stall."""
    done: list[str] = []
    now = 0.0
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now))

    async def stall(place: Place) -> None:
        with place.waiting():
            await asyncio.sleep(LONG)

    async def steady(place: Place) -> None:
        nonlocal now
        while len(done) < 2:
            with place.waiting():
                await asyncio.sleep(0.02)
                now += 0.02
            place.moved(1 << 20)

    async def compute(place: Place) -> None:
        while len(done) < 2:
            await asyncio.sleep(0.02)

    async def quick(place: Place) -> None:
        pass

    async def go() -> None:
        places = Places(3, stalled=0.2, slow=0.3, pace=1 << 18)
        first = [asyncio.create_task(hold(places, done, use.__name__, use)) for use in (compute, steady, stall)]
        await asyncio.sleep(0)
        await hold(places, done, "newcomer", quick)
        assert done == ["stall gave way", "newcomer done"]
        await asyncio.gather(*first)
        assert sorted(done[2:]) == ["compute done", "steady done"]
        assert places.held == 0

    asyncio.run(go())


def test_who_trickles_gives_way_too() -> None:
    done: list[str] = []

    async def trickle(place: Place) -> None:
        while True:
            with place.waiting():
                await asyncio.sleep(0.02)
            place.moved(100)

    async def quick(place: Place) -> None:
        pass

    async def go() -> None:
        places = Places(1, patience=LONG, stalled=LONG, slow=0.3)
        slow = asyncio.create_task(hold(places, done, "trickle", trickle))
        await asyncio.sleep(0)
        await hold(places, done, "newcomer", quick)
        await slow
        assert done == ["trickle gave way", "newcomer done"]

    asyncio.run(go())


def test_who_cannot_have_a_place_is_told_so() -> None:
    done: list[str] = []

    async def compute(place: Place) -> None:
        while len(done) < 3:
            await asyncio.sleep(0.02)

    async def go() -> None:
        places = Places(1, queue=2, patience=0.3)
        await asyncio.gather(*(hold(places, done, str(i), compute) for i in range(4)))

    asyncio.run(go())
    assert sorted(done) == ["0 done", "1 busy", "2 busy", "3 busy"]
    assert done[0] == "3 busy"  # at once: enough wait already
