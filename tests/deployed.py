"""Run servers in threads of this process, over real sockets: honest ones, and liars with the right rows and keys."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn

from counterveil import Database, Deployment
from counterveil.applicant.client import Client
from counterveil.crypto.keys import Issuer, SigningKey
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.errors import ServerFault, Tampered, TooManyLiars
from counterveil.schemes.fetch import Spir, spir_of
from counterveil.service.app import make_app
from counterveil.service.attempts import Attempt, Tapes
from counterveil.service.ledger import Ledger
from counterveil.service.listening import configured
from counterveil.service.server import Admitted, Asked, Reply, Server, Turn
from counterveil.service.together import Together
from counterveil.terms import wire
from counterveil.terms.published import make_terms, sign_terms
from counterveil.terms.tickets import mint

Altered = Callable[[Server, wire.Reply], bytes]
PERSON = {"x0": 3, "x1": 9, "x2": 14}


def serving(server: Server) -> str:
    """Serve in a thread until the process ends; return the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(make_app(server), log_config=None, access_log=False, lifespan="off"))
    threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Liar(Server):
    """A server with the right rows and the right key that alters what it sends."""

    on_answer: Altered | None = None
    on_record: Altered | None = None
    on_part: Callable[[bytes], bytes] | None = None  # alters its part of an answer that servers make together

    def admit(self, head: bytes, length: int, kind: wire.RequestKind) -> Admitted:
        admitted = super().admit(head, length, kind)
        alter = self.on_answer if kind == "query" else self.on_record
        if alter is None:
            return admitted

        def read(body: bytes) -> Turn:
            turn = admitted.read(body)
            honest = turn.answer
            turn.answer = lambda: self._altered(honest(), kind, alter)  # type: ignore[method-assign]
            return turn

        return admitted._replace(read=read)

    def asked(self, head: bytes, length: int, tapes: Tapes | None = None) -> Asked:
        asked, alter = super().asked(head, length, tapes), self.on_part
        if alter is None:
            return asked

        def join(body: Any) -> Attempt:
            attempt = asked.join(body)
            hold = attempt._hold
            attempt._hold = lambda reply: hold(alter(reply))  # type: ignore[method-assign]
            return attempt

        return asked._replace(join=join)

    def _altered(self, reply: Reply, kind: wire.RequestKind, alter: Altered) -> Reply:
        message = wire.decode_reply(reply.whole(), "answer" if kind == "query" else "record-answer")
        altered = wire.encode(msgspec.structs.replace(message, body=alter(self, message)))
        return Reply(len(altered), iter([altered]))


def record_step(server: Server, robust: int = 0) -> Spir:
    """Return the record step for a ticket that corrects `robust` wrong answers."""
    scheme = server.epoch.deployment.scheme
    return spir_of(scheme.among(range(1, scheme.needed(robust) + 1), robust), server.epoch.records.length)


class Deployed:
    """Servers in threads, over real sockets, each of which notes every request that it sees."""

    def __init__(self, folder: Path, database: Database, servers: int, robust: int = 0, **parameters: Any) -> None:
        self.issuer, self.common = Issuer(), new_key()
        self.database = database.sign(self.issuer)
        chosen: dict[str, Any] = {"scheme": "table/differences", "collusion": 1, "servers": servers} | parameters
        self.deployment = Deployment.of(database.schema, record=database.record, **chosen)
        self.own = [SigningKey() for _ in range(servers)]
        keys = [key.public for key in self.own]
        self.terms = make_terms(self.database, self.deployment, keys=keys, service="tests", robust=robust)
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(servers)]
        self.urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners]
        self.issued = sign_terms(self.terms, self.urls, self.issuer)
        self.servers: list[Liar] = []
        self.seen: list[list[tuple[str, str, list[tuple[bytes, bytes]]]]] = []
        self._running: list[tuple[uvicorn.Server, threading.Thread]] = []
        for n in range(1, servers + 1):
            ledger = Ledger(folder / f"ledger-{n}", n, new=True)
            made = Liar.open(n, self.database, self.issued, key=self.common, own=self.own[n - 1], ledger=ledger)
            self.servers.append(made)
            self._serve(made, self._listeners[n - 1])

    def _serve(self, server: Liar, listener: socket.socket) -> None:
        linked = server.epoch.deployment.scheme.protocol.linked
        app = make_app(server, together=Together(server, self.own[server.number - 1]) if linked else None)
        seen: list[tuple[str, str, list[tuple[bytes, bytes]]]] = []

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = sorted(pair for pair in scope["headers"] if pair[0] != b"host")
                seen.append((scope["method"], scope["path"], headers))
            await app(scope, receive, send)

        config = configured(app, host="127.0.0.1", port=0, tls_cert=None, tls_key=None)
        config.app, config.lifespan = noting, "on" if linked else "off"
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        self._running.append((running, thread))
        self.seen.append(seen)

    def publish(self, terms: wire.Terms, **changes: Any) -> None:
        """Make all servers show other terms, correctly signed, even if the terms make no sense."""
        bare = wire.SignedTerms(terms.text(), tuple(self.urls), "0" * 128)
        issued = msgspec.structs.replace(bare, signature=self.issuer.sign("terms", *bare.signed()).hex())
        for server, own in zip(self.servers, self.own, strict=True):
            said = msgspec.structs.replace(server.manifest, issued=issued, **changes)
            show(server, msgspec.structs.replace(said, signature=own.sign("manifest", *said.signed()).hex()))
        self.restart()

    def restart(self) -> None:
        """Serve the servers as they are now, at the same addresses."""
        self._halt()
        self.seen, self._running = [], []
        for server, url in zip(self.servers, self.urls, strict=True):
            self._serve(server, socket.create_server(("127.0.0.1", int(url.rsplit(":", 1)[1]))))

    def ticket(self, robust: int = 0, k: int = 1, servers: list[int] | None = None, **options: Any) -> wire.Ticket:
        everyone = servers or list(range(1, len(self.servers) + 1))
        given: dict[str, Any] = {"expires": int(time.time()) + 600, "issuer": self.issuer} | options
        return mint(self.terms, everyone, robust=robust, k=k, **given)

    def request(
        self, kind: wire.RequestKind, server: int, ticket: wire.Ticket, at: int, among: tuple[int, ...], body: bytes
    ) -> wire.Request:
        """Return a request as an applicant of these servers makes it."""
        return a_request(self.servers[0].manifest, kind, server, ticket, at, among, body)

    def ask_nothing(self, ticket: wire.Ticket, servers: Sequence[int]) -> None:
        """Ask a question of zeros, so that records of the ticket can be asked for."""
        scheme = self.servers[0].epoch.deployment.scheme
        body = bytes(scheme.field.packed(scheme.symbols))
        for n in servers:
            request = self.request("query", n, ticket, 0, ticket.claims.servers, body)
            self.servers[n - 1].answer(wire.encode(request))

    def _halt(self) -> None:
        for running, thread in self._running:
            running.should_exit = True
            thread.join()

    def stop(self) -> None:
        self._halt()
        for server in self.servers:
            server.ledger.close()


