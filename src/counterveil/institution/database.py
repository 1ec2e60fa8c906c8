"""An institution's accepted rows: quantised, without duplicates, each with its record.

Security: secret to the institution and its servers.

Servers need a signed database. After every record comes the issuer's signature of (digest, record), so that applicants
can tell a true record from an altered one. Both are packaged, so that a mixture of records tells nothing. The digest of
a signed database is public and must not confirm a guess at the rows. So it covers a value that only the issuer can
compute.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..algebra import checks
from ..algebra.arrays import Bytes, Codes, Vector
from ..crypto.keys import SIGNATURE_BYTES, Issuer
from ..crypto.packages import package_all, unpackage_all
from ..errors import EmptyDatabase, InvalidInput, UnknownName, WrongType
from ..schema.frames import Columns
from ..schema.layouts import RecordKind, encode, layout
from ..schema.schema import Schema
from ..terms.parameters import Certificate
from . import bundle
from .bundle import Counts
from .regions import Regions, Report, find_regions, held_out_report
from .verdicts import accepted_rows, warn_of_repeats

_CHUNK = 65_536  # rows quantised at a time


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Database:
    """Accepted rows, ready to serve. Rows stand in the order of their codes, whatever order the data came in.

    >>> from counterveil import Numeric, Schema
    >>> schema = Schema(features=(Numeric(name="income", low=0, high=5000, step=500, unit="€"),))
    >>> data = {"income": [4100, 900, 3900, 4600], "accepted": [True, False, True, True]}
    >>> Database.build(data, schema, accepted="accepted").codes.tolist()
    [[8], [9]]
    """

    schema: Schema
    record: RecordKind
    min_cell: int  # accepted people who share each cell, or whom each region holds, at least
    counts: Counts
    codes: Codes  # (M, columns): the level of every feature, record-only ones included; or the codes of regions
    served: Bytes  # (M, length): records; where the database is signed, packages of records and their signatures
    signer: bytes = b""
    blind: bytes = b""
    certificate: Certificate | None = None  # what is certain of regions, and of which model
    source: Vector | None = None  # where each row stood in the frame; known to the builder alone
    _known_digest: str = ""  # the digest, where it is known already
    _known_packed: str = ""  # the SHA-256 of the packages, where it is known already

    def __repr__(self) -> str:
        return f"Database({len(self.codes)} rows, {len(self.schema.features)} features, records of {self.record}s)"

    @classmethod
    def build(
        cls,
        frame: Any,
        schema: Schema,
        model: Any = None,
        accepted: Any = None,
        *,
        record: RecordKind = "row",
        min_cell: int = 1,
        min_people: int = 1,
        most_regions: int | None = None,
        points: int = 0,
        clamp: bool = False,
        progress: bool = False,
    ) -> Database:
        """Quantise the accepted rows of a frame, drop duplicates, and make a record of each.

        Parameters
        ----------
        frame : a pandas, polars or pyarrow frame, a mapping of columns, or the path of a CSV or Parquet file.
        schema : the public schema.
        model : a scikit-learn-style classifier (`predict`) or a function of the frame that says who is accepted.
        accepted : without a model, a column that says so, or a pair of column and value; with a model, the label it
            predicts for accepted people (by default True or 1).
        record : serve the ``"row"`` itself, only the ``"cell"`` of levels it falls into, or each ``"region"`` in which
            the model certainly accepts everybody; regions need a model that can be certified.
        min_cell : serve only cells that at least this many accepted people share over all columns of the record; more
            than 1 needs ``record="cell"``, and guards against linking an explanation to a person.
        min_people : serve only regions that hold at least so many accepted people.
        most_regions : serve only so many regions, those that help the rejected people of the frame the most.
        points : if the model cannot be certified, sample so many points in each region; such regions are never called
            certified. 0 refuses the model.
        clamp : pull values beyond the schema's range to its ends instead of refusing them.
        progress : show a progress bar.
        """
        if not isinstance(schema, Schema):
            raise WrongType("schema", got=type(schema).__name__, expected="a Schema; Schema.load reads one from a file")
        checks.integer("min_cell", min_cell, 1)
        if record not in ("row", "cell", "region"):
            raise UnknownName("record", got=repr(record), expected="row, cell or region")
        if min_cell > 1 and record != "cell":
            raise WrongType("record", got="rows with min_cell", expected='record="cell", since a row is one person\'s')
        if record != "region" and (min_people != 1 or most_regions is not None or points):
            got = f"{record}s with min_people, most_regions or points"
            raise WrongType("record", got=got, expected='record="region"')
        if record == "region" and model is None:
            raise WrongType("model", got="none", expected="the model that decides, since regions are certified by it")
        table = Columns(frame)
        table.select(schema.names)
        keep = accepted_rows(table, schema, model, accepted)
        if model is None:
            warn_of_repeats(table, schema, keep)
        if not keep.any():
            raise EmptyDatabase("accepted", got=f"none of {table.count} rows", expected="at least one")
        if record == "region":
            every = _quantise(table, schema, clamp, progress).astype(np.int64)
            with _told(progress) as tell:
                found = find_regions(
                    model,
                    table,
                    schema,
                    keep,
                    every,
                    label=accepted,
                    min_people=min_people,
                    most=most_regions,
                    points=points,
                    progress=tell,
                )
            return cls._of_regions(found, table, min_people, getattr(model, "digest", None) or found.digest)
        chosen = table.rows(keep)
        codes = _quantise(chosen, schema, clamp, progress, np.flatnonzero(keep))
        people = len(codes)

        frequent = np.arange(people)
        if min_cell > 1:
            _, cell, share = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
            frequent = np.flatnonzero(share[cell.reshape(-1)] >= min_cell)
            if not frequent.size:
                raise EmptyDatabase("min_cell", got=f"no cell of {min_cell} people", expected="at least one")
        first = frequent[np.unique(codes[frequent][:, schema.costed], axis=0, return_index=True)[1]]
        kept = np.zeros(people, dtype=bool)
        kept[first] = True
        order = np.argsort(np.argsort(first))  # `rows` keeps the frame's order; this is the codes' order
        records = encode(schema, record, codes[kept], chosen.rows(kept))[order]
        counts = Counts(
            seen=table.count,
            accepted=people,
            too_rare=people - frequent.size,
            duplicates=frequent.size - first.size,
            rows=first.size,
        )
        return cls(
            schema=schema,
            record=record,
            min_cell=min_cell,
            counts=counts,
            codes=codes[first].astype(bundle.narrow(schema, record)),
            served=records,
            source=np.flatnonzero(keep)[first],
        )

    @staticmethod
    def report(frame: Any, schema: Schema, model: Any, accepted: Any = None, **options: Any) -> Report:
        """Report what regions would ask of rejected people, beside the nearest rows.

        Regions are found from some of the people, and compared for rejected ones among the rest. The parameters are
        those of `build`; `options` are those of `find_regions`.
        """
        table = Columns(frame)
        keep = accepted_rows(table, schema, model, accepted)
        codes = _quantise(table, schema, True, False).astype(np.int64)
        return held_out_report(model, table, schema, keep, codes, label=accepted, **options)[0]

    @classmethod
    def _of_regions(cls, found: Regions, table: Columns, min_people: int, model: str) -> Database:
        """Return the database of regions that were found, in the order of their codes."""
        codes = np.unique(found.codes(), axis=0)
        return cls(
            schema=found.schema,
            record="region",
            min_cell=min_people,
            counts=Counts(
                seen=table.count,
                accepted=found.accepted,
                too_rare=found.too_rare,
                duplicates=found.inside_others,
                rows=len(codes),
            ),
            codes=codes.astype(bundle.narrow(found.schema, "region")),
            served=encode(found.schema, "region", codes, table),
            certificate=Certificate(model, found.sampled, math.ceil(1_000_000 * found.bound)),
        )

    @property
    def rows(self) -> int:
        """M, the number of rows."""
        return len(self.codes)

    @cached_property
    def records(self) -> Bytes:
        """The records alone, an (M, length) array. A signed database unpackages them, at 10 µs each."""
        bare = unpackage_all(self.served) if self.signer else self.served
        return bare[:, : layout(self.schema, self.record).itemsize]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything in the bundle but the signatures and packages, in hexadecimal."""
        return self._known_digest or hashlib.sha256(bundle.to_json(self._manifest())).hexdigest()

    @cached_property
    def packed(self) -> str:
        """The SHA-256 of the packages, in hexadecimal."""
        return self._known_packed or bundle.describe(self.served).sha256

    def sign(self, issuer: Issuer, *, progress: bool = False) -> Database:
        """Return the database with every record signed and packaged, ready for servers.

        The same data and the same key give the same bytes.
        """
        bare = replace(self, served=self.records, signer=b"", blind=b"", _known_digest="", _known_packed="")
        blind = hashlib.sha256(issuer.sign("blind", bytes.fromhex(bare.digest))).digest()
        named = replace(bare, signer=issuer.public, blind=blind)
        digest = hashlib.sha256(bundle.to_json(named._manifest(bare.served))).digest()
        records = _watched(bare.served, "signing", bare.rows, progress)
        signatures = b"".join(issuer.sign("record", digest, record.tobytes()) for record in records)
        columns = np.frombuffer(signatures, dtype=np.uint8).reshape(-1, SIGNATURE_BYTES)
        secret = hashlib.sha256(issuer.sign("packages", digest)).digest()
        signed = np.hstack([bare.served, columns])
        packages = package_all(_watched(signed, "packaging", bare.rows, progress), secret)
        made = replace(named, served=packages, _known_digest=digest.hex())
        made.__dict__["records"] = bare.served  # cached, so that nobody has to unpackage them
        return made

    def _manifest(self, records: Bytes | None = None) -> bundle.Manifest:
        """Return what the digest covers."""
        return bundle.Manifest(
            schema=self.schema.to_builtins(),
            record=self.record,
            min_cell=self.min_cell,
            counts=self.counts,
            codes=bundle.describe(self.codes),
            records=bundle.describe(self.records if records is None else records),
            signer=self.signer.hex(),
            blind=self.blind.hex(),
            certificate=self.certificate or msgspec.UNSET,
        )

    def save(self, path: str | Path) -> None:
        """Write the bundle, atomically: a reader sees the old file or the new one, whole."""
        packed = self.packed if self.signer else ""
        manifest = msgspec.structs.replace(self._manifest(), digest=self.digest, packed=packed)
        bundle.write(Path(path), manifest, self.codes, self.served)

    @classmethod
    def open(cls, path: str | Path) -> Database:
        """Open a bundle, memory-mapped, after checking every byte of it."""
        manifest, schema, codes, served = bundle.read(Path(path))
        return cls(
            schema=schema,
            record=manifest.record,
            min_cell=manifest.min_cell,
            counts=manifest.counts,
            codes=codes,
            served=served,
            signer=bytes.fromhex(manifest.signer),
            blind=bytes.fromhex(manifest.blind),
            certificate=manifest.certificate or None,
            _known_digest=manifest.digest,
            _known_packed=manifest.packed,
        )


def _quantise(table: Columns, schema: Schema, clamp: bool, progress: bool, places: Vector | None = None) -> Codes:
    """Return the codes of all rows, feature by feature. Errors name a row by its place in the frame."""
    codes = np.empty((table.count, len(schema.features)), dtype=np.uint16)
    count = len(schema.features) * -(-table.count // _CHUNK)
    for j, column, start in _watched(_chunks(table, schema), "quantising", count, progress):
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


@contextmanager
def _told(progress: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Give what shows a share of the work under a progress bar, if one is wanted; only then import rich."""
    if not progress:
        yield None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda doing, share: bar.update(task, description=doing, completed=share)


def _watched(parts: Iterable[Any], doing: str, count: int, progress: bool) -> Iterable[Any]:
    """Return the parts, under a progress bar if one is wanted; only then import rich."""
    if not progress:
        return parts
    from rich.progress import track

    return track(parts, description=doing, total=count, transient=True)
