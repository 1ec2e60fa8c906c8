"""What every form, every reveal and every protocol must do; run these on your own before you put them in the table.

Each check raises `AssertionError` with what was broken. They test the contract alone: that the algebra closes, that the
public numbers are honest. That a form's cost is the cost you meant is for a test of your own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..algebra.arrays import Vector
from ..algebra.field import Field, Residues, smallest_prime_above
from ..crypto.randomness import CommonRandomness, Fresh, Streams
from ..crypto.sharing import reconstruct, split
from .forms import Form, Question
from .reveals import Opened, Reveal
from .scheme import Scheme, run

_ROOMY = 2**61 - 1  # a field in which no honest cost wraps


def check_form(form: Form, rows: ArrayLike, question: Question) -> None:
    """Check that shares of the question, evaluated apart and put together, give the cost of every row."""
    codes = form.load(rows)
    costs = form.costs(codes, question)
    secret = form.encode(question)
    _hold(len(secret) == form.symbols, f"{form.name}: encodes {len(secret)} symbols, says {form.symbols}")
    _hold(costs.shape == (len(codes),), f"{form.name}: {costs.shape} costs for {len(codes)} rows")
    roomy = Field(_ROOMY)
    values = form.evaluate(roomy, codes, roomy.vector(secret))
    largest = int(roomy.add(values, form.offset(question) % _ROOMY).max())
    _hold(largest <= form.bound, f"{form.name}: a cost of {largest}, above the bound {form.bound}")
    for collusion in (1, 2, 3):
        degree = form.degree * collusion
        alphas = range(1, degree + 2)
        field = Field(smallest_prime_above(max(form.bound, degree + 1)))
        queries = split(field, field.vector(secret), alphas, collusion, Fresh())
        known = form.known(field, question, queries)
        cleaned = [field.sub(form.evaluate(field, codes, Q), k) for Q, k in zip(queries, known, strict=True)]
        value = reconstruct(field, alphas, cleaned, degree)
        _hold(np.array_equal(value, costs), f"{form.name}: shares of degree {collusion} do not give the cost")


def check_reveal(reveal: Reveal, field: Residues, costs: Vector, common: CommonRandomness) -> None:
    """Check that a reveal shows what it says; if opened, that it is linear and leads back to a row of least cost.

    With a mask, the costs must satisfy its gap condition.
    """
    name = reveal.name
    revealed = reveal.apply(field, costs, common)
    _hold(revealed.size == reveal.length(costs.size), f"{name}: reveals {revealed.size} numbers, not its length")
    _hold(reveal.plausible(field, revealed, int(costs.max())), f"{name}: calls an honest answer a lie")
    if not isinstance(reveal, Opened):
        return
    _hold(field.q > reveal.bound(int(costs.max())), f"{name}: the field is too small for these costs")
    standing = common.order(costs.size) if reveal.shuffle else np.arange(costs.size)
    position = reveal.nearest(field, revealed)
    found = standing[position]
    _hold(int(costs[found]) == costs.min(), f"{name}: does not find a row of the least cost, {costs.min()}")
    _hold(reveal.fits(field, revealed, [position], costs[[found]]), f"{name}: calls an honest record a lie")
    both = reveal.linear(field, field.add(costs, costs[::-1].copy()))
    apart = field.add(reveal.linear(field, costs), reveal.linear(field, costs[::-1].copy()))
    _hold(np.array_equal(both, apart), f"{name}: is not linear")
    shifted = reveal.apply(field, field.add(costs, 1), common)
    moved = field.add(revealed, reveal.constant(field, 1))
    _hold(np.array_equal(shifted, moved), f"{name}: a term common to all rows does not become its constant")


def check_protocol(scheme: Scheme, rows: ArrayLike, question: Question, common: Streams) -> None:
    """Check a protocol against the specification, reveal.apply(form.costs(rows, question)).

    All parties are played. The applicant must see exactly what the reveal shows, and fetch the record of a row of least
    cost; with a mask, the costs must satisfy its gap condition. `run` holds the messages to the sizes that it says.
    """
    codes, name = scheme.form.load(rows), f"{scheme.name} by {scheme.protocol.name}"
    records = np.arange(len(codes), dtype="<u4").view(np.uint8).reshape(-1, 4)
    costs = scheme.form.costs(codes, question)
    played = run(scheme, codes, question, common=common, records=records)
    ideal = scheme.reveal.apply(scheme.field, costs, common)
    _hold(np.array_equal(played.revealed, ideal), f"{name}: reveals something else than the specification")
    order = scheme.protocol.order(scheme, len(codes), common)
    index = played.position if order is None else int(order[played.position])
    _hold(played.record == records[index].tobytes(), f"{name}: fetches another record than that of row {index}")
    _hold(int(costs[index]) == costs.min(), f"{name}: finds a row of cost {costs[index]}, not {costs.min()}")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
