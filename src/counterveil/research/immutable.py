"""Compare I-PCR, in one and in two phases, with our `table`: servers, symbols, field, and what a question gives away.

The numbers are counted on real messages and enumerated, on the synthetic data of the first paper: R = 3, d = 3, M = 3.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from rich.progress import track

from ..algebra.field import Field
from ..schemes.forms import Question
from ..schemes.playing import run
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme, make_scheme
from .experiments import Claim
from .leakage import Enumerated, exact, populations
from .newer import SINGLE, TWO

R, D, M, BASE = 3, 3, 3, 757
_MAXIMAL = {"i-pcr": SINGLE, "i-pcr-two-phase": TWO}  # as the notebook prints it, k = 0..3; TWO by another formula
_SCHEMES: list[tuple[str, str, tuple[str | None, ...], str | None]] = [  # what, scheme, symbols and q of the notebook
    ("I-PCR, single-phase", "i-pcr", ("6d + 3M",), "> R²d(R²d + 1)"),
    ("I-PCR, two-phase", "i-pcr-two-phase", ("6d + 3M", "3d + 6M"), None),
    ("table, distances", "table/distances", (None,), None),
    ("table, sealed", "table/sealed", (None,), None),
]


def immutable(*, progress: bool = False) -> list[Claim]:
    """Return the servers, symbols and field of each scheme, and both leakages with k = 0..d immutable features."""
    claims = []
    for what, name, symbols, above in track(_SCHEMES, description="immutable", transient=True, disable=not progress):
        scheme = _made(name)
        claims.append(_counted(f"{what}: servers", None, scheme.servers))
        for number, (printed, count) in enumerate(zip(symbols, _symbols(scheme), strict=True), start=1):
            phase = f" of phase {number}" if len(symbols) > 1 else ""
            unit = "symbols" if scheme.reveal.length(M) else "symbols and bytes"
            claims.append(_counted(f"{what}: {unit}{phase}", printed, count))
        claims.append(_counted(f"{what}: q", above, scheme.field.q))
        for k in range(D + 1):
            found = _leakage(scheme, k)
            printed = _MAXIMAL[name][k] if name in _MAXIMAL else None
            claims.append(_enumerated(f"{what}: leakage, k = {k}", None, found.bits))
            claims.append(_enumerated(f"{what}: maximal leakage, k = {k}", printed, found.worst))
    return claims


def _made(name: str) -> Scheme:
    own: dict[str, Any] = {"cap": R * R * D + 1} if name.startswith("table") else {}
    return make_scheme(name, largest=R, d=D, **own)


def _symbols(scheme: Scheme) -> list[int]:
    """Play a question, and return how many symbols it took, request by request; `run` compares each with its size."""
    run(scheme, np.zeros((M, D), dtype=np.int64), Question([1] * D, immutable=[1] + [0] * (D - 1)))
    return [each.up * scheme.servers + sum(each.down) for each in scheme.requests(Size(M))]


def _leakage(scheme: Scheme, k: int) -> Enumerated:
    """Enumerate what a question tells of M distinct rows, if the first k features are immutable."""
    points = np.array(list(itertools.product(range(R + 1), repeat=D)))
    kept = [1] * k + [0] * (D - k)
    cases = populations(
        scheme.form.costs(points[(points != x).any(axis=1)], Question(x, immutable=kept)) for x in points
    )
    return exact(scheme.reveal, Field(BASE), cases, rows=M, distinct=True)


def _enumerated(what: str, printed: str | None, bits: float) -> Claim:
    value = max(0.0, bits / math.log2(BASE))
    return Claim(what, printed, value, value, value, "enumerated", source="notebook")


def _counted(what: str, printed: str | None, ours: int) -> Claim:
    return Claim(what, printed, ours, ours, ours, source="notebook")
