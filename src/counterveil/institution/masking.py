"""Prepare Mask-PCR: how wide a mask may be, and for which questions it keeps the nearest row nearest.

Everything works on the costs of one question at a time: O(M log M) each, and no M x M memory. A mask uniform on
{0..d_min-1} is exact for a question when the gap of its costs is at least d_min. Equal costs count once (rule 7). If
all costs are equal, no mask can do harm, and the gap is `UNLIMITED`.

Security: needs the rows and the questions in the clear. It is the institution's own work, on rejected people whom it
knows. A d_min computed from the data tells something about the data (rule 8), so publish one that you chose.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ..algebra import checks
from ..algebra.arrays import Vector
from ..errors import EmptyDatabase
from ..schemes.forms import Form, Question

UNLIMITED = int(np.iinfo(np.int64).max)


def order_gap(costs: Vector) -> int:
    """Return the least difference of two distinct costs: a mask up to it keeps the whole order.

    Paper: d_k of `remark_edit`, over distinct distances.

    >>> order_gap(np.array([365, 325, 325]))
    40
    """
    distinct = np.unique(costs)
    return int(np.diff(distinct).min()) if distinct.size > 1 else UNLIMITED


def nearest_gap(costs: Vector) -> int:
    """Return the difference of the two least distinct costs: a mask up to it keeps the nearest row nearest."""
    if not costs.size:
        raise EmptyDatabase("costs", got="none", expected="at least one")
    least = costs.min()
    farther = costs[costs > least]
    return int(farther.min() - least) if farther.size else UNLIMITED


def largest_mask(form: Form, rows: ArrayLike, questions: Iterable[Question]) -> int:
    """Return the largest d_min that keeps the whole order for all the questions asked.

    Paper: d_min of `remark_edit`, the questions being the rejected set D_r.
    """
    codes = form.load(rows)
    gaps = [order_gap(form.costs(codes, question)) for question in questions]
    if not gaps:
        raise EmptyDatabase("questions", got="none", expected="at least one")
    return min(gaps)


def exact_share(form: Form, rows: ArrayLike, questions: Iterable[Question], d_min: int) -> float:
    """Return the share of the questions for which a mask of that d_min finds a nearest row for certain."""
    checks.integer("d_min", d_min, 1)
    codes = form.load(rows)
    exact = [nearest_gap(form.costs(codes, question)) >= d_min for question in questions]
    if not exact:
        raise EmptyDatabase("questions", got="none", expected="at least one")
    return sum(exact) / len(exact)


def in_closure(form: Form, rows: ArrayLike, question: Question, rejected: Iterable[Question]) -> bool:
    """Tell whether the question lies in the closure of the rejected set.

    If no rejected person has two rows at the same cost, their d_min is then exact for the question too. With ties it
    need not be, since d_min leaves them out (rule 7): `nearest_gap` of the question's own costs decides.

    That means |d_i(x) - d_j(x)| >= |d_i(x_k) - d_j(x_k)| for all i, j, k. With rows sorted by d(x) it is enough to
    compare neighbours. Along the order the left sides add up exactly, and the right side is at most the sum of its own.

    Paper: `remark_edit_2`, which leaves out the rows themselves.
    """
    codes = form.load(rows)
    own = form.costs(codes, question)
    if (codes == np.asarray(form.point(question))).all(axis=1).any():
        return False
    order = np.argsort(own, kind="stable")
    steps = np.diff(own[order])
    return all(bool((np.abs(np.diff(form.costs(codes, other)[order])) <= steps).all()) for other in rejected)
