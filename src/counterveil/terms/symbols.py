"""Pack symbols of a field or ring into bytes, and read them back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..algebra.arrays import Symbols, Vector
from ..algebra.field import Residues
from ..algebra.words import packed
from ..errors import Malformed

_BLOCK = 1 << 16  # symbols unpacked at a time


def pack(field: Residues, values: Symbols) -> bytes:
    """Pack a vector at ⌈log2 q⌉ bits a symbol. Bits of symbols and of bytes go from the least significant upwards."""
    return values.tobytes() if values.dtype == np.uint8 and field.bits == 8 else packed(values, field.bits)


def unpack(what: str, field: Residues, data: bytes, count: int) -> Any:
    """Read `count` symbols; refuse another length, a symbol of q or more, or a bit set after the last symbol."""
    expected = field.packed(count)
    if len(data) != expected:
        raise Malformed(what, got=f"{len(data)} bytes", expected=f"{expected}: {count} symbols of {field.bits} bits")
    if field.q == 1 << 8:
        return np.frombuffer(data, dtype=np.uint8)
    values: Vector = np.zeros(count, dtype=np.int64)
    step = _BLOCK * field.bits // 8
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        chunk = np.frombuffer(data, dtype=np.uint8)[start // _BLOCK * step :][:step]
        bits = np.unpackbits(chunk, bitorder="little")
        if bits[size * field.bits :].any():
            raise Malformed(what, got="bits set after the last symbol", expected="zeros")
        padded = np.zeros((size, 64), dtype=np.uint8)
        padded[:, : field.bits] = bits[: size * field.bits].reshape(size, field.bits)
        values[start : start + size] = np.packbits(padded, axis=1, bitorder="little").view("<u8").reshape(-1)
    if values.size and int(values.max()) >= field.q:
        raise Malformed(what, got="a symbol of q or more", expected=f"symbols below {field.q}")
    return values
