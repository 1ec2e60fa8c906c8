"""Reproduce the paper's tables and its figure: each number that it prints, beside the one that this code computes.

These are simulations: rows and applicants come from a seeded generator. The protocol's own randomness does not.

Paper: `table_leakageValues`, `table_leakageValuesCompas`, `fig_accQuantizationTradeOff`.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ..algebra.arrays import Vector
from ..algebra.field import Field
from ..crypto.randomness import new_key
from ..errors import InvalidData, MissingPackage
from ..schemes.forms import Question
from ..schemes.playing import run
from ..schemes.protocols import Garbled
from ..schemes.reveals import make_reveal
from ..schemes.scheme import Scheme, make_scheme
from .leakage import Index, Leakage, Revealing, estimate, exact, populations

Floats = NDArray[np.float64]

WINE = "winequality-white.csv"
COMPAS = "compas-two-years-reduced.csv"
_FULL = "compas-scores-two-years.csv"
_SHA256 = {
    WINE: "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    COMPAS: "29da83cacd79d5457556f588d6a0c44687c5c85e8144792c54bce8053c7db607",
    _FULL: "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
}
_RAW = "https://raw.githubusercontent.com"
_SOURCES = {
    WINE: f"{_RAW}/auxa/Wine-Quality-Prediction/13f35ab1aea80d0f6131ca45e9770f6aa6e2cd3e/{WINE}",
    _FULL: f"{_RAW}/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a/{_FULL}",
}


CEILING = (math.log(100_000) / math.log(2003), "where counting 100,000 samples saturates")


@dataclass(frozen=True)
class Claim:
    """One number as its authors print it, digit by digit, and as this code computes it.

    `printed` is None if the authors print none. `source` says where they do: in the paper, or in their public notebook.
    `earlier` is what another program of ours found; tests compare it.
    """

    what: str
    printed: str | None
    ours: float
    low: float
    high: float
    note: str = ""
    earlier: float | None = None
    source: Literal["paper", "notebook"] = "paper"

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        interval = [round(self.low, 6), round(self.high, 6)]
        return (
            {"what": self.what, "printed": self.printed, "ours": round(self.ours, 6), "interval": interval}
            | ({"source": self.source} if self.printed else {})
            | ({"note": self.note} if self.note else {})
        )


def data_file(name: str, folder: Path | None = None) -> Path:
    """Return a checked data file: from `folder`, or COUNTERVEIL_DATA, or downloaded once into the user's cache."""
    where = folder or (Path(os.environ["COUNTERVEIL_DATA"]) if os.environ.get("COUNTERVEIL_DATA") else None)
    if where is not None:
        path = where / name
        if not path.is_file():
            raise InvalidData(str(path), got="no file", expected=f"{name}; see docs/experiments.md")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != _SHA256[name]:
            raise InvalidData(str(path), got=f"SHA-256 {digest[:16]}…", expected=f"{_SHA256[name][:16]}…")
        return path
    try:
        import pooch
    except ImportError:
        raise MissingPackage("download", got="no pooch", expected="counterveil[reproduce], or --data FOLDER") from None
    source = _FULL if name == COMPAS else name
    try:
        fetched = Path(
            pooch.retrieve(
                _SOURCES[source], f"sha256:{_SHA256[source]}", fname=source, path=pooch.os_cache("counterveil")
            )
        )
    except Exception as error:
        raise InvalidData(name, got=f"no download: {error}", expected="a connection, or --data FOLDER") from None
    if name != COMPAS:
        return fetched
    _reduced(fetched)
    return data_file(COMPAS, fetched.parent)


