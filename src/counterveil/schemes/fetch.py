"""Fetch one record and nothing else: the SPIR step that follows a retrieval.

There are two ways; which one is used depends on how many servers may collude. `Subsets` (T = 1) xors random subsets of
records, at rate 1 - 1/N. `Polynomials` (T > 1) shares the unit vector of the position over GF(2^8), and a server
returns a linear combination of records. Both have the same verbs: query, answer, recover.

An applicant who cheats gets one linear mixture of records, as long as one record. So servers hold packages
(`crypto.packages`), since a mixture of packages is worth nothing.

Paper: the step after `system_model_case1`, "we use this index to perform the SPIR scheme".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..algebra import checks
from ..algebra.arrays import Bytes, Order
from ..algebra.field import Ring
from ..algebra.gf256 import GF256
from ..crypto.randomness import CommonRandomness, Fresh, Randomness
from ..crypto.sharing import reconstruct, split, zero_share
from ..engine import Records, hold
from ..engine.party import Party, Send, Take
from ..errors import EmptyDatabase, TooFewServers, WrongShape, WrongType

LEAST_PART = 16  # bytes: nobody may be able to guess a missing part of a package
BYTES = Ring(256)
_GF256 = GF256()


class Setting(Protocol):
    """What fetching a record needs to know about a scheme."""

    @property
    def alphas(self) -> tuple[int, ...]: ...
    @property
    def collusion(self) -> int: ...
    @property
    def robust(self) -> int: ...


def as_records(records: Sequence[bytes] | Bytes) -> Bytes:
    """Check records and return them as an (M, length) array of bytes, all of one length."""
    if not isinstance(records, np.ndarray) or not records.ndim:
        listed = checks.listed("records", records, "a list of bytes, or an array of uint8")
        if not all(isinstance(record, bytes) for record in listed):
            raise WrongType("records", got="other things", expected="bytes, or an array of uint8")
        lengths = sorted({len(record) for record in listed})
        if len(lengths) > 1:
            raise WrongShape("records", got=f"lengths {lengths[0]} to {lengths[-1]}", expected="one length for all")
        records = np.frombuffer(b"".join(listed), dtype=np.uint8).reshape(len(listed), *lengths)
    if not len(records):
        raise EmptyDatabase("records", got="M = 0", expected="at least one record")
    if records.dtype != np.uint8 or np.ma.is_masked(records):
        raise WrongType("records", got=f"dtype {records.dtype}", expected="uint8, none of it masked")
    if records.ndim != 2 or not records.shape[1]:
        raise WrongShape("records", got=f"shape {records.shape}", expected="(M, length), length at least 1")
    return records


@dataclass(frozen=True)
class Subsets:
    """SPIR against single servers: N >= 2 servers, upload M(N-1) bits each, rate 1 - 1/N.

    A record is cut into N - 1 parts of almost equal length. Server N gets a uniform bit matrix H, server j < N gets H
    with one bit flipped, that of part j at the position; each returns the xor of the parts its bits choose.
    """

    servers: int
    length: int  # bytes of a record

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        if checks.integer("servers", self.servers, 1) < 2:
            raise TooFewServers("servers", got=self.servers, expected="at least 2")

    @property
    def parts(self) -> int:
        """Parts that a record is cut into: N - 1."""
        return self.servers - 1

    @property
    def part(self) -> int:
        """Bytes of the longest part; each server sends this many."""
        return -(-self.length // self.parts)

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        """Where each part begins and ends."""
        cuts = [j * self.length // self.parts for j in range(self.parts + 1)]
        return list(pairwise(cuts))

    def query(self, count: int, position: int, randomness: Randomness) -> Bytes:
        """Return one query for each server: the rows of an (N, ⌈M(N-1)/8⌉) array of packed bits.

        Security: row n may be seen by server n; each row alone is uniform whatever the position.
        """
        checks.integer("position", position, 0, checks.integer("count", count, 1) - 1)
        bits = count * self.parts
        noise = randomness.elements(256, self.query_bytes(count)).astype(np.uint8)
        secret = np.unpackbits(noise, count=bits, bitorder="little")
        chosen = np.tile(secret, (self.servers, 1))
        for j in range(self.parts):
            chosen[j, position * self.parts + j] ^= 1
        return np.packbits(chosen, axis=1, bitorder="little")

    def query_bytes(self, count: int) -> int:
        """Return how many bytes a query for one of `count` records has: M(N-1) bits."""
        return -(-count * self.parts // 8)

    def check(self, what: str, query: Bytes, count: int) -> Bytes:
        """Accept a query from somebody else, or refuse it: packed bits, none of them set after the last."""
        packed = _as_bytes(what, query, self.query_bytes(count))
        bits = count * self.parts
        if np.unpackbits(packed[-1:], bitorder="little")[bits % 8 or 8 :].any():
            raise WrongShape(what, got="bits set after the last", expected=f"{bits} bits")
        return packed

    def answer(
        self,
        server: int,
        records: Records | Bytes,
        query: Bytes,
        common: CommonRandomness,
        *,
        order: Order | None = None,
        request: int = 0,
    ) -> Bytes:
        """Return the xor of the chosen parts, under the pad that all servers share for this request."""
        checks.integer("server", server, 1, self.servers)
        held = _held(records, self.length)
        count = len(records) if order is None else len(order)
        packed = self.check("record query", query, count)
        selected = np.unpackbits(packed, count=count * self.parts, bitorder="little").reshape(count, self.parts)
        chosen = _by_row(selected, order, len(records)).astype(bool)
        total = np.zeros(self.part, dtype=np.uint8)
        for j, (start, end) in enumerate(self._bounds):
            total[: end - start] ^= held.xor(np.ascontiguousarray(chosen[:, j]), start, end)
        return total ^ common.elements("record", 256, self.part, request=request).astype(np.uint8)

    def recover(self, answers: Sequence[Bytes]) -> bytes:
        """Return the record: part j = answer_j xor answer_N."""
        received = _answers(answers, self.servers, self.part)
        lengths = [end - start for start, end in self._bounds]
        return b"".join((a ^ received[-1])[:length].tobytes() for a, length in zip(received[:-1], lengths, strict=True))


@dataclass(frozen=True)
class Polynomials:
    """SPIR against T colluding servers: N >= T + 1 servers, upload M bytes each, rate 1/N.

    The unit vector of the position is shared with degree-T polynomials over GF(2^8). A server returns the linear
    combination of records whose coefficients are its share, under N - 1 pads.
    """

    servers: int
    collusion: int
    length: int  # bytes of a record

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        checks.integer("collusion", self.collusion, 1)
        if checks.integer("servers", self.servers, 1, 255) <= self.collusion:
            raise TooFewServers("servers", got=self.servers, expected=f"at least {self.collusion + 1}")

    @property
    def alphas(self) -> range:
        """Evaluation points in GF(2^8): 1..N."""
        return range(1, self.servers + 1)

    def query(self, count: int, position: int, randomness: Randomness) -> Bytes:
        """Return one query for each server: the rows of an (N, M) array of bytes.

        Security: row n may be seen by server n; any T rows are uniform whatever the position.
        """
        checks.integer("position", position, 0, checks.integer("count", count, 1) - 1)
        unit = np.zeros(count, dtype=np.int64)
        unit[position] = 1
        return split(_GF256, unit, self.alphas, self.collusion, randomness).astype(np.uint8)

    def query_bytes(self, count: int) -> int:
        """Return how many bytes a query for one of `count` records has: M."""
        return count

    def check(self, what: str, query: Bytes, count: int) -> Bytes:
        """Accept a query from somebody else if it has the right length; refuse it otherwise."""
        return _as_bytes(what, query, self.query_bytes(count))

    def answer(
        self,
        server: int,
        records: Records | Bytes,
        query: Bytes,
        common: CommonRandomness,
        *,
        order: Order | None = None,
        request: int = 0,
    ) -> Bytes:
        """Return sum_i query_i * record_i + sum_t alpha^t Z'_t, t = 1..N-1."""
        checks.integer("server", server, 1, self.servers)
        held = _held(records, self.length)
        count = len(records) if order is None else len(order)
        scalars = _by_row(self.check("record query", query, count), order, len(records))
        pads = [
            common.elements("record", 256, self.length, request=request, coefficient=t) for t in range(1, self.servers)
        ]
        pad = zero_share(_GF256, self.alphas[server - 1], pads)
        return held.combine(scalars) ^ pad.astype(np.uint8)

    @property
    def part(self) -> int:
        """Bytes that each server sends: a whole record."""
        return self.length

    def recover(self, answers: Sequence[Bytes]) -> bytes:
        """Return the record: the value at 0."""
        received = _answers(answers, self.servers, self.length)
        shares = [answer.astype(np.int64) for answer in received]
        return reconstruct(_GF256, self.alphas, shares, self.servers - 1).astype(np.uint8).tobytes()


