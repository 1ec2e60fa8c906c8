"""One server of a deployment: it checks the ticket, writes the ledger and answers. Bytes in, bytes out, no HTTP.

Security: a server sees one share of each question. The share is uniformly random whatever was asked, so the server
learns nothing from it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from .. import engine
from ..algebra.arrays import Bytes
from ..crypto.keys import SigningKey
from ..crypto.randomness import Common, key_id
from ..engine.party import Enter, Party, Send, Take, entered
from ..errors import InvalidInput, Malformed, Refused
from ..institution.database import Database
from ..schemes.protocols import Held
from ..schemes.protocols import Request as Sizes
from ..schemes.scheme import Scheme
from ..terms import tickets, wire
from ..terms.wire import Claims, Manifest, Request, RequestKind, SignedTerms, Ticket
from .attempts import Attempt, Tapes, key_of
from .epochs import Epoch, check_holdings, make_epoch
from .ledger import GRACE, MOST_ATTEMPTS, AnyLedger, Entry, Key
from .link.frames import Run

_TICKETS = 64  # tickets whose shuffle order is cached for the record step
_ORDERS = 64 << 20  # bytes: the most that the cached orders may take
_PART = 1 << 16  # bytes: the least that one part of an answer has, except the last

SOFTWARE = f"counterveil {version('counterveil')}"


class Reply(NamedTuple):
    """A reply: its length, and its bytes part by part, so that it need not be in memory as a whole."""

    length: int
    parts: Iterator[bytes]

    def whole(self) -> bytes:
        """Return all parts joined."""
        return b"".join(self.parts)


@dataclass(eq=False)
class Turn:
    """A request that has arrived whole and was checked. It is entered in the ledger, and answered after that."""

    fingerprint: bytes  # SHA-256 of the request's bytes, which include the applicant's secret
    last: bool  # whether it is the ticket's last request to this server
    ledger: AnyLedger
    party: Party[Any]
    enter: Enter
    head: bytes  # the bytes before the body of the answer
    length: int  # how many bytes the body has

    def spend(self) -> None:
        """Enter the request in the ledger, durably, or refuse it."""
        self.ledger.perform(self.enter.entry)

    def answer(self) -> Reply:
        """Return the answer; call `spend` first."""
        parts = self._parts()
        return Reply(len(self.head) + self.length, chain([self.head + next(parts)], parts))

    def _parts(self) -> Iterator[bytes]:
        """Yield what the party sends; short messages are joined to parts of `_PART` bytes or more."""
        collected: list[bytes] = []
        for effect in self.party:
            if not isinstance(effect, Send):
                raise AssertionError(f"got {effect}, expected only messages to the applicant")
            collected.append(wire.pack(effect.alphabet, effect.symbols))
            if sum(map(len, collected)) >= _PART:
                yield b"".join(collected)
                collected = []
        if collected or not self.length:
            yield b"".join(collected)

    def answered(self) -> Reply:
        """Enter the request in the ledger, then answer it."""
        self.spend()
        return self.answer()


class Admitted(NamedTuple):
    """A request whose head was checked; its body may still be on its way."""

    head: int  # bytes before the body
    read: Callable[[bytes], Turn]  # takes the bytes of the whole request


class Asked(NamedTuple):
    """An attempt, or a request to collect one, whose head was checked.

    `proof` covers everything but the body, so the applicant collects the answer without sending the body again.
    """

    kind: RequestKind
    run: Run
    seat: int
    entry: Entry  # "running", in the ledger's words
    reply: bytes  # the bytes before the body of the answer
    length: int  # how many bytes the body of the answer has
    join: Callable[[Bytes], Attempt]  # takes the bytes of the whole request


class Server:
    """One server. It answers two kinds of request: a question (`answer`) and a record step (`record`).

    Parameters
    ----------
    number : which server this is, 1..N.
    epochs : the databases that it serves; the manifest shows the terms of the last one.
    key : the servers' common key.
    own : this server's own private key, whose public key stands in the terms.
    """

    def __init__(
        self,
        number: int,
        epochs: Sequence[Epoch],
        *,
        key: bytes,
        own: SigningKey,
        ledger: AnyLedger,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.number, self.ledger, self._key, self._clock = number, ledger, key, clock
        self._epochs = {epoch.issued.digest: epoch for epoch in epochs}
        self.epoch = epochs[-1]
        issued = self.epoch.issued
        self.terms, self.addresses = issued.terms, issued.addresses
        cached = min(_TICKETS, _ORDERS // (8 * len(self.epoch.rows)))
        self._common = lru_cache(cached)(self._drawn)
        self._key_id = key_id(key)
        bare = Manifest(number, self._key_id.hex(), ledger.instance.hex(), SOFTWARE, issued)
        self.manifest = msgspec.structs.replace(bare, signature=own.sign("manifest", *bare.signed()).hex())
        self._rehearse()

    @classmethod
    def open(
        cls,
        number: int,
        database: Database,
        issued: SignedTerms,
        *,
        own: SigningKey,
        threads: int = 1,
        worthwhile: int = engine.WORTHWHILE,
        **options: Any,
    ) -> Self:
        """Return the server of a signed database, after checking that the terms were made for it."""
        deployment = check_holdings(number, database, issued, own)
        epoch = make_epoch(database, issued, deployment, threads=threads, worthwhile=worthwhile)
        return cls(number, [epoch], own=own, **options)

    def _drawn(self, scheme: Scheme, digest: bytes, signed: bytes | None) -> Common:
        return scheme.common(self._key, digest, signed)

    def _rehearse(self) -> None:
        """Start to answer an empty question, so that code is compiled now and not during the first real question."""
        scheme = self.epoch.deployment.scheme
        scheme = scheme.among(range(1, scheme.needed() + 1))
        standing = self._drawn(scheme, self.epoch.issued.digest, None)
        held = Held(self.epoch.rows, self.epoch.records, lambda _: standing)
        for request in range(len(scheme.requests(self.epoch.size)[:2])):
            party = scheme.answering(0, request, held)
            effect = next(party)
            while isinstance(effect, Take):
                dtype = np.uint8 if effect.alphabet.bits == 8 else np.int64
                effect = party.send(effect.check(np.zeros(effect.count, dtype=dtype)))
            if isinstance(effect, Send):
                wire.pack(effect.alphabet, effect.symbols)
            party.close()

    def about(self) -> dict[str, Any]:
        """Return the facts that the log shows when the server starts."""
        terms, epoch = self.terms, self.epoch
        named = {"server": self.number, "of": terms.parameters.servers, "service": terms.service}
        named |= {
            "scheme": terms.parameters.scheme,
            "gives": epoch.deployment.says(len(epoch.rows)),
            "lasts": epoch.deployment.lasts(),
        }
        return named | {"rows": terms.rows, "tickets": terms.tickets, "digest": epoch.issued.digest.hex()}

    @property
    def longest(self) -> int:
        """The most bytes that a request can have: the longest body that the terms allow, and its envelope."""
        bodies = []
        for epoch in self._epochs.values():
            scheme = epoch.deployment.scheme
            for robust in range(epoch.issued.terms.robust + 1):
                asked = scheme.among(range(1, scheme.needed(robust) + 1), robust).requests(epoch.size)
                bodies += [request.body(seat) for request in asked for seat in range(len(request.down))]
        return max(bodies) + wire.ENVELOPE

    def answer(self, body: bytes) -> Reply:
        """Answer a question."""
        return self.turn(body, "query").answered()

    def record(self, body: bytes) -> Reply:
        """Answer a record step."""
        return self.turn(body, "record-query").answered()

    def turn(self, body: bytes, kind: RequestKind) -> Turn:
        """Read a whole request and check everything except whether it was asked before."""
        return self.admit(body[: wire.ENVELOPE], len(body), kind).read(body)

    def admit(self, head: bytes, length: int, kind: RequestKind) -> Admitted:
        """Check everything before the body of a request of `length` bytes, and its ticket. This is quick.

        `head` are the first `wire.ENVELOPE` bytes, or all if there are fewer. A refusal does not depend on what others
        asked. Somebody who has a ticket, but not the secret of a request, gets the same refusal for every guess at it
        (rule 13).
        """
        message, start, ticket, epoch = self._checked_head(head, length, kind)
        claims = ticket.claims
        run = _run_of(message, claims, epoch.deployment.scheme)
        scheme = run.scheme
        _check_request(message, claims, run)
        take = next(self._party(message, ticket, run, epoch))
        if not isinstance(take, Take):
            raise AssertionError("a server's party must first take its input")
        what, size = kind.replace("-", " "), take.alphabet.packed(take.count)
        if length - start != size:
            raise Malformed(what, got=f"{length - start} bytes", expected=f"{size}")

        def read(body: bytes) -> Turn:
            symbols = take.check(wire.unpack(what, take.alphabet, body[start:], take.count))
            fingerprint, holder = hashlib.sha256(body).digest(), hashlib.sha256(message.secret).digest()
            together = run.servers if run.servers != claims.servers else ()
            key = Key(claims.id, together, request=message.request)
            entry = Entry(key, "spent", fingerprint, claims.expires, holder=holder)
            party = entered(self._party(message, ticket, run, epoch), entry)
            next(party)
            enter = party.send(symbols)
            if not isinstance(enter, Enter):
                raise AssertionError("a server's party must write the ledger before it sends anything")
            asked = scheme.requests(epoch.size._replace(k=claims.k))
            last = message.request + 1 == len(asked)
            return Turn(fingerprint, last, self.ledger, party, enter, *self._head(message, claims, run, asked))

        return Admitted(start, read)

    def asked(self, head: bytes, length: int, tapes: Tapes | None = None) -> Asked:
        """Check everything before the body of an attempt, or of a request to collect one, as `admit` does."""
        message, start, ticket, epoch = self._checked_head(head, length, "attempt", "collect")
        claims = ticket.claims
        run = _run_of(message, claims, epoch.deployment.scheme)
        if not run.scheme.protocol.linked:
            raise Refused("malformed", "an attempt, where servers do not talk to each other")
        if tapes is not None and epoch is not self.epoch:  # tapes are dealt for the last one
            raise Refused("other_terms", "the request was made for other terms than these: read the manifest again")
        if message.request >= MOST_ATTEMPTS:
            raise Refused("too_often", f"a request has at most {MOST_ATTEMPTS} attempts")
        seat, (sizes,) = run.servers.index(self.number), run.scheme.requests(epoch.size._replace(k=claims.k))
        expected = sizes.body(seat) if message.kind == "attempt" else 0
        if length - start != expected:
            raise Malformed(message.kind, got=f"{length - start} bytes", expected=f"{expected}")
        name = Run(message.terms, claims.id, run.servers, message.request)  # type: ignore[arg-type]
        proof = hashlib.sha256(wire.encode(msgspec.structs.replace(message, kind="collect"))).digest()
        holder = hashlib.sha256(message.secret).digest()
        entry = Entry(key_of(name), "running", proof, claims.expires, holder=holder)
        if message.kind == "attempt" and self.ledger.state(entry.key) is not None:
            raise Refused("attempt_over", "this attempt began already, or was given up")  # before its body is read

        def join(body: Bytes) -> Attempt:
            party = self._party(message, ticket, run, epoch)
            take, at = next(party), start + sizes.sent.packed(sizes.up)
            if not isinstance(take, Take):
                raise AssertionError("a server's party must first take its input")
            party.send(take.check(wire.unpack("attempt", take.alphabet, body[start:at].tobytes(), take.count)))
            dealt = {"tape": body[at:]} if tapes is None else {"tapes": tapes}
            return Attempt(name, seat, self.ledger, entry, party=party, most=sizes.between, **dealt)

        return Asked(message.kind, name, seat, entry, *self._head(message, claims, run, [sizes]), join)

    def _checked_head(self, head: bytes, length: int, *kinds: RequestKind) -> tuple[Request, int, Ticket, Epoch]:
        """Return the message without its body, the bytes before the body, the ticket, and the epoch that it names."""
        message, start = wire.decode_head(head, length, *kinds)
        if message.server != self.number:
            raise Refused("wrong_server", f"this is server {self.number}, not server {message.server}")
        epoch = self._epochs.get(message.terms)
        if epoch is None:
            raise Refused("other_terms", "the request was made for other terms than these: read the manifest again")
        if message.key != self._key_id:
            raise Refused("other_key", "the servers have another common key now: read the manifest again")
        ticket = wire.decode_ticket(message.ticket)
        grace = GRACE if message.kind == "collect" else 0
        tickets.verify(ticket, epoch.issued.terms, self._clock(), grace)
        if self.number not in ticket.claims.servers or self.number not in message.among:
            raise Refused("ticket_for_other_servers", f"the ticket, or the request, is not for server {self.number}")
        return message, start, ticket, epoch

    def _party(self, message: Request, ticket: Ticket, run: _Run, epoch: Epoch) -> Party[Any]:
        """Return the party that this server plays for a request."""
        scheme, servers = run.scheme, run.servers

        def common(seats: tuple[int, ...]) -> Common:
            among = scheme if len(seats) == scheme.servers else scheme.among([seat + 1 for seat in seats])
            return self._common(among, epoch.issued.digest, ticket.signed)

        among = [servers.index(n) for n in message.among]
        linked = scheme.protocol.linked
        held = Held(epoch.rows, epoch.records, common, ticket.claims.k, attempt=message.request if linked else 0)
        return scheme.answering(servers.index(self.number), 0 if linked else message.request, held, among)

    def _head(self, message: Request, claims: Claims, run: _Run, asked: Sequence[Sizes]) -> tuple[bytes, int]:
        """Return the bytes before the body of the answer, and how many bytes the body has."""
        sizes = asked[0 if run.scheme.protocol.linked else message.request]
        length = sizes.answered.packed(sizes.down[run.servers.index(self.number)])
        kind = wire.ROUTES[message.kind][1]
        bare = wire.Reply(wire.VERSION, kind, self.number, claims.id, message.request, message.among, b"")
        return wire.head(bare, length), length


class _Run(NamedTuple):
    """The servers that work on a question together, by number, and the scheme of these servers."""

    servers: tuple[int, ...]
    scheme: Scheme


def _run_of(message: Request, claims: Claims, offered: Scheme) -> _Run:
    """Return the run that a request belongs to: all servers of its ticket, or the pair that it names."""
    count, needed = len(claims.servers), offered.needed(claims.robust)
    other = Refused("ticket_not_offered", f"a ticket for {count} servers, where {needed} answer")
    if count < needed:
        raise other
    try:
        scheme = offered.among(claims.servers, claims.robust)
    except InvalidInput as error:
        raise Refused("ticket_not_offered", str(error)) from None
    runs = scheme.runs()
    if not runs:
        raise other
    if not scheme.protocol.pairs:
        return _Run(claims.servers, scheme)
    pairs = [tuple(claims.servers[seat] for seat in seats) for seats in runs]
    if message.among not in pairs:
        raise Refused("malformed", f"a request to servers {list(message.among)}, expected a pair of its ticket")
    return _Run(message.among, offered.among(message.among))


def _check_request(message: Request, claims: Claims, run: _Run) -> None:
    """Refuse a request that its ticket does not allow.

    A question goes to all servers of its run. A record step has a number 1..k, and goes to all of them but as many as
    may be lying (`robust`).
    """
    if run.scheme.protocol.linked:
        raise Refused("malformed", "a question without an attempt, where servers talk to each other")
    if message.kind == "query":
        if message.request or message.among != run.servers:
            raise Refused("malformed", "a question is request 0, to all servers of its ticket")
        return
    if not run.scheme.protocol.fetches:
        raise Refused("malformed", "a record step, where the answer brings the record")
    if not 1 <= message.request <= claims.k:
        raise Refused("malformed", f"request {message.request} of a ticket for {claims.k} records")
    servers = len(run.servers) - run.scheme.robust
    if not set(message.among) <= set(run.servers) or len(message.among) != servers:
        raise Refused("malformed", f"a record comes from {servers} servers of its ticket")
