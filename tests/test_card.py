"""The engine of a graphics card, without a card: every kernel compiles, and its NumPy twin gives the CPU's values."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import numpy as np
import pytest

import emulated
import nvrtc
from counterveil import make_scheme
from counterveil.algebra.field import Field, Residues, Ring, smallest_prime_above
from counterveil.engine import Plan, as_rows, cuda, hold
from counterveil.engine.card import CardRecords, CardRows
from counterveil.engine.twins import Twins
from counterveil.errors import MissingPackage
from counterveil.schemes.protocols import Size
from counterveil.schemes.protocols.packed import Layout
from shard_load import RECORD, TOP, D, data, held_by, said

pytestmark = pytest.mark.slow

SETTINGS = [(*sizes, planes) for sizes, planes in product([(8, 32, 32), (8, 32, 64), (16, 32, 64), (8, 64, 64)], [20])]
SETTINGS += [(16, 64, 64, 62), (8, 32, 32, 1)]
KERNELS = {"lay", "plain_table", "xor_records", "combine", "slice", "made"}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_kernel_compiles_and_keeps_its_numbers_in_registers(setting: tuple[int, int, int, int]) -> None:
    ptx, code = nvrtc.compiled(cuda.source(), "--gpu-architecture=sm_90", *cuda.options(*setting))
    expected = KERNELS | ({"polynomial"} if setting[1] == 32 else set())
    if setting[:2] == (8, 32):
        expected |= {"table", "together"} | ({"together_paired"} if setting[2] == 32 else set())
    found = {name: used for name, used in nvrtc.resources(code).items() if "$" not in name}
    assert set(found) == expected
    for name, used in found.items():
        threads = 1024 if name in ("table", "together", "together_paired") else 256
        assert used["registers"] * threads <= 65_536, name
        assert used["frame"] == 0, f"{name} keeps {used['frame']} bytes of a thread in slow memory"
    assert "v4.u32" in ptx or "v4.b32" in ptx  # 16 bytes at a time


def test_a_machine_without_a_card_says_so() -> None:
    with pytest.raises(MissingPackage, match="engine"):
        cuda.lay_out(np.zeros((1, 1), dtype=np.uint8))


FIELDS: list[Residues] = [Field(p) for p in (2, 251, 65_537, smallest_prime_above(1 << 30), (1 << 31) - 1)]
FIELDS += [Field(smallest_prime_above(above)) for above in (1 << 31, 1 << 32, 1 << 60)]
FIELDS += [Ring(1 << bits) for bits in (1, 12, 32, 33, 62)]


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(("kind", "largest", "d"), [(np.uint8, 9, 5), (np.uint8, 255, 4), (np.uint16, 700, 3)])
def test_twins_give_the_values_of_the_processor(field: Residues, kind: Any, largest: int, d: int) -> None:
    generator = np.random.default_rng(5)
    codes = generator.integers(0, largest + 1, (777, d)).astype(kind)
    rows, card = as_rows(codes), CardRows(codes, Twins())
    sizes = tuple(largest + 1 + j for j in range(d))
    plans = [
        Plan("table", field, (generator.integers(0, field.q, sum(sizes)),), sizes=sizes, constant=field.q - 1),
        *(
            Plan("polynomial", field, tuple(generator.integers(0, field.q, (degree, d))), largest, constant=1)
            for degree in (1, 2, 4)
        ),
    ]
    for plan in plans:
        assert np.array_equal(card.scan(plan), rows.scan(plan))
        assert np.array_equal(card.begin(plan)(), rows.scan(plan))


@pytest.mark.parametrize("field", [Field(251), Ring(1 << 16), Field(65_537), Field((1 << 31) - 1)], ids=str)
def test_scans_that_wait_run_together(field: Residues) -> None:
    generator = np.random.default_rng(6)
    codes = generator.integers(0, 7, (300, 5), dtype=np.uint8)
    card, sizes = CardRows(codes, Twins()), (7,) * 5
    plans = [
        Plan("table", field, (generator.integers(0, field.q, 35),), sizes=sizes, constant=number % field.q)
        for number in range(40)
    ]
    got, passes, together = dict[int, Any](), list[int](), card._together

    def counted(plans: list[Plan]) -> Any:
        passes.append(len(plans))
        return together(plans)

    card._together = counted  # type: ignore[method-assign]
    threads = [
        threading.Thread(target=lambda n=number: got.update({n: card.scan(plans[n])})) for number in range(len(plans))
    ]
    with card._turn:
        for thread in threads:
            thread.start()
        while len(card._waiting) < len(plans):
            pass
    for thread in threads:
        thread.join()
    assert sum(passes) >= len(plans) - 1 or max(passes) == 32
    for number, plan in enumerate(plans):
        assert np.array_equal(got[number], as_rows(codes).scan(plan))


@pytest.mark.parametrize(("count", "length"), [(100, 40), (33, 16), (5, 5000)])
def test_records_on_a_card(count: int, length: int) -> None:
    generator = np.random.default_rng(7)
    records = generator.integers(0, 256, (count, length), dtype=np.uint8)
    card, here = CardRecords(records, Twins()), hold(records)
    chosen, scalars = generator.integers(0, 2, count).astype(bool), generator.integers(0, 256, count)
    for start, end in ((0, length), (3, length - 1), (length // 2, length)):
        assert np.array_equal(card.xor(chosen, start, end), here.xor(chosen, start, end))
    assert np.array_equal(card.combine(scalars), here.combine(scalars))
    which = np.array([4, -1, 0, 4])
    assert np.array_equal(card.read(which), here.read(which))
    assert (len(card), card.length) == (count, length)


@pytest.mark.parametrize(("rows", "bits"), [(1, 1), (64, 3), (5000, 12), (70_000, 33)])
def test_bits_are_packed_as_the_processor_packs_them(rows: int, bits: int) -> None:
    values, layout = np.random.default_rng(8).integers(0, 1 << bits, rows), Layout.of(rows)
    made = Twins().slice(values.astype(np.uint64), rows, (1 << bits) - 1, bits, layout.words, layout.blocks)
    assert np.array_equal(made, layout.sliced(layout.padded(values, (1 << bits) - 1), bits))


@pytest.mark.parametrize(("rounds", "k"), [("balanced", 1), ("few", 1), ("balanced", 3), ("few", 2)])
@pytest.mark.parametrize("rows", [301, 66_000])
def test_joint_runs_on_a_card_send_the_same_bytes(rounds: str, k: int, rows: int) -> None:
    from counterveil import Scheme
    from counterveil.schemes.protocols import make_protocol

    made = make_scheme("table/sealed", largest=TOP, d=D, protocol="joint")
    scheme = Scheme.of(made.form, made.reveal, make_protocol("joint", rounds=rounds))
    codes, records = data(rows)
    here = held_by(as_rows(codes), hold(records))
    card = held_by(CardRows(codes, Twins()), CardRecords(records, Twins()))
    size = Size(rows, RECORD, k)
    assert said(scheme, [card, here], size) == said(scheme, [here, here], size)
    assert said(scheme, [here, card], size) == said(scheme, [here, here], size)


# --- the kernels themselves, emulated -------------------------------------------------------------------------------


def scans(kind: Any, largest: int, d: int, rows: int, field: Residues) -> tuple[Any, list[Plan]]:
    generator = np.random.default_rng(9)
    codes = generator.integers(0, largest + 1, (rows, d)).astype(kind)
    sizes = (largest + 1,) * d
    table = Plan("table", field, (generator.integers(0, field.q, sum(sizes)),), sizes=sizes, constant=field.q - 1)
    square = Plan("polynomial", field, tuple(generator.integers(0, field.q, (2, d))), largest, constant=1)
    return codes, [table, square]


@pytest.mark.parametrize(
    ("kind", "largest", "d", "rows", "field"),
    [
        (np.uint8, 15, 5, 17_000, Ring(1 << 32)),  # sums wrap at 32 bits
        (np.uint8, 255, 6, 3000, Field((1 << 31) - 1)),  # sums of 64 bits
        (np.uint8, 9, 3, 500, Field(smallest_prime_above(1 << 31))),  # entries beyond 2^31
        (np.uint8, 9, 3, 500, Ring(1 << 62)),
        (np.uint16, 999, 3, 500, Field(1_000_003)),
        (np.uint16, 65_535, 2, 500, Field(smallest_prime_above(1 << 60))),  # tables that shared memory cannot hold
    ],
)
def test_kernels_give_the_values_of_the_processor(
    kind: Any, largest: int, d: int, rows: int, field: Residues, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, plans = scans(kind, largest, d, rows, field)
    card = CardRows(codes, emulated.card(monkeypatch))
    for plan in plans:
        assert np.array_equal(card.scan(plan), as_rows(codes).scan(plan))


@pytest.mark.parametrize("field", [Ring(1 << 16), Field(65_521), Field((1 << 31) - 1)], ids=str)
def test_kernels_for_many_questions(field: Residues, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(10)
    codes, sizes = generator.integers(0, 7, (600, 5), dtype=np.uint8), (7,) * 5
    plans = [
        Plan("table", field, (generator.integers(0, field.q, 35),), sizes=sizes, constant=n)
        for n in range(64 if field.q <= 1 << 16 else 32)
    ]
    made = CardRows(codes, emulated.card(monkeypatch))._together(plans)
    for plan, values in zip(plans, made, strict=True):
        assert np.array_equal(values[:600], as_rows(codes).scan(plan))


@pytest.mark.parametrize(("count", "length"), [(1000, 160), (70, 40), (9, 5000)])
def test_kernels_for_records(count: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(11)
    records = generator.integers(0, 256, (count, length), dtype=np.uint8)
    card, here = CardRecords(records, emulated.card(monkeypatch)), hold(records)
    chosen, scalars = generator.integers(0, 2, count).astype(bool), generator.integers(0, 256, count)
    for start, end in ((0, length), (19, length - 1)):
        assert np.array_equal(card.xor(chosen, start, end), here.xor(chosen, start, end))
    assert np.array_equal(card.combine(scalars), here.combine(scalars))


def test_kernels_for_joint_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = make_scheme("table/sealed", largest=TOP, d=D, protocol="joint")
    codes, records = data(100)
    card, here, size = emulated.card(monkeypatch), held_by(as_rows(codes), hold(records)), Size(100, RECORD)
    on_card = held_by(CardRows(codes, card), CardRecords(records, card))
    assert said(scheme, [on_card, here], size) == said(scheme, [here, here], size)
    wide, layout = np.random.default_rng(12).integers(0, 1 << 40, 70_000), Layout.of(70_000)
    planes = card.slice(wide.astype(np.uint64), 70_000, 5, 40, layout.words, layout.blocks)
    assert np.array_equal(planes, layout.sliced(layout.padded(wide, 5), 40))
