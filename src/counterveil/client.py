"""The applicant's side of the network: asks all servers at once, over connections that tell them nothing more."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec

from . import checks, tickets, wire
from .agreement import Peer, Traffic, check_agreement
from .arrays import Vector
from .asking import Asked, Offer, Progress, Sink, everyone, make_offer, settle
from .deployment import Deployment
from .errors import Disagreement, Malformed, OutOfRange, Refused, ServerFault, WrongType
from .explain import Explanation, explain
from .forms import Question
from .in_process import as_person
from .keys import is_pinned
from .preferences import Preferences
from .records import Record
from .terms import check_terms, deployment_of, read_terms
from .wire import Reply, Request, SignedTerms, Terms, Ticket

T = TypeVar("T")

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "counterveil/2"}
_RETRIED = (502, 503, 504)
_SLOWEST = 1 << 17  # bytes a second that a long answer may be sent at


class AsyncClient:
    """Asks N servers of one deployment; `async with AsyncClient(urls) as client: await client.ask(person, …)`.

    Connections are opened for a question and closed before anything that came back is looked at.

    Parameters
    ----------
    servers : the servers' addresses, in any order; by default those in the terms.
    terms : a terms file, or what was read from one. With it, a question is checked and compiled before any connection;
        without it, the terms come from the servers, who then see that somebody looked.
    issuer : the public key that must have signed the terms, 32 bytes.
    operators : public keys of servers that must be among those asked, 32 bytes each, or their fingerprints, 16 bytes.
        Get at least one from its operator and not from the institution, which could otherwise run all the servers.
    insecure : allow plain http to other machines. Whoever is on the way then reads the question.
    timeout : seconds for a server to answer one request.
    patience : seconds over which a request is sent again, the same bytes, when the connection breaks.
    verify : as httpx2 has it: True, False, or an SSL context.
    connect_to : where to connect to instead, by address: for relays, as curl's option of that name.
    watch : called with each server, what was sent to it and what it answered, for those who want to see.
    progress : called with how many bytes of the answers came, and how many there will be, where that is many.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        terms: SignedTerms | str | Path | None = None,
        issuer: bytes | None = None,
        operators: Sequence[bytes] = (),
        insecure: bool = False,
        timeout: float = 60.0,
        patience: float = 10.0,
        verify: Any = True,
        connect_to: Mapping[str, str] | None = None,
        watch: Callable[[Peer, Request, Reply], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        issued = read_terms(terms) if isinstance(terms, str | Path) else terms
        if servers is None and issued is None:
            raise WrongType("servers", got="neither servers nor terms", expected="the addresses, or a terms file")
        listed = issued.addresses if servers is None and issued else servers
        self.urls = [_address(url, insecure) for url in checks.listed("servers", listed, "a list of addresses")]
        for what, seconds in (("timeout", timeout), ("patience", patience)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
                raise OutOfRange(what, got=seconds, expected="seconds, 0 or more")
        self.timeout, self.patience, self.watch, self._progress = timeout, patience, watch, progress
        self._issuer, self._operators = issuer, tuple(operators)
        others = {_address(url, True): _address(to, insecure) for url, to in (connect_to or {}).items()}
        self.targets = {url: others.get(url, url) for url in self.urls}
        self.verify = httpx2.create_ssl_context() if verify is True else verify
        self.traffic = {url: Traffic() for url in self.urls}
        self.peers: list[Peer] = []  # as their manifests have them, once they were visited
        self._pinned, self._offer, self._looked = issued is not None, None, None
        if issued is not None:
            self._accept(issued)

    _offer: Offer | None
    _looked: float | None  # when the terms came from the servers, and nothing was asked since

    def _accept(self, issued: SignedTerms) -> Offer:
        if self._issuer is not None and issued.terms.issuer != self._issuer.hex():
            raise Disagreement("terms: got another issuer's, expected those of the issuer given; nothing was asked")
        self._offer = make_offer(issued, deployment_of(check_terms(issued).terms))
        return self._offer

    @property
    def deployment(self) -> Deployment:
        """What the terms describe; they are known from a file, or after `connect`."""
        if self._offer is None:
            raise Disagreement("terms: got none yet, expected a terms file, or `connect` before this")
        return self._offer.deployment

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Do nothing: connections are closed after each question."""

    async def connect(self) -> tuple[list[Peer], Deployment]:
        """Fetch all manifests and refuse servers that do not agree; the connections are closed again."""
        if not self.peers:
            async with _Connections(self) as lines:
                await self._agree(lines)
        return self.peers, self.deployment

    async def _agree(self, lines: _Connections) -> list[Peer]:
        """Fetch all manifests, and accept terms only from servers that agree on them."""
        peers = await everyone([partial(lines.visit, url) for url in self.urls])
        check_agreement(peers, issuer=self._issuer, operators=self._operators)
        issued = peers[0].manifest.issued
        if self._pinned and self._offer is not None and issued.text != self._offer.issued.text:
            raise Disagreement("terms: the servers have others than the terms file; get the new one; nothing was asked")
        if self._offer is None:
            self._accept(issued)
            self._looked = time.monotonic()
        self.peers = peers
        return peers

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest, over a connection of its own."""
        async with _Connections(self) as lines:
            return await lines.visit(url)

    async def ask(
        self,
        person: Any,
        preferences: Preferences | Mapping[str, Any] | None = None,
        *,
        ticket: Ticket | str | None = None,
        robust: int = 0,
        spread: float = 0.0,
        clamp: bool = False,
        spending: Callable[[], None] | None = None,
        **more: Any,
    ) -> Explanation:
        """Explain one rejection, as `Local.ask` does, with servers that learn nothing.

        A ticket is needed unless the deployment is open. It is used up once the question is on its way; nothing here
        ever asks for another by itself. `robust` is how many wrong answers to correct where the deployment is open;
        otherwise the ticket says so. `spending` is called once, just before the first byte leaves that uses the ticket:
        until then nothing is lost.
        """
        offer = await self._terms()
        deployment = offer.deployment
        wishes = Preferences.of(preferences, **more)
        values = as_person(person, deployment.schema.names)
        own = deployment.schema.codes(values, clamp=clamp)
        question, costs = deployment.question(own, wishes)
        asked = Asked(offer, self._ticket(offer, ticket, robust), question, spread=spread)
        opened = await self._fetch(asked, spending)
        # Every connection is closed: from here on nothing that happens can be seen by a server.
        records = asked.checked(costs, opened())
        given = {f.name: f.given(values.get(f.name)) for f in deployment.schema.cost_features}
        found = explain(asked.deployment, costs, given, records)
        return replace(found, liars=tuple(asked.liars)) if asked.liars else found

    async def reveal(
        self, question: Question, *, ticket: Ticket | str | None = None, deployment: Deployment | None = None
    ) -> tuple[Vector, Record]:
        """Return all that a question reveals, and the nearest record, for those who measure or attack their own.

        `deployment` may be one of one's own making, as a cheat's would be.
        """
        offer = await self._terms()
        asked = Asked(offer, self._ticket(offer, ticket, 0), question, deployment=deployment)
        opened = await self._fetch(asked)
        record = asked.signed(opened())[0]
        return asked.revealed, record

    async def _terms(self) -> Offer:
        """Return the terms: from a file, or from the servers."""
        if self._offer is None:
            await self.connect()
        offer = self._offer
        if offer is None:
            raise AssertionError("`connect` accepts terms or raises")
        return offer

    async def _fetch(self, asked: Asked, spending: Callable[[], None] | None = None) -> Callable[[], list[bytes]]:
        """Exchange all messages of a question, then hang up."""
        asked.progress = self._progress
        looked, self._looked, offer = self._looked, None, self._offer
        if looked is not None and offer is not None:
            await settle(looked, offer.step)  # or the time since the manifests tells how long compiling took
        try:
            async with _Connections(self) as lines:
                peers = self.peers or await self._agree(lines)
                if spending is not None:
                    spending()
                opened = await asked.fetch(lines.post, peers)
            await settle(time.monotonic(), asked.step)  # until the ends of the connections are on their way
            return opened
        except ServerFault as error:
            if error.code in ("other_terms", "other_key"):  # look again before the next question
                self.peers = []
                self._offer = self._offer if self._pinned else None
            raise

    def _ticket(self, offer: Offer, ticket: Ticket | str | None, robust: int) -> Ticket:
        """Return the ticket to use, checked as far as it can be here."""
        terms = offer.issued.terms
        if ticket is None:
            if terms.tickets != "open":
                raise Refused("ticket_missing", "these servers want a ticket, and none was given")
            ticket = self._own_ticket(terms, offer.deployment, robust)
        elif isinstance(ticket, str):
            ticket = wire.decode_ticket_text(ticket)
        tickets.verify(ticket, terms, time.time())
        asked = [bytes.fromhex(terms.keys[n - 1]) for n in ticket.claims.servers]
        if not all(any(is_pinned(operator, key) for key in asked) for operator in self._operators):
            raise Disagreement("ticket: got one for other servers than that of the operator given; nothing was asked")
        return ticket

    def _own_ticket(self, terms: Terms, deployment: Deployment, robust: int) -> Ticket:
        known = [peer.manifest.server for peer in self.peers] or range(1, terms.parameters.servers + 1)
        numbers = sorted(known)[: deployment.scheme.needed(robust)]
        step = max(1, terms.window // 4)  # coarse: a clock to the second would tell one applicant from another
        expires = (int(time.time()) + terms.window // 2) // step * step
        return tickets.mint(terms, numbers, expires=expires, k=deployment.k, liars=robust)


def _address(given: Any, insecure: bool) -> str:
    """Return an address in its one form; refuse what is none, and plain http to another machine."""
    try:
        url = wire.canonical(str(given))
    except Malformed:
        raise ServerFault(str(given)[:100], "is not an address, such as https://one.example") from None
    if url.startswith("http:") and not insecure and not is_loopback(urlsplit(url).hostname or ""):
        raise ServerFault(
            url, "is plain http: whoever is on the way to both servers reads the question; expected https"
        )
    return url


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Connections:
    """Connections to all servers, for one question; no cookies, so that beyond it a server cannot link two."""

    def __init__(self, client: AsyncClient) -> None:
        self._client, self.timeout, self.patience = client, client.timeout, client.patience
        # A proxy sees what goes over plain http, the shares of all servers too: there is none for it.
        self._http = {
            url: httpx2.AsyncClient(
                base_url=target,
                timeout=client.timeout,
                verify=client.verify,
                headers=_HEADERS,
                trust_env=target.startswith("https:"),
            )
            for url, target in client.targets.items()
        }

    async def __aenter__(self) -> _Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        for http in self._http.values():
            await http.aclose()

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest."""
        began = time.perf_counter()
        response, content = await self._request(url, url, "GET", "/v1/manifest", None, wire.MANIFEST_LIMIT)
        try:
            manifest = wire.decode_manifest(content)
        except Malformed as error:
            raise ServerFault(url, str(error)) from None
        stream = response.extensions.get("network_stream")
        tls = stream.get_extra_info("ssl_object") if stream is not None else None
        return Peer(
            url=url,
            manifest=manifest,
            seconds=time.perf_counter() - began,
            date=response.headers.get("date"),
            tls=None if tls is None else tls.getpeercert(),
            traffic=self._client.traffic[url],
        )

    async def post(self, peer: Peer, message: Request, ticket: bytes, expected: int, sink: Sink | None = None) -> Reply:
        """Send one message to one server and read its answer, of exactly the size it must have.

        With a sink the body goes there as it comes, and is kept only where somebody watches.
        """
        question, watch = message.kind == "query", self._client.watch
        path = "/v1/answer" if question else "/v1/record"
        kind: wire.ReplyKind = "answer" if question else "record-answer"
        right = Reply(wire.VERSION, kind, message.server, ticket, message.request, message.among, b"")
        body = _Body(right, expected, sink, keep=sink is None or watch is not None)
        most = expected + wire.ENVELOPE
        await self._request(peer.url, peer.name, "POST", path, wire.encode(message), most, body)
        answer = msgspec.structs.replace(right, body=body.checked(peer.name))
        if watch is not None:
            watch(peer, message, answer)
        return answer

    async def _request(
        self, url: str, name: str, method: str, path: str, body: bytes | None, most: int, into: _Body | None = None
    ) -> tuple[httpx2.Response, bytes]:
        """Send a request; where the connection breaks send the same bytes again, until patience ends."""
        began, pause = time.monotonic(), 0.05
        limit = self.timeout + most / _SLOWEST
        until = began + limit + self.patience  # whatever happens
        while True:
            hopeless, taken = False, into.taken if into else 0
            try:
                with anyio.fail_after(min(limit, until - time.monotonic())):
                    response, content = await self._once(url, method, path, body, most, into)
                if response.status_code not in _RETRIED:
                    break
                problem = f"is not ready (HTTP {response.status_code}): {_refusal(content)[1]}"
            except httpx2.ReadTimeout:
                problem = f"did not answer within {self.timeout:g} seconds"
            except TimeoutError:
                problem = f"did not finish its answer within {limit:g} seconds"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                broke = "broke off" if into is not None and into.taken else "cannot be reached"
                problem = f"{broke}: {str(error) or type(error).__name__}"
                hopeless = not isinstance(error, httpx2.RequestError) or "CERTIFICATE" in problem
            if into is not None and into.taken > taken:
                began, pause = time.monotonic(), 0.05  # it was getting on
            now = time.monotonic()
            if hopeless or now - began + pause > self.patience or now + pause > until:
                raise ServerFault(name, problem)
            await anyio.sleep(pause)
            pause = min(2 * pause, 1.0)
        if response.status_code != 200:
            code, says = _refusal(content)
            raise ServerFault(name, f"refused (HTTP {response.status_code}): {says}", code)
        return response, content

    async def _once(
        self, url: str, method: str, path: str, body: bytes | None, most: int, into: _Body | None
    ) -> tuple[httpx2.Response, bytes]:
        traffic, http = self._client.traffic[url], self._http[url]
        http.cookies.clear()
        headers = {"content-type": wire.MEDIA_TYPE} if body is not None else {}
        extensions = {"trace": partial(_metered, traffic)}
        request = http.build_request(method, path, content=body, headers=headers, extensions=extensions)
        response = await http.send(request, stream=True)
        traffic.requests += 1
        traffic.body_up += len(body or b"")
        content, length = bytearray(), 0
        if into is not None:
            into.begin()
        try:
            async for chunk in response.aiter_raw():
                traffic.body_down += len(chunk)
                length += len(chunk)
                if length > most:
                    raise ServerFault(url, f"answer: got more than {most} bytes, expected at most that")
                if into is not None and response.status_code == 200:
                    await into.take(chunk)
                else:
                    content += chunk
        finally:
            await response.aclose()
        return response, bytes(content)


class _Body:
    """A reply as it comes in: the head that it must have, then its body. What was taken once is not taken again.

    A connection may break and the same request be sent again: the same bytes come, from the start.
    """

    def __init__(self, right: Reply, length: int, sink: Sink | None, *, keep: bool) -> None:
        self._right, self._head, self._length, self._sink = right, wire.head(right, length), length, sink
        self._kept: bytearray | None = bytearray() if keep else None
        self.taken, self._seen = 0, 0
        self._other: bytearray | None = None  # a reply with another head

    def begin(self) -> None:
        """Start from the first byte."""
        self._seen, self._other = 0, None

    async def take(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._other is not None:
            self._other += data
            return
        start, self._seen = self._seen, self._seen + len(data)
        head = self._head[start : start + len(data)]
        if data[: len(head)] != head:
            self._other = bytearray(self._head[:start] + data)
            return
        new = self.taken - max(0, start - len(self._head))
        fresh = data[len(head) + new :][: self._length - self.taken]
        if fresh:
            self.taken += len(fresh)
            if self._kept is not None:
                self._kept += fresh
            if self._sink is not None:
                await self._sink(fresh)

    def checked(self, name: str) -> bytes:
        """Return the body, if it was kept, or say what is wrong with the reply."""
        if self._other is not None or self._seen < len(self._head):
            self._refuse(name, bytes(self._head[: self._seen] if self._other is None else self._other))
        if self._seen != len(self._head) + self._length:
            got = self._seen - len(self._head)
            raise ServerFault(name, f"answer: got {got} bytes, expected {self._length}")
        return bytes(self._kept or b"")

    def _refuse(self, name: str, content: bytes) -> NoReturn:
        try:
            answer = wire.decode_reply(content, self._right.kind)
        except Malformed as error:
            raise ServerFault(name, str(error)) from None
        if msgspec.structs.replace(answer, body=b"") != self._right:
            raise ServerFault(name, f"answers for another server or question than server {self._right.server}'s")
        raise ServerFault(name, f"answer: got {len(answer.body)} bytes, expected {self._length}")


class Client:
    """`AsyncClient` for those who do not wait: the same in a thread of its own, with the same parameters."""

    def __init__(self, servers: Sequence[str] | None = None, **options: Any) -> None:
        self._client = AsyncClient(servers, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        if options.get("terms") is None:
            try:
                self._wait(self._client.connect())
            except BaseException:
                self.close()
                raise

    @property
    def peers(self) -> list[Peer]:
        """The servers, as their manifests have them, once they were visited."""
        return self._client.peers

    @property
    def deployment(self) -> Deployment:
        """What the terms describe."""
        return self._client.deployment

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
        """Stop the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
