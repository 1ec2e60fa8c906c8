"""The common part of protocols for sealed reveals: two servers, with shares of every cost that add up in Z_2^k."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...algebra.arrays import Vector
from ...algebra.field import Ring
from ...crypto.randomness import Randomness
from ...crypto.sharing import split_sum
from ...engine import Plan
from ...errors import NotOffered, WrongShape
from ..forms import Form, Question
from ..reveals import Reveal, Sealed
from .protocol import Protocol, Setting


@dataclass(frozen=True, kw_only=True)
class Additive(Protocol):
    """Share a question between two servers, for a form whose shares add up: each gets a share of every row's cost."""

    pairs = True

    def check(self, setting: Setting) -> None:
        """Refuse a form that is not additive, fewer than two servers, and servers that collude."""
        if not isinstance(setting.reveal, Sealed):
            raise NotOffered("protocol", got=f"{self.name} for {setting.reveal.name}", expected="the reveal sealed")
        name = self.names(setting.reveal.name)
        if not setting.form.additive:
            got = f"the form {setting.form.name}"
            raise NotOffered(name, got=got, expected="table, linear or even_norm: shares must add up")
        if len(setting.alphas) < 2 or setting.collusion != 1:
            got = f"{len(setting.alphas)} servers, {setting.collusion} colluding"
            raise NotOffered(name, got=got, expected="two servers or more, which do not collude")
        if setting.robust and self.dealt_by == "dealer":
            got = f"{setting.robust} lying, and a server that deals"
            raise NotOffered(name, got=got, expected="the applicant as dealer: one who deals for all could spoil all")

    def must_exceed(self, bound: int, reveal: Reveal, servers: int) -> int:
        """Return the largest cost."""
        return bound

    def arithmetic(self, above: int) -> Ring:
        """Return Z_2^k for the smallest k with 2^k > `above`."""
        return Ring.of_bits(above.bit_length())

    def symbols(self, form: Form) -> int:
        """Return how many symbols go up: the form's, and one for what the applicant would add to the value."""
        return form.symbols + 1

    def query(self, setting: Setting, question: Question, draw: Randomness) -> Vector:
        """Share the form's secret and what the applicant would add to the value, so that no cost is negative."""
        form, ring = setting.form, setting.field
        if len(setting.alphas) != 2:
            raise WrongShape("servers of a run", got=len(setting.alphas), expected="a pair: see `Scheme.runs`")
        secret = np.append(form.secret(ring, question), form.offset(question) % ring.q)
        return split_sum(ring, secret, draw)

    def plan(self, setting: Setting, query: Vector) -> Plan:
        """Return the scan that gives a server's share of every row's cost."""
        ring = setting.field
        plan = setting.form.plan(ring, query[:-1])
        return replace(plan, constant=(plan.constant + int(query[-1])) % ring.q)
