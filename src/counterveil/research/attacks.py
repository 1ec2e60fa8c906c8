"""Attack one's own deployment, to see what an applicant with many tickets or crafted questions learns of the rows.

Each attack sees only what an applicant sees: the terms, and what its questions reveal. The true rows are compared with
the attack's guess afterwards. These are simulations: their questions come from a seeded generator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from rich.progress import track

from ..algebra.arrays import Codes, Vector
from ..algebra.field import Field
from ..errors import NotOffered
from ..institution.database import Database
from ..schema.features import Categorical
from ..schema.schema import Schema
from ..schema.tariff import Tariff
from ..schemes import defaults
from ..schemes.forms import Question, form_named
from ..schemes.forms.table import digit_groups, link_keys
from ..schemes.reveals import Opened
from ..schemes.scheme import Scheme, pair_named
from ..terms.deployment import Deployment
from .oracles import Oracle, Shown, in_process, unbounded

OVERSIZED = 2**61 - 1
_TICKETS = "few tickets; sealed"  # texts of `Report.stopped_by`
_ROW = "sealed: one row a ticket"


@dataclass(frozen=True)
class Point:
    """What an attack had recovered after a number of tickets."""

    tickets: int
    rows: float  # share of rows recovered whole
    cells: float  # share of all values recovered


@dataclass(frozen=True)
class Report:
    """One attack on one deployment."""

    attack: str
    against: str
    curve: tuple[Point, ...]
    stopped_by: str

    @property
    def last(self) -> Point:
        """The end of the curve."""
        return self.curve[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        curve = [{"tickets": p.tickets, "rows": round(p.rows, 4), "cells": round(p.cells, 4)} for p in self.curve]
        return {"attack": self.attack, "against": self.against, "stopped_by": self.stopped_by, "curve": curve}


def _point(tickets: int, guess: Vector, known: Vector, rows: Vector) -> Point:
    """Count the right values of a guess, row i against true row i. `known` marks the columns that it has guessed."""
    right = (guess == rows) & known
    return Point(tickets, float(right.all(axis=1).mean()), float(right.mean()))


def _costs(scheme: Scheme, shown: Shown, rows: int) -> Vector:
    """Return the costs by position. If no cost is revealed, return 0 for the fetched position and 1 for all others."""
    if isinstance(scheme.reveal, Opened):
        return scheme.reveal.relative(scheme.field, shown.revealed)
    costs = np.ones(scheme.protocol.positions(rows), dtype=np.int64)
    costs[shown.position] = 0
    return costs


# --- multilateration: honest questions, rows in the same order every time -----------------------------------------


def multilateration(oracle: Oracle, rows: Codes, *, repeats: Sequence[int] = (1,)) -> list[Point]:
    """Ask from the origin and from the end of every axis: d + 1 honest questions to a form of the question of power 2.

    ‖y‖² - ‖y - R e_j‖² = 2R y_j - R². With differences, all rows are shifted by one unknown vector. It follows from the
    norms, and from one-hot columns, which sum to a constant. A mask is averaged out over `repeats`.
    """
    deployment = oracle.deployment
    R, d, truth = deployment.tariff.stretch, rows.shape[1], rows.astype(np.int64)
    totals: list[Any] = [0.0] * (d + 1)
    points, asked = [], 0
    for repeat in repeats:
        while asked < repeat:
            for j in range(d + 1):
                x = np.zeros(d, dtype=np.int64)
                if j:
                    x[j - 1] = R
                shown = oracle.reveal(Question(x))
                totals[j] = totals[j] + _costs(deployment.scheme, shown, len(rows))[: len(rows)]
            asked += 1
        along = np.stack([(totals[0] - total) / asked for total in totals[1:]], axis=1)
        if deployment.scheme.reveal.differences:
            guess = _from_differences(deployment, totals[0] / asked, along / (2 * R))
        else:
            guess = np.rint((along + R * R) / (2 * R))
        points.append(_point(asked * (d + 1), guess, np.ones(d, dtype=bool), truth))
    return points


def _from_differences(deployment: Deployment, norms: Any, along: Any) -> Vector:
    """Find the first row from the norms, ‖y_i‖² - ‖y_1‖² = ‖δ_i‖² + 2 y_1·δ_i, and from sums that are constant."""
    delta = np.rint(along - along[0])
    equations = [2 * delta]
    right = [(norms - norms[0]) - (delta**2).sum(axis=1)]
    start = 0
    for feature in deployment.schema.cost_features:
        one_hot = isinstance(feature, Categorical) and feature.encoding == "one-hot"
        width = feature.largest + 1 if one_hot else 1
        if one_hot:
            unit = np.eye(delta.shape[1])[start : start + width]
            never = (delta[:, start : start + width] == 0).all(axis=0)  # a category that no row has
            equations += [unit.sum(axis=0, keepdims=True), unit[never]]
            right += [np.array([deployment.tariff.stretch], dtype=np.float64), np.zeros(int(never.sum()))]
        start += width
    first, *_ = np.linalg.lstsq(np.concatenate(equations), np.concatenate(right), rcond=None)
    return np.asarray(np.rint(first) + delta)


# --- reading levels off sums: tabular forms ------------------------------------------------------------------------


class Digits:
    """Questions that give each feature of a group its own digit of the cost, so that a row's cost tells their levels.

    Larger digits defeat a mask. If only differences are revealed, the fetched record gives the cost of one row, and so
    the costs of all.
    """

    def __init__(self, deployment: Deployment, most: int, *, linked: bool = False) -> None:
        self.layout, self.reveal = deployment.tariff.layout, deployment.scheme.reveal
        self.levels = [largest + 1 for largest in self.layout.largest]
        # Whether the revealed costs are all shifted by one unknown number.
        self._shifted = self.reveal.differences or not isinstance(self.reveal, Opened)
        self._scale = (2 if self.reveal.differences else 1) * self.reveal.d_min if self.reveal.masked else 1
        largest = [levels - 1 for levels in self.levels]
        self.keys = link_keys(largest, most // self._scale) if linked else []
        self.groups = digit_groups(largest, most // self._scale, self.keys)

    def question(self, group: Sequence[int]) -> Question:
        """Return the question whose costs tell the levels of a group of features."""
        tables, place = [np.zeros(n, dtype=np.int64) for n in self.levels], self._scale
        for feature in group:
            tables[feature] = np.arange(self.levels[feature]) * place
            place *= self.levels[feature]
        return Question(costs=tables)

    def read(self, group: Sequence[int], oracle: Oracle, rows: int) -> Vector:
        """Ask, and return the levels of every row: one column for each feature of the group."""
        question, scheme = self.question(group), oracle.deployment.scheme
        seen = oracle.reveal(question)
        shown = _costs(scheme, seen, rows)
        if self._shifted:
            codes = self.layout.columns(seen.record[None])[0]
            own = sum(int(np.asarray(t)[code]) for t, code in zip(question.costs or [], codes, strict=True))
            shown = shown - shown[seen.position] + own + (self.reveal.d_min - 1)
        shown = shown // self._scale
        columns = []
        for feature in group:
            shown, level = np.divmod(shown, self.levels[feature])
            columns.append(level)
        return np.stack(columns, axis=1)


def level_reading(oracle: Oracle, rows: Codes, *, most: int | None = None) -> list[Point]:
    """Ask with tables that tell the levels of several features at once; honest ones unless `most` is above the cap."""
    truth = rows.astype(np.int64)
    guess, known = np.full(truth.shape, -1), np.zeros(truth.shape[1], dtype=bool)
    digits = Digits(oracle.deployment, most or oracle.deployment.tariff.cap)
    points = []
    for tickets, group in enumerate(digits.groups, start=1):
        guess[:, group], known[group] = digits.read(group, oracle, len(rows))[: len(rows)], True
        points.append(_point(tickets, guess, known, truth))
    return points


def crafted(oracle: Oracle, rows: Codes) -> list[Point]:
    """Read levels off costs as large as the field holds; a larger field would give away more at once (rule 5)."""
    return level_reading(oracle, rows, most=unbounded(oracle.deployment.scheme).form.bound)


def linking(oracle: Oracle, rows: Codes) -> list[Point]:
    """Join answers in different orders on key features that every question tells. Rows with a unique key are linked.

    The tables are as large as the field allows, which no server can notice. If one answer tells all features, there is
    nothing to join.
    """
    truth, most = rows.astype(np.int64), unbounded(oracle.deployment.scheme).form.bound
    digits = Digits(oracle.deployment, most, linked=True)
    keys = digits.keys
    if len(digits.groups) == 1:
        shown = digits.read(digits.groups[0], oracle, len(rows))[:, np.argsort(digits.groups[0])]
        common = Counter(map(tuple, shown.tolist())) & Counter(map(tuple, truth.tolist()))
        share = sum(common.values()) / len(truth)
        return [Point(1, share, share)]
    joined: dict[tuple[int, ...], dict[int, int]] = {}
    points = []
    for tickets, group in enumerate(digits.groups, start=1):
        levels = digits.read(group, oracle, len(rows))
        marks = [tuple(row) for row in levels[:, : len(keys)].tolist()]
        times = Counter(marks)
        for mark, row in zip(marks, levels.tolist(), strict=True):
            if times[mark] == 1:
                joined.setdefault(mark, {}).update(zip(group, row, strict=True))
        points.append(_linked(tickets, joined, keys, truth))
    return points


def _linked(tickets: int, joined: dict[tuple[int, ...], dict[int, int]], keys: list[int], truth: Vector) -> Point:
    whole, cells = 0, 0
    for row in truth:
        found = joined.get(tuple(int(row[f]) for f in keys), {})
        right = sum(found.get(f) == int(value) for f, value in enumerate(row))
        cells += right
        whole += right == len(row)
    return Point(tickets, whole / len(truth), cells / truth.size)


def probing(oracle: Oracle, rows: Codes, *, tickets: int = 100, seed: int = 1) -> list[Point]:
    """Ask for random people and keep the records. Every reveal gives away that much."""
    layout, generator = oracle.deployment.tariff.layout, np.random.default_rng(seed)
    found: set[bytes] = set()
    points = []
    for n in range(1, tickets + 1):
        own = np.array([generator.integers(0, f.largest + 1) for f in layout.schema.features], dtype=np.int64)
        found.add(layout.columns(oracle.fetch(own)[None]).astype(np.int64).tobytes())
        if n in (1, 2, 5, tickets) or n % 10 == 0:
            points.append(Point(n, len(found) / len(rows), len(found) / len(rows)))
    return points


# --- all of them ---------------------------------------------------------------------------------------------------


def one_hot(database: Database) -> Database:
    """Return the database with one-hot categories, which `linear` and `euclidean` deployments need.

    The schema's rules are left out: `euclidean` cannot keep them, and no attack keeps to them.
    """
    free = [msgspec.structs.replace(f, change="any", effort=1) for f in database.schema.features]
    features = tuple(msgspec.structs.replace(f, encoding="one-hot") if isinstance(f, Categorical) else f for f in free)
    return replace(database, schema=Schema(features=features))


@dataclass(frozen=True)
class _Plan:
    attack: str
    scheme: str
    stopped_by: str
    run: Callable[..., list[Point]]
    parameters: dict[str, Any]
    field: int | None = None

    @property
    def against(self) -> str:
        """The deployment's name in the report."""
        extra = [f"d_min {self.parameters['d_min']}"] if "d_min" in self.parameters else []
        extra += ["shuffled"] if self.parameters.get("shuffle") else []
        extra += [self.parameters["protocol"]] if "protocol" in self.parameters else []
        extra += ["q = 2^61 - 1"] if self.field else []
        return ", ".join([self.scheme, *extra])


