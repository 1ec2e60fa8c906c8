"""What the tests of ledgers share: a clock that is set by hand, and entries in few words."""

from __future__ import annotations

from counterveil.errors import Refused
from counterveil.service.ledger import AnyLedger, Entry, Key, Standing

A, B = b"a" * 32, b"b" * 32
LATER = 2**40


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def spend(
    ledger: AnyLedger, ticket: bytes, request: int = 0, proof: bytes = A, expires: int = LATER, holder: bytes = b""
) -> Standing:
    """Enter a request of a protocol whose servers do not talk to each other."""
    return ledger.perform(Entry(Key(ticket, request=request), "spent", proof, expires, holder=holder))


def code(
    ledger: AnyLedger, ticket: bytes, request: int, proof: bytes, expires: int = LATER, holder: bytes = b""
) -> str:
    """Enter a request; return "ok", or why it is refused."""
    try:
        spend(ledger, ticket, request, proof, expires, holder)
    except Refused as error:
        return error.code
    return "ok"
