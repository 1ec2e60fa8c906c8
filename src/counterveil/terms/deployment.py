"""What an institution and its applicants agree on in public: schema, scheme, tariff, and records a question gets.

A `table` deployment takes every preference. A `linear` one (or `weighted`, `even_norm`) takes weights and immutable
features, an `euclidean` one none at all: their features are stretched to equal levels, and categories must be one-hot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..algebra import checks
from ..algebra.arrays import Codes, Vector
from ..crypto.keys import SIGNATURE_BYTES
from ..crypto.randomness import KEY_BYTES
from ..errors import NotOffered, OutOfRange, WrongType
from ..schema.features import Categorical, Feature
from ..schema.layouts import RecordKind, layout
from ..schema.preferences import CONSTRAINTS, Costs, Preferences, Tariff, compile_costs
from ..schema.schema import Schema
from ..schemes.forms import Form, Question, make_form
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme, make_parts, pair_named

AUTO = "auto"
SEALED, OPENED = "table/sealed", "table/differences"  # what it stands for, by size
DOWNLOAD = 64  # MiB that a question may bring down
_FARTHEST = np.iinfo(np.int64).max
_STRETCHED = ("euclidean", "weighted", "linear", "even_norm")


class Holdings(Protocol):
    """What terms say of a database: nothing of any row."""

    @property
    def schema(self) -> Schema: ...
    @property
    def record(self) -> RecordKind: ...
    @property
    def rows(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def packed(self) -> str: ...
    @property
    def signer(self) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Everything public that a question depends on.

    Security: public.
    """

    schema: Schema
    scheme: Scheme
    tariff: Tariff
    record: RecordKind = "row"
    k: int = 1  # records that one question gets

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        scheme: str = OPENED,
        record: RecordKind = "row",
        k: int = 1,
        max_weight: int = 10,
        shuffle: bool = True,
        d_min: int = 1,
        norm: int = 4,
        servers: int | None = None,
        collusion: int | None = None,
    ) -> Deployment:
        """Choose the public numbers; the field follows from them."""
        checks.integer("k", k, 1)
        form_name, reveal_name = pair_named(scheme)
        reveal, protocol = make_parts(reveal_name, shuffle=shuffle, d_min=d_min)
        if reveal.shuffle and not shuffle:
            raise NotOffered("shuffle", got=f"no shuffle of {reveal_name}", expected="always shuffled")
        if reveal.most is not None and k > reveal.most:
            raise NotOffered("k", got=f"{k} records from {reveal_name}", expected="1: it tells the nearest row alone")
        tariff = Tariff(schema, checks.integer("max_weight", max_weight, 1), d_min)
        form = _form(form_name, tariff, norm)
        made = Scheme.of(form, reveal, protocol, servers=servers, collusion=collusion)
        return cls(schema=schema, scheme=made, tariff=tariff, record=record, k=k)

    @classmethod
    def serving(cls, database: Holdings, *, robust: int = 0, **given: Any) -> Deployment:
        """Choose for a database: what is given, else what its schema's `[deployment]` says, else `scheme="auto"`.

        That is `table/sealed` where all that a question brings down is at most `download_limit` MiB, and shuffled
        differences where it is not, or where sealed is not offered: for k > 1, for more than two servers, and where
        wrong answers are to be corrected (`robust`).
        """
        chosen = database.schema.choice(given)
        limit = checks.integer("download_limit", chosen.pop("download_limit", DOWNLOAD), 0) << 20
        make = partial(cls.of, database.schema, record=database.record)
        if chosen.setdefault("scheme", AUTO) != AUTO:
            return make(**chosen)
        try:
            made = make(**(chosen | {"scheme": SEALED}))
        except NotOffered:
            made = None
        if made is not None and not robust and made.download(database.rows) <= limit:
            return made
        return make(**(chosen | {"scheme": OPENED}))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record as servers hold it: signed and packaged."""
        return layout(self.schema, self.record).itemsize + SIGNATURE_BYTES + KEY_BYTES

    def download(self, rows: int) -> int:
        """Return the bytes that one question brings down from all servers together, envelopes aside."""
        asked = self.scheme.requests(Size(rows, self.record_bytes, self.k))
        return sum(request.answered.packed(down) for request in asked for down in request.down)

    def says(self, rows: int) -> str:
        """Say in one line what was chosen, what an applicant learns from a question, and what it brings down."""
        scheme = self.scheme
        size = f"{self.download(rows) / 2**20:,.2f} MiB down a question"
        records = "the nearest row" if self.k == 1 else f"up to {self.k} rows"
        return f"{scheme.name}, {size}: {records}; {scheme.reveal.tells(rows)}"

    def parameters(self) -> dict[str, Any]:
        """Return what `Deployment.of` made this from, schema and record aside."""
        scheme = self.scheme
        return {
            "scheme": scheme.name,
            "servers": scheme.servers,
            "collusion": scheme.collusion,
            "k": self.k,
            "max_weight": self.tariff.max_weight,
            "shuffle": scheme.reveal.shuffle,
            "d_min": scheme.reveal.d_min,
            "norm": _power(scheme.form),
        }

    def check_serves(self, database: Holdings) -> None:
        """Refuse a database with another schema, another kind of record, or fewer rows than a question gets."""
        if self.schema != database.schema or self.record != database.record:
            raise WrongType("deployment", got="another schema or kind of record", expected="those of the database")
        if self.k > database.rows:
            raise OutOfRange("k", got=self.k, expected=f"at most {database.rows}, the number of rows")

    @property
    def unit(self) -> int:
        """The cost, at weight 1, of a change across a whole range."""
        return self.tariff.unit if self.scheme.form.name == "table" else self.tariff.stretch ** _power(self.scheme.form)

    def rows(self, codes: Codes | Vector) -> Codes:
        """Return a database's codes as the form scans them."""
        costed = self.schema.costed
        counted = codes if len(costed) == codes.shape[1] else codes[:, costed]  # a memory map stays one if it can
        stretched = self.scheme.form.name != "table"
        return self.scheme.form.load(_stretched(self.tariff, counted) if stretched else counted)

    def question(self, own: Vector, preferences: Preferences) -> tuple[Question, Costs]:
        """Return the question that a person with these codes asks, and the costs that explain its answer.

        Security: both are private to the applicant. The question's shape is the same whatever they prefer.
        """
        if self.scheme.form.name != "table":
            self._check_offered(preferences)
        costs = compile_costs(self.tariff, own[self.schema.costed], preferences)
        if self.scheme.form.name == "table":
            return Question(costs=costs.tables), costs
        return self._stretched_question(costs, preferences)

    def _check_offered(self, preferences: Preferences) -> None:
        form = self.scheme.form
        offered = () if form.name == "euclidean" else ("weights", "immutable")
        for given in ("weights", *CONSTRAINTS, "costs"):
            if getattr(preferences, given) and given not in offered:
                raise NotOffered(given, got=f"{given} in a deployment of {form.name}", expected="a table deployment")
        if preferences.metric != "l2":
            raise NotOffered("metric", got=preferences.metric, expected=f"l2: the deployment is {form.name}")

    def _stretched_question(self, costs: Costs, preferences: Preferences) -> tuple[Question, Costs]:
        form = self.scheme.form
        weights, tables = [], []
        for feature, a in zip(costs.features, costs.own.tolist(), strict=True):
            w = preferences.weights.get(feature.name, 1)
            w = form.max_weight if feature.name in preferences.immutable else w
            levels = _columns(self.tariff, feature, np.arange(feature.largest + 1))
            tables.append(w * (np.abs(levels - levels[a]) ** _power(form)).sum(axis=1))
            weights += [w] * levels.shape[1]
        x = _stretched(self.tariff, costs.own[None, :])[0]
        question = Question(x, None if form.name == "euclidean" else weights)
        return question, Costs(costs.features, costs.own, tables, costs.allowed)

    def clear_costs(self, codes: Codes | Vector, own: Vector) -> Vector:
        """Return what every row costs a person without preferences, in the clear: to measure, not to serve."""
        tables = self.question(own, Preferences())[1].tables
        columns = [table[codes[:, j]] for table, j in zip(tables, self.schema.costed, strict=True)]
        return np.asarray(np.stack(columns).sum(axis=0), dtype=np.int64)

    def choose(self, relative: Vector, spread: float = 0.0) -> list[int]:
        """Return the k positions to fetch: the nearest, each next one at least `spread` (in whole ranges) farther.

        Where too few are that far apart, the nearest of the others fill up: exactly k are fetched (rule 10).
        """
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 0:
            raise OutOfRange("spread", got=repr(spread), expected="a number, 0 or more")
        chosen: list[int] = []
        taken, from_on, apart = np.zeros(relative.size, dtype=bool), 0, math.ceil(spread * self.unit)
        # k passes over all rows, and no sort: how long it takes must not tell how the costs lie (rule 10).
        for _ in range(min(self.k, relative.size)):
            far = taken | (relative < from_on) if chosen else taken
            left = taken if far.all() else far
            at = int(np.argmin(np.where(left, _FARTHEST, relative)))
            taken[at], from_on = True, max(from_on, int(relative[at]) + apart) if chosen else int(relative[at]) + apart
            chosen.append(at)
        return chosen


