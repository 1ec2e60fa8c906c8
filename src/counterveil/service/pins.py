"""The public keys of servers, over all terms that are served together. Linked servers must prove to have them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidTerms
from ..terms.wire import SignedTerms
from .link.handshake import DEALER


def pinned_by(terms: Sequence[SignedTerms]) -> dict[int, bytes]:
    """Return the public key of every server, and of the dealing server; refuse terms that name two keys for one."""
    pinned: dict[int, bytes] = {}
    for issued in terms:
        keys = [(DEALER, issued.terms.dealer), *enumerate(issued.terms.keys, start=1)]
        for number, key in keys:
            if isinstance(key, str) and pinned.setdefault(number, bytes.fromhex(key)) != bytes.fromhex(key):
                got, who = "two keys", "the dealing server" if number == DEALER else f"server {number}"
                raise InvalidTerms("terms", got=f"{got} for {who}", expected="one key over all terms served together")
    return pinned
