"""A server's rehearsal runs whatever a question runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import counterveil
from counterveil import FORMS, make_scheme
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.schemes.fetch import make_spir
from counterveil.schemes.rehearsal import rehearse
from counterveil.schemes.scheme import Scheme
from counterveil.terms import wire

HOME = str(Path(counterveil.__file__).parent)
ROWS, RECORD = 40, 97
SCHEMES: list[tuple[str, dict[str, Any]]] = [
    *((f"{name}/differences", {"shuffle": True}) for name in FORMS),
    ("table/distances", {"servers": 3, "collusion": 2}),
    ("table/sealed", {}),
    ("table/sealed_record", {}),
]


def functions(work: Callable[[], object]) -> set[CodeType]:
    """Return the code of this project's functions that some work runs in this thread."""
    ran: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            ran.add(frame.f_code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return ran


def answering(scheme: Scheme, server: int, rows: Any, records: Any) -> Callable[[], None]:
    """Return what answers a real question and a real record step, as a server does."""
    common = scheme.common(new_key(), bytes(32), b"ticket")
    query = Fresh().elements(scheme.field.q, scheme.symbols)
    spir = make_spir(servers=scheme.needed(), collusion=scheme.collusion, length=RECORD)
    wanted = spir.query(scheme.reveal.positions(ROWS), 3, Fresh())[0]

    def answer() -> None:
        for part in scheme.stream(server, rows, query, common, records):
            wire.pack(scheme.alphabet, part)
        if not scheme.reveal.inside:
            spir.answer(1, records, wanted, common, order=scheme.reveal.order(ROWS, common))

    return answer


@pytest.mark.parametrize(("name", "given"), SCHEMES, ids=[f"{n} {g}" for n, g in SCHEMES])
def test_all_that_a_question_runs_was_rehearsed(name: str, given: dict[str, Any]) -> None:
    scheme = make_scheme(name, levels=15, d=4, **given)
    generator = np.random.default_rng(1)
    rows = generator.integers(0, 16, (ROWS, 4), dtype=np.uint8)
    records = generator.integers(0, 256, (ROWS, RECORD), dtype=np.uint8)
    for server in range(1, scheme.servers + 1):
        rehearsed = functions(partial(rehearse, scheme, server, rows, records, wire.pack))
        asked = functions(answering(scheme, server, rows, records))
        assert len(asked) > 10
        assert not {code.co_qualname for code in asked - rehearsed}
