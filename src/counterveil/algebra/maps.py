"""Read arrays that are mapped from files without holding them in memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray


def chunks(array: NDArray[Any], rows: int) -> Iterator[NDArray[Any]]:
    """Return some rows at a time. The pages of those that were read before are let go."""
    for start in range(0, len(array), rows):
        chunk = array[start : start + rows]
        yield chunk
        let_go(chunk)


def let_go(array: NDArray[Any]) -> None:
    """If an array is mapped from a file, let the system drop its pages; they are read again when they are needed."""
    root: object = array
    while isinstance(root, np.ndarray):
        root = root.base
    if not isinstance(root, mmap.mmap) or array.flags.writeable or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, last = byte_bounds(array)
    begin = first - byte_bounds(np.frombuffer(root, dtype=np.uint8, count=1))[0]
    page = begin - begin % mmap.PAGESIZE
    root.madvise(mmap.MADV_DONTNEED, page, begin + (last - first) - page)
