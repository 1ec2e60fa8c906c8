"""A server over HTTP: routes, limits, logs and metrics, and nothing of the protocol.

Security: nothing of a question, an answer, a ticket, or where they come from is logged or counted.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import msgspec
import prometheus_client
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import page, wire
from .errors import InvalidInput, Refused
from .machine_code import cores
from .operator import Operator
from .server import SOFTWARE, Reply, Server

log = logging.getLogger("counterveil")

REFUSALS = {  # what a server may refuse, with its HTTP status
    "malformed": (400, "not a message of this protocol, or not one for this place"),
    "ticket_forged": (401, "the ticket is forged"),
    "ticket_not_offered": (403, "the ticket is for more than is offered"),
    "ticket_for_other_servers": (403, "the ticket is for other servers"),
    "too_slow": (408, "the body did not arrive in time"),
    "ticket_used": (409, "the ticket was used for another request"),
    "ticket_expired": (410, "the ticket has expired"),
    "length_required": (411, "no Content-Length"),
    "ticket_for_another_database": (412, "the ticket is for another database"),
    "too_long": (413, "a longer body than any request has"),
    "wrong_server": (421, "the message is for another server"),
    "internal": (500, "the server failed"),
    "not_ready": (503, "the ledger cannot be written"),
    "busy": (503, "too many answers are on their way"),
}
_PATIENCE = 60.0  # seconds for a body to arrive, or an answer to leave
_SLOWEST_READER = 1 << 16  # bytes a second at which a long answer may be read
_STREAMS = 32  # answers under way at a time: some 20 MiB each, where they are sealed
_SAME = 2  # of those, to the very same request: one that a client gave up, and its next try
_QUEUE = 5.0  # seconds to wait for one of those
_CONNECTIONS = 512  # at a time; more are told to come back


class Metrics:
    """What Prometheus may read: how many requests, how long they took, how large the ledger is."""

    def __init__(self, server: Server) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "counterveil_requests", "Requests answered or refused", ["path", "code"], registry=self.registry
        )
        self._seconds = prometheus_client.Histogram(
            "counterveil_request_seconds", "Time from first byte to last", ["path"], registry=self.registry
        )
        self._bytes = prometheus_client.Counter(
            "counterveil_body_bytes", "Bytes of bodies", ["path", "direction"], registry=self.registry
        )
        for name, says, value in (
            ("counterveil_ledger_entries", "Requests of unexpired tickets", server.ledger.count),
            ("counterveil_rows", "Rows served", lambda: server.terms.rows),
            ("counterveil_server_number", "Which server this is", lambda: server.number),
        ):
            prometheus_client.Gauge(name, says, registry=self.registry).set_function(value)

    def count(self, path: str, code: str, seconds: float, received: int, sent: int) -> None:
        """Count one request."""
        self._requests.labels(path, code).inc()
        self._seconds.labels(path).observe(seconds)
        self._bytes.labels(path, "in").inc(received)
        self._bytes.labels(path, "out").inc(sent)


class _Observed:
    """Logs and counts every request, by its route and how it ended."""

    def __init__(self, app: ASGIApp, counters: Sequence[Callable[..., None]], paths: set[str]) -> None:
        self._app, self._counters, self._paths = app, counters, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, received, sent, promised = time.perf_counter(), 0, 0, 0, 0

        async def reading() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def writing(message: Message) -> None:
            nonlocal status, sent, promised
            status = message.get("status", status)
            promised = int(dict(message.get("headers", ())).get(b"content-length", promised))
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, reading, writing)
        except ClientDisconnect:
            scope["code"] = "disconnected"
        except Exception as error:
            if status:
                raise
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            at = f"{where.tb_frame.f_code.co_qualname}:{where.tb_lineno}" if where else ""
            log.error("failure", extra={"fields": {"error": type(error).__name__, "at": at}})
            failed = Refused("internal", "the server failed; the request may be sent again")
            await _refusal(scope, failed)(scope, receive, writing)
        seconds = time.perf_counter() - began
        path = scope["path"] if scope["path"] in self._paths else "other"
        cut = status == 200 and sent < promised and scope["method"] != "HEAD"
        code = scope.get("code", "disconnected" if cut else "ok" if status < 400 else "other")
        for count in self._counters:
            count(path, code, seconds=seconds, received=received, sent=sent)
        fields = {"path": path, "status": status, "code": code, "ms": round(1000 * seconds, 1)}
        level = logging.DEBUG if path in ("/healthz", "/readyz", "/metrics") else logging.INFO
        log.log(level, "request", extra={"fields": fields | {"bytes_in": received, "bytes_out": sent}})


def _refusal(scope: Scope, error: Refused) -> Response:
    scope["code"] = error.code
    unread = error.code in ("too_long", "length_required", "too_slow")
    return Response(
        wire.encode_refusal(error.code, str(error)),
        status_code=REFUSALS[error.code][0],
        media_type="application/json",
        headers={"connection": "close"} if unread else None,
    )


async def _body(request: Request, most: int) -> bytes:
    """Read a body no longer than the terms allow; a longer one is refused before it is read."""
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
        raise Refused("length_required", "a request must say how long its body is")
    if int(length) > most:
        raise Refused("too_long", f"{int(length)} bytes, where the longest request has {most}")
    body = bytearray()
    try:
        with anyio.fail_after(_PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise Refused("too_long", f"more than {most} bytes, which the longest request has")
    except TimeoutError:
        raise Refused("too_slow", f"the body did not arrive within {_PATIENCE:.0f} seconds") from None
    return bytes(body)


class _Streamed(StreamingResponse):
    """A long answer, sent as it is made; a reader who takes too long for it is cut off, so that few hold much."""

    def __init__(self, reply: Reply, first: bytes, over: Callable[[], None]) -> None:
        length = {"content-length": str(reply.length)}
        super().__init__(chain([first], reply.parts), media_type=wire.MEDIA_TYPE, headers=length)
        self._seconds, self._over = _PATIENCE + reply.length / _SLOWEST_READER, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with anyio.move_on_after(self._seconds):
                await super().__call__(scope, receive, send)
        finally:
            self._over()


def _begun(ask: Callable[[bytes], Reply], body: bytes) -> tuple[Reply, bytes]:
    """Ask, and wait for the first part: what goes wrong before it can still be refused."""
    reply = ask(body)
    return reply, next(reply.parts)


def make_app(
    server: Server, *, origins: Sequence[str] = ("*",), peers: Sequence[str] = (), operator: Operator | None = None
) -> FastAPI:
    """Return the application of one server.

    `origins` are the web pages that may call it: any, since there are no cookies. `peers` are the addresses of all
    servers, which the applicant's page starts from. With an `operator` there is a page for the institution too.
    """
    app = FastAPI(title="Counterveil", version=SOFTWARE.split()[-1], description=__doc__, docs_url=None, redoc_url=None)
    manifest, most, metrics = wire.encode_manifest(server.manifest), server.longest, Metrics(server)
    binary = {"schema": {"type": "string", "format": "binary", "maxLength": most}}
    message = {
        "requestBody": {"required": True, "content": {wire.MEDIA_TYPE: binary}, "description": "See docs/wire.md."}
    }
    says = {"description": "The answer", "content": {wire.MEDIA_TYPE: binary}}
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": meaning, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, meaning in REFUSALS.values()
    }

    slots, under_way = anyio.Semaphore(_STREAMS), Counter[bytes]()
    limit = anyio.CapacityLimiter(cores())  # more answers computed at a time only get in each other's way

    async def answered(request: Request, ask: Callable[[bytes], Reply]) -> Response:
        try:
            body = await _body(request, most)
            which = hashlib.sha256(body).digest()
            with anyio.move_on_after(_QUEUE) as waited:
                await slots.acquire()
            if waited.cancelled_caught:
                raise Refused("busy", "the server sends as many answers as it can; come back")
            under_way[which] += 1

            def over() -> None:
                slots.release()
                under_way[which] -= 1
                if not under_way[which]:
                    del under_way[which]

            kept = False
            try:
                if under_way[which] > _SAME:
                    raise Refused("busy", "this very request is being answered; come back")
                reply, first = await anyio.to_thread.run_sync(_begun, ask, body, limiter=limit)
                kept = len(first) < reply.length
            finally:
                if not kept:
                    over()
            if kept:
                return _Streamed(reply, first, over)
            return Response(first, media_type=wire.MEDIA_TYPE)
        except Refused as error:
            return _refusal(request.scope, error)
        except InvalidInput as error:
            return _refusal(request.scope, Refused("malformed", str(error)))

    @app.get("/v1/manifest", summary="Terms, and which server this is", responses={200: {"description": "JSON"}})
    async def manifest_route() -> Response:
        return Response(manifest, media_type="application/json")

    @app.post("/v1/answer", summary="Answer a question", openapi_extra=message, responses={200: says, **refusals})
    async def answer_route(request: Request) -> Response:
        return await answered(request, server.answer)

    @app.post("/v1/record", summary="Answer a record step", openapi_extra=message, responses={200: says, **refusals})
    async def record_route(request: Request) -> Response:
        return await answered(request, server.record)

    @app.get("/healthz", summary="Whether the process runs", response_class=PlainTextResponse)
    async def health_route() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get(
        "/readyz",
        summary="Whether it can answer",
        response_class=PlainTextResponse,
        responses={503: {"description": "the ledger is out of reach"}},
    )
    async def ready_route(request: Request) -> Response:
        try:
            await run_in_threadpool(server.ledger.check)
        except Refused as error:
            return _refusal(request.scope, error)
        return Response("ready\n", media_type="text/plain")

    @app.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
    async def metrics_route() -> Response:
        text = await run_in_threadpool(prometheus_client.generate_latest, metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @app.get("/", summary="The applicant's page", response_class=Response, include_in_schema=False)
    async def page_route() -> Response:
        return Response(page.page(peers), media_type="text/html", headers=_PAGE_HEADERS)

    @app.get("/counterveil.html", summary="The page in one file", response_class=Response, include_in_schema=False)
    async def single_route() -> Response:
        return Response(page.single_file(peers), media_type="text/html", headers=_PAGE_HEADERS | _KEEP)

    if operator is not None:

        @app.get("/operator", response_class=Response, include_in_schema=False)
        async def operator_route() -> Response:
            return Response(page.operator_page(), media_type="text/html", headers=_PAGE_HEADERS)

        @app.get("/operator/status", response_class=Response, include_in_schema=False)
        async def status_route(request: Request) -> Response:
            if not operator.admits(request.headers.get("authorization", "")):
                return Response(status_code=401, headers={"www-authenticate": "Bearer"})
            status = await run_in_threadpool(operator.status)
            return Response(
                msgspec.json.encode(status), media_type="application/json", headers={"cache-control": "no-store"}
            )

    for name, (content, kind) in page.assets().items():
        app.add_api_route(
            f"/web/{name}", partial(_asset, content, kind), include_in_schema=False, response_class=Response
        )

    paths = {route.path for route in app.routes if hasattr(route, "path")}
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"])
    app.add_middleware(_Observed, counters=[metrics.count, *([operator.count] if operator else [])], paths=paths)
    return app


_PAGE_HEADERS = {
    "content-security-policy": page.POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_KEEP = {"content-disposition": 'attachment; filename="counterveil.html"'}


async def _asset(content: bytes, kind: str) -> Response:
    return Response(
        content, media_type=kind, headers={"x-content-type-options": "nosniff", "cache-control": "no-cache"}
    )


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        entry |= {"event": record.getMessage()} | getattr(record, "fields", {})
        return msgspec.json.encode(entry).decode()


def serve(
    app: FastAPI,
    about: dict[str, Any],
    *,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_level: str,
) -> None:
    """Run until told to stop; then finish what is under way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("counterveil", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(log_level.upper())
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ssl_certfile=None if tls_cert is None else str(tls_cert),
        ssl_keyfile=None if tls_key is None else str(tls_key),
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=30,
    )
    log.info("serving", extra={"fields": about})
    uvicorn.Server(config).run()
