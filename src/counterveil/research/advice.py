"""Choose a deployment for given data, a target accuracy and a number of questions, and say what to expect of it.

These are simulations: people and rows are drawn with a seeded generator, not with the protocol's randomness.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

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
from ..schemes.reveals import Reveal
from ..terms.deployment import AUTO, Deployment
from ..terms.parameters import DOWNLOAD
from .budget import Told, together
from .leakage import clear_costs, estimate, populations

Floats = NDArray[np.float64]

LEVELS = (5, 10, 20, 50, 100, 200)
MASKS = (0.001, 0.003, 0.01, 0.03)  # widths of masks; 1 is the cost of a change across a whole range
_OPENED, _MASKED = "table/differences", "table/masked_differences"
_PEOPLE = 60  # rejected people who ask, in the simulation
_AROUND = 320  # bytes of two envelopes with a ticket
_LEAKING = 6  # applicants over whom leakage is averaged
_TRIALS = len(MASKS) + 2  # reveals that are tried for each number of levels, at most
_TIMED = 2048  # rows on which an answer is timed; for more, the time is scaled up


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
    together: Told  # what all questions of one applicant tell, with their records

    @property
    def rebuilt(self) -> bool:
        """Whether a known attack rebuilds the rows, given a number of tickets."""
        return self.deployment.scheme.rebuilt_after is not None

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
            "bits_are_a_bound": self.bounded, "known_attack_tickets": scheme.rebuilt_after,
            "questions": self.together.questions,
            "bits_together": [round(self.together.low, 2), round(self.together.high, 2)],
            "bits_of_all_rows": round(self.together.whole, 2),
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
    """Return the option that leaks least among those that are accurate enough, and all options that were tried.

    An option whose rows a known attack rebuilds is tried, for comparison, and never returned as the best one.
    """
    if not 0 < accuracy <= 1:
        raise OutOfRange("accuracy", got=accuracy, expected="a share, above 0 and at most 1")
    checks.integer("questions", questions, 1)
    table, generator = Columns(frame), np.random.default_rng(seed)
    askers = _rejected(table, schema, accepted, generator)
    finest = max((f.steps for f in schema.cost_features if isinstance(f, Numeric)), default=1)
    tried: list[Option] = []
    steps = [most for most in levels if most < finest] + [finest]
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("trying levels and reveals", total=len(steps) * _TRIALS)
        for number, most in enumerate(steps, start=1):
            variant = coarser(schema, most)
            database = Database.build(frame, variant, accepted=accepted, clamp=clamp)
            advance = partial(bar.advance, task)
            tried += _options(
                most, variant, database, table, askers, questions, collusion, download_limit, generator, advance
            )
            bar.update(task, completed=number * _TRIALS)
    sound = [option for option in tried if not option.rebuilt]
    if not sound:
        expected = "1: with more, every reveal that is offered is one whose rows a known attack rebuilds"
        raise NotOffered("collusion", got=collusion, expected=expected)
    enough = [option for option in sound if option.accuracy >= accuracy]
    best = (
        min(enough, key=lambda o: (o.together.high, o.bits, o.down)) if enough else max(sound, key=lambda o: o.accuracy)
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
    questions: int,
    collusion: int,
    limit: int,
    generator: np.random.Generator,
    advance: Callable[[], None],
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
    opened, unmasked = _seconds(plain, rows), math.inf

    def asked(count: int) -> list[Vector]:
        return [costs[i] for i in generator.choice(len(costs), count, replace=count > len(costs))]

    for scheme, d_min in trials:
        advance()
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
        reveal, leaking = made.scheme.reveal, costs[:_LEAKING]
        if reveal.masked:  # an order hides some of this too; how much takes minutes to estimate
            bits, bounded = min(unmasked, _most_bits(reveal, leaking)), True
        else:
            leaked = estimate(reveal, populations(leaking), len(rows), samples=4 * _LEAKING, generator=generator)
            bits, bounded = leaked.bits, leaked.method == "bounded"
            unmasked = min(unmasked, bits or unmasked)
        told = together(
            made.scheme.reveal, asked, questions, len(rows), k=made.k, generator=generator, samples=20, draws=3
        )
        servers = made.scheme.servers
        up, down = made.upload(len(rows)) + servers * _AROUND, made.download(len(rows)) + servers * (_AROUND // 4)
        share = float(np.mean(right))
        low, high = _wilson(share, len(right))
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
                bits,
                bounded,
                len(rows),
                told,
            )
        )
    return options


def _most_bits(reveal: Reveal, costs: Sequence[Vector]) -> float:
    """Bound what one question leaks behind a mask, on average over people, whatever a secret order hides.

    A mask is uniform, so the density of a masked cost is constant between the points where a cost begins or ends to
    count.
    """
    rows, width = costs[0].size, reveal.d_min
    total, whole = 0.0, rows * math.log2(max(2, rows))
    for cost in costs:
        points = np.concatenate([cost, cost + width])
        order = np.argsort(points, kind="stable")
        density = np.cumsum(np.repeat([1.0, -1.0], rows)[order])[:-1] / (rows * width)
        lengths = np.diff(points[order])
        there = lengths > 0
        inside = np.where(density[there] > 1e-15, density[there], 1.0)  # where nobody counts, 1 log 1 = 0
        total += min(whole, rows * (float(-(lengths[there] * inside * np.log2(inside)).sum()) - math.log2(width)))
    return max(0.0, total / len(costs))


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
        missing = np.array([is_missing(v) for v in values])
        positions = np.zeros(len(values))
        if isinstance(feature, Numeric):  # once for all people, since this is what takes long
            positions = feature.position(np.array([feature.low if is_missing(v) else float(v) for v in values]))
        for total, person, costs in zip(totals, people, compiled, strict=True):
            part = _apart(feature, missing, positions, codes, person.get(feature.name))
            may = costs.tables[n][codes] < forbidden
            total += np.where(may, costs.weights[n] * part, forbidden / plain.tariff.unit)
    return totals


def _apart(feature: Feature, missing: NDArray[np.bool_], positions: Floats, codes: Vector, own: Any) -> Floats:
    """Return how far rows are from a person in one feature."""
    if isinstance(feature, Numeric) and not is_missing(own):
        return np.where(missing, 1.0, (positions - feature.position(np.array([float(own)]))) ** 2)
    code = int(feature.codes([own], clamp=True)[0])
    if feature.ordered and code <= feature.steps:
        return np.where(codes <= feature.steps, (np.abs(codes - code) / feature.steps) ** 2, 1.0)
    return np.where(codes == code, 0.0, 2.0 if getattr(feature, "encoding", "") == "one-hot" else 1.0)


def _seconds(deployment: Deployment, codes: Codes) -> float:
    """Time one answer of one server; all parties of a question, if servers talk to each other."""
    scheme, times = deployment.scheme, max(1.0, len(codes) / _TIMED)
    rows = deployment.rows(codes[:_TIMED])
    common = scheme.common(new_key(), scheme.digest(rows), new_key())
    question, _ = compile_question(deployment, np.zeros(codes.shape[1], dtype=np.int64), Preferences())
    query = scheme.query(question, Fresh())[0]
    began = time.perf_counter()
    if scheme.protocol.linked:
        run(scheme, rows, question, common=common)
        return times * deployment.k * (time.perf_counter() - began)
    for _ in scheme.stream(1, rows, query, common):
        pass
    return times * (time.perf_counter() - began)


def write_choice(option: Option) -> Schema:
    """Return the schema with the option's levels and parameters in it."""
    limit = option.schema.choice({}).get("download_limit")
    made = option.deployment.parameters().chosen()
    if "norm" not in option.deployment.scheme.form.options:
        del made["norm"]  # this form does not use it
    chosen = Chosen(**made, download_limit=limit)
    return msgspec.structs.replace(option.schema, deployment=chosen)
