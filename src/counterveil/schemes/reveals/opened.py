"""Costs laid open: themselves, or consecutive differences, with or without a mask, with or without a secret order.

answer_n  = reveal.linear( form.evaluate(rows, query_n) + mu ) + sum_{t=1..D} alpha_n^t * Z'_t
recovered = interpolate_at_0( answer_n - reveal.linear( terms known to the applicant ) )
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ... import engine
from ...algebra.arrays import Bytes, Vector
from ...algebra.field import Field, Residues, smallest_prime_above
from ...crypto.randomness import CommonRandomness, Randomness, Streams
from ...crypto.sharing import honest, reconstruct, split, zero_share
from ...engine import Rows
from ...errors import OutOfRange
from ..forms import Form, Question
from .reveal import Outcome, Reveal, Setting, Symbols

_PART = 1 << 16  # symbols that are padded at a time


@dataclass(frozen=True, kw_only=True)
class Opened(Reveal):
    """A linear map of the costs, which every server applies to its shares."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.masked and self.expansion * self.d_min != 1:
            got = f"d_min = {self.d_min}, expansion = {self.expansion}"
            raise OutOfRange("mask", got=got, expected=f"both 1: the reveal {self.name} has no mask")

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        each = f"{count - 1:,} differences between costs" if self.differences else f"the costs of all {count:,} rows"
        noise = f", each cost with noise in 0..{self.expansion * self.d_min - 1}" if self.masked else ""
        return each + noise + (", in an order of this ticket alone" if self.shuffle else "")

    def bound(self, B: int) -> int:
        """Return what q must exceed for costs up to B (rules 5, 6 and 9; twice as much to tell signs apart)."""
        return (2 if self.differences else 1) * (self.expansion * (B + self.d_min) - 1)

    def least(self, B: int, servers: int) -> int:
        """Return the bound, or the number of servers, each of which needs a point."""
        return max(self.bound(B), servers)

    def arithmetic(self, least: int) -> Field:
        """Return the field of the smallest prime above that."""
        return Field(smallest_prime_above(least))

    def symbols(self, form: Form) -> int:
        """Return how many symbols go up to each server."""
        return form.symbols

    def length(self, count: int) -> int:
        """Return how many numbers are revealed of `count` rows, which is also what each server sends down."""
        return count - 1 if self.differences else count

    def capacity(self, field: Residues, count: int) -> float:
        """Return the bits that so many elements hold (rule 5)."""
        return self.length(count) * math.log2(field.q)

    def alphabet(self, field: Residues) -> Residues:
        """Return the field."""
        return field

    def sent(self, setting: Setting, server: int, count: int, record: int) -> int:
        """Return how many symbols each server sends down."""
        return self.length(count)

    def linear(self, field: Residues, values: Vector) -> Vector:
        """Return the linear map of the values: themselves, or r(i) = d_i - d_(i+1)."""
        return field.sub(values[:-1], values[1:]) if self.differences else values

    def constant(self, field: Residues, value: int) -> int:
        """Return what becomes of a term that is the same for every row: its multiple, or nothing in differences."""
        return 0 if self.differences else self.expansion * value % field.q

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Put the values in the ticket's order, mask them, and map them; the same at every server (rule 3)."""
        return self.linear(field, self._in_order(field, values, common))

    def _in_order(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        if self.shuffle:
            values = values[common.order(len(values))]
        if self.masked:
            mu = common.elements("mask", self.expansion * self.d_min, len(values))
            values = field.add(field.mul(values, self.expansion % field.q), mu % field.q)
        return values

    def relative(self, field: Residues, revealed: Vector) -> Vector:
        """Return the (masked) costs that the applicant can tell, up to one common shift.

        Paper: line 4 of `alg_difference_distance`, for all i at once: d_1 - d_(i+1) is a sum of differences.
        """
        if not self.differences:
            return revealed
        return np.concatenate([[0], -np.cumsum(field.signed(revealed))])

    def query(self, setting: Setting, question: Question, randomness: Randomness) -> Vector:
        """Return one query for each server: points of polynomials whose value at 0 is the secret.

        Paper: `queries_no_weight`, `queries_weighted`.
        """
        secret = setting.form.secret(setting.field, question)
        return split(cast(Field, setting.field), secret, setting.alphas, setting.collusion, randomness)

    def stream(
        self, setting: Setting, server: int, rows: Rows, query: Vector, common: Streams, records: Bytes | None
    ) -> Iterator[Symbols]:
        """Return the answer of server n = 1..N: reveal(evaluate(rows, query)) + sum_t alpha_n^t Z'_t, t = 1..D."""
        field, length = cast(Field, setting.field), self.length(len(rows))
        values = engine.started(rows, lambda: setting.form.evaluate(field, rows, query))
        pads = [common.elements("pad", field.q, length, coefficient=t) for t in range(1, setting.degree + 1)]
        answer = self._in_order(field, values(), common)  # pads were drawn while the scan ran
        for start in range(0, length, _PART):  # in place: what is made on the way stays in the cache
            end = min(start + _PART, length)
            pad = zero_share(field, setting.alphas[server - 1], [part[start:end] for part in pads])
            shown = self.linear(field, answer[start : end + self.differences])
            answer[start:end] = field.add(shown, pad)
        yield answer[:length]

    def reader(self, setting: Setting, question: Question, queries: Vector, count: int, record: int) -> _Reader:
        """Return what puts whole answers together, after taking out what the applicant knows."""
        known = setting.form.known(setting.field, question, queries)
        return _Reader(setting, [self.constant(setting.field, term) for term in known])


class _Reader:
    """Interpolates at 0.

    Paper: `get_d_i(x)`, `get_diff_d_i`, `pcr_ans_reprocess`.
    """

    def __init__(self, setting: Setting, known: Sequence[int]) -> None:
        self._setting, self._known, self._shares = setting, known, dict[int, Vector]()

    def feed(self, place: int, symbols: Symbols) -> None:
        """Take one server's answer, whole."""
        self._shares[place] = self._setting.field.sub(cast(Vector, symbols), self._known[place])

    def hungry(self, place: int) -> bool:
        """Say that all answers are needed."""
        return True

    def outcome(self) -> Outcome:
        """Return the value at 0, and whose answers fit together; the others lied, `liars` of them at most."""
        setting, field = self._setting, cast(Field, self._setting.field)
        shares = [self._shares[place] for place in range(len(setting.alphas))]
        kept = honest(field, setting.alphas, shares, setting.degree, setting.liars)
        alphas, fitting = [setting.alphas[n] for n in kept], [shares[n] for n in kept]
        return Outcome(reconstruct(field, alphas, fitting, setting.degree), kept)
