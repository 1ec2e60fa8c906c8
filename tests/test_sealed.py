"""Sealed reveals: the applicant gets a nearest row and nothing else; gates compute what the paper's figure says."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations, permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import literal
from counterveil import Database, Deployment, Numeric, Question, Schema, Scheme, local, make_scheme, run
from counterveil.algebra.arrays import Vector
from counterveil.algebra.field import Ring
from counterveil.applicant.ask import compile_question
from counterveil.applicant.runs import Line
from counterveil.crypto.garbling import AND, LABEL, Garbler, colours
from counterveil.crypto.randomness import new_key
from counterveil.errors import InvalidAlphas, InvalidField, InvalidInput, NotOffered
from counterveil.schema.preferences import Preferences
from counterveil.schemes.protocols import Garbled, Size, circuit, garbled
from counterveil.schemes.reveals import Opened
from counts import some
from databases import Case, cases
from people import METRICS, allowed_costs, possible_codes, random_case, random_wishes, rows_of
from service import numbers_database

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "sealed.json").read_text())


def number(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text), "little")


# --- gates --------------------------------------------------------------------------------------------------------


def test_recorded_hashes_gate_and_adder_are_what_the_paper_says() -> None:
    for case in VECTORS["hash"]:
        assert literal.hashed(number(case["x"]), number(case["tweak"])) == number(case["hash"])
    gate = VECTORS["gate"]
    a0, b0, delta, out0 = (number(gate[name]) for name in ("a0", "b0", "delta", "out0"))
    made = literal.garbled(a0, b0, delta, gate["step"], gate["row"])
    assert made == (out0, *map(number, gate["tables"]))
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        got = literal.evaluated(a0 ^ a * delta, b0 ^ b * delta, *made[1:], gate["step"], gate["row"])
        assert got == out0 ^ (a & b) * delta
    adder = VECTORS["adder"]
    u, v, total = ([number(w) for w in adder[name]] for name in ("u0", "v0", "sum0"))
    carry, tables = 0, []
    assert total[0] == u[0] ^ v[0]
    for i in (0, 1):
        out, *halves = literal.garbled(u[i] ^ carry, v[i] ^ carry, number(adder["delta"]), i, adder["start"])
        carry ^= out
        tables += halves
        assert total[i + 1] == u[i + 1] ^ v[i + 1] ^ carry
    assert tables == [number(t) for t in adder["tables"]]


def test_the_recorded_least_of_five() -> None:
    case = VECTORS["least"]
    scheme = make_scheme("table/sealed_record", largest=4, d=1, cap=15)
    answers = [np.frombuffer(bytes.fromhex(a), dtype=np.uint8) for a in case["answers"]]
    queries = np.zeros((2, scheme.symbols), dtype=np.int64)
    found = scheme.recover(Question(costs=[case["costs"]]), queries, answers, 5, 8)
    assert found.position == case["position"]
    assert found.record == bytes.fromhex(case["record"]) == b"record 3"
    assert case["order"][case["position"]] == 3 == int(np.argmin(case["costs"]))


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1), st.integers(0, 2**20))
def test_a_gate_is_the_literal_one(a: int, b: int, delta: int, row: int) -> None:
    delta |= 1
    wires = [np.frombuffer(bytearray(x.to_bytes(16, "little")), dtype=np.uint64) for x in (a, b, delta)]
    gates = Garbler(wires[2])
    out, made = gates.both(wires[0].reshape(1, 1, 2), wires[1].reshape(1, 1, 2), 3, row)
    got = [int.from_bytes(x.tobytes(), "little") for x in (out, made[:LABEL], made[LABEL:])]
    assert tuple(got) == literal.garbled(a, b, delta, 3, row)


def bits_of(values: Vector, k: int) -> Any:
    return (values[None, :] >> np.arange(k)[:, None] & 1).astype(np.uint64)


def slot_in_the_clear(gates: literal.Clear, u: Vector, v: Vector, k: int) -> int:
    count = len(u)
    scripts = (circuit.chunk(gates, bits_of(u[c], k), bits_of(v[c], k), c.start, count) for c in circuit.chunks(count))
    nodes = [circuit.done(script) for script in scripts]
    return sum(int(bit) << i for i, bit in enumerate(circuit.done(circuit.final(gates, nodes, count))))


def formula(M: int, k: int) -> int:
    """Count AND gates: k - 1 to add each row's shares; 2k + l for each match at level l, but k less for the final."""
    total, n, level = M * (k - 1), M, 0
    while n > 1:
        total += n // 2 * (2 * k + level)
        n, level = n - n // 2, level + 1
    return total - (k if M > 1 else 0)


