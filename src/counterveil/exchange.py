"""Messages over HTTP: connections for one question, requests that are sent again, answers as they come in."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Protocol

import anyio
import httpx2
import msgspec

from . import wire
from .agreement import Peer, Traffic
from .asking import Sink
from .errors import Malformed, ServerFault
from .wire import Reply, Request

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "counterveil/2"}
_RETRIED = (502, 503, 504)
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds before a request is sent again, twice as long each time
_SLOWEST = 1 << 17  # bytes a second that a long answer may be sent at


class Settings(Protocol):
    """What a client says of its connections."""

    timeout: float
    patience: float
    verify: Any
    targets: dict[str, str]  # where to connect to, by address
    traffic: dict[str, Traffic]
    watch: Callable[[Peer, Request, Reply], None] | None


class Connections:
    """Connections to all servers, for one question; no cookies, so that beyond it a server cannot link two."""

    def __init__(self, client: Settings) -> None:
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

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        for http in self._http.values():
            await http.aclose()

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest."""
        began = time.perf_counter()
        response, content = await self._request(url, url, "GET", wire.MANIFEST_PATH, None, wire.MANIFEST_LIMIT)
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
        path = wire.ANSWER_PATH if question else wire.RECORD_PATH
        kind: wire.ReplyKind = "answer" if question else "record-answer"
        right = Reply(wire.VERSION, kind, message.server, ticket, message.request, message.among, b"")
        body = Body(right, expected, sink, keep=sink is None or watch is not None)
        most = expected + wire.ENVELOPE
        await self._request(peer.url, peer.name, "POST", path, wire.encode(message), most, body)
        answer = msgspec.structs.replace(right, body=body.checked(peer.name))
        if watch is not None:
            watch(peer, message, answer)
        return answer

    async def _request(
        self, url: str, name: str, method: str, path: str, body: bytes | None, most: int, into: Body | None = None
    ) -> tuple[httpx2.Response, bytes]:
        """Send a request; where the connection breaks send the same bytes again, until patience ends."""
        began, pause = time.monotonic(), _PAUSE
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
                began, pause = time.monotonic(), _PAUSE  # it was getting on
            now = time.monotonic()
            if hopeless or now - began + pause > self.patience or now + pause > until:
                raise ServerFault(name, problem)
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if response.status_code != 200:
            code, says = _refusal(content)
            raise ServerFault(name, f"refused (HTTP {response.status_code}): {says}", code)
        return response, content

    async def _once(
        self, url: str, method: str, path: str, body: bytes | None, most: int, into: Body | None
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


class Body:
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
