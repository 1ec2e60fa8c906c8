"""Server n of a deployment: ticket, ledger, answer. Bytes in, bytes out; it knows no HTTP.

Security: sees one share of each question, uniform whatever was asked, and learns nothing from it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from .. import engine
from ..algebra import checks
from ..crypto.keys import SigningKey
from ..crypto.randomness import key_id
from ..errors import InvalidBundle, InvalidKey, InvalidTerms, Refused
from ..institution.database import Database
from ..schemes.fetch import Spir, make_spir
from ..schemes.rehearsal import rehearse
from ..schemes.scheme import Scheme
from ..terms import tickets, wire
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of
from ..terms.wire import Claims, Manifest, Request, RequestKind, SignedTerms
from .ledger import Ledger

_TICKETS = 64  # tickets whose shuffle order is cached for the record step
_ORDERS = 64 << 20  # bytes that these may take

SOFTWARE = f"counterveil {version('counterveil')}"


class Reply(NamedTuple):
    """What a server says, part by part, so that nobody need hold it whole; how long it is in all."""

    length: int
    parts: Iterator[bytes]

    def whole(self) -> bytes:
        """Return all of it."""
        return b"".join(self.parts)


class Admitted(NamedTuple):
    """A request that may be answered, if its ticket is not used up."""

    fingerprint: bytes  # SHA-256 of its bytes, which hold the applicant's secret
    spend: Callable[[], None]  # enters it in the ledger, or refuses
    answer: Callable[[], Reply]  # only after `spend`
    last: bool  # whether it is the last that its ticket gives here

    def answered(self) -> Reply:
        """Spend, then answer."""
        self.spend()
        return self.answer()


def check_holdings(number: int, database: Database, issued: SignedTerms, own: SigningKey) -> Deployment:
    """Refuse terms that are not those of this bundle and this server's key; return what is to be served."""
    terms = check_terms(issued).terms
    deployment = deployment_of(terms)
    checks.integer("server", number, 1, deployment.scheme.servers)
    if database.digest != terms.database or database.signer.hex() != terms.issuer:
        raise InvalidTerms("terms", got="another bundle's", expected=f"those of {database.digest}")
    if database.packed != terms.packages:
        raise InvalidBundle("bundle", got="other packages than the terms name", expected="the file they were made for")
    if own.public.hex() != terms.keys[number - 1]:
        raise InvalidKey("server's key", got="another one", expected=f"that of server {number} in the terms")
    deployment.check_serves(database)
    return deployment