@pytest.mark.parametrize("k", [1, 2, 12, 20])
@pytest.mark.parametrize("M", [1, 2, 3, 7, 64, 1000, 4095, 4096, 4097, 12289])
def test_the_circuit_has_as_many_gates_as_the_formula_says(M: int, k: int) -> None:
    rng = np.random.default_rng(M * k)
    costs, u = rng.integers(0, 1 << k, M), rng.integers(0, 1 << k, M)
    gates = literal.Clear()
    slot = slot_in_the_clear(gates, u, (costs - u) % (1 << k), k)
    assert slot == int(np.argmin(costs))
    sizes, last = circuit.ands(M, k)
    assert gates.ands == sum(sizes) + last == formula(M, k)
    assert gates.ands <= (3 * k + 1) * M


# --- right --------------------------------------------------------------------------------------------------------


def least(scheme: Scheme, rows: Any, question: Question, records: Any = None) -> tuple[int, Any]:
    """Play all parties; return the row that was found and the transcript, after checking it against the ideal."""
    common = scheme.common(new_key(), b"digest", b"ticket")
    asked = run(scheme, rows, question, common=common, records=records)
    ideal = scheme.reveal.apply(scheme.field, scheme.form.costs(rows, question), common)
    assert np.array_equal(asked.revealed, ideal)
    order = scheme.protocol.order(scheme, len(rows), common)
    assert order is not None
    return int(order[asked.position]), asked


@pytest.mark.slow
@settings(max_examples=some(1000))
@given(
    st.integers(0, 2**32), st.integers(1, 5000), st.sampled_from(METRICS), st.sampled_from([0.0, 0.2, 0.5]),
    st.booleans(),
)  # fmt: skip
def test_every_preference_gets_a_nearest_row(seed: int, M: int, metric: str, tight: float, inside: bool) -> None:
    rng = np.random.default_rng(seed)
    schema, frame = random_case(seed, 1)
    person = {name: value for name, value in rows_of(frame)[0].items() if name != "accepted"}
    wishes = random_wishes(rng, schema, person, metric, tight)
    deployment = Deployment.of(schema, scheme="table/sealed_record" if inside else "table/sealed")
    codes = np.stack([rng.choice(possible_codes(f), M) for f in schema.cost_features], axis=1)
    records = rng.integers(0, 256, (M, 5), dtype=np.uint8)
    question, _ = compile_question(deployment, schema.codes(person), Preferences(**wishes))
    row, asked = least(deployment.scheme, codes, question, records)
    costs, allowed = allowed_costs(schema, person, wishes, codes)
    if allowed.any():
        assert allowed[row]
        assert costs[row] == costs[allowed].min()
    assert asked.record == records[row].tobytes()


@settings(max_examples=100)
@given(case=cases(), form=st.sampled_from(["linear", "even_norm", "table"]))
def test_every_additive_form_is_exact(case: Case, form: str) -> None:
    scheme = make_scheme(f"{form}/sealed", **case.parameters(form))
    assert scheme.field.q // 2 <= scheme.form.bound < scheme.field.q  # the smallest ring that holds it
    costs = case.plain(form)
    assert costs[least(scheme, case.rows, case.question(form))[0]] == costs.min()


def test_a_bank_in_one_process() -> None:
    database = numbers_database(40, 3)
    person = {"x0": 3, "x1": 9, "x2": 14}
    for form, reveals in (("table", ("sealed", "sealed_record")), ("linear", ("sealed",))):
        wishes: dict[str, Any] = {"weights": {"x0": 4}} | ({"increase_only": ["x0"]} if form == "table" else {})
        expected = local(database, f"{form}/distances").ask(person, wishes).to_dict()
        for reveal in reveals:
            bank = local(database, f"{form}/{reveal}")
            assert f"{form}/{reveal}" in repr(bank)
            assert bank.ask(person, wishes).to_dict()["cost"] == expected["cost"]


