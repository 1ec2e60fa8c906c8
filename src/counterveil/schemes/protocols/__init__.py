"""Protocols: how servers that must not know the question compute a reveal.

One table holds them all. Each reveal names the protocol that computes it by default.
"""

from __future__ import annotations

from typing import Any

from ...errors import UnknownName
from .garbled import Garbled
from .padded import Padded
from .protocol import Choose, Held, Outcome, Protocol, Request, Seen, Setting, Size

PROTOCOLS: dict[str, type[Protocol]] = {protocol.name: protocol for protocol in (Padded, Garbled)}


def make_protocol(name: str, **options: Any) -> Protocol:
    """Build the protocol of that name."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", got=name, expected=f"one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name](**options)


__all__ = [
    "PROTOCOLS",
    "Choose",
    "Garbled",
    "Held",
    "Outcome",
    "Padded",
    "Protocol",
    "Request",
    "Seen",
    "Setting",
    "Size",
    "make_protocol",
]
