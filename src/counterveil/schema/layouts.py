"""The layout of a record: fixed-length bytes that hold a row's values, only the levels they fall into, or a region.

A row and a cell have one code for each feature. A region has one or two codes for each feature that counts, as `boxes`
defines them. Here, an applicant's costs of levels become costs of codes.

Security: the layout is public; a record is for the applicant who fetched it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..algebra.arrays import Bytes, Codes, Vector
from ..errors import NotOffered, OutOfRange, WrongShape
from .boxes import AnyInterval, Interval, Members, Subsets, any_interval, family, words
from .costs import Costs
from .features import Numeric, Value, is_missing
from .frames import Columns
from .schema import MOST_LEVELS_TOGETHER, Schema

# The values themselves, as in the paper, or their levels alone; or a box of levels in which everybody is accepted.
RecordKind = Literal["row", "cell", "region"]


class Record(NamedTuple):
    """A record, read: its codes, and the value of every feature; of a region's features, which values are inside."""

    codes: Vector
    values: dict[str, Value]
    signed: bytes = b""  # its bytes and their signature, if it was fetched


@dataclass(frozen=True)
class Layout:
    """Which columns of codes a database holds, which of them are scanned, and what their codes cost.

    With `intervals` an ordered feature of a region is scanned as one code over all intervals, so that costs may have
    holes. That is a choice of the deployment: the database is the same.
    """

    schema: Schema
    kind: RecordKind = "row"
    intervals: bool = False

    @property
    def regions(self) -> bool:
        """Whether rows are boxes, so that only tables of costs can be asked of them."""
        return self.kind == "region"

    @cached_property
    def families(self) -> list[Interval | Subsets]:
        """The sets of levels that have a code, for each feature that counts."""
        return [family(feature) for feature in self.schema.cost_features]

    @cached_property
    def _scanned(self) -> list[Interval | Subsets | AnyInterval]:
        pairs = zip(self.schema.cost_features, self.families, strict=True)
        joined = self.intervals
        made = [any_interval(f) if joined and isinstance(own, Interval) else own for f, own in pairs]
        sets = sum(largest + 1 for each in made for largest in each.largest)
        if sets > MOST_LEVELS_TOGETHER:
            expected = f'at most {MOST_LEVELS_TOGETHER:,}: fewer levels, or record = "row"'
            raise OutOfRange("regions", got=f"{sets:,} sets of levels", expected=expected)
        return made

    @property
    def held(self) -> tuple[int, ...]:
        """The largest code of every column that a database holds."""
        if not self.regions:
            return tuple(feature.largest for feature in self.schema.features)
        return tuple(largest for each in self.families for largest in each.largest)

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest code of every column that is scanned."""
        if not self.regions:
            return tuple(feature.largest for feature in self.schema.cost_features)
        return tuple(largest for each in self._scanned for largest in each.largest)

    @property
    def owners(self) -> tuple[int, ...]:
        """The feature that each column of a region belongs to; none where every column is a feature of its own."""
        if not self.regions:
            return ()
        return tuple(n for n, each in enumerate(self._scanned) for _ in each.largest)

    def columns(self, codes: Codes | Vector) -> Codes | Vector:
        """Return the columns that are scanned, from those that a database holds."""
        if not self.regions:
            costed = self.schema.costed
            return codes if len(costed) == codes.shape[1] else codes[:, costed]  # a memory map stays one if it can
        if not self.intervals:
            return codes
        made: list[Vector] = []
        start = 0
        for own, scanned in zip(self.families, self._scanned, strict=True):
            part = codes[:, start : start + len(own.largest)]
            start += len(own.largest)
            made.append(scanned.joined(*part.T) if isinstance(scanned, AnyInterval) else part[:, 0].astype(np.int64))
        return np.stack(made, axis=1)

    def tables(self, costs: Costs) -> list[Vector]:
        """Return what every code of every scanned column costs: of a set of levels, the least cost of them.

        Security: private to the applicant.
        """
        if not self.regions:
            return costs.tables
        made: list[Vector] = []
        for each, feature, table, allowed in zip(
            self._scanned, costs.features, costs.tables, costs.allowed, strict=True
        ):
            found = each.tables(table)
            if found is None:
                name = "forbidden" if "forbidden" in allowed else "costs"
                got = f"{feature.name}, whose costs do not rise from one level outwards"
                expected = "costs that do, or a deployment of regions with intervals"
                raise NotOffered(name, got=got, expected=expected)
            made += found
        return made

    def nearest(self, costs: Costs, record: Record) -> Vector:
        """Return the levels that cost the least of all that a record holds; those of a row are its own."""
        if not self.regions:
            return record.codes[self.schema.costed]
        levels = []
        for members, table, own in zip(self.members(record.codes), costs.tables, costs.own.tolist(), strict=True):
            inside = np.flatnonzero(members)
            least = inside[table[inside] == table[inside].min()]
            levels.append(own if own in least else int(least[np.abs(least - own).argmin()]))
        return np.array(levels, dtype=np.int64)

    def members(self, codes: Vector) -> list[Members]:
        """Return the set of levels that a region has of each feature that counts."""
        parts = np.split(codes, np.cumsum([len(each.largest) for each in self.families])[:-1])
        return [each.members(part.tolist()) for each, part in zip(self.families, parts, strict=True)]


def layout(schema: Schema, kind: RecordKind) -> np.dtype[Any]:
    """Return how a record is laid out: 8-byte numbers for a row's numbers, codes of 2 or 4 bytes for all else."""
    if kind == "region":
        held = Layout(schema, kind).held
        return np.dtype([(f"code {n}", "<u2" if most < 1 << 16 else "<u4") for n, most in enumerate(held)])
    numeric = [isinstance(f, Numeric) and kind == "row" for f in schema.features]
    return np.dtype(
        [(f.name, "<f8" if is_number else "<u2") for f, is_number in zip(schema.features, numeric, strict=True)]
    )


def encode(schema: Schema, kind: RecordKind, codes: Codes | Vector, table: Columns) -> Bytes:
    """Return a record for every row, an (M, length) array; `table` holds the same rows, and nothing for regions."""
    records = np.zeros(len(codes), dtype=layout(schema, kind))
    if kind == "region":
        for n, name in enumerate(records.dtype.names or ()):
            records[name] = codes[:, n]
        return records.view(np.uint8).reshape(len(codes), -1)
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
    if kind == "region":
        every = np.array([int(code) for code in fields], dtype=np.int64)
        held = zip(schema.cost_features, Layout(schema, kind).members(every), strict=True)
        return Record(every, {feature.name: words(feature, members) for feature, members in held})
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
