"""A scene for attacks on people: an institution, an attacker with people of its own, and people whom neither knows.

The institution fits a model on its people and serves those whom the model accepts. The attacker has tickets of rejected
people. What tickets show is worked out in the clear, as the deployment answers. Tests compare it with real servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...applicant.ask import compile_question
from ...errors import EmptyDatabase, MissingPackage, MissingValue, OutOfRange, UnknownName
from ...institution.database import Database
from ...institution.verdicts import accepted_rows
from ...schema.features import Feature, Numeric
from ...schema.frames import Columns
from ...schema.preferences import Preferences
from ...schema.schema import Schema
from ...terms.deployment import Deployment
from ..oracles import in_process
from .level_reading import levels_read

Floats = NDArray[np.float64]
KINDS: dict[str, dict[str, Any]] = {  # kinds of records, and how a database of them is built
    "rows": {"record": "row"},
    "cells": {"record": "cell"},
    "cells of 2": {"record": "cell", "min_cell": 2},
    "regions": {"record": "region"},
    "regions of 10": {"record": "region", "min_people": 10},
}
REVEALS = {"sealed": "table/sealed", "opened": "table/distances"}  # opened: rows in the same order every time
_INSIDE, _OWN = 0.5, 0.3  # the shares of people whom the institution has, and whom the attacker has


@dataclass(frozen=True, eq=False)
class Scene:
    """People, who of them is whose, and whom the model accepts. People are named by their place in the frame."""

    table: Columns
    schema: Schema
    model: Any
    accepted: NDArray[np.bool_]
    inside: Vector  # the institution's people, on whom the model was fitted
    own: Vector  # the attacker's
    outside: Vector  # nobody's
    members: Vector  # accepted people of the institution: the attacker wonders who they are
    strangers: Vector  # accepted people whom the institution has never seen
    seed: int
    known: tuple[str, ...] = ()  # features that everybody knows of everybody: quasi-identifiers

    @classmethod
    def drawn(
        cls, frame: Any, schema: Schema, accepted: Any, *, seed: int, most: int = 1000, known: Sequence[str] = ()
    ) -> Scene:
        """Draw who is whose, and fit the model on the institution's people. `accepted` is a column, or with a value."""
        generator = np.random.default_rng(seed)
        whole = Columns(frame)
        if whole.count < 20:
            raise OutOfRange("people", got=whole.count, expected="at least 20, to share them out")
        some = np.zeros(whole.count, dtype=bool)
        some[generator.permutation(whole.count)[:most]] = True
        table = whole.rows(some)
        counted = [feature.name for feature in schema.cost_features]
        for name in known:
            if name not in counted:
                raise UnknownName("known", got=repr(name), expected=f"one of {', '.join(counted)}")
        _check_complete(table, schema)
        truth = accepted_rows(table, schema, None, accepted)
        order = generator.permutation(table.count)
        inside, own, outside = np.split(order, [int(_INSIDE * len(order)), int((_INSIDE + _OWN) * len(order))])
        inside = np.sort(inside)
        if truth[inside].all() or not truth[inside].any():
            raise EmptyDatabase("people", got="only one verdict", expected="accepted and rejected people")
        model = fitted(table.rows(_marked(inside, table.count)), schema, truth[inside])
        verdicts = np.asarray(model.predict(table.select(schema.names)), dtype=bool)
        made = cls(
            table, schema, model, verdicts, inside, own, outside, inside[verdicts[inside]], outside[verdicts[outside]],
            seed, tuple(known),
        )  # fmt: skip
        if not len(made.askers) or not len(made.members) or not len(made.strangers):
            raise EmptyDatabase("people", got="a model with one verdict", expected="accepted and rejected people")
        return made

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a generator for one purpose, so that no attack disturbs what another draws."""
        return np.random.default_rng([self.seed, crc32(purpose.encode())])

    @property
    def askers(self) -> Vector:
        """The attacker's people whom the model rejects: each may ask."""
        return self.own[~self.accepted[self.own]]

    def questions(self, count: int, most_weight: int) -> list[tuple[int, Preferences]]:
        """Return who asks, one a ticket, and what they prefer: the same at every call.

        The attacker's rejected people ask in turn. Whoever asks again prefers something else, drawn at random.
        """
        generator, made = self.generator("questions"), list[tuple[int, Preferences]]()
        for n in range(count):
            weights = {f.name: int(generator.integers(f.effort, most_weight + 1)) for f in self.schema.cost_features}
            again = n >= len(self.askers)
            made.append((int(self.askers[n % len(self.askers)]), Preferences(weights=weights if again else {})))
        return made

    @cached_property
    def codes(self) -> Vector:
        """The levels of everybody."""
        return self.schema.quantise(self.table.select(self.schema.names), clamp=True).astype(np.int64)

    @cached_property
    def values(self) -> list[Floats | None]:
        """Of every feature that counts, where everybody stands between its ends; None for one that is no number."""
        made: list[Floats | None] = []
        for feature in self.schema.cost_features:
            if not isinstance(feature, Numeric):
                made.append(None)
                continue
            made.append(feature.position(np.asarray(self.table.column(feature.name), dtype=np.float64)))
        return made

    def serve(self, kind: str) -> Database:
        """Build what the institution serves: records of that kind, of its own people."""
        part = self.table.rows(_marked(self.inside, self.table.count))
        return Database.build(part.select(part.names), self.schema, self.model, True, clamp=True, **KINDS[kind])


