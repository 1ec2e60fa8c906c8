"""Sealed reveals, by a garbled circuit: server 1 makes it, server 2 adds labels, the applicant evaluates it.

The applicant shares the cost additively over Z_2^k, so each server has a share of every row's cost. Server 1 garbles a
circuit that adds the shares and finds the least cost. Server 2 sends the labels of its own shares. It need not talk to
server 1, since all labels come from the common randomness of the ticket. The applicant learns the slot of the nearest
row, xor a number that only the servers know, and fetches the record from there. `docs/sealed.md` has the proof.

Security: two different questions on one ticket would give away both labels of a wire. The ledger must prevent that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...algebra.arrays import Bytes, Labels, Order, Vector
from ...algebra.field import Residues
from ...crypto import garbling
from ...crypto.garbling import AND, LABEL, flat, wires
from ...crypto.randomness import CommonRandomness, Streams
from ...engine import Records
from ...engine.party import Party, Send, Take
from ...errors import WrongShape
from ..fetch import BYTES
from ..forms import Question
from . import circuit
from .additive import Additive
from .circuit import Node, Wires
from .protocol import Choose, Held, Outcome, Request, Setting, Size

_SKIPPED = 1 << 20  # bytes of locked records that are taken, and dropped, at a time
_KEYS, _PADS = 1 << 40, 1 << 41  # steps of tweaks for keys and pads; no gate has such a step


@dataclass(frozen=True, kw_only=True)
class Garbled(Additive):
    """Compute a sealed reveal with two servers that do not talk to each other, for a form whose shares add up.

    With `records_inside` the answer contains all records, each locked with the labels of its position. The applicant
    can open one of them, and can fetch no other.
    """

    records_inside: bool = False

    name = "garbled"
    most_records = 1

    @property
    def fetches(self) -> bool:
        """Whether records are fetched in requests of their own."""
        return not self.records_inside

    def names(self, reveal: str) -> str:
        """Return the name of a reveal under this protocol."""
        return f"{reveal}_record" if self.records_inside else reveal

    def question(self, setting: Setting, size: Size) -> Request:
        """Return the sizes: labels from both servers; from the first also gates, decoding bits, and locked records."""
        count, bits = size.rows, setting.field.bits
        labels = count * bits * LABEL
        gates, final = circuit.ands(count, bits)
        locked = self.positions(count) * size.record if self.records_inside else 0
        first = labels + AND * (sum(gates) + final) + _packed(circuit.height(count)) + locked
        return Request(self.symbols(setting.form), setting.field, (first, labels + LABEL), BYTES, streams=True)

    def positions(self, count: int) -> int:
        """Return 2^⌈log2 M⌉. The positions left over by M rows are empty."""
        return 1 << circuit.height(count)

    def order(self, setting: Setting, count: int, common: CommonRandomness) -> Order:
        """Return which row stands at each position, -1 for none."""
        return self._standing(common.order(count), self._blind(count, common))

    def apply(self, field: Residues, values: Vector, common: CommonRandomness) -> Vector:
        """Return the position that the applicant learns, slot xor r. It is uniform, whatever the costs."""
        slot = np.argmin(values[common.order(len(values))], axis=0)
        return np.asarray(slot ^ common.elements("slot", self.positions(len(values)), 1)[0], dtype=np.int64)

    def _blind(self, count: int, common: CommonRandomness) -> int:
        """Return r. It is uniform, so that the position does not tell which of equal costs came first."""
        return int(common.elements("slot", self.positions(count), 1)[0])

    def _standing(self, order: Order, r: int) -> Order:
        """Return which row stands at each position, -1 for none: the row of a slot stands at slot xor r."""
        rows = np.full(self.positions(len(order)), -1, dtype=np.intp)
        rows[np.arange(len(order)) ^ r] = order
        return rows

    def serve(self, setting: Setting, seat: int, held: Held) -> Party[None]:
        """Send, chunk by chunk, the labels of the server's own shares; server 1 sends the chunk's gates after them."""
        query = yield Take("applicant", self.symbols(setting.form), setting.field)
        ring, common, count = setting.field, held.common((0, 1)), len(held.rows)
        order = common.order(count)
        values = held.rows.scan(self.plan(setting, query))[order]
        delta = _labels(common, "delta", 0, 0, 1)[0]
        delta[0] |= np.uint64(1)
        gates, winners = _Garbler(delta), []
        for block, slots in enumerate(circuit.chunks(count)):
            shape = (ring.bits, slots.stop - slots.start)
            zeros = [_labels(common, "label", n, block, *shape) for n in ((2,) if seat else (1, 2))]
            bits = values[slots].astype(np.uint64) >> np.arange(ring.bits, dtype=np.uint64)[:, None] & np.uint64(1)
            yield _down(flat(zeros[0] ^ (delta & np.negative(bits)[..., None])))
            if seat == 0:
                winners.append((yield from circuit.chunk(gates, zeros[0], zeros[1], slots.start, count)))
        opener = _labels(common, "opener", 0, 0, 1)
        if seat:
            yield _down(flat(opener))
            return
        final = yield from circuit.final(gates, winners, count)
        r = self._blind(count, common)
        blind = r >> np.arange(len(final)) & 1
        decode = garbling.colours(final).astype(np.uint8) ^ blind.astype(np.uint8) ^ _low_bits(opener, len(final))
        yield _down(np.packbits(decode, bitorder="little"))
        if self.records_inside:
            if held.records is None or len(held.records) != count:
                raise WrongShape("records", got="none, or another number", expected=f"one for each of {count} rows")
            zero = final ^ (delta & np.negative(blind.astype(np.uint64))[:, None])  # the labels of bits that are 0
            labels = np.stack([zero, zero ^ delta], axis=1)
            for part in _locked(opener, labels, held.records, self._standing(order, r)):
                yield _down(part)

    def read(self, setting: Setting, question: Question, queries: Vector, size: Size) -> Party[Outcome]:
        """Take labels and gates, and evaluate the gates as they arrive."""
        bits, count = setting.field.bits, size.rows
        gates, winners = _Evaluator(), list[Node]()
        for slots in circuit.chunks(count):
            shape = (bits, slots.stop - slots.start, 2)
            u = yield Take(0, LABEL * bits * shape[1], BYTES)
            v = yield Take(1, LABEL * bits * shape[1], BYTES)
            winners.append((yield from circuit.chunk(gates, wires(u, shape), wires(v, shape), slots.start, count)))
        final = yield from circuit.final(gates, winners, count)
        opener = wires((yield Take(1, LABEL, BYTES)), (1, 2))
        sent = yield Take(0, _packed(len(final)), BYTES)
        decode = np.unpackbits(sent, count=len(final), bitorder="little")
        slot = garbling.colours(final).astype(np.uint8) ^ decode ^ _low_bits(opener, len(final))
        position, nothing = int(slot @ (1 << np.arange(slot.size))), np.zeros(0, dtype=np.int64)
        if not self.records_inside or not size.record:
            return Outcome(nothing, (0, 1), position)
        yield from _skip(position * size.record)
        locked = yield Take(0, size.record, BYTES)
        yield from _skip((self.positions(count) - 1 - position) * size.record)
        return Outcome(nothing, (0, 1), position, (_unlocked(opener, final, position, locked),))

    def candidates(self, setting: Setting, found: Outcome, choose: Choose) -> list[int]:
        """Return the only position that the applicant learns."""
        return [found.position or 0]


def _down(symbols: Bytes) -> Send:
    return Send("applicant", symbols, BYTES)


class _Garbler:
    """Gates that server 1 makes, and sends as soon as they are made."""

    def __init__(self, delta: Labels) -> None:
        self._gates = garbling.Garbler(delta)
        self.invert = self._gates.invert

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return `a AND b`."""
        result, made = self._gates.both(a, b, step, first)
        yield _down(made)
        return result