class Server:
    """One server: what it holds, and the two things it can be asked.

    Parameters
    ----------
    number : which server this is, 1..N.
    database : the signed database that the terms name.
    issued : the terms, signed by the issuer.
    key : the servers' common key.
    own : this server's own private key, whose public key stands in the terms.
    """

    def __init__(
        self,
        number: int,
        database: Database,
        issued: SignedTerms,
        *,
        key: bytes,
        own: SigningKey,
        ledger: Ledger,
        threads: int = 1,
        least: int = engine.WORTHWHILE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        deployment, terms = check_holdings(number, database, issued, own), issued.terms
        self.number, self.ledger, self.terms, self.addresses = number, ledger, terms, issued.addresses
        self._scheme, self._key, self._clock, self._digest = deployment.scheme, key, clock, issued.digest
        self._rows = engine.opened(deployment.rows(database.codes), threads=threads, least=least)
        self._records = database.served
        self._says = deployment.says(len(self._rows))
        few = min(_TICKETS, _ORDERS // (8 * len(self._rows)))
        self._common = lru_cache(few)(lambda signed, scheme: scheme.common(key, self._digest, signed))
        self._key_id = key_id(key)
        bare = Manifest(number, self._key_id.hex(), ledger.instance.hex(), SOFTWARE, issued)
        self.manifest = msgspec.structs.replace(bare, signature=own.sign("manifest", *bare.signed()).hex())
        rehearse(self._scheme, number, self._rows, self._records, wire.pack)

    def about(self) -> dict[str, Any]:
        """Return what is worth a line in the log when it starts."""
        terms = self.terms
        named = {"server": self.number, "of": terms.parameters.servers, "service": terms.service}
        named |= {"scheme": terms.parameters.scheme, "gives": self._says}
        return named | {"rows": terms.rows, "tickets": terms.tickets, "digest": self._digest.hex()}

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
        return self.admit(body, "query").answered()

    def record(self, body: bytes) -> Reply:
        """Answer a record step."""
        return self.admit(body, "record-query").answered()

    def admit(self, body: bytes, kind: RequestKind) -> Admitted:
        """Read a request and check everything about it but whether it was asked before. It takes no time to speak of.

        Refusals say nothing that depends on what others asked: whoever holds a ticket but not the secret of a request
        gets the same refusal for every guess at it (rule 13).
        """
        message = wire.decode_request(body, kind)
        if message.server != self.number:
            raise Refused("wrong_server", f"this is server {self.number}, not server {message.server}")
        if message.terms != self._digest:
            raise Refused("other_terms", "the request was made for other terms than these: read the manifest again")
        if message.key != self._key_id:
            raise Refused("other_key", "the servers have another common key now: read the manifest again")
        ticket = wire.decode_ticket(message.ticket)
        tickets.verify(ticket, self.terms, self._clock())
        claims = ticket.claims
        if self.number not in claims.servers or self.number not in message.among:
            raise Refused("ticket_for_other_servers", f"the ticket, or the request, is not for server {self.number}")
        needed = self._scheme.needed(claims.liars)
        if len(claims.servers) != needed:
            raise Refused("ticket_not_offered", f"a ticket for {len(claims.servers)} servers, where {needed} answer")
        scheme = self._scheme.among(claims.servers, claims.liars)
        check = self._question if kind == "query" else self._record_step
        fingerprint, holder = hashlib.sha256(body).digest(), hashlib.sha256(message.secret).digest()
        return Admitted(
            fingerprint,
            partial(self.ledger.spend, claims.id, message.request, fingerprint, claims.expires, holder),
            check(message, claims, ticket.signed, scheme),
            last=scheme.reveal.inside or message.request == claims.k,
        )

    def _question(self, message: Request, claims: Claims, signed: bytes, scheme: Scheme) -> Callable[[], Reply]:
        """Check a question; return what answers it."""
        if message.request or message.among != claims.servers:
            raise Refused("malformed", "a question is request 0, to all servers of its ticket")
        share = wire.unpack("query", scheme.field, message.body, scheme.symbols)

        def answer() -> Reply:
            common = self._common(signed, scheme)
            place = claims.servers.index(self.number) + 1
            length = scheme.alphabet.packed(scheme.sent(place, len(self._rows), self._records.shape[1]))
            symbols = scheme.stream(place, self._rows, share, common, self._records)
            return self._reply(message, claims, length, (wire.pack(scheme.alphabet, part) for part in symbols))

        return answer

    def _record_step(self, message: Request, claims: Claims, signed: bytes, scheme: Scheme) -> Callable[[], Reply]:
        """Check a record step, 1..k of its ticket, to all its servers but as many as it lets lie; return the answer."""
        if scheme.reveal.inside:
            raise Refused("malformed", "a record step, where the answer brings the record")
        if not 1 <= message.request <= claims.k:
            raise Refused("malformed", f"request {message.request} of a ticket for {claims.k} records")
        if not set(message.among) <= set(claims.servers) or len(message.among) != len(claims.servers) - claims.liars:
            raise Refused(
                "malformed", f"a record comes from {len(claims.servers) - claims.liars} servers of its ticket"
            )
        spir = self._spir(claims.liars)
        query = spir.check("record query", np.frombuffer(message.body, dtype=np.uint8), self._positions)

        def answer() -> Reply:
            order = scheme.reveal.order(len(self._records), self._common(signed, scheme))
            common = self._scheme.among(message.among).common(self._key, self._digest, signed)
            place = message.among.index(self.number) + 1
            part = spir.answer(place, self._records, query, common, order=order, request=message.request)
            return self._reply(message, claims, part.size, [part.tobytes()])

        return answer

    def _reply(self, message: Request, claims: Claims, length: int, parts: Iterable[bytes]) -> Reply:
        kind: wire.ReplyKind = "answer" if message.kind == "query" else "record-answer"
        head = wire.head(
            wire.Reply(wire.VERSION, kind, self.number, claims.id, message.request, message.among, b""), length
        )
        rest = iter(parts)
        return Reply(len(head) + length, chain([head + next(rest)], rest))

    def _spir(self, liars: int) -> Spir:
        """Return the record step of a ticket that lets so many servers lie."""
        servers, length = self._scheme.needed(liars) - liars, self._records.shape[1]
        return make_spir(servers=servers, collusion=self._scheme.collusion, length=length, chosen=liars > 0)
