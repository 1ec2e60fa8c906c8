"""The layout of a record: fixed-length bytes that hold a row's values, or only the levels they fall into.

Security: the layout is public; a record is for the applicant who fetched it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from ..algebra.arrays import Bytes, Codes, Vector
from ..errors import WrongShape
from .features import Numeric, Value, is_missing
from .frames import Columns
from .schema import Schema

RecordKind = Literal["row", "cell"]  # the values themselves, as in the paper, or their levels alone


class Record(NamedTuple):
    """A record, read: the code of every feature, and its value."""

    codes: Vector
    values: dict[str, Value]


def layout(schema: Schema, kind: RecordKind) -> np.dtype[Any]:
    """Return how a record is laid out: 8-byte numbers for a row's numeric values, 2-byte codes for all else."""
    numeric = [isinstance(f, Numeric) and kind == "row" for f in schema.features]
    return np.dtype(
        [(f.name, "<f8" if is_number else "<u2") for f, is_number in zip(schema.features, numeric, strict=True)]
    )


def encode(schema: Schema, kind: RecordKind, codes: Codes, table: Columns) -> Bytes:
    """Return a record for every row, an (M, length) array; `table` holds the same rows."""
    records = np.zeros(len(codes), dtype=layout(schema, kind))
    for j, feature in enumerate(schema.features):
        if kind == "row" and isinstance(feature, Numeric):
            column = table.column(feature.name)
            records[feature.name] = (
                [np.nan if is_missing(v) else v for v in column] if isinstance(column, list) else column
            )
        else:
            records[feature.name] = codes[:, j]
    return records.view(np.uint8).reshape(len(codes), -1)


def decode(schema: Schema, kind: RecordKind, record: bytes) -> Record:
    """Read a record. Every code is checked, because a server may have sent anything."""
    shape = layout(schema, kind)
    if len(record) != shape.itemsize:
        raise WrongShape("record", got=f"{len(record)} bytes", expected=f"{shape.itemsize}")
    fields = np.frombuffer(record, dtype=shape)[0]
    codes: list[int] = []
    values: dict[str, Value] = {}
    for feature in schema.features:
        held = fields[feature.name]
        if shape[feature.name].kind == "f":
            codes.append(int(feature.codes([float(held)], clamp=True)[0]))
            values[feature.name] = None if np.isnan(held) else float(held)
        else:
            if int(held) > feature.largest:
                raise WrongShape("record", got=f"level {held} of {feature.name}", expected=f"at most {feature.largest}")
            codes.append(int(held))
            values[feature.name] = feature.value(int(held))
    return Record(np.array(codes, dtype=np.int64), values)