def _plans(d_min: int | None) -> Iterator[_Plan]:
    for reveal in ("distances", "differences"):
        yield _Plan("multilateration", f"linear/{reveal}", _TICKETS, multilateration, {"shuffle": False})
        yield _Plan("level reading", f"table/{reveal}", _TICKETS, level_reading, {"shuffle": False})
    masked: dict[str, Any] = {"shuffle": False, "d_min": d_min}
    yield _Plan("level reading", "table/masked", _TICKETS + ": larger digits defeat a mask", level_reading, masked)
    repeats = (1, 2, 4, 8, 16, 32)
    stops = "few tickets; sealed: a mask only delays"
    yield _Plan("averaging a mask", "euclidean/masked", stops, lambda *a: multilateration(*a, repeats=repeats), masked)
    prime = "the smallest prime"
    yield _Plan("crafted digits", "table/distances", prime, crafted, {"shuffle": False}, OVERSIZED)
    yield _Plan("crafted digits", "table/distances", _TICKETS, crafted, {"shuffle": False})
    for reveal in ("distances", "differences"):
        yield _Plan("linking orders", f"table/{reveal}", _TICKETS, linking, {"shuffle": True})
    yield _Plan("multilateration", "linear/sealed", _ROW, multilateration, {})
    for name, attack in (("level reading", level_reading), ("crafted digits", crafted), ("linking orders", linking)):
        yield _Plan(name, "table/sealed", _ROW, attack, {})
        yield _Plan(name, "table/sealed", _ROW, attack, {"protocol": defaults.LINKED})