def _check_complete(table: Columns, schema: Schema) -> None:
    """Refuse missing values, which the model that is fitted here does not take."""
    for name in schema.names:
        if len(table.present(name)) < table.count:
            raise MissingValue(f"people, {name}", got="a missing value", expected="a value for everybody")


def _marked(chosen: Vector, count: int) -> NDArray[np.bool_]:
    marked = np.zeros(count, dtype=bool)
    marked[chosen] = True
    return marked


def fitted(table: Columns, schema: Schema, truth: NDArray[np.bool_]) -> Any:
    """Fit gradient boosting, 50 trees of depth 2, on the raw values of these people. Regions of it can be certified."""
    try:
        from sklearn.compose import make_column_transformer
        from sklearn.ensemble import GradientBoostingClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OrdinalEncoder
    except ImportError:
        raise MissingPackage("attacks on people", got="no scikit-learn", expected="counterveil[sklearn]") from None
    words = [feature for feature in schema.features if not isinstance(feature, Numeric)]
    listed = [[feature.value(code) for code in range(feature.steps + 1)] for feature in words]
    encoder = OrdinalEncoder(categories=listed)
    encoded = make_column_transformer((encoder, [feature.name for feature in words]), remainder="passthrough")
    model = make_pipeline(encoded, GradientBoostingClassifier(n_estimators=50, max_depth=2, random_state=0))
    return model.fit(table.select(schema.names), truth)


