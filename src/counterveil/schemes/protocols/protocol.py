"""The contract of a protocol: how servers that must not know the question bring an applicant exactly one reveal.

A protocol says what each party (`engine.party`) plays: the applicant, each server, and, if it needs one, a dealer.
`requests` says beforehand how much everybody sends. Every run must keep to it, so that sizes tell nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from typing import Protocol as Shape

from ...algebra.arrays import Bytes, Order, Vector
from ...algebra.field import Residues
from ...crypto.randomness import CommonRandomness, Randomness, Streams
from ...engine import Records, Rows
from ...engine.party import Party, Role, Send
from ...errors import WrongShape
from .. import fetch
from ..fetch import BYTES
from ..forms import Form, Question
from ..reveals import Reveal

Choose = Callable[[Vector], list[int]]  # from costs by position to the positions to fetch


class Setting(fetch.Setting, Shape):
    """Who takes part, and over what they compute: a `Scheme`, as its protocol sees it."""

    @property
    def form(self) -> Form: ...
    @property
    def reveal(self) -> Reveal: ...
    @property
    def field(self) -> Residues: ...
    @property
    def degree(self) -> int: ...


class Size(NamedTuple):
    """The public sizes of a run."""

    rows: int
    record: int = 0  # bytes of a record as servers hold it; 0 where no record is fetched
    k: int = 1  # records that a question gets


class Request(NamedTuple):
    """How much goes to and from each server in one request, in symbols."""

    up: int
    sent: Residues  # the field or ring of the symbols that go up
    down: tuple[int, ...]  # by seat
    answered: Residues  # the field or ring of the symbols that come down
    streams: bool = False  # whether the answer may be read as it arrives: that takes the same time whatever it says
    between: int = 0  # bytes that each server sends to each other server
    dealt: tuple[int, ...] = ()  # bytes of one-time randomness that each server gets, by seat
    dealer: Role = "applicant"  # the role that deals them
    rounds: int = 0  # messages that each server sends to each other server, one after the other

    def body(self, seat: int) -> int:
        """Return how many bytes the applicant sends to a server: its query, and what the applicant deals."""
        return self.sent.packed(self.up) + (self.dealt[seat] if self.dealt and self.dealer == "applicant" else 0)

    def traffic(self) -> dict[tuple[Role, Role], int]:
        """Return how many symbols each role sends to each other role; pairs that exchange none are left out."""
        sizes: Counter[tuple[Role, Role]] = Counter()
        for seat, down in enumerate(self.down):
            sizes[seat, "applicant"] += down
            sizes["applicant", seat] += self.up
            for other in range(len(self.down)):
                sizes[seat, other] += self.between if other != seat else 0
        for seat, dealt in enumerate(self.dealt):
            sizes[self.dealer, seat] += dealt
        return dict(+sizes)


class Held(NamedTuple):
    """What a server brings to a run."""

    rows: Rows
    records: Records | None
    common: Callable[[tuple[int, ...]], Streams]  # the common randomness of some of the servers, given by seat
    k: int = 1  # records that a question gets
    attempt: int = 0  # which attempt this is, where servers talk to each other


class Outcome(NamedTuple):
    """The result of the answers to a question."""

    revealed: Vector
    honest: tuple[int, ...]  # seats of the servers whose answers fit together
    position: int | None = None  # of the nearest row, if the protocol tells it instead of costs
    records: tuple[bytes, ...] = ()  # the records, if the answers contain them

    @property
    def record(self) -> bytes | None:
        """The first record that the answers contain, if any."""
        return self.records[0] if self.records else None


class Seen(NamedTuple):
    """Everything that the applicant has at the end."""

    revealed: Vector
    positions: tuple[int, ...]  # of the records; none if the protocol tells none, or if answers contradict each other
    records: tuple[bytes, ...]
    honest: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """How a reveal is computed.

    Security: public.
    """

    name: ClassVar[str]
    linked: ClassVar[bool] = False  # whether servers talk to each other
    pairs: ClassVar[bool] = False  # whether two servers work on a question; where some may lie, several pairs do
    questions: ClassVar[int] = 1  # requests that a question takes, one after the other; those for records follow
    most_records: ClassVar[int | None] = None  # the most records that a question may get; None for no limit

    @property
    def fetches(self) -> bool:
        """Whether records are fetched in requests of their own, after the question."""
        return True

    def names(self, reveal: str) -> str:
        """Return the name that terms give a reveal under this protocol."""
        return reveal

    @property
    def dealt_by(self) -> Role | None:
        """Who deals one-time randomness to the servers, if the protocol needs any."""
        return None

    def deal(self, setting: Setting, size: Size, draw: Randomness) -> Party[None]:
        """Play the dealer: send each server its one-time randomness, and take nothing.

        Security: the dealer, as such, sees no message of any other party.
        """
        yield from ()

    @abstractmethod
    def check(self, setting: Setting) -> None:
        """Refuse a form, a reveal, or servers that this protocol is not made for."""

    @abstractmethod
    def must_exceed(self, bound: int, reveal: Reveal, servers: int) -> int:
        """Return what q must exceed for costs up to `bound`."""

    @abstractmethod
    def arithmetic(self, above: int) -> Residues:
        """Return the smallest field or ring whose q exceeds `above` (rule 5)."""

    @abstractmethod
    def symbols(self, form: Form) -> int:
        """Return how many symbols of a question go up to each server."""

    @abstractmethod
    def question(self, setting: Setting, size: Size) -> Request:
        """Return how much goes to and from each server in the question itself."""

    def requests(self, setting: Setting, size: Size) -> tuple[Request, ...]:
        """Return how much goes to and from each server, request by request: the question, then k records."""
        question = self.question(setting, size)
        if not self.fetches or not size.record:
            return (question,)
        return (question, *[self._record(setting, size)] * size.k)

    def _record(self, setting: Setting, size: Size) -> Request:
        spir = fetch.spir_of(setting, size.record)
        servers = len(setting.alphas)
        return Request(spir.query_bytes(self.positions(size.rows)), BYTES, (spir.part,) * servers, BYTES)

    def positions(self, count: int) -> int:
        """Return how many positions there are to fetch a record from."""
        return count

    def together(self, count: int) -> int:
        """Return how many consecutive rows must be in one place: shards hold a multiple of it."""
        return 1

    @abstractmethod
    def order(self, setting: Setting, count: int, common: CommonRandomness) -> Order | None:
        """Return which row stands at each position, -1 for none; None if all rows stand in their own order."""

    @abstractmethod
    def query(self, setting: Setting, question: Question, draw: Randomness) -> Vector:
        """Return one query for each server, the rows of an (N, symbols) array.

        Security: row n may be seen by the server at seat n; any T rows are uniform whatever the question.
        """

    @abstractmethod
    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Take the answers to a question, and return their outcome."""

    def further(
        self, setting: Setting, question: Question, found: Outcome, size: Size, draw: Randomness
    ) -> Party[Outcome]:
        """Send and take what follows the first answers, if a question takes several requests."""
        yield from ()
        return found

    @abstractmethod
    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Return the positions to fetch."""

    def ask(self, setting: Setting, question: Question, size: Size, draw: Randomness, choose: Choose) -> Party[Seen]:
        """Play the applicant: the question to all servers, then the records, if they are fetched.

        All that depends on the question is computed before the first message, or between the last answer to the
        question and the first record request. If the answers cannot be true, records at random positions are
        fetched instead (rule 10).
        """
        queries = self.query(setting, question, draw)
        for seat, query in enumerate(queries):
            yield Send(seat, query, setting.field)
        if self.dealt_by == "applicant":
            yield from self.deal(setting, size, draw)
        found = yield from self.read(setting, question, queries, size)
        found = yield from self.further(setting, question, found, size, draw)
        if not size.record or not self.fetches:
            told = tuple(self.candidates(setting, found, choose))
            return Seen(found.revealed, told, found.records, found.honest)
        wanted, at_random = self._wanted(setting, found, size, draw, choose)
        positions = wanted or at_random
        count = self.positions(size.rows)
        records = yield from fetch.fetched(setting, size.record, count, positions, found.honest, draw, self.questions)
        return Seen(found.revealed, tuple(wanted), records, found.honest)

    def _wanted(
        self, setting: Setting, found: Outcome, size: Size, draw: Randomness, choose: Choose
    ) -> tuple[list[int], list[int]]:
        """Return the positions to fetch, none if the answers cannot be true; and as many random positions."""
        chosen = self.candidates(setting, found, choose)
        at_random = [int(p) for p in draw.elements(self.positions(size.rows), size.k)]
        plausible = setting.reveal.plausible(setting.field, found.revealed, setting.form.bound)
        return (chosen if plausible else []), at_random

    def answer(
        self, setting: Setting, seat: int, request: int, among: tuple[int, ...], held: Held
    ) -> Party[Bytes | None]:
        """Play the server at a seat for one request to these seats: 0 is the question; records follow it.

        Servers that talk to each other return their answer instead of sending it. Their driver sends it to the
        applicant as soon as it may be released.
        """
        if request == 0:
            return self.serve(setting, seat, held)
        if held.records is None:
            raise WrongShape("records", got="none", expected="some to fetch")
        records = held.records

        def common() -> tuple[Streams, Order | None]:
            everyone = held.common(tuple(range(len(setting.alphas))))
            return held.common(among), self.order(setting, len(records), everyone)

        spir, count = fetch.spir_of(setting, records.length), self.positions(len(held.rows))
        return fetch.served(spir, among.index(seat) + 1, records, count, common, request)

    @abstractmethod
    def serve(self, setting: Setting, seat: int, held: Held) -> Party[Bytes | None]:
        """Play the server at a seat for the question."""
