"""One server of a deployment: it checks the ticket, writes the ledger and answers. Bytes in, bytes out, no HTTP.

Security: a server sees one share of each question. The share is uniformly random whatever was asked, so the server
learns nothing from it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from .. import engine
from ..algebra.arrays import Bytes
from ..crypto.keys import CommonKey, SigningKey
from ..crypto.randomness import Common
from ..engine.party import Enter, Party, Send, Take, entered
from ..errors import Malformed, Refused
from ..institution.database import Database
from ..schemes.protocols import Held
from ..schemes.protocols import Request as Sizes
from ..schemes.scheme import Scheme
from ..terms import tickets, wire
from ..terms.wire import Claims, Manifest, Request, RequestKind, SignedTerms, Terms, Ticket
from .attempts import Attempt, Tapes, key_of
from .epochs import Epoch, check_holdings, make_epoch
from .family import Keep, made
from .ledger import GRACE, MOST_ATTEMPTS, AnyLedger, Entry, Key
from .link.frames import Run
from .offers import Offers
from .teams import Team, check_request, holder_of, team_of

_TICKETS = 64  # tickets whose shuffle order is cached for the record step
_SCHEMES = 256  # sets of servers whose scheme is kept
_VERIFIED = 4096  # tickets whose signature is not checked again
_ORDERS = 64 << 20  # bytes: the most that the cached orders may take
_SHORT = 1 << 16  # bytes of an answer; and
_FEW = 1 << 22  # bytes of records, added up by xor: with no more than these, an answer takes about half a millisecond
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
    short: bool = False  # whether the answer takes about half a millisecond

    @property
    def entry(self) -> Entry:
        """The entry of this request in the ledger."""
        return self.enter.entry  # type: ignore[no-any-return]

    def spend(self) -> None:
        """Enter the request in the ledger, durably, or refuse it."""
        self.ledger.perform(self.entry)

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
    epochs : the databases that it serves.
    keys : the servers' common keys. An epoch and a key are an offer; applicants take the newest that all servers have.
    own : this server's own private key, whose public key stands in the terms.
    """

    def __init__(
        self,
        number: int,
        epochs: Sequence[Epoch],
        *,
        keys: Sequence[CommonKey],
        own: SigningKey,
        ledger: AnyLedger,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.number, self.ledger, self._clock = number, ledger, clock
        self.offers = Offers(epochs, keys, partial(self._manifest, own), clock)
        self._keys = {key.id: key.value for key in keys}
        most = max(len(epoch.rows) for epoch in epochs)
        self._common = lru_cache(min(_TICKETS, _ORDERS // (8 * most)))(self._drawn)
        self._among = lru_cache(_SCHEMES)(self._scheme_among)
        self._verified = tickets.Verified(_VERIFIED)
        for epoch in epochs:
            self._rehearse(epoch)

    def _manifest(self, own: SigningKey, issued: SignedTerms, key: CommonKey) -> Manifest:
        bare = Manifest(self.number, key.id.hex(), self.ledger.instance.hex(), SOFTWARE, issued)
        return msgspec.structs.replace(bare, signature=own.sign("manifest", *bare.signed()).hex())

    @property
    def manifest(self) -> Manifest:
        """What the server says of itself under its newest offer."""
        return self.offers.newest.manifest

    @property
    def epoch(self) -> Epoch:
        """The epoch of the newest offer."""
        return self.offers.newest.epoch

    @property
    def terms(self) -> Terms:
        """The terms of the newest offer."""
        return self.epoch.issued.terms

    @classmethod
    def open(
        cls,
        number: int,
        database: Database,
        issued: SignedTerms,
        *,
        key: bytes,
        own: SigningKey,
        threads: int = 1,
        worthwhile: int = engine.WORTHWHILE,
        keep: Keep = made,
        **options: Any,
    ) -> Self:
        """Return the server of one signed database and one key, after checking that the terms were made for it."""
        deployment = check_holdings(number, database, issued, own)
        epoch = make_epoch(database, issued, deployment, threads=threads, worthwhile=worthwhile, keep=keep)
        return cls(number, [epoch], keys=[CommonKey(key)], own=own, **options)

    def _drawn(self, key: bytes, alphas: tuple[int, ...], digest: bytes, signed: bytes | None) -> Common:
        return Common(self._keys[key], digest=digest, ticket=signed, servers=alphas)

    def _scheme_among(self, digest: bytes, servers: tuple[int, ...], robust: int = 0) -> Scheme:
        (epoch,) = (epoch for epoch in self.offers.epochs if epoch.issued.digest == digest)
        return epoch.deployment.scheme.among(servers, robust)

    def _rehearse(self, epoch: Epoch) -> None:
        """Start to answer an empty question, so that code is compiled now and not during the first real question."""
        scheme = epoch.deployment.scheme
        scheme = scheme.among(range(1, scheme.needed() + 1))
        standing = self._drawn(next(iter(self._keys)), scheme.alphas, epoch.issued.digest, None)
        held = Held(epoch.rows, epoch.records, lambda _: standing)
        for request in range(len(scheme.requests(epoch.size)[:2])):
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
        epoch = self.epoch
        terms = epoch.issued.terms
        named = {"server": self.number, "of": terms.parameters.servers, "service": terms.service}
        named |= {
            "scheme": terms.parameters.scheme,
            "gives": epoch.deployment.says(len(epoch.rows)),
            "lasts": epoch.deployment.lasts(),
        }
        named |= {"rows": terms.rows, "tickets": terms.tickets, "digest": epoch.issued.digest.hex()}
        return named | {"offers": self.offers.facts()}

    @property
    def longest(self) -> int:
        """The most bytes that a request can have: the longest body that the terms allow, and its envelope."""
        bodies = []
        for epoch in self.offers.epochs:
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
        run = team_of(message, claims, epoch.deployment.scheme, partial(self._among, message.terms))
        scheme, holder = run.scheme, holder_of(message)
        check_request(message, claims, run)
        take = next(self._party(message, ticket, run, epoch))
        if not isinstance(take, Take):
            raise AssertionError("a server's party must first take its input")
        what, size = kind.replace("-", " "), take.alphabet.packed(take.count)
        if length - start != size:
            raise Malformed(what, got=f"{length - start} bytes", expected=f"{size}")

        def read(body: bytes) -> Turn:
            symbols = take.check(wire.unpack(what, take.alphabet, body[start:], take.count))
            fingerprint = hashlib.sha256(body).digest()
            together = run.servers if run.is_pair else ()
            key = Key(claims.id, together, request=message.request)
            entry = Entry(key, "spent", fingerprint, claims.expires, holder=holder)
            party = entered(self._party(message, ticket, run, epoch), entry)
            next(party)
            enter = party.send(symbols)
            if not isinstance(enter, Enter):
                raise AssertionError("a server's party must write the ledger before it sends anything")
            asked = scheme.requests(epoch.size._replace(k=claims.k))
            last = message.request + 1 == len(asked)
            head, size = self._head(message, claims, run, asked)
            rows = len(epoch.rows)
            few = rows * epoch.records.length <= _FEW and (not message.request or take.count < rows)
            return Turn(fingerprint, last, self.ledger, party, enter, head, size, few and size <= _SHORT)

        return Admitted(start, read)

    def asked(self, head: bytes, length: int, tapes: Tapes | None = None) -> Asked:
        """Check everything before the body of an attempt, or of a request to collect one, as `admit` does."""
        message, start, ticket, epoch = self._checked_head(head, length, "attempt", "collect")
        claims = ticket.claims
        run = team_of(message, claims, epoch.deployment.scheme, partial(self._among, message.terms))
        if not run.scheme.protocol.linked:
            raise Refused("malformed", "an attempt, where servers do not talk to each other")
        if message.request >= MOST_ATTEMPTS:
            raise Refused("too_often", f"a request has at most {MOST_ATTEMPTS} attempts")
        seat, (sizes,) = run.servers.index(self.number), run.scheme.requests(epoch.size._replace(k=claims.k))
        expected = sizes.body(seat) if message.kind == "attempt" else 0
        if length - start != expected:
            raise Malformed(message.kind, got=f"{length - start} bytes", expected=f"{expected}")
        name = Run(message.terms, claims.id, run.servers, message.request)  # type: ignore[arg-type]
        proof = hashlib.sha256(wire.encode(msgspec.structs.replace(message, kind="collect"))).digest()
        entry = Entry(key_of(name), "running", proof, claims.expires, holder=holder_of(message))
        if message.kind == "attempt" and self.ledger.state(entry.key) is not None:
            raise Refused("attempt_over", "this attempt began already, or was given up")  # before its body is read

        def join(body: Bytes) -> Attempt:
            party = self._party(message, ticket, run, epoch)
            take, at = next(party), start + sizes.sent.packed(sizes.up)
            if not isinstance(take, Take):
                raise AssertionError("a server's party must first take its input")
            party.send(take.check(wire.unpack("attempt", take.alphabet, body[start:at].tobytes(), take.count)))
            dealt = {"tapes": tapes} if epoch.issued.terms.dealer else {"tape": body[at:]}
            return Attempt(name, seat, self.ledger, entry, party=party, most=sizes.between, **dealt)

        return Asked(message.kind, name, seat, entry, *self._head(message, claims, run, [sizes]), join)

    def _checked_head(self, head: bytes, length: int, *kinds: RequestKind) -> tuple[Request, int, Ticket, Epoch]:
        """Return the message without its body, the bytes before the body, the ticket, and the epoch that it names."""
        message, start = wire.decode_head(head, length, *kinds)
        if message.server != self.number:
            raise Refused("wrong_server", f"this is server {self.number}, not server {message.server}")
        epoch, now = self.offers.find(message.terms, message.key), self._clock()
        ticket = wire.decode_ticket(message.ticket)
        grace = GRACE if message.kind == "collect" else 0
        tickets.verify(ticket, epoch.issued.terms, now, grace, self._verified)
        if (
            self.number not in tickets.servers_of(ticket.claims, epoch.deployment.scheme)
            or self.number not in message.among
        ):
            raise Refused("ticket_for_other_servers", f"the ticket, or the request, is not for server {self.number}")
        return message, start, ticket, epoch

    def _party(self, message: Request, ticket: Ticket, run: Team, epoch: Epoch) -> Party[Any]:
        """Return the party that this server plays for a request."""
        scheme, servers = run.scheme, run.servers

        def common(seats: tuple[int, ...]) -> Common:
            alphas = scheme.alphas if len(seats) == scheme.servers else tuple(scheme.alphas[seat] for seat in seats)
            return self._common(message.key, alphas, epoch.issued.digest, ticket.signed)

        among = [servers.index(n) for n in message.among]
        linked = scheme.protocol.linked
        held = Held(epoch.rows, epoch.records, common, ticket.claims.k, attempt=message.request if linked else 0)
        return scheme.answering(servers.index(self.number), 0 if linked else message.request, held, among)

    def _head(self, message: Request, claims: Claims, run: Team, asked: Sequence[Sizes]) -> tuple[bytes, int]:
        """Return the bytes before the body of the answer, and how many bytes the body has."""
        sizes = asked[0 if run.scheme.protocol.linked else message.request]
        length = sizes.answered.packed(sizes.down[run.servers.index(self.number)])
        kind = wire.ROUTES[message.kind][1]
        bare = wire.Reply(wire.VERSION, kind, self.number, claims.id, message.request, message.among, b"")
        return wire.head(bare, length), length
