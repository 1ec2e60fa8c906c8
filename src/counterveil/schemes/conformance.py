"""Check that a form of the question, a reveal or a protocol keeps its contract. Run these before you register your own.

Each check raises `AssertionError`, which says what is broken. The checks test the contract alone: shares put together
give the cost, no cost exceeds the public bound, an answer is explained with the costs that were asked, and `retrieve`
counts the same cost as a deployment. Whether that cost is the one that you meant needs a test of your own.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..algebra.arrays import Vector
from ..algebra.field import Field, Residues, smallest_prime_above
from ..crypto.randomness import CommonRandomness, Fresh, Streams
from ..crypto.sharing import reconstruct, split
from ..errors import NotOffered
from ..schema.costs import PREFERENCES
from ..schema.features import Boolean, Categorical, Numeric
from ..schema.preferences import Preferences, compile_costs
from ..schema.schema import Schema
from ..schema.tariff import Tariff
from .forms import Form, Question
from .forms.table import Table
from .playing import run
from .reveals import Opened, Reveal
from .scheme import Scheme

_ROOMY = 2**61 - 1  # a field so large that no honest cost wraps
_SCHEMA = Schema(
    features=(
        Numeric(name="number", low=0, high=4, step=1),
        Boolean(name="flag"),
        Categorical(name="kind", values=("a", "b", "c"), encoding="one-hot"),
    )
)
_TARIFF = Tariff(_SCHEMA, 3, 1)
_WISHES: dict[str, Any] = {  # preferences of a person whose codes are all 0; a form gets those that it offers
    "weights": {"number": 3, "kind": 2},
    "immutable": ["flag"],
    "ranges": {"number": (None, 2)},
    "forbidden": {"kind": ["c"]},
}
_PLAIN = Schema(features=tuple(Numeric(name=name, low=0, high=20, step=1) for name in ("one", "two")))
_WEIGHTS = {"one": 1, "two": 3}
_ROOMY_CAP = 2**40  # of tables, so large that no honest cost of the plain schema exceeds it


def check_form(form: Form, rows: ArrayLike, question: Question) -> None:
    """Check that shares of the question, each evaluated alone and then put together, give the cost of every row."""
    codes = form.load(rows)
    costs = form.costs(codes, question)
    secret = form.encode(question)
    _need(len(secret) == form.symbols, f"{form.name}: encodes {len(secret)} symbols, says {form.symbols}")
    _need(costs.shape == (len(codes),), f"{form.name}: {costs.shape} costs for {len(codes)} rows")
    roomy = Field(_ROOMY)
    values = form.evaluate(roomy, codes, roomy.vector(secret))
    largest = int(roomy.add(values, form.offset(question) % _ROOMY).max())
    _need(largest <= form.bound, f"{form.name}: a cost of {largest}, above the bound {form.bound}")
    for collusion in (1, 2, 3):
        degree = form.degree * collusion
        alphas = range(1, degree + 2)
        field = Field(smallest_prime_above(max(form.bound, degree + 1)))
        queries = split(field, field.vector(secret), alphas, collusion, Fresh())
        known = form.known(field, question, queries)
        cleaned = [field.sub(form.evaluate(field, codes, Q), k) for Q, k in zip(queries, known, strict=True)]
        value = reconstruct(field, alphas, cleaned, degree)
        _need(np.array_equal(value, costs), f"{form.name}: shares of degree {collusion} do not give the cost")


def check_kind(kind: type[Form]) -> None:
    """Check a registered form: on its own example, and in a deployment if it can be deployed."""
    form, rows, questions = kind.example()
    secrets = {tuple(form.encode(question)) for question in questions}
    _need(len(secrets) == len(questions) > 1, f"{form.name}: its example needs questions with different secrets")
    for question in questions:
        check_form(form, rows, question)
    try:
        made = kind.for_tariff(_TARIFF)
    except NotOffered:
        return
    _need(kind.offers <= set(PREFERENCES), f"{form.name}: offers what is no preference")
    _need(all(hasattr(made, name) for name in kind.options), f"{form.name}: has no value for one of its options")
    for wishes in ({}, _WISHES):
        offered = {name: value for name, value in wishes.items() if name in kind.offers}
        _check_deployed(made, Preferences.of(offered))
    _check_one_cost(kind)


def _check_deployed(form: Form, preferences: Preferences) -> None:
    """Check that rows cost what the explanation says, and that every forbidden row costs more than all others."""
    levels = [range(feature.largest + 1) for feature in _SCHEMA.features]
    codes = np.array(list(product(*levels)))
    prepared = form.prepare(_TARIFF, codes)
    question, costs = form.question(_TARIFF, compile_costs(_TARIFF, codes[0], preferences, form.offers))
    check_form(form, prepared, question)
    paid, said = form.costs(prepared, question), np.array([sum(costs.of(row)) for row in codes])
    _need(np.array_equal(paid, said), f"{form.name}: rows cost something else than the explanation says")
    _need(paid[0] == 0 and paid[1:].min() > 0, f"{form.name}: staying costs something, or a change costs nothing")
    broken = np.array([len(costs.violated(row)) for row in codes])
    if broken.any():
        dearest, cheapest = paid[broken == 0].max(), paid[broken > 0].min()
        _need(cheapest > dearest, f"{form.name}: a forbidden row costs {cheapest}, an allowed one {dearest}")
        fewest = all(paid[broken < n].max() < paid[broken == n].min() for n in set(broken.tolist()) - {0})
        _need(fewest or not form.forbids_evenly, f"{form.name}: the least total does not break the fewest constraints")


def _check_one_cost(kind: type[Form]) -> None:
    """Check that a question of codes and weights, as `retrieve` asks it, costs what a deployment asks for.

    Both count in units of their own and round. So on features of one range their costs must be proportional, but for
    what rounding every entry of a table, and the largest total, can come to.
    """
    tariff = Tariff(_PLAIN, max(_WEIGHTS.values()), 1)
    made = kind.for_tariff(tariff)
    codes = np.array(list(product(*(range(feature.largest + 1) for feature in _PLAIN.features))))
    weights = _WEIGHTS if "weights" in kind.offers else {}
    parameters: dict[str, Any] = {name: getattr(made, name) for name in kind.options}
    parameters |= {"max_weight": tariff.max_weight} if weights else {}
    parameters |= {"cap": _ROOMY_CAP} if issubclass(kind, Table) else {}
    plain = kind(largest=made.largest, **parameters)
    for own in codes[[0, 5 * 21 + 12, -1]]:
        compiled = compile_costs(tariff, own, Preferences.of({"weights": weights} if weights else {}), made.offers)
        deployed = made.costs(made.prepare(tariff, codes), made.question(tariff, compiled)[0])
        try:
            asked = plain.costs(codes, Question(own, list(weights.values()) or None))
        except NotOffered as error:
            raise AssertionError(f"{made.name}: {error}") from error
        most, largest = int(deployed.max()), int(asked.max())
        apart = np.abs(deployed * (largest / most) - asked).max() if most and largest else np.inf
        rounding = sum(weights.values() or [1] * len(own)) * (1 + largest / max(most, 1))
        expected = "a question of codes and weights costs something else than one of a deployment"
        _need(apart <= rounding, f"{made.name}: {expected}: `distances` and `question` disagree")


def check_reveal(reveal: Reveal, field: Residues, costs: Vector, common: CommonRandomness) -> None:
    """Check that a reveal keeps its contract; if it is opened, also that it is linear and finds a row of least cost.

    With a mask, the costs must satisfy the gap condition (rule 8).
    """
    name = reveal.name
    revealed = reveal.apply(field, costs, common)
    _need(revealed.size == reveal.length(costs.size), f"{name}: reveals {revealed.size} numbers, not its length")
    _need(reveal.plausible(field, revealed, int(costs.max())), f"{name}: calls an honest answer a lie")
    if not isinstance(reveal, Opened):
        return
    _need(field.q > reveal.bound(int(costs.max())), f"{name}: the field is too small for these costs")
    order = common.order(costs.size) if reveal.shuffle else np.arange(costs.size)
    position = reveal.nearest(field, revealed)
    found = order[position]
    _need(int(costs[found]) == costs.min(), f"{name}: does not find a row of the least cost, {costs.min()}")
    _need(reveal.fits(field, revealed, [position], costs[[found]]), f"{name}: calls an honest record a lie")
    both = reveal.linear(field, field.add(costs, costs[::-1].copy()))
    apart = field.add(reveal.linear(field, costs), reveal.linear(field, costs[::-1].copy()))
    _need(np.array_equal(both, apart), f"{name}: is not linear")
    shifted = reveal.apply(field, field.add(costs, 1), common)
    moved = field.add(revealed, reveal.constant(field, 1))
    _need(np.array_equal(shifted, moved), f"{name}: a term common to all rows does not become its constant")


def check_protocol(scheme: Scheme, rows: ArrayLike, question: Question, common: Streams) -> None:
    """Check a protocol against the specification, reveal.apply(form.costs(rows, question)).

    All parties are played. The applicant must see exactly what the reveal shows, and fetch the record of a row of least
    cost. With a mask, the costs must satisfy the gap condition (rule 8). `run` also checks the sizes of messages.
    """
    codes, name = scheme.form.load(rows), f"{scheme.name} by {scheme.protocol.name}"
    records = np.arange(len(codes), dtype="<u4").view(np.uint8).reshape(-1, 4)
    costs = scheme.form.costs(codes, question)
    played = run(scheme, codes, question, common=common, records=records)
    ideal = scheme.reveal.apply(scheme.field, costs, common)
    _need(np.array_equal(played.revealed, ideal), f"{name}: reveals something else than the specification")
    order = scheme.protocol.order(scheme, len(codes), common)
    if played.position < 0:  # the protocol tells no position; the record says which row it is
        _need(not scheme.protocol.fetches, f"{name}: fetches a record from no position")
        index = int.from_bytes(played.record or b"", "little") % len(codes)
    else:
        index = played.position if order is None else int(order[played.position])
    _need(played.record == records[index].tobytes(), f"{name}: fetches another record than that of row {index}")
    _need(int(costs[index]) == costs.min(), f"{name}: finds a row of cost {costs[index]}, not {costs.min()}")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