@dataclass(frozen=True, eq=False)
class Served:
    """A database as the attacker meets it: it answers questions, and its records are boxes of levels."""

    scene: Scene
    database: Database
    reveal: str
    kept: dict[tuple[bool, tuple[str, ...]], Floats] = field(default_factory=dict)  # distances, once worked out

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment that answers."""
        database = self.database
        return Deployment.serving(database, scheme=REVEALS[self.reveal], shuffle=self.reveal != "opened")

    @cached_property
    def _ties(self) -> np.random.Generator:
        return self.scene.generator(f"ties, {self.reveal}")

    @cached_property
    def _columns(self) -> Vector:
        return np.asarray(self.deployment.rows(self.database.codes), dtype=np.int64)

    @cached_property
    def members(self) -> list[NDArray[np.bool_]]:
        """Of every feature that counts, which levels each record holds: an array (records, levels)."""
        schema, codes = self.scene.schema, self.database.codes
        if self.database.record != "region":
            columns = codes[:, schema.costed].T
            return [np.eye(f.largest + 1, dtype=bool)[c] for f, c in zip(schema.cost_features, columns, strict=True)]
        layout = self.deployment.tariff.layout
        boxes = [layout.members(row.astype(np.int64)) for row in codes]
        return [np.stack(sets) for sets in zip(*boxes, strict=True)]

    def ask(self, person: int, preferences: Preferences) -> int:
        """Return which record somebody gets: a nearest one, any of them if there are several."""
        _, costs = compile_question(self.deployment, self.scene.codes[person], preferences)
        tables = self.deployment.tariff.layout.tables(costs)
        total = sum(table[column] for table, column in zip(tables, self._columns.T, strict=True))
        return int(self._ties.choice(np.flatnonzero(total == np.min(total))))

    @cached_property
    def reading_tickets(self) -> int | None:
        """How many tickets read the levels of all records off the costs, by asking real servers; None if none do."""
        if self.reveal != "opened":
            return None
        oracle = in_process(self.database, self.deployment)
        read = [guess for guess, _ in levels_read(oracle, self.database.rows)]
        if not np.array_equal(read[-1], self._columns):
            raise AssertionError("costs that are open did not tell the levels")
        return len(read)

    def apart(self, *, exact: bool, features: Sequence[str] = ()) -> Floats:
        """Return how far everybody is from each record, (people, records): changes as shares of ranges, added up.

        A person is at 0 from a region that holds them. With `exact`, numbers of rows count as they are, not as levels.
        """
        key = (exact and self.database.record == "row", tuple(features))
        if key not in self.kept:
            chosen = list(enumerate(self.scene.schema.cost_features))
            some = [
                self._apart(j, feature, key[0]) for j, feature in chosen if not features or feature.name in features
            ]
            self.kept[key] = np.sum(some, axis=0)
        return self.kept[key]

    def _apart(self, j: int, feature: Feature, exact: bool) -> Floats:
        values = self.scene.values[j]
        if exact and values is not None and self.database.source is not None:
            return np.asarray(np.abs(values[:, None] - values[self.scene.inside[self.database.source]]))
        sets, which = np.unique(self.members[j], axis=0, return_inverse=True)
        levels = level_distances(feature)[self.scene.codes[:, self.scene.schema.costed[j]]]
        least = np.stack([levels[:, inside].min(axis=1) for inside in sets], axis=1)
        return np.asarray(least[:, which.reshape(-1)])


def level_distances(feature: Feature) -> Floats:
    """Return how far levels are from each other: a share of the range if they have an order, else 0 or 1."""
    codes = np.arange(feature.largest + 1)
    far: Floats = (codes[:, None] != codes).astype(np.float64)
    if feature.ordered:
        there = feature.steps + 1
        far[:there, :there] = np.abs(codes[:there, None] - codes[:there]) / max(1, feature.steps)
    return far


@dataclass(frozen=True, eq=False)
class Known:
    """What an attacker knows after some tickets: who asked and what each got, and, with open costs, all levels."""

    served: Served
    askers: Vector  # rejected people, one a ticket
    records: Vector  # which record each of the last of them got; tickets before that went to crafted questions
    read: bool  # whether these read the levels of all records off the costs

    @property
    def distinct(self) -> Vector:
        """The records that were fetched, each once."""
        return np.unique(self.records)

    def apart(self, features: Sequence[str] = ()) -> tuple[Floats, Vector]:
        """Return how far everybody is from every record that is known, and which records these are."""
        fetched = self.served.apart(exact=True, features=features)[:, self.distinct]
        if not self.read:
            return fetched, self.distinct
        every = self.served.apart(exact=False, features=features)
        return np.concatenate([fetched, every], axis=1), np.concatenate([self.distinct, np.arange(every.shape[1])])


def asked(served: Served, tickets: Sequence[int]) -> Iterator[Known]:
    """Spend tickets on the scene's questions, and give what is known after each of these numbers of tickets.

    With open costs, the first tickets go to crafted questions that read all levels, where there are enough for that.
    """
    questions = served.scene.questions(max(tickets), served.deployment.tariff.max_weight)
    askers, records = np.array([[person, served.ask(person, prefers)] for person, prefers in questions]).T
    needed = served.reading_tickets
    for count in tickets:
        crafted = needed if needed is not None and count >= needed else 0
        yield Known(served, askers[:count], records[crafted:count], bool(crafted))
