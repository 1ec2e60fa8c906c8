"""Sources of randomness that go through every possible value, so that privacy can be counted instead of argued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from counterveil import REVEALS, Field, Form, Question, Scheme
from counterveil.algebra.arrays import Order, Vector
from counterveil.schemes.reveals import make_reveal


class Fixed:
    """An applicant's randomness with given values, all of which must be used."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = list(values)

    def elements(self, q: int, count: int) -> Vector:
        taken, self.values = self.values[:count], self.values[count:]
        assert len(taken) == count
        assert all(0 <= v < q for v in taken)
        return np.array(taken, dtype=np.int64)


class FixedCommon:
    """The servers' randomness with given values: the pads of every coefficient, the mask, and the order."""

    def __init__(
        self,
        pads: Sequence[Sequence[int]],
        mask: Sequence[int] = (),
        order: Sequence[int] = (),
        moduli: Mapping[str, int] | None = None,
    ) -> None:
        self.pads, self.mask, self.permutation, self.moduli = pads, mask, order, moduli or {}

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        given = {"mask": lambda: self.mask, "pad": lambda: self.pads[coefficient - 1]}[purpose]()
        assert len(given) == count
        assert q == self.moduli.get(purpose, q)  # uniform over the whole range, not over a part of it
        return np.array(given, dtype=np.int64)

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Callable[[int], bytes]:
        raise AssertionError("opened reveals take elements")

    def order(self, count: int) -> Order:
        assert len(self.permutation) == count
        return np.array(self.permutation, dtype=np.intp)


def views(scheme: Scheme, question: Question, servers: Sequence[int]) -> Counter[Any]:
    """What these servers see together, counted over every pad that the applicant may draw."""
    needed = scheme.collusion * scheme.symbols
    seen: Counter[Any] = Counter()
    for pads in product(range(scheme.field.q), repeat=needed):
        source = Fixed(pads)
        queries = scheme.query(question, source)
        assert not source.values
        seen[tuple(tuple(queries[n].tolist()) for n in servers)] += 1
    return seen


def tiny(form: Form, reveal: str, *, shuffle: bool = False, servers: int | None = None) -> Scheme:
    """The form with that reveal, as small as possible: if there is a mask, it has two values."""
    d_min = 2 if REVEALS[reveal].masked else 1
    return Scheme.of(form, make_reveal(reveal, shuffle=shuffle, d_min=d_min), servers=servers)


def user_private(scheme: Scheme, questions: Sequence[Question]) -> bool:
    """Whether, over every pad, any T servers see the same whatever is asked, and see something else for every pad."""
    for servers in combinations(range(scheme.servers), scheme.collusion):
        counters = [views(scheme, question, servers) for question in questions]
        if any(counter != counters[0] for counter in counters):
            return False
        if len(counters[0]) != scheme.field.q ** (scheme.symbols * scheme.collusion):
            return False
    return True


def told_apart(scheme: Scheme, questions: Sequence[Question]) -> bool:
    """Whether all servers together could tell questions with different secrets apart. This is the control."""
    secrets = {tuple(scheme.form.encode(question)): question for question in questions}
    together = [views(scheme, question, range(scheme.servers)) for question in secrets.values()]
    return len(together) > 1 and all(not a & b for a, b in combinations(together, 2))


def rows_for(scheme: Scheme) -> int:
    """Two rows, or one if two would take hours: with three servers every row has two pads."""
    return 1 if scheme.servers > 2 and scheme.reveal.length(2) > 1 else 2


def feasible(form: Form, reveal: str) -> bool:
    """Whether all queries to all servers can be enumerated: at most 300², or 1,000² if not masked differences."""
    scheme = tiny(form, reveal)
    most = 300 if REVEALS[reveal].masked and REVEALS[reveal].differences else 1000
    return bool(scheme.field.q ** (scheme.symbols * scheme.servers) <= most**2)


def commons(scheme: Scheme, M: int, *, unfilled: Sequence[int] = ()) -> Iterator[FixedCommon]:
    """Every possible common randomness; the coefficients in `unfilled` stay zero."""
    reveal, q = scheme.reveal, scheme.field.q
    length, coefficients = reveal.length(M), range(1, scheme.servers)
    zero = [(0,) * length]
    pads = [zero if t in unfilled else list(product(range(q), repeat=length)) for t in coefficients]
    masks = list(product(range(reveal.expansion * reveal.d_min), repeat=M)) if reveal.masked else [()]
    orders = list(permutations(range(M))) if reveal.shuffle else [()]
    for mask, order, pad in product(masks, orders, product(*pads)):
        yield FixedCommon(pad, mask, order, {"pad": q, "mask": reveal.expansion * reveal.d_min})


def database_private(scheme: Scheme, M: int, *, unfilled: Sequence[int] = ()) -> bool:
    """Whether, for every tuple of queries and given the value at 0, the answers look the same for all databases."""
    field, servers = Field(scheme.field.q), range(1, scheme.servers + 1)
    databases = [np.array(rows, dtype=np.uint8).reshape(M, -1) for rows in _databases(scheme, M)]
    queries = [np.array(Q, dtype=np.int64) for Q in product(range(field.q), repeat=scheme.form.symbols)]
    randomness = list(commons(scheme, M, unfilled=unfilled))
    weights = field.weights_at(scheme.alphas)
    length = scheme.reveal.length(M)
    scale = field.q ** np.arange(length)
    span = field.q**length

    # answers[db][n][query] has one code for the answer under each common randomness. parts[db][n][query] has the share
    # of the value at 0 that comes from the server.
    answers = [
        [[_codes(scheme, n, rows, Q, randomness, scale) for Q in queries] for n in servers] for rows in databases
    ]
    parts = [
        [
            [
                np.array([w * scheme.reveal.apply(field, scheme.form.evaluate(field, rows, Q), c) for c in randomness])
                for Q in queries
            ]
            for w in weights
        ]
        for rows in databases
    ]
    for choice in product(range(len(queries)), repeat=scheme.servers):
        seen: dict[int, bytes] = {}
        for db in range(len(databases)):
            value = sum(parts[db][n][k] for n, k in enumerate(choice)) % field.q @ scale
            joint = np.zeros(len(randomness), dtype=np.int64)
            for n, k in enumerate(choice):
                joint = joint * span + answers[db][n][k]
            for v in np.unique(value):
                distribution = _distribution(joint[value == v])
                if seen.setdefault(int(v), distribution) != distribution:
                    return False
    return True


def _databases(scheme: Scheme, M: int) -> Iterator[tuple[int, ...]]:
    return product(*[range(R + 1) for R in scheme.form.largest] * M)


def _codes(
    scheme: Scheme, server: int, rows: Any, query: Vector, randomness: Sequence[FixedCommon], scale: Vector
) -> Vector:
    return np.array([scheme.answer(server, rows, query, common) for common in randomness]) @ scale


def _distribution(joint: Vector) -> bytes:
    codes, counts = np.unique(joint, return_counts=True)
    counts //= np.gcd.reduce(counts)
    return codes.tobytes() + counts.astype(np.int64).tobytes()
