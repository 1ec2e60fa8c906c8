"""Recorded runs of the joint protocol: `vectors/joint.json`. In `test_page_joint.py` the page deals and reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterveil.crypto.randomness import keystream
from counterveil.engine.party import Send, Take
from counterveil.schemes.protocols import dealing
from counterveil.schemes.protocols.dealing import Shares, Tape
from counterveil.schemes.protocols.packed import Layout, settled
from joint_vectors import Stream, joint, shown

FILE: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "joint.json").read_text("utf-8"))


def test_the_file_is_what_the_code_makes() -> None:
    made = json.loads(json.dumps(joint()))
    assert made == FILE
    assert {name: len(cases) for name, cases in made.items()} == {
        "batches": 17,
        "tapes": 16,
        "gates": 7,
        "tournaments": 3,
        "questions": 5,
    }


def both(shares: list[str]) -> bytes:
    """Return the xor of two strings of hexadecimal digits."""
    return bytes(a ^ b for a, b in zip(*map(bytes.fromhex, shares), strict=True))


def bits(data: bytes, count: int) -> list[int]:
    """Return the first bits, each byte from its lowest bit up."""
    return [data[i // 8] >> i % 8 & 1 for i in range(count)]


def multiplied(batch: str, factors: bytes) -> bytes:
    """Return all products of a batch, as docs/wire.md says it: bit by bit, and with nothing of the package."""
    kind, *sizes = batch.split()
    if kind == "terms":
        return b"".join(anded(factors, 8 * int(sizes[0]), subset) for subset in subsets(sizes[1:]))
    if kind == "and":
        left, right = (8 * int(size) for size in sizes)
        return bytes(factors[i] & factors[left + i % right] for i in range(left))
    pairs = [(int(n), int(m)) for n, m in (size.split("x") for size in sizes)]
    at, made = 0, b""
    middle = sum(-(-n // 8) for n, _ in pairs)
    for n, m in pairs:
        row = factors[middle : middle + -(-m // 8)]
        made += b"".join(row if bit else bytes(len(row)) for bit in bits(factors[at:], n))
        at, middle = at + -(-n // 8), middle + len(row)
    return made


def subsets(terms: list[str]) -> list[tuple[int, ...]]:
    """Return all subsets of two factors or more, of terms as the file writes them."""
    held = [[int(factor) for factor in term.split(".")] for term in terms]
    found = {each for term in held for size in range(2, 5) for each in combinations(term, size)}
    return sorted(found, key=lambda subset: (len(subset), subset))


def anded(factors: bytes, size: int, subset: Sequence[int]) -> bytes:
    """Return the AND of some of many factors, each of `size` bytes."""
    chosen = [factors[size * n : size * (n + 1)] for n in subset]
    return bytes(reduce(and_, column) for column in zip(*chosen, strict=True))


@pytest.mark.parametrize("case", FILE["gates"], ids=lambda case: str(case["batch"]))
def test_gates(case: dict[str, Any]) -> None:
    factors, masks = both(case["factors"]), both(case["masks"])
    assert both(case["products"]) == multiplied(case["batch"], masks)
    assert multiplied(case["batch"], factors) == bytes.fromhex(case["product"])
    results = multiplied(case["batch"], factors)
    kind, words, *terms = case["batch"].split()
    if kind == "terms":  # servers compute the products themselves, and not those of all subsets
        results = b"".join(anded(factors, 8 * int(words), [*map(int, term.split("."))]) for term in terms)
    assert both(case["results"]) == results
    for seat in (0, 1):
        assert both([case["openings"][seat], case["factors"][seat]]).hex() == case["masks"][seat]


def sizes_of(batch: str) -> tuple[int, int]:
    """Return the bytes of the masks and of the products of a batch."""
    kind, *sizes = batch.split()
    if kind == "and":
        left, right = (8 * int(size) for size in sizes)
        return left + right, left
    if kind == "terms":
        factors = {int(factor) for term in sizes[1:] for factor in term.split(".")}
        return 8 * int(sizes[0]) * len(factors), 8 * int(sizes[0]) * len(subsets(sizes[1:]))
    pairs = [(int(n), int(m)) for n, m in (size.split("x") for size in sizes)]
    return sum(-(-n // 8) + -(-m // 8) for n, m in pairs), sum(n * -(-m // 8) for n, m in pairs)


@pytest.mark.parametrize("case", FILE["batches"], ids=lambda case: f"{case['rows']}, {case.get('rounds')}")
def test_sizes(case: dict[str, Any]) -> None:
    masks, products = (sum(each) for each in zip(*map(sizes_of, case["batches"]), strict=True))
    assert case["opened"] == masks
    assert (case["dealt"], case["seeded"]) == ([masks + products] * 2, [32, 32 + products])


@pytest.mark.parametrize("case", FILE["tapes"], ids=lambda case: f"{case['drawn']}, seeded: {case['seeded']}")
def test_tapes(case: dict[str, Any]) -> None:
    """A dealer that is written from docs/wire.md makes the same tapes."""
    read = keystream(hashlib.sha256(case["drawn"].encode()).digest())

    def drawn(count: int) -> bytes:
        return read(7 * -(-count // 7))[:count]

    seeds = [drawn(32), drawn(32)] if case["seeded"] else []
    first, second = [keystream(seed) for seed in seeds] or [drawn, drawn]
    tapes = seeds or [b"", b""]
    for batch in map(shown, dealing.planned(case["rows"], case["bits"], case["k"], case.get("rounds", "balanced"))):
        masks, products = sizes_of(batch)
        own, others, shares = first(masks), second(masks), first(products)
        made = multiplied(batch, bytes(a ^ b for a, b in zip(own, others, strict=True)))
        corrections = bytes(a ^ b for a, b in zip(shares, made, strict=True))
        if not case["seeded"]:
            tapes[0], tapes[1] = tapes[0] + own + shares, tapes[1] + others
        tapes[1] += corrections
    assert [hashlib.sha256(tape).hexdigest() for tape in tapes] == case["tapes"]


@pytest.mark.parametrize("case", FILE["tournaments"], ids=lambda case: str(case["drawn"]))
@pytest.mark.parametrize("seat", [0, 1])
def test_a_server_opens_what_is_recorded(case: dict[str, Any], seat: int) -> None:
    """One server is played alone: it hears the openings that the file has of the other."""
    costs, width, k = case["costs"], case["bits"], case["k"]
    layout = Layout.of(len(costs))
    batches = dealing.planned(len(costs), width, k)
    dealt = dealing.deal(batches, Stream(case["drawn"]), seeded=False)
    tape = np.concatenate([s.symbols for s in dealt if isinstance(s, Send) and s.to == seat])
    own = np.frombuffer(bytes.fromhex(case["words"][seat]), dtype="<u8").reshape(width, layout.words, layout.blocks)
    none = np.zeros_like(own)
    gates = Shares(seat, Tape(seat, tape, seeded=False))
    script = settled(gates, none if seat else own.copy(), own.copy() if seat else none, layout, k)
    said, heard = [], iter(case["openings"][1 - seat])
    effect = next(script)
    while True:
        received = None
        if isinstance(effect, Send):
            said.append(effect.symbols.tobytes().hex())
        else:
            assert isinstance(effect, Take)
            received = np.frombuffer(bytes.fromhex(next(heard)), dtype=np.uint8)
        try:
            effect = script.send(received)
        except StopIteration as end:
            found = end.value
            break
    assert said == case["openings"][seat]
    assert [np.packbits(each, bitorder="little").tobytes().hex() for each in found] == case["selections"][seat]


@pytest.mark.parametrize("case", FILE["tournaments"], ids=lambda case: str(case["drawn"]))
def test_tournaments_select_the_first_nearest(case: dict[str, Any]) -> None:
    costs, count = case["costs"], len(case["costs"])
    assert [sum(pair) % (1 << case["bits"]) for pair in zip(*case["shares"], strict=True)] == costs
    nearest = sorted(range(count), key=lambda i: (costs[i], i))[: case["k"]]
    assert case["rows"] == nearest
    for row, *shares in zip(nearest, *case["selections"], strict=True):
        assert bits(both(shares), count) == [int(i == row) for i in range(count)]
    assert costs.count(costs[nearest[0]]) > 1  # a tie


@pytest.mark.parametrize("case", FILE["questions"], ids=lambda case: str(case["drawn"]))
def test_questions(case: dict[str, Any]) -> None:
    tables, q = case["costs"], int(case["q"])
    secret = [cost for table in tables for cost in table] + [0]
    assert [sum(pair) % q for pair in zip(*case["symbols"], strict=True)] == secret
    totals = [sum(table[level] for table, level in zip(tables, row, strict=True)) for row in case["levels"]]
    nearest = sorted(range(len(totals)), key=lambda i: (totals[i], i))[: case["k"]]
    records = b"".join(b"record %02d" % i for i in nearest)
    assert both(case["answers"]) == records == bytes.fromhex("".join(case["records"]))
