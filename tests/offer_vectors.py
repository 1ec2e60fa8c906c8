"""The vectors of offers: what two servers show, and which of it a client takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from counterveil.crypto.keys import SigningKey
from counterveil.terms import wire
from counterveil.terms.wire import Manifest, SignedTerms

_BEGINS = 1_750_000_000


def offers(issued: Callable[..., SignedTerms], own: Callable[[int], SigningKey]) -> list[dict[str, Any]]:
    """Return cases: the arrays that two servers show, and the digest and the key of the newest offer in common."""
    first, second, third = issued(), issued(begins=_BEGINS), issued(begins=_BEGINS + 1, ends=_BEGINS + 2)
    old, new = "11" * 16, "22" * 16

    def shown(server: int, *held: tuple[SignedTerms, str]) -> list[Any]:
        return [json.loads(wire.encode_manifest(_signed(server, each, key))) for each, key in held]

    def _signed(server: int, each: SignedTerms, key: str) -> Manifest:
        bare = Manifest(server, key, f"{server:02x}" * 16, "", each)
        return msgspec.structs.replace(bare, signature=own(server).sign("manifest", *bare.signed()).hex())

    cases: list[tuple[str, Any, Any, Any]] = [
        ("the same terms and key", [(first, old)], [(first, old)], (first, old)),
        ("server 2 has no new terms yet", [(first, old), (third, old)], [(first, old)], (first, old)),
        ("both have both", [(first, old), (second, old)], [(first, old), (second, old)], (second, old)),
        ("terms without a time are the oldest", [(second, old)], [(first, old), (second, old)], (second, old)),
        ("the highest time counts, not the order", [(third, old), (second, old)], [(second, old), (third, old)],
         (third, old)),
        ("server 2 has no new key yet", [(first, old), (first, new)], [(first, old)], (first, old)),
        ("server 1 prefers the new key", [(first, old), (first, new)], [(first, new), (first, old)], (first, new)),
        ("newer terms count before a newer key", [(first, new), (second, old)], [(first, new), (second, old)],
         (second, old)),
        ("nothing in common: terms", [(first, old)], [(second, old)], None),
        ("nothing in common: key", [(first, old)], [(first, new)], None),
        ("terms of one and key of the other are no offer", [(first, old), (second, new)], [(first, new), (second, old)],
         None),
    ]  # fmt: skip
    return [
        {
            "why": why,
            "servers": [shown(1, *one), shown(2, *two)],
            "newest": None if taken is None else {"terms": taken[0].digest.hex(), "key": taken[1]},
        }
        for why, one, two, taken in cases
    ]
