"""Carry a conversation over HTTP: open connections for one question, and send a request again if one breaks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import httpx2

from ..errors import Malformed, ServerFault
from ..terms import wire
from ..terms.addresses import canonical, is_exposed
from ..terms.agreement import Peer, Traffic
from .conversation import Conversation
from .offer import settle
from .runs import OTHER_OFFER, Do, Line

T = TypeVar("T")

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "counterveil/2"}
_RETRIED = (502, 503, 504)
_READY = "/readyz"  # for those who watch servers; the protocol itself needs no such path
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before a request is sent again; each pause is twice the one before
_OTHERS = 3.0  # seconds of patience with a server that has another offer
_SLOWEST = 1 << 17  # bytes a second: a server must send a long answer at least this fast


class Settings(Protocol):
    """The settings of a client that its connections need."""

    timeout: float
    patience: float
    verify: Any
    traffic: dict[str, Traffic]

    def target(self, url: str) -> str:
        """Return the address to connect to for a server's address; refuse one that is not safe."""


class Connections:
    """Connections to all servers, for one question. There are no cookies, so a server cannot link two questions."""

    def __init__(self, client: Settings) -> None:
        self._client, self.timeout, self.patience = client, client.timeout, client.patience
        self._http: dict[str, httpx2.AsyncClient] = {}
        self._moved, self._closed = anyio.Condition(), False

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._closed:
            await self.close()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for http in self._http.values():
            await http.aclose()

    def _line(self, url: str) -> httpx2.AsyncClient:
        """Return what keeps the connections to a server."""
        if url not in self._http:
            target = self._client.target(url)
            self._client.traffic.setdefault(url, Traffic())
            self._http[url] = httpx2.AsyncClient(
                base_url=target,
                timeout=self.timeout,
                verify=self._client.verify,
                headers=_HEADERS,
                # A proxy could read the shares of all servers over plain http, so plain http ignores proxy settings.
                trust_env=target.startswith("https:"),
            )
        return self._http[url]

    async def manifests(self, url: str) -> list[wire.Manifest]:
        """Fetch all manifests that a server shows, the newest last."""
        _, content = await self._request(url, url, "GET", wire.MANIFESTS_PATH, None, wire.MANIFESTS_LIMIT)
        try:
            return wire.decode_manifests(content)
        except Malformed as error:
            raise ServerFault(url, str(error)) from None

    async def visit(self, url: str, patience: float | None = None) -> Peer:
        """Fetch one server's manifest."""
        began, most = time.perf_counter(), wire.MANIFEST_LIMIT
        response, content = await self._request(url, url, "GET", wire.MANIFEST_PATH, None, most, patience=patience)
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

    async def linked(self, url: str) -> list[wire.Linked]:
        """Ask a server which others it is linked to."""
        _, content = await self._request(url, url, "GET", wire.LINK_PATH, None, wire.MANIFEST_LIMIT)
        try:
            return wire.decode_linked(content)
        except Malformed as error:
            raise ServerFault(url, str(error)) from None

    async def check_ready(self, url: str) -> None:
        """Raise `ServerFault` with the code `not_ready` if a server cannot answer questions now."""
        await self._request(url, url, "GET", _READY, None, wire.MANIFEST_LIMIT)

    async def carry(self, conversation: Conversation) -> None:
        """Carry a conversation's messages until it says to hang up; then close every connection."""
        began = time.monotonic()
        while not self._closed:
            sent = []
            for do in conversation.todo():
                if do.what == "send":
                    sent.append(partial(self._send, conversation, do))
                elif do.what == "pause":
                    await settle(began, conversation.offer.step)
                elif do.what == "wait":
                    await anyio.sleep(do.seconds)
                else:
                    await self.close()
                    began = time.monotonic()
            await everyone(sent)
            began = time.monotonic()

    async def _send(self, conversation: Conversation, do: Do) -> None:
        """Send one message to one server, and hand its reply to the conversation."""
        line, message = do.line, do.message
        if line is None or message is None:
            raise AssertionError("a message to send must name its server")
        peer = conversation.peer(line)
        into = _Into(conversation, line, self._moved)
        path, most = wire.ROUTES[message.kind][0], conversation.expected(line) + wire.ENVELOPE
        upload = conversation.upload(line)
        body = _Upload(wire.head(message, upload), upload, partial(conversation.more, line), self._moved)
        try:
            if message.kind in ("attempt", "collect"):  # the conversation itself knows what to send if this fails
                await self._request(peer.url, peer.name, "POST", path, body, most, into, patience=0.0)
            else:
                await self._request(peer.url, peer.name, "POST", path, wire.encode(message), most, into)
            conversation.ended(line)
        except Exception as error:
            conversation.broke(line, error)  # `todo` raises it when all other replies have ended
        async with self._moved:
            self._moved.notify_all()

    async def _request(
        self,
        url: str,
        name: str,
        method: str,
        path: str,
        body: bytes | _Upload | None,
        most: int,
        into: _Into | None = None,
        patience: float | None = None,
    ) -> tuple[httpx2.Response, bytes]:
        """Send a request; if the connection breaks, send the same bytes again, for up to `patience` seconds."""
        began, pause = time.monotonic(), _PAUSE
        patience = self.patience if patience is None else patience
        limit = self.timeout + (most + len(body or b"")) / _SLOWEST
        until = began + limit + patience  # the deadline of all attempts together
        while True:
            hopeless, code, taken = False, None, into.taken if into else 0
            try:
                with anyio.fail_after(min(limit, until - time.monotonic())):
                    response, content = await self._once(url, method, path, body, most, into)
                code, says = (None, "") if response.status_code == 200 else _refusal(content)
                if response.status_code not in _RETRIED and code not in OTHER_OFFER:
                    break
                problem = f"is not ready (HTTP {response.status_code}): {says}"
                if code in OTHER_OFFER:  # another process at this address may have this offer
                    problem, patience = f"refused (HTTP {response.status_code}): {says}", min(patience, _OTHERS)
            except httpx2.ReadTimeout:
                problem = f"did not answer within {self.timeout:g} seconds"
            except TimeoutError:
                problem = f"did not finish its answer within {limit:g} seconds"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                broke = "broke off" if into is not None and into.taken else "cannot be reached"
                problem = f"{broke}: {str(error) or type(error).__name__}"
                hopeless = not isinstance(error, httpx2.RequestError) or "CERTIFICATE" in problem
            if into is not None and into.taken > taken:
                began, pause = time.monotonic(), _PAUSE  # this attempt brought new bytes, so patience starts again
            now = time.monotonic()
            if hopeless or now - began + pause > patience or now + pause > until:
                raise ServerFault(name, problem, code)
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if response.status_code != 200:
            raise ServerFault(name, f"refused (HTTP {response.status_code}): {says}", code)
        return response, content

    async def _once(
        self, url: str, method: str, path: str, body: bytes | _Upload | None, most: int, into: _Into | None
    ) -> tuple[httpx2.Response, bytes]:
        http, traffic = self._line(url), self._client.traffic[url]
        http.cookies.clear()
        headers = {} if body is None else {"content-type": wire.MEDIA_TYPE, "content-length": str(len(body))}
        extensions = {"trace": partial(_metered, traffic)}
        content = body.parts() if isinstance(body, _Upload) else body
        request = http.build_request(method, path, content=content, headers=headers, extensions=extensions)
        response = await http.send(request, stream=True)
        traffic.requests += 1
        traffic.body_up += len(body or b"")
        read, length = bytearray(), 0
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
                    read += chunk
        finally:
            await response.aclose()
        return response, bytes(read)


