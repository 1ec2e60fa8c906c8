"""A scheme is a form times a reveal: query, answer, recover.

The paper's six schemes are rows of the table `CATALOGUE`, and so are their two-server versions.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..algebra import checks
from ..algebra.arrays import Bytes, Codes, Vector
from ..algebra.field import Residues
from ..crypto.randomness import VERSION, Common, Fresh, Randomness, Streams, frame, new_key
from ..engine import Blocks
from ..errors import InvalidField, NoMask, OversizedField, TooFewServers, UnknownName, WrongShape
from . import defaults
from .forms import Form, Question, make_form
from .reveals import Outcome, Reader, Reveal, Symbols, make_reveal

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
    field: Residues
    liars: int = 0  # v: so many wrong answers are corrected, at the price of rule 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "collusion", checks.integer("collusion", self.collusion, 1))
        object.__setattr__(self, "liars", checks.integer("liars", self.liars, 0))
        if self.servers < self.needed(self.liars):
            lying = f", {self.liars} of whom may lie" if self.liars else ""
            enough = f"at least {self.needed(self.liars)}: {self.form.name} against {self.collusion}{lying}"
            raise TooFewServers("servers", got=self.servers, expected=enough)
        self.reveal.check(self)
        least = self.reveal.least(self.form.bound, self.servers)
        if self.field.q <= least:
            raise InvalidField("q", got=self.field.q, expected=f"a {self.field.kind} above {least}")
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
        smallest = reveal.arithmetic(reveal.least(form.bound, servers))
        field = smallest if q is None else replace(smallest, q=q)
        if field.q > smallest.q:
            least = f"the smallest {field.kind}, {smallest.q}"
            warnings.warn(f"q = {q}: {least}, gives away less", OversizedField, stacklevel=2)
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
        return self.reveal.query(self, question, randomness)

    @property
    def symbols(self) -> int:
        """Symbols sent up to each server."""
        return self.reveal.symbols(self.form)

    @property
    def alphabet(self) -> Residues:
        """What the symbols of an answer are."""
        return self.reveal.alphabet(self.field)

    def sent(self, server: int, count: int, record: int = 0) -> int:
        """Return how many symbols server n = 1..N sends down for `count` rows, with records of so many bytes."""
        return self.reveal.sent(self, server, count, record)

    def stream(
        self, server: int, rows: ArrayLike | Blocks, query: ArrayLike, common: Streams, records: Bytes | None = None
    ) -> Iterator[Symbols]:
        """Return the answer of server n = 1..N, part by part; the records are needed where it brings them.

        Security: to be seen by the applicant; holds the reveal and nothing else, however the queries were made up.
        """
        checks.integer("server", server, 1, self.servers)
        share = self.field.check("query", query, self.symbols)
        codes = rows if isinstance(rows, Blocks) else self.form.load(rows)
        return self.reveal.stream(self, server, codes, share, common, records)

    def answer(
        self, server: int, rows: ArrayLike | Blocks, query: ArrayLike, common: Streams, records: Bytes | None = None
    ) -> Any:
        """Return the answer of server n = 1..N, whole: an array of symbols."""
        return np.concatenate(list(self.stream(server, rows, query, common, records)))

    def reader(self, question: Question, queries: Vector, count: int, record: int = 0) -> Reader:
        """Return what takes answers in as they come, for `count` rows with records of so many bytes."""
        sent = self._each("queries", queries)
        checked = [self.field.check(f"query to server {n}", q, self.symbols) for n, q in enumerate(sent, 1)]
        return self.reveal.reader(self, question, np.stack(checked), checks.integer("count", count, 1), record)

    def recover(
        self, question: Question, queries: Vector, answers: Sequence[ArrayLike], count: int, record: int = 0
    ) -> Outcome:
        """Return what whole answers come to, after checking every one of them."""
        reader = self.reader(question, queries, count, record)
        for n, answer in enumerate(self._each("answers", answers), start=1):
            reader.feed(n - 1, self.alphabet.check(f"answer of server {n}", answer, self.sent(n, count, record)))
        return reader.outcome()

    def _each(self, what: str, messages: object) -> list[Any]:
        listed = checks.listed(what, messages, "one for each server")
        if len(listed) != self.servers:
            raise WrongShape(what, got=len(listed), expected=f"one for each of {self.servers} servers")
        return listed

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


def _canonical(part: Form | Reveal) -> str:
    return json.dumps(asdict(part), sort_keys=True)


def as_bytes(codes: Codes) -> Bytes:
    """Return every row's codes as little-endian bytes, an (M, bytes) array."""
    return np.ascontiguousarray(codes, dtype=f"<u{codes.itemsize}").view(np.uint8)


class Transcript(NamedTuple):
    """All messages of one question, and what came of it."""

    queries: Vector  # (N, symbols): row n - 1 is what server n sees
    answers: list[Any]
    revealed: Vector
    position: int
    record: bytes | None  # where the answers bring it


def run(
    scheme: Scheme,
    rows: ArrayLike,
    question: Question,
    *,
    randomness: Randomness | None = None,
    common: Streams | None = None,
    records: Bytes | None = None,
) -> Transcript:
    """Play all parties: the applicant asks, every server answers, the applicant recovers."""
    queries = scheme.query(question, randomness or Fresh())
    common = common or scheme.common(new_key(), scheme.digest(rows), b"run")
    codes = scheme.form.load(rows)
    reader = scheme.reader(question, queries, len(codes), 0 if records is None else records.shape[1])
    answers = []
    for n, query in enumerate(queries, start=1):
        parts = list(scheme.stream(n, codes, query, common, records))
        for part in parts:
            reader.feed(n - 1, part)
        answers.append(np.concatenate(parts))
    found = reader.outcome()
    return Transcript(queries, answers, found.revealed, scheme.nearest(found.revealed), found.record)


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
    shuffle: bool = defaults.SHUFFLE_BARE,
    d_min: int = defaults.D_MIN,
    expansion: int = defaults.EXPANSION,
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
