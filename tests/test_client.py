"""A client among hostile servers: whatever comes back, one clear error that names the server, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import numpy as np
import pytest

from counterveil import Client
from counterveil.applicant import exchange, offer
from counterveil.applicant.replies import Incoming
from counterveil.applicant.runs import Line
from counterveil.errors import CounterveilError, InvalidInput, ServerFault
from counterveil.service.server import Admitted, Reply, Turn
from counterveil.terms import wire
from deployed import PERSON, deployed
from patience import LONG
from relay import Relay
from service import numbers_database

pytestmark = pytest.mark.slow


class Canned:
    """Answers every request with the same bytes."""

    def __init__(self, reply: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._reply = reply
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                try:
                    connection.sendall(self._reply)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.close()


def reply(status: str = "200 OK", body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


REPLIES = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "no JSON": reply(body=b"hello"),
    "other JSON": reply(body=b"{}"),
    "deep JSON": reply(body=b"[" * 100_000),
    "not UTF-8": reply(body=b'"\xff"'),
    "a redirect to a mail address": reply("302 Found", b"", "location: mailto:a@b"),
    "a redirect": reply("302 Found", b"", "location: http://127.0.0.1:9/"),
    "another length": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
    "a bad length": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    "more than a manifest": reply(body=bytes(5 << 20)),
    "a compressed body": reply("200 OK", b"\x1f\x8b\x08\x00", "content-encoding: gzip"),
    "a refusal": reply("403 Forbidden", b'{"code": "x", "message": "no"}'),
    "a refusal that clears the screen": reply("403 Forbidden", b'{"code": "x", "message": "\\u001b[2J"}'),
    "a refusal without a reason": reply("404 Not Found", b"<html>"),
    "a failure": reply("500 Internal Server Error", b"oops"),
    "never ready": reply("503 Service Unavailable", b""),
    "an odd status": b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
    "cookies": reply("200 OK", b"{}", "set-cookie: who=you"),
    "a header without end": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000,
}


@pytest.mark.parametrize("name", REPLIES)
def test_hostile_replies(name: str) -> None:
    servers = [Canned(REPLIES[name]) for _ in range(2)]
    with pytest.raises(ServerFault) as fault:
        Client([server.url for server in servers], patience=0.1, timeout=LONG)
    assert servers[0].url in str(fault.value)
    assert str(fault.value).isprintable()
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    "url", ["", "localhost", "ftp://localhost", "http://localhost:99999", "http://", "http://[", "mailto:a"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(CounterveilError):
        Client([url, "http://127.0.0.1:9"], patience=0.0)


@pytest.mark.parametrize("options", [{"timeout": float("nan")}, {"timeout": -1}, {"patience": "long"}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="expected seconds"):
        Client(["http://127.0.0.1:9", "http://127.0.0.1:8"], **options)
    with pytest.raises(InvalidInput, match="expected a list of addresses"):
        Client("http://127.0.0.1:9")


def test_a_silent_server_times_out_and_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, deployed(tmp_path, numbers_database(20, 3), 2) as made:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ServerFault, match=rf"{url}: did not answer within 0.3 seconds"):
            Client([url, made.urls[0]], timeout=0.3, patience=0.0)  # of two that are late, the first is named
        assert time.monotonic() - began < LONG


def test_a_cancelled_attempt_leaves_the_answer_in_step() -> None:
    """What was taken is fed, even if the attempt is cancelled at that very moment; the next one goes on behind it."""
    right = wire.Reply(2, "answer", 1, bytes(16), 0, (1, 2), b"")
    whole = bytes(range(200))
    body = Incoming(right, len(whole), keep=False)
    message = wire.head(right, len(whole)) + whole
    body.begin()
    fed = body.take(message[:70]) + body.take(message[70:120])
    body.begin()
    for start in range(0, len(message), 30):
        fed += body.take(message[start : start + 30])
    body.checked("server 1")
    assert fed == whole


def test_what_was_heard_is_kept_even_if_the_attempt_is_cancelled_at_that_moment() -> None:
    """The bytes are handed to the conversation before anybody waits."""
    heard = list[bytes]()
    conversation = SimpleNamespace(heard=lambda line, data: heard.append(data), wants=lambda line: False)

    async def play() -> None:
        into = exchange._Into(cast(Any, conversation), Line(1, 0), anyio.Condition())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await into.take(b"some")
        assert scope.cancelled_caught

    anyio.run(play)
    assert heard == [b"some"]


def clock_of(relay: Relay, seconds: float) -> Any:
    """Return a clock that goes on with every break alone, so that it makes no difference how busy a machine is."""
    start = relay.creep or 0
    return SimpleNamespace(
        monotonic=lambda: seconds * ((relay.creep or 0) - start) / relay.step, perf_counter=time.perf_counter
    )


def test_an_answer_that_gets_on_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience counts from the last bytes that came: an answer may break more often than that allows in all."""
    with deployed(tmp_path, numbers_database(4000, 3), 2, scheme="table/sealed") as made:
        relay = Relay(made.urls[0])
        with Client(made.urls, connect_to={made.urls[0]: relay.url}, patience=0.3, timeout=LONG) as client:
            relay.creep = relay.step = 1_000_000
            clock = clock_of(relay, 0.2)
            monkeypatch.setattr(exchange, "time", clock)
            assert client.ask(PERSON, ticket=made.ticket()).feasible
            assert clock.monotonic() > 4 * 0.2  # breaks, longer in all than patience
        relay.close()


