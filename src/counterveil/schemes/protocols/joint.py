"""Sealed reveals at any size: two servers evaluate the circuit on shares, and send shares of the record.

The applicant shares the cost additively over Z_2^k, so each server has a share of every row's cost. The servers
evaluate the circuit of sealed reveals on xor shares, 64 rows to a word (`packed`), and send messages to each other.
One-time randomness masks every message (`dealing`). It comes from a dealer who takes no part in the evaluation: the
applicant, or a third server that has no rows. In the end each server has a share of a selection of rows. It xors the
packages that its share selects, and sends the result under a pad that both servers have. The applicant xors the two
answers. `docs/sealed.md` says why nobody learns anything else.

Security: a second run on the same tape would tell the xor of values that the masks hide. The ledger must prevent that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...algebra.arrays import Bytes, Vector
from ...crypto.randomness import CommonRandomness, Randomness
from ...engine.party import Party, Role, Take
from ...errors import UnknownName, WrongShape
from ..fetch import BYTES
from ..forms import Question
from . import dealing
from .additive import Additive
from .dealing import Batch, Tape
from .hosted import Head, Tournament
from .packed import PROFILES, Bits, Layout
from .protocol import Choose, Held, Outcome, Request, Setting, Size

_ROLES: dict[str, Role] = {"applicant": "applicant", "server": "dealer"}


@dataclass(frozen=True, kw_only=True)
class Joint(Additive):
    """Compute a sealed reveal with two servers that talk to each other, for a form whose shares add up.

    `dealer` is the applicant, or a third server. If `seeded`, the dealer sends seeds instead of uniform bytes: 32 bytes
    to server 1, and about a third of the tape to server 2. The applicant's privacy then rests on AES-256.
    `rounds` is "few" for servers that are far from each other: they take turns less often, and send more bytes.
    """

    dealer: str = "applicant"
    seeded: bool = False
    rounds: str = "balanced"

    name = "joint"
    linked = True

    def __post_init__(self) -> None:
        if self.dealer not in _ROLES:
            raise UnknownName("dealer", got=self.dealer, expected=f"one of {', '.join(_ROLES)}")
        if self.rounds not in PROFILES:
            raise UnknownName("rounds", got=self.rounds, expected=f"one of {', '.join(PROFILES)}")

    @property
    def fetches(self) -> bool:
        """Return False: the answers contain the record."""
        return False

    @property
    def dealt_by(self) -> Role:
        """The role of the dealer."""
        return _ROLES[self.dealer]

    def question(self, setting: Setting, size: Size) -> Request:
        """Return the sizes: the query up, a package down for every record, openings between servers, and the tapes."""
        batches, down = self._batches(setting, size.rows, size.k), size.k * size.record
        dealt, between = dealing.dealt(batches, seeded=self.seeded), dealing.opened(batches)
        up, field = self.symbols(setting.form), setting.field
        return Request(
            up, field, (down, down), BYTES, between=between, dealt=dealt, dealer=self.dealt_by, rounds=len(batches)
        )

    def order(self, setting: Setting, count: int, common: CommonRandomness) -> None:
        """Return None: rows stand in their own order, and no position is told."""

    def deal(self, setting: Setting, size: Size, draw: Randomness) -> Party[None]:
        """Deal the randomness of one run. How much that is depends on public sizes alone."""
        return dealing.deal(self._batches(setting, size.rows, size.k), draw, seeded=self.seeded)

    def serve(self, setting: Setting, seat: int, held: Held) -> Party[Bytes]:
        """Compute with the other server which rows are the nearest; return a share of their packages, under pads.

        The server sends nothing before its query and its tape have arrived.
        """
        ring, count, k = setting.field, len(held.rows), held.k
        query = yield Take("applicant", self.symbols(setting.form), ring)
        size = dealing.dealt(self._batches(setting, count, k), seeded=self.seeded)[seat]
        tape = Tape(seat, (yield Take(self.dealt_by, size, BYTES)), seeded=self.seeded)
        whole = Layout.of(count)
        head = Head(seat, tape, dealing.script(count, ring.bits, k, self.rounds), whole, k, self.rounds)

        def job(first: int, last: int) -> Tournament:
            return Tournament(seat, ring.bits, whole.part(first, last), whole, k, self.rounds)

        yield from held.rows.host(self.plan(setting, query), job, head.meet)
        return np.concatenate([_package(held, number, each) for number, each in enumerate(head.found)])

    def together(self, count: int) -> int:
        """Return the rows of a block, which are packed into the same words."""
        return Layout.of(count).block

    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Xor the answers of both servers."""
        first = yield Take(0, size.k * size.record, BYTES)
        second = yield Take(1, size.k * size.record, BYTES)
        both = (first ^ second).astype(np.uint8).reshape(size.k, size.record)
        records = tuple(each.tobytes() for each in both) if size.record else ()
        return Outcome(np.zeros(0, dtype=np.int64), (0, 1), None, records)

    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Return no position, since none is told."""
        return []

    def _batches(self, setting: Setting, rows: int, k: int) -> tuple[Batch, ...]:
        if not 1 <= k <= rows:
            raise WrongShape("k", got=k, expected=f"a number from 1 to {rows}, the number of rows")
        return dealing.planned(rows, setting.field.bits, k, self.rounds)


def _package(held: Held, number: int, chosen: Bits) -> Bytes:
    """Return the xor of the chosen packages, under a pad for this attempt and record that both servers have."""
    records = held.records
    if records is None:
        return np.zeros(0, dtype=np.uint8)
    if len(records) != len(chosen):
        raise WrongShape("records", got=len(records), expected=f"one for each of {len(chosen)} rows")
    pad = held.common((0, 1)).elements("joint", 256, records.length, request=held.attempt, coefficient=number)
    return records.xor(chosen.astype(bool), 0, records.length) ^ pad.astype(np.uint8)
