"""Turn messages into bytes and back: the only parser of bytes from the network. `docs/wire.md` is its specification.

A byte is trusted only after a function here has checked it. A message has exactly one encoding, so two messages are
equal if and only if their bytes are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from functools import cache, cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..crypto.randomness import delimited
from ..errors import Malformed
from ..schema.languages import Text, check_languages, in_english
from ..schema.layouts import RecordKind
from .addresses import Address, canonical
from .messages import ANSWER_PATH as ANSWER_PATH
from .messages import ATTEMPT_PATH as ATTEMPT_PATH
from .messages import ENVELOPE as ENVELOPE
from .messages import LINK_PATH as LINK_PATH
from .messages import MANIFEST_LIMIT as MANIFEST_LIMIT
from .messages import MANIFEST_PATH as MANIFEST_PATH
from .messages import MANIFESTS_LIMIT as MANIFESTS_LIMIT
from .messages import MANIFESTS_PATH as MANIFESTS_PATH
from .messages import MEDIA_TYPE as MEDIA_TYPE
from .messages import MOST_OFFERS as MOST_OFFERS
from .messages import MOST_ROBUST as MOST_ROBUST
from .messages import RECORD_PATH as RECORD_PATH
from .messages import ROUTES as ROUTES
from .messages import VERSION as VERSION
from .messages import Bytes32 as Bytes32
from .messages import Claims as Claims
from .messages import Hex16 as Hex16
from .messages import Hex32 as Hex32
from .messages import Hex64 as Hex64
from .messages import Id as Id
from .messages import PackedTicket as PackedTicket
from .messages import Reply as Reply
from .messages import ReplyKind as ReplyKind
from .messages import Request as Request
from .messages import RequestKind as RequestKind
from .messages import Servers as Servers
from .messages import Service as Service
from .messages import Ticket as Ticket
from .messages import Time as Time
from .parameters import MOST_RECORDS as MOST_RECORDS
from .parameters import MOST_SERVERS as MOST_SERVERS
from .parameters import Parameters as Parameters
from .parameters import Server as Server
from .symbols import pack as pack
from .symbols import unpack as unpack
from .texts import is_plain

# MessagePack's type byte of binary data, to the bytes of the length after it. MessagePack knows no length of 4 GiB or
# more. A body that long, which is always sent part by part, has the type byte that MessagePack never uses.
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC1: 8}
_BODIES = re.compile(b"[\xc1\xc4-\xc6]")  # where a body may begin


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
    rows: Annotated[int, Meta(ge=1, lt=1 << 32)]
    record: RecordKind
    database: Hex32  # the bundle's digest
    packages: Hex32  # of all its packages, or of the digests of its parts: a server with another file does not start
    issuer: Hex32  # public key; its owner signs tickets, records and these terms
    keys: Annotated[tuple[Hex32, ...], Meta(min_length=1, max_length=MOST_SERVERS)]  # each server's own public key
    tickets: Literal["signed", "open"]
    window: Annotated[int, Meta(ge=0, lt=1 << 32)]  # open mode: seconds within which an applicant's ticket must expire
    robust: Annotated[int, Meta(ge=0, le=MOST_ROBUST)]  # the most that `robust` of a ticket may be
    dealer: Hex32 | msgspec.UnsetType = msgspec.UNSET  # the dealing server's own public key; absent where there is none
    begins: Time | msgspec.UnsetType = msgspec.UNSET  # clients take the terms that begin last; absent: before all
    ends: Time | msgspec.UnsetType = msgspec.UNSET  # when servers stop to show these terms; absent: they have no end

    def text(self) -> str:
        """Return the terms as JSON. Equal terms give equal text."""
        return msgspec.json.encode(self, order="deterministic").decode()


class SignedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A terms file: the terms, the address of each server, who runs it if that is said, and the issuer's signature.

    The terms travel as text, so that everybody hashes the same bytes. A change of address or name does not change their
    digest.
    """

    text: Annotated[str, Meta(max_length=MANIFEST_LIMIT)] = msgspec.field(name="terms")
    addresses: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=MOST_SERVERS)]
    signature: Hex64
    names: tuple[Text, ...] | msgspec.UnsetType = msgspec.UNSET  # of those who run the servers, in order

    def __hash__(self) -> int:
        return hash((self.text, self.addresses, self.signature))  # a table of names has none; the signature covers it

    @cached_property
    def terms(self) -> Terms:
        """The terms, parsed from the text."""
        return _from_json("terms", self.text.encode(), Terms)

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the terms. Requests carry it, and the servers' common randomness depends on it (rule 4)."""
        return hashlib.sha256(self.text.encode()).digest()

    def signed(self) -> tuple[bytes, ...]:
        """Return the parts that the issuer signs. Names are signed as JSON, a table with its languages in order."""
        names = () if self.names is msgspec.UNSET else self.names
        written = [msgspec.json.encode(name, order="deterministic") for name in names]
        return self.digest, delimited(self.addresses), *([delimited(written)] if written else [])

    def name(self, number: int) -> str:
        """Return who runs a server, in English; nothing if the terms do not say."""
        return "" if self.names is msgspec.UNSET else in_english(self.names[number - 1])


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
    """Return what stands before binary data of this length."""
    tag, size = next((tag, size) for tag, size in _BINARY.items() if length < 1 << 8 * size)
    return bytes([tag]) + length.to_bytes(size, "big")


