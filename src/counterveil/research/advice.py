"""Choose a deployment for given data, a target accuracy and a number of questions, and say what to expect of it.

These are simulations: people and rows are drawn with a seeded generator, not with the protocol's randomness.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ..algebra import checks
from ..algebra.arrays import Codes, Vector
from ..applicant.ask import compile_question
from ..crypto.randomness import Fresh, new_key
from ..errors import EmptyDatabase, NotOffered, OutOfRange
from ..institution.database import Database
from ..institution.verdicts import accepted_rows
from ..schema.features import Feature, Numeric, is_missing
from ..schema.frames import Columns
from ..schema.preferences import Preferences
from ..schema.schema import Chosen, Schema
from ..schemes.playing import run
from ..terms.deployment import AUTO, Deployment
from ..terms.parameters import DOWNLOAD
from .leakage import clear_costs, estimate, populations

Floats = NDArray[np.float64]

LEVELS = (5, 10, 20, 50, 100, 200)
MASKS = (0.001, 0.003, 0.01, 0.03)  # widths of masks; 1 is the cost of a change across a whole range
_OPENED, _MASKED = "table/differences", "table/masked_differences"
_PEOPLE = 60  # rejected people who ask, in the simulation
_AROUND = 320  # bytes of two envelopes with a ticket
_LEAKING = 6  # applicants over whom leakage is averaged


@dataclass(frozen=True)
class Option:
    """One deployment, and what to expect of it."""

    levels: int  # the most levels of a numeric feature
    deployment: Deployment
    schema: Schema
    accuracy: float
    low: float  # a 95 % interval of the accuracy, from here
    high: float  # to here
    up: int  # bytes that one question sends to all servers together
    down: int  # bytes that all servers together send back
    between: int  # bytes that each server sends to the other
    seconds: (
        float  # how long one server's answer takes on this machine; a whole question, if servers talk to each other
    )
    bits: float  # how much one question leaks
    bounded: bool  # whether `bits` is only an upper bound
    rows: int

    def bits_in_all(self, questions: int) -> float:
        """Return an upper bound of what these questions leak together; it is never more than the bits of all rows."""
        return min(questions * self.bits, self.rows * math.log2(max(2, self.rows)))

    @property
    def name(self) -> str:
        """The reveal, its mask if it has one, and the protocol if servers must be linked for it."""
        reveal, protocol = self.deployment.scheme.reveal, self.deployment.scheme.protocol
        extra = (f", d_min {reveal.d_min}" if reveal.masked else "") + (f", {protocol.name}" if protocol.linked else "")
        return reveal.name.replace("_", " ") + extra

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        scheme = self.deployment.scheme
        return {
            "levels": self.levels, "scheme": scheme.name, "protocol": scheme.protocol.name,
            "k": self.deployment.k, "d_min": scheme.reveal.d_min,
            "shuffle": scheme.reveal.shuffle, "servers": scheme.servers, "q": str(scheme.field.q),
            "accuracy": round(self.accuracy, 4), "interval": [round(self.low, 4), round(self.high, 4)],
            "bytes_up": self.up, "bytes_down": self.down, "bytes_between": self.between,
            "seconds": round(self.seconds, 5), "bits_per_question": round(self.bits, 2),
            "bits_are_a_bound": self.bounded,
        }  # fmt: skip


def coarser(schema: Schema, most: int) -> Schema:
    """Return the schema with at most `most` levels for each numeric feature."""
    features = tuple(f.coarser(most) if isinstance(f, Numeric) and f.steps > most else f for f in schema.features)
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
    download_limit: int = DOWNLOAD,
    clamp: bool = False,
    seed: int = 1,
    progress: bool = False,
) -> tuple[Option, list[Option]]:
    """Return the option that leaks least among those that are accurate enough, and all options that were tried."""
    if not 0 < accuracy <= 1:
        raise OutOfRange("accuracy", got=accuracy, expected="a share, above 0 and at most 1")
    checks.integer("questions", questions, 1)
    table, generator = Columns(frame), np.random.default_rng(seed)
    askers = _rejected(table, schema, accepted, generator)
    finest = max((f.steps for f in schema.cost_features if isinstance(f, Numeric)), default=1)
    tried: list[Option] = []
    steps = [most for most in levels if most < finest] + [finest]
    for most in track(steps, description="levels", transient=True, disable=not progress):
        variant = coarser(schema, most)
        database = Database.build(frame, variant, accepted=accepted, clamp=clamp)
        tried += _options(most, variant, database, table, askers, collusion, download_limit, generator)
    enough = [option for option in tried if option.accuracy >= accuracy]
    best = (
        min(enough, key=lambda o: (o.bits_in_all(questions), o.bits, o.down))
        if enough
        else max(tried, key=lambda o: o.accuracy)
    )
    return best, tried


def _rejected(table: Columns, schema: Schema, accepted: Any, generator: np.random.Generator) -> list[dict[str, Any]]:
    """Return people who were rejected, since they are the ones who would ask."""
    rejected = np.flatnonzero(~accepted_rows(table, schema, None, accepted))
    everyone, people = table.people(), []
    for i in generator.permutation(rejected):
        person = {name: everyone[int(i)].get(name) for name in schema.names}
        refused = [f for f in schema.cost_features if f.missing == "refuse" and is_missing(person[f.name])]
        if not refused:
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
    table: Columns,
    people: list[dict[str, Any]],
    collusion: int,
    limit: int,
    generator: np.random.Generator,
) -> list[Option]:
    rows = database.codes
    options = []
    chosen = {name: value for name, value in schema.choice({"scheme": "", "collusion": collusion}).items() if value}
    chosen.pop("download_limit", None)
    limit = schema.choice({}).get("download_limit", limit)
    plain = Deployment.of(schema, record=database.record, **(chosen | {"scheme": _OPENED}))
    exact = _exact_costs(plain, database, table, people)
    costs = [clear_costs(plain, database.codes, schema.codes(person, clamp=True)) for person in people]
    masks = sorted({max(2, round(share * plain.tariff.unit)) for share in MASKS})
    trials: list[tuple[str, int]] = [(_OPENED, 1), *((_MASKED, m) for m in masks), (AUTO, 1)]
    opened = _seconds(plain, rows)
    for scheme, d_min in trials:
        own = chosen | {"scheme": scheme, "d_min": d_min, "shuffle": True}
        own |= {"k": 1} if d_min > 1 else {}  # masked reveals are for the nearest row only
        try:
            made = Deployment.serving(database, linked=True, download_limit=limit, **own)
        except NotOffered:
            continue  # a sealed reveal needs servers that do not collude
        seconds = opened if made.scheme.reveal.length(2) else _seconds(made, rows)
        right = [
            distances[int(np.argmin(cost + generator.integers(0, d_min, cost.size)))] <= distances.min() * (1 + 1e-9)
            for cost, distances in zip(costs, exact, strict=True)
        ]
        leaked = estimate(
            made.scheme.reveal, populations(costs[:_LEAKING]), len(rows), samples=4 * _LEAKING, generator=generator
        )
        servers = made.scheme.servers
        up, down = made.upload(len(rows)) + servers * _AROUND, made.download(len(rows)) + servers * (_AROUND // 4)
        share = float(np.mean(right))
        low, high = _wilson(share, len(right))
        bounded = leaked.method == "bounded"
        options.append(
            Option(
                most,
                made,
                schema,
                share,
                low,
                high,
                up,
                down,
                made.between(len(rows)),
                seconds,
                leaked.bits,
                bounded,
                len(rows),
            )
        )
    return options


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share; it is right even for shares of 0 and 1."""
    z2 = 1.96**2 / count
    middle, half = share + z2 / 2, 1.96 * math.sqrt(share * (1 - share) / count + z2 / 4 / count)
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def _exact_costs(plain: Deployment, database: Database, table: Columns, people: list[dict[str, Any]]) -> list[Floats]:
    """Return what every row costs each person without quantisation: squares of parts of a range, 1 for a category.

    The schema's rules count as they do in a question.
    """
    schema, forbidden = plain.schema, plain.tariff.forbidden
    compiled = [compile_question(plain, schema.codes(person, clamp=True), Preferences())[1] for person in people]
    source = database.source if database.source is not None else np.arange(len(database.codes))
    everyone = table.people()
    totals = [np.zeros(len(source)) for _ in people]
    for n, (j, feature) in enumerate(zip(schema.costed, schema.cost_features, strict=True)):
        codes = database.codes[:, j].astype(np.int64)
        values: list[Any] = [everyone[int(i)].get(feature.name) for i in source]
        for total, person, costs in zip(totals, people, compiled, strict=True):
            part = _apart(feature, values, codes, person.get(feature.name))
            may = costs.tables[n][codes] < forbidden
            total += np.where(may, costs.weights[n] * part, forbidden / plain.tariff.unit)
    return totals


