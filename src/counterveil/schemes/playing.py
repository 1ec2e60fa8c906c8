"""Play all parties of one question in this process, and keep every message."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..algebra.arrays import Bytes, Vector
from ..crypto.randomness import Fresh, Randomness, Streams, new_key
from ..engine import as_rows, hold
from ..engine.party import Party, Role, Send, chained, play, released
from .forms import Question
from .protocols import Held, Seen, Size
from .scheme import Scheme


class Transcript(NamedTuple):
    """All messages of one question, and its result."""

    queries: Vector  # (N, symbols): row n - 1 is what server n sees, of all requests that the question takes
    answers: list[Any]
    revealed: Vector
    position: int  # -1 if the protocol tells none
    record: bytes | None  # where records were given
    record_queries: list[Any]  # by server: everything that it sees while a record is fetched


def run(
    scheme: Scheme,
    rows: ArrayLike,
    question: Question,
    *,
    randomness: Randomness | None = None,
    common: Streams | None = None,
    records: Bytes | None = None,
) -> Transcript:
    """Play all parties: the applicant asks, every server answers, the applicant recovers, then fetches a record if any.

    Every message must have the size that the scheme has announced.
    """
    codes = scheme.form.load(rows)
    shared = common or scheme.common(new_key(), scheme.digest(rows), b"run")
    size, draw = Size(len(codes), 0 if records is None else records.shape[1]), randomness or Fresh()
    held = Held(as_rows(codes), None if records is None else hold(records), lambda _: shared)
    asked, seats, messages = scheme.requests(size), range(scheme.servers), list[tuple[Role, Send]]()
    parties: dict[Role, Party[Any]] = {"applicant": scheme.ask(question, size, draw)}
    if scheme.protocol.dealt_by == "dealer":
        parties["dealer"] = scheme.protocol.deal(scheme, size, draw)
    for seat in seats:
        answers = [released(scheme.answering(seat, n, held), each.answered) for n, each in enumerate(asked)]
        parties[seat] = chained(answers)
    seen: Seen = play(parties, watch=lambda role, send: messages.append((role, send)))["applicant"]

    def sent(source: Role, to: Role, request: int) -> list[Any]:
        return [m.symbols for role, m in messages if (role, m.to, m.request) == (source, to, request)]

    def whole(source: Role, to: Role, request: int) -> Any:
        return np.concatenate([np.zeros(0, dtype=np.uint8), *sent(source, to, request)])

    for number, request in enumerate(asked):
        sizes = Counter[tuple[Role, Role]]()
        for role, message in messages:
            sizes[role, message.to] += message.symbols.size if message.request == number else 0
        if dict(+sizes) != request.traffic():
            raise AssertionError(f"request {number}: got messages of {dict(+sizes)}, expected {request.traffic()}")
    several = range(scheme.protocol.questions)
    return Transcript(
        queries=np.stack([np.concatenate([sent("applicant", seat, n)[0] for n in several]) for seat in seats]),
        answers=[np.concatenate([whole(seat, "applicant", n) for n in several]) for seat in seats],
        revealed=seen.revealed,
        position=seen.positions[0] if seen.positions else -1,
        record=seen.records[0] if seen.records else None,
        record_queries=[whole("applicant", seat, len(several)) for seat in seats],
    )
