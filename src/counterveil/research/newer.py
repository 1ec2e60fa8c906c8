"""The authors' newer figures of maximal leakage, beside what the definition gives; and several questions, enumerated.

The figures are those that the authors' public notebook `privateCFTiTRevision.ipynb` and the logs beside it print
(repository `pasandissanayake/private-cf`, commit 9d3aa0f). They belong to arXiv 2411.10429, "Private Counterfactual
Retrieval With Immutable Features", and arXiv 2508.03681, "What If, But Privately". The notebook counts different
outputs. That is the definition wherever the output is a function of the rows and every vector of rows is counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ..algebra.arrays import Vector
from ..algebra.field import Field
from ..schemes.reveals import make_reveal
from .budget import exact as exact_together
from .experiments import SYNTHETIC, Claim, compas_data, synthetic_points
from .leakage import exact, populations
from .maximal import worst_of

Flags = NDArray[np.bool_]
_Q, _ROWS = 757, 3
_PRINTED = {"distances (baseline)": "1.30390", "masked, d_min 2": "1.10198", "masked, d_min 3": "0.98905"}
SINGLE = ("1.30390", "1.65336", "1.65336", "1.30390")  # k = 0..3 immutable features
TWO = ("1.48576", "1.26847", "0.76556", "0.31367")
_COMPAS_Q, _SAMPLES = 2003, 100_000
_NEITHER = -1  # stands for the cost of a row that differs in an immutable feature: two-phase tells no cost of it


def maximal_synthetic(*, progress: bool = False) -> list[Claim]:
    """Enumerate maximal leakage for R = 3, d = 3, M = 3 distinct rows, base 757: our reveals, and both I-PCR."""
    points = synthetic_points()
    costs = [((points - x) ** 2).sum(axis=1)[(points != x).any(axis=1)] for x in points]
    claims = []
    for what, reveal, *_ in track(SYNTHETIC, description="reveals", transient=True, disable=not progress):
        worst = exact(reveal, Field(_Q), populations(costs), rows=_ROWS, distinct=True).worst
        claims.append(_claim(what, _PRINTED.get(what), worst, _Q))
    for k, printed in enumerate(SINGLE):
        claims.append(_immutable(f"I-PCR single-phase, {k} immutable", printed, [c for _, c in _single(k)]))
    for k, printed in enumerate(TWO):
        claims.append(_immutable(f"I-PCR two-phase, {k} immutable", printed, [c for *_, c in _two(k)]))
        counted = max(_as_the_notebook(x, mutable, others, agree) for x, mutable, others, agree, _ in _two(k))
        note = "by the notebook's recipe: unordered rows, truncated squares, the indicator counted twice"
        claims.append(_claim(f"two-phase as the notebook counts, {k} immutable", printed, counted, _Q, note))
    return claims


def _claim(what: str, printed: str | None, bits: float, q: int, note: str = "") -> Claim:
    value = bits / math.log2(q)
    return Claim(what, printed, value, value, value, note, source="notebook")


def _immutable(what: str, printed: str, costs: list[Vector]) -> Claim:
    """Return the maximal leakage of costs in a fixed order; every distinct set of costs is enumerated once."""
    cases = populations(costs)
    return _claim(what, printed, exact(make_reveal("distances"), Field(_Q), cases, rows=_ROWS, distinct=True).worst, _Q)


def _asked(k: int) -> Iterator[tuple[Vector, Flags, Vector]]:
    """Yield every applicant, every choice of k immutable features, and all rows that differ from the applicant."""
    points = synthetic_points()
    for fixed in itertools.combinations(range(3), k):
        immutable = np.isin(np.arange(3), fixed)
        for x in points:
            yield x, immutable, points[(points != x).any(axis=1)]


def _single(k: int) -> Iterator[tuple[Vector, Vector]]:
    """Yield applicants, and what rows cost them: a mismatch of an immutable feature costs R²d + 1 times as much."""
    for x, immutable, others in _asked(k):
        yield x, ((others - x) ** 2 * np.where(immutable, 28, 1)).sum(axis=1)


def _two(k: int) -> Iterator[tuple[Vector, Flags, Vector, Flags, Vector]]:
    """Yield applicants, mutable features, rows, which rows agree, and what is told of each: its cost if it agrees."""
    for x, immutable, others in _asked(k):
        agree = (others == x)[:, immutable].all(axis=1)
        yield x, ~immutable, others, agree, np.where(agree, ((others - x) ** 2).sum(axis=1), _Q + _NEITHER)


def _as_the_notebook(x: Vector, mutable: Flags, others: Vector, agree: Flags) -> float:
    """Return what the notebook counts, in bits: outputs of unordered rows, truncated squares, and M bits on top."""
    told = [
        (bool(e), int(np.linalg.norm(y[mutable] * e - x[mutable]) ** 2)) for y, e in zip(others, agree, strict=True)
    ]
    return math.log2(len(set(itertools.combinations(told, _ROWS)))) + _ROWS


_COMPAS = (
    ("Baseline PCR", make_reveal("distances")),
    ("Diff-PCR", make_reveal("differences")),
    ("Mask-PCR, d_min 2", make_reveal("masked", d_min=2)),
)


def maximal_compas(
    folder: Path | None = None, *, applicants: int = 4, seed: int = 1, progress: bool = False
) -> list[Claim]:
    """Return the authors' sampled figures, their ceiling, and the truth: M = 5 of 717 rows, base 2003."""
    data, generator, rows = compas_data(folder), np.random.default_rng(seed), 5
    costs = [((data.accepted - x) ** 2).sum(axis=1) for x in data.rejected]
    claims = []
    ceiling = f"the ceiling: ln {_SAMPLES:,} / ln {_COMPAS_Q}"
    for what, reveal in track(_COMPAS, description="COMPAS", transient=True, disable=not progress):
        chosen = generator.choice(len(costs), size=applicants, replace=False)
        counted = max(_counted(reveal.differences, reveal.d_min, costs[i], rows, generator) for i in chosen)
        claims.append(_claim(f"{what}, {_SAMPLES:,} samples", "1.51438", counted, _COMPAS_Q, ceiling))
        found = worst_of(reveal, [np.unique(each) for each in costs], rows, generator=generator)
        bits, low, high = (each / math.log2(_COMPAS_Q) for each in (found.bits, found.low, found.high))
        claims.append(Claim(f"{what}, true maximal leakage", None, bits, low, high, found.method))
    return claims