def _apart(feature: Feature, values: list[Any], codes: Vector, own: Any) -> Floats:
    """Return how far rows are from a person in one feature."""
    if isinstance(feature, Numeric) and not is_missing(own):
        missing = np.array([is_missing(v) for v in values])
        numbers = np.array([feature.low if is_missing(v) else float(v) for v in values])
        far: Floats = (feature.position(numbers) - feature.position(np.array([float(own)]))) ** 2
        return np.where(missing, 1.0, far)
    code = int(feature.codes([own], clamp=True)[0])
    if feature.ordered and code <= feature.steps:
        return np.where(codes <= feature.steps, (np.abs(codes - code) / feature.steps) ** 2, 1.0)
    return np.where(codes == code, 0.0, 2.0 if getattr(feature, "encoding", "") == "one-hot" else 1.0)


def _seconds(deployment: Deployment, codes: Codes) -> float:
    """Time one answer of one server; all parties of a question, if servers talk to each other."""
    scheme = deployment.scheme
    rows = deployment.rows(codes)
    common = scheme.common(new_key(), scheme.digest(rows), new_key())
    question, _ = compile_question(deployment, np.zeros(codes.shape[1], dtype=np.int64), Preferences())
    query = scheme.query(question, Fresh())[0]
    began = time.perf_counter()
    if scheme.protocol.linked:
        run(scheme, rows, question, common=common)
        return deployment.k * (time.perf_counter() - began)
    for _ in scheme.stream(1, rows, query, common):
        pass
    return time.perf_counter() - began


def write_choice(option: Option) -> Schema:
    """Return the schema with the option's levels and parameters in it."""
    limit = option.schema.choice({}).get("download_limit")
    made = option.deployment.parameters().chosen()
    if "norm" not in option.deployment.scheme.form.options:
        del made["norm"]  # this form does not use it
    chosen = Chosen(**made, download_limit=limit)
    return msgspec.structs.replace(option.schema, deployment=chosen)
