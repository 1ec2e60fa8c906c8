"""A request's body on its way: short ones in memory, long ones in a file that nobody else can open."""

from __future__ import annotations

import tempfile

import numpy as np

from ..algebra.arrays import Bytes

_IN_MEMORY = 1 << 20  # bytes: the longest body that is kept in memory


class Spool:
    """Bytes that are written once, in order, and then read as an array. The file has no name, so it ends with us."""

    def __init__(self, length: int) -> None:
        self._file = tempfile.TemporaryFile() if length > _IN_MEMORY else None  # noqa: SIM115 (the array keeps it open)
        self._memory = bytearray()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        self.size += len(chunk)
        if self._file is None:
            self._memory += chunk
        else:
            self._file.write(chunk)

    def array(self) -> Bytes:
        """Return all bytes; pages of a file are read when they are needed."""
        if self._file is None:
            return np.frombuffer(self._memory, dtype=np.uint8)
        self._file.flush()
        return np.memmap(self._file, dtype=np.uint8, mode="r")