class _Evaluator:
    """Gates that the applicant takes, and evaluates as soon as they arrive."""

    def __init__(self) -> None:
        self._gates = garbling.Evaluator()
        self.invert = self._gates.invert

    def both(self, a: Labels, b: Labels, step: int, first: int) -> Wires:
        """Return `a AND b`."""
        made = yield Take(0, AND * a.shape[0] * a.shape[1], BYTES)
        return self._gates.both(a, b, made, step, first)


def _skip(size: int) -> Generator[Any, Any, None]:
    """Take symbols that are not needed, and drop them, in parts small enough to hold in memory."""
    for start in range(0, size, _SKIPPED):
        yield Take(0, min(_SKIPPED, size - start), BYTES)


def _labels(common: Streams, purpose: str, coefficient: int, block: int, *shape: int) -> Labels:
    """Return fresh labels, the same at every server, from a stream for every 4096 rows (rule 4)."""
    raw = common.substream(purpose, 0, coefficient, block)(LABEL * int(np.prod(shape)))
    return np.frombuffer(bytearray(raw), dtype="<u8").astype(np.uint64, copy=False).reshape(*shape, 2)


def _packed(bits: int) -> int:
    return -(-bits // 8)


def _low_bits(opener: Labels, count: int) -> Bytes:
    """Return bits of the opener. They hide the decoding until server 2, which sends the opener, has answered.

    So an applicant who asks the servers one after the other must fix both queries before the gates tell anything.
    """
    bits: Labels = opener[0, 0] >> np.arange(count, dtype=np.uint64) & np.uint64(1)
    return bits.astype(np.uint8)


def _locked(opener: Labels, labels: Labels, records: Records, order: Order) -> Iterator[Bytes]:
    """Lock the record of every position with the labels of that position's bits; zeros where there is none.

    Every prefix of bits, from the highest bit down, has a key. The empty prefix has the opener. A prefix that is longer
    by one bit has H(key of the prefix xor label of the bit). Whoever lacks one label lacks every key below it.
    """
    keys = opener
    for i in reversed(range(len(labels))):
        children = (keys[:, None, :] ^ labels[i]).reshape(-1, 2)
        keys = garbling.hashed(children, garbling.tweaks(_KEYS + i, 1, 0, len(children))[0])
    for slots in circuit.chunks(len(order)):
        held = records.read(order[slots])
        yield (held ^ _pads(keys[slots], slots.start, records.length)).reshape(-1)


def _pads(keys: Labels, first: int, length: int) -> Bytes:
    """Return a pad of `length` bytes for each key. The keys are those of the positions from `first` on."""
    blocks = -(-length // LABEL)
    tweaks = garbling.tweaks(_PADS, 1, first * blocks, len(keys) * blocks)[0]
    return flat(garbling.hashed(np.repeat(keys, blocks, axis=0), tweaks)).reshape(len(keys), -1)[:, :length]


def _unlocked(opener: Labels, labels: Labels, position: int, locked: Bytes) -> bytes:
    """Return the record that the labels open."""
    key = opener[0]
    for i in reversed(range(len(labels))):
        tweak = garbling.tweaks(_KEYS + i, 1, position >> i, 1)[0, 0]
        key = garbling.hashed(key ^ labels[i], tweak)
    opened: Bytes = locked ^ _pads(key[None, :], position, locked.size)[0]
    return opened.tobytes()