# --- what is not offered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("euclidean/sealed", {}),
        ("dot/sealed", {}),
        ("weighted/sealed", {}),
        ("table/sealed", {"servers": 3, "collusion": 2}),
        ("table/sealed", {"d_min": 2}),
    ],
)
def test_what_sealed_cannot_do_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(NotOffered):
        make_scheme(name, largest=4, d=2, **options)


def test_rings_and_wrong_messages_are_refused() -> None:
    for q in (0, 1, 3, 12, 2**63):
        with pytest.raises(InvalidField):
            Ring(q)
    with pytest.raises(InvalidAlphas):
        make_scheme("table/sealed", largest=4, d=2, alphas=[1, 1])
    scheme = make_scheme("table/sealed", largest=4, d=2)
    question = Question([1, 1])
    queries = np.zeros((2, scheme.symbols), dtype=np.int64)
    short = [np.zeros(length - 1, dtype=np.uint8) for length in scheme.requests(Size(3))[0].down]
    with pytest.raises(InvalidInput, match="answer of server 1"):
        scheme.recover(question, queries, short, 3)
    inside = make_scheme("table/sealed_record", largest=4, d=2)
    common = inside.common(new_key(), b"", b"t")
    with pytest.raises(InvalidInput, match="records"):
        inside.answer(1, np.zeros((3, 2), dtype=np.int64), queries[0], common)


def test_tampered_answers_give_a_position_and_never_a_crash() -> None:
    rng = np.random.default_rng(1)
    scheme = make_scheme("table/sealed_record", largest=4, d=2)
    rows, question = rng.integers(0, 5, (37, 2)), Question([1, 2])
    records = rng.integers(0, 256, (37, 9), dtype=np.uint8)
    asked = run(scheme, rows, question, records=records)
    wrong = set()
    for trial in range(200):
        answers = [a.copy() for a in asked.answers]
        answer = answers[trial % 2]
        if trial < 100:
            answer[rng.integers(0, answer.size, 1 + trial % 7)] ^= np.uint8(1 + trial % 255)
        else:
            answer[:] = rng.integers(0, 256, answer.size)
        found = scheme.recover(question, asked.queries, answers, 37, 9)
        position = found.position
        assert position is not None
        assert 0 <= position < 64
        assert found.record is not None
        assert len(found.record) == 9
        wrong.add(position)
    assert len(wrong) > 20


# --- nothing else ---------------------------------------------------------------------------------------------------


def simulated(bits: int, count: int, position: int, record: bytes | None) -> list[Any]:
    """Answers that two servers might have sent, made from the result alone: noise, and bits that decode to it."""
    rng = np.random.default_rng(int.from_bytes(new_key(), "little"))

    def noise(size: int) -> Any:
        return rng.integers(0, 256, size, dtype=np.uint8)

    sizes, last = circuit.ands(count, bits)
    first, second, gates, nodes = list[Any](), list[Any](), garbled._Evaluator(), []

    def evaluated(script: Any) -> Any:
        """Run a script whose gates are noise."""
        try:
            take = next(script)
            while True:
                first.append(noise(take.count))
                take = script.send(first[-1])
        except StopIteration as end:
            return end.value

    for slots, size in zip(circuit.chunks(count), sizes, strict=True):
        rows = slots.stop - slots.start
        labels, before = noise(LABEL * bits * rows), sum(part.size for part in first)
        first.append(labels)
        second.append(noise(LABEL * bits * rows))
        u, v = (raw.view(np.uint64).reshape(bits, rows, 2) for raw in (labels, second[-1]))
        nodes.append(evaluated(circuit.chunk(gates, u, v, slots.start, count)))
        assert sum(part.size for part in first) == before + labels.size + AND * size
    final = evaluated(circuit.final(gates, nodes, count))
    assert sum(part.size for part in first) == LABEL * bits * count + AND * (sum(sizes) + last)
    second.append(noise(LABEL))
    opener = second[-1].view(np.uint64).reshape(1, 2)
    decode = colours(final).astype(np.uint8) ^ (position >> np.arange(len(final)) & 1).astype(np.uint8)
    decode ^= garbled._low_bits(opener, len(final))
    first.append(np.packbits(decode, bitorder="little"))
    if record is not None:
        pad = garbled._unlocked(opener, final, position, np.zeros(len(record), dtype=np.uint8))
        locked = noise(len(record) << circuit.height(count)).reshape(-1, len(record))
        locked[position] = np.frombuffer(pad, dtype=np.uint8) ^ np.frombuffer(record, dtype=np.uint8)
        first.append(locked.reshape(-1))
    return [np.concatenate(first), np.concatenate(second)]


