"""A scheme is a form times a reveal: query, answer, recover.

The paper's six schemes are rows of the table `CATALOGUE`, and so are their two-server versions.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import checks
from .arrays import Bytes, Codes, Vector
from .errors import (
    InvalidField,
    NoMask,
    NotOffered,
    OversizedField,
    TooFewServers,
    UnknownName,
    WrongShape,
)
from .field import Field, smallest_prime_above
from .forms import Form, Question, make_form
from .randomness import VERSION, Common, CommonRandomness, Fresh, Randomness, frame, new_key
from .reveals import Reveal, make_reveal
from .sharing import honest, reconstruct, split, zero_share

CATALOGUE: dict[str, tuple[str, str]] = {
    "baseline": ("euclidean", "distances"),
    "diff": ("euclidean", "differences"),
    "mask": ("euclidean", "masked"),
    "baseline+": ("weighted", "distances"),
    "diff+": ("weighted", "differences"),
    "mask+": ("weighted", "masked"),
    "linear-baseline": ("linear", "distances"),
    "linear-diff": ("linear", "differences"),
    "linear-mask": ("linear", "masked"),
}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A form, a reveal, and public numbers that fit the pair; `Scheme.of` computes them.

    Security: public.
    """

    form: Form
    reveal: Reveal
    alphas: tuple[int, ...]  # one for each server
    collusion: int  # T: so many servers together learn nothing
    field: Field
    liars: int = 0  # v: so many wrong answers are corrected, at the price of rule 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "collusion", checks.integer("collusion", self.collusion, 1))
        object.__setattr__(self, "liars", checks.integer("liars", self.liars, 0))
        if self.servers < self.needed(self.liars):
            lying = f", {self.liars} of whom may lie" if self.liars else ""
            enough = f"at least {self.needed(self.liars)}: {self.form.name} against {self.collusion}{lying}"
            raise TooFewServers("servers", got=self.servers, expected=enough)
        if self.liars and self.reveal.masked:
            raise NotOffered("liars", got=f"correction of {self.reveal.name}", expected="a reveal without a mask")
        least = _least(self.form, self.reveal, self.servers)
        if self.field.q <= least:
            raise InvalidField("q", got=self.field.q, expected=f"a prime above {least}")
        object.__setattr__(self, "alphas", self.field.check_alphas(self.alphas))

    @classmethod
    def of(
        cls,
        form: Form,
        reveal: Reveal,
        *,
        servers: int | None = None,
        collusion: int | None = None,
        alphas: Sequence[int] | None = None,
        q: int | None = None,
    ) -> Scheme:
        """Pair a form with a reveal: the fewest servers, the most collusion they bear, the smallest prime (rule 5).

        >>> from counterveil import FORMS, REVEALS
        >>> Scheme.of(FORMS["weighted"](levels=[10] * 20, max_weight=5), REVEALS["differences"]).field
        Field(q=20011)
        """
        if alphas is not None:
            alphas = checks.listed("alphas", alphas, "one number for each server")
        if servers is None:
            T = 1 if collusion is None else checks.integer("collusion", collusion, 1)
            servers = form.degree * T + 1 if alphas is None else len(alphas)
        checks.integer("servers", servers, 1)
        points = tuple(range(1, servers + 1) if alphas is None else alphas)
        if len(points) != servers:
            raise WrongShape("alphas", got=len(points), expected=f"one for each of {servers} servers")
        if collusion is None:
            collusion = max(1, (servers - 1) // form.degree)
        smallest = smallest_prime_above(_least(form, reveal, servers))
        field = Field(smallest if q is None else q)
        if field.q > smallest:
            warnings.warn(f"q = {q}: the smallest prime, {smallest}, gives away less", OversizedField, stacklevel=2)
        if reveal.masked and reveal.d_min == 1:
            warnings.warn(f"{reveal.name}: d_min = 1 means no mask; every cost is revealed", NoMask, stacklevel=2)
        return cls(form=form, reveal=reveal, alphas=points, collusion=collusion, field=field)

    @property
    def servers(self) -> int:
        """N, all of which must answer."""
        return len(self.alphas)

    @property
    def degree(self) -> int:
        """D, the degree in alpha of what the applicant interpolates: N - 1, less where answers are to be corrected."""
        return self.servers - 1 - 2 * self.liars

    def needed(self, liars: int = 0) -> int:
        """Return how many servers it takes: eT + 1, and two more for every wrong answer to be corrected."""
        return self.form.degree * self.collusion + 1 + 2 * liars

    def among(self, servers: Sequence[int], liars: int = 0) -> Scheme:
        """Return the same scheme for some of its servers, given by number: those that a ticket names."""
        for n in servers:
            checks.integer("servers", n, 1, self.servers)
        return replace(self, alphas=tuple(self.alphas[n - 1] for n in servers), liars=liars)

    @property
    def exact(self) -> bool:
        """Whether a nearest row is found for every question; masked retrieval is approximate (rule 8)."""
        return self.reveal.exact

    def query(self, question: Question, randomness: Randomness) -> Vector:
        """Return one query for each server, the rows of an (N, symbols) array.

        Security: row n may be seen by server n; any T rows are uniform whatever the question.
        Paper: `queries_no_weight`, `queries_weighted`.
        """
        return split(self.field, self.form.secret(self.field, question), self.alphas, self.collusion, randomness)

    def answer(self, server: int, rows: ArrayLike, query: ArrayLike, common: CommonRandomness) -> Vector:
        """Return the answer of server n = 1..N: reveal(evaluate(rows, query)) + sum_t alpha_n^t Z'_t, t = 1..D.

        Security: to be seen by the applicant; holds the reveal and nothing else, however the queries were made up.
        """
        checks.integer("server", server, 1, self.servers)
        share = self.field.check("query", query, self.form.symbols)
        values = self.form.evaluate(self.field, self.form.load(rows), share)
        revealed = self.reveal.apply(self.field, values, common)
        pads = [common.elements("pad", self.field.q, revealed.size, coefficient=t) for t in range(1, self.degree + 1)]
        return self.field.add(revealed, zero_share(self.field, self.alphas[server - 1], np.stack(pads)))

    def recover(self, question: Question, queries: Vector, answers: Sequence[ArrayLike], count: int) -> Vector:
        """Return what the reveal reveals of `count` rows: interpolate at 0 after taking out what the applicant knows.

        Paper: `get_d_i(x)`, `get_diff_d_i`, `pcr_ans_reprocess`.
        """
        return self.correct(question, queries, answers, count)[0]

    def correct(
        self, question: Question, queries: Vector, answers: Sequence[ArrayLike], count: int
    ) -> tuple[Vector, tuple[int, ...]]:
        """Return what `recover` does, and the places 0..N-1 of the servers whose answers fit together.

        The others lied, `liars` of them at most.
        """
        shares = self._shares(question, queries, answers, count)
        kept = honest(self.field, self.alphas, shares, self.degree, self.liars)
        alphas, fitting = [self.alphas[n] for n in kept], [shares[n] for n in kept]
        return reconstruct(self.field, alphas, fitting, self.degree), kept

    def _shares(self, question: Question, queries: Vector, answers: Sequence[ArrayLike], count: int) -> list[Vector]:
        """Check all messages and take what the applicant knows out of the answers."""
        answers = checks.listed("answers", answers, "one from each server")
        sent = checks.listed("queries", queries, "one to each server")
        for what, messages in (("answers", answers), ("queries", sent)):
            if len(messages) != self.servers:
                raise WrongShape(what, got=len(messages), expected=f"one for each of {self.servers} servers")
        length = self.reveal.length(checks.integer("count", count, 1))
        received = [self.field.check(f"answer of server {n}", a, length) for n, a in enumerate(answers, start=1)]
        asked = np.stack(
            [self.field.check(f"query to server {n}", q, self.form.symbols) for n, q in enumerate(sent, 1)]
        )
        known = [self.reveal.constant(self.field, term) for term in self.form.known(self.field, question, asked)]
        return [self.field.sub(answer, term) for answer, term in zip(received, known, strict=True)]

    def nearest(self, revealed: Vector) -> int:
        """Return the position of the nearest row, in the ticket's order where the reveal shuffles."""
        return self.reveal.nearest(self.field, revealed)

    def digest(self, rows: ArrayLike, records: Bytes | None = None) -> bytes:
        """Return the digest of everything that the servers must agree on (rule 4)."""
        codes = self.form.load(rows)
        held = np.empty((len(codes), 0), dtype=np.uint8) if records is None else records
        if not isinstance(held, np.ndarray) or held.dtype != np.uint8 or held.ndim != 2 or len(held) != len(codes):
            raise WrongShape("records", got=type(held).__name__, expected=f"an array of uint8, {len(codes)} by length")
        parts: list[bytes | str | int] = [VERSION, frame(codes.shape), as_bytes(codes).tobytes()]
        parts += [frame(held.shape), held.tobytes()]
        parts += [self.form.name, _canonical(self.form), _canonical(self.reveal)]
        parts += [self.field.q, frame(self.alphas), self.servers, self.collusion]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(frame([part]))
        return digest.digest()

    def common(self, key: bytes, digest: bytes, ticket: bytes | None) -> Common:
        """Return the common randomness of this scheme's servers for one ticket; None for what outlasts tickets."""
        return Common(key, digest=digest, ticket=ticket, servers=self.alphas)


def _least(form: Form, reveal: Reveal, servers: int) -> int:
    return max(reveal.bound(form.bound), servers)


def _canonical(part: Form | Reveal) -> str:
    return json.dumps(asdict(part), sort_keys=True)


def as_bytes(codes: Codes) -> Bytes:
    """Return every row's codes as little-endian bytes, an (M, bytes) array."""
    return np.ascontiguousarray(codes, dtype=f"<u{codes.itemsize}").view(np.uint8)


class Transcript(NamedTuple):
    """All messages of one question, and what came of it."""

    queries: Vector  # (N, symbols): row n - 1 is what server n sees
    answers: list[Vector]
    revealed: Vector
    position: int


def run(
    scheme: Scheme,
    rows: ArrayLike,
    question: Question,
    *,
    randomness: Randomness | None = None,
    common: CommonRandomness | None = None,
) -> Transcript:
    """Play all parties: the applicant asks, every server answers, the applicant recovers."""
    queries = scheme.query(question, randomness or Fresh())
    common = common or scheme.common(new_key(), scheme.digest(rows), b"run")
    answers = [scheme.answer(n, rows, query, common) for n, query in enumerate(queries, start=1)]
    revealed = scheme.recover(question, queries, answers, len(scheme.form.load(rows)))
    return Transcript(queries, answers, revealed, scheme.nearest(revealed))


def pair_named(name: str) -> tuple[str, str]:
    """Return the form and the reveal of a name in the catalogue, or of ``"form/reveal"``."""
    form, slash, reveal = "/".join(CATALOGUE.get(str(name), (str(name),))).partition("/")
    if not slash:
        raise UnknownName("scheme", got=name, expected=f"one of {', '.join(CATALOGUE)}, or form/reveal")
    return form, reveal


def make_scheme(
    name: str,
    *,
    levels: int | Sequence[int],
    d: int,
    shuffle: bool = False,
    d_min: int = 1,
    expansion: int = 1,
    servers: int | None = None,
    collusion: int | None = None,
    alphas: Sequence[int] | None = None,
    q: int | None = None,
    **parameters: Any,
) -> Scheme:
    """Build a scheme from its name in the catalogue, or from any pair as ``"form/reveal"``.

    `parameters` are the form's own: `max_weight`, `norm`, `cap`.

    >>> make_scheme("diff+", levels=10, d=20, max_weight=5).field
    Field(q=20011)
    >>> make_scheme("table/differences", levels=10, d=20, cap=100).servers
    2
    """
    form_name, reveal_name = pair_named(name)
    form = make_form(form_name, levels=levels, d=d, **parameters)
    reveal = make_reveal(reveal_name, shuffle=shuffle, d_min=d_min, expansion=expansion)
    return Scheme.of(form, reveal, servers=servers, collusion=collusion, alphas=alphas, q=q)
