"""The applicant's side of the network: asks all servers at once, over connections that tell them nothing more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx2
import numpy as np

from . import checks, tickets, wire
from .agreement import Peer, Traffic, check_agreement, deployment_of
from .arrays import Vector
from .asking import Asked, everyone
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
        return Asked(peers, deployment, ticket)

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
