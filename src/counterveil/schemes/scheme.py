"""A scheme is a form of the question, a reveal, and the protocol that computes them: query, answer, recover.

The table `CATALOGUE` holds the papers' eight schemes, and two-server versions of the first six.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..algebra import checks
from ..algebra.arrays import Bytes, Codes, Vector
from ..algebra.field import Residues
from ..crypto.randomness import VERSION, Common, Fresh, Randomness, Streams, delimited, new_key
from ..engine import Rows, as_rows, hold
from ..engine.party import Inbox, Party, Role, Send, Take, chained, play, released
from ..errors import InvalidField, NoMask, NotOffered, OversizedField, TooFewServers, UnknownName, WrongShape
from . import defaults
from .forms import Form, Question, make_form
from .protocols import Choose, Held, Outcome, Protocol, Request, Seen, Size, make_protocol
from .reveals import Reveal, make_reveal

CATALOGUE: dict[str, tuple[str, str]] = {
    "baseline": ("euclidean", "distances"),
    "diff": ("euclidean", "differences"),
    "mask": ("euclidean", "masked"),
    "baseline+": ("weighted", "distances"),
    "diff+": ("weighted", "differences"),
    "mask+": ("weighted", "masked"),
    "i-pcr": ("fixed", "distances"),
    "i-pcr-two-phase": ("fixed", "agreeing"),
    "linear-baseline": ("linear", "distances"),
    "linear-diff": ("linear", "differences"),
    "linear-mask": ("linear", "masked"),
}
_IN_DIGESTS = {"largest": "levels"}  # what a field is called in digests, which `vectors/` fixes
ALIASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # old names for a reveal together with its protocol
    "sealed_record": ("sealed", "garbled", {"records_inside": True}),
}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A form, a reveal, a protocol, and public numbers that fit them; `Scheme.of` computes the numbers.

    Security: public.
    """

    form: Form
    reveal: Reveal
    protocol: Protocol
    alphas: tuple[int, ...]  # one for each server
    collusion: int  # T: this many servers together learn nothing
    field: Residues
    robust: int = 0  # v: how many wrong answers are corrected; rule 3 says what that costs

    def __post_init__(self) -> None:
        object.__setattr__(self, "collusion", checks.integer("collusion", self.collusion, 1))
        object.__setattr__(self, "robust", checks.integer("robust", self.robust, 0))
        if self.servers < self.needed(self.robust):
            lying = f", {self.robust} of whom may lie" if self.robust else ""
            enough = f"at least {self.needed(self.robust)}: {self.form.name} against {self.collusion}{lying}"
            raise TooFewServers("servers", got=self.servers, expected=enough)
        self.protocol.check(self)
        above = self.protocol.must_exceed(self.form.bound, self.reveal, self.servers)
        if self.field.q <= above:
            raise InvalidField("q", got=self.field.q, expected=f"a {self.field.kind} above {above}")
        object.__setattr__(self, "alphas", self.field.check_alphas(self.alphas))

    @classmethod
    def of(
        cls,
        form: Form,
        reveal: Reveal,
        protocol: Protocol | None = None,
        *,
        servers: int | None = None,
        collusion: int | None = None,
        alphas: Sequence[int] | None = None,
        q: int | None = None,
    ) -> Scheme:
        """Pair a form with a reveal; by default with the fewest servers, the most collusion, the smallest q (rule 5).

        >>> from counterveil import FORMS, REVEALS
        >>> Scheme.of(FORMS["weighted"](largest=[10] * 20, max_weight=5), REVEALS["differences"]).field
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
        protocol, reveal = protocol or make_protocol(reveal.protocol), reveal.fitted(form)
        if collusion is None:
            collusion = 1 if protocol.pairs else max(1, (servers - 1) // form.degree)
        smallest = protocol.arithmetic(protocol.must_exceed(form.bound, reveal, servers))
        field = smallest if q is None else replace(smallest, q=q)
        if field.q > smallest.q:
            smaller = f"the smallest {field.kind}, {smallest.q}, gives away less"
            warnings.warn(f"q = {q}: {smaller}", OversizedField, stacklevel=2)
        if reveal.masked and reveal.d_min == 1:
            warnings.warn(f"{reveal.name}: d_min = 1 means no mask; every cost is revealed", NoMask, stacklevel=2)
        return cls(form=form, reveal=reveal, protocol=protocol, alphas=points, collusion=collusion, field=field)

    @property
    def name(self) -> str:
        """The name in terms: ``"form/reveal"``."""
        return f"{self.form.name}/{self.protocol.names(self.reveal.name)}"

    @property
    def servers(self) -> int:
        """N, all of which must answer."""
        return len(self.alphas)

    @property
    def degree(self) -> int:
        """D, the degree in alpha of what the applicant interpolates: N - 1, less 2 for every answer to be corrected."""
        return self.servers - 1 - 2 * self.robust

    def needed(self, robust: int = 0) -> int:
        """Return how many servers are needed: eT + 1, and two more for every wrong answer to be corrected.

        Where pairs of servers work on a question, it is one more for every server that may lie.
        """
        if self.protocol.pairs:
            return 2 + robust
        return self.form.degree * self.collusion + 1 + 2 * robust

    def among(self, servers: Sequence[int], robust: int = 0) -> Scheme:
        """Return the same scheme for some of its servers, given by number, such as those that a ticket names."""
        for n in servers:
            checks.integer("servers", n, 1, self.servers)
        return replace(self, alphas=tuple(self.alphas[n - 1] for n in servers), robust=robust)

    def runs(self) -> list[tuple[int, ...]]:
        """Return the seats of the servers that work on a question together; none if there are too many servers.

        All servers do, or pairs of them. If v of them may lie, these are all pairs of v + 2 servers, or v + 1 pairs of
        2v + 2 servers: one pair is honest in either case.
        """
        count, lying = self.servers, self.robust
        if not self.protocol.pairs:
            return [tuple(range(count))] if count == self.needed(lying) else []
        if count == 2 + lying:
            return list(combinations(range(count), 2))
        return [(seat, seat + 1) for seat in range(0, count, 2)] if count == 2 + 2 * lying else []

    @property
    def exact(self) -> bool:
        """Whether a nearest row is found for every question; masked retrieval is approximate (rule 8)."""
        return self.reveal.exact

    @property
    def rebuilt_after(self) -> int | None:
        """How many tickets rebuild the rows by the attacks we know; None where no attack does."""
        return self.reveal.rebuilt_after(self.form, self.field)

    def query(self, question: Question, randomness: Randomness) -> Vector:
        """Return one query for each server, the rows of an (N, symbols) array.

        Security: row n may be seen by server n; any T rows are uniform whatever the question.
        Paper: `queries_no_weight`, `queries_weighted`.
        """
        return self.protocol.query(self, question, randomness)

    @property
    def symbols(self) -> int:
        """Symbols of a question sent up to each server."""
        return self.protocol.symbols(self.form)

    def requests(self, size: Size) -> tuple[Request, ...]:
        """Return how much goes to and from each server, request by request."""
        return self.protocol.requests(self, size)

    def ask(self, question: Question, size: Size, draw: Randomness, choose: Choose | None = None) -> Party[Seen]:
        """Return the applicant's party; `choose` says which positions to fetch, by default the k least costs."""
        return self.protocol.ask(self, question, size, draw, choose or partial(nearest, size.k))

    def answering(self, seat: int, request: int, held: Held, among: Sequence[int] | None = None) -> Party[Bytes | None]:
        """Return the party of the server at a seat, for one request to these seats, by default all."""
        return self.protocol.answer(self, seat, request, tuple(range(self.servers) if among is None else among), held)

    def stream(
        self, server: int, rows: ArrayLike | Rows, query: ArrayLike, common: Streams, records: Bytes | None = None
    ) -> Iterator[Any]:
        """Return the answer of server n = 1..N to a question, part by part; `records` are needed if it contains them.

        Security: to be seen by the applicant; holds the reveal and nothing else, however the queries were made up.
        """
        checks.integer("server", server, 1, self.servers)
        if self.protocol.linked or self.protocol.questions > 1:
            raise NotOffered("answer", got=f"one server alone by {self.protocol.name}", expected="all parties: `run`")
        share = self.field.check("query", query, self.symbols)
        scannable = rows if isinstance(rows, Rows) else as_rows(self.form.load(rows))
        added = None if records is None else hold(records)
        party = self.answering(server - 1, 0, Held(scannable, added, lambda _: common))
        next(party)
        return _sent(party, share)

    def answer(
        self, server: int, rows: ArrayLike | Rows, query: ArrayLike, common: Streams, records: Bytes | None = None
    ) -> Any:
        """Return the whole answer of server n = 1..N, an array of symbols."""
        return np.concatenate(list(self.stream(server, rows, query, common, records)))

    def recover(
        self, question: Question, queries: Vector, answers: Sequence[ArrayLike], count: int, record: int = 0
    ) -> Outcome:
        """Return the outcome of whole answers, after checking every one of them."""
        sent = [
            self.field.check(f"query to server {n}", q, self.symbols)
            for n, q in enumerate(self._each("queries", queries), 1)
        ]
        size, inbox = Size(checks.integer("count", count, 1), record), Inbox()
        asked = self.requests(size)[0]
        for seat, answer in enumerate(self._each("answers", answers)):
            symbols = asked.answered.check(f"answer of server {seat + 1}", answer, asked.down[seat])
            inbox.put(seat, 0, symbols.astype(np.uint8) if asked.streams else symbols)
        party = self.protocol.read(self, question, np.stack(sent), size)
        try:
            effect = next(party)
            while True:
                if not isinstance(effect, Take):
                    raise AssertionError("reading an answer sends nothing")
                effect = party.send(inbox.take(effect))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _each(self, what: str, messages: object) -> list[Any]:
        listed = checks.listed(what, messages, "one for each server")
        if len(listed) != self.servers:
            raise WrongShape(what, got=len(listed), expected=f"one for each of {self.servers} servers")
        return listed

    def digest(self, rows: ArrayLike, records: Bytes | None = None) -> bytes:
        """Return the digest of everything that the servers must agree on (rule 4)."""
        codes = self.form.load(rows)
        kept = np.empty((len(codes), 0), dtype=np.uint8) if records is None else records
        if not isinstance(kept, np.ndarray) or kept.dtype != np.uint8 or kept.ndim != 2 or len(kept) != len(codes):
            raise WrongShape("records", got=type(kept).__name__, expected=f"an array of uint8, {len(codes)} by length")
        parts: list[bytes | str | int] = [VERSION, delimited(codes.shape), as_bytes(codes).tobytes()]
        parts += [delimited(kept.shape), kept.tobytes()]
        parts += [self.form.name, _canonical(self.form), _canonical(self.reveal)]
        if self.protocol != make_protocol(self.reveal.protocol):
            parts += [self.protocol.name, _canonical(self.protocol)]
        parts += [self.field.q, delimited(self.alphas), self.servers, self.collusion]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(delimited([part]))
        return digest.digest()

    def common(self, key: bytes, digest: bytes, ticket: bytes | None) -> Common:
        """Return the common randomness of this scheme's servers for one ticket; None if it belongs to no ticket."""
        return Common(key, digest=digest, ticket=ticket, servers=self.alphas)


