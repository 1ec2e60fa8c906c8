"""Joint finds the nearest row whoever deals, and each server's view is distributed alike for every question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from counterveil import FORMS, REVEALS, Question, Scheme, make_scheme, retrieve, run
from counterveil.algebra.arrays import Bytes, Labels, Order, Vector
from counterveil.crypto.packages import package_all, unpackage
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.engine import as_rows, hold
from counterveil.engine.party import Party, Role, Send, Take, play, released
from counterveil.errors import NotOffered, UnknownName, WrongShape
from counterveil.schemes.conformance import check_protocol
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Held, Size, circuit, dealing, make_protocol, rounds
from counterveil.schemes.protocols.dealing import Planner, Shares, Tape
from databases import Case, cases

pytestmark = pytest.mark.slow

DEALERS = ("applicant", "server")


def numbered(count: int) -> Bytes:
    """Return records that contain the number of their row."""
    return np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)


def first_nearest(scheme: Scheme, rows: Any, question: Question) -> int:
    """Return the row that the applicant gets, as its record says."""
    found = run(scheme, rows, question, records=numbered(len(rows)))
    assert (found.position, found.revealed.size) == (-1, 0)
    return int.from_bytes(found.record or b"", "little")


def tabled(bits: int, dealer: str = "applicant") -> Scheme:
    """Return a scheme with one feature of 256 levels, whose costs take any value of `bits` bits."""
    scheme = make_scheme("table/sealed", largest=255, d=1, cap=(1 << bits) - 1, protocol="joint", dealer=dealer)
    assert scheme.field.bits == bits
    return scheme


# --- right ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dealer", DEALERS)
@pytest.mark.parametrize("form", ["table", "linear", "even_norm"])
@settings(max_examples=12, deadline=None)
@given(case=cases(most_rows=300))
def test_the_first_nearest_row_is_found(form: str, dealer: str, case: Case) -> None:
    scheme = make_scheme(f"{form}/sealed", protocol="joint", dealer=dealer, **case.parameters(form))
    assert first_nearest(scheme, case.rows, case.question(form)) == int(np.argmin(case.plain(form)))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5000), st.integers(0, 2**32), st.sampled_from(DEALERS))
def test_costs_of_any_width_and_databases_of_any_size(bits: int, M: int, seed: int, dealer: str) -> None:
    rng = np.random.default_rng(seed)
    rows, costs = rng.integers(0, 256, (M, 1)), rng.integers(0, 1 << bits, 256)
    assert first_nearest(tabled(bits, dealer), rows, Question(costs=[costs])) == int(np.argmin(costs[rows[:, 0]]))


@pytest.mark.parametrize("M", [1, 2, 63, 64, 65, 127, 129, 4095, 4097, 65_535, 65_536, 65_537, 70_000, 131_073])
def test_odd_sizes(M: int) -> None:
    rng = np.random.default_rng(M)
    rows, costs = rng.integers(0, 256, (M, 1)), rng.integers(20, 4096, 256)
    for least in {0, M - 1, int(rng.integers(M))}:
        rows[rows == 7] = 8
        rows[least], costs[7] = 7, 3
        assert first_nearest(tabled(12), rows, Question(costs=[costs])) == least


@pytest.mark.parametrize("M", [1, 3, 64, 100, 1000, 65_540])
@pytest.mark.parametrize("cost", [0, 1, 7])
def test_ties_go_to_the_first_row_and_pads_never_win(M: int, cost: int) -> None:
    """This holds even if every row costs as much as a pad."""
    rows = np.zeros((M, 1), dtype=np.int64)
    assert first_nearest(tabled(3), rows, Question(costs=[[cost] + [7] * 255])) == 0
    rows[: M // 2] = 1
    assert first_nearest(tabled(3), rows, Question(costs=[[cost, 7] + [7] * 254])) == (M // 2 if cost < 7 else 0)


def test_a_tie_between_halves() -> None:
    """Among costs 9, 5, 5, 9 the first 5 wins, wherever these four rows stand."""
    for start in (0, 1, 2, 60, 62, 63, 126, 509, 1020):
        rows = np.full((1024, 1), 3)
        rows[start : start + 4, 0] = [2, 1, 1, 2]
        assert first_nearest(tabled(4), rows, Question(costs=[[0, 5, 9] + [15] * 253])) == start + 1


@pytest.mark.parametrize("dealer", DEALERS)
@pytest.mark.parametrize("form", ["table", "linear", "even_norm"])
def test_the_protocol_conforms(form: str, dealer: str) -> None:
    made, rows, questions = FORMS[form].example()
    scheme = Scheme.of(made, REVEALS["sealed"], make_protocol("joint", dealer=dealer))
    for question in questions:
        check_protocol(scheme, rows, question, scheme.common(bytes(32), b"", b"t"))


def test_one_call_plays_all_parties() -> None:
    rows, costs = [[0, 1], [2, 3], [1, 1]], [[5, 0, 9, 9], [9, 1, 9, 9]]
    for dealer in DEALERS:
        found = retrieve(rows, largest=3, scheme="table/sealed", costs=costs, cap=9, protocol="joint", dealer=dealer)
        assert (found.index, found.position, found.record) == (2, -1, bytes([1, 1]))


# --- k records, sizes, refusals ------------------------------------------------------------------------------------


def asked(
    scheme: Scheme, rows: Any, question: Question, records: Bytes, *, k: int = 1, deal: Party[None] | None = None
) -> tuple[list[bytes], Counter[tuple[Role, Role]]]:
    """Play all parties for k records, with `deal` as the dealer if it is given; return records and message sizes."""
    size, sizes = Size(len(rows), records.shape[1], k), Counter[tuple[Role, Role]]()
    common = scheme.common(new_key(), b"", b"t")
    held = Held(as_rows(scheme.form.load(rows)), hold(records), lambda _: common, k)
    parties: dict[Role, Party[Any]] = {seat: released(scheme.answering(seat, 0, held), BYTES) for seat in (0, 1)}
    parties["applicant"] = scheme.ask(question, size, Fresh())
    if scheme.protocol.dealt_by == "dealer":
        parties["dealer"] = deal or scheme.protocol.deal(scheme, size, Fresh())
    seen = play(parties, watch=lambda role, send: sizes.update({(role, send.to): send.symbols.size}))["applicant"]
    return list(seen.records), sizes


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 400), st.integers(1, 6), st.integers(0, 2**32), st.sampled_from(DEALERS))
def test_the_k_nearest_rows_come_in_order(M: int, k: int, seed: int, dealer: str) -> None:
    rng, k = np.random.default_rng(seed), min(k, M)
    rows, costs = rng.integers(0, 256, (M, 1)), rng.integers(0, 16, 256)
    scheme = tabled(4, dealer)
    found, sizes = asked(scheme, rows, Question(costs=[costs]), numbered(M), k=k)
    nearest = np.argsort(costs[rows[:, 0]], kind="stable")[:k]
    assert [int.from_bytes(record, "little") for record in found] == nearest.tolist()
    assert dict(sizes) == scheme.requests(Size(M, 4, k))[0].traffic()


@pytest.mark.parametrize("dealer", DEALERS)
def test_seeds_bring_the_same_and_fewer_bytes(dealer: str) -> None:
    whole = tabled(12, dealer)
    seeded = Scheme.of(whole.form, whole.reveal, make_protocol("joint", dealer=dealer, seeded=True))
    rng = np.random.default_rng(3)
    rows, costs = rng.integers(0, 256, (3000, 1)), rng.integers(0, 4096, 256)
    assert first_nearest(seeded, rows, Question(costs=[costs])) == int(np.argmin(costs[rows[:, 0]]))
    first, second = seeded.requests(Size(1 << 20))[0].dealt
    assert first == 32
    assert second < 5 * (1 << 20)


@pytest.mark.parametrize(("bits", "dealt", "between", "rounds"), [(12, 13, 8, 185), (21, 22, 14, 270)])
def test_bytes_of_a_row(bits: int, dealt: int, between: int, rounds: int) -> None:
    for M in (1 << 14, 1 << 20, (1 << 20) + 1):
        request = tabled(bits).requests(Size(M, 146))[0]
        assert max(request.dealt) <= dealt * M
        assert request.between <= between * M
        assert request.down == (146, 146)
    assert len(dealing.planned(1 << 20, bits, 1)) == rounds


def test_what_it_is_not_made_for() -> None:
    with pytest.raises(UnknownName):
        make_protocol("joint", dealer="nobody")
    with pytest.raises(UnknownName):
        make_scheme("table/sealed", largest=3, d=1, dealer="server")  # the garbled protocol has no dealer
    with pytest.raises(NotOffered):
        make_scheme("table/differences", largest=3, d=1, protocol="joint")
    with pytest.raises(NotOffered):
        make_scheme("euclidean/sealed", largest=3, d=1, protocol="joint")
    with pytest.raises(NotOffered):
        make_scheme("table/sealed", largest=3, d=1, protocol="joint", servers=3)
    with pytest.raises(NotOffered):
        tabled(3).answer(1, [[0]], np.zeros(257, dtype=np.int64), tabled(3).common(bytes(32), b"", b"t"))
    with pytest.raises(WrongShape):
        tabled(3).requests(Size(4, 4, 5))


# --- private: all randomness, enumerated ---------------------------------------------------------------------------
#
# A wire has one lane for each value of all random bits: in lane n, the random bits are the bits of the number n.

Script = Callable[[Any, Sequence[Labels]], Generator[Any, Any, Any]]


class Lanes:
    """Random bits that together take all values, one combination in each lane."""

    def __init__(self, bits: int) -> None:
        self.bits, self.used, self.words = bits, 0, 1 << bits - 6

    def next(self) -> Labels:
        """Return a random bit that is independent of those before."""
        which, self.used = self.used, self.used + 1
        assert which < self.bits
        if which >= 6:
            index: Labels = np.arange(self.words, dtype=np.uint64) >> np.uint64(which - 6)
            index &= np.uint64(1)
            return np.negative(index)
        pattern = sum(1 << lane for lane in range(64) if lane >> which & 1)
        return np.full(self.words, pattern, dtype=np.uint64)


def view(
    script: Script,
    inputs: Sequence[int],
    seat: int,
    bits: int,
    *,
    says: Sequence[int] | None = None,
    draws: Callable[[Lanes], Callable[[int], list[Labels]]] | None = None,
    patch: pytest.MonkeyPatch,
) -> NDArray[np.int64]:
    """Return how often each view of a server occurs. A view is its shares, its tape, and every message to it.

    The server follows the protocol, or sends the bits `says` whatever it sees. Fixed bits cover every strategy, even
    one that depends on the view: a view occurs under a strategy as often as under the fixed bits that the strategy
    sends at that view.
    """
    lanes = Lanes(bits)
    own = [lanes.next() for _ in inputs]
    wires = [[x, x ^ np.uint64(-bit % (1 << 64))] for x, bit in zip(own, inputs, strict=True)]
    drawn = (draws or fresh)(lanes)
    patch.setattr(dealing, "octets", lambda _, count: dealing.as_bytes(np.stack(drawn(count // (8 * lanes.words)))))
    planner = Planner()
    circuit.done(script(planner, [np.zeros((1, 1, lanes.words), dtype=np.uint64)] * len(inputs)))
    seen = list(own)

    def server(n: int) -> Party[Any]:
        received = yield Take("dealer", dealing.dealt(planner.batches, seeded=False)[n], BYTES)
        gates = Shares(n, Tape(n, received, seeded=False))
        mine = [pair[0 if n == seat else 1].reshape(1, 1, -1) for pair in wires]
        return (yield from script(gates, mine))

    def liar(party: Party[Any], left: list[int]) -> Party[Any]:
        received = None
        while True:
            try:
                effect = party.send(received)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Send):
                said = [left.pop(0) for _ in range(effect.symbols.size // (8 * lanes.words))]
                words = np.repeat(np.array([-bit % (1 << 64) for bit in said], dtype=np.uint64), lanes.words)
                effect = Send(effect.to, dealing.as_bytes(words), BYTES)
            received = yield effect

    parties: dict[Role, Party[Any]] = {"dealer": dealing.deal(planner.batches, Fresh(), seeded=False)}
    parties |= {n: server(n) for n in (0, 1)}
    if says is not None:
        parties[seat] = liar(parties[seat], list(says))

    def watch(role: Role, send: Send) -> None:
        if send.to == seat:
            seen.extend(send.symbols.view("<u8").reshape(-1, lanes.words))

    play(parties, watch=watch)
    assert lanes.used == bits
    number = np.zeros(1 << bits, dtype=np.int64)
    for place, words in enumerate(seen):
        number |= np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.int64) << place
    return np.bincount(number, minlength=1 << len(seen))


def fresh(lanes: Lanes) -> Callable[[int], list[Labels]]:
    """Draw as an honest dealer does: every bit once."""
    return lambda count: [lanes.next() for _ in range(count)]


def two_layers(gates: Any, wires: Sequence[Labels]) -> Generator[Any, Any, Any]:
    """Compute two carries of an adder: the inputs of the second gate depend on the output of the first."""
    x, y, w = wires
    carry = yield from gates.both(x, y, 0, 0)
    return carry ^ (yield from gates.both(x ^ carry, w ^ carry, 1, 0))


def one_factor(gates: Any, wires: Sequence[Labels]) -> Generator[Any, Any, Any]:
    """Multiply two bits by one choice, which has one mask."""
    x, y, choice = wires
    return (yield from gates.both(np.concatenate([x, y]), choice, 0, 0))


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(("script", "bits", "openings"), [(two_layers, 13, 4), (one_factor, 11, 3)])
def test_a_server_sees_the_same_whatever_the_question_and_whatever_it_says(
    seat: int, script: Script, bits: int, openings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for says in [None, *product((0, 1), repeat=openings)]:
        first = None
        for inputs in product((0, 1), repeat=3):
            counted = view(script, inputs, seat, bits, says=says, patch=monkeypatch)
            first = counted if first is None else first
            assert np.array_equal(counted, first), (inputs, says)


def two_rows(gates: Any, wires: Sequence[Labels]) -> Generator[Any, Any, Any]:
    """Play the match of two rows with costs of two bits, as the circuit does."""
    cost = np.concatenate([np.concatenate(wires[i : i + 2], axis=1) for i in (0, 2)])
    node = circuit.Node(cost, cost[:0])
    last = yield from circuit.rounds(gates, node, 0, 1, 0, 2, lambda _: rounds.by_tree)
    return last.place


@pytest.mark.parametrize("seat", [0, 1])
def test_a_server_sees_the_same_of_a_whole_match(seat: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows with costs of two bits are compared by a tree, over all values of 22 random bits."""
    first = None
    for inputs in ((0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 1, 1)):
        counted = view(two_rows, inputs, seat, 22, patch=monkeypatch)
        first = counted if first is None else first
        assert np.array_equal(counted, first), inputs


