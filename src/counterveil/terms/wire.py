"""Turn messages into bytes and back: the only parser of bytes from the network. `docs/wire.md` is its specification.

A byte is trusted only after a function here has checked it. A message has exactly one encoding, so two messages are
equal if and only if their bytes are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..crypto.randomness import ID_BYTES, delimited
from ..errors import Malformed
from ..schema.layouts import RecordKind
from .addresses import Address, canonical
from .parameters import MOST_RECORDS as MOST_RECORDS
from .parameters import MOST_SERVERS as MOST_SERVERS
from .parameters import Parameters as Parameters
from .parameters import Server as Server
from .symbols import pack as pack
from .symbols import unpack as unpack
from .texts import is_plain

VERSION: Final = 2  # of messages, tickets and terms, and of how servers derive randomness from their common key
MEDIA_TYPE = "application/octet-stream"
MANIFEST_PATH, ANSWER_PATH, RECORD_PATH, ATTEMPT_PATH = "/v1/manifest", "/v1/answer", "/v1/record", "/v1/attempt"
LINK_PATH = "/v1/link"
MOST_ROBUST = 5  # wrong answers; the applicant finds them by trying every set of this many servers
ENVELOPE = 1024  # bytes: the most that a message has before its body
MANIFEST_LIMIT = 4 << 20  # bytes; a schema of thousands of features fits
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # MessagePack's type byte of binary data, to the bytes of the length after it

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
    """What a ticket allows: one question and k records, once, at each of these servers of a service."""

    version: Literal[2]
    id: Id
    expires: Time
    service: Service
    servers: Servers  # ascending
    reveal: Annotated[str, Meta(max_length=100)]  # what may be revealed: see `Parameters.reveal`
    robust: Annotated[int, Meta(ge=0, le=MOST_ROBUST)]  # how many wrong answers the applicant can correct
    k: Annotated[int, Meta(ge=1, le=MOST_RECORDS)]


class _Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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
        return msgspec.msgpack.encode(_Ticket(self.signed, self.signature))

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


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that is public and the same at every server.

    Security: the number of rows is public because the length of an answer shows it. The number of people is not here.
    """

    version: Literal["counterveil/2"]
    service: Service  # tickets name it; it stays the same when the data, the parameters or the addresses change
    schema: dict[str, Any]
    parameters: Parameters
    q: Annotated[str, Meta(pattern="^[1-9][0-9]{0,18}$")]  # as text, because JavaScript would round a large number
    alphas: tuple[Annotated[int, Meta(ge=0, lt=1 << 53)], ...]
    rows: Annotated[int, Meta(ge=1, lt=1 << 28)]
    record: RecordKind
    database: Hex32  # the bundle's digest
    packages: Hex32  # the SHA-256 of all its packages: a server with another file refuses to start
    issuer: Hex32  # public key; its owner signs tickets, records and these terms
    keys: Annotated[tuple[Hex32, ...], Meta(min_length=1, max_length=MOST_SERVERS)]  # each server's own public key
    tickets: Literal["signed", "open"]
    window: Annotated[int, Meta(ge=0, lt=1 << 32)]  # open mode: seconds within which an applicant's ticket must expire
    robust: Annotated[int, Meta(ge=0, le=MOST_ROBUST)]  # the most that `robust` of a ticket may be
    dealer: Hex32 | msgspec.UnsetType = msgspec.UNSET  # the dealing server's own public key; absent where there is none

    def text(self) -> str:
        """Return the terms as JSON. Equal terms give equal text."""
        return msgspec.json.encode(self, order="deterministic").decode()


class SignedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A terms file: the terms, the address of each server, and the issuer's signature of both.

    The terms travel as text, so that everybody hashes the same bytes. A change of address does not change their digest.
    """

    text: Annotated[str, Meta(max_length=MANIFEST_LIMIT)] = msgspec.field(name="terms")
    addresses: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=MOST_SERVERS)]
    signature: Hex64

    @cached_property
    def terms(self) -> Terms:
        """The terms, parsed from the text."""
        return _from_json("terms", self.text.encode(), Terms)

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the terms. Requests carry it, and the servers' common randomness depends on it (rule 4)."""
        return hashlib.sha256(self.text.encode()).digest()

    def signed(self) -> tuple[bytes, bytes]:
        """Return the parts that the issuer signs."""
        return self.digest, delimited(self.addresses)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server says of itself, with its own signature."""

    server: Server
    key: Hex16  # id of the common key: equal at all servers that have the same key
    instance: Hex16  # id of the ledger: equal at all processes of this server
    software: Annotated[str, Meta(max_length=100)]
    issued: SignedTerms
    signature: Hex64 = "0" * 128

    @property
    def terms(self) -> Terms:
        """The terms that the issuer signed."""
        return self.issued.terms

    def signed(self) -> tuple[bytes, ...]:
        """Return the parts that the server signs: everything but the signature itself."""
        said = (str(self.server), self.key, self.instance, self.software, self.issued.signature)
        return (*(text.encode() for text in said), *self.issued.signed())


class Linked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server that another one is linked to, and how long a message to it and back takes; 0 is the dealing server."""

    server: Annotated[int, Meta(ge=0, le=MOST_SERVERS)]
    connections: Annotated[int, Meta(ge=0, lt=1 << 32)]
    milliseconds: Annotated[float, Meta(ge=0, lt=1e9)] | None
    tapes: Annotated[int, Meta(ge=0, lt=1 << 32)] | None  # for questions with it, or all for 0; None if no server deals


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a server did not answer."""

    code: Annotated[str, Meta(max_length=100)]
    message: Annotated[str, Meta(max_length=1000)]


Struct = TypeVar("Struct", bound=msgspec.Struct)
Envelope = TypeVar("Envelope", Request, Reply)


def encode(message: Request | Reply) -> bytes:
    """Return a message's bytes."""
    return msgspec.msgpack.encode(message)


