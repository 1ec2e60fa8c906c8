"""Records as servers hold them: packages. A part of a package, or a mixture of several, tells nothing.

An all-or-nothing transform: Rivest, "All-or-nothing encryption and the package transform", FSE 1997; proved for this
shape by Boyko, CRYPTO 1999. A cheating applicant can get one linear mixture of what the servers hold, as long as
one entry. If servers held bare records, a mixture of records that are easy to guess would tell more than one record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from ..algebra.arrays import Bytes
from .randomness import KEY_BYTES, keystream


def package(record: bytes, key: bytes) -> bytes:
    """Return record xor stream(key), then key xor hash of that. The whole opens the record; a part tells nothing."""
    body = _xor(record, keystream(key)(len(record)))
    return body + _xor(key, hashlib.sha256(body).digest())


def unpackage(packaged: bytes) -> bytes:
    """Return the record in a whole package. Anything else gives noise."""
    body, tail = packaged[:-KEY_BYTES], packaged[-KEY_BYTES:]
    return _xor(body, keystream(_xor(tail, hashlib.sha256(body).digest()))(len(body)))


def package_all(records: Iterable[Bytes], secret: bytes, first: int = 0) -> Bytes:
    """Return a package of every record, an (M, length) array. The keys come from the key stream of a secret.

    `first` is the first record's number among all that have keys from this stream.
    """
    stream = keystream(secret, first * KEY_BYTES // 16)
    packages = [package(record.tobytes(), stream(KEY_BYTES)) for record in records]
    return np.frombuffer(b"".join(packages), dtype=np.uint8).reshape(len(packages), -1)


def unpackage_all(packages: Bytes) -> Bytes:
    """Return the records of an (M, length) array of packages."""
    records = b"".join(unpackage(row.tobytes()) for row in packages)
    return np.frombuffer(records, dtype=np.uint8).reshape(len(packages), -1)


def _xor(a: bytes, b: bytes) -> bytes:
    return (np.frombuffer(a, dtype=np.uint8) ^ np.frombuffer(b, dtype=np.uint8)).tobytes()