def leaks(script: Script, bits: int, patch: pytest.MonkeyPatch, draws: Any = None) -> bool:
    views = [view(script, inputs, 0, bits, draws=draws, patch=patch) for inputs in product((0, 1), repeat=3)]
    return any(not np.array_equal(views[0], other) for other in views[1:])


def test_controls_that_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not leaks(two_layers, 13, monkeypatch)

    def shared_mask(lanes: Lanes) -> Callable[[int], list[Labels]]:
        kept: list[list[Labels]] = []

        def draw(count: int) -> list[Labels]:
            again = len(kept) in (3, 4)  # masks of the second gate, of either server
            kept.append(kept[len(kept) - 3] if again else [lanes.next() for _ in range(count)])
            return kept[-1]

        return draw

    assert leaks(two_layers, 9, monkeypatch, shared_mask)

    def no_mask(lanes: Lanes) -> Callable[[int], list[Labels]]:
        calls = iter(range(6))

        def draw(count: int) -> list[Labels]:
            out = next(calls) == 1  # the other server's masks of the first gate
            return [np.zeros(lanes.words, dtype=np.uint64) if out else lanes.next() for _ in range(count)]

        return draw

    assert leaks(two_layers, 11, monkeypatch, no_mask)

    def twice(gates: Any, wires: Sequence[Labels]) -> Generator[Any, Any, Any]:
        x, y, w = wires
        first = yield from gates.both(x, y, 0, 0)
        if isinstance(gates, Shares):
            gates._tape = Tape(gates._seat, gates._tape._left, seeded=False)
            return first ^ (yield from gates.both(w, y, 0, 0))
        return first

    assert leaks(twice, 8, monkeypatch)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_server_sees_the_same_of_an_outer_product(seat: int) -> None:
    """One bit is multiplied by two, in one run for each value of 11 random bits."""
    batch, views = dealing.Outers(((1, 2),)), []
    for left, right in ((0, 0), (1, 0), (1, 3), (0, 2)):
        counted: Counter[bytes] = Counter()
        for number in range(1 << 11):
            share, mask, other = (packed_bits(number >> shift & 7) for shift in (0, 3, 6))
            held, both = [share, share ^ np.array([left, right], dtype=np.uint8)], mask ^ other
            products = np.array([number >> 9], dtype=np.uint8)
            tapes = [np.concatenate([mask, products]), np.concatenate([other, products ^ batch.times(both, both)])]
            order, told = (0, 1) if seat == 0 else (1, 0), Messages(seat)
            gates = [Shares(n, Tape(n, tapes[n], seeded=False)) for n in (0, 1)]
            parties: dict[Role, Party[Any]] = {n: gates[n]._multiplied(batch, held[order[n]].copy()) for n in (0, 1)}
            found = play(parties, watch=told)
            assert found[0] ^ found[1] == (right if left else 0)
            counted[held[order[seat]].tobytes() + tapes[seat].tobytes() + b"".join(told.parts)] += 1
        views.append(counted)
    assert all(counted == views[0] for counted in views)
    assert len(views[0]) == 1 << 11