class _Upload:
    """A message whose body is made while it is sent, in step with the upload to the other server."""

    def __init__(self, head: bytes, length: int, more: Callable[[], bytes | None], moved: anyio.Condition) -> None:
        self._head, self._length, self._more, self._moved = head, len(head) + length, more, moved

    def __len__(self) -> int:
        return self._length

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the bytes; wait where the other upload must catch up first."""
        yield self._head
        while (part := self._more()) is not None:
            async with self._moved:
                self._moved.notify_all()
                if not part:
                    await self._moved.wait()
            if part:
                yield part


class _Into:
    """Hands the bytes of a reply to a conversation, and waits while the conversation does not want more."""

    def __init__(self, conversation: Conversation, line: Line, moved: anyio.Condition) -> None:
        self._conversation, self._line, self._moved = conversation, line, moved

    def begin(self) -> None:
        """Note that the reply starts from its first byte."""
        self._conversation.again(self._line)

    @property
    def taken(self) -> int:
        """How many bytes of the reply's body have arrived."""
        return self._conversation.taken(self._line)

    async def take(self, data: bytes) -> None:
        """Take the next bytes; then wait while the conversation needs another server's bytes first."""
        self._conversation.heard(self._line, data)
        async with self._moved:
            self._moved.notify_all()
            while not self._conversation.wants(self._line):
                await self._moved.wait()


def safe_address(given: Any, insecure: bool) -> str:
    """Return an address as `canonical` writes it; refuse what is not an address, and plain http to other machines."""
    try:
        url = canonical(str(given))
    except Malformed:
        raise ServerFault(str(given)[:100], "is not an address, such as https://one.example") from None
    if is_exposed(url) and not insecure:
        raise ServerFault(
            url, "is plain http: somebody on the way to both servers could read the question; expected https"
        )
    return url


async def everyone(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all calls at once and wait for all of them, so that no server notices that another failed; then raise."""
    results, errors = await attempted(calls)
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(calls))]


async def attempted(calls: Sequence[Callable[[], Awaitable[T]]]) -> tuple[dict[int, T], dict[int, Exception]]:
    """Run all calls at once and wait for all of them; return results and errors by the place of the call."""
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
    return results, errors


def _refusal(content: bytes) -> tuple[str | None, str]:
    try:
        refusal = wire.decode_refusal(content)
    except Malformed:
        return None, "without a reason"
    return refusal.code, refusal.message


async def _metered(traffic: Traffic, event: str, info: dict[str, Any]) -> None:
    """Count the bytes of a connection from its start; where there is TLS, the bytes before encryption."""
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
