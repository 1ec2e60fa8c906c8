"""Codes laid out for the scan: blocks of 128 rows, feature by feature, so that one instruction works on 64 rows."""

from __future__ import annotations

import mmap

import numpy as np

from ..arrays import Bytes, Codes

ROWS = 128  # of a block
FLIPPED = np.uint8(128)  # the bit that makes y into y - 128


class Blocks:
    """A database's codes, a byte each, as (blocks, d, 128): filled up to whole blocks and an even number of features.

    Each code y is held as the signed byte y - 128, which polynomials want and tables do not mind. `codes` are the same
    as they were given, for what only the plain way can do; a memory map stays one.
    """

    def __init__(self, codes: Codes, threads: int = 1) -> None:
        count, d = codes.shape
        self.codes, self.threads = codes, threads  # that one scan is spread over
        self.shape: tuple[int, int] = (count, d)
        whole = count // ROWS
        self.data: Bytes = np.zeros((-(-count // ROWS), d + d % 2, ROWS), dtype=np.uint8)
        for start in range(0, whole, 256):  # so that pages of a memory map need not all be held at once
            end = min(start + 256, whole)
            self.data[start:end, :d] = codes[start * ROWS : end * ROWS].reshape(-1, ROWS, d).transpose(0, 2, 1)
        if count % ROWS:
            self.data[-1, :d, : count % ROWS] = codes[whole * ROWS :].T
        self.data ^= FLIPPED
        _let_go(codes)

    def __len__(self) -> int:
        return self.shape[0]


def _let_go(codes: Codes) -> None:
    """Where the codes are a file's, tell the system that they need not stay in memory beside the blocks."""
    root: object = codes
    while isinstance(root, np.ndarray):
        root = root.base
    if isinstance(root, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        root.madvise(mmap.MADV_DONTNEED)  # a file's pages come back when they are read
