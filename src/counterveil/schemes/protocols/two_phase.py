"""Two-phase I-PCR: first which rows agree on the immutable features, then the distances of those that do.

phase 1:  answer_n = rho_i * ‖Q_n(h)∘y_i - Q_n(h∘x)‖² + pad    at 0: zero if row i agrees, else uniform non-zero
phase 2:  answer_n = ‖Q_n(e_i) y_i - Q_n(x)‖² + pad            at 0: the distance if e_i = 1, ‖x‖² if e_i = 0

h is the set of immutable features; e are the rows that agree. Both are shared like x. The servers draw rho_i and the
pads anew for every ticket. Nothing makes an applicant put the e of phase 1 into phase 2: a cheat who sends e = 1 for
all rows gets every distance, so that one ticket answers two questions of an honest person.

The paper on immutable features (arXiv 2411.10429) publishes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from ...algebra.arrays import Bytes, Order, Vector
from ...algebra.field import Field, Residues, smallest_prime_above
from ...crypto.randomness import CommonRandomness, Randomness
from ...crypto.sharing import reconstruct, split, zero_share
from ...engine import Plan
from ...engine.party import Party, Send, Take
from ...errors import NotOffered
from ..forms import Fixed, Form, Question
from ..reveals import Agreeing, Reveal
from .protocol import Choose, Held, Outcome, Protocol, Request, Setting, Size


@dataclass(frozen=True, kw_only=True)
class TwoPhase(Protocol):
    """Compute the agreeing reveal of squared distances: two requests to 2T + 1 servers, then the record."""

    name = "two_phase"
    questions = 2
    most_records = 1

    def check(self, setting: Setting) -> None:
        """Refuse any other form or reveal, and the correction of answers."""
        _agreeing(setting.reveal)
        if not isinstance(setting.form, Fixed):
            raise NotOffered("protocol", got=f"{self.name} for {setting.form.name}", expected="the form fixed")
        if setting.robust:
            raise NotOffered("robust", got=f"correction of {setting.reveal.name}", expected="0: all must be honest")

    def must_exceed(self, bound: int, reveal: Reveal, servers: int) -> int:
        """Return the largest distance, or the number of servers if that is larger: each needs a point of its own."""
        limit = _agreeing(reveal).limit
        return max(bound if limit is None else limit, servers)

    def arithmetic(self, above: int) -> Field:
        """Return the field of the smallest prime above `above`."""
        return Field(smallest_prime_above(above))

    def symbols(self, form: Form) -> int:
        """Return how many symbols go up to each server in phase 1."""
        return form.symbols

    def question(self, setting: Setting, size: Size) -> Request:
        """Return phase 1: shares of h and h∘x up, and a symbol for every row down."""
        return self._phase(setting, setting.form.symbols, size.rows)

    def requests(self, setting: Setting, size: Size) -> tuple[Request, ...]:
        """Return phase 1, phase 2 (shares of e and x up, and a symbol for every row down), and the record."""
        first, *records = super().requests(setting, size)
        return (first, self._phase(setting, size.rows + setting.form.d, size.rows), *records)

    def _phase(self, setting: Setting, up: int, rows: int) -> Request:
        return Request(up, setting.field, (rows,) * len(setting.alphas), setting.field)

    def order(self, setting: Setting, count: int, common: CommonRandomness) -> Order | None:
        """Return the ticket's secret order, if there is one."""
        return common.order(count) if setting.reveal.shuffle else None

    def query(self, setting: Setting, question: Question, draw: Randomness) -> Vector:
        """Return phase 1's query for each server: shares of h and of h∘x."""
        setting.form.secret(setting.field, question)  # refuses what is no question
        x, kept = setting.form.point(question), [w > 1 for w in setting.form.weights(question)]
        secret = [*map(int, kept), *(v * h for v, h in zip(x, kept, strict=True))]
        return self._shares(setting, np.array(secret, dtype=np.int64), draw)

    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Take the answers of phase 1, and return e: 1 for every row that agrees."""
        value = yield from self._taken(setting, size, 0)
        return Outcome((value == 0).astype(np.int64), tuple(range(len(setting.alphas))))

    def further(
        self, setting: Setting, question: Question, found: Outcome, size: Size, draw: Randomness
    ) -> Party[Outcome]:
        """Ask for the distances of the rows that agree; mark all others as beyond the limit."""
        e, x = found.revealed, np.array(setting.form.point(question), dtype=np.int64)
        for seat, query in enumerate(self._shares(setting, np.concatenate([e, x]), draw)):
            yield Send(seat, query, setting.field, request=1)
        value = yield from self._taken(setting, size, 1)
        return found._replace(revealed=np.where(e == 1, value, _limit(setting) + 1))

    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Choose by the costs among the rows that agree; none if no row does."""
        return [position for position in choose(found.revealed) if found.revealed[position] <= _limit(setting)]

    def answer(
        self, setting: Setting, seat: int, request: int, among: tuple[int, ...], held: Held
    ) -> Party[Bytes | None]:
        """Play the server at a seat for one request: phase 1, phase 2, or the record."""
        if request == 1:
            return self._second(setting, seat, held)
        return super().answer(setting, seat, request, among, held)

    def serve(self, setting: Setting, seat: int, held: Held) -> Party[None]:
        """Answer phase 1: a random multiple of ‖Q(h)∘y - Q(h∘x)‖², padded."""
        field, d = setting.field, setting.form.d
        query = yield Take("applicant", setting.form.symbols, field)
        h, hx = query[:d], query[d:]
        plan = _polynomial(setting, [field.mul(field.mul(h, hx), -2 % field.q), field.mul(h, h)], _square(field, hx))
        values, common = held.rows.scan(plan), held.common(tuple(range(len(setting.alphas))))
        order = self.order(setting, len(values), common)
        rho = field.add(common.elements("multiple", field.q - 1, len(values)), 1)
        shown = field.mul(values if order is None else values[order], rho)
        yield Send("applicant", _padded(setting, seat, shown, common, 0), field)

    def _second(self, setting: Setting, seat: int, held: Held) -> Party[None]:
        """Answer phase 2: ‖Q(e_i) y_i - Q(x)‖² = Q(e_i)²‖y_i‖² - 2 Q(e_i) y_i·Q(x) + ‖Q(x)‖², padded."""
        field, d, rows = setting.field, setting.form.d, len(held.rows)
        query = yield Take("applicant", rows + d, field, 1)
        e, x = query[:rows], query[rows:]
        zero, one = np.zeros_like(x), np.ones_like(x)
        squares, products = (
            held.rows.scan(_polynomial(setting, coefficients)) for coefficients in ([zero, one], [x, zero])
        )
        common = held.common(tuple(range(len(setting.alphas))))
        order = self.order(setting, rows, common)
        if order is not None:
            squares, products = squares[order], products[order]
        crossed = field.mul(field.mul(e, products), 2)
        shown = field.add(field.sub(field.mul(field.mul(e, e), squares), crossed), _square(field, x))
        yield Send("applicant", _padded(setting, seat, shown, common, 1), field, request=1)

    def _shares(self, setting: Setting, secret: Vector, draw: Randomness) -> Vector:
        return split(cast(Field, setting.field), secret, setting.alphas, setting.collusion, draw)

    def _taken(self, setting: Setting, size: Size, request: int) -> Party[Vector]:
        """Take one phase's answers, and interpolate at 0."""
        answers = []
        for seat in range(len(setting.alphas)):
            answer = yield Take(seat, size.rows, setting.field, request)
            answers.append(np.asarray(answer, dtype=np.int64))
        return reconstruct(cast(Field, setting.field), setting.alphas, answers, setting.degree)


def _polynomial(setting: Setting, coefficients: list[Vector], constant: int = 0) -> Plan:
    return Plan("polynomial", setting.field, tuple(coefficients), max(setting.form.largest), constant=constant)


def _padded(setting: Setting, seat: int, values: Vector, common: CommonRandomness, request: int) -> Vector:
    """Add pads that vanish at 0, for every coefficient and row; every phase has its own."""
    field, coefficients = cast(Field, setting.field), range(1, setting.degree + 1)
    pads = [common.elements("pad", field.q, len(values), request=request, coefficient=t) for t in coefficients]
    return field.add(values, zero_share(field, setting.alphas[seat], pads))


def _square(field: Residues, vector: Vector) -> int:
    return field.sum(field.mul(vector, vector))


def _limit(setting: Setting) -> int:
    return cast(Fixed, setting.form).limit


def _agreeing(reveal: Reveal) -> Agreeing:
    if not isinstance(reveal, Agreeing):
        raise NotOffered("protocol", got=f"two_phase for {reveal.name}", expected="the reveal agreeing")
    return reveal