def attack_all(
    database: Database, *, d_min: int | None = None, tickets: int = 100, progress: bool = False
) -> list[Report]:
    """Attack the deployment that the schema chose; then run every attack against a deployment that it is meant for.

    `d_min` is the width of the mask to average out; by default it hides two levels.
    """
    reports = []
    d_min = d_min or 4 * Tariff(database.schema, 1, 1).stretch
    for plan in track(list(_plans(d_min)), description="attacks", transient=True, disable=not progress):
        form, _ = pair_named(plan.scheme)
        target = database if form_named(form).tabular or database.certificate else one_hot(database)
        try:
            deployment = Deployment.of(target.schema, scheme=plan.scheme, record=target.record, **plan.parameters)
        except NotOffered:
            continue  # this schema has no such deployment
        deployment = replace(deployment, certificate=target.certificate)
        if plan.field is not None:
            deployment = replace(deployment, scheme=replace(deployment.scheme, field=Field(plan.field)))
        oracle = in_process(target, deployment)
        curve = plan.run(oracle, deployment.rows(target.codes))
        reports.append(Report(plan.attack, plan.against, tuple(curve), plan.stopped_by))
    chosen = Deployment.serving(database, linked=True)
    return [*attack_deployment(in_process(database, chosen), database, tickets=tickets), *reports]


