"""A question asked of a server by itself before anybody else does, so that the first applicant need not wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..algebra.arrays import Bytes
from ..algebra.field import Residues
from ..crypto.randomness import new_key
from ..engine import Rows
from .fetch import make_spir
from .reveals import Symbols
from .scheme import Scheme


def rehearse(
    scheme: Scheme, server: int, rows: Rows, records: Bytes, write: Callable[[Residues, Symbols], bytes]
) -> None:
    """Answer a question of zeros and fetch no record, as server n = 1..N: whatever is to be compiled is compiled now.

    `write` turns each part of the answer into bytes, as it would be sent.

    Security: nothing of it is kept, and its randomness comes from a key of its own, which is forgotten.
    """
    common, count = scheme.common(new_key(), bytes(32), b"rehearsal"), len(rows)
    for part in scheme.stream(server, rows, np.zeros(scheme.symbols, dtype=np.int64), common, records):
        write(scheme.alphabet, part)
    if not scheme.reveal.inside:
        fetch = make_spir(servers=scheme.needed(), collusion=scheme.collusion, length=records.shape[1])
        nothing = np.zeros(fetch.query_bytes(scheme.reveal.positions(count)), dtype=np.uint8)
        fetch.answer(1, records, nothing, common, order=scheme.reveal.order(count, common))