Spir = Subsets | Polynomials


def make_spir(*, servers: int, collusion: int, length: int, chosen: bool = False) -> Spir:
    """Choose how a record is fetched from `servers` servers, of which `collusion` may collude.

    `chosen` says that the applicant picks the servers from a larger set. A cheat could then name different sets to
    different servers and put the parts of several records together. So an answer must be worth nothing without the
    answers of all the others: `Polynomials`. They are also used if so many servers take part that a part would be short
    enough to guess.
    """
    whole = collusion > 1 or chosen or servers - 1 > max(1, length // LEAST_PART)
    return Polynomials(servers, collusion, length) if whole else Subsets(servers, length)


def spir_of(setting: Setting, length: int) -> Spir:
    """Return how a scheme fetches a record: from all its servers except as many as may lie."""
    servers = len(setting.alphas) - setting.robust
    return make_spir(servers=servers, collusion=setting.collusion, length=length, chosen=setting.robust > 0)


class _Step(NamedTuple):
    """The messages for one record: the seats whose answers give the record, and what each server gets."""

    among: tuple[int, ...]
    sent: list[tuple[tuple[int, ...], Bytes]]  # by seat: the seats that the query says it is for, and the query


def fetched(
    setting: Setting,
    record: int,
    count: int,
    positions: Sequence[int],
    honest: Sequence[int],
    draw: Randomness,
    first: int = 1,
) -> Party[tuple[bytes, ...]]:
    """Play the applicant who fetches the records at these positions, of `count`: one request each, from honest servers.

    `first` is the first request's number. All queries are made before the first is sent, and nothing is computed until
    all answers have arrived.
    """
    spir, seats = spir_of(setting, record), range(len(setting.alphas))
    steps = [_step(spir, seats, honest, count, position, draw) for position in positions]
    answers: list[dict[int, Bytes]] = [{} for _ in steps]
    for request, (step, parts) in enumerate(zip(steps, answers, strict=True), start=first):
        for seat, (among, query) in enumerate(step.sent):
            yield Send(seat, query, BYTES, request, among)
        for seat in seats:
            parts[seat] = yield Take(seat, spir.part, BYTES, request)
    recovered = zip(steps, answers, strict=True)
    return tuple(spir.recover([parts[seat] for seat in step.among]) for step, parts in recovered)


def _step(
    spir: Spir, seats: Sequence[int], honest: Sequence[int], count: int, position: int, draw: Randomness
) -> _Step:
    """Prepare the queries for one record, from a random set of honest servers.

    A server that is left out gets a query of noise, and a random set of servers that it is in. So it cannot tell that
    it was left out, by chance or because it lied.
    """
    among = _some(honest, spir.servers, draw)
    queries = dict(zip(among, spir.query(count, position, draw), strict=True))
    sent = []
    for seat in seats:
        asked = among
        if seat not in among:
            others = [other for other in seats if other != seat]
            asked = tuple(sorted((*_some(others, spir.servers - 1, draw), seat)))
            queries[seat] = spir.query(count, 0, draw)[0]
        sent.append((asked, queries[seat]))
    return _Step(among, sent)


def _some(seats: Sequence[int], size: int, draw: Randomness) -> tuple[int, ...]:
    """Return `size` of these seats, every set equally likely. If there is no choice, draw nothing."""
    left = list(seats)
    while len(left) > size:
        left.pop(int(draw.elements(len(left), 1)[0]))
    return tuple(sorted(left))


def served(
    spir: Spir,
    place: int,
    records: Records,
    count: int,
    common: Callable[[], tuple[CommonRandomness, Order | None]],
    request: int,
) -> Party[None]:
    """Play one server, at place 1..N among those asked, for one record.

    `common` returns the randomness that these servers share, and the ticket's order. It is called after the query has
    arrived.
    """
    check = partial(spir.check, "record query", count=count)
    query = yield Take("applicant", spir.query_bytes(count), BYTES, request, check)
    shared, order = common()
    yield Send("applicant", spir.answer(place, records, query, shared, order=order, request=request), BYTES, request)


class RecordTranscript(NamedTuple):
    """The queries for one record, and the record that was recovered."""

    queries: Bytes  # row n - 1 is what server n sees
    record: bytes


def run(
    spir: Spir,
    records: Bytes,
    position: int,
    common: CommonRandomness,
    *,
    order: Order | None = None,
    request: int = 0,
    randomness: Randomness | None = None,
) -> RecordTranscript:
    """Play all parties: the applicant asks for one position, every server answers, the applicant recovers."""
    queries = spir.query(len(records) if order is None else len(order), position, randomness or Fresh())
    servers = enumerate(queries, start=1)
    answers = [spir.answer(n, records, Q, common, order=order, request=request) for n, Q in servers]
    return RecordTranscript(queries, spir.recover(answers))


def _held(records: Records | Bytes, length: int) -> Records:
    if isinstance(records, np.ndarray) and records.ndim != 2:
        raise WrongShape("records", got=f"shape {records.shape}", expected=f"(any, {length})")
    held = hold(records)
    if held.length != length:
        raise WrongShape("records", got=f"shape ({len(held)}, {held.length})", expected=f"(any, {length})")
    return held


def _by_row(values: NDArray[np.uint8], order: Order | None, rows: int) -> NDArray[np.uint8]:
    """Turn values by position into values by row: position p stands for row order[p], -1 for none."""
    if order is None:
        return values
    used = order >= 0
    if int(used.sum()) != rows:
        raise WrongShape("order", got=int(used.sum()), expected=f"a place for each of {rows} records")
    by_row = np.zeros((rows, *values.shape[1:]), dtype=np.uint8)
    by_row[order[used]] = values[used]
    return by_row


def _as_bytes(what: str, values: Bytes, length: int) -> Bytes:
    array = checks.integers(what, values, (length,))
    checks.in_range(what, array, 0, 255)
    return array.astype(np.uint8, copy=False)


def _answers(answers: Sequence[Bytes], servers: int, length: int) -> list[Bytes]:
    if len(answers) != servers:
        raise WrongShape("record answers", got=len(answers), expected=f"one from each of {servers} servers")
    return [_as_bytes(f"record answer of server {n}", a, length) for n, a in enumerate(answers, start=1)]
