"""Only where the nearest row stands, in an order that nobody but the servers knows: costs stay sealed.

The applicant shares the cost additively over Z_2^k, so each server has a share of every row's cost. Server 1 garbles a
circuit that adds the shares and finds the least; server 2 sends the labels of its own shares, without a word to server
1, since all labels come from the common randomness of the ticket. `docs/sealed.md` has the protocol and its proof.

Security: two different questions on one ticket would give away both labels of a wire. The ledger is part of this.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from ...algebra.arrays import Bytes, Labels, Order, Vector
from ...algebra.field import Residues, Ring
from ...crypto import garbling as garble
from ...crypto.garbling import AND, LABEL, Evaluator, Garbler
from ...crypto.randomness import CommonRandomness, Randomness, Streams
from ...crypto.sharing import split_sum
from ...engine import Rows
from ...errors import NotOffered, WrongShape
from .. import circuit
from ..forms import Form, Question
from .reveal import Outcome, Reveal, Setting, Symbols

_BYTE = Ring(256)
_PART = 1 << 18  # bytes sent at a time
_AHEAD = 1 << 20  # bytes of one answer that wait at most for the other
_KEYS, _PADS = 1 << 40, 1 << 41  # steps that no gate has
_Evaluation = Generator[tuple[int, int], Bytes, Outcome]


@dataclass(frozen=True, kw_only=True)
class Sealed(Reveal):
    """The nearest row's position, slot xor r, and nothing else; the record is fetched from there.

    `differences`: of costs the applicant knows which is least, and no cost itself.
    """

    differences: bool = True
    shuffle: bool = True

    most = 1
    timeless = True  # every row's gates are evaluated, whatever they say

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shuffle or self.d_min * self.expansion != 1:
            raise NotOffered(self.name, got=f"d_min = {self.d_min}", expected="1: there is nothing to mask")

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        return f"of the costs of all {count:,} rows nothing"

    def check(self, setting: Setting) -> None:
        """Refuse a form that is not additive, and more or fewer than two servers, none of whom lies."""
        if not setting.form.additive:
            raise NotOffered(
                self.name,
                got=f"the form {setting.form.name}",
                expected="table, linear or even_norm: shares must add up",
            )
        if len(setting.alphas) != 2 or setting.collusion != 1 or setting.liars:
            got = f"{len(setting.alphas)} servers, {setting.collusion} colluding, {setting.liars} lying"
            raise NotOffered(self.name, got=got, expected="two servers, which do not collude")

    def least(self, B: int, servers: int) -> int:
        """Return the largest cost."""
        return B

    def arithmetic(self, least: int) -> Ring:
        """Return Z_2^k for the smallest k that holds it."""
        return Ring.of_bits(least.bit_length())

    def symbols(self, form: Form) -> int:
        """Return how many symbols go up: the form's, and what the applicant would add to the value."""
        return form.symbols + 1

    def length(self, count: int) -> int:
        """Return how many bits a position has: ⌈log2 M⌉."""
        return circuit.height(count)

    def positions(self, count: int) -> int:
        """Return 2^⌈log2 M⌉; nothing stands at those beyond M."""
        return 1 << self.length(count)

    def capacity(self, field: Residues, count: int) -> float:
        """Return 0: the position is uniform, whatever the rows."""
        return 0.0

    def alphabet(self, field: Residues) -> Residues:
        """Return bytes."""
        return _BYTE

    def sent(self, setting: Setting, server: int, count: int, record: int) -> int:
        """Return how many bytes: labels from both; from the first the gates, the decoding, and records if inside."""
        bits = setting.field.bits
        labels = count * bits * LABEL
        if server != 1:
            return labels + LABEL
        gates, final = circuit.ands(count, bits)
        return labels + AND * (sum(gates) + final) + _packed(self.length(count)) + self._opened(count, record)

    def _opened(self, count: int, record: int) -> int:
        """Return the bytes of records that come with the answer."""
        return self.positions(count) * record if self.inside else 0

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return the bits of slot xor r, the lowest first; r is uniform and hides which of equal costs came first."""
        slot = np.argmin(values[common.order(len(values))], axis=0)
        position = slot ^ self._blind(len(values), common)
        bits = np.arange(self.length(len(values))).reshape(-1, *(1,) * slot.ndim)
        return np.asarray(position >> bits & 1, dtype=np.int64)

    def _blind(self, count: int, common: CommonRandomness) -> Vector:
        """Return r."""
        return np.asarray(common.elements("slot", self.positions(count), 1)[0])

    def relative(self, field: Residues, revealed: Vector) -> Vector:
        """Return 0 at the position of the nearest row, and 1 elsewhere: no less, which is all there is to know."""
        costs = np.ones(1 << revealed.size, dtype=np.int64)
        costs[int(revealed @ (1 << np.arange(revealed.size)))] = 0
        return costs

    def order(self, count: int, common: CommonRandomness) -> Order:
        """Return which row stands at each position, -1 for none."""
        return self._standing(common.order(count), int(self._blind(count, common)))

    def _standing(self, order: Order, r: int) -> Order:
        """Put the row of every slot at slot xor r."""
        rows = np.full(self.positions(len(order)), -1, dtype=np.intp)
        rows[np.arange(len(order)) ^ r] = order
        return rows

    def query(self, setting: Setting, question: Question, randomness: Randomness) -> Vector:
        """Share what the form sends and what the applicant would add, so that no total is negative."""
        form, ring = setting.form, setting.field
        secret = np.append(form.secret(ring, question), form.offset(question) % ring.q)
        return split_sum(ring, secret, randomness)

    def stream(
        self, setting: Setting, server: int, rows: Rows, query: Vector, common: Streams, records: Bytes | None
    ) -> Iterator[Symbols]:
        """Return, chunk by chunk, the labels of a server's own shares; from the first server, gates behind them."""
        whole = self._parts(setting, server, rows, query, common, records)
        return (part[start : start + _PART] for part in whole for start in range(0, part.size, _PART))

    def _parts(
        self, setting: Setting, server: int, rows: Rows, query: Vector, common: Streams, records: Bytes | None
    ) -> Iterator[Bytes]:
        ring, count, order = setting.field, len(rows), common.order(len(rows))
        values = ring.add(setting.form.evaluate(ring, rows, query[:-1]), int(query[-1]))[order]
        delta = _labels(common, "delta", 0, 0, 1)[0]
        delta[0] |= np.uint64(1)
        gates, winners = Garbler(delta), []
        for block, slots in enumerate(circuit.chunks(count)):
            shape = (ring.bits, slots.stop - slots.start)
            zeros = [_labels(common, "label", n, block, *shape) for n in ((server,) if server != 1 else (1, 2))]
            bits = values[slots].astype(np.uint64) >> np.arange(ring.bits, dtype=np.uint64)[:, None] & np.uint64(1)
            yield _flat(zeros[0] ^ (delta & np.negative(bits)[..., None]))
            if server == 1:
                winners.append(circuit.chunk(gates, zeros[0], zeros[1], slots.start, count))
                yield from _flushed(gates)
        opener = _labels(common, "opener", 0, 0, 1)
        if server != 1:
            yield _flat(opener)
            return
        final = circuit.final(gates, winners, count)
        yield from _flushed(gates)
        r = int(self._blind(count, common))
        blind = r >> np.arange(len(final)) & 1
        decode = garble.colours(final).astype(np.uint8) ^ blind.astype(np.uint8) ^ _low_bits(opener, len(final))
        yield np.packbits(decode, bitorder="little")
        if self.inside:
            if records is None or len(records) != count:
                raise WrongShape("records", got="none, or another number", expected=f"one for each of {count} rows")
            flips = delta & np.negative(blind.astype(np.uint64))[:, None]
            zero = final ^ flips  # labels of a position's bit being 0
            yield from _locked(opener, np.stack([zero, zero ^ delta], axis=1), records, self._standing(order, r))

    def reader(self, setting: Setting, question: Question, queries: Vector, count: int, record: int) -> _Reader:
        """Return what evaluates the gates as they come."""
        return _Reader(self._evaluation(setting.field.bits, count, record))

    def _evaluation(self, bits: int, count: int, record: int) -> _Evaluation:
        """Evaluate: yields the place of a server and how many bytes of its answer come next."""
        gates, nodes = Evaluator(), []
        sizes, last = circuit.ands(count, bits)
        for slots, size in zip(circuit.chunks(count), sizes, strict=True):
            shape = (bits, slots.stop - slots.start, 2)
            u = yield 0, LABEL * bits * shape[1]
            v = yield 1, LABEL * bits * shape[1]
            gates.load((yield 0, AND * size))
            nodes.append(circuit.chunk(gates, _wires(u, shape), _wires(v, shape), slots.start, count))
        gates.load((yield 0, AND * last))
        final = circuit.final(gates, nodes, count)
        opener = _wires((yield 1, LABEL), (1, 2))
        decode = np.unpackbits((yield 0, _packed(len(final))), count=len(final), bitorder="little")
        revealed = (garble.colours(final).astype(np.uint8) ^ decode ^ _low_bits(opener, len(final))).astype(np.int64)
        if not self.inside:
            return Outcome(revealed, (0, 1))
        position = int(np.argmin(self.relative(_BYTE, revealed)))
        for size in _steps(position * record):
            yield 0, size
        locked = yield 0, record
        for size in _steps((self.positions(count) - 1 - position) * record):
            yield 0, size
        return Outcome(revealed, (0, 1), _unlocked(opener, final, position, locked))