def _canonical(part: Form | Reveal | Protocol) -> str:
    fields = {_IN_DIGESTS.get(name, name): value for name, value in asdict(part).items()}
    return json.dumps(fields, sort_keys=True)


def as_bytes(codes: Codes) -> Bytes:
    """Return every row's codes as little-endian bytes, an (M, bytes) array."""
    return np.ascontiguousarray(codes, dtype=f"<u{codes.itemsize}").view(np.uint8)


def nearest(k: int, relative: Vector) -> list[int]:
    """Return the positions of the k least costs, the least first; of equal costs the first one (rule 7)."""
    return [int(p) for p in np.argsort(relative, kind="stable")[:k]]


def _sent(party: Party[Any], received: Any) -> Iterator[Any]:
    """Resume a server's party with its query; return what it sends."""
    try:
        effect = party.send(received)
        while True:
            if not isinstance(effect, Send):
                raise AssertionError("an answer takes nothing more")
            yield effect.symbols
            effect = next(party)
    except StopIteration:
        return


class Transcript(NamedTuple):
    """All messages of one question, and its result."""

    queries: Vector  # (N, symbols): row n - 1 is what server n sees, of all requests that the question takes
    answers: list[Any]
    revealed: Vector
    position: int  # -1 if the protocol tells none
    record: bytes | None  # where records were given
    record_queries: list[Any]  # by server: everything that it sees while a record is fetched


