"""The applicant's side: asks all servers at once, trusts none of them, and tells them nothing by what it does next.

Every question is the same to a server: one query, then k record queries, of sizes that the terms fix (rule 10). What
fails for a reason that may depend on the question is told to the person alone, after the last message.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx2
import numpy as np

from . import checks, tickets, wire
from .arrays import Bytes, Vector
from .deployment import Deployment
from .errors import (
    CounterveilWarning,
    Disagreement,
    InvalidInput,
    Malformed,
    NoMask,
    OutOfRange,
    Refused,
    ServerFault,
    Tampered,
)
from .explain import Explanation, explain
from .field import Field
from .forms import Question
from .in_process import as_person
from .keys import SIGNATURE_BYTES, is_signed
from .preferences import Costs, Preferences
from .randomness import Fresh, Randomness
from .records import Record, decode, layout
from .schema import Schema
from .scheme import Scheme
from .spir import make_spir
from .wire import Manifest, Message, Terms, Ticket

T = TypeVar("T")

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "counterveil/1"}
_RETRIED = (502, 503, 504)
_STEP = 0.02  # seconds: what the applicant computes ends on a multiple of that, longer where there are many rows


@dataclass
class Traffic:
    """Bytes between the applicant and one server: bodies, and all that went through the connection, headers too."""

    requests: int = 0
    body_up: int = 0
    body_down: int = 0
    up: int = 0
    down: int = 0


@dataclass
class Peer:
    """One server, as the applicant knows it."""

    url: str
    manifest: Manifest
    seconds: float  # how long the manifest took
    date: str | None  # what the server says the time is
    tls: dict[str, Any] | None  # its certificate, where the connection has one
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"server {self.manifest.server} ({self.url})"


class AsyncClient:
    """Asks N servers of one deployment; `async with AsyncClient(urls) as client: await client.ask(person, …)`.

    Parameters
    ----------
    servers : the servers' addresses, in any order.
    timeout : seconds for a server to answer one request.
    patience : seconds over which a request is sent again, the same bytes, when the connection breaks.
    verify : as httpx2 has it: True, False, or an SSL context.
    watch : called with each server, what was sent to it and what it answered, for those who want to see.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        timeout: float = 60.0,
        patience: float = 10.0,
        verify: Any = True,
        watch: Callable[[Peer, Message, Message], None] | None = None,
    ) -> None:
        self.urls = [str(url).rstrip("/") for url in checks.listed("servers", servers, "a list of addresses")]
        for what, seconds in (("timeout", timeout), ("patience", patience)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
                raise OutOfRange(what, got=seconds, expected="seconds, 0 or more")
        self.timeout, self.patience, self._watch = timeout, patience, watch
        self.traffic = {url: Traffic() for url in self.urls}
        # No cookies: beyond one connection a server must not tell that two questions come from one person.
        self._http = {url: self._connection(url, verify) for url in self.urls}
        self._known: tuple[list[Peer], Deployment] | None = None

    def _connection(self, url: str, verify: Any) -> httpx2.AsyncClient:
        try:
            address = httpx2.URL(url)
            right = address.scheme in ("http", "https") and bool(address.host) and (address.port or 0) < 1 << 16
        except httpx2.InvalidURL:
            right = False
        if not right:
            raise ServerFault(url, "is not an address, such as https://one.example")
        return httpx2.AsyncClient(base_url=url, timeout=self.timeout, verify=verify, headers=_HEADERS)

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for http in self._http.values():
            await http.aclose()

    async def connect(self) -> tuple[list[Peer], Deployment]:
        """Fetch all manifests and refuse servers that do not agree, before a byte of a question is sent."""
        if self._known is None:
            peers = await _all([partial(self.visit, url) for url in self.urls])
            check_agreement(peers)
            self._known = peers, deployment_of(peers[0].manifest.terms)
        return self._known

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest."""
        began = time.perf_counter()
        response, content = await self._request(url, url, "GET", "/v1/manifest", None, wire.MANIFEST_LIMIT)
        try:
            manifest = wire.decode_manifest(content)
        except Malformed as error:
            raise ServerFault(url, str(error)) from None
        if manifest.terms.digest().hex() != manifest.digest:
            raise ServerFault(url, "its digest is not that of its terms")
        stream = response.extensions.get("network_stream")
        tls = stream.get_extra_info("ssl_object") if stream is not None else None
        return Peer(
            url=url,
            manifest=manifest,
            seconds=time.perf_counter() - began,
            date=response.headers.get("date"),
            tls=None if tls is None else tls.getpeercert(),
            traffic=self.traffic[url],
        )

    async def ask(
        self,
        person: Any,
        preferences: Preferences | Mapping[str, Any] | None = None,
        *,
        ticket: Ticket | str | None = None,
        robust: int = 0,
        spread: float = 0.0,
        clamp: bool = False,
        **more: Any,
    ) -> Explanation:
        """Explain one rejection, as `Local.ask` does, with servers that learn nothing.

        A ticket is needed unless the deployment is open. It is used up once the question is on its way; the same person
        may come back with another, but nothing here ever asks for one by itself. `robust` is how many wrong answers to
        correct where the deployment is open; otherwise the ticket says so.
        """
        peers, deployment = await self.connect()
        wishes = Preferences.of(preferences, **more)
        values = as_person(person, deployment.schema.names)
        own = deployment.schema.codes(values, clamp=clamp)
        question, costs = deployment.question(own, wishes)
        deployment.choose(np.zeros(1, dtype=np.int64), spread)  # refuses a bad spread before anything is sent
        asked = self._session(peers, deployment, ticket, robust)
        fetched, relative = await asked.fetch(self._post, question, spread)
        began = time.monotonic()
        try:
            records = asked.checked(costs, fetched, relative)
        finally:
            await asked.settle(began)  # or a server could tell from when we hang up whether the check passed
        given = {f.name: f.given(values.get(f.name)) for f in deployment.schema.cost_features}
        found = explain(asked.deployment, costs, given, records)
        return replace(found, liars=tuple(asked.liars)) if asked.liars else found

    async def reveal(
        self, question: Question, *, ticket: Ticket | str | None = None, deployment: Deployment | None = None
    ) -> tuple[Vector, Record]:
        """Return all that a question reveals, and the nearest record, for those who measure or attack their own.

        `deployment` may be one of one's own making, as a cheat's would be.
        """
        peers, known = await self.connect()
        asked = self._session(peers, deployment or known, ticket, 0)
        fetched, _ = await asked.fetch(self._post, question, 0.0)
        return asked.revealed, asked.signed(fetched)[0]

    def _session(self, peers: list[Peer], deployment: Deployment, ticket: Ticket | str | None, robust: int) -> _Asked:
        terms = peers[0].manifest.terms
        digest = bytes.fromhex(peers[0].manifest.digest)
        if ticket is None:
            if terms.tickets != "open":
                raise Refused("ticket_missing", "these servers want a ticket, and none was given")
            numbers = sorted(peer.manifest.server for peer in peers)[: deployment.scheme.needed(robust)]
            expires = int(time.time()) + terms.window // 2
            ticket = tickets.mint(digest, numbers, expires=expires, k=deployment.k, liars=robust)
        elif isinstance(ticket, str):
            ticket = wire.decode_ticket_text(ticket)
        tickets.verify(ticket, terms, digest, time.time())
        return _Asked(peers, deployment, ticket)

    async def _post(self, peer: Peer, message: Message, ticket: bytes, expected: int) -> Message:
        """Send one message to one server and read its answer, of exactly the size it must have."""
        question = message.kind == "query"
        path = "/v1/answer" if question else "/v1/record"
        body = wire.encode(message)
        _, content = await self._request(peer.url, peer.name, "POST", path, body, expected + wire.ENVELOPE)
        try:
            answer = wire.decode(content, "answer" if question else "record-answer")
        except Malformed as error:
            raise ServerFault(peer.name, str(error)) from None
        about = (answer.server, answer.ticket, answer.request, answer.among)
        if about != (message.server, ticket, message.request, message.among):
            raise ServerFault(peer.name, f"answers for another server or question than server {message.server}'s")
        if len(answer.body) != expected:
            raise ServerFault(peer.name, f"answer: got {len(answer.body)} bytes, expected {expected}")
        if self._watch is not None:
            self._watch(peer, message, answer)
        return answer

    async def _request(
        self, url: str, name: str, method: str, path: str, body: bytes | None, most: int
    ) -> tuple[httpx2.Response, bytes]:
        """Send a request; where the connection breaks send the same bytes again, until patience ends."""
        began, pause = time.monotonic(), 0.05
        while True:
            hopeless = False
            try:
                with anyio.fail_after(self.timeout):
                    response, content = await self._once(url, method, path, body, most)
                if response.status_code not in _RETRIED:
                    break
                problem = f"is not ready (HTTP {response.status_code})"
            except TimeoutError:
                problem = f"did not answer within {self.timeout:g} seconds"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                problem = f"cannot be reached: {str(error) or type(error).__name__}"
                hopeless = not isinstance(error, httpx2.RequestError) or "CERTIFICATE" in problem
            if hopeless or time.monotonic() - began + pause > self.patience:
                raise ServerFault(name, problem)
            await anyio.sleep(pause)
            pause = min(2 * pause, 1.0)
        if response.status_code != 200:
            code, says = _refusal(content)
            raise ServerFault(name, f"refused (HTTP {response.status_code}): {says}", code)
        return response, content

    async def _once(
        self, url: str, method: str, path: str, body: bytes | None, most: int
    ) -> tuple[httpx2.Response, bytes]:
        traffic, http = self.traffic[url], self._http[url]
        http.cookies.clear()
        headers = {"content-type": wire.MEDIA_TYPE} if body is not None else {}
        extensions = {"trace": partial(_metered, traffic)}
        request = http.build_request(method, path, content=body, headers=headers, extensions=extensions)
        response = await http.send(request, stream=True)
        traffic.requests += 1
        traffic.body_up += len(body or b"")
        content = bytearray()
        try:
            async for chunk in response.aiter_raw():
                traffic.body_down += len(chunk)
                content += chunk
                if len(content) > most:
                    raise ServerFault(url, f"answer: got more than {most} bytes, expected at most that")
        finally:
            await response.aclose()
        return response, bytes(content)


Post = Callable[[Peer, Message, bytes, int], Awaitable[Message]]


class _Asked:
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

    async def fetch(self, post: Post, question: Question, spread: float) -> tuple[list[bytes], Vector | None]:
        """Send the N queries, then N record queries k times over; return the records and the costs promised for them.

        None for the costs: the answers contradict each other.
        """
        scheme, count = self.scheme, self.terms.rows
        queries = scheme.query(question, self.randomness)
        length = scheme.reveal.length(count)
        size = wire.packed_bytes(scheme.field.bits, length)
        messages = [
            self._message("query", peer, 0, self.claims.servers, wire.pack(scheme.field, query))
            for peer, query in zip(self.peers, queries, strict=True)
        ]
        replies = await _all(
            [partial(post, peer, m, self.claims.id, size) for peer, m in zip(self.peers, messages, strict=True)]
        )
        began = time.monotonic()
        answers = [
            _unpacked(peer, scheme.field, reply.body, length) for peer, reply in zip(self.peers, replies, strict=True)
        ]
        self.revealed, fit = scheme.correct(question, queries, answers, count)
        among = self._honest(fit)
        relative = scheme.reveal.relative(scheme.field, self.revealed)
        plausible = self._plausible(relative)
        positions = self.deployment.choose(relative, spread)
        if not plausible:  # rule 10: ask on, for nothing in particular
            positions = [int(p) for p in self.randomness.elements(count, self.claims.k)]
        await self.settle(began)

        fetched = [
            await self._record(post, request, among, position) for request, position in enumerate(positions, start=1)
        ]
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
        bound = self.scheme.reveal.bound(self.scheme.form.bound) // (2 if self.scheme.reveal.differences else 1)
        return int(relative.max() - min(0, int(relative.min()))) <= bound

    async def _record(self, post: Post, request: int, among: tuple[int, ...], position: int) -> bytes:
        """Play one record step. A server that is left out gets a query too, of noise, so that all get as many."""
        length = layout(self.deployment.schema, self.deployment.record).itemsize + SIGNATURE_BYTES
        chosen = self.claims.liars > 0
        spir = make_spir(servers=len(among), collusion=self.scheme.collusion, length=length, chosen=chosen)
        queries: dict[int, Bytes] = dict(
            zip(among, spir.query(self.terms.rows, position, self.randomness), strict=True)
        )
        sent: list[Callable[[], Awaitable[Message]]] = []
        for peer in self.peers:
            n = peer.manifest.server
            asked = among
            if n not in among:
                asked = tuple(sorted((*among[1:], n)))
                queries[n] = spir.query(self.terms.rows, 0, self.randomness)[0]
            message = self._message("record-query", peer, request, asked, queries[n].tobytes())
            sent.append(partial(post, peer, message, self.claims.id, spir.part))
        replies = {reply.server: np.frombuffer(reply.body, dtype=np.uint8) for reply in await _all(sent)}
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


class Client:
    """`AsyncClient` for those who do not wait: the same in a thread of its own, connections kept between questions."""

    def __init__(self, servers: Sequence[str], **options: Any) -> None:
        self._client = AsyncClient(servers, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.peers, self.deployment = self._wait(self._client.connect())
        except BaseException:
            self.close()
            raise

    def ask(
        self, person: Any, preferences: Preferences | Mapping[str, Any] | None = None, **options: Any
    ) -> Explanation:
        """Explain one rejection; see `AsyncClient.ask`."""
        return self._wait(self._client.ask(person, preferences, **options))

    def reveal(self, question: Question, **options: Any) -> tuple[Vector, Record]:
        """Return all that a question reveals; see `AsyncClient.reveal`."""
        return self._wait(self._client.reveal(question, **options))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close all connections."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_agreement(peers: Sequence[Peer]) -> None:
    """Refuse servers whose manifests do not go together; say which, and in what they differ."""
    if len({peer.url for peer in peers}) < max(2, len(peers)):
        raise Disagreement(f"servers: got {[peer.url for peer in peers]}, expected two or more different addresses")
    first = peers[0]
    for peer in peers[1:]:
        for what, ours, theirs in (
            ("terms", first.manifest.terms, peer.manifest.terms),
            ("digest", first.manifest.digest, peer.manifest.digest),
            ("common key", first.manifest.key, peer.manifest.key),
        ):
            if ours != theirs:
                raise Disagreement(
                    f"{what}: {first.name} and {peer.name} do not agree{_difference(ours, theirs)}; nothing was asked"
                )
    numbers = [peer.manifest.server for peer in peers]
    if len(set(numbers)) != len(numbers):
        raise Disagreement(f"servers: got numbers {numbers}, expected each once: one answers for another")
    if max(numbers) > first.manifest.terms.parameters.servers:
        raise Disagreement(f"servers: got numbers {numbers}, expected up to {first.manifest.terms.parameters.servers}")


def _difference(ours: object, theirs: object) -> str:
    if not isinstance(ours, Terms) or not isinstance(theirs, Terms):
        return ""
    different = [name for name in Terms.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f" on {', '.join(different)}"


def deployment_of(terms: Terms) -> Deployment:
    """Return the deployment that terms describe, after checking that q and the alphas are what they must be."""
    try:
        schema = Schema.from_builtins(terms.schema, "schema of the manifest")
        parameters = {name: getattr(terms.parameters, name) for name in terms.parameters.__struct_fields__}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoMask)
            made = Deployment.of(schema, record=terms.record, **parameters)
        scheme = replace(made.scheme, alphas=tuple(terms.alphas), field=Field(int(terms.q)))
    except (InvalidInput, CounterveilWarning) as error:
        raise Disagreement(f"the servers' terms are refused: {error}") from None
    if scheme.field != made.scheme.field:
        raise Disagreement(
            f"q: got {scheme.field.q}, expected {made.scheme.field.q}, the smallest prime that does; nothing was asked"
        )
    if len(scheme.alphas) != made.scheme.servers:
        raise Disagreement(f"alphas: got {len(scheme.alphas)}, expected one for each of {made.scheme.servers} servers")
    return replace(made, scheme=scheme)


def _unpacked(peer: Peer, field: Field, body: bytes, length: int) -> Vector:
    try:
        return wire.unpack("answer", field, body, length)
    except Malformed as error:
        raise ServerFault(peer.name, str(error)) from None


def _refusal(content: bytes) -> tuple[str | None, str]:
    try:
        refusal = wire.decode_refusal(content)
    except Malformed:
        return None, "without a reason"
    return refusal.code, refusal.message


async def _metered(traffic: Traffic, event: str, info: dict[str, Any]) -> None:
    """Count what goes through a connection from the moment it is open, above TLS where there is TLS."""
    if event not in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
        return
    stream = info["return_value"]
    read, write = stream.read, stream.write

    async def reading(*args: Any, **options: Any) -> bytes:
        data: bytes = await read(*args, **options)
        traffic.down += len(data)
        return data

    async def writing(buffer: bytes, *args: Any, **options: Any) -> None:
        await write(buffer, *args, **options)
        traffic.up += len(buffer)

    stream.read, stream.write = reading, writing


async def _all(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
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