def test_a_server_that_creeps_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little more at every try, and then the connection breaks: progress of a kind, and not for ever."""
    with deployed(tmp_path, numbers_database(300, 3), 2, scheme="table/sealed") as made:
        relay = Relay(made.urls[0])
        with Client(made.urls, connect_to={made.urls[0]: relay.url}, patience=0.5, timeout=LONG) as client:
            relay.creep = 1000
            clock = clock_of(relay, LONG / 10)
            monkeypatch.setattr(exchange, "time", clock)
            with pytest.raises(ServerFault, match=f"{made.urls[0]}.* (broke off|did not finish|too often)"):
                client.ask(PERSON, ticket=made.ticket())
            assert clock.monotonic() >= LONG  # it was tried again and again
        relay.close()


def test_retries_send_the_same_bytes(tmp_path: Path) -> None:
    """A connection that breaks before the answer: the same bytes again, and the question is answered."""
    with deployed(tmp_path, numbers_database(20, 3), 2) as made:
        target = int(made.urls[1].rsplit(":", 1)[1])
        seen: list[bytes] = []
        breaking = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    connection, _ = breaking.accept()
                except OSError:
                    return
                with connection, socket.create_connection(("127.0.0.1", target)) as server:
                    connection.settimeout(LONG)
                    request = connection.recv(1 << 20)
                    while b"content-length" in request.lower() and len(request.partition(b"\r\n\r\n")[2]) < length(
                        request
                    ):
                        request += connection.recv(1 << 20)
                    seen.append(request)
                    if request.startswith(b"POST") and seen.count(request) % 2:
                        continue  # hang up without a word
                    server.sendall(request.replace(b"Connection: keep-alive", b"Connection: close"))
                    while data := server.recv(1 << 20):
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{breaking.getsockname()[1]}"
        with Client(made.urls, connect_to={made.urls[1]: url}) as client:
            assert client.ask(PERSON, ticket=made.ticket()).feasible
        posts = [request for request in seen if request.startswith(b"POST")]
        assert len(posts) == 4
        assert posts[0] == posts[1]
        assert posts[2] == posts[3]
        breaking.close()


def length(request: bytes) -> int:
    head = request.partition(b"\r\n\r\n")[0].lower()
    return int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])


@pytest.mark.slow
def test_the_gap_before_the_record_query_is_a_multiple_of_a_public_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "_STEP", 0.4)  # longer than a question takes without it
    with deployed(tmp_path, numbers_database(20, 3), 2) as made, Client(made.urls) as client:
        client.ask(PERSON, ticket=made.ticket())
        times: list[float] = []
        server, original = made.servers[0], made.servers[0].admit

        def admit(head: bytes, length: int, kind: wire.RequestKind) -> Admitted:
            admitted = original(head, length, kind)
            if kind == "record-query":
                times.append(time.monotonic())
                return admitted

            def read(body: bytes) -> Turn:
                turn = admitted.read(body)
                honest = turn.answer

                def answer() -> Reply:
                    reply = honest()
                    times.append(time.monotonic())
                    return reply

                turn.answer = answer  # type: ignore[method-assign]
                return turn

            return admitted._replace(read=read)

        server.admit = admit  # type: ignore[method-assign]
        for _ in range(3):
            client.ask(PERSON, ticket=made.ticket())
        assert len(times) == 6
        assert (np.diff(times)[::2] >= 0.4).all()  # never earlier than the step, however quick the applicant is