def show(server: Server, manifest: wire.Manifest) -> None:
    """Make a server say this of itself, and nothing else."""
    server.offers.all = [server.offers.newest._replace(manifest=manifest)]


def a_request(
    manifest: wire.Manifest,
    kind: wire.RequestKind,
    server: int,
    ticket: wire.Ticket,
    at: int,
    among: tuple[int, ...],
    body: bytes,
) -> wire.Request:
    """Return a request. All requests of a ticket to one server carry the same secret."""
    digest, key = manifest.issued.digest, bytes.fromhex(manifest.key)
    secret = hashlib.sha256(ticket.signed + bytes([server])).digest()
    return wire.Request(2, kind, server, digest, key, ticket.encode(), at, among, secret, body)


def some_query(client: Client, ticket: wire.Ticket, server: int = 1) -> bytes:
    """Return a question of noise."""
    scheme = client.deployment.scheme
    body = wire.pack(scheme.field, Fresh().elements(scheme.field.q, scheme.symbols))
    manifest = client.peers[0].manifest
    return wire.encode(a_request(manifest, "query", server, ticket, 0, ticket.claims.servers, body))


@contextmanager
def deployed(folder: Path, *arguments: Any, **options: Any) -> Iterator[Deployed]:
    made = Deployed(folder, *arguments, **options)
    try:
        yield made
    finally:
        made.stop()


def symbols(change: Callable[[Any, int], Any]) -> Altered:
    """Alter the symbols of an answer."""

    def alter(server: Server, message: wire.Reply) -> bytes:
        scheme, rows = server.epoch.deployment.scheme, len(server.epoch.rows)
        field = scheme.field
        values = wire.unpack("answer", field, message.body, scheme.reveal.length(rows))
        return wire.pack(field, change(values.copy(), field.q) % field.q)

    return alter


def garbage(server: Server, message: wire.Reply) -> bytes:
    return np.random.default_rng(1).bytes(len(message.body))


def bump(row: int) -> Altered:
    def change(values: Any, q: int) -> Any:
        values[row] += 1
        return values

    return symbols(change)


def noise(values: Any, q: int) -> Any:
    return np.random.default_rng(3).integers(0, q, values.size)


def two_records(server: Server, message: wire.Reply) -> bytes:
    """Add rec_a xor rec_b, so that an applicant who fetches a gets b."""
    a, b = server.epoch.records.read(np.arange(2))
    return bytes(np.frombuffer(message.body, dtype=np.uint8) ^ a ^ b)


def flip(server: Server, message: wire.Reply) -> bytes:
    return bytes([message.body[0] ^ 1]) + message.body[1:]


def views(made: Deployed, client: Client, **options: Any) -> tuple[list[Any], Any]:
    """Ask once; return what each server saw, and the answer or the error."""
    for seen in made.seen:
        seen.clear()
    try:
        outcome: Any = client.ask(PERSON, **options)
    except (Tampered, ServerFault, TooManyLiars) as error:
        outcome = error
    return [list(seen) for seen in made.seen], outcome
