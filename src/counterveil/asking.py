"""One question under way: the messages that go out, whatever comes back, and what the answers are worth.

Every question is the same to a server: one query, then k record queries, of sizes that the terms fix (rule 10). What
fails for a reason that may depend on the question is told to the person alone, after the last message.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
import numpy as np

from . import wire
from .agreement import Peer
from .arrays import Bytes, Vector
from .deployment import Deployment
from .errors import Disagreement, InvalidInput, Malformed, Refused, ServerFault, Tampered
from .field import Residues
from .forms import Question
from .keys import SIGNATURE_BYTES, is_signed
from .preferences import Costs
from .randomness import Fresh, Randomness
from .records import Record, decode
from .reveals import Reader
from .scheme import Scheme
from .spir import make_spir
from .wire import Message, Ticket

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes of answers that came, of so many
Sink = Callable[[bytes], Awaitable[None]]
Post = Callable[[Peer, Message, bytes, int, Sink | None], Awaitable[Message]]

_STEP = 0.02  # seconds: what the applicant computes ends on a multiple of that, longer where there are many rows


class Asked:
    """One question under way: who is asked, under which ticket, and what is found out about them."""

    def __init__(self, peers: list[Peer], deployment: Deployment, ticket: Ticket) -> None:
        self.ticket, self.claims = ticket, ticket.claims
        by_number = {peer.manifest.server: peer for peer in peers}
        missing = [n for n in self.claims.servers if n not in by_number]
        if missing:
            raise Disagreement(f"ticket: got one for servers {list(self.claims.servers)}, expected the address of each")
        self.peers = [by_number[n] for n in self.claims.servers]
        self.terms = peers[0].manifest.terms
        self.deployment = replace(deployment, k=self.claims.k)
        needed = deployment.scheme.needed(self.claims.liars)
        if len(self.claims.servers) != needed:
            raise Refused(
                "ticket_not_offered", f"a ticket for {len(self.claims.servers)} servers, where {needed} answer"
            )
        self.scheme: Scheme = deployment.scheme.among(self.claims.servers, self.claims.liars)
        self.liars: list[int] = []  # servers, by number, whose answers were corrected
        self.revealed: Vector = np.zeros(0, dtype=np.int64)
        self.randomness: Randomness = Fresh()
        self.progress: Progress | None = None

    async def fetch(self, post: Post, question: Question, spread: float) -> tuple[list[bytes], Vector | None]:
        """Send the N queries, then N record queries k times over; return the records and the costs promised for them.

        None for the costs: the answers contradict each other.
        """
        scheme, count, record = self.scheme, self.terms.rows, self.deployment.record_bytes
        queries = scheme.query(question, self.randomness)
        lengths = [scheme.sent(n, count, record) for n in range(1, scheme.servers + 1)]
        total = sum(map(scheme.alphabet.packed, lengths))
        intake = _Intake(scheme.reader(question, queries, count, record), scheme.alphabet, total, self.progress)
        asked = []
        for place, (peer, query, length) in enumerate(zip(self.peers, queries, lengths, strict=True)):
            message = self._message("query", peer, 0, self.claims.servers, wire.pack(scheme.field, query))
            asked.append(partial(intake.ask, post, place, peer, message, self.claims.id, length))
        await everyone(asked)
        began = time.monotonic()
        self.revealed, fit, opened = intake.reader.outcome()
        among = self._honest(fit)
        relative = scheme.reveal.relative(scheme.field, self.revealed)
        plausible = self._plausible(relative)
        positions = self.deployment.choose(relative, spread)
        if not plausible:  # rule 10: ask on, for nothing in particular
            positions = [int(p) for p in self.randomness.elements(scheme.reveal.positions(count), self.claims.k)]
        await self.settle(began)

        fetched = (
            [opened]
            if opened is not None
            else [
                await self._record(post, request, among, position)
                for request, position in enumerate(positions, start=1)
            ]
        )
        return fetched, relative[positions] if plausible else None

    async def settle(self, began: float) -> None:
        """Wait for the next step of a public clock, so that no server can time what the applicant computed."""
        step = _STEP * (1 + self.terms.rows // 20_000)
        await anyio.sleep(step - (time.monotonic() - began) % step)

    def _message(self, kind: wire.Kind, peer: Peer, request: int, among: tuple[int, ...], body: bytes) -> Message:
        return Message(1, kind, peer.manifest.server, self.ticket.encode(), request, among, body)

    def _honest(self, fit: tuple[int, ...]) -> tuple[int, ...]:
        """Return the servers to fetch records from, by number: all, but for as many as the ticket lets lie."""
        honest = [self.claims.servers[place] for place in fit]
        self.liars = [n for n in self.claims.servers if n not in honest]
        return tuple(honest[: len(self.claims.servers) - self.claims.liars])

    def _plausible(self, relative: Vector) -> bool:
        """Say whether costs can be as revealed: none beyond the largest there is."""
        reveal = self.scheme.reveal
        bound = reveal.expansion * (self.scheme.form.bound + reveal.d_min) - 1
        return int(relative.max() - min(0, int(relative.min()))) <= bound

    async def _record(self, post: Post, request: int, among: tuple[int, ...], position: int) -> bytes:
        """Play one record step. A server that is left out gets a query too, of noise, so that all get as many."""
        length, count = self.deployment.record_bytes, self.scheme.reveal.positions(self.terms.rows)
        chosen = self.claims.liars > 0
        spir = make_spir(servers=len(among), collusion=self.scheme.collusion, length=length, chosen=chosen)
        queries: dict[int, Bytes] = dict(zip(among, spir.query(count, position, self.randomness), strict=True))
        sent: list[Callable[[], Awaitable[Message]]] = []
        for peer in self.peers:
            n = peer.manifest.server
            asked = among
            if n not in among:
                asked = tuple(sorted((*among[1:], n)))
                queries[n] = spir.query(count, 0, self.randomness)[0]
            message = self._message("record-query", peer, request, asked, queries[n].tobytes())
            sent.append(partial(post, peer, message, self.claims.id, spir.part, None))
        replies = {reply.server: np.frombuffer(reply.body, dtype=np.uint8) for reply in await everyone(sent)}
        return spir.recover([replies[n] for n in among])

    def signed(self, fetched: list[bytes]) -> list[Record]:
        """Read the records, if each is signed for this database."""
        public, digest = bytes.fromhex(self.terms.signer), bytes.fromhex(self.terms.database)
        records = []
        for whole in fetched:
            record, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
            if not is_signed(public, signature, "record", digest, record):
                raise Tampered("the record was altered: it does not carry the signature of this database; not shown")
            try:
                records.append(decode(self.deployment.schema, self.deployment.record, record))
            except InvalidInput as error:
                raise Tampered(f"the record cannot be one of this database; not shown ({error})") from None
        return records

    def checked(self, costs: Costs, fetched: list[bytes], revealed: Vector | None) -> list[Record]:
        """Read the records, if each is signed for this database and costs what the answers promised."""
        if revealed is None:
            raise Tampered("the answers contradict each other: at least one server lied, or its answer was altered")
        records = self.signed(fetched)
        reveal, costed = self.scheme.reveal, self.deployment.schema.costed
        paid = np.array([sum(costs.of(record.codes[costed])) for record in records])
        over = revealed - reveal.expansion * paid
        over = over - over[0] if reveal.differences else over
        mask = reveal.expansion * reveal.d_min - 1
        if (over < (-mask if reveal.differences else 0)).any() or (over > mask).any():
            raise Tampered("the record is not the row that the answers promised: a server lied; not shown")
        return records


class _Intake:
    """The answers of all servers as they come in: none is held whole that need not be, none gets far ahead."""

    def __init__(self, reader: Reader, alphabet: Residues, total: int, progress: Progress | None) -> None:
        self.reader, self._alphabet, self._total, self._progress = reader, alphabet, total, progress
        self._moved, self._received, self._failed = anyio.Condition(), 0, False

    async def ask(self, post: Post, place: int, peer: Peer, message: Message, ticket: bytes, length: int) -> None:
        """Send one query and take its answer in; symbols of whole bytes as they come, others when all are there."""
        streams = self._alphabet.q == 1 << 8
        size = self._alphabet.packed(length)
        try:
            reply = await post(peer, message, ticket, size, partial(self._take, place) if streams else None)
            if not streams:
                self.reader.feed(place, wire.unpack("answer", self._alphabet, reply.body, length))
        except Exception as error:
            async with self._moved:
                self._failed = True  # the others are read to their ends, so that none can tell
                self._moved.notify_all()
            if isinstance(error, Malformed):
                raise ServerFault(peer.name, str(error)) from None
            raise

    async def _take(self, place: int, data: bytes) -> None:
        self._received += len(data)
        if not self._failed:
            self.reader.feed(place, np.frombuffer(data, dtype=np.uint8))  # at once: what was taken must be fed
        if self._progress is not None:
            self._progress(self._received, self._total)
        async with self._moved:
            self._moved.notify_all()
            while not self._failed and not self.reader.hungry(place):
                await self._moved.wait()


async def everyone(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all at once and wait for every one, so that no server can tell that another failed; then raise an error."""
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}

    async def one(place: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[place] = await call()
        except Exception as error:
            errors[place] = error

    async with anyio.create_task_group() as group:
        for place, call in enumerate(calls):
            group.start_soon(one, place, call)
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(calls))]
