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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from ..crypto.keys import SIGNATURE_BYTES, Issuer, is_signed
from ..crypto.packages import unpackage
from ..crypto.randomness import KEY_BYTES, Fresh, Randomness
from ..errors import CounterveilError, Disagreement, InvalidInput, Refused, Tampered
from ..schema.costs import Costs
from ..schema.layouts import Record, decode
from ..schemes.forms import Question
from ..schemes.protocols import Seen, Size
from ..terms import wire
from ..terms.agreement import Peer
from ..terms.deployment import Deployment
from ..terms.tickets import servers_of
from ..terms.wire import Request, Ticket
from .offer import Offer
from .runs import Do, Line, Linked, Progress, Run, Watch


class Conversation:
    """One question with one ticket.

    Parameters
    ----------
    deployment : by default that of the offer. Attacks pass another one, as a cheating applicant would.
    randomness : the source of pads and secrets; tests pass one that can be repeated.
    patience : seconds of waiting for servers that talk to each other and cannot answer now.
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
        patience: float = 10.0,
        progress: Progress | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Compute everything that needs no answer, before anything is sent."""
        self.offer, self.ticket = offer, ticket
        claims, draw = ticket.claims, randomness or Fresh()
        made = deployment or offer.deployment
        self.servers = servers_of(claims, made.scheme)  # the numbers of those that are asked
        self.deployment, self.scheme = replace(made, k=claims.k), made.scheme.among(self.servers, claims.robust)
        runs = self.scheme.runs()
        if not runs:
            needed = made.scheme.needed(claims.robust)
            raise Refused("ticket_not_offered", f"a ticket for {len(self.servers)} servers, where {needed} answer")
        choose = partial(self.deployment.choose, spread=spread)
        choose(np.zeros(1, dtype=np.int64))  # raises for a wrong `spread` now, before anything is sent
        size = Size(offer.issued.terms.rows, self.deployment.record_bytes, claims.k)
        self._secrets = {n: draw.elements(256, KEY_BYTES).astype(np.uint8).tobytes() for n in self.servers}
        self._peers: dict[int, Peer] = {}
        self._runs: list[Run] = []
        for number, seats in enumerate(runs):
            servers = tuple(self.servers[seat] for seat in seats)
            scheme = self.scheme if len(servers) == self.scheme.servers else self.scheme.among([s + 1 for s in seats])
            begin = partial(scheme.ask, question, size, draw, choose)
            write = partial(self._message, servers)
            kind = partial(Linked, patience=patience) if scheme.protocol.linked else Run
            run = kind(number, servers, scheme.requests(size), begin=begin, write=write, watch=watch, progress=progress)
            self._runs.append(run)

    def meet(self, peers: Sequence[Peer]) -> None:
        """Take the servers' manifests; the driver calls this before the first message."""
        by_number, asked = {peer.manifest.server: peer for peer in peers}, self.servers
        if any(n not in by_number for n in asked):
            raise Disagreement(f"ticket: got one for servers {list(asked)}, expected the address of each")
        self._peers = {n: by_number[n] for n in asked}

    # --- the driver's side ------------------------------------------------------------------------------------------

    def todo(self) -> Iterator[Do]:
        """Yield what the driver must do now. Call it again when all of that is done and every reply has ended.

        The last call says to hang up. If a request failed, its error is raised here, when all other replies have ended.
        """
        sent = [do for run in self._runs for do in run.todo()]
        if self._errors and not self._is_explained(self._errors):
            raise self._errors[min(self._errors)]
        if not sent:
            yield Do("pause")
            yield Do("hang up")
            yield Do("pause")  # so that the connections are closed before the last answers are processed
            return
        if any(do.message is not None and do.message.kind == "record-query" and do.message.request == 1 for do in sent):
            yield Do("pause")  # these are the only messages before which something was computed from answers
        waits = [do for do in sent if do.what == "wait"]
        if waits:
            yield max(waits, key=lambda do: do.seconds)
        yield from (do for do in sent if do.what == "send")

    @property
    def _errors(self) -> dict[tuple[int, ...], Exception]:
        """The errors of runs that failed, by their servers."""
        return {run.servers: run.error for run in self._runs if run.error is not None}

    def _is_explained(self, failed: Sequence[tuple[int, ...]] | dict[tuple[int, ...], Exception]) -> bool:
        """Say whether as few servers as may lie, or be down, explain these runs that failed."""
        lying = self.ticket.claims.robust if len(self._runs) > 1 else 0
        suspects = combinations(self.servers, lying)
        return any(all(set(servers) & set(some) for servers in failed) for some in suspects)

    @property
    def is_untouched(self) -> bool:
        """Whether all servers refused the question before they answered anything, because they have another offer."""
        return all(run.is_untouched for run in self._runs)

    def heard(self, line: Line, data: bytes) -> None:
        """Take the next bytes of a reply."""
        self._runs[line.run].heard(line, data)

    def wants(self, line: Line) -> bool:
        """Say whether the driver should read more of a reply now, or let the server wait."""
        return self._runs[line.run].wants(line)

    def more(self, line: Line) -> bytes | None:
        """Return the next bytes of an upload; nothing if the other upload must catch up first, None at the end."""
        run = self._runs[line.run]
        return run.more(line) if isinstance(run, Linked) else None

    def upload(self, line: Line) -> int:
        """Return how many bytes an upload has, after the message itself."""
        run = self._runs[line.run]
        opened = run.opened(line)
        return run.requests[0].body(opened.seat) if opened.message.kind == "attempt" else 0

    def again(self, line: Line) -> None:
        """Note that the request was sent, perhaps again, so the reply starts from its first byte."""
        self._runs[line.run].opened(line).incoming.begin()

    def taken(self, line: Line) -> int:
        """Return how many bytes of a reply's body have arrived."""
        return self._runs[line.run].opened(line).incoming.taken

    def expected(self, line: Line) -> int:
        """Return how many bytes a reply's body has in all."""
        return self._runs[line.run].opened(line).incoming.length

    def peer(self, line: Line) -> Peer:
        """Return the server that a request goes to."""
        return self._runs[line.run].opened(line).peer

    def ended(self, line: Line) -> None:
        """Note that a reply has ended; check it and hand it to the applicant's party."""
        self._runs[line.run].ended(line)

    def broke(self, line: Line, why: Exception) -> None:
        """Note that a request failed; `todo` raises the error, or asks again."""
        self._runs[line.run].broke(line, why)

    def _message(
        self,
        servers: tuple[int, ...],
        seat: int,
        kind: wire.RequestKind,
        number: int,
        among: tuple[int, ...],
        body: bytes,
    ) -> tuple[Peer, Request]:
        """Return the message to a server. It carries a secret for that server, so nobody else can send it (rule 13)."""
        peer = self._peers[servers[seat]]
        message = Request(
            version=wire.VERSION,
            kind=kind,
            server=servers[seat],
            terms=self.offer.issued.digest,
            key=bytes.fromhex(peer.manifest.key),
            ticket=self.ticket.encode(),
            request=number,
            among=tuple(servers[s] for s in among) or servers,
            secret=self._secrets[servers[seat]],
            body=body,
        )
        return peer, message

    # --- when the driver has hung up --------------------------------------------------------------------------------

    def _seen(self) -> list[tuple[Run, Seen]]:
        """Return what every run that did not fail has seen."""
        made = [(run, run.finish()) for run in self._runs if run.error is None]
        if any(seen is None for _, seen in made):
            raise AssertionError("the conversation is not over")
        return [(run, seen) for run, seen in made if seen is not None]

    def result(self) -> Seen:
        """Return everything that the question revealed. Call it when every connection is closed."""
        return self._seen()[0][1]

    @property
    def liars(self) -> list[int]:
        """Numbers of the servers whose wrong answers were corrected, or who did not answer; call `checked` first."""
        if len(self._runs) == 1:
            honest = self.result().honest
            return [n for seat, n in enumerate(self.servers) if seat not in honest]
        return sorted({n for run in self._runs if run.servers in self._wrong for n in run.servers} - self._right)

    _wrong: tuple[tuple[int, ...], ...] = ()  # the pairs that failed, or gave a dearer record than others
    _right: frozenset[int] = frozenset()  # the servers of the other pairs

    def signed(self, sign: Issuer | None = None) -> list[Record]:
        """Read the records; refuse one without the signature of this database. With `sign`, sign them first."""
        return self._signed(self.result(), sign)

    def _signed(self, seen: Seen, sign: Issuer | None) -> list[Record]:
        terms = self.offer.issued.terms
        public, digest = bytes.fromhex(terms.issuer), bytes.fromhex(terms.database)
        records = []
        for whole in map(unpackage, seen.records):
            record, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
            if sign is not None:
                signature = sign.sign("record", digest, record)
            if not is_signed(public, signature, "record", digest, record):
                raise Tampered("the record was altered: it does not carry the signature of this database; not shown")
            try:
                read = decode(self.deployment.schema, self.deployment.record, record)
                records.append(read._replace(signed=record + signature))
            except InvalidInput as error:
                raise Tampered(f"the record cannot be one of this database; not shown ({error})") from None
        return records

    def checked(self, costs: Costs, sign: Issuer | None = None) -> list[Record]:
        """Read the records; refuse one that is not signed, or that does not have the cost that the answers gave.

        Of several runs, the cheapest records count. A run that gave dearer ones, or none, has a server that lied or was
        down. If more servers must have lied than may, nothing is claimed.
        """
        found: list[tuple[list[int], list[Record], Run]] = []
        errors: list[CounterveilError] = []
        for run, seen in self._seen():
            try:
                found.append((*self._costed(seen, costs, sign), run))
            except (Tampered, InvalidInput) as error:
                errors.append(error)
        if not found:
            raise errors[0]
        cheapest = min(paid for paid, _, _ in found)
        best = [run for paid, _, run in found if paid == cheapest]
        self._wrong = tuple(run.servers for run in self._runs if run not in best)
        self._right = frozenset(n for run in best for n in run.servers)
        if not self._is_explained(self._wrong):
            raise Tampered("the answers contradict each other: more servers lied, or were down, than may")
        return next(records for paid, records, _ in found if paid == cheapest)

    def _costed(self, seen: Seen, costs: Costs, sign: Issuer | None) -> tuple[list[int], list[Record]]:
        """Return the records of one run, and what each costs."""
        fetches = self.scheme.protocol.fetches
        if fetches and not seen.positions:
            raise Tampered("the answers contradict each other: at least one server lied, or its answer was altered")
        if not fetches and len(set(seen.records)) < len(seen.records):
            raise Tampered("the answers bring one record twice: a server lied; not shown")
        records, layout = self._signed(seen, sign), self.deployment.tariff.layout
        paid = [sum(costs.of(layout.nearest(costs, record))) for record in records]
        if not self.scheme.reveal.fits(self.scheme.field, seen.revealed, seen.positions, np.array(paid)):
            raise Tampered("the record is not the row that the answers promised: a server lied; not shown")
        return [int(each) for each in paid], records
