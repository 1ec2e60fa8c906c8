"""Text from others: whether it is safe to show."""

from __future__ import annotations

import unicodedata
from typing import Any

_LONGEST = 1000  # characters of one text
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that change the direction of text


def is_plain(value: Any) -> bool:
    """Say whether all text in a value is safe to show: short, no control characters, no changes of direction.

    Terms that travel as text are skipped: they are parsed and checked separately.
    """
    if isinstance(value, str):
        return len(value) <= _LONGEST and not any(unicodedata.category(c) == "Cc" or c in _TURNS for c in value)
    if isinstance(value, dict):
        inner = (pair for pair in value.items() if pair[0] != "terms" or not isinstance(pair[1], str))
        return all(is_plain(part) for pair in inner for part in pair)
    return not isinstance(value, list | tuple) or all(map(is_plain, value))
