"""Read UBJSON, the binary form of JSON that XGBoost writes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_NUMBERS = {
    b"i": ">i1",
    b"U": ">u1",
    b"I": ">i2",
    b"u": ">u2",
    b"l": ">i4",
    b"m": ">u4",
    b"L": ">i8",
    b"d": ">f4",
    b"D": ">f8",
}
_WORDS = {b"Z": None, b"T": True, b"F": False}
_DEEPEST = 64


def read_ubjson(data: bytes) -> Any:
    """Return the value that bytes stand for; refuse bytes after it."""
    reader = _Reader(data)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes after the end")
    return value


class _Reader:
    """What has been read of the bytes, and what comes next."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("the file ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind: bytes, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} values inside each other")
        if kind in _NUMBERS:
            return self._numbers(kind, 1)[0].item()
        if kind in _WORDS:
            return _WORDS[kind]
        if kind == b"S":
            return self.text()
        if kind == b"C":
            return self.take(1).decode("ascii")
        if kind in (b"[", b"{"):
            return self._several(kind, depth)
        raise ValueError(f"a value of the unknown kind {kind!r}")

    def text(self) -> str:
        return self.take(self._count()).decode()

    def _count(self) -> int:
        kind = self.take(1)
        if kind not in _NUMBERS or kind in (b"d", b"D"):
            raise ValueError(f"a length of the kind {kind!r}")
        return int(self._numbers(kind, 1)[0])

    def _numbers(self, kind: bytes, count: int) -> Any:
        width = struct.calcsize(np.dtype(_NUMBERS[kind]).char)
        return np.frombuffer(self.take(width * count), dtype=_NUMBERS[kind])

    def _several(self, opening: bytes, depth: int) -> Any:
        """Return a list or a mapping; with `$` all its values are of one kind, with `#` their number comes first."""
        kind = count = None
        if self._follows(b"$"):
            kind = self.take(1)
        if self._follows(b"#"):
            count = self._count()
        if opening == b"[" and kind in _NUMBERS and count is not None:
            return self._numbers(kind or b"", count).tolist()
        closing, made = (b"]", list[Any]()) if opening == b"[" else (b"}", list[Any]())
        while count is None or len(made) < count:
            if count is None and self._follows(closing):
                break
            key = self.text() if opening == b"{" else None
            value = self.value(kind or self.take(1), depth + 1)
            made.append(value if opening == b"[" else (key, value))
        return made if opening == b"[" else dict(made)

    def _follows(self, mark: bytes) -> bool:
        found = self.data[self.at : self.at + 1] == mark
        self.at += found
        return found
