"""Play all parties of the protocol joint in one process, and count what they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from counterveil import Question, Scheme, make_scheme
from counterveil.algebra.arrays import Bytes, Order, Vector
from counterveil.crypto.randomness import Fresh, Streams, new_key
from counterveil.engine import as_rows, hold
from counterveil.engine.party import Party, Role, Send, play, released
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Held, Size, make_protocol
from counterveil.schemes.protocols.packed import PROFILES

__all__ = ["DEALERS", "PROFILES", "Messages", "Pad", "asked", "numbered", "tabled", "with_joint"]

DEALERS = ("applicant", "server")


def numbered(count: int) -> Bytes:
    """Return records that contain the number of their row."""
    return np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)


def with_joint(scheme: Scheme, **options: Any) -> Scheme:
    """Return the same scheme by joint with these options."""
    return Scheme.of(scheme.form, scheme.reveal, make_protocol("joint", **options))


def tabled(bits: int, largest: int = 255, **options: Any) -> Scheme:
    """Return a scheme with one feature, by default of 256 levels, whose costs take any value of `bits` bits."""
    made = make_scheme("table/sealed", largest=largest, d=1, cap=(1 << bits) - 1, protocol="joint")
    scheme = with_joint(made, **options)
    assert scheme.field.bits == bits
    return scheme


class Messages:
    """The messages that are sent to one role."""

    def __init__(self, to: Role) -> None:
        self.to, self.parts, self.sources = to, list[bytes](), list[Role]()

    def __call__(self, role: Role, send: Send) -> None:
        if send.to == self.to:
            self.parts.append(send.symbols.tobytes())
            self.sources.append(role)


class Pad:
    """Common randomness whose pads are given, by the number of the record."""

    def __init__(self, *pads: Any) -> None:
        self.pads = pads

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        assert (purpose, q) == ("joint", 256)
        return np.broadcast_to(np.asarray(self.pads[coefficient], dtype=np.int64), (count,))

    def order(self, count: int) -> Order:
        raise AssertionError("rows stand in their own order")

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Callable[[int], bytes]:
        raise AssertionError("only pads are drawn")


def asked(
    scheme: Scheme,
    rows: Any,
    question: Question,
    records: Bytes,
    *,
    k: int = 1,
    deal: Party[None] | None = None,
    ask: Party[Any] | None = None,
    common: Streams | None = None,
    watch: Callable[[Role, Send], None] | None = None,
) -> tuple[list[bytes], Counter[tuple[Role, Role]], int]:
    """Play all parties for k records; return the records, the sizes of all messages, and the number of rounds.

    If they are given, `deal` plays the dealer, `ask` the applicant, and `watch` sees every message.
    """
    size, sizes, rounds = Size(len(rows), records.shape[1], k), Counter[tuple[Role, Role]](), Counter[Role]()
    shared = common or scheme.common(new_key(), b"", b"t")
    held = Held(as_rows(scheme.form.load(rows)), hold(records), lambda _: shared, k)
    parties: dict[Role, Party[Any]] = {seat: released(scheme.answering(seat, 0, held), BYTES) for seat in (0, 1)}
    parties["applicant"] = ask or scheme.ask(question, size, Fresh())
    if scheme.protocol.dealt_by == "dealer":
        parties["dealer"] = deal or scheme.protocol.deal(scheme, size, Fresh())

    def count(role: Role, send: Send) -> None:
        sizes[role, send.to] += send.symbols.size
        rounds[role] += send.to in (0, 1)
        if watch is not None:
            watch(role, send)

    seen = play(parties, watch=count)["applicant"]
    assert rounds[0] == rounds[1]
    return list(seen.records), sizes, rounds[0]
