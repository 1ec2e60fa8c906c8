"""Turn the values of many people into codes, one column at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..algebra.arrays import Codes, Vector
from ..errors import InvalidInput
from ..schema.frames import Columns
from ..schema.schema import Schema
from .parallel import watched

_CHUNK = 65_536  # rows quantised at a time


def quantise(table: Columns, schema: Schema, clamp: bool, progress: bool, places: Vector | None = None) -> Codes:
    """Return the codes of all rows, feature by feature. Errors name a row by its place in the frame."""
    codes = np.empty((table.count, len(schema.features)), dtype=np.uint16)
    count = len(schema.features) * -(-table.count // _CHUNK)
    for j, column, start in watched(_chunks(table, schema), "quantising", count, progress):
        chunk = slice(start, start + _CHUNK)
        try:
            codes[chunk, j] = schema.features[j].codes(column[chunk], clamp=clamp)
        except InvalidInput as error:
            if error.row is None:
                raise
            row = start + error.row
            raise error.at(error.what, row if places is None else int(places[row])) from None
    return codes


def _chunks(table: Columns, schema: Schema) -> Iterator[tuple[int, Any, int]]:
    """Return (feature, its column, first row) for every chunk; only one column is in memory at a time."""
    for j, name in enumerate(schema.names):
        column = table.column(name)
        yield from ((j, column, start) for start in range(0, table.count, _CHUNK))
