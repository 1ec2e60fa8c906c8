"""Opened reveals: shares are points of polynomials, and answers are hidden by pads that vanish at 0.

answer_n  = reveal.linear( form.evaluate(rows, query_n) + mu ) + sum_{t=1..D} alpha_n^t * Z'_t
recovered = interpolate_at_0( answer_n - reveal.linear( terms known to the applicant ) )
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from ...algebra.arrays import Order, Vector
from ...algebra.field import Field, smallest_prime_above
from ...crypto.randomness import CommonRandomness, Randomness
from ...crypto.sharing import honest, reconstruct, split, zero_share
from ...engine.party import Party, Send, Take
from ...errors import NotOffered
from ..forms import Form, Question
from ..reveals import Opened, Reveal
from .protocol import Choose, Held, Outcome, Protocol, Request, Setting, Size

_PART = 1 << 16  # symbols that get their pads at a time


@dataclass(frozen=True, kw_only=True)
class Padded(Protocol):
    """Compute an opened reveal, for any form and any servers; each sends one symbol for every number revealed."""

    name = "padded"

    def check(self, setting: Setting) -> None:
        """Refuse a reveal that is not a linear map, and the correction of masked answers."""
        _linear(setting.reveal)
        if setting.robust and setting.reveal.masked:
            raise NotOffered("robust", got=f"correction of {setting.reveal.name}", expected="a reveal without a mask")

    def must_exceed(self, bound: int, reveal: Reveal, servers: int) -> int:
        """Return the reveal's bound, or the number of servers if that is larger: each needs a point of its own."""
        return max(_linear(reveal).bound(bound), servers)

    def arithmetic(self, above: int) -> Field:
        """Return the field of the smallest prime above `above`."""
        return Field(smallest_prime_above(above))

    def symbols(self, form: Form) -> int:
        """Return how many symbols go up to each server."""
        return form.symbols

    def question(self, setting: Setting, size: Size) -> Request:
        """Return the form's symbols up, and a symbol down for every number revealed."""
        down = (setting.reveal.length(size.rows),) * len(setting.alphas)
        return Request(setting.form.symbols, setting.field, down, setting.field)

    def order(self, setting: Setting, count: int, common: CommonRandomness) -> Order | None:
        """Return the ticket's secret order, if there is one."""
        return common.order(count) if setting.reveal.shuffle else None

    def query(self, setting: Setting, question: Question, draw: Randomness) -> Vector:
        """Return one query for each server: points of polynomials whose value at 0 is the secret.

        Paper: `queries_no_weight`, `queries_weighted`.
        """
        secret = setting.form.secret(setting.field, question)
        return split(cast(Field, setting.field), secret, setting.alphas, setting.collusion, draw)

    def serve(self, setting: Setting, seat: int, held: Held) -> Party[None]:
        """Answer reveal(evaluate(rows, query)) + sum_t alpha_n^t Z'_t, t = 1..D."""
        query = yield Take("applicant", setting.form.symbols, setting.field)
        field, reveal, rows = cast(Field, setting.field), _linear(setting.reveal), held.rows
        common, length = held.common(tuple(range(len(setting.alphas)))), reveal.length(len(rows))
        values = rows.begin(setting.form.plan(field, query))
        pads = [common.elements("pad", field.q, length, coefficient=t) for t in range(1, setting.degree + 1)]
        answer = reveal.in_order(field, values(), common)  # pads were drawn while the scan ran
        for start in range(0, length, _PART):  # in parts and in place, so that they stay in the cache
            end = min(start + _PART, length)
            pad = zero_share(field, setting.alphas[seat], [part[start:end] for part in pads])
            shown = reveal.linear(field, answer[start : end + reveal.differences])
            answer[start:end] = field.add(shown, pad)
        yield Send("applicant", answer[:length], field)

    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Subtract what the applicant knows, leave out servers that lied, and interpolate at 0.

        Paper: `get_d_i(x)`, `get_diff_d_i`, `pcr_ans_reprocess`.
        """
        field, reveal = cast(Field, setting.field), _linear(setting.reveal)
        known = setting.form.known(field, question, queries)
        shares = []
        for seat, term in enumerate(known):
            answer = yield Take(seat, reveal.length(size.rows), field)
            shares.append(field.sub(np.asarray(answer, dtype=np.int64), reveal.constant(field, term)))
        kept = honest(field, setting.alphas, shares, setting.degree, setting.robust)
        alphas, fitting = [setting.alphas[n] for n in kept], [shares[n] for n in kept]
        return Outcome(reconstruct(field, alphas, fitting, setting.degree), kept)

    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Choose positions by the costs, as far as the reveal tells them."""
        return choose(_linear(setting.reveal).relative(setting.field, found.revealed))


def _linear(reveal: Reveal) -> Opened:
    if not isinstance(reveal, Opened):
        raise NotOffered("protocol", got=f"padded for {reveal.name}", expected="a reveal that is a linear map of costs")
    return reveal