def run(
    scheme: Scheme,
    rows: ArrayLike,
    question: Question,
    *,
    randomness: Randomness | None = None,
    common: Streams | None = None,
    records: Bytes | None = None,
) -> Transcript:
    """Play all parties: the applicant asks, every server answers, the applicant recovers, then fetches a record if any.

    Every message must have the size that the scheme has announced.
    """
    codes = scheme.form.load(rows)
    shared = common or scheme.common(new_key(), scheme.digest(rows), b"run")
    size, draw = Size(len(codes), 0 if records is None else records.shape[1]), randomness or Fresh()
    held = Held(as_rows(codes), None if records is None else hold(records), lambda _: shared)
    asked, seats, messages = scheme.requests(size), range(scheme.servers), list[tuple[Role, Send]]()
    parties: dict[Role, Party[Any]] = {"applicant": scheme.ask(question, size, draw)}
    if scheme.protocol.dealt_by == "dealer":
        parties["dealer"] = scheme.protocol.deal(scheme, size, draw)
    for seat in seats:
        answers = [released(scheme.answering(seat, n, held), each.answered) for n, each in enumerate(asked)]
        parties[seat] = chained(answers)
    seen: Seen = play(parties, watch=lambda role, send: messages.append((role, send)))["applicant"]

    def sent(source: Role, to: Role, request: int) -> list[Any]:
        return [m.symbols for role, m in messages if (role, m.to, m.request) == (source, to, request)]

    def whole(source: Role, to: Role, request: int) -> Any:
        return np.concatenate([np.zeros(0, dtype=np.uint8), *sent(source, to, request)])

    for number, request in enumerate(asked):
        sizes = Counter[tuple[Role, Role]]()
        for role, message in messages:
            sizes[role, message.to] += message.symbols.size if message.request == number else 0
        if dict(+sizes) != request.traffic():
            raise AssertionError(f"request {number}: got messages of {dict(+sizes)}, expected {request.traffic()}")
    several = range(scheme.protocol.questions)
    return Transcript(
        queries=np.stack([np.concatenate([sent("applicant", seat, n)[0] for n in several]) for seat in seats]),
        answers=[np.concatenate([whole(seat, "applicant", n) for n in several]) for seat in seats],
        revealed=seen.revealed,
        position=seen.positions[0] if seen.positions else -1,
        record=seen.records[0] if seen.records else None,
        record_queries=[whole("applicant", seat, len(several)) for seat in seats],
    )


