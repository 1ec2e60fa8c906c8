"""What every request passes before it is served: it is counted and logged, and refusals become responses.

Security: logs and metrics hold nothing of a question, an answer or a ticket, and no address of a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from fastapi import Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import Refused
from ..terms import wire
from .spans import Trace, untraced

log = logging.getLogger("counterveil")

_QUIET = ("/healthz", "/readyz", "/metrics")  # asked all the time, by machines
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
    "not_ready": (503, "the ledger cannot be written, or a part of the rows is not there now"),
    "busy": (503, "too many answers are on their way"),
    "peer_unreachable": (503, "the other server cannot be reached, or did not get its part"),
    "attempt_held": (503, "the attempt is complete here, and may not be at the other server"),
}


class Observed:
    """Logs, counts and traces every request, by its route and by how it ended."""

    def __init__(self, app: ASGIApp, counters: Sequence[Callable[..., None]], paths: set[str], trace: Trace) -> None:
        self._app, self._counters, self._paths, self._trace = app, counters, paths, trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with (untraced if scope["path"] in _QUIET else self._trace)("request") as note:
            note(await self._observe(scope, receive, send))

    async def _observe(self, scope: Scope, receive: Receive, send: Send) -> dict[str, str | int]:
        """Pass a request on; return what may be told of it."""
        began, status, received, sent, promised = time.perf_counter(), 0, 0, 0, 0

        async def reading() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def writing(message: Message) -> None:
            nonlocal status, sent, promised
            if message["type"] == "http.response.start":
                status = message["status"]
                promised = next((int(value) for name, value in message["headers"] if name == b"content-length"), 0)
            else:
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
            await refusal(scope, failed)(scope, receive, writing)
        seconds = time.perf_counter() - began
        path = scope["path"] if scope["path"] in self._paths else "other"
        cut = status == 200 and sent < promised and scope["method"] != "HEAD"
        code = scope.get("code", "disconnected" if cut else "ok" if status < 400 else "other")
        for count in self._counters:
            count(path, code, seconds=seconds, received=received, sent=sent)
        fields = {"path": path, "status": status, "code": code, "bytes_in": received, "bytes_out": sent}
        level = logging.DEBUG if path in _QUIET else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "request", extra={"fields": fields | {"ms": round(1000 * seconds, 1)}})
        return fields


def refusal(scope: Scope, error: Refused) -> Response:
    """Return a refusal. If the client is at fault, its connection ends, so that others are served before it again.

    It must end also where a body was not read, because what follows cannot be told from it, and where the terms or the
    key were others, because another process here may have newer ones.
    """
    scope["code"], status = error.code, REFUSALS[error.code][0]
    headers = {"connection": "close"} if status < 500 else None
    said = wire.encode_refusal(error.code, str(error))
    return Response(said, status_code=status, media_type="application/json", headers=headers)


class Straight:
    """Takes requests of the protocol straight to the desk. The routes beside it describe them, and refuse others."""

    def __init__(self, app: ASGIApp, posts: Mapping[str, ASGIApp]) -> None:
        self._app, self._posts = app, posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        straight = scope["type"] == "http" and scope["method"] == "POST"
        await (self._posts.get(scope["path"], self._app) if straight else self._app)(scope, receive, send)


class CrossOrigin:
    """Lets web pages from other origins call the routes under /v1/, and no others."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._shared = CORSMiddleware(app, allow_origins=list(origins), allow_methods=["GET", "POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shared = scope["type"] == "http" and scope["path"].startswith("/v1/")
        if shared and scope["method"] == "POST":  # no cache keeps an answer, so whom it is for need not be said
            shared = any(name == b"origin" for name, _ in scope["headers"])
        await (self._shared if shared else self._app)(scope, receive, send)
