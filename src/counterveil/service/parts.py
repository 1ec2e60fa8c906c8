"""Open some rows of a bundle, in the process and on the machine that will scan them, and check every byte of them.

Rows are mapped from a file, or fetched from an object storage by its address, as ranges of bytes. A bundle has digests
of its parts. So a shard reads every part whole in which some of its rows lie, and the head reads only the manifest.

Security: secret to the institution and its servers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..engine import WORTHWHILE, Records, Rows
from ..engine.shards import bounds
from ..errors import InvalidBundle
from ..institution import bundle
from ..institution.bundle import Bundle
from ..institution.database import Database
from ..terms import wire
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of
from ..terms.wire import SignedTerms

_TIMEOUT = 60.0  # seconds without a byte from an object storage


@dataclass(frozen=True)
class Span:
    """Rows of an array in a bundle, and what the parts of the bundle in which they lie must be."""

    what: str  # codes or records
    begin: int  # where the array begins in the file
    shape: tuple[int, int]  # of the array
    dtype: str
    size: int  # rows of a part
    first: int
    end: int
    digests: bytes  # the SHA-256 of each of these parts

    def open(self, place: str) -> NDArray[Any]:
        """Return the rows, mapped from a file or fetched from an address; refuse parts with other bytes."""
        return self._fetch_all(place) if _is_address(place) else self._map(place)

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Return where the parts begin and end in which the rows lie."""
        for start in range(self.first - self.first % self.size, self.end, self.size):
            yield start, min(start + self.size, self.shape[0])

    def _check(self, place: str, start: int, part: NDArray[Any]) -> None:
        number, before = start // self.size, 32 * (start // self.size - self.first // self.size)
        name = f"{bundle.name_of(number, self.size, self.shape[0])}{self.what}"
        bundle.check_bytes(place, name, part, self.digests[before : before + 32].hex())

    def _map(self, place: str) -> NDArray[Any]:
        try:
            whole = np.memmap(place, dtype=self.dtype, mode="r", offset=self.begin, shape=self.shape)
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or "a shorter file"
            raise InvalidBundle(place, got=got, expected="the bundle that the head has") from None
        for start, end in self._parts():
            self._check(place, start, whole[start:end])
        return whole[self.first : self.end]

    def _fetch_all(self, place: str) -> NDArray[Any]:
        rows = np.empty((self.end - self.first, self.shape[1]), dtype=self.dtype)
        for start, end in self._parts():
            part = self._fetch(place, start, end)
            self._check(place, start, part)
            low, high = max(start, self.first), min(end, self.end)
            rows[low - self.first : high - self.first] = part[low - start : high - start]
        return rows

    def _fetch(self, place: str, start: int, end: int) -> NDArray[Any]:
        rows = np.empty((end - start, self.shape[1]), dtype=self.dtype)
        room, at, begin = rows.reshape(-1).view(np.uint8).data, 0, self.begin + start * rows[:1].nbytes
        wanted = {"range": f"bytes={begin}-{begin + len(room) - 1}", "accept-encoding": "identity"}
        try:
            with httpx2.stream("GET", place, headers=wanted, timeout=_TIMEOUT) as reply:
                if reply.status_code != httpx2.codes.PARTIAL_CONTENT:
                    raise InvalidBundle(place, got=f"status {reply.status_code}", expected="206, a range of bytes")
                for piece in reply.iter_bytes():
                    if at + len(piece) > len(room):
                        raise InvalidBundle(place, got="more bytes", expected=f"{len(room)}")
                    room[at : at + len(piece)] = piece
                    at += len(piece)
        except httpx2.HTTPError as error:
            raise InvalidBundle(place, got=type(error).__name__, expected="a range of bytes") from None
        if at < len(room):
            raise InvalidBundle(place, got=f"{at} bytes", expected=f"{len(room)}")
        return rows


class Ways(NamedTuple):
    """How rows are laid out for scans."""

    engine: str = "cpu"  # a name in `engine.ENGINES`
    threads: int = 1
    worthwhile: int = WORTHWHILE  # codes of fewer bytes stay as they are


@dataclass(frozen=True)
class BundlePart:
    """Some rows of a bundle and their records, and how they are to be laid out. It is plain data, and can be sent."""

    place: str  # the bundle's file, or its address in an object storage
    terms: bytes  # the terms file, compressed: it says which columns are scanned
    codes: Span
    served: Span
    ways: Ways

    def __call__(self) -> tuple[Rows, Records]:
        """Open the rows and records, and lay the rows out for scans."""
        deployment = deployment_of(check_terms(wire.decode_terms(zlib.decompress(self.terms))).terms)
        codes = self.codes.open(self.place)
        bundle.check_levels(self.place, "codes", codes, deployment.tariff.layout.held)
        scanner = engine.named(self.ways.engine)
        rows = scanner.lay_out(deployment.rows(codes), threads=self.ways.threads, worthwhile=self.ways.worthwhile)
        return rows, scanner.hold(self.served.open(self.place))


def parts_of(
    database: Database,
    issued: SignedTerms,
    deployment: Deployment,
    ways: Ways,
    *,
    count: int,
    place: str = "",
) -> tuple[list[int], list[BundlePart]]:
    """Cut an opened bundle into parts of almost equal size; return where they begin, and how to open each.

    `place` is where the parts will be opened: by default, the file that the bundle was opened from.
    """
    together = deployment.scheme.protocol.together(database.rows)
    cuts, terms = bounds(database.rows, together, count), zlib.compress(wire.encode_terms(issued))
    if database.file is None:
        raise InvalidBundle("bundle", got="rows in memory", expected="a file: shards open it themselves")
    where = place or str(database.file.path)
    where = where if _is_address(where) else str(Path(where).absolute())
    spans = [_spans(database.file, *ends) for ends in pairwise(cuts)]
    return cuts, [BundlePart(where, terms, codes, served, ways) for codes, served in spans]


def _spans(file: Bundle, first: int, end: int) -> list[Span]:
    """Return what a shard must know of its codes and of its records."""
    manifest, made = file.manifest, list[Span]()
    size = manifest.part_rows
    leaves = zip(*manifest.leaves()[first // size : -(-end // size)], strict=True)
    for array, begin, own in zip((file.codes, file.served), bundle.begins(manifest), leaves, strict=True):
        what, dtype = "records" if made else "codes", array.dtype.newbyteorder("<").str
        made.append(Span(what, begin, array.shape, dtype, size, first, end, bytes.fromhex("".join(own))))
    return made


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))
