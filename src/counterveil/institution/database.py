"""An institution's accepted rows: quantised, without duplicates, each with its record; and the bundle they are kept in.

Security: secret to the institution and its servers.

A bundle is one file, written to one side and then renamed:

    magic line · length of the manifest (8 bytes) · manifest (JSON) · zeros to 4096 · codes · zeros to 4096 · records

The manifest holds the schema, the parameters, the counts, and the SHA-256 of codes and records; its `digest` covers all
of that. Opening checks every byte.

Servers need a signed bundle. Behind every record stands the issuer's signature of (digest, record), so that applicants
can tell a true record from an altered one, and both are packaged, so that a mixture of records tells nothing. The
digest is then public, and must not confirm a guess at the rows: a value that only the issuer can compute goes into it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
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
from ..crypto.randomness import KEY_BYTES
from ..errors import EmptyDatabase, InvalidBundle, InvalidInput, UnknownName, WrongType
from ..schema.frames import Table
from ..schema.layouts import RecordKind, encode, layout
from ..schema.schema import Schema
from .verdicts import accepted_rows

_MAGIC = b"COUNTERVEIL BUNDLE 2\n"
_ALIGN = 4096
_CHUNK = 65_536  # rows quantised at a time


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many rows there were at each stage."""

    seen: int
    accepted: int
    too_rare: int  # accepted people in cells that fewer than `min_cell` of them share
    duplicates: int
    rows: int


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, int]
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Any
    record: RecordKind
    min_cell: int
    counts: Counts
    codes: _Array
    records: _Array
    signer: str = ""  # the issuer's public key, and what hides the rows from guesses at the digest
    blind: str = ""
    digest: str = ""
    packed: str = ""  # the SHA-256 of the packages of records and signatures; made after the digest


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
    min_cell: int
    counts: Counts
    codes: Codes  # (M, features): the level of every feature, record-only ones included
    served: Bytes  # (M, length): records; where the database is signed, packages of records and their signatures
    signer: bytes = b""
    blind: bytes = b""
    source: Vector | None = None  # where each row stood in the frame; known to the builder alone
    _opened_digest: str = ""  # the digest, where it is known already
    _opened_packed: str = ""  # likewise

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
        record : serve the ``"row"`` itself, or only the ``"cell"`` of levels it falls into.
        min_cell : serve only cells that at least so many accepted people share over all columns of the record; more
            than 1 needs ``record="cell"``, and guards against linking an explanation to a person.
        clamp : pull values beyond the schema's range to its ends instead of refusing them.
        progress : show a progress bar.
        """
        if not isinstance(schema, Schema):
            raise WrongType("schema", got=type(schema).__name__, expected="a Schema; Schema.load reads one from a file")
        checks.integer("min_cell", min_cell, 1)
        if record not in ("row", "cell"):
            raise UnknownName("record", got=repr(record), expected="row or cell")
        if min_cell > 1 and record != "cell":
            raise WrongType("record", got="rows with min_cell", expected='record="cell", since a row is one person\'s')
        table = Table(frame)
        table.select(schema.names)
        keep = accepted_rows(table, schema, model, accepted)
        if not keep.any():
            raise EmptyDatabase("accepted", got=f"none of {table.count} rows", expected="at least one")
        chosen = table.rows(keep)
        codes = _quantise(chosen, schema, clamp, progress)
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
        order = np.argsort(np.argsort(first))  # `rows` keeps the frame's order; the codes' order comes after
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
            codes=codes[first].astype(_narrow(schema)),
            served=records,
            source=np.flatnonzero(keep)[first],
        )

    @property
    def rows(self) -> int:
        """M, the number of rows."""
        return len(self.codes)

    @cached_property
    def records(self) -> Bytes:
        """The records alone, an (M, length) array. In a signed database they are unpackaged, 10 µs each."""
        bare = unpackage_all(self.served) if self.signer else self.served
        return bare[:, : layout(self.schema, self.record).itemsize]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything in the bundle but the signatures and packages, in hexadecimal."""
        return self._opened_digest or hashlib.sha256(_json(self._manifest())).hexdigest()

    @cached_property
    def packed(self) -> str:
        """The SHA-256 of the packages, in hexadecimal."""
        return self._opened_packed or _describe(self.served).sha256

    def sign(self, issuer: Issuer, *, progress: bool = False) -> Database:
        """Return the database with every record signed and packaged, ready for servers.

        The same data and the same key give the same bytes.
        """
        bare = replace(self, served=self.records, signer=b"", blind=b"", _opened_digest="", _opened_packed="")
        blind = hashlib.sha256(issuer.sign("blind", bytes.fromhex(bare.digest))).digest()
        named = replace(bare, signer=issuer.public, blind=blind)
        digest = hashlib.sha256(_json(named._manifest(bare.served))).digest()
        records = _watched(bare.served, "signing", bare.rows, progress)
        signatures = b"".join(issuer.sign("record", digest, record.tobytes()) for record in records)
        behind = np.frombuffer(signatures, dtype=np.uint8).reshape(-1, SIGNATURE_BYTES)
        secret = hashlib.sha256(issuer.sign("packages", digest)).digest()
        signed = np.hstack([bare.served, behind])
        packages = package_all(_watched(signed, "packaging", bare.rows, progress), secret)
        made = replace(named, served=packages, _opened_digest=digest.hex())
        made.__dict__["records"] = bare.served  # they are at hand: nobody need unpackage them
        return made

    def _manifest(self, records: Bytes | None = None) -> _Manifest:
        """Return what the digest covers."""
        return _Manifest(
            schema=self.schema.to_builtins(),
            record=self.record,
            min_cell=self.min_cell,
            counts=self.counts,
            codes=_describe(self.codes),
            records=_describe(self.records if records is None else records),
            signer=self.signer.hex(),
            blind=self.blind.hex(),
        )

    def save(self, path: str | Path) -> None:
        """Write the bundle, atomically: a reader sees the old file or the new one, whole."""
        path = Path(path)
        if path.exists() and not path.is_file():
            raise InvalidBundle(
                str(path), got="something that is not a file", expected="a file, or nothing, to replace"
            )
        packed = self.packed if self.signer else ""
        manifest = _json(msgspec.structs.replace(self._manifest(), digest=self.digest, packed=packed))
        head = _MAGIC + len(manifest).to_bytes(8, "little") + manifest
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                for part in (head, _little(self.codes), _little(self.served)):
                    file.write(bytes(-file.tell() % _ALIGN))
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # so that the new name survives a power cut too
            finally:
                os.close(folder)
        except OSError as error:
            raise InvalidBundle(str(path), got=error.strerror, expected="a place that can be written") from None
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | Path) -> Database:
        """Open a bundle, memory-mapped, after checking every byte of it."""
        path = Path(path)
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise InvalidBundle(
                str(path), got=getattr(error, "strerror", None) or "an empty file", expected="a bundle"
            ) from None
        try:
            return cls._parse(data)
        except InvalidInput as error:
            raise InvalidBundle.inside(str(path), error) from None

    @classmethod
    def _parse(cls, data: Bytes) -> Database:
        start = len(_MAGIC) + 8
        if data[: len(_MAGIC)].tobytes() == _MAGIC.replace(b"2", b"1"):
            raise InvalidBundle("first line", got="a bundle of version 1", expected="version 2: build it again")
        if data[: len(_MAGIC)].tobytes() != _MAGIC:
            raise InvalidBundle("first line", got="something else", expected=_MAGIC.decode().strip())
        length = int.from_bytes(data[len(_MAGIC) : start].tobytes(), "little")
        if length > data.size - start:
            raise InvalidBundle("manifest", got="a truncated file", expected=f"{length} bytes of manifest")
        raw = data[start : start + length].tobytes()
        try:
            manifest = msgspec.json.decode(raw, type=_Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidBundle("manifest", got="something that cannot be read", expected="JSON of version 2") from None
        covered = _json(msgspec.structs.replace(manifest, digest="", packed=""))
        if _json(manifest) != raw or hashlib.sha256(covered).hexdigest() != manifest.digest:
            raise InvalidBundle("manifest", got="altered bytes", expected="the digest it was written with")
        schema = Schema.from_builtins(manifest.schema, "schema of the bundle")

        _check_manifest(manifest, schema)
        end = start + length
        arrays = []
        for name, about in (("codes", manifest.codes), ("records", _served(manifest))):
            begin = end + -end % _ALIGN
            size = about.shape[0] * about.shape[1] * np.dtype(about.dtype).itemsize
            if data.size < begin + size:
                raise InvalidBundle(
                    name, got=f"a file of {data.size} bytes", expected=f"{begin + size}: it is truncated"
                )
            if data[end:begin].any():
                raise InvalidBundle(name, got="bytes set before it", expected="zeros")
            end = begin + size
            arrays.append(data[begin:end].view(about.dtype).reshape(about.shape))
            if _describe(arrays[-1]).sha256 != about.sha256:
                raise InvalidBundle(name, got="altered bytes", expected="the SHA-256 in the manifest")
        if end != data.size:
            raise InvalidBundle("end", got=f"{data.size - end} bytes more", expected="nothing after the records")
        codes, served = arrays
        if (codes.max(axis=0) > [f.largest for f in schema.features]).any():
            raise InvalidBundle("codes", got="a level beyond its feature's", expected="the levels of the schema")
        return cls(
            schema=schema,
            record=manifest.record,
            min_cell=manifest.min_cell,
            counts=manifest.counts,
            codes=codes,
            served=served,
            signer=bytes.fromhex(manifest.signer),
            blind=bytes.fromhex(manifest.blind),
            _opened_digest=manifest.digest,
            _opened_packed=manifest.packed,
        )


def _served(manifest: _Manifest) -> _Array:
    """Return what is in the file: the records, or packages of them and their signatures."""
    if not manifest.signer:
        return manifest.records
    rows, width = manifest.records.shape
    packed = (rows, width + SIGNATURE_BYTES + KEY_BYTES)
    return msgspec.structs.replace(manifest.records, shape=packed, sha256=manifest.packed)


def _check_manifest(manifest: _Manifest, schema: Schema) -> None:
    """Refuse a manifest whose parts do not fit each other, before anything is made of it."""
    rows, width = manifest.counts.rows, layout(schema, manifest.record).itemsize
    about = (manifest.codes.shape, manifest.records.shape, manifest.codes.dtype, manifest.records.dtype)
    if (
        rows < 1
        or about[:2] != ((rows, len(schema.features)), (rows, width))
        or about[2:] != (_narrow(schema).str, "|u1")
    ):
        raise InvalidBundle("arrays", got=f"{about}", expected=f"{rows} rows of the schema's shape")
    lengths = {len(value) for value in (manifest.signer, manifest.blind, manifest.packed)}
    if lengths not in ({0}, {64}) or not _is_hex(manifest.signer + manifest.blind):
        raise InvalidBundle("signer", got="something else", expected="a key of 32 bytes in hexadecimal, or nothing")
    if manifest.min_cell < 1 or (manifest.min_cell > 1 and manifest.record != "cell"):
        raise InvalidBundle("min_cell", got=f"{manifest.min_cell} for a {manifest.record}", expected="1, or cells")


def _is_hex(text: str) -> bool:
    return set(text) <= set("0123456789abcdef")


def _narrow(schema: Schema) -> np.dtype[Any]:
    return np.min_scalar_type(max(f.largest for f in schema.features)).newbyteorder("<")


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _little(array: Codes | Bytes) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _describe(array: Codes | Bytes) -> _Array:
    dtype = np.dtype(array.dtype).newbyteorder("<").str
    rows, columns = array.shape
    digest = hashlib.sha256()
    for start in range(0, rows, _CHUNK):
        digest.update(_little(array[start : start + _CHUNK]))
    return _Array(dtype=dtype, shape=(rows, columns), sha256=digest.hexdigest())


def _quantise(table: Table, schema: Schema, clamp: bool, progress: bool) -> Codes:
    """Return the codes of all rows, feature by feature."""
    codes = np.empty((table.count, len(schema.features)), dtype=np.uint16)
    count = len(schema.features) * -(-table.count // _CHUNK)
    for j, column, start in _watched(_chunks(table, schema), "quantising", count, progress):
        chunk = slice(start, start + _CHUNK)
        try:
            codes[chunk, j] = schema.features[j].codes(column[chunk], clamp=clamp)
        except InvalidInput as error:
            raise error if error.row is None else error.at(error.what, start + error.row) from None
    return codes


def _chunks(table: Table, schema: Schema) -> Iterator[tuple[int, Any, int]]:
    """Return every feature's column with every row that a chunk begins at; one column is held at a time."""
    for j, name in enumerate(schema.names):
        column = table.column(name)
        yield from ((j, column, start) for start in range(0, table.count, _CHUNK))


def _watched(parts: Iterable[Any], doing: str, count: int, progress: bool) -> Iterable[Any]:
    """Return the parts, under a progress bar where one is wanted; only then is rich loaded."""
    if not progress:
        return parts
    from rich.progress import track

    return track(parts, description=doing, total=count, transient=True)
