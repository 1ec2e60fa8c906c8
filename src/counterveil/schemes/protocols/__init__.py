"""Protocols: how servers that must not know the question compute a reveal.

One table holds them all. Each reveal names the protocol that computes it by default.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...errors import UnknownName, WrongType
from .garbled import Garbled
from .joint import Joint
from .padded import Padded
from .protocol import Choose, Held, Outcome, Protocol, Request, Seen, Setting, Size
from .two_phase import TwoPhase

PROTOCOLS: dict[str, type[Protocol]] = {protocol.name: protocol for protocol in (Padded, Garbled, Joint, TwoPhase)}


def make_protocol(name: str, **options: Any) -> Protocol:
    """Build the protocol of that name."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", got=name, expected=f"one of {', '.join(PROTOCOLS)}")
    kind = PROTOCOLS[name]
    known = {field.name: type(field.default) for field in fields(kind)}
    for option, value in options.items():
        if option not in known:
            raise UnknownName(f"option of {name}", got=option, expected=f"one of {', '.join(sorted(known)) or 'none'}")
        if type(value) is not known[option]:
            raise WrongType(option, got=type(value).__name__, expected=known[option].__name__)
    return kind(**options)


__all__ = [
    "PROTOCOLS",
    "Choose",
    "Garbled",
    "Held",
    "Joint",
    "Outcome",
    "Padded",
    "Protocol",
    "Request",
    "Seen",
    "Setting",
    "Size",
    "TwoPhase",
    "make_protocol",
]
