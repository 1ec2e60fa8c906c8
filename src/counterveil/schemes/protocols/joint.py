"""Sealed reveals at any size: two servers evaluate the circuit on shares, and send the record itself.

The applicant shares the cost additively over Z_2^k, so each server has a share of every row's cost. The servers run the
circuit of sealed reveals on xor shares, 64 rows to a word (`packed`), and talk to each other about it. All that they
say is masked by one-time randomness from somebody who takes no part in the evaluation (`dealing`): the applicant, or a
third party that holds no rows. They come to shares of a selection of rows, add up the packages that it selects, and
send the sum under a pad that both share. The applicant xors the two. `docs/sealed.md` says why nothing else is told.

Security: a run repeated on the same tape would show differences of what the masks hide. The ledger is part of this.
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
from .dealing import Batch, Shares, Tape
from .packed import Bits, Layout, settled
from .protocol import Choose, Held, Outcome, Request, Setting, Size

_ROLES: dict[str, Role] = {"applicant": "applicant", "server": "dealer"}


@dataclass(frozen=True, kw_only=True)
class Joint(Additive):
    """Two servers that talk to each other about a question, and a form whose shares add up.

    `dealer` is the applicant, or a third server. With `seeded` the dealer sends seeds in place of what is uniform: 32
    bytes to the first server, and about a third of the tape to the second. What servers do not learn then rests on AES.
    """

    dealer: str = "applicant"
    seeded: bool = False

    name = "joint"
    linked = True

    def __post_init__(self) -> None:
        if self.dealer not in _ROLES:
            raise UnknownName("dealer", got=self.dealer, expected=f"one of {', '.join(_ROLES)}")

    @property
    def fetches(self) -> bool:
        """Return False: the answers bring the record."""
        return False

    @property
    def dealt_by(self) -> Role:
        """The role of the dealer."""
        return _ROLES[self.dealer]

    def question(self, setting: Setting, size: Size) -> Request:
        """Return the form's symbols up and a package down for every record; openings; and what is dealt."""
        batches, down = _batches(setting, size.rows, size.k), size.k * size.record
        dealt, between = dealing.dealt(batches, seeded=self.seeded), dealing.opened(batches)
        up, field = self.symbols(setting.form), setting.field
        return Request(up, field, (down, down), BYTES, between=between, dealt=dealt, dealer=self.dealt_by)

    def order(self, setting: Setting, count: int, common: CommonRandomness) -> None:
        """Return None: rows stand as they are, and no position is told."""

    def deal(self, setting: Setting, size: Size, draw: Randomness) -> Party[None]:
        """Deal what one run needs. It depends on public sizes alone."""
        return dealing.deal(_batches(setting, size.rows, size.k), draw, seeded=self.seeded)

    def serve(self, setting: Setting, seat: int, held: Held) -> Party[Bytes]:
        """Settle with the other server which rows are the nearest; return a share of their packages, under pads.

        Nothing is said before the whole input is there.
        """
        ring, count = setting.field, len(held.rows)
        query = yield Take("applicant", self.symbols(setting.form), ring)
        size = dealing.dealt(_batches(setting, count, held.k), seeded=self.seeded)[seat]
        tape = Tape(seat, (yield Take(self.dealt_by, size, BYTES)), seeded=self.seeded)
        layout = Layout.of(count)
        costs = layout.padded(self.shares(setting, held.rows, query), 0 if seat else ring.q - 1)
        own = layout.sliced(costs, ring.bits)
        u, v = (np.zeros_like(own), own) if seat else (own, np.zeros_like(own))
        chosen = yield from settled(Shares(seat, tape), u, v, layout, held.k)
        return np.concatenate([_package(held, number, each) for number, each in enumerate(chosen)])

    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Xor the answers of both servers."""
        first = yield Take(0, size.k * size.record, BYTES)
        second = yield Take(1, size.k * size.record, BYTES)
        both = (first ^ second).astype(np.uint8).reshape(size.k, size.record)
        records = tuple(each.tobytes() for each in both) if size.record else ()
        return Outcome(np.zeros(0, dtype=np.int64), (0, 1), None, records)

    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Return none: no position is told."""
        return []


def _batches(setting: Setting, rows: int, k: int) -> tuple[Batch, ...]:
    if not 1 <= k <= rows:
        raise WrongShape("k", got=k, expected=f"at least 1, and no more than the {rows} rows there are")
    return dealing.planned(rows, setting.field.bits, k)


def _package(held: Held, number: int, chosen: Bits) -> Bytes:
    """Return the xor of the chosen packages, under a pad for this record that both servers share."""
    records = held.records
    if records is None:
        return np.zeros(0, dtype=np.uint8)
    if len(records) != len(chosen):
        raise WrongShape("records", got=len(records), expected=f"one for each of {len(chosen)} rows")
    pad = held.common((0, 1)).elements("joint", 256, records.length, coefficient=number)
    return records.xor(chosen.astype(bool), 0, records.length) ^ pad.astype(np.uint8)