@dataclass(frozen=True, kw_only=True)
class SealedRecord(Sealed):
    """The same, and the answer brings the records, each locked with the labels of its position: one can be opened."""

    inside = True

    def tells(self, count: int) -> str:
        """Say in words what the applicant learns of `count` rows."""
        return f"{super().tells(count)}, and no other row can be fetched"


class _Reader:
    """Drives an evaluation with the bytes of two answers, whichever come first."""

    def __init__(self, evaluation: _Evaluation) -> None:
        self._evaluation, self._held = evaluation, (bytearray(), bytearray())
        self._outcome: Outcome | None = None
        self._place, self._wanted = next(evaluation)
        self._go_on()

    def feed(self, place: int, symbols: Symbols) -> None:
        """Take more bytes, and evaluate as far as they go."""
        self._held[place].extend(symbols.astype(np.uint8, copy=False).data)
        self._go_on()

    def _go_on(self) -> None:
        while self._outcome is None and len(self._held[self._place]) >= self._wanted:
            held = self._held[self._place]
            taken = np.frombuffer(bytes(held[: self._wanted]), dtype=np.uint8)
            del held[: self._wanted]
            try:
                self._place, self._wanted = self._evaluation.send(taken)
            except StopIteration as end:
                self._outcome = end.value

    def hungry(self, place: int) -> bool:
        """Say whether the evaluation waits for this answer, or little of it waits for the evaluation."""
        return place == self._place or len(self._held[place]) < _AHEAD

    def outcome(self) -> Outcome:
        """Return the position."""
        if self._outcome is None or any(self._held):
            raise WrongShape("answers", got="too little or too much", expected="the whole of each, and no more")
        return self._outcome


