"""Tickets, requests and replies, as `wire` reads and writes them; and the paths and limits that belong to them."""

from __future__ import annotations

import base64
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..crypto.randomness import ID_BYTES
from .parameters import MOST_RECORDS, MOST_SERVERS, Server

VERSION: Final = 2  # of messages, tickets and terms, and of how servers derive randomness from their common key
MEDIA_TYPE = "application/octet-stream"
MANIFEST_PATH, ANSWER_PATH, RECORD_PATH, ATTEMPT_PATH = "/v1/manifest", "/v1/answer", "/v1/record", "/v1/attempt"
LINK_PATH, MANIFESTS_PATH = "/v1/link", "/v1/manifests"
MOST_ROBUST = 5  # wrong answers; the applicant finds them by trying every set of this many servers
ENVELOPE = 1024  # bytes: the most that a message has before its body
MANIFEST_LIMIT = 4 << 20  # bytes; a schema of thousands of features fits
MOST_OFFERS: Final = 16  # manifests that a server shows at a time, one for each of its terms and each common key
MANIFESTS_LIMIT = MOST_OFFERS << 20  # bytes of all of them

Servers = Annotated[tuple[Server, ...], Meta(min_length=1, max_length=MOST_SERVERS)]
Time = Annotated[int, Meta(ge=0, lt=1 << 53)]  # seconds since 1970; a JavaScript number holds it exactly
Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Hex16 = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
Service = Annotated[str, Meta(pattern="^[A-Za-z0-9._:/-]{1,64}$")]
RequestKind = Literal["query", "record-query", "attempt", "collect"]
ReplyKind = Literal["answer", "record-answer", "attempt-answer"]
ROUTES: Final[dict[RequestKind, tuple[str, ReplyKind]]] = {  # where each kind of request goes, and what comes back
    "query": (ANSWER_PATH, "answer"),
    "record-query": (RECORD_PATH, "record-answer"),
    "attempt": (ATTEMPT_PATH, "attempt-answer"),
    "collect": (ATTEMPT_PATH, "attempt-answer"),
}


class Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a ticket allows: one question and k records, once, at each of these servers of a service.

    A ticket that names no servers is for the first ones of whatever terms it is used with, as many as are needed.
    """

    version: Literal[2]
    id: Id
    expires: Time
    service: Service
    servers: Annotated[tuple[Server, ...], Meta(max_length=MOST_SERVERS)]  # ascending; none: the first of the terms
    reveal: Annotated[str, Meta(max_length=100)]  # what may be revealed: see `Parameters.reveal`
    robust: Annotated[int, Meta(ge=0, le=MOST_ROBUST)]  # how many wrong answers the applicant can correct
    k: Annotated[int, Meta(ge=1, le=MOST_RECORDS)]


class PackedTicket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A ticket's bytes: its claims as bytes, and the signature of these."""

    claims: bytes
    signature: Annotated[bytes, Meta(max_length=64)]


class Ticket(msgspec.Struct, frozen=True):
    """A ticket: its claims, the bytes that they were read from, and the issuer's signature of these bytes.

    Security: whoever has a ticket may use it, so it is never logged.
    """

    claims: Claims
    signed: bytes
    signature: bytes  # empty in open mode

    def encode(self) -> bytes:
        """Return the ticket's bytes, as a message carries them."""
        return msgspec.msgpack.encode(PackedTicket(self.signed, self.signature))

    def text(self) -> str:
        """Return the ticket as text that can be mailed, typed into a form or put in a file."""
        return base64.urlsafe_b64encode(self.encode()).decode().rstrip("=")


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an applicant sends: a share of a question, or of the position of a record.

    Servers that talk to each other get an attempt instead: a share of the question, and their randomness if the
    applicant deals it. A "collect" asks for the reply to an attempt, or for its end, and has no body.

    Security: the applicant draws a new `secret` for each question and server. Nobody else can send the same bytes, so
    nobody else can find out whether the applicant sent them (rule 13).
    """

    version: Literal[2]
    kind: RequestKind
    server: Server  # the receiver
    terms: Bytes32  # digest of the terms that the request was made for
    key: Id  # id of the servers' common key, as their manifests showed it
    ticket: Annotated[bytes, Meta(max_length=512)]
    request: Annotated[int, Meta(ge=0, le=MOST_RECORDS)]  # 0: the question; 1..k: a record; or an attempt's number
    among: Servers  # all servers that get a share of this request
    secret: Bytes32
    body: bytes


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a server sends back. It names the request that it answers, and repeats nothing secret of that request."""

    version: Literal[2]
    kind: ReplyKind
    server: Server  # the sender
    ticket: Id
    request: Annotated[int, Meta(ge=0, le=MOST_RECORDS)]
    among: Servers
    body: bytes