_COUNTS = ["juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
_COMPAS_COLUMNS = ["age", "age_cat", "sex", "race", *_COUNTS, "days_b_screening_arrest", "c_jail_time"]
_COMPAS_COLUMNS += ["c_charge_degree", "is_recid", "two_year_recid"]


def _reduced(path: Path) -> Path:
    """Write the columns of ProPublica's file that the experiment needs, without anybody's name or dates."""
    reduced = path.with_name(COMPAS)
    with path.open(newline="", encoding="utf-8") as file, reduced.open("w", newline="", encoding="utf-8") as out:
        reader = csv.reader(file)
        names = next(reader)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(_COMPAS_COLUMNS)
        for row in reader:
            person = dict(zip(reversed(names), reversed(row), strict=True))  # the first of two columns with one name
            entry, exit_ = (person[f"c_jail_{way}"] for way in ("in", "out"))
            if entry and exit_:
                stay = datetime.fromisoformat(exit_) - datetime.fromisoformat(entry)
                person["c_jail_time"] = str(stay.days)
            writer.writerow([person.get(name, "") for name in _COMPAS_COLUMNS])
    return reduced


# --- the synthetic table -----------------------------------------------------------------------------------------

SYNTHETIC: list[tuple[str, Revealing, str | None, float]] = [  # what, as printed, and an earlier figure of ours
    ("distances (baseline)", make_reveal("distances"), "1.143", 1.14321),
    ("differences (diff)", make_reveal("differences"), "0.940", 0.94046),
    ("masked, d_min 2", make_reveal("masked", d_min=2), "0.911", 0.91100),
    ("masked, d_min 3", make_reveal("masked", d_min=3), "0.777", 0.77731),
    ("masked differences, d_min 2", make_reveal("masked_differences", d_min=2), None, 0.66571),
    ("masked differences, d_min 3", make_reveal("masked_differences", d_min=3), None, 0.52786),
    ("shuffled distances", make_reveal("distances", shuffle=True), None, 0.8967),
    ("shuffled differences", make_reveal("differences", shuffle=True), None, 0.6939),
    ("shuffled masked, d_min 2", make_reveal("masked", shuffle=True, d_min=2), None, 0.6744),
    ("shuffled masked, d_min 3", make_reveal("masked", shuffle=True, d_min=3), None, 0.5513),
    ("shuffled masked differences, d_min 2", make_reveal("masked_differences", shuffle=True, d_min=2), None, 0.4291),
    ("shuffled masked differences, d_min 3", make_reveal("masked_differences", shuffle=True, d_min=3), None, 0.3058),
    ("index alone, ties to the first", Index(), None, 0.16487),
    ("index alone, ties at random", Index(shuffle=True), None, 0.15266),
    ("sealed, before the record", Garbled(), None, 0.0),
]


def synthetic_points() -> Vector:
    """Return all people of R = 3 and d = 3."""
    return np.array(list(itertools.product(range(4), repeat=3)))


def synthetic(*, progress: bool = False) -> list[Claim]:
    """Enumerate the paper's synthetic table and our other reveals: R = 3, d = 3, M = 3 distinct rows, base 757."""
    points = synthetic_points()
    cases = populations(((points - x) ** 2).sum(axis=1)[(points != x).any(axis=1)] for x in points)
    claims = []
    for what, reveal, printed, earlier in track(
        SYNTHETIC, description="synthetic", transient=True, disable=not progress
    ):
        found = exact(reveal, Field(757), cases, rows=3, distinct=True).base(757)
        claims.append(Claim(what, printed, found, found, found, earlier=earlier))
    return claims


# --- COMPAS ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compas:
    """The data as the paper prepares it; docs/experiments.md lists the steps."""

    rows: int
    by_class: tuple[int, int]
    rejected: Vector  # (560, 20) levels
    accepted: Vector  # (717, 20)


def compas_data(folder: Path | None = None, levels: int = 10) -> Compas:
    """Prepare COMPAS: filter, encode one-hot, take the training part, scale, floor to levels, drop duplicates."""
    with data_file(COMPAS, folder).open(newline="", encoding="utf-8") as file:
        people = [
            person
            for person in csv.DictReader(file)
            if person["is_recid"] != "-1"
            and person["c_charge_degree"] != "O"
            and person["days_b_screening_arrest"] != ""
            and abs(float(person["days_b_screening_arrest"])) <= 30
        ]
    numbers = ["age", "priors_count", "days_b_screening_arrest", "c_jail_time"]
    numbers += ["juv_fel_count", "juv_other_count", "juv_misd_count"]
    columns = [[float(person[name]) for person in people] for name in numbers]
    for name in ("c_charge_degree", "race", "age_cat", "sex"):
        columns += [
            [float(person[name] == category) for person in people] for category in sorted({p[name] for p in people})
        ]
    features, label = np.array(columns).T, np.array([int(person["is_recid"]) for person in people])
    order = np.random.RandomState(42).permutation(len(people))
    train = order[int(0.2 * len(people)) + 1 :]
    values, labels = features[train], label[train]
    values = (values - values.min(axis=0)) / (values.max(axis=0) - values.min(axis=0))
    codes = _floored(values, levels)
    _, first = np.unique(codes, axis=0, return_index=True)
    kept = np.sort(first)
    codes, labels = codes[kept], labels[kept]
    by_class = (int((label == 0).sum()), int((label == 1).sum()))
    return Compas(len(people), by_class, codes[labels == 0], codes[labels == 1])


def _floored(values: Floats, levels: int) -> Vector:
    """Return the first i with i*s <= v < i*s + s in float64, where s = 1/R; R if there is no such i."""
    step = 1 / levels
    codes = np.full(values.shape, levels, dtype=np.int64)
    for i in reversed(range(levels + 1)):
        codes[(i * step <= values) & (values < i * step + step)] = i
    return codes


_COMPAS_TABLE = [  # what, as printed, and the true leakage by an earlier program of ours
    ("Baseline PCR", make_reveal("distances"), "1.51437", 3.0803),
    ("Diff-PCR", make_reveal("differences"), "1.51436", None),
    ("Mask-PCR, d_min 2", make_reveal("masked", d_min=2), "1.51427", 2.7239),
    ("Mask-PCR, d_min 3", make_reveal("masked", d_min=3), None, 2.5144),
    ("Mask-PCR, d_min 5", make_reveal("masked", d_min=5), None, 2.2307),
    ("Mask-PCR, d_min 10", make_reveal("masked", d_min=10), None, 1.8465),
]


def compas(
    folder: Path | None = None, *, samples: int = 100_000, applicants: int = 20, seed: int = 1, progress: bool = False
) -> list[Claim]:
    """Return the sizes of the data, the paper's estimates and their ceiling, and the true leakage; M = 5, base 2003."""
    data = compas_data(folder)
    q, rows, generator = 2003, 5, np.random.default_rng(seed)
    claims = [
        _count("rows after filtering", 6172, data.rows),
        _count("features", 20, data.accepted.shape[1]),
        _count("not recidivist", 3182, data.by_class[0]),
        _count("recidivist", 2990, data.by_class[1]),
        _count("distinct, tau = 0 (queries)", 560, len(data.rejected)),
        _count("distinct, tau = 1 (rows)", 717, len(data.accepted)),
    ]
    costs = [((data.accepted - x) ** 2).sum(axis=1) for x in data.rejected]
    chosen = generator.choice(len(costs), size=applicants, replace=False)
    for what, reveal, printed, _ in _COMPAS_TABLE:
        if printed is None:
            continue
        values = [
            _paper_estimator(reveal, Field(q), costs[i], rows, samples, generator)
            for i in track(chosen, description=f"{what}, as the paper", transient=True, disable=not progress)
        ]
        value = float(np.mean(values)) / math.log2(q)
        note = f"the paper's estimator; its ceiling is log {samples:,} = {math.log(samples) / math.log(q):.5f}"
        claims.append(Claim(f"{what}, {samples:,} samples", printed, value, value, value, note))
    cases = populations(costs)
    for what, reveal, _, earlier in _COMPAS_TABLE:
        found = estimate(reveal, cases, rows, samples=20_000, generator=generator, progress=progress)
        claims.append(_claim(f"{what}, true leakage", earlier, found, q))
    return claims


def _count(what: str, printed: int, ours: int) -> Claim:
    return Claim(what, str(printed), ours, ours, ours)


def _claim(what: str, earlier: float | None, found: Leakage, q: int) -> Claim:
    scale = math.log2(q)
    return Claim(what, None, found.bits / scale, found.low / scale, found.high / scale, found.method, earlier)


def _paper_estimator(
    reveal: Any, field: Field, costs: Vector, rows: int, samples: int, generator: np.random.Generator
) -> float:
    """Estimate the mutual information in bits as the paper does: every sampled tuple counts as equally likely."""
    tuples = generator.choice(costs, size=(rows, samples))
    noise = list(itertools.product(range(reveal.d_min), repeat=rows)) if reveal.masked else [(0,) * rows]
    keys = []
    for mask in noise:
        shown = reveal.apply(field, tuples.copy(), _Mask(np.array(mask)[:, None]))
        keys.append(sum(symbol * field.q**i for i, symbol in enumerate(shown)))
    _, where, counts = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
    surprise = -np.log2(counts[where.reshape(-1)] / (samples * len(noise)))
    given = math.log2(len(noise))  # H(revealed | tuple): every mask shows another value
    return float(surprise.mean()) - given


class _Mask:
    """Common randomness with one given mask."""

    def __init__(self, mask: Vector) -> None:
        self._mask = mask

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        return self._mask

    def order(self, count: int) -> Vector:
        return np.arange(count)


# --- accuracy ----------------------------------------------------------------------------------------------------

LEVELS = (20, 40, 60, 80, 100, 150, 200, 250, 300)
D_MINS = (1, 5, 10, 20, 50)
_ACCURACY = {  # (levels, d_min) -> accuracy, from an independent run
    (10, 1): 0.415, (20, 1): 0.664, (50, 1): 0.851, (100, 1): 0.924, (200, 1): 0.960, (500, 1): 0.986, (1000, 1): 0.991,
    (50, 5): 0.843, (50, 10): 0.832, (50, 20): 0.798, (50, 50): 0.679,
}  # fmt: skip


@dataclass(frozen=True)
class Accuracy:
    """How often the scheme finds a row that is as near as the nearest, with the standard error."""

    levels: int
    d_min: int
    mean: float
    error: float


def wine_data(folder: Path | None = None) -> tuple[Floats, Floats]:
    """Return the distinct accepted wines and the rejected wines, scaled to the range of all wines."""
    with data_file(WINE, folder).open(newline="", encoding="utf-8") as file:
        rows = [[float(value) for value in row] for row in list(csv.reader(file, delimiter=";"))[1:]]
    table = np.array(rows)
    features, good = table[:, :11], table[:, 11] >= 5
    scaled = (features - features.min(axis=0)) / (features.max(axis=0) - features.min(axis=0))
    return np.unique(scaled[good], axis=0), scaled[~good]


def accuracy(
    folder: Path | None = None,
    *,
    levels: Sequence[int] = LEVELS,
    d_mins: Sequence[int] = D_MINS,
    rounds: int = 100,
    rows: int = 500,
    queries: int = 50,
    seed: int = 1,
    progress: bool = False,
) -> list[Accuracy]:
    """Retrieve with the real schemes (`baseline` without a mask, `mask` with one), and compare with the nearest row."""
    accepted, rejected = wine_data(folder)
    generator = np.random.default_rng(seed)
    draws = [
        (generator.choice(len(accepted), rows, replace=False), generator.choice(len(rejected), queries, replace=False))
        for _ in range(rounds)
    ]
    results = []
    pairs = [(R, d_min) for d_min in d_mins for R in levels]
    for R, d_min in track(pairs, description="accuracy", transient=True, disable=not progress):
        scheme = _wine_scheme(R, d_min, accepted.shape[1])
        right = [_round(scheme, accepted[rows_], rejected[people], R) for rows_, people in draws]
        error = float(np.std(right, ddof=1) / math.sqrt(rounds)) if rounds > 1 else math.nan
        results.append(Accuracy(R, d_min, float(np.mean(right)), error))
    return results


def _wine_scheme(levels: int, d_min: int, d: int) -> Scheme:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_scheme("baseline" if d_min == 1 else "mask", largest=levels, d=d, d_min=d_min)


def _round(scheme: Scheme, database: Floats, people: Floats, levels: int) -> float:
    """Return the share of people whose retrieved row is as near as the nearest one, by unquantised distance."""
    rows, key = np.rint(database * levels).astype(np.int64), new_key()
    codes = scheme.form.load(rows)
    digest = scheme.digest(codes)
    right = 0
    for n, person in enumerate(people):
        question = Question(np.rint(person * levels).astype(np.int64))
        position = run(scheme, codes, question, common=scheme.common(key, digest, b"%d" % n)).position
        distances = ((database - person) ** 2).sum(axis=1)
        right += bool(distances[position] <= distances.min() * (1 + 1e-12))
    return right / len(people)


def accuracy_claims(results: Sequence[Accuracy]) -> list[Claim]:
    """Return the results as claims. The paper draws them and prints none; some have an earlier figure of ours."""
    return [
        Claim(
            f"R = {r.levels}, {'no mask' if r.d_min == 1 else f'd_min {r.d_min}'}",
            None,
            r.mean,
            r.mean - 1.96 * r.error,
            r.mean + 1.96 * r.error,
            earlier=_ACCURACY.get((r.levels, r.d_min)),
        )
        for r in results
    ]