def _power(form: Form) -> int:
    return int(getattr(form, "norm", 2))


def _form(name: str, tariff: Tariff, norm: int) -> Form:
    features = tariff.schema.cost_features
    if name == "table":
        return make_form(name, levels=[f.largest for f in features], d=len(features), cap=tariff.forbidden)
    if name not in _STRETCHED:
        raise NotOffered(
            "scheme", got=name, expected=f"a form that is a cost of change: table, {', '.join(_STRETCHED)}"
        )
    for f in features:
        if f.ordered and f.missing == "level":
            raise NotOffered(f.name, got=f"a missing level in a deployment of {name}", expected="a table deployment")
        if isinstance(f, Categorical) and f.encoding == "mismatch" and f.largest > 1:
            raise NotOffered(f.name, got=f"mismatch costs in a deployment of {name}", expected='encoding = "one-hot"')
    columns = sum(_columns(tariff, f, np.zeros(1, dtype=np.int64)).shape[1] for f in features)
    own: dict[str, Any] = {"norm": norm} if name == "even_norm" else {}
    if name != "euclidean":
        power = own.get("norm", 2)
        cap = tariff.max_weight * tariff.stretch**power * 2  # one-hot categories change two columns
        own["max_weight"] = len(features) * cap + tariff.d_min
    return make_form(name, levels=tariff.stretch, d=columns, **own)


def _columns(tariff: Tariff, feature: Feature, codes: Vector) -> Vector:
    """Return a feature's codes stretched to the tariff's levels: one column, or one for each category."""
    if isinstance(feature, Categorical) and feature.encoding == "one-hot":
        chosen = codes[:, None] == np.arange(feature.largest + 1)
        return np.where(chosen, tariff.stretch, 0).astype(np.int64)
    return np.asarray(np.rint(codes[:, None] * (tariff.stretch / feature.largest)), dtype=np.int64)


def _stretched(tariff: Tariff, codes: Codes | Vector) -> Vector:
    features = tariff.schema.cost_features
    return np.concatenate([_columns(tariff, f, codes[:, j].astype(np.int64)) for j, f in enumerate(features)], axis=1)