def features(scheme: Scheme, answers: list[Any], revealed: Vector, position: int) -> Any:
    """All that the applicant has, as bits: both answers, pairs of their bits, what is revealed, and costs from that."""
    raw = [
        np.frombuffer(a.astype("<i8" if a.dtype == np.int64 else a.dtype).tobytes(), dtype=np.uint8) for a in answers
    ]
    each = [np.unpackbits(part, bitorder="little") for part in raw]
    marks = np.concatenate([bits[:: 8 * LABEL][:20] for bits in each])  # in sealed answers, the colours of labels
    pairs = np.array([marks[a] ^ marks[b] for a, b in combinations(range(len(marks)), 2)], dtype=np.uint8)
    shown = np.append(revealed, position)
    if isinstance(scheme.reveal, Opened):
        relative = scheme.reveal.relative(scheme.field, revealed)
        shown = np.concatenate([revealed, np.sort(relative - relative.min())])
    return np.concatenate([*each, pairs, bits_of(shown, 12).reshape(-1).astype(np.uint8)])


def told_apart(first: list[Any], second: list[Any]) -> bool:
    """Whether some bit is set more often in one of two samples. By chance that happens one time in a million."""
    a, b = (np.stack(sample).mean(axis=0) for sample in (first, second))
    n = len(first)
    both = (a + b) / 2
    spread = np.sqrt(np.maximum(both * (1 - both), 1 / n) * 2 / n)
    z = np.abs(a - b) / spread
    limit = math.sqrt(2 * math.log(2e6 * len(z)))
    return bool((z > limit).any())


A = np.array([[4], [1], [8], [14], [12]])  # two databases with the same nearest row, and no other in common
B = np.array([[3], [1], [3], [5], [7]])
ASKED = Question(costs=[np.arange(16)])


def sample(scheme: Scheme, rows: Any, count: int = 250) -> list[Any]:
    records = np.frombuffer(b"the row!" + bytes(32), dtype=np.uint8).reshape(5, 8)[[1, 0, 2, 3, 4]]
    played = [run(scheme, rows, ASKED, records=records) for _ in range(count)]
    return [features(scheme, t.answers, t.revealed, t.position) for t in played]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["distances", "differences", "masked", "masked_differences", "sealed", "sealed_record"]
)
def test_only_sealed_answers_could_come_from_a_simulator(name: str) -> None:
    """Sealed transcripts look the same for two databases with one nearest row; those of all other reveals differ."""
    scheme = make_scheme(f"table/{name}", largest=15, d=1, cap=15, shuffle=True, d_min=2 if "masked" in name else 1)
    ours = sample(scheme, A)
    if "sealed" not in name:
        assert told_apart(ours, sample(scheme, B))
        return
    assert not told_apart(ours, sample(scheme, B))
    record = b"the row!" if name == "sealed_record" else None
    made = []
    for position in np.random.default_rng(4).integers(0, 8, len(ours)):
        answers = simulated(scheme.field.bits, 5, int(position), record)
        made.append(features(scheme, answers, np.zeros(0, dtype=np.int64), int(position)))
        found = scheme.recover(ASKED, np.zeros((2, scheme.symbols), dtype=np.int64), answers, 5, 8 if record else 0)
        assert (found.position, found.record) == (position, record)
    assert not told_apart(ours, made)


