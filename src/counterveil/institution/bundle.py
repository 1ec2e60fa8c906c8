"""Write and read the file of a database: written under another name and then renamed, and every byte checked when read.

    magic line · length of the manifest (8 bytes) · manifest (JSON) · zeros to 4096 · codes · zeros to 4096 · records

The manifest holds the schema, the parameters, the counts, and the SHA-256 of codes and records; its `digest` covers all
of that.

More than a million rows are in parts, one after the other. The manifest then has the SHA-256 of the codes and of the
records of every part, and what stands for all codes is the SHA-256 of these. So the digest is the root of a tree. A
part can be mapped, checked and laid out without the others. It is a whole number of blocks of the joint protocol.

Security: secret to the institution and its servers.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..algebra.arrays import Bytes, Codes, Vector
from ..algebra.maps import chunks
from ..crypto.keys import SIGNATURE_BYTES, Issuer
from ..crypto.randomness import KEY_BYTES
from ..errors import InvalidBundle, InvalidInput
from ..schema.layouts import Layout, RecordKind, layout
from ..schema.schema import Schema
from ..schemes.protocols.packed import BLOCK, LANES
from ..schemes.protocols.packed import Layout as Blocks
from ..terms.parameters import Certificate

_MAGIC = b"COUNTERVEIL BUNDLE 2\n"
_ALIGN = 4096
_CHUNK = 65_536  # rows read at a time
_PART = 1 << 20  # rows of a part at most; as many rows as this are not cut


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


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The SHA-256 of the codes, of the records and of the packages of every part."""

    rows: int  # of every part but the last, which may have fewer
    codes: tuple[str, ...]
    records: tuple[str, ...]
    packed: tuple[str, ...] = ()  # made after the digest, which does not cover them


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
    parts: Parts | msgspec.UnsetType = msgspec.UNSET  # absent where there is only one

    def covered(self) -> bytes:
        """Return what the digest covers: everything but the digest and the packages."""
        parts = msgspec.structs.replace(self.parts, packed=()) if self.parts else self.parts
        return to_json(msgspec.structs.replace(self, digest="", packed="", parts=parts))

    def signed_by(self, issuer: Issuer) -> Manifest:
        """Return what the digest of the signed bundle covers: this, the issuer, and a value only it can compute."""
        digest = hashlib.sha256(self.covered()).digest()
        blind = hashlib.sha256(issuer.sign("blind", digest)).hexdigest()
        return msgspec.structs.replace(self, signer=issuer.public.hex(), blind=blind)

    def sealed(self, digest: str, packed: Sequence[str] = ()) -> Manifest:
        """Return the manifest with its digest and, if records are signed, those of the packages of every part."""
        parts = msgspec.structs.replace(self.parts, packed=tuple(packed)) if self.parts else self.parts
        return msgspec.structs.replace(self, digest=digest, packed=root(packed) if packed else "", parts=parts)

    def packages(self) -> tuple[str, ...]:
        """Return the SHA-256 of the packages of every part; nothing if records are not signed."""
        return self.parts.packed if self.parts else (self.packed,) if self.packed else ()

    @property
    def part_rows(self) -> int:
        """Rows of every part but the last, which may have fewer."""
        return self.parts.rows if self.parts else self.counts.rows

    def spans(self) -> list[tuple[int, int]]:
        """Return where the rows of every part begin and end."""
        rows, size = self.counts.rows, self.part_rows
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]

    def leaves(self) -> list[tuple[str, str]]:
        """Return, for every part, the SHA-256 of its codes and of what servers hold of its records."""
        if not self.parts:
            return [(self.codes.sha256, _served(self).sha256)]
        held = self.parts.packed if self.signer else self.parts.records
        return list(zip(self.parts.codes, held, strict=True))


class Bundle(NamedTuple):
    """A bundle as it was read; the arrays are mapped from the file."""

    manifest: Manifest
    schema: Schema
    codes: Codes
    served: Bytes  # records, or packages of them and their signatures
    path: Path