def _counted(differences: bool, width: int, costs: Vector, rows: int, generator: np.random.Generator) -> float:
    """Return what the authors' script counts, in bits: different outputs of sampled rows, each with every mask."""
    tuples = generator.choice(costs, size=(rows, _SAMPLES))
    keys = []
    for mask in itertools.product(range(width), repeat=rows):
        shown = tuples + np.array(mask)[:, None]
        shown = np.diff(shown, axis=0) if differences else shown
        keys.append(sum(each * _COMPAS_Q**i for i, each in enumerate(shown)))
    return math.log2(np.unique(np.concatenate(keys)).size) - rows * math.log2(width)


def several_questions(most: int = 3, *, progress: bool = False) -> list[Claim]:
    """Enumerate what 1 to `most` honest questions tell, with records: 2 rows of the 8 corners of a cube, in bits."""
    points = np.array(list(itertools.product(range(2), repeat=3)))
    costs = [((points - x) ** 2).sum(axis=1) for x in points]
    shown = [(what, reveal) for what, reveal, *_ in SYNTHETIC if "index" not in what and "d_min 3" not in what]
    claims = []
    for what, reveal in track(shown, description="questions", transient=True, disable=not progress):
        for t in range(1, most + 1):
            groups = list(itertools.combinations(costs, t))
            bits = [exact_together(reveal, Field(11), group, 2, records=True) for group in groups]
            mean, worst = float(np.mean([each.bits for each in bits])), max(each.worst for each in bits)
            note = f"maximal leakage {worst:.4f}"
            name = what.removesuffix(", before the record")
            claims.append(Claim(f"{name}, t = {t}", None, mean, mean, mean, note))
    return claims
