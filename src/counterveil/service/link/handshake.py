"""Agree on keys with a peer that proves who it is: a signed Diffie-Hellman exchange, without input or output.

Each side says hello (version, service, number, boot id, a fresh X25519 key), and then proves itself: it signs both
hellos and its own role with its own Ed25519 key. The other side checks that with the key that the terms pin for the
number. Both derive one ChaCha20-Poly1305 key for each direction, and seal every frame with a counter as the nonce. The
dialler goes first, the listener second; last, the listener seals an empty message, which says that it accepts.

Security: hellos are public; they carry no secret. A man in the middle can pass messages on, and sees sealed frames.
If he alters a hello, the two sides sign different bytes, and neither accepts; to put in a key of his own he would have
to sign. A replayed hello or proof is of no use, since every proof covers the fresh key of the side that checks it. A
reflected hello names the receiver's own number and is refused; a reflected proof was signed for the other role. Both
numbers are signed, so neither side can be made to take the other for a third. Keys of past channels are gone with
their processes' memory, and a signing key that leaks later opens none of them. Within a channel, a frame that is
altered, left out, repeated, moved or sent back fails to open under the next nonce, and the channel ends. The servers'
common key plays no part: each of them has it, so it cannot tell one from another. The digest of the terms plays no
part either: terms may change while a channel stands, and every run names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from ...crypto.keys import SIGNATURE_BYTES, SigningKey, is_signed
from ...crypto.randomness import delimited
from ...errors import Malformed
from ...terms.wire import MOST_SERVERS, Bytes32, Id, Service

VERSION: Final = 1  # of the link
DEALER = 0  # the number of a dealer; servers count from 1
TAG_BYTES = 16  # that sealing adds
_NONCE = 12  # bytes

Role = Literal["dialler", "listener"]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a party says of itself, unproven. Nothing of it is secret."""

    version: Literal[1]
    service: Service
    number: Annotated[int, Meta(ge=0, le=MOST_SERVERS)]
    boot: Id  # drawn once by each process
    key: Bytes32  # X25519, drawn for this channel


class Party(msgspec.Struct, frozen=True):
    """Who one is, and whom one talks to."""

    number: int
    boot: bytes
    own: SigningKey
    service: str
    pinned: Mapping[int, bytes]  # number to public key, from the terms


def named(number: int) -> str:
    """Return a party in words."""
    return "the dealer" if number == DEALER else f"server {number}"


class Handshake:
    """One side of one exchange: send `hello`, then what `prove` returns; then `finish` returns the channel's keys."""

    def __init__(self, party: Party, role: Role) -> None:
        self._party, self._role = party, role
        self._private = X25519PrivateKey.generate()
        key = self._private.public_key().public_bytes_raw()
        self.hello = msgspec.msgpack.encode(Hello(VERSION, party.service, party.number, party.boot, key))

    def prove(self, hello: bytes) -> bytes:
        """Check the peer's hello; return the proof that this side is who it says."""
        self.peer = self._checked(hello)
        both = (self.hello, hello) if self._role == "dialler" else (hello, self.hello)
        self._transcript = both
        return self._party.own.sign("link", self._role.encode(), *both)

    def finish(self, proof: bytes) -> Seals:
        """Check the peer's proof; return the keys of the channel."""
        theirs: Role = "listener" if self._role == "dialler" else "dialler"
        public = self._party.pinned[self.peer.number]
        if len(proof) != SIGNATURE_BYTES or not is_signed(public, proof, "link", theirs.encode(), *self._transcript):
            whose = named(self.peer.number)
            raise Malformed("proof", got="another signature", expected=f"one by the key that the terms pin for {whose}")
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(self.peer.key))
        except ValueError:  # a point of small order: the secret would be known to all
            raise Malformed("hello", got="a key that gives no secret", expected="an X25519 key") from None
        digest = Hash(SHA256())
        digest.update(delimited(self._transcript))
        keys = HKDF(SHA256(), 64, salt=digest.finalize(), info=delimited(["counterveil link", VERSION])).derive(shared)
        first, second = keys[:32], keys[32:]  # the first is for what the dialler sends
        return Seals(first, second) if self._role == "dialler" else Seals(second, first)

    def _checked(self, data: bytes) -> Hello:
        try:
            hello = msgspec.msgpack.decode(data, type=Hello)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Malformed("hello", got="something else", expected=f"a hello of version {VERSION}") from None
        if msgspec.msgpack.encode(hello) != data:
            raise Malformed("hello", got="another encoding", expected="the shortest MessagePack there is")
        if hello.service != self._party.service:
            raise Malformed("hello", got="another service", expected=self._party.service)
        if hello.number == self._party.number:
            raise Malformed("hello", got=f"this side's own number, {hello.number}", expected="another party")
        if hello.number not in self._party.pinned:
            raise Malformed("hello", got=f"the number {hello.number}", expected="a party that the terms pin")
        return hello


class Seals:
    """The two keys of a channel: one seals what leaves, the other opens what arrives, each in its order."""

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending, self._receiving = ChaCha20Poly1305(sending), ChaCha20Poly1305(receiving)
        self._sent = self._received = 0

    def seal(self, data: bytes) -> bytes:
        """Seal the next frame."""
        sealed = self._sending.encrypt(self._sent.to_bytes(_NONCE, "little"), data, None)
        self._sent += 1
        return sealed

    def open(self, sealed: bytes) -> bytes:
        """Open the next frame; refuse one that the peer did not send as the next."""
        try:
            data = self._receiving.decrypt(self._received.to_bytes(_NONCE, "little"), sealed, None)
        except InvalidTag:
            raise Malformed("frame", got="one that does not open", expected="the next that the peer sealed") from None
        self._received += 1
        return data
