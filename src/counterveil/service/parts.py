"""Open a part of a bundle, in the process and on the machine that will scan it, and check every byte of it.

The part is mapped from a file, or fetched from an object storage by its address, as a range of bytes.

Security: secret to the institution and its servers.
"""

from __future__ import annotations

import hashlib
import zlib
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
from ..institution.database import Database
from ..terms import wire
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of
from ..terms.wire import SignedTerms

_CHUNK = 1 << 24  # bytes hashed at a time
_TIMEOUT = 60.0  # seconds without a byte from an object storage


@dataclass(frozen=True)
class Span:
    """Rows of an array in a bundle: where they begin in the file, and what they must be."""

    begin: int
    shape: tuple[int, int]
    dtype: str
    sha256: str

    def open(self, place: str) -> NDArray[Any]:
        """Return the rows, mapped from a file or fetched from an address; refuse other bytes than these."""
        rows = self._fetch(place) if _is_address(place) else self._map(place)
        if _sha256(rows) != self.sha256:
            raise InvalidBundle(place, got="other bytes", expected="the rows of the bundle that the head has")
        return rows

    def _map(self, place: str) -> NDArray[Any]:
        try:
            return np.memmap(place, dtype=self.dtype, mode="r", offset=self.begin, shape=self.shape)
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or "a shorter file"
            raise InvalidBundle(place, got=got, expected="the bundle that the head has") from None

    def _fetch(self, place: str) -> NDArray[Any]:
        rows = np.empty(self.shape, dtype=self.dtype)
        room, at = rows.reshape(-1).view(np.uint8).data, 0
        wanted = {"range": f"bytes={self.begin}-{self.begin + len(room) - 1}", "accept-encoding": "identity"}
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
        codes = deployment.rows(self.codes.open(self.place))
        scanner = engine.named(self.ways.engine)
        rows = scanner.lay_out(codes, threads=self.ways.threads, worthwhile=self.ways.worthwhile)
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
    where = place or str(_mapped(database.codes).filename)
    where = where if _is_address(where) else str(Path(where).absolute())
    made = [
        BundlePart(where, terms, _span(database.codes, first, last), _span(database.served, first, last), ways)
        for first, last in pairwise(cuts)
    ]
    return cuts, made


def _span(array: NDArray[Any], first: int, last: int) -> Span:
    rows, root = array[first:last], _mapped(array)
    begin = root.offset + _address(rows) - _address(root)
    columns = array.shape[1]
    return Span(begin, (len(rows), columns), array.dtype.newbyteorder("<").str, _sha256(rows))


def _mapped(array: NDArray[Any]) -> np.memmap[Any, Any]:
    """Return the map of the file that an array is part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    if not isinstance(array, np.memmap):
        raise InvalidBundle("bundle", got="rows in memory", expected="a file: shards open it themselves")
    return array


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _sha256(rows: NDArray[Any]) -> str:
    digest, step = hashlib.sha256(), max(1, _CHUNK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        digest.update(np.ascontiguousarray(rows[start : start + step]).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))
