"""The applicant's side of the network: asks all servers at once, over connections that tell them nothing more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import anyio
import httpx2
import msgspec
import numpy as np

from . import checks, tickets, wire
from .agreement import Peer, Traffic, check_agreement, deployment_of
from .arrays import Vector
from .asking import Asked, Progress, Sink, everyone
from .deployment import Deployment
from .errors import Malformed, OutOfRange, Refused, ServerFault
from .explain import Explanation, explain
from .forms import Question
from .in_process import as_person
from .preferences import Preferences
from .records import Record
from .wire import Message, Ticket

T = TypeVar("T")

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "counterveil/1"}
_RETRIED = (502, 503, 504)
_SLOWEST = 1 << 17  # bytes a second that a long answer may be sent at


class AsyncClient:
    """Asks N servers of one deployment; `async with AsyncClient(urls) as client: await client.ask(person, …)`.

    Parameters
    ----------
    servers : the servers' addresses, in any order.
    timeout : seconds for a server to answer one request.
    patience : seconds over which a request is sent again, the same bytes, when the connection breaks.
    verify : as httpx2 has it: True, False, or an SSL context.
    watch : called with each server, what was sent to it and what it answered, for those who want to see.
    progress : called with how many bytes of the answers came, and how many there will be, where that is many.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        timeout: float = 60.0,
        patience: float = 10.0,
        verify: Any = True,
        watch: Callable[[Peer, Message, Message], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.urls = [str(url).rstrip("/") for url in checks.listed("servers", servers, "a list of addresses")]
        for what, seconds in (("timeout", timeout), ("patience", patience)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
                raise OutOfRange(what, got=seconds, expected="seconds, 0 or more")
        self.timeout, self.patience, self._watch, self._progress = timeout, patience, watch, progress
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
            peers = await everyone([partial(self.visit, url) for url in self.urls])
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

    def _session(self, peers: list[Peer], deployment: Deployment, ticket: Ticket | str | None, robust: int) -> Asked:
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
        asked = Asked(peers, deployment, ticket)
        asked.progress = self._progress
        return asked

    async def _post(
        self, peer: Peer, message: Message, ticket: bytes, expected: int, sink: Sink | None = None
    ) -> Message:
        """Send one message to one server and read its answer, of exactly the size it must have.

        With a sink the body goes there as it comes, and is kept only where somebody watches.
        """
        question = message.kind == "query"
        path = "/v1/answer" if question else "/v1/record"
        right = msgspec.structs.replace(
            message, kind="answer" if question else "record-answer", ticket=ticket, body=b""
        )
        body = _Body(right, expected, sink, keep=sink is None or self._watch is not None)
        most = expected + wire.ENVELOPE
        await self._request(peer.url, peer.name, "POST", path, wire.encode(message), most, body)
        answer = msgspec.structs.replace(right, body=body.checked(peer.name))
        if self._watch is not None:
            self._watch(peer, message, answer)
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
        traffic, http = self.traffic[url], self._http[url]
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

    def __init__(self, right: Message, length: int, sink: Sink | None, *, keep: bool) -> None:
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
            answer = wire.decode(content, self._right.kind)
        except Malformed as error:
            raise ServerFault(name, str(error)) from None
        if msgspec.structs.replace(answer, body=b"") != self._right:
            raise ServerFault(name, f"answers for another server or question than server {self._right.server}'s")
        raise ServerFault(name, f"answer: got {len(answer.body)} bytes, expected {self._length}")


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
