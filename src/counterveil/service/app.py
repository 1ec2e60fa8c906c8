"""A server over HTTP: routes, logs and metrics. The protocol itself is in `server` and `desk`.

Security: logs and metrics hold nothing of a question, an answer or a ticket, and no address of a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InvalidInput, Refused
from ..terms import wire
from . import page
from .dashboard import Operator
from .desk import Desk
from .ledger import AnyLedger
from .link.hub import Links
from .listening import serve as serve
from .metrics import Metrics
from .server import SOFTWARE, Server
from .together import Together

log = logging.getLogger("counterveil")

REFUSALS = {  # every code of a refusal, with its HTTP status and its meaning
    "malformed": (400, "not a message of this protocol, or not one for this place"),
    "ticket_forged": (401, "the ticket is forged"),
    "ticket_not_offered": (403, "the ticket is for more than is offered"),
    "ticket_for_other_servers": (403, "the ticket is for other servers"),
    "ticket_for_another_service": (403, "the ticket is for another service"),
    "too_slow": (408, "the body did not arrive in time"),
    "ticket_used": (409, "the ticket was used for another request"),
    "question_first": (409, "a record was asked for before its question"),
    "attempt_first": (409, "the attempt before was not given up"),
    "attempt_over": (409, "the attempt was given up; the next may begin"),
    "ticket_expired": (410, "the ticket has expired"),
    "length_required": (411, "no Content-Length"),
    "other_terms": (412, "the request was made for other terms"),
    "other_key": (412, "the request was made for another common key"),
    "too_long": (413, "a longer body than any request has"),
    "too_often": (429, "the request was sent again too often"),
    "wrong_server": (421, "the message is for another server"),
    "internal": (500, "the server failed"),
    "not_ready": (503, "the ledger cannot be written"),
    "busy": (503, "too many answers are on their way"),
    "peer_unreachable": (503, "the other server cannot be reached, or did not get its part"),
    "attempt_held": (503, "the attempt is complete here, and may not be at the other server"),
}
_FRESH = 1.0  # seconds for which a check of the ledger counts
_PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")  # headers that a proxy adds
_LOCAL = ("127.0.0.1", "::1", "localhost")


class _Observed:
    """Logs and counts every request, by its route and by how it ended."""

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


class _Answer(Response):
    """A response that reads the request's body and computes its answer only when it is sent."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except Refused as error:
            await _refusal(scope, error)(scope, receive, send)
        except InvalidInput as error:
            await _refusal(scope, Refused("malformed", str(error)))(scope, receive, send)


class _Readiness:
    """Whether the ledger can be written. It is checked at most once a second, however often clients ask."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger, self._lock = ledger, anyio.Lock()
        self._known, self._until = None, 0.0

    _known: Refused | None

    async def check(self) -> None:
        """Refuse unless the ledger could be written at the last check."""
        async with self._lock:
            if time.monotonic() > self._until:
                try:
                    await run_in_threadpool(self._ledger.check)
                    self._known = None
                except Refused as error:
                    self._known = error
                self._until = time.monotonic() + _FRESH
        if self._known is not None:
            raise Refused(self._known.code, str(self._known))


class _CrossOrigin:
    """Lets web pages from other origins call the routes under /v1/, and no others."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._shared = CORSMiddleware(app, allow_origins=list(origins), allow_methods=["GET", "POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (self._shared if shared else self._app)(scope, receive, send)


def make_app(
    server: Server,
    *,
    origins: Sequence[str] = ("*",),
    operator: Operator | None = None,
    together: Together | None = None,
) -> FastAPI:
    """Return the application of one server.

    `origins` are those whose web pages may call the server. Any may, by default, since there are no cookies. With an
    `operator` there is a page for the institution too. `together` links it to other servers.
    """
    app = FastAPI(title="Counterveil", version=SOFTWARE.split()[-1], description=__doc__, docs_url=None, redoc_url=None)
    metrics = Metrics(server, together)
    _add_protocol(app, server, together)
    if together is not None:
        _add_link(app, together.links)
        _add_status(app, together)
    _add_health(app, server)
    _add_metrics(app, metrics, operator)
    _add_page(app, server)
    if operator is not None:
        _add_operator(app, operator)
    paths = {route.path for route in app.routes if hasattr(route, "path")}
    if origins:
        app.add_middleware(_CrossOrigin, origins=origins)
    app.add_middleware(_Observed, counters=[metrics.count, *([operator.count] if operator else [])], paths=paths)
    return app


