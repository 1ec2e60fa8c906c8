"""Write and read the file of a database: written under another name and then renamed, and every byte checked when read.

    magic line · length of the manifest (8 bytes) · manifest (JSON) · zeros to 4096 · codes · zeros to 4096 · records

The manifest holds the schema, the parameters, the counts, and the SHA-256 of codes and records; its `digest` covers all
of that.

Security: secret to the institution and its servers.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..algebra.arrays import Bytes, Codes
from ..crypto.keys import SIGNATURE_BYTES
from ..crypto.randomness import KEY_BYTES
from ..errors import InvalidBundle, InvalidInput
from ..schema.layouts import Layout, RecordKind, layout
from ..schema.schema import Schema
from ..terms.parameters import Certificate

_MAGIC = b"COUNTERVEIL BUNDLE 2\n"
_ALIGN = 4096
_CHUNK = 65_536  # rows hashed at a time


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many rows there were at each stage."""

    seen: int
    accepted: int
    too_rare: int  # accepted people in cells that fewer than `min_cell` of them share; or regions that hold fewer
    duplicates: int  # accepted people in the cell of another; or regions inside another
    rows: int


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, int]
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a bundle says about itself."""

    schema: Any
    record: RecordKind
    min_cell: int
    counts: Counts
    codes: _Array
    records: _Array
    signer: str = ""  # the issuer's public key, in hexadecimal
    blind: str = ""  # a value that only the issuer can compute: the digest confirms no guess at the rows
    digest: str = ""
    packed: str = ""  # the SHA-256 of the packages of records and signatures; made after the digest
    certificate: Certificate | msgspec.UnsetType = msgspec.UNSET  # of regions; absent where there are none


class Bundle(NamedTuple):
    """A bundle as it was read; the arrays are mapped from the file."""

    manifest: Manifest
    schema: Schema
    codes: Codes
    served: Bytes  # records, or packages of them and their signatures


def write(path: Path, manifest: Manifest, codes: Codes, served: Bytes) -> None:
    """Write a bundle, atomically: a reader sees the old file or the new one, whole."""
    if path.exists() and not path.is_file():
        raise InvalidBundle(str(path), got="something that is not a file", expected="a file, or nothing, to replace")
    raw = to_json(manifest)
    head = _MAGIC + len(raw).to_bytes(8, "little") + raw
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            for part in (head, _little(codes), _little(served)):
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


def read(path: Path) -> Bundle:
    """Read a bundle, memory-mapped, after checking every byte of it."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise InvalidBundle(
            str(path), got=getattr(error, "strerror", None) or "an empty file", expected="a bundle"
        ) from None
    try:
        return _parse(data)
    except InvalidInput as error:
        raise InvalidBundle.inside(str(path), error) from None


def _parse(data: Bytes) -> Bundle:
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
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidBundle("manifest", got="something that cannot be read", expected="JSON of version 2") from None
    covered = to_json(msgspec.structs.replace(manifest, digest="", packed=""))
    if to_json(manifest) != raw or hashlib.sha256(covered).hexdigest() != manifest.digest:
        raise InvalidBundle("manifest", got="altered bytes", expected="the digest it was written with")
    schema = Schema.from_builtins(manifest.schema, "schema of the bundle")

    _check_manifest(manifest, schema)
    end = start + length
    arrays = []
    for name, about in (("codes", manifest.codes), ("records", _served(manifest))):
        begin = end + -end % _ALIGN
        size = about.shape[0] * about.shape[1] * np.dtype(about.dtype).itemsize
        if data.size < begin + size:
            raise InvalidBundle(name, got=f"a file of {data.size} bytes", expected=f"{begin + size}: it is truncated")
        if data[end:begin].any():
            raise InvalidBundle(name, got="bytes set before it", expected="zeros")
        end = begin + size
        arrays.append(data[begin:end].view(about.dtype).reshape(about.shape))
        if describe(arrays[-1]).sha256 != about.sha256:
            raise InvalidBundle(name, got="altered bytes", expected="the SHA-256 in the manifest")
    if end != data.size:
        raise InvalidBundle("end", got=f"{data.size - end} bytes more", expected="nothing after the records")
    codes, served = arrays
    if (codes.max(axis=0) > Layout(schema, manifest.record).held).any():
        raise InvalidBundle("codes", got="a level beyond its feature's", expected="the levels of the schema")
    return Bundle(manifest, schema, codes, served)


def _served(manifest: Manifest) -> _Array:
    """Return what is in the file: the records, or packages of them and their signatures."""
    if not manifest.signer:
        return manifest.records
    rows, width = manifest.records.shape
    packed = (rows, width + SIGNATURE_BYTES + KEY_BYTES)
    return msgspec.structs.replace(manifest.records, shape=packed, sha256=manifest.packed)


def _check_manifest(manifest: Manifest, schema: Schema) -> None:
    """Refuse a manifest whose parts do not fit each other, before it is used."""
    rows, width = manifest.counts.rows, layout(schema, manifest.record).itemsize
    columns = len(Layout(schema, manifest.record).held)
    about = (manifest.codes.shape, manifest.records.shape, manifest.codes.dtype, manifest.records.dtype)
    if (
        rows < 1
        or about[:2] != ((rows, columns), (rows, width))
        or about[2:] != (narrow(schema, manifest.record).str, "|u1")
    ):
        raise InvalidBundle("arrays", got=f"{about}", expected=f"{rows} rows of the schema's shape")
    lengths = {len(value) for value in (manifest.signer, manifest.blind, manifest.packed)}
    if lengths not in ({0}, {64}) or not _is_hex(manifest.signer + manifest.blind):
        raise InvalidBundle("signer", got="something else", expected="a key of 32 bytes in hexadecimal, or nothing")
    if manifest.min_cell < 1 or (manifest.min_cell > 1 and manifest.record == "row"):
        raise InvalidBundle("min_cell", got=f"{manifest.min_cell} for a {manifest.record}", expected="1, or cells")
    if (manifest.certificate is msgspec.UNSET) == (manifest.record == "region"):
        raise InvalidBundle("certificate", got=f"one of {manifest.record}s, or none", expected="one for regions alone")


def _is_hex(text: str) -> bool:
    return set(text) <= set("0123456789abcdef")


def narrow(schema: Schema, kind: RecordKind) -> np.dtype[Any]:
    """Return the narrowest type that holds every code of a database."""
    return np.min_scalar_type(max(Layout(schema, kind).held)).newbyteorder("<")


def to_json(value: Any) -> bytes:
    """Return the canonical JSON text of a value, which digests cover."""
    return msgspec.json.encode(value, order="deterministic")


def _little(array: Codes | Bytes) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def describe(array: Codes | Bytes) -> _Array:
    """Return what the manifest says about an array."""
    dtype = np.dtype(array.dtype).newbyteorder("<").str
    rows, columns = array.shape
    digest = hashlib.sha256()
    for start in range(0, rows, _CHUNK):
        digest.update(_little(array[start : start + _CHUNK]))
    return _Array(dtype=dtype, shape=(rows, columns), sha256=digest.hexdigest())