@pytest.mark.slow
def test_those_tests_see_a_colour_that_is_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: without point-and-permute, colours tell shares, and shares together tell costs."""
    honest = garbled._labels

    def plain(*arguments: Any) -> Any:
        made = honest(*arguments)
        made[..., 0] &= ~np.uint64(1)
        return made

    monkeypatch.setattr(garbled, "_labels", plain)
    scheme = make_scheme("table/sealed", largest=15, d=1, cap=15)
    assert told_apart(sample(scheme, A), sample(scheme, B))


@pytest.mark.slow
def test_without_r_ties_bias_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another control: without r the position would tell of ties; with r it is uniform."""
    scheme = make_scheme("table/sealed", largest=3, d=1, cap=3)
    rows = np.array([[0], [0], [1]])

    def counted() -> Any:
        positions = [run(scheme, rows, Question(costs=[[0, 1, 2, 3]])).position for _ in range(400)]
        return np.bincount(positions, minlength=4) / 400

    assert (np.abs(counted() - 0.25) < 0.11).all()
    monkeypatch.setattr(Garbled, "_blind", lambda *_: 0)
    biased = counted()
    assert biased[0] > 0.55  # of two equal costs the first slot wins, in every order
    assert biased[3] == 0


def test_where_three_rows_tie_the_others_stand_unevenly() -> None:
    """All orders and all r: docs/paper.md says where the dear row stands, beside the position that is told."""
    scheme, costs, seen = make_scheme("table/sealed", largest=3, d=1, cap=9), np.array([1, 1, 1, 9]), Counter[int]()
    for rows, r in product(permutations(range(4)), range(4)):
        common: Any = SimpleNamespace(order=lambda _, rows=rows: np.array(rows), elements=lambda *_, r=r: np.array([r]))
        position = int(Garbled().apply(scheme.field, costs, common))
        standing = Garbled().order(scheme, 4, common)
        assert costs[standing[position]] == 1
        seen[position ^ int(np.flatnonzero(standing == 3)[0])] += 1
    assert seen == {1: 48, 2: 24, 3: 24}


# --- in parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
def test_neither_side_holds_the_answer_whole(ahead: int) -> None:
    """If one server is faster than the other, little has to be held meanwhile, and nobody waits for ever."""
    M, rng = 40_000, np.random.default_rng(2)
    data = {"x0": rng.integers(0, 16, M), "x1": rng.integers(0, 4000, M), "ok": np.ones(M, dtype=bool)}
    features = (Numeric(name="x0", low=0, high=15, step=1), Numeric(name="x1", low=0, high=3999, step=1))
    database = Database.build(data, Schema(features=features), accepted="ok")
    bank = local(database, "table/sealed_record")
    question, _ = compile_question(bank.deployment, np.array([3, 9]), Preferences())
    conversation = bank.begun(question)
    sent = {do.line.server - 1: do for do in conversation.todo() if do.line is not None}
    replies = {place: bank.replies(do) for place, do in sent.items()}
    longest, held, done = 0, 0, set[int]()
    while len(done) < 2:
        for place in (ahead, 1 - ahead):
            line = sent[place].line
            assert line is not None
            while place not in done and conversation.wants(line):
                part = next(replies[place], None)
                if part is None:
                    done.add(place)
                    conversation.ended(line)
                    break
                longest = max(longest, len(part))
                conversation.heard(line, part)
                held = max(held, sum(conversation._runs[0]._inbox.size(n, 0) for n in (0, 1)))
    total = conversation.expected(Line(1, 0))
    assert longest < total / 8
    assert held < total / 4
    assert [do.what for do in conversation.todo()] == ["pause", "hang up", "pause"]
    record = conversation.signed(bank._issuer)[0].codes
    costs = bank.deployment.scheme.form.costs(database.codes, question)
    assert record.tolist() == database.codes[int(np.argmin(costs))].tolist()


class _Zero:
    """Randomness for a test that is not about it."""

    def elements(self, q: int, count: int) -> Vector:
        return np.zeros(count, dtype=np.int64)


def test_answers_do_not_depend_on_anything_but_the_ticket() -> None:
    """What a server sends is a function of key, digest, ticket and query. So a server that restarts sends the same."""
    scheme = make_scheme("table/sealed", largest=4, d=2)
    rows, key = np.random.default_rng(3).integers(0, 5, (50, 2)), new_key()
    query = scheme.query(Question([1, 1]), _Zero())[0]
    answers = [scheme.answer(1, rows, query, scheme.common(key, b"d", ticket)) for ticket in (b"one", b"one", b"two")]
    assert np.array_equal(answers[0], answers[1])
    same = (answers[0] == answers[2]).mean()
    assert same < 0.02  # one byte in 256
