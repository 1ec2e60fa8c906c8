"""Feed arbitrary bytes to every reader of `wire`: `python tests/fuzz_wire.py -runs=100000` (atheris).

A reader returns what it read, which then has those very bytes, or raises Malformed; nothing else may happen.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["counterveil.terms.wire", "counterveil.service.link.frames"]):
    from counterveil.algebra.field import Field
    from counterveil.errors import Malformed
    from counterveil.service.link import frames
    from counterveil.terms import wire

FIELDS = [Field(q) for q in (2, 3, 251, 257, 65537, 2**31 - 1, 2**61 - 1)]


def one_input(data: bytes) -> None:
    """Try every reader on the same bytes."""
    with suppress(Malformed):
        assert wire.encode(wire.decode_request(data, "query", "attempt", "collect")) == data
    with suppress(Malformed):
        bare, start = wire.decode_head(data, len(data), "attempt", "collect")
        assert wire.head(bare, len(data) - start) == data[:start]
    for kind in ("answer", "attempt-answer"):
        with suppress(Malformed):
            assert wire.encode(wire.decode_reply(data, kind)) == data
    with suppress(Malformed):
        assert frames.encode(frames.decode(data)) == data
    with suppress(Malformed):
        wire.decode_linked(data)
    with suppress(Malformed):
        assert wire.decode_ticket(data).encode() == data
    with suppress(Malformed):
        wire.decode_manifest(data)
    with suppress(Malformed):
        wire.decode_terms(data)
    with suppress(Malformed):
        wire.decode_refusal(data)
    with suppress(Malformed):
        wire.decode_ticket_text(data.decode("latin-1"))
    for field in FIELDS:
        with suppress(Malformed):
            assert wire.pack(field, wire.unpack("fuzz", field, data, 8 * len(data) // field.bits)) == data


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