def _add_protocol(app: FastAPI, server: Server, together: Together | None) -> None:
    manifest, desk = wire.encode_manifest(server.manifest), Desk(server, together)
    binary = {"schema": {"type": "string", "format": "binary", "maxLength": server.longest}}
    message = {
        "requestBody": {"required": True, "content": {wire.MEDIA_TYPE: binary}, "description": "See docs/wire.md."}
    }
    says = {"description": "The answer", "content": {wire.MEDIA_TYPE: binary}}
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": meaning, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, meaning in REFUSALS.values()
    }

    @app.get(wire.MANIFEST_PATH, summary="Terms, and which server this is", responses={200: {"description": "JSON"}})
    async def manifest_route() -> Response:
        return Response(manifest, media_type="application/json")

    @app.post(wire.ANSWER_PATH, summary="Answer a question", openapi_extra=message, responses={200: says, **refusals})
    async def answer_route() -> Response:
        return _Answer(partial(desk.serve, "query"))

    @app.post(
        wire.RECORD_PATH, summary="Answer a record step", openapi_extra=message, responses={200: says, **refusals}
    )
    async def record_route() -> Response:
        return _Answer(partial(desk.serve, "record-query"))

    @app.post(
        wire.ATTEMPT_PATH,
        summary="Answer a question together with another server, or collect the answer",
        openapi_extra=message,
        responses={200: says, **refusals},
    )
    async def attempt_route() -> Response:
        return _Answer(desk.serve_attempt)


def _add_link(app: FastAPI, links: Links) -> None:
    """Add the link to other servers, which is kept up while the application runs."""

    @asynccontextmanager
    async def linked(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(links.run)
            yield
            await links.close()

    app.router.lifespan_context = linked
    app.router.routes.append(WebSocketRoute(wire.LINK_PATH, links.accept))


def _add_status(app: FastAPI, together: Together) -> None:
    @app.get(wire.LINK_PATH, summary="Which servers this one is linked to", responses={200: {"description": "JSON"}})
    async def linked_route() -> Response:
        return Response(msgspec.json.encode(together.status()), media_type="application/json")


def _add_health(app: FastAPI, server: Server) -> None:
    readiness = _Readiness(server.ledger)

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
            await readiness.check()
        except Refused as error:
            return _refusal(request.scope, error)
        return Response("ready\n", media_type="text/plain")


def _add_metrics(app: FastAPI, metrics: Metrics, operator: Operator | None) -> None:
    """Add the metrics, for this machine and the operator only, since counts over time tell who asked when."""
    closed: dict[int | str, dict[str, Any]] = {
        401: {"description": "no token of the operator's"},
        403: {"description": "not from this machine"},
    }

    @app.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse, responses=closed)
    async def metrics_route(request: Request) -> Response:
        if not _is_local(request):
            if operator is None:
                return Response("for this machine only\n", status_code=403, media_type="text/plain")
            if not operator.admits(request.headers.get("authorization", "")):
                return _unauthorized()
        text = await run_in_threadpool(prometheus_client.generate_latest, metrics.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


def _is_local(request: Request) -> bool:
    """Say whether a request comes from a program on this machine that asks for itself.

    A proxy on this machine asks for others, but it adds headers that say so. A web page in a browser on this machine
    may ask for others too (DNS rebinding). Then the Host header has another name than this machine's.
    """
    named = request.headers.get("host", "")
    host = named.rpartition(":")[0] if named.rpartition(":")[2].isdigit() else named
    proxied = any(name in request.headers for name in _PROXIED)
    return request.client is not None and request.client.host in _LOCAL and host.strip("[]") in _LOCAL and not proxied


def _unauthorized() -> Response:
    return Response(status_code=401, headers={"www-authenticate": "Bearer"})


def _add_page(app: FastAPI, server: Server) -> None:
    about = server.manifest.issued, server.number, server.epoch.deployment.scheme.rebuilt_after
    applicants, single = page.page(*about).encode(), page.single_file(*about).encode()
    headers = _PAGE_HEADERS | {"content-security-policy": page.policy(server.manifest.issued)}

    @app.get("/", summary="The applicant's page", response_class=Response, include_in_schema=False)
    async def page_route() -> Response:
        return Response(applicants, media_type="text/html", headers=headers)

    @app.get("/counterveil.html", summary="The page in one file", response_class=Response, include_in_schema=False)
    async def single_route() -> Response:
        return Response(single, media_type="text/html", headers=headers | _KEEP)

    for name, (content, kind) in page.assets().items():
        app.add_api_route(
            f"/web/{name}", partial(_asset, content, kind), include_in_schema=False, response_class=Response
        )


def _add_operator(app: FastAPI, operator: Operator) -> None:
    @app.get("/operator", response_class=Response, include_in_schema=False)
    async def operator_route() -> Response:
        own = {"content-security-policy": page.operator_policy()}
        return Response(page.operator_page(), media_type="text/html", headers=_PAGE_HEADERS | own)

    @app.get("/operator/status", response_class=Response, include_in_schema=False)
    async def status_route(request: Request) -> Response:
        if not operator.admits(request.headers.get("authorization", "")):
            return _unauthorized()
        status = await run_in_threadpool(operator.status)
        return Response(
            msgspec.json.encode(status), media_type="application/json", headers={"cache-control": "no-store"}
        )


_PAGE_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
_KEEP = {"content-disposition": 'attachment; filename="counterveil.html"'}


async def _asset(content: bytes, kind: str) -> Response:
    return Response(
        content, media_type=kind, headers={"x-content-type-options": "nosniff", "cache-control": "no-cache"}
    )