def head(message: Request | Reply, length: int) -> bytes:
    """Return the bytes before a body of this length, so that the body can be sent part by part."""
    bare = msgspec.msgpack.encode(msgspec.structs.replace(message, body=b""))
    return bare[: -len(_binary(0))] + _binary(length)


def _binary(length: int) -> bytes:
    """Return what MessagePack writes before binary data of this length."""
    size = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    return bytes([{1: 0xC4, 2: 0xC5, 4: 0xC6}[size]]) + length.to_bytes(size, "big")


def decode_request(data: bytes, *kinds: RequestKind) -> Request:
    """Read a request of one of these kinds."""
    return _checked(_unpacked("message", data, Request), *kinds)


def decode_head(data: bytes, length: int, *kinds: RequestKind) -> tuple[Request, int]:
    """Read the head of a request of `length` bytes; return the request with an empty body, and the head's length.

    `data` are the first `ENVELOPE` bytes, or all if there are fewer. The body comes last, so a server can refuse the
    request before the body has arrived.
    """
    for at, byte in enumerate(data[:ENVELOPE]):
        size = _BINARY.get(byte, 0)
        start = at + 1 + size
        body = int.from_bytes(data[at + 1 : start], "big")
        if not size or start + body != length or data[at:start] != _binary(body):
            continue
        try:
            return decode_request(data[:at] + _binary(0), *kinds), start
        except Malformed:
            if start >= len(data):
                raise
    decode_request(data[:length], *kinds)  # raises an error that says what is wrong
    raise Malformed("message", got="a body of another length", expected="as many bytes as were announced")


def decode_reply(data: bytes, kind: ReplyKind) -> Reply:
    """Read a reply of that kind."""
    return _checked(_unpacked("message", data, Reply), kind)


def _checked(message: Envelope, *kinds: str) -> Envelope:
    if message.kind not in kinds:
        raise Malformed("message", got=f"the kind {message.kind}", expected=" or ".join(kinds))
    _check_ascending("message", message.among)
    return message


def encode_claims(claims: Claims) -> bytes:
    """Return the bytes of claims. The issuer signs these bytes."""
    return msgspec.msgpack.encode(claims)


def decode_ticket(data: bytes) -> Ticket:
    """Read a ticket; `tickets.verify` decides whether it is valid."""
    outer = _unpacked("ticket", data, _Ticket)
    claims = _unpacked("ticket", outer.claims, Claims)
    _check_ascending("ticket", claims.servers)
    return Ticket(claims, outer.claims, outer.signature)


def decode_ticket_text(text: str) -> Ticket:
    """Read a ticket from text that `Ticket.text` wrote."""
    try:
        data = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise Malformed("ticket", got="text that is not a ticket", expected="letters, digits, - and _") from None
    return decode_ticket(data)


def check_terms(terms: Terms) -> Terms:
    """Refuse terms that no client could read."""
    return _from_json("terms", terms.text().encode(), Terms)


def encode_terms(signed: SignedTerms) -> bytes:
    """Return a terms file."""
    return msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n"


def decode_terms(data: bytes) -> SignedTerms:
    """Read a terms file; `published.check_terms` checks its signature."""
    return _with_terms(_from_json("terms file", data, SignedTerms))


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest; `agreement` checks its signatures."""
    manifest = _from_json("manifest", data, Manifest)
    _with_terms(manifest.issued)
    return manifest


def _with_terms(signed: SignedTerms) -> SignedTerms:
    terms = signed.terms
    if not len(terms.keys) == len(signed.addresses) == terms.parameters.servers:
        got = f"{len(terms.keys)} keys and {len(signed.addresses)} addresses"
        raise Malformed("terms", got=got, expected=f"one of each for {terms.parameters.servers} servers")
    if any(canonical(address) != address for address in signed.addresses):
        raise Malformed("terms", got="an address in another form", expected="lower case, without default ports")
    if len({*terms.keys, terms.dealer}) <= len(terms.keys) or len(set(signed.addresses)) < len(signed.addresses):
        raise Malformed("terms", got="one key or address twice", expected="each server's own")
    return signed


def encode_refusal(code: str, message: str) -> bytes:
    """Return a refusal as JSON."""
    return msgspec.json.encode(Refusal(code, message[:1000]))


def decode_refusal(data: bytes) -> Refusal:
    """Read a refusal."""
    return _from_json("refusal", data, Refusal)


def decode_linked(data: bytes) -> list[Linked]:
    """Read what a server says of its links."""
    try:
        return msgspec.json.decode(data, type=list[Linked])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("link", got=_said(error), expected="a list of servers") from None


def _unpacked(what: str, data: bytes, kind: type[Struct]) -> Struct:
    try:
        read = msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(what, got=_said(error), expected=f"a {what} of version {VERSION}") from None
    if msgspec.msgpack.encode(read) != data:
        raise Malformed(what, got="another encoding of the same", expected="the shortest MessagePack there is")
    return read


def _from_json(what: str, data: bytes, kind: type[Struct]) -> Struct:
    try:
        read = msgspec.json.decode(data, type=kind)
        if not is_plain(msgspec.to_builtins(read)):
            raise Malformed(what, got="control characters, or a text without end", expected="plain text")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(what, got=_said(error), expected=f"JSON of version {VERSION}") from None
    return read


def _said(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _check_ascending(what: str, servers: tuple[int, ...]) -> None:
    if list(servers) != sorted(set(servers)):
        raise Malformed(what, got=f"servers {list(servers)}", expected="each once, in ascending order")
