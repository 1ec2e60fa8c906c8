"""Take the bytes of a reply as they arrive, and check them. No byte is trusted before that."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from ..errors import Malformed, ServerFault
from ..terms import wire
from ..terms.wire import Reply


class Incoming:
    """A reply that arrives: first the head, which must be exactly the expected one, then the body.

    When a connection breaks, the same request is sent again and the same bytes come again from the start. Bytes of
    the body that were taken before are then skipped.
    """

    def __init__(self, right: Reply, length: int, *, keep: bool) -> None:
        self._right, self._head, self.length = right, wire.head(right, length), length
        self._kept: bytearray | None = bytearray() if keep else None
        self.taken, self._seen = 0, 0
        self._other: bytearray | None = None  # all bytes of a reply whose head is not the expected one

    def begin(self) -> None:
        """Expect the first byte of the reply next."""
        self._seen, self._other = 0, None

    def take(self, data: bytes) -> bytes:
        """Take the next bytes; return those of the body that were not taken before."""
        if self._other is not None:
            self._other += data
            return b""
        start, self._seen = self._seen, self._seen + len(data)
        head = self._head[start : start + len(data)]
        if data[: len(head)] != head:
            self._other = bytearray(self._head[:start] + data)
            return b""
        known = self.taken - max(0, start - len(self._head))
        fresh = data[len(head) + known :][: self.length - self.taken]
        self.taken += len(fresh)
        if self._kept is not None:
            self._kept += fresh
        return fresh

    def checked(self, name: str) -> bytes:
        """Return the body (empty unless `keep`), or raise an error that says what is wrong with the reply."""
        if self._other is not None or self._seen < len(self._head):
            self._refuse(name, bytes(self._head[: self._seen] if self._other is None else self._other))
        if self._seen != len(self._head) + self.length:
            got = self._seen - len(self._head)
            raise ServerFault(name, f"answer: got {got} bytes, expected {self.length}")
        return bytes(self._kept or b"")

    def reply(self, body: bytes) -> Reply:
        """Return the reply, with its body."""
        return msgspec.structs.replace(self._right, body=body)

    def _refuse(self, name: str, content: bytes) -> NoReturn:
        try:
            answer = wire.decode_reply(content, self._right.kind)
        except Malformed as error:
            raise ServerFault(name, str(error)) from None
        if msgspec.structs.replace(answer, body=b"") != self._right:
            raise ServerFault(name, f"answers for another server or question than server {self._right.server}'s")
        raise ServerFault(name, f"answer: got {len(answer.body)} bytes, expected {self.length}")