def usual_part(rows: int) -> int:
    """Return how many rows a part has: all, or about a million, which are whole blocks of the joint protocol.

    >>> usual_part(1_000_000), usual_part(10_000_000), -(-(10**9) // usual_part(10**9))
    (1000000, 1046528, 954)
    """
    return rows if rows <= _PART else LANES * Blocks.of(rows).words * (_PART // BLOCK)


def root(leaves: Sequence[str]) -> str:
    """Return the SHA-256 that stands for several: of one, itself; of more, the SHA-256 of them all."""
    return leaves[0] if len(leaves) == 1 else hashlib.sha256(bytes.fromhex("".join(leaves))).hexdigest()


def write(path: Path, manifest: Manifest, codes: Codes, served: Bytes) -> None:
    """Write a bundle, atomically: a reader sees the old file or the new one, whole."""
    with replacing(path) as temporary, temporary.open("r+b") as file:
        for begin, part in zip((0, *begins(manifest)), (head(manifest), _little(codes), _little(served)), strict=True):
            file.seek(begin)
            file.write(part)


def head(manifest: Manifest) -> bytes:
    """Return the bytes before the codes. Their number depends on the counts and on who signs, not on any digest."""
    raw = to_json(manifest)
    return _MAGIC + len(raw).to_bytes(8, "little") + raw


def begins(manifest: Manifest) -> tuple[int, int]:
    """Return where codes and records begin in the file."""
    codes = _aligned(len(head(manifest)))
    return codes, _aligned(codes + _bytes(manifest.codes))


def _aligned(place: int) -> int:
    return place + -place % _ALIGN


def _bytes(about: _Array) -> int:
    return about.shape[0] * about.shape[1] * np.dtype(about.dtype).itemsize


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give an empty file to write, which takes this name at the end and is removed if anything goes wrong."""
    if path.exists() and not path.is_file():
        raise InvalidBundle(str(path), got="something that is not a file", expected="a file, or nothing, to replace")
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        yield Path(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name survives a power cut too
        finally:
            os.close(folder)
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidBundle(str(path), got=got, expected="a place that can be written") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def read(path: Path) -> Bundle:
    """Read a bundle, memory-mapped, after checking its manifest. `check` checks the rest, part by part."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise InvalidBundle(
            str(path), got=getattr(error, "strerror", None) or "an empty file", expected="a bundle"
        ) from None
    try:
        return _parse(path, data)
    except InvalidInput as error:
        raise InvalidBundle.inside(str(path), error) from None


def _parse(path: Path, data: Bytes) -> Bundle:
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
    if to_json(manifest) != raw or hashlib.sha256(manifest.covered()).hexdigest() != manifest.digest:
        raise InvalidBundle("manifest", got="altered bytes", expected="the digest it was written with")
    schema = Schema.from_builtins(manifest.schema, "schema of the bundle")

    _check_manifest(manifest, schema)
    end = start + length
    arrays = []
    for name, about in (("codes", manifest.codes), ("records", _served(manifest))):
        begin = _aligned(end)
        size = _bytes(about)
        if data.size < begin + size:
            raise InvalidBundle(name, got=f"a file of {data.size} bytes", expected=f"{begin + size}: it is truncated")
        if data[end:begin].any():
            raise InvalidBundle(name, got="bytes set before it", expected="zeros")
        end = begin + size
        arrays.append(data[begin:end].view(about.dtype).reshape(about.shape))
    if end != data.size:
        raise InvalidBundle("end", got=f"{data.size - end} bytes more", expected="nothing after the records")
    codes, served = arrays
    return Bundle(manifest, schema, codes, served, path)