def decode_request(data: bytes, *kinds: RequestKind) -> Request:
    """Read a request of one of these kinds."""
    return _checked(_unpacked("message", data, Request), *kinds)


def decode_head(data: bytes, length: int, *kinds: RequestKind) -> tuple[Request, int]:
    """Read the head of a request of `length` bytes; return the request with an empty body, and the head's length.

    `data` are the first `ENVELOPE` bytes, or all if there are fewer. The body comes last, so a server can refuse the
    request before the body has arrived.
    """
    for found in _BODIES.finditer(data[:ENVELOPE]):
        at = found.start()
        start = at + 1 + _BINARY[data[at]]
        body = length - start
        if body != int.from_bytes(data[at + 1 : start], "big") or data[at:start] != _binary(body):
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
    outer = _unpacked("ticket", data, PackedTicket)
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


def decode_manifests(data: bytes) -> list[Manifest]:
    """Read the list of a server's manifests; `agreement` checks their signatures."""
    try:
        texts = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("manifests", got=_said(error), expected="a list") from None
    if len(texts) > MOST_OFFERS:
        raise Malformed("manifests", got=f"{len(texts)}", expected=f"at most {MOST_OFFERS}")
    return [decode_manifest(bytes(text)) for text in texts]


def _with_terms(signed: SignedTerms) -> SignedTerms:
    terms = signed.terms
    if not len(terms.keys) == len(signed.addresses) == terms.parameters.servers:
        got = f"{len(terms.keys)} keys and {len(signed.addresses)} addresses"
        raise Malformed("terms", got=got, expected=f"one of each for {terms.parameters.servers} servers")
    if any(canonical(address) != address for address in signed.addresses):
        raise Malformed("terms", got="an address in another form", expected="lower case, without default ports")
    if len({*terms.keys, terms.dealer}) <= len(terms.keys) or len(set(signed.addresses)) < len(signed.addresses):
        raise Malformed("terms", got="one key or address twice", expected="each server's own")
    if signed.names is not msgspec.UNSET:
        _check_names(signed.names, len(signed.addresses))
    return signed


def _check_names(names: tuple[Text, ...], servers: int) -> None:
    """Refuse names that do not tell the servers apart: whoever runs two of them can read questions."""
    if len(names) != servers:
        raise Malformed("names", got=f"{len(names)} of them", expected=f"one for each of {servers} servers")
    try:
        for name in names:
            check_languages("names", name)
    except ValueError as error:
        raise Malformed("names", got=str(error), expected="short texts") from None
    if "" in names or len({*map(in_english, names)}) < servers:
        raise Malformed("names", got="none, or one twice", expected="each server's own: two parties must run them")


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
        read: Struct = _decoder(kind).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(what, got=_said(error), expected=f"a {what} of version {VERSION}") from None
    if msgspec.msgpack.encode(read) != data:
        raise Malformed(what, got="another encoding of the same", expected="the shortest MessagePack there is")
    return read


@cache
def _decoder(kind: type[Struct]) -> msgspec.msgpack.Decoder[Struct]:
    return msgspec.msgpack.Decoder(kind)


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
