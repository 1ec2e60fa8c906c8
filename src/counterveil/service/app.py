"""A server over HTTP: routes, logs and metrics. The protocol itself is in `server` and `desk`.

Security: logs and metrics hold nothing of a question, an answer or a ticket, and no address of a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

import anyio
import msgspec
import prometheus_client
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import InvalidInput, Refused
from ..terms import wire
from . import page
from .dashboard import Operator
from .desk import Desk
from .family import Family
from .layers import REFUSALS as REFUSALS
from .layers import CrossOrigin, Observed, Straight, refusal
from .ledger import AnyLedger
from .link.hub import Links
from .listening import serve as serve
from .metrics import Metrics
from .server import SOFTWARE, Server
from .spans import Trace, untraced
from .together import Together

log = logging.getLogger("counterveil")

_FRESH = 1.0  # seconds for which a check of the ledger counts, and the count of open connections
_PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")  # headers that a proxy adds
_LOCAL = ("127.0.0.1", "::1", "localhost")


class _Answer:
    """An application that serves requests, and says why it refuses one."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except Refused as error:
            await refusal(scope, error)(scope, receive, send)
        except InvalidInput as error:
            await refusal(scope, Refused("malformed", str(error)))(scope, receive, send)


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


def make_app(
    server: Server,
    *,
    origins: Sequence[str] = ("*",),
    operator: Operator | None = None,
    together: Together | None = None,
    family: Family | None = None,
    metrics: Metrics | None = None,
    trace: Trace = untraced,
) -> FastAPI:
    """Return the application of one server.

    `origins` are those whose web pages may call the server. Any may, by default, since there are no cookies. With an
    `operator` there is a page for the institution too. `together` links it to other servers. In a `family`, limits and
    counts are those of all its processes together. `trace` gets the parts of every request.
    """
    app = FastAPI(title="Counterveil", version=SOFTWARE.split()[-1], description=__doc__, docs_url=None, redoc_url=None)
    metrics = metrics or Metrics(server, together, family)
    metrics.expect((wire.ANSWER_PATH, wire.RECORD_PATH, wire.ATTEMPT_PATH), ("ok", *REFUSALS))
    desk = Desk(server, together, 1 if family is None else family.place.workers, trace)
    posts = _add_protocol(app, desk, server)
    if together is not None:
        _add_link(app, together.links, metrics)
        _add_status(app, together)
        if operator is not None:
            operator.connections = metrics.connections
    _add_health(app, server)
    _add_metrics(app, metrics, operator)
    _add_page(app, server)
    if operator is not None:
        _add_operator(app, operator)
    paths = {route.path for route in app.routes if hasattr(route, "path")}
    app.add_middleware(Straight, posts=posts)
    if origins:
        app.add_middleware(CrossOrigin, origins=origins)
    counters: list[Callable[..., None]] = [metrics.count, *([operator.count] if operator else [])]
    app.add_middleware(Observed, counters=counters, paths=paths, trace=trace)
    return app


def _add_protocol(app: FastAPI, desk: Desk, server: Server) -> dict[str, ASGIApp]:
    """Add the routes of the protocol; return what answers a POST to each."""
    said = cache(wire.encode_manifest)
    binary = {"schema": {"type": "string", "format": "binary", "maxLength": server.longest}}
    message = {
        "requestBody": {"required": True, "content": {wire.MEDIA_TYPE: binary}, "description": "See docs/wire.md."}
    }
    says = {"description": "The answer", "content": {wire.MEDIA_TYPE: binary}}
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": meaning, "content": {"application/json": {"schema": {"type": "object"}}}}
        for status, meaning in REFUSALS.values()
    }

    posts: dict[str, ASGIApp] = {
        wire.ANSWER_PATH: _Answer(partial(desk.serve, "query")),
        wire.RECORD_PATH: _Answer(partial(desk.serve, "record-query")),
        wire.ATTEMPT_PATH: _Answer(desk.serve_attempt),
    }

    @app.get(wire.MANIFEST_PATH, summary="Terms, and which server this is", responses={200: {"description": "JSON"}})
    async def manifest_route() -> Response:
        return Response(said(server.manifest), media_type="application/json")

    @app.get(wire.MANIFESTS_PATH, summary="All manifests, the newest last", responses={200: {"description": "JSON"}})
    async def manifests_route() -> Response:
        manifests = [said(offer.manifest) for offer in server.offers.shown()]
        return Response(b"[" + b",".join(manifests) + b"]", media_type="application/json")

    @app.post(wire.ANSWER_PATH, summary="Answer a question", openapi_extra=message, responses={200: says, **refusals})
    async def answer_route() -> Response:
        raise AssertionError("`Straight` takes these requests")

    @app.post(
        wire.RECORD_PATH, summary="Answer a record step", openapi_extra=message, responses={200: says, **refusals}
    )
    async def record_route() -> Response:
        raise AssertionError("`Straight` takes these requests")

    @app.post(
        wire.ATTEMPT_PATH,
        summary="Answer a question together with another server, or collect the answer",
        openapi_extra=message,
        responses={200: says, **refusals},
    )
    async def attempt_route() -> Response:
        raise AssertionError("`Straight` takes these requests")

    return posts


def _add_link(app: FastAPI, links: Links, metrics: Metrics | None = None) -> None:
    """Add the link to other servers, which is kept up while the application runs."""

    async def refresh(metrics: Metrics) -> None:  # other processes read it, and only this one can write it
        while True:
            metrics.refresh()
            await anyio.sleep(_FRESH)

    @asynccontextmanager
    async def linked(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(links.run)
            if metrics is not None:
                tasks.start_soon(refresh, metrics)
            yield
            await links.close()
            tasks.cancel_scope.cancel()

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
            return refusal(request.scope, error)
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
        text = await run_in_threadpool(metrics.text)
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
    rebuilt_after = server.epoch.deployment.scheme.rebuilt_after
    about = server.manifest.issued, server.number, rebuilt_after
    applicants, single = page.page(*about).encode(), page.single_file(*about).encode()
    addresses = {address for epoch in server.offers.epochs for address in epoch.issued.addresses}
    headers = _PAGE_HEADERS | {"content-security-policy": page.policy(addresses)}

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
