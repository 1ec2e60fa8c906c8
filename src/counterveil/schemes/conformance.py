"""What every form and every reveal must do; run these on your own before you put them in the table.

Each check raises `AssertionError` with what was broken. They test the contract alone: that the algebra closes, that the
public numbers are honest. That a form's cost is the cost you meant is for a test of your own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..algebra.arrays import Vector
from ..algebra.field import Field, Residues, smallest_prime_above
from ..crypto.randomness import CommonRandomness, Fresh
from ..crypto.sharing import reconstruct, split
from .forms import Form, Question
from .reveals import Opened, Reveal

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
    """Check that a reveal of costs leads back to a row of least cost, and sends what it says; if opened, is linear.

    With a mask, the costs must satisfy its gap condition.
    """
    name = reveal.name
    order = reveal.order(costs.size, common)
    standing = np.arange(costs.size) if order is None else order
    revealed = reveal.apply(field, costs, common)
    _hold(revealed.size == reveal.length(costs.size), f"{name}: reveals {revealed.size} numbers, not its length")
    _hold(field.q > reveal.least(int(costs.max()), 2), f"{name}: the field is too small for these costs")
    _hold(len(standing) == reveal.positions(costs.size), f"{name}: {len(standing)} positions, not as many as it says")
    found = standing[reveal.nearest(field, revealed)]
    _hold(found >= 0 and costs[found] == costs.min(), f"{name}: does not find a row of the least cost, {costs.min()}")
    if not isinstance(reveal, Opened):
        return
    both = reveal.linear(field, field.add(costs, costs[::-1].copy()))
    apart = field.add(reveal.linear(field, costs), reveal.linear(field, costs[::-1].copy()))
    _hold(np.array_equal(both, apart), f"{name}: is not linear")
    shifted = reveal.apply(field, field.add(costs, 1), common)
    moved = field.add(revealed, reveal.constant(field, 1))
    _hold(np.array_equal(shifted, moved), f"{name}: a term common to all rows does not become its constant")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