def packed_bits(number: int) -> Bytes:
    """Return the lowest bit in one byte, and the next two bits in another."""
    return np.array([number & 1, number >> 1], dtype=np.uint8)


class Messages:
    """The messages that are sent to one role."""

    def __init__(self, to: Role) -> None:
        self.to, self.parts, self.sources = to, list[bytes](), list[Role]()

    def __call__(self, role: Role, send: Send) -> None:
        if send.to == self.to:
            self.parts.append(send.symbols.tobytes())
            self.sources.append(role)


@pytest.mark.parametrize("seeded", [False, True])
def test_the_dealer_is_told_nothing(seeded: bool) -> None:
    """The dealer takes no message. Its messages depend only on public sizes and its own randomness."""
    scheme = make_scheme("table/sealed", largest=3, d=1, protocol="joint", dealer="server")
    protocol = make_protocol("joint", dealer="server", seeded=seeded)
    sizes: Counter[Role] = Counter()
    for effect in protocol.deal(scheme, Size(100), Fresh()):
        assert isinstance(effect, Send)
        sizes[effect.to] += effect.symbols.size
    assert (sizes[0], sizes[1]) == protocol.question(scheme, Size(100)).dealt


# --- a cheat who deals ---------------------------------------------------------------------------------------------


class Pad:
    """Common randomness with a given pad."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Vector:
        assert (purpose, q) == ("joint", 256)
        return np.full(count, self.pad, dtype=np.int64)

    def order(self, count: int) -> Order:
        raise AssertionError("rows stand in their own order")

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Callable[[int], bytes]:
        raise AssertionError("only pads are drawn")


def test_whoever_deals_wrongly_gets_one_mixture_of_packages() -> None:
    """If any bits of a tape are flipped, the applicant gets the xor of some packages, and at most one row from it."""
    scheme, rng = tabled(2, "server"), np.random.default_rng(5)
    rows, secrets = np.arange(5)[:, None], rng.integers(0, 256, (5, 24), dtype=np.uint8)
    packages = package_all(secrets, new_key())
    mixtures = {}
    for chosen in product((0, 1), repeat=5):
        mixtures[np.bitwise_xor.reduce(packages * np.array(chosen, dtype=np.uint8)[:, None]).tobytes()] = chosen
    size, got = Size(5, packages.shape[1]), Counter[int]()
    lengths = [send.symbols.size for send in scheme.protocol.deal(scheme, size, Fresh()) if isinstance(send, Send)]
    for _ in range(400):
        which = int(rng.integers(len(lengths)))
        flip = rng.integers(0, 256, lengths[which], dtype=np.uint8) & np.uint8(rng.choice([1, 255]))

        def deal(which: int = which, flip: Bytes = flip) -> Party[None]:
            for n, effect in enumerate(scheme.protocol.deal(scheme, size, Fresh())):
                assert isinstance(effect, Send)
                yield Send(effect.to, effect.symbols ^ flip if n == which else effect.symbols, BYTES)

        (found,), _ = asked(scheme, rows, Question(costs=[[2, 1, 3, 0, 2] + [3] * 251]), packages, deal=deal())
        chosen = mixtures[found]
        got[sum(chosen)] += 1
        readable = [bytes(row) for row in secrets if bytes(row) == unpackage(found)]
        assert readable == ([bytes(secrets[chosen.index(1)])] if sum(chosen) == 1 else [])
    assert min(got[1], len(got) - 1) > 0, got  # some flips change nothing, and some mix packages


def test_an_answer_tells_its_sum_and_nothing_else() -> None:
    """Over all pads of a one-byte record, the distribution of both answers depends only on their xor."""
    scheme = tabled(2, "server")
    size, codes = Size(3, 1), scheme.form.load(np.arange(3)[:, None])
    tape, pairs = list(scheme.protocol.deal(scheme, size, Fresh())), dict[int, set[tuple[int, int]]]()
    for records, pad in product(([[1], [2], [4]], [[1], [2], [7]], [[9], [2], [0]]), range(256)):
        held = Held(as_rows(codes), hold(np.array(records, dtype=np.uint8)), partial(_padded, pad))
        parties: dict[Role, Party[Any]] = {seat: released(scheme.answering(seat, 0, held), BYTES) for seat in (0, 1)}
        parties["applicant"] = scheme.ask(Question(costs=[[1, 0] + [3] * 254]), size, Fresh())
        parties["dealer"] = (effect for effect in tape)
        told = Messages("applicant")
        play(parties, watch=told)
        assert sorted(map(str, told.sources)) == ["0", "1"]
        first, second = (part[0] for part in told.parts)
        pairs.setdefault(first ^ second, set()).add((first, second))
    assert pairs == {2: {(a, a ^ 2) for a in range(256)}}


def _padded(pad: int, seats: tuple[int, ...]) -> Pad:
    assert seats == (0, 1)
    return Pad(pad)
