"""Server n of a deployment: ticket, ledger, answer. Bytes in, bytes out; it knows no HTTP.

Security: sees one share of each question, uniform whatever was asked, and learns nothing from it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from . import checks, engine, tickets, wire
from .database import Database
from .deployment import Deployment
from .errors import InvalidBundle, NotOffered, OutOfRange, Refused
from .ledger import Ledger
from .randomness import Common
from .scheme import Scheme
from .spir import Spir, make_spir
from .wire import Claims, Manifest, Message, Parameters, Terms

_TICKETS = 64  # whose orders are kept for their records
_ORDERS = 64 << 20  # bytes that these may take

SOFTWARE = f"counterveil {version('counterveil')}"


def make_terms(
    database: Database, deployment: Deployment, *, issuer: bytes | None, window: int = 600, robust: int = 0
) -> Terms:
    """Return what all servers of a deployment say in public; without an issuer the deployment is open."""
    if not database.signer:
        raise InvalidBundle("bundle", got="records without signatures", expected="a bundle built with --key")
    deployment.check_serves(database)
    if robust:
        everyone = range(1, deployment.scheme.servers + 1)
        deployment.scheme.among(everyone, checks.integer("robust", robust, 0))  # refuses a mask, or too few servers
    scheme = deployment.scheme
    longest = max(
        scheme.alphabet.packed(scheme.sent(n, len(database.codes), deployment.record_bytes))
        for n in range(1, scheme.servers + 1)
    )
    if longest >= 1 << 32:
        raise NotOffered("scheme", got=f"answers of {longest / 2**30:.1f} GiB", expected="less than 4 GiB")
    terms = Terms(
        version="counterveil/1",
        schema=deployment.schema.to_builtins(),
        parameters=Parameters(**deployment.parameters()),
        q=str(scheme.field.q),
        alphas=scheme.alphas,
        rows=len(database.codes),
        record=deployment.record,
        database=database.digest,
        signer=database.signer.hex(),
        tickets="open" if issuer is None else "signed",
        issuer=None if issuer is None else issuer.hex(),
        window=window if issuer is None else 0,
        robust=robust,
    )
    return wire.check_terms(terms)


class Reply(NamedTuple):
    """What a server says, part by part, so that nobody need hold it whole; how long it is in all."""

    length: int
    parts: Iterator[bytes]

    def whole(self) -> bytes:
        """Return all of it."""
        return b"".join(self.parts)


class Server:
    """One server: what it holds, and the two things it can be asked."""

    def __init__(
        self,
        number: int,
        database: Database,
        deployment: Deployment,
        terms: Terms,
        *,
        key: bytes,
        ledger: Ledger,
        threads: int = 1,
        least: int = engine.WORTHWHILE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 1 <= number <= deployment.scheme.servers:
            raise OutOfRange("server", got=number, expected=f"[1:{deployment.scheme.servers}]")
        self.number, self.ledger, self.terms = number, ledger, terms
        self._scheme, self._key, self._clock = deployment.scheme, key, clock
        self._rows = engine.opened(deployment.rows(database.codes), threads=threads, least=least)
        self._records = database.served
        self._says = deployment.says(len(self._rows))
        few = min(_TICKETS, _ORDERS // (8 * len(self._rows)))
        self._common = lru_cache(few)(lambda signed, scheme: scheme.common(key, self._digest, signed))
        self._digest = terms.digest()
        standing = self._scheme.common(key, self._digest, None)
        key_id = standing.elements("key id", 256, 16).astype("uint8").tobytes().hex()
        self.manifest = Manifest(number, key_id, self._digest.hex(), SOFTWARE, terms)
        self._packaged = self._spir(0).prepare(self._records, standing)
        self._rehearse(standing)

    def _rehearse(self, standing: Common) -> None:
        """Run once what a question runs, with nothing in it, so that whatever is to be compiled is compiled now."""
        field, count = self._scheme.field, len(self._rows)
        self._scheme.form.evaluate(field, self._rows, np.zeros(self._scheme.form.symbols, dtype=np.int64))
        engine.xor(self._packaged, np.zeros(len(self._packaged), dtype=bool))
        self._scheme.reveal.order(count, standing)
        wire.pack(field, standing.elements("rehearsal", field.q, count))

    def about(self) -> dict[str, Any]:
        """Return what is worth a line in the log when it starts."""
        terms = self.terms
        named = {"server": self.number, "of": terms.parameters.servers, "scheme": terms.parameters.scheme}
        named |= {"gives": self._says}
        return named | {"rows": terms.rows, "tickets": terms.tickets, "digest": self.manifest.digest}

    @property
    def longest(self) -> int:
        """The most bytes that a request can have: the body that the terms imply, and its envelope."""
        question = self._scheme.field.packed(self._scheme.symbols)
        records = [self._spir(liars).query_bytes(self._positions) for liars in range(self.terms.robust + 1)]
        return max(question, *records) + wire.ENVELOPE

    @property
    def _positions(self) -> int:
        return self._scheme.reveal.positions(len(self._rows))

    def answer(self, body: bytes) -> Reply:
        """Answer a question."""
        message, claims, signed = self._read(body, "query")
        scheme = self._named(claims)
        if message.request or message.among != claims.servers:
            raise Refused("malformed", "a question is request 0, to all servers of its ticket")
        share = wire.unpack("query", scheme.field, message.body, scheme.symbols)
        self._spend(message, claims, body)
        common = self._common(signed, scheme)
        place = claims.servers.index(self.number) + 1
        length = scheme.alphabet.packed(scheme.sent(place, len(self._rows), self._records.shape[1]))
        answer = scheme.stream(place, self._rows, share, common, self._records)
        return self._reply(message, claims, "answer", length, (wire.pack(scheme.alphabet, part) for part in answer))

    def record(self, body: bytes) -> Reply:
        """Answer a record step: 1..k of its ticket, to all its servers but as many as it lets lie."""
        message, claims, signed = self._read(body, "record-query")
        scheme = self._named(claims)
        if scheme.reveal.inside:
            raise Refused("malformed", "a record step, where the answer brings the record")
        if not 1 <= message.request <= claims.k:
            raise Refused("malformed", f"request {message.request} of a ticket for {claims.k} records")
        if not set(message.among) <= set(claims.servers) or len(message.among) != len(claims.servers) - claims.liars:
            raise Refused(
                "malformed", f"a record comes from {len(claims.servers) - claims.liars} servers of its ticket"
            )
        spir, prepared = self._spir(claims.liars), self._records if claims.liars else self._packaged
        query = spir.check("record query", np.frombuffer(message.body, dtype=np.uint8), self._positions)
        self._spend(message, claims, body)
        order = scheme.reveal.order(len(prepared), self._common(signed, scheme))
        common = self._scheme.among(message.among).common(self._key, self._digest, signed)
        place = message.among.index(self.number) + 1
        answer = spir.answer(place, prepared, query, common, order=order, request=message.request)
        return self._reply(message, claims, "record-answer", answer.size, [answer.tobytes()])

    def _read(self, body: bytes, kind: wire.Kind) -> tuple[Message, Claims, bytes]:
        """Read a request and check everything about it but whether it was asked before."""
        message = wire.decode(body, kind)
        if message.server != self.number:
            raise Refused("wrong_server", f"this is server {self.number}, not server {message.server}")
        ticket = wire.decode_ticket(message.ticket)
        tickets.verify(ticket, self.terms, self._digest, self._clock())
        if self.number not in ticket.claims.servers or self.number not in message.among:
            raise Refused("ticket_for_other_servers", f"the ticket, or the request, is not for server {self.number}")
        return message, ticket.claims, ticket.signed

    def _named(self, claims: Claims) -> Scheme:
        """Return the scheme as the servers that a ticket names run it."""
        needed = self._scheme.needed(claims.liars)
        if len(claims.servers) != needed:
            raise Refused("ticket_not_offered", f"a ticket for {len(claims.servers)} servers, where {needed} answer")
        return self._scheme.among(claims.servers, claims.liars)

    def _spend(self, message: Message, claims: Claims, body: bytes) -> None:
        self.ledger.spend(claims.id, message.request, hashlib.sha256(body).digest(), claims.expires)

    def _reply(self, message: Message, claims: Claims, kind: wire.Kind, length: int, parts: Iterable[bytes]) -> Reply:
        head = wire.head(Message(1, kind, self.number, claims.id, message.request, message.among, b""), length)
        rest = iter(parts)
        return Reply(len(head) + length, chain([head + next(rest)], rest))

    def _spir(self, liars: int) -> Spir:
        """Return the record step of a ticket that lets so many servers lie."""
        servers, length = self._scheme.needed(liars) - liars, self._records.shape[1]
        return make_spir(servers=servers, collusion=self._scheme.collusion, length=length, chosen=liars > 0)
