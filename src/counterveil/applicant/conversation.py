"""One conversation of an applicant with the servers: it decides every message, and does no input or output.

A driver carries the messages: `exchange` over HTTP, `inprocess.bank` to servers in the same process, `web/` in a
browser. It tells the conversation whom it will `meet`, calls `todo` to learn what to send, and reports what it `heard`,
which replies have `ended` and which requests `broke`. After "hang up" it closes all connections. Then `result` has what
came of the question, and `checked` the records, if no server lied.

Every question looks the same to a server: one query, then k record queries, of sizes that the terms fix (rule 10). Work
that depends on the question is done before the first message, between messages within a public step of time, or after
hanging up. Errors that may depend on the question are raised after hanging up, so no server can notice them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ..crypto.keys import SIGNATURE_BYTES, Issuer, is_signed
from ..crypto.packages import unpackage
from ..crypto.randomness import KEY_BYTES, Fresh, Randomness
from ..engine.party import Effect, Inbox, Send, Take
from ..errors import Disagreement, InvalidInput, Malformed, Refused, ServerFault, Tampered
from ..schema.costs import Costs
from ..schema.layouts import Record, decode
from ..schemes.forms import Question
from ..schemes.protocols import Seen, Size
from ..terms import wire
from ..terms.agreement import Peer
from ..terms.deployment import Deployment
from ..terms.wire import Reply, Request, Ticket
from .offer import Offer
from .replies import Incoming

Progress = Callable[[int, int], None]  # called with how many bytes of the answers have arrived, and how many there are
Watch = Callable[[Peer, Request, Reply], None]

_AHEAD = 1 << 20  # bytes: the most that one answer may be ahead of the others, where answers are streamed


class Line(NamedTuple):
    """One request to one server."""

    server: int  # its number
    request: int


@dataclass(frozen=True, eq=False)
class Do:
    """What a driver is to do next: send a message, wait for the next step of the public clock, or hang up."""

    what: Literal["send", "pause", "hang up"]
    line: Line | None = None
    message: Request | None = None


@dataclass(eq=False)
class _Open:
    """A request that was sent, and the reply to it as far as it has arrived."""

    seat: int
    peer: Peer
    message: Request
    incoming: Incoming


class Conversation:
    """One question with one ticket.

    Parameters
    ----------
    deployment : by default that of the offer. Attacks pass another one, as a cheating applicant would.
    randomness : the source of pads and secrets; tests pass one that can be repeated.
    watch : called with each server, the message to it, and its reply.
    """

    def __init__(
        self,
        offer: Offer,
        ticket: Ticket,
        question: Question,
        *,
        spread: float = 0.0,
        deployment: Deployment | None = None,
        randomness: Randomness | None = None,
        progress: Progress | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Compute everything that needs no answer, before anything is sent."""
        self.offer, self.ticket, self._progress, self._watch = offer, ticket, progress, watch
        claims, draw = ticket.claims, randomness or Fresh()
        made = deployment or offer.deployment
        needed = made.scheme.needed(claims.robust)
        if len(claims.servers) != needed:
            raise Refused("ticket_not_offered", f"a ticket for {len(claims.servers)} servers, where {needed} answer")
        self.deployment, self.scheme = replace(made, k=claims.k), made.scheme.among(claims.servers, claims.robust)
        choose = partial(self.deployment.choose, spread=spread)
        choose(np.zeros(1, dtype=np.int64))  # raises for a wrong `spread` now, before anything is sent
        size = Size(offer.issued.terms.rows, self.deployment.record_bytes, claims.k)
        self._requests = self.scheme.requests(size)
        self._secrets = [draw.elements(256, KEY_BYTES).astype(np.uint8).tobytes() for _ in claims.servers]
        self._party = self.scheme.ask(question, size, draw, choose)
        self._inbox, self._out, self._peers = Inbox(), list[Send](), list[Peer]()
        self._open: dict[Line, _Open] = {}
        self._errors: dict[int, Exception] = {}
        self._received, self._over = 0, False
        self._seen: Seen | None = None
        self._effect = self._next(None)
        self._play()

    def meet(self, peers: Sequence[Peer]) -> None:
        """Take the servers' manifests; the driver calls this before the first message."""
        by_number, asked = {peer.manifest.server: peer for peer in peers}, self.ticket.claims.servers
        if any(n not in by_number for n in asked):
            raise Disagreement(f"ticket: got one for servers {list(asked)}, expected the address of each")
        self._peers = [by_number[n] for n in asked]

    # --- the driver's side ------------------------------------------------------------------------------------------

    def todo(self) -> Iterator[Do]:
        """Yield what the driver must do now. Call it again when all of that is done and every reply has ended.

        The last call says to hang up. If a request failed, its error is raised here, when all other replies have ended.
        """
        if self._errors:
            raise self._errors[min(self._errors)]
        self._play()
        sent, self._out = self._out, []
        if not sent:
            yield Do("pause")
            yield Do("hang up")
            self._over = True
            yield Do("pause")  # so that the connections are closed before the last answers are processed
            return
        if sent[0].request == 1:  # the only messages before which something was computed from answers
            yield Do("pause")
        for send in sent:
            yield self._begun(send)

    def heard(self, line: Line, data: bytes) -> None:
        """Take the next bytes of a reply."""
        begun = self._open[line]
        fresh = begun.incoming.take(data)
        if not fresh:
            return
        if line.request == 0 and self._requests[0].streams:
            self._received += len(fresh)
            if not self._errors:  # after an error, replies are still read to their ends, so that no server notices
                self._inbox.put(begun.seat, 0, np.frombuffer(fresh, dtype=np.uint8))
                self._play()
            if self._progress is not None:
                self._progress(self._received, sum(self._requests[0].down))

    def wants(self, line: Line) -> bool:
        """Say whether the driver should read more of a reply now, or let the server wait."""
        seat, effect = self._open[line].seat, self._effect
        ours = isinstance(effect, Take) and effect.source == seat
        return bool(self._errors) or ours or self._inbox.size(seat, line.request) < _AHEAD

    def again(self, line: Line) -> None:
        """Note that the request was sent, perhaps again, so the reply starts from its first byte."""
        self._open[line].incoming.begin()

    def taken(self, line: Line) -> int:
        """Return how many bytes of a reply's body have arrived."""
        return self._open[line].incoming.taken

    def expected(self, line: Line) -> int:
        """Return how many bytes a reply's body has in all."""
        return self._open[line].incoming.length

    def peer(self, line: Line) -> Peer:
        """Return the server that a request goes to."""
        return self._open[line].peer

    def ended(self, line: Line) -> None:
        """Note that a reply has ended; check it and hand it to the applicant's party."""
        begun, sizes = self._open[line], self._requests[line.request]
        body = begun.incoming.checked(begun.peer.name)
        if not (line.request == 0 and sizes.streams):
            try:
                symbols = wire.unpack("answer", sizes.answered, body, sizes.down[begun.seat])
            except Malformed as error:
                raise ServerFault(begun.peer.name, str(error)) from None
            self._inbox.put(begun.seat, line.request, symbols)
        if self._watch is not None:
            self._watch(begun.peer, begun.message, begun.incoming.reply(body))

    def broke(self, line: Line, why: Exception) -> None:
        """Note that a request failed and will not be sent again; `todo` raises the error."""
        self._errors[self._open[line].seat] = why

    # --- the party's side -------------------------------------------------------------------------------------------

    def _next(self, received: Any) -> Effect | None:
        try:
            return self._party.send(received)
        except StopIteration as end:
            self._seen = end.value
            return None

    def _play(self) -> None:
        """Run the applicant's party until it must wait.

        It gets the last answer only after hanging up, unless that is one that is read as it comes.
        """
        while self._effect is not None:
            received = None
            if isinstance(self._effect, Send):
                self._out.append(self._effect)
            elif isinstance(self._effect, Take):
                last = self._effect.request == len(self._requests) - 1
                held_back = last and not self._requests[self._effect.request].streams and not self._over
                if held_back or not self._inbox.has(self._effect):
                    return
                received = self._effect.check(self._inbox.take(self._effect))
            self._effect = self._next(received)

    def _begun(self, send: Send) -> Do:
        """Return the message to a server. It carries a secret for that server, so nobody else can send it (rule 13)."""
        seat, claims = int(send.to), self.ticket.claims
        peer, sizes = self._peers[seat], self._requests[send.request]
        among = tuple(claims.servers[s] for s in send.among) or claims.servers
        message = Request(
            version=wire.VERSION,
            kind="record-query" if send.request else "query",
            server=claims.servers[seat],
            terms=self.offer.issued.digest,
            key=bytes.fromhex(peer.manifest.key),
            ticket=self.ticket.encode(),
            request=send.request,
            among=among,
            secret=self._secrets[seat],
            body=wire.pack(send.alphabet, send.symbols),
        )
        kind: wire.ReplyKind = "record-answer" if send.request else "answer"
        right = Reply(wire.VERSION, kind, message.server, claims.id, send.request, among, b"")
        streams = send.request == 0 and sizes.streams
        length = sizes.answered.packed(sizes.down[seat])
        incoming = Incoming(right, length, keep=not streams or self._watch is not None)
        line = Line(message.server, send.request)
        self._open[line] = _Open(seat, peer, message, incoming)
        return Do("send", line, message)

    # --- when the driver has hung up --------------------------------------------------------------------------------

    def result(self) -> Seen:
        """Return everything that the question revealed. Call it when every connection is closed."""
        self._over = True
        self._play()
        if self._seen is None:
            raise AssertionError("the conversation is not over")
        return self._seen

    @property
    def liars(self) -> list[int]:
        """Numbers of the servers whose wrong answers were corrected."""
        honest = self.result().honest
        return [n for seat, n in enumerate(self.ticket.claims.servers) if seat not in honest]

    def signed(self, sign: Issuer | None = None) -> list[Record]:
        """Read the records; refuse one without the signature of this database. With `sign`, sign them first."""
        terms = self.offer.issued.terms
        public, digest = bytes.fromhex(terms.issuer), bytes.fromhex(terms.database)
        records = []
        for whole in map(unpackage, self.result().records):
            record, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
            if sign is not None:
                signature = sign.sign("record", digest, record)
            if not is_signed(public, signature, "record", digest, record):
                raise Tampered("the record was altered: it does not carry the signature of this database; not shown")
            try:
                records.append(decode(self.deployment.schema, self.deployment.record, record))
            except InvalidInput as error:
                raise Tampered(f"the record cannot be one of this database; not shown ({error})") from None
        return records

    def checked(self, costs: Costs, sign: Issuer | None = None) -> list[Record]:
        """Read the records; refuse one that is not signed, or that does not have the cost that the answers gave."""
        seen = self.result()
        if not seen.positions:
            raise Tampered("the answers contradict each other: at least one server lied, or its answer was altered")
        records, layout = self.signed(sign), self.deployment.tariff.layout
        paid = np.array([sum(costs.of(layout.nearest(costs, record))) for record in records])
        if not self.scheme.reveal.fits(self.scheme.field, seen.revealed, seen.positions, paid):
            raise Tampered("the record is not the row that the answers promised: a server lied; not shown")
        return records
