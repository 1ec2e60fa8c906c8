"""Sign records and package them, some at a time, so that several processes can share the work.

After every record comes the issuer's signature of (digest, record). Both are packaged together. The key of a package is
at the package's number in one key stream, so every process can find the keys of its own records.

Security: for the institution alone. The issuer's private key goes to the institution's own processes through a pipe, or
to its own cluster (`cluster`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from ..algebra.arrays import Bytes
from ..crypto.keys import SIGNATURE_BYTES, Issuer
from ..crypto.packages import package_all
from .parallel import Crew

AT_ONCE = 4096  # records in a task


def signed(chunks: Iterable[Bytes], issuer: Issuer, digest: bytes, crew: Crew) -> Iterator[Bytes]:
    """Return the packages of records, chunk by chunk, in order. The same key and digest give the same bytes."""
    secret = hashlib.sha256(issuer.sign("packages", digest)).digest()
    return crew(partial(_signed, issuer.raw(), digest, secret), _numbered(chunks))


def _numbered(chunks: Iterable[Bytes]) -> Iterator[tuple[int, Bytes]]:
    """Return every chunk with the number of its first record."""
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += len(chunk)


def _signed(raw: bytes, digest: bytes, secret: bytes, task: tuple[int, Bytes]) -> Bytes:
    first, records = task
    issuer = Issuer.from_raw(raw)
    signatures = b"".join(issuer.sign("record", digest, record.tobytes()) for record in records)
    columns = np.frombuffer(signatures, dtype=np.uint8).reshape(-1, SIGNATURE_BYTES)
    return package_all(np.hstack([records, columns]), secret, first)


def pieces(records: Bytes, rows: int = AT_ONCE) -> Iterator[Bytes]:
    """Return some records at a time."""
    return (records[start : start + rows] for start in range(0, len(records), rows))