def pair_named(name: str) -> tuple[str, str]:
    """Return the form and the reveal of a name in the catalogue, or of ``"form/reveal"``."""
    form, slash, reveal = "/".join(CATALOGUE.get(str(name), (str(name),))).partition("/")
    if not slash:
        raise UnknownName("scheme", got=name, expected=f"one of {', '.join(CATALOGUE)}, or form/reveal")
    return form, reveal


def make_parts(
    reveal: str, *, protocol: str | None = None, options: Mapping[str, Any] | None = None, **parameters: Any
) -> tuple[Reveal, Protocol]:
    """Build a reveal and the protocol that computes it, from the reveal's name or an alias of both."""
    name, usual, own = ALIASES.get(reveal, (reveal, None, {}))
    made = make_reveal(name, **parameters)
    return made, make_protocol(protocol or usual or made.protocol, **own | dict(options or {}))


def make_scheme(
    name: str,
    *,
    largest: int | Sequence[int] | None = None,
    d: int,
    shuffle: bool = defaults.SHUFFLE_BARE,
    d_min: int = defaults.D_MIN,
    expansion: int = defaults.EXPANSION,
    servers: int | None = None,
    collusion: int | None = None,
    alphas: Sequence[int] | None = None,
    q: int | None = None,
    protocol: str | None = None,
    dealer: str | None = None,
    **parameters: Any,
) -> Scheme:
    """Build a scheme from its name in the catalogue, or from any pair as ``"form/reveal"``.

    `protocol` says how the reveal is computed, if there is a choice: ``"garbled"`` or ``"joint"`` for sealed reveals.
    Joint takes a `dealer`, ``"applicant"`` or ``"server"``. `parameters` are the form's own: `max_weight`, `norm`,
    `cap`.

    >>> make_scheme("diff+", largest=10, d=20, max_weight=5).field
    Field(q=20011)
    >>> make_scheme("table/differences", largest=10, d=20, cap=100).servers
    2
    """
    form_name, reveal_name = pair_named(name)
    form = make_form(form_name, largest=largest, d=d, **parameters)
    options = {} if dealer is None else {"dealer": dealer}
    reveal, how = make_parts(
        reveal_name, protocol=protocol, options=options, shuffle=shuffle, d_min=d_min, expansion=expansion
    )
    return Scheme.of(form, reveal, how, servers=servers, collusion=collusion, alphas=alphas, q=q)
