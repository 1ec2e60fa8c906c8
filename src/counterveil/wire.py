"""Messages to bytes and back: the only parser of what comes from the network. `docs/wire.md` is its specification.

Every byte is hostile until a function here has returned. A message has exactly one encoding, so what was read can be
compared by its bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import unicodedata
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from .arrays import Vector
from .errors import Malformed
from .field import Residues
from .records import RecordKind
from .reveals import Symbols
from .words import packed

VERSION = 1
MEDIA_TYPE = "application/octet-stream"
ID_BYTES = 16
MOST_SERVERS = 64
MOST_RECORDS = 255
MOST_LIARS = 5  # finding them tries every set of so many servers
ENVELOPE = 1024  # bytes that a message has at most around its body
MANIFEST_LIMIT = 4 << 20  # bytes; a schema of thousands of features fits
_BLOCK = 1 << 16  # symbols packed at a time
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # bidirectional overrides

Server = Annotated[int, Meta(ge=1, le=MOST_SERVERS)]
Servers = Annotated[tuple[Server, ...], Meta(min_length=1, max_length=MOST_SERVERS)]
Time = Annotated[int, Meta(ge=0, lt=1 << 53)]  # seconds since 1970, as exact in JavaScript as here
Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Kind = Literal["query", "answer", "record-query", "record-answer"]


class Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a ticket says: it answers one question and k records, once, at each of these servers."""

    version: Literal[1]
    id: Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
    expires: Time
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]  # of the terms it is for
    servers: Servers  # ascending
    liars: Annotated[int, Meta(ge=0, le=MOST_LIARS)]  # wrong answers to be corrected
    k: Annotated[int, Meta(ge=1, le=MOST_RECORDS)]


class _Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    claims: bytes
    signature: Annotated[bytes, Meta(max_length=64)]


class Ticket(msgspec.Struct, frozen=True):
    """A ticket as it was read: its claims, the bytes they were read from, and the issuer's signature of those.

    Security: a bearer's. Whoever holds it may use it, so it is never logged.
    """

    claims: Claims
    signed: bytes
    signature: bytes  # empty in open mode

    def encode(self) -> bytes:
        """Return the ticket's bytes, as they go into a message."""
        return msgspec.msgpack.encode(_Ticket(self.signed, self.signature))

    def text(self) -> str:
        """Return the ticket as text that can be mailed, typed into a form or put in a file."""
        return base64.urlsafe_b64encode(self.encode()).decode().rstrip("=")


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The one envelope, for queries and answers, of questions and of records."""

    version: Literal[1]
    kind: Kind
    server: Server  # to whom it goes, or from whom it comes
    ticket: Annotated[bytes, Meta(max_length=512)]  # the ticket; in an answer its id
    request: Annotated[int, Meta(ge=0, le=MOST_RECORDS)]  # 0: the question; 1..k: a record
    among: Servers  # all servers that get this request
    body: bytes


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the institution chose; `Deployment.of` takes the same names."""

    scheme: Annotated[str, Meta(max_length=100)]
    servers: Server
    collusion: Server
    k: Annotated[int, Meta(ge=1, le=MOST_RECORDS)]
    max_weight: Annotated[int, Meta(ge=1, lt=1 << 53)]
    shuffle: bool
    d_min: Annotated[int, Meta(ge=1, lt=1 << 53)]
    norm: Annotated[int, Meta(ge=2, le=64)]


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is public and the same at every server. It counts rows, which sizes tell anyway, and no people."""

    version: Literal["counterveil/1"]
    schema: dict[str, Any]
    parameters: Parameters
    q: Annotated[str, Meta(pattern="^[1-9][0-9]{0,18}$")]  # decimal digits: JavaScript would round a number
    alphas: tuple[Annotated[int, Meta(ge=0, lt=1 << 53)], ...]
    rows: Annotated[int, Meta(ge=1, lt=1 << 28)]
    record: RecordKind
    database: Hex32  # the bundle's digest
    signer: Hex32  # whose signatures the records carry
    tickets: Literal["signed", "open"]
    issuer: Hex32 | None  # whose tickets are taken; none in open mode
    window: Annotated[int, Meta(ge=0, lt=1 << 32)]  # open mode: a self-made ticket must expire within so many seconds
    robust: Annotated[int, Meta(ge=0, le=MOST_LIARS)]  # the most wrong answers that a ticket may ask to be corrected

    def digest(self) -> bytes:
        """Return the SHA-256 that tickets and common randomness are bound to (rule 4)."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).digest()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server says of itself."""

    server: Server
    key: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]  # the key id: equal where the servers hold the same common key
    digest: Hex32
    software: Annotated[str, Meta(max_length=100)]
    terms: Terms


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a server did not answer."""

    code: Annotated[str, Meta(max_length=100)]
    message: Annotated[str, Meta(max_length=1000)]


Struct = TypeVar("Struct", bound=msgspec.Struct)


def encode(message: Message) -> bytes:
    """Return a message's bytes."""
    return msgspec.msgpack.encode(message)


