"""Choose a deployment from data, a target accuracy and a budget of questions, and say what to expect of it.

Simulations: people and rows are drawn with a seeded generator; nothing here is protocol randomness.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from . import checks
from .arrays import Vector
from .database import Database
from .deployment import Deployment
from .errors import EmptyDatabase, OutOfRange
from .features import Numeric, is_missing
from .forms import Question
from .frames import Table
from .leakage import estimate, populations
from .randomness import Fresh, new_key
from .schema import Chosen, Schema
from .wire import packed_bytes

Floats = NDArray[np.float64]

LEVELS = (5, 10, 20, 50, 100, 200)
MASKS = (0.001, 0.003, 0.01, 0.03)  # of a change across a whole range
_PEOPLE = 60
_LEAKING = 6  # applicants that leakage is averaged over


@dataclass(frozen=True)
class Option:
    """One deployment, and what to expect of it."""

    levels: int  # the most that a number has
    deployment: Deployment
    schema: Schema
    accuracy: float
    error: float  # its standard error
    up: int  # bytes of bodies for one question, all servers together
    down: int
    seconds: float  # of one server's answer here
    bits: float  # that one question leaks
    rows: int

    @property
    def name(self) -> str:
        """Name the reveal."""
        reveal = self.deployment.scheme.reveal
        return reveal.name.replace("_", " ") + (f", d_min {reveal.d_min}" if reveal.masked else "")

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        scheme = self.deployment.scheme
        return {
            "levels": self.levels, "scheme": f"{scheme.form.name}/{scheme.reveal.name}", "d_min": scheme.reveal.d_min,
            "shuffle": scheme.reveal.shuffle, "servers": scheme.servers, "q": str(scheme.field.q),
            "accuracy": round(self.accuracy, 4), "standard_error": round(self.error, 4), "bytes_up": self.up,
            "bytes_down": self.down, "seconds": round(self.seconds, 5), "bits_per_question": round(self.bits, 2),
        }  # fmt: skip


def coarser(schema: Schema, most: int) -> Schema:
    """Return the schema with at most so many levels for a number."""
    features = tuple(
        msgspec.structs.replace(f, levels=most, step=None) if isinstance(f, Numeric) and f.steps > most else f
        for f in schema.features
    )
    return msgspec.structs.replace(schema, features=features)


def advise(
    frame: Any,
    schema: Schema,
    accepted: Any,
    *,
    accuracy: float = 0.95,
    questions: int = 1,
    collusion: int = 1,
    levels: Sequence[int] = LEVELS,
    clamp: bool = False,
    seed: int = 1,
    progress: bool = False,
) -> tuple[Option, list[Option]]:
    """Return the option that leaks least in so many questions among those accurate enough, and all that were tried."""
    if not 0 < accuracy <= 1:
        raise OutOfRange("accuracy", got=accuracy, expected="a share, above 0 and at most 1")
    checks.integer("questions", questions, 1)
    table, generator = Table(frame), np.random.default_rng(seed)
    finest = max((f.steps for f in schema.cost_features if isinstance(f, Numeric)), default=1)
    tried: list[Option] = []
    steps = [most for most in levels if most < finest] + [finest]
    for most in track(steps, description="levels", transient=True, disable=not progress):
        variant = coarser(schema, most)
        database = Database.build(frame, variant, accepted=accepted, clamp=clamp)
        people = _rejected(table, variant, database, np.random.default_rng(seed), clamp)  # the same at every step
        tried += _options(most, variant, database, table, people, collusion, generator)
    enough = [option for option in tried if option.accuracy >= accuracy]
    best = min(enough, key=lambda o: (o.bits * questions, o.down)) if enough else max(tried, key=lambda o: o.accuracy)
    return best, tried


def _rejected(
    table: Table, schema: Schema, database: Database, generator: np.random.Generator, clamp: bool
) -> list[dict[str, Any]]:
    """Return people who are not among the accepted rows: those who would ask."""
    held = {row.tobytes() for row in database.codes.astype(np.int64)}
    people = []
    everyone = table.people()
    for i in generator.permutation(len(everyone)):
        person = {name: everyone[i].get(name) for name in schema.names}
        codes = schema.codes(person, clamp=clamp)
        if codes.astype(np.int64).tobytes() not in held:
            people.append(person)
        if len(people) == _PEOPLE:
            break
    if not people:
        raise EmptyDatabase(
            "people", got="nobody who was rejected", expected="rejected people in the data, who would ask"
        )
    return people


def _options(
    most: int,
    schema: Schema,
    database: Database,
    table: Table,
    people: list[dict[str, Any]],
    collusion: int,
    generator: np.random.Generator,
) -> list[Option]:
    rows = database.codes[:, schema.costed].astype(np.int64)
    exact = _exact_costs(schema, database, table, people)
    options = []
    plain = Deployment.of(schema, record=database.record, collusion=collusion)
    costs = [plain.clear_costs(database.codes, schema.codes(person, clamp=True)) for person in people]
    masks = sorted({max(2, round(share * plain.tariff.unit)) for share in MASKS})
    trials: list[tuple[str, int]] = [("table/differences", 1), *(("table/masked_differences", m) for m in masks)]
    seconds = _seconds(plain, rows)
    for scheme, d_min in trials:
        made = Deployment.of(schema, scheme=scheme, record=database.record, collusion=collusion, d_min=d_min)
        right = [
            distances[int(np.argmin(cost + generator.integers(0, d_min, cost.size)))] <= distances.min() * (1 + 1e-9)
            for cost, distances in zip(costs, exact, strict=True)
        ]
        leaked = estimate(
            made.scheme.reveal, populations(costs[:_LEAKING]), len(rows), samples=4 * _LEAKING, generator=generator
        )
        servers, bits, records = made.scheme.servers, made.scheme.field.bits, database.records.shape[1] + 64
        up = servers * (packed_bytes(bits, made.scheme.form.symbols) + packed_bytes(servers - 1, len(rows)) + 320)
        down = servers * (packed_bytes(bits, made.scheme.reveal.length(len(rows))) + records + 80)
        share = float(np.mean(right))
        error = float(np.sqrt(share * (1 - share) / len(right)))
        options.append(Option(most, made, schema, share, error, up, down, seconds, leaked.bits, len(rows)))
    return options


def _exact_costs(schema: Schema, database: Database, table: Table, people: list[dict[str, Any]]) -> list[Floats]:
    """Return, for each person, what every row would cost without levels: l2 over ranges, 1 for a category."""
    source = database.source if database.source is not None else np.arange(len(database.codes))
    everyone = table.people()
    totals = [np.zeros(len(source)) for _ in people]
    for j, feature in zip(schema.costed, schema.cost_features, strict=True):
        codes = database.codes[:, j].astype(np.int64)
        values: list[Any] = [everyone[int(i)].get(feature.name) for i in source]
        for total, person in zip(totals, people, strict=True):
            own: Any = person.get(feature.name)
            if isinstance(feature, Numeric) and not is_missing(own) and not feature.log:
                gone = np.array([is_missing(v) for v in values])
                numbers = np.array([0.0 if is_missing(v) else float(v) for v in values])
                apart = np.clip(np.abs(numbers - float(own)) / (feature.high - feature.low), 0, 1) ** 2
                total += np.where(gone, 1.0, apart)
                continue
            code = int(feature.codes([own], clamp=True)[0])
            if feature.ordered and code <= feature.steps:
                total += np.where(codes <= feature.steps, (np.abs(codes - code) / feature.steps) ** 2, 1.0)
            else:
                total += codes != code
    return totals


def _seconds(deployment: Deployment, rows: Vector) -> float:
    """Time one answer of one server."""
    scheme = deployment.scheme
    held = scheme.form.load(rows)
    common = scheme.common(new_key(), scheme.digest(held), new_key())
    question = Question(costs=[np.zeros(R + 1, dtype=np.int64) for R in scheme.form.levels])
    query = scheme.query(question, Fresh())[0]
    began = time.perf_counter()
    scheme.answer(1, held, query, common)
    return time.perf_counter() - began


def write_choice(option: Option) -> Schema:
    """Return the schema with the option's levels and parameters in it."""
    made = option.deployment.parameters()
    chosen = Chosen(**{name: made[name] for name in Chosen.__struct_fields__})
    return msgspec.structs.replace(option.schema, deployment=chosen)
