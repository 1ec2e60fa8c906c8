"""Times on the command line: 90s, 15m, 12h or 7d, or a moment such as 2027-01-31T12:00Z."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..errors import OutOfRange

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> int:
    """Return a length of time in seconds."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdigit()) or len(number) > 9 or not int(number):
        raise OutOfRange("valid", got=repr(text), expected="a number and s, m, h or d, such as 7d")
    return int(number) * _UNITS[unit]


def moment(text: str, start: int) -> int:
    """Return a moment in seconds since 1970: "now", a length of time after `start`, or a date and time."""
    if text == "now":
        return start
    try:
        made = datetime.fromisoformat(text)
        return int((made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        pass
    try:
        return start + seconds(text)
    except OutOfRange:
        expected = "a moment such as 2027-01-31T12:00Z, or a number and s, m, h or d"
        raise OutOfRange("time", got=repr(text), expected=expected) from None


def shown(at: Any, otherwise: str = "never") -> str:
    """Return a moment as people read it, or other words if there is none."""
    return (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if isinstance(at, int) and at else otherwise
    )
