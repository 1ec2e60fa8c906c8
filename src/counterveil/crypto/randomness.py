"""Where protocol randomness comes from: the applicant's pads, and the servers' common randomness.

Only this module imports `secrets`. Uniform numbers are drawn by rejection from a cryptographic byte stream (rule 2).
What the servers share is derived from their key and from everything that describes its use (rule 4).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ..algebra.arrays import Bytes, Order, Vector
from ..algebra.words import below, order_of
from ..errors import WrongType

VERSION = b"counterveil/2"
BLOCK = 4096  # elements that one substream gives
KEY_BYTES = 32
ID_BYTES = 16

_WORD = 8  # bytes
_DRAWN = 7  # bytes of a word that `octets` draws, so that the bound still fits a signed word


def delimited(parts: Iterable[bytes | str | int]) -> bytes:
    """Encode parts one after the other, each behind its length; numbers as their digits.

    Two different sequences of byte strings never have the same encoding.

    >>> delimited([b"ab", "c"]) == delimited([b"a", "bc"])
    False
    """
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in raw)


def uniform(read: Callable[[int], bytes], q: int, count: int, in_all: int = 0) -> Vector:
    """Draw `count` integers uniform on [0:q-1]: the first accepted among masked little-endian 8-byte words.

    The j-th result depends on the stream alone, not on how much of it is read at a time. `in_all` is how many the
    caller draws altogether; many are drawn by machine code.
    """
    mask = (1 << (q - 1).bit_length()) - 1
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < count:
        missing = count - drawn.size
        words = missing * (mask + 1) // q
        words += words // 16 + 8
        accepted = below(np.frombuffer(read(_WORD * words), dtype="<u8"), mask, q, in_all)
        drawn = np.concatenate([drawn, accepted]) if drawn.size else accepted
    return drawn[:count]


def keystream(key: bytes, block: int = 0) -> Callable[[int], bytes]:
    """Return a reader of the AES-256-CTR key stream of `key`, from this block of 16 bytes on."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
    return lambda count: encryptor.update(bytes(count))


def new_key() -> bytes:
    """Return a fresh 256-bit key, for the servers' common randomness or for one record's package."""
    return secrets.token_bytes(KEY_BYTES)


def new_id() -> bytes:
    """Return a fresh 128-bit identifier, for a ticket or a ledger."""
    return secrets.token_bytes(ID_BYTES)


def key_id(key: bytes) -> bytes:
    """Return an identifier of a common key. It is equal for equal keys, and tells nothing about the key."""
    return hmac.new(key, delimited([VERSION, "key id"]), hashlib.sha256).digest()[:ID_BYTES]


class Randomness(Protocol):
    """The applicant's source of pads. Tests pass one that enumerates all pads."""

    def elements(self, q: int, count: int) -> Vector: ...


class Fresh:
    """Pads from the operating system's generator, never the same twice."""

    def elements(self, q: int, count: int) -> Vector:
        """Draw `count` integers uniform on [0:q-1]."""
        return uniform(secrets.token_bytes, q, count)


def octets(draw: Randomness, count: int) -> Bytes:
    """Draw uniform bytes, seven from each integer below 2^56."""
    drawn = draw.elements(1 << 8 * _DRAWN, -(-count // _DRAWN)).astype("<i8", copy=False)
    return drawn.view(np.uint8).reshape(-1, _WORD)[:, :_DRAWN].reshape(-1)[:count]


class CommonRandomness(Protocol):
    """The randomness that the servers of one ticket share. Tests pass one that enumerates it."""

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector: ...
    def order(self, count: int) -> Order: ...


class Streams(CommonRandomness, Protocol):
    """Common randomness that can also be read as bytes."""

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Callable[[int], bytes]: ...


class Common:
    """Common randomness of the servers that answer one ticket, the same at each of them (rules 3 and 4).

    If `ticket` is None, the randomness belongs to no ticket, and differs from that of every ticket.

    Security: `key` is known to the servers alone; whoever holds it and an answer can undo every pad.
    """

    def __init__(self, key: bytes, *, digest: bytes, ticket: bytes | None, servers: Iterable[int]) -> None:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise WrongType("common key", got="something else", expected=f"{KEY_BYTES} bytes")
        if not isinstance(digest, bytes) or not (ticket is None or (isinstance(ticket, bytes) and ticket)):
            raise WrongType("digest and ticket", got="something else", expected="bytes, and None for no ticket")
        claims = [] if ticket is None else [ticket]
        situation = delimited([VERSION, digest, *claims, delimited(servers)])
        self._mac = hmac.new(key, situation, hashlib.sha256)
        self._order: Order | None = None

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Callable[[int], bytes]:
        """Return the byte stream of one block of one coefficient of one request for one purpose."""
        mac = self._mac.copy()
        mac.update(delimited([purpose, request, coefficient, block]))
        return keystream(mac.digest())

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        """Draw `count` integers uniform on [0:q-1], one substream for every 4096 of them."""
        drawn = np.empty(count, dtype=np.int64)
        for start in range(0, count, BLOCK):
            stream = self.substream(purpose, request, coefficient, start // BLOCK)
            drawn[start : start + BLOCK] = uniform(stream, q, min(BLOCK, count - start), in_all=count)
        return drawn

    def order(self, count: int) -> Order:
        """Return the ticket's secret order: position p holds row order[p]. It is a stable sort of 128-bit keys.

        It is cached, because the question and the record requests of a ticket need the same order.
        """
        if self._order is None or len(self._order) != count:
            self._order = self._drawn(count)
            self._order.setflags(write=False)
        return self._order

    def _drawn(self, count: int) -> Order:
        keys = np.empty((count, 2), dtype="<u8")
        for start in range(0, count, BLOCK):
            rows = min(BLOCK, count - start)
            raw = self.substream("order", 0, 0, start // BLOCK)(16 * rows)
            keys[start : start + rows] = np.frombuffer(raw, dtype="<u8").reshape(rows, 2)
        return order_of(keys)