def head(message: Message, length: int) -> bytes:
    """Return what stands before a body of so many bytes: the message can be sent, and read, part by part."""
    bare = msgspec.msgpack.encode(msgspec.structs.replace(message, body=b""))
    size = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4
    return bare[:-2] + bytes([{1: 0xC4, 2: 0xC5, 4: 0xC6}[size]]) + length.to_bytes(size, "big")


def decode(data: bytes, kind: Kind) -> Message:
    """Read a message of that kind."""
    message = _unpacked("message", data, Message)
    if message.kind != kind:
        raise Malformed("message", got=f"the kind {message.kind}", expected=kind)
    _check_ascending("message", message.among)
    return message


def encode_claims(claims: Claims) -> bytes:
    """Return the bytes of claims, which the issuer signs."""
    return msgspec.msgpack.encode(claims)


def decode_ticket(data: bytes) -> Ticket:
    """Read a ticket; whether it is any good is for `tickets` to say."""
    outer = _unpacked("ticket", data, _Ticket)
    claims = _unpacked("ticket", outer.claims, Claims)
    _check_ascending("ticket", claims.servers)
    return Ticket(claims, outer.claims, outer.signature)


def decode_ticket_text(text: str) -> Ticket:
    """Read a ticket as `Ticket.text` writes it."""
    try:
        data = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise Malformed("ticket", got="text that is not a ticket", expected="letters, digits, - and _") from None
    return decode_ticket(data)


def check_terms(terms: Terms) -> Terms:
    """Refuse terms that no client could read."""
    return _from_json("terms", msgspec.json.encode(terms), Terms)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest."""
    return _from_json("manifest", data, Manifest)


def encode_refusal(code: str, message: str) -> bytes:
    """Return a refusal as JSON."""
    return msgspec.json.encode(Refusal(code, message[:1000]))


def decode_refusal(data: bytes) -> Refusal:
    """Read a refusal."""
    return _from_json("refusal", data, Refusal)


def pack(field: Residues, values: Symbols) -> bytes:
    """Return a vector at ⌈log2 q⌉ bits a symbol: each symbol's bits, and each byte's, from the least significant up."""
    return values.tobytes() if values.dtype == np.uint8 and field.bits == 8 else packed(values, field.bits)


def unpack(what: str, field: Residues, data: bytes, count: int) -> Vector:
    """Read a vector of `count` symbols; refuse another length, a symbol of q or more, a bit set after the last."""
    expected = field.packed(count)
    if len(data) != expected:
        raise Malformed(what, got=f"{len(data)} bytes", expected=f"{expected}: {count} symbols of {field.bits} bits")
    values = np.zeros(count, dtype=np.int64)
    step = _BLOCK * field.bits // 8
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        chunk = np.frombuffer(data, dtype=np.uint8)[start // _BLOCK * step :][:step]
        bits = np.unpackbits(chunk, bitorder="little")
        if bits[size * field.bits :].any():
            raise Malformed(what, got="bits set after the last symbol", expected="zeros")
        padded = np.zeros((size, 64), dtype=np.uint8)
        padded[:, : field.bits] = bits[: size * field.bits].reshape(size, field.bits)
        values[start : start + size] = np.packbits(padded, axis=1, bitorder="little").view("<u8").reshape(-1)
    if values.size and int(values.max()) >= field.q:
        raise Malformed(what, got="a symbol of q or more", expected=f"symbols below {field.q}")
    return values


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
        if not _is_plain(msgspec.to_builtins(read)):
            raise Malformed(what, got="control characters", expected="plain text")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(what, got=_said(error), expected=f"JSON of version {VERSION}") from None
    return read


def _is_plain(value: Any) -> bool:
    """Say whether all text in it can be shown: nothing that moves a cursor, clears a screen or turns text around."""
    if isinstance(value, str):
        return not any(unicodedata.category(c) == "Cc" or c in _TURNS for c in value)
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    return not isinstance(value, list | tuple) or all(map(_is_plain, value))


def _said(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _check_ascending(what: str, servers: tuple[int, ...]) -> None:
    if list(servers) != sorted(set(servers)):
        raise Malformed(what, got=f"servers {list(servers)}", expected="each once, in ascending order")