def attack_deployment(oracle: Oracle, database: Database, *, tickets: int = 100) -> list[Report]:
    """Run the attacks that apply to one deployment."""
    scheme = oracle.deployment.scheme
    reveal, rows = scheme.reveal, oracle.deployment.rows(database.codes)
    against = f"{scheme.form.name}/{reveal.name}"
    against += (f", d_min {reveal.d_min}" if reveal.masked else "") + (", shuffled" if reveal.shuffle else "")
    against += f", {scheme.protocol.name}" * scheme.protocol.linked + ", as deployed"
    reports = []
    if scheme.form.tabular:
        name, attack = ("linking orders", linking) if reveal.shuffle else ("level reading", level_reading)
        stops = _TICKETS if reveal.capacity(scheme.field, len(rows)) else _ROW
        reports.append(Report(name, against, tuple(attack(oracle, rows)), stops))
    elif not reveal.shuffle and scheme.form.power == 2:
        reports.append(Report("multilateration", against, tuple(multilateration(oracle, rows)), _TICKETS))
    probed = tuple(probing(oracle, rows, tickets=tickets))
    each = "one row" if oracle.deployment.k == 1 else f"{oracle.deployment.k} rows, of which this counts one"
    return [*reports, Report("probing", against, probed, f"few tickets: each gives {each}")]