def _labels(common: Streams, purpose: str, coefficient: int, block: int, *shape: int) -> Labels:
    """Return fresh labels, the same at every server: a stream for every 4096 rows (rule 4)."""
    raw = common.substream(purpose, 0, coefficient, block)(LABEL * int(np.prod(shape)))
    return np.frombuffer(bytearray(raw), dtype="<u8").astype(np.uint64, copy=False).reshape(*shape, 2)


def _flat(labels: Labels) -> Bytes:
    return labels.astype("<u8", copy=False).reshape(-1).view(np.uint8)


def _wires(raw: Bytes, shape: tuple[int, ...]) -> Labels:
    return raw.view("<u8").astype(np.uint64, copy=False).reshape(shape)


def _flushed(gates: Garbler) -> Iterator[Bytes]:
    """Hand out the gates made so far, and forget them one by one."""
    made, gates.tables = gates.tables[::-1], []
    while made:
        yield _flat(made.pop())


def _steps(size: int) -> Iterator[int]:
    """Cut what is not needed into parts that are not worth holding."""
    return (min(_AHEAD, size - start) for start in range(0, size, _AHEAD))


def _packed(bits: int) -> int:
    return -(-bits // 8)


def _low_bits(opener: Labels, count: int) -> Bytes:
    """Return bits that hide the decoding until server 2 has spoken.

    So whoever asks the servers one after the other must settle on both questions before the gates mean anything.
    """
    bits: Labels = opener[0, 0] >> np.arange(count, dtype=np.uint64) & np.uint64(1)
    return bits.astype(np.uint8)


def _locked(opener: Labels, labels: Labels, records: Bytes, order: Order) -> Iterator[Bytes]:
    """Lock the record of every position with the labels of that position's bits; zeros where there is none.

    A key for every prefix of bits, from the highest down: H(key of the prefix xor label of the next bit), the first
    being the opener. Whoever lacks one label lacks every key below it.
    """
    keys = opener
    for i in reversed(range(len(labels))):
        children = (keys[:, None, :] ^ labels[i]).reshape(-1, 2)
        keys = garble.hashed(children, garble.tweaks(_KEYS + i, 1, 0, len(children))[0])
    for slots in circuit.chunks(len(order)):
        rows = order[slots]
        held = np.where((rows >= 0)[:, None], records[rows], np.uint8(0))
        yield (held ^ _pads(keys[slots], slots.start, records.shape[1])).reshape(-1)


def _pads(keys: Labels, first: int, length: int) -> Bytes:
    """Return so many bytes for each key of the positions from `first` on."""
    blocks = -(-length // LABEL)
    tweaks = garble.tweaks(_PADS, 1, first * blocks, len(keys) * blocks)[0]
    return _flat(garble.hashed(np.repeat(keys, blocks, axis=0), tweaks)).reshape(len(keys), -1)[:, :length]


def _unlocked(opener: Labels, labels: Labels, position: int, locked: Bytes) -> bytes:
    """Return the record that the labels open."""
    key = opener[0]
    for i in reversed(range(len(labels))):
        tweak = garble.tweaks(_KEYS + i, 1, position >> i, 1)[0, 0]
        key = garble.hashed(key ^ labels[i], tweak)
    opened: Bytes = locked ^ _pads(key[None, :], position, locked.size)[0]
    return opened.tobytes()