def check(file: Bundle, part: int) -> None:
    """Refuse a part of a bundle that is not what its manifest says; the error names the part.

    However large the part is, memory holds little of it at a time.
    """
    manifest, (start, end), place = file.manifest, file.manifest.spans()[part], str(file.path)
    named = name_of(part, manifest.part_rows, manifest.counts.rows)
    codes, served = f"{named}codes", f"{named}records"
    check_bytes(place, codes, file.codes[start:end], manifest.leaves()[part][0])
    check_bytes(place, served, file.served[start:end], manifest.leaves()[part][1])
    check_levels(place, codes, file.codes[start:end], Layout(file.schema, manifest.record).held)


def name_of(part: int, size: int, rows: int) -> str:
    """Return how errors name a part, of so many rows of all, before they say which of its arrays is meant."""
    last = min((part + 1) * size, rows) - 1
    return f"part {part + 1} of {-(-rows // size):,}, rows {part * size:,} to {last:,}, " if size < rows else ""


def check_bytes(place: str, name: str, array: Codes | Bytes, right: str) -> None:
    """Refuse an array with another SHA-256."""
    if sha256(array) != right:
        raise InvalidBundle(place, got=f"{name}: altered bytes", expected="the SHA-256 in the manifest")


def check_levels(place: str, name: str, codes: Codes, held: Sequence[int]) -> None:
    """Refuse codes above the largest of their columns."""
    if any((chunk.max(axis=0) > held).any() for chunk in chunks(codes, _CHUNK)):
        raise InvalidBundle(place, got=f"{name}: a level beyond its feature's", expected="the levels of the schema")


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
    if manifest.parts:
        _check_parts(manifest, manifest.parts)
    if (manifest.certificate is msgspec.UNSET) == (manifest.record == "region"):
        raise InvalidBundle("certificate", got=f"one of {manifest.record}s, or none", expected="one for regions alone")


def _check_parts(manifest: Manifest, parts: Parts) -> None:
    """Refuse parts that are not those of the rows, or whose digests do not add up to what stands for all."""
    count = -(-manifest.counts.rows // parts.rows) if parts.rows >= 1 else 0
    lists = [(parts.codes, manifest.codes.sha256), (parts.records, manifest.records.sha256)]
    lists += [(parts.packed, manifest.packed)] if manifest.signer else []
    for leaves, whole in lists:
        if len(leaves) != count or count < 2 or not all(len(leaf) == 64 and _is_hex(leaf) for leaf in leaves):
            raise InvalidBundle("parts", got=f"{len(leaves)} digests", expected=f"one for each of {count}, at least 2")
        if root(leaves) != whole:
            raise InvalidBundle("parts", got="other digests", expected="those that the digest of all is made of")


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


def tallies(codes: Codes, levels: Sequence[int]) -> list[Vector]:
    """Return how many rows have each code, for every column; `levels` says how many codes each column may have."""
    counts = [np.zeros(count, dtype=np.int64) for count in levels]
    for chunk in chunks(codes, _CHUNK) if counts else ():
        for found, column in zip(counts, chunk.T, strict=True):
            found += np.bincount(column, minlength=len(found))
    return counts


def sha256(array: Codes | Bytes) -> str:
    """Return the SHA-256 of an array's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks(array, _CHUNK):
        digest.update(_little(chunk))
    return digest.hexdigest()


def leaves_of(array: Codes | Bytes, size: int) -> tuple[str, ...]:
    """Return the SHA-256 of every part of an array."""
    return tuple(sha256(array[start : start + size]) for start in range(0, len(array), size))


def describe(dtype: np.dtype[Any], shape: tuple[int, int], leaves: Sequence[str]) -> _Array:
    """Return what the manifest says about an array, from the SHA-256 of its parts."""
    return _Array(dtype=np.dtype(dtype).newbyteorder("<").str, shape=shape, sha256=root(leaves))


def cut(size: int, codes: Sequence[str], records: Sequence[str]) -> Parts | msgspec.UnsetType:
    """Return what the manifest says about parts of this many rows: nothing if there is only one."""
    return Parts(size, tuple(codes), tuple(records)) if len(codes) > 1 else msgspec.UNSET
