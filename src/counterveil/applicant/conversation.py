"""One question under way: the messages that go out, whatever comes back, and what the answers are worth.

Every question is the same to a server: one query, then k record queries, of sizes that the terms fix (rule 10). What
depends on the question is computed before the first connection, or between messages within a public step of time, or
after the last connection is closed. What fails for a reason that may depend on the question is told to the person
alone, at the very end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import anyio
import numpy as np

from ..algebra.arrays import Bytes, Vector
from ..algebra.field import Residues
from ..crypto.keys import SIGNATURE_BYTES, is_signed
from ..crypto.packages import unpackage
from ..crypto.randomness import KEY_BYTES, Fresh, Randomness, keystream, new_key, uniform
from ..errors import Disagreement, InvalidInput, Malformed, NotOffered, Refused, ServerFault, Tampered
from ..schema.costs import Costs
from ..schema.layouts import Record, decode
from ..schema.preferences import Preferences
from ..schemes.fetch import Spir, make_spir
from ..schemes.forms import Question
from ..schemes.reveals import Outcome, Reader
from ..schemes.scheme import Scheme
from ..terms import wire
from ..terms.agreement import Peer
from ..terms.deployment import Deployment
from ..terms.wire import Reply, Request, SignedTerms, Ticket
from .ask import compile_question

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes of answers that came, of so many
Sink = Callable[[bytes], Awaitable[None]]
Post = Callable[[Peer, Request, bytes, int, Sink | None], Awaitable[Reply]]

_STEP = 0.02  # seconds: what the applicant computes ends on a multiple of that, or of more
_TIMER = 0.003  # seconds by which a timer may be late
_REHEARSALS = 3
_MOST_REHEARSED = 1 << 16  # rows; for more, the time that these take is multiplied


class Offer(NamedTuple):
    """Terms that were checked, the deployment they describe, and the step of time that hides what is computed."""

    issued: SignedTerms
    deployment: Deployment
    step: float  # seconds


def make_offer(issued: SignedTerms, deployment: Deployment) -> Offer:
    """Calibrate the step: at least twice as long as anything computed between messages, tried with made-up numbers."""
    rows = issued.terms.rows
    longest = max(_rehearsed(deployment, rows) for _ in range(_REHEARSALS))
    return Offer(issued, deployment, max(_STEP * (1 + rows // 20_000), 2 * longest))


def _rehearsed(deployment: Deployment, rows: int) -> float:
    """Return the seconds that compiling a question takes, or putting answers together and choosing; the longer."""
    schema, scheme = deployment.schema, deployment.scheme
    own = np.array([feature.largest // 2 for feature in schema.features], dtype=np.int64)
    wishes = _most_wishes(deployment)
    began = time.monotonic()
    question, _ = compile_question(deployment, own, wishes)
    scheme = scheme.among(range(1, scheme.needed() + 1))
    queries = scheme.query(question, Fresh())
    compiled = time.monotonic() - began
    few = min(rows, _MOST_REHEARSED)
    if scheme.reveal.timeless or not scheme.reveal.length(few):
        return compiled
    made_up = keystream(new_key())  # no secrets: these answers are thrown away
    answers = [uniform(made_up, scheme.field.q, scheme.sent(n, few)) for n in range(1, scheme.servers + 1)]
    reader = scheme.reader(question, queries, few)
    began = time.monotonic()
    for place, answer in enumerate(answers):
        reader.feed(place, answer)
    deployment.choose(scheme.reveal.relative(scheme.field, reader.outcome().revealed))
    return max(compiled, (time.monotonic() - began) * rows / few)


def _most_wishes(deployment: Deployment) -> Preferences:
    """Return preferences that take as long to compile as any, as far as the deployment takes them."""
    features = deployment.schema.cost_features
    every = {f.name: [f.value(code) for code in range(f.steps + 1)] for f in features}
    ordered = [f.name for f in features if f.ordered]
    wishes = Preferences(
        costs={name: dict.fromkeys(values, 0.5) for name, values in every.items()},
        forbidden=every,
        ranges={name: (every[name][0], every[name][-1]) for name in ordered},
        immutable=list(every),
        increase_only=ordered,
    )
    try:
        compile_question(deployment, np.zeros(len(deployment.schema.features), dtype=np.int64), wishes)
    except NotOffered:
        return Preferences()
    return wishes


async def settle(began: float, step: float) -> None:
    """Wait for the next step of a public clock, so that no server can time what the applicant computed.

    The last moments are counted out: a timer rounds what is left up to a millisecond, which would tell when it was set.
    """
    until = began + step * (1 + (time.monotonic() - began) // step)
    await anyio.sleep(max(0.0, until - time.monotonic() - _TIMER))
    while time.monotonic() < until:
        pass


class Asked:
    """One question under way: who is asked, under which ticket, and what is found out about them."""

    def __init__(
        self,
        offer: Offer,
        ticket: Ticket,
        question: Question,
        *,
        spread: float = 0.0,
        deployment: Deployment | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        """Share the question: all that can be computed before anybody is asked."""
        self._offer, self.ticket, self.claims = offer, ticket, ticket.claims
        self.terms, self.step, self._spread = offer.issued.terms, offer.step, spread
        deployment = deployment or offer.deployment
        self.deployment = replace(deployment, k=self.claims.k)
        needed = deployment.scheme.needed(self.claims.liars)
        if len(self.claims.servers) != needed:
            raise Refused(
                "ticket_not_offered", f"a ticket for {len(self.claims.servers)} servers, where {needed} answer"
            )
        self.scheme: Scheme = deployment.scheme.among(self.claims.servers, self.claims.liars)
        self.deployment.choose(np.zeros(1, dtype=np.int64), spread)  # refuses a bad spread
        self.liars: list[int] = []  # servers, by number, whose answers were corrected
        self.revealed: Vector = np.zeros(0, dtype=np.int64)
        self.progress: Progress | None = None
        self._random: Randomness = randomness or Fresh()
        self._promised: Vector | None = None  # costs of the records, as the answers have them
        self._secrets = {
            n: self._random.elements(256, KEY_BYTES).astype(np.uint8).tobytes() for n in self.claims.servers
        }
        self._question, self._queries = question, self.scheme.query(question, self._random)
        self._bodies = [wire.pack(self.scheme.field, query) for query in self._queries]

    async def fetch(self, post: Post, peers: Sequence[Peer]) -> Callable[[], list[bytes]]:
        """Send the N queries, then N record queries k times over; return what opens the records.

        That is to be called when every connection is closed: from the last byte until then nothing is computed that
        depends on the question, or a server could tell by when we hang up.
        """
        scheme, count, record = self.scheme, self.terms.rows, self.deployment.record_bytes
        peers = self._named(peers)
        lengths = [scheme.sent(n, count, record) for n in range(1, scheme.servers + 1)]
        total = sum(map(scheme.alphabet.packed, lengths))
        reader = scheme.reader(self._question, self._queries, count, record)
        intake = _Intake(reader, scheme.alphabet, total, self.progress)
        asked = []
        for place, (peer, body, length) in enumerate(zip(peers, self._bodies, lengths, strict=True)):
            message = self._message("query", peer, 0, self.claims.servers, body)
            asked.append(partial(intake.ask, post, place, peer, message, self.claims.id, length))
        await everyone(asked)
        began = time.monotonic()
        if scheme.reveal.inside:
            await settle(began, self.step)
            return lambda: self._inside(reader.outcome())
        steps = self._record_steps(peers, reader.outcome())
        await settle(began, self.step)
        replies = [await everyone([partial(post, *each, None) for each in step.sent]) for step in steps]
        await settle(time.monotonic(), self.step)
        return lambda: [step.record(answers) for step, answers in zip(steps, replies, strict=True)]

    def _named(self, peers: Sequence[Peer]) -> list[Peer]:
        """Return the servers that the ticket names, in its order."""
        by_number = {peer.manifest.server: peer for peer in peers}
        if any(n not in by_number for n in self.claims.servers):
            raise Disagreement(f"ticket: got one for servers {list(self.claims.servers)}, expected the address of each")
        return [by_number[n] for n in self.claims.servers]

    def _message(
        self, kind: wire.RequestKind, peer: Peer, request: int, among: tuple[int, ...], body: bytes
    ) -> Request:
        """Return a message with this server's secret, so that no other server could send it (rule 13)."""
        manifest = peer.manifest
        secret = self._secrets[manifest.server]
        digest, key = self._offer.issued.digest, bytes.fromhex(manifest.key)
        return Request(
            wire.VERSION, kind, manifest.server, digest, key, self.ticket.encode(), request, among, secret, body
        )

    def _inside(self, found: Outcome) -> list[bytes]:
        """Return the record that the answers brought."""
        self.revealed, _, record = found
        self._promised = self.scheme.reveal.relative(self.scheme.field, self.revealed)[:1]
        return [record or b""]

    def _record_steps(self, peers: Sequence[Peer], found: Outcome) -> list[_RecordStep]:
        """Choose the records, and prepare all messages that fetch them."""
        self.revealed, fit, _ = found
        scheme, positions = self.scheme, self.scheme.reveal.positions(self.terms.rows)
        relative = scheme.reveal.relative(scheme.field, self.revealed)
        chosen = self.deployment.choose(relative, self._spread)
        at_random = [int(p) for p in self._random.elements(positions, self.claims.k)]
        if self._plausible(relative):
            self._promised = relative[chosen]
        else:
            chosen = at_random  # rule 10: ask on, for nothing in particular
        honest = [self.claims.servers[place] for place in fit]
        self.liars = [n for n in self.claims.servers if n not in honest]
        return [self._record_step(peers, n, honest, position) for n, position in enumerate(chosen, start=1)]

    def _plausible(self, relative: Vector) -> bool:
        """Say whether costs can be as revealed: none beyond the largest there is."""
        reveal = self.scheme.reveal
        bound = reveal.expansion * (self.scheme.form.bound + reveal.d_min) - 1
        return int(relative.max() - min(0, int(relative.min()))) <= bound

    def _record_step(self, peers: Sequence[Peer], request: int, honest: list[int], position: int) -> _RecordStep:
        """Prepare one record step, to a random set of honest servers.

        A server that is left out gets a query too, of noise, and a random set that it is in: whether it was left out by
        chance, or because it lied, looks the same to it.
        """
        length, count = self.deployment.record_bytes, self.scheme.reveal.positions(self.terms.rows)
        size = len(self.claims.servers) - self.claims.liars
        among = self._some(honest, size)
        chosen = self.claims.liars > 0
        spir = make_spir(servers=size, collusion=self.scheme.collusion, length=length, chosen=chosen)
        queries: dict[int, Bytes] = dict(zip(among, spir.query(count, position, self._random), strict=True))
        sent = []
        for peer in peers:
            n = peer.manifest.server
            asked = among
            if n not in among:
                others = [m for m in self.claims.servers if m != n]
                asked = tuple(sorted((*self._some(others, size - 1), n)))
                queries[n] = spir.query(count, 0, self._random)[0]
            message = self._message("record-query", peer, request, asked, queries[n].tobytes())
            sent.append((peer, message, self.claims.id, spir.part))
        return _RecordStep(spir, among, sent)

    def _some(self, servers: Sequence[int], size: int) -> tuple[int, ...]:
        """Return so many of these servers, every set as likely; all of them without a draw where there is no choice."""
        left = list(servers)
        while len(left) > size:
            left.pop(int(self._random.elements(len(left), 1)[0]))
        return tuple(sorted(left))

    def signed(self, fetched: list[bytes]) -> list[Record]:
        """Read the records, if each is signed for this database."""
        public, digest = bytes.fromhex(self.terms.issuer), bytes.fromhex(self.terms.database)
        records = []
        for whole in map(unpackage, fetched):
            record, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
            if not is_signed(public, signature, "record", digest, record):
                raise Tampered("the record was altered: it does not carry the signature of this database; not shown")
            try:
                records.append(decode(self.deployment.schema, self.deployment.record, record))
            except InvalidInput as error:
                raise Tampered(f"the record cannot be one of this database; not shown ({error})") from None
        return records

    def checked(self, costs: Costs, fetched: list[bytes]) -> list[Record]:
        """Read the records, if each is signed for this database and costs what the answers promised."""
        if self._promised is None:
            raise Tampered("the answers contradict each other: at least one server lied, or its answer was altered")
        records = self.signed(fetched)
        reveal, costed = self.scheme.reveal, self.deployment.schema.costed
        paid = np.array([sum(costs.of(record.codes[costed])) for record in records])
        over = self._promised - reveal.expansion * paid
        over = over - over[0] if reveal.differences else over
        mask = reveal.expansion * reveal.d_min - 1
        if (over < (-mask if reveal.differences else 0)).any() or (over > mask).any():
            raise Tampered("the record is not the row that the answers promised: a server lied; not shown")
        return records


class _RecordStep(NamedTuple):
    """One record step: what is sent to each server, and which answers make the record."""

    spir: Spir
    among: tuple[int, ...]
    sent: list[tuple[Peer, Request, bytes, int]]

    def record(self, replies: Sequence[Reply]) -> bytes:
        """Return the record, as servers hold it."""
        bodies = {reply.server: np.frombuffer(reply.body, dtype=np.uint8) for reply in replies}
        return self.spir.recover([bodies[n] for n in self.among])


class _Intake:
    """The answers of all servers as they come in: none is held whole that need not be, none gets far ahead."""

    def __init__(self, reader: Reader, alphabet: Residues, total: int, progress: Progress | None) -> None:
        self.reader, self._alphabet, self._total, self._progress = reader, alphabet, total, progress
        self._moved, self._received, self._failed = anyio.Condition(), 0, False

    async def ask(self, post: Post, place: int, peer: Peer, message: Request, ticket: bytes, length: int) -> None:
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
