"""Scans, compared with Python integers, for every size of code, coefficient and field."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import prevprime

from counterveil import Field, engine, make_scheme, smallest_prime_above
from counterveil.engine import cpu, plain, scans
from counterveil.engine.blocks import Blocks
from counterveil.engine.cpu import CpuRows
from machine import VECTORS
from patience import LONG, wait_until
from planted import Planted


def table(field: Field, rows: Any, tables: list[Any]) -> Any:
    return cpu.table(field, rows, np.concatenate(tables), np.array([len(t) for t in tables]))


@given(
    seed=st.integers(0, 2**32),
    M=st.integers(1, 40) | st.sampled_from([4095, 4096, 4097]),
    d=st.integers(1, 70),
    largest=st.integers(1, 2**31 - 1) | st.sampled_from([1, 255, 65535, 2**26, 2**31 - 1]),
    degree=st.integers(1, 6),
    bits=st.integers(1, 61),
)
def test_polynomial(seed: int, M: int, d: int, largest: int, degree: int, bits: int) -> None:
    while largest**degree >= 2**62:
        degree -= 1
    field = Field(smallest_prime_above(2**bits))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, largest + 1, (M, d)).astype(np.min_scalar_type(largest))
    rows[0] = largest
    coefficients = [rng.integers(0, field.q, d) for _ in range(degree)]
    coefficients[0][:] = field.q - 1
    values = cpu.polynomial(field, rows, coefficients, largest)
    for i in {0, M // 2, M - 1}:
        codes = [int(y) for y in rows[i]]
        powers = [sum(int(c) * y**k for c, y in zip(cs, codes, strict=True)) for k, cs in enumerate(coefficients, 1)]
        assert int(values[i]) == sum(powers) % field.q


@given(seed=st.integers(0, 2**32), M=st.integers(1, 40) | st.just(4097), d=st.integers(1, 70), bits=st.integers(1, 61))
def test_table(seed: int, M: int, d: int, bits: int) -> None:
    field = Field(smallest_prime_above(2**bits))
    rng = np.random.default_rng(seed)
    levels = rng.integers(1, 20, d)
    rows = rng.integers(0, levels + 1, (M, d)).astype(np.uint8)
    tables = [rng.integers(0, field.q, R + 1) for R in levels]
    tables[0][:] = field.q - 1
    values = table(field, rows, tables)
    for i in {0, M // 2, M - 1}:
        assert int(values[i]) == sum(int(t[y]) for t, y in zip(tables, rows[i], strict=True)) % field.q


def blocks(codes: Any, threads: int = 1) -> Blocks:
    made = engine.lay_out(codes, worthwhile=0, threads=threads).data
    assert isinstance(made, Blocks)
    return made


@given(
    seed=st.integers(0, 2**32),
    M=st.integers(1, 300) | st.sampled_from([1, 63, 64, 65, 127, 128, 129]),
    d=st.integers(1, 70) | st.sampled_from([1, 7, 20, 63, 64, 257, 300]),
    largest=st.integers(1, 300) | st.sampled_from([1, 15, 16, 63, 64, 127, 128, 255, 256, 4095, 65535]),
    bits=st.integers(1, 61),
    extreme=st.integers(0, 3),
)
def test_blocks_give_the_same(seed: int, M: int, d: int, largest: int, bits: int, extreme: int) -> None:
    """The fast way and the plain way agree, for elements at random, all largest, in the middle, or zero."""
    field, rng = Field(smallest_prime_above(2**bits)), np.random.default_rng(seed)
    codes = rng.integers(0, largest + 1, (M, d)).astype(np.min_scalar_type(largest))
    codes[0], codes[-1] = largest, 0
    laid = blocks(codes, threads=1 + seed % 3)

    def elements(*shape: int) -> Any:
        values = [rng.integers(0, field.q, shape), np.full(shape, field.q - 1), np.full(shape, field.q // 2)]
        return [*values, np.zeros(shape, dtype=np.int64)][extreme]

    tables = [elements(largest + 1) for _ in range(min(d, max(1, 300_000 // largest)))]
    tables += [tables[0]] * (d - len(tables))
    assert np.array_equal(table(field, laid, tables), table(field, codes, tables))
    for degree in (1, 2, 3):
        coefficients = [elements(d) for _ in range(degree)]
        free = int(elements(1)[0])
        expected = cpu.polynomial(field, codes, coefficients, largest, free)
        assert np.array_equal(cpu.polynomial(field, laid, coefficients, largest, free), expected)


@pytest.mark.parametrize(("bits", "d"), [(36, 1023), (36, 2000), (36, 3000), (30, 5000), (26, 5001), (12, 8000)])
def test_blocks_with_very_many_features(bits: int, d: int) -> None:
    """Sums of products are as large as possible, some below and some above what 64 bits hold."""
    field, rng = Field(smallest_prime_above(2**bits)), np.random.default_rng(d)
    codes = rng.integers(0, 256, (130, d)).astype(np.uint8)
    codes[0], codes[1] = 0, 255
    for value in (field.q // 2, field.q // 2 + 1, field.q - 1):
        coefficients = [np.full(d, value)] * 2
        expected = cpu.polynomial(field, codes, coefficients, 255)
        assert np.array_equal(cpu.polynomial(field, blocks(codes), coefficients, 255), expected)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_tables_of_the_largest_entries_there_are(vectors: bool, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides a value, 64 bits hold the sum of many entries, of three, or of only one."""
    monkeypatch.setattr(scans, "VECTORS", vectors)
    codes = np.full((130, 21), np.iinfo(kind).max if kind == np.uint8 else 300, dtype=kind)
    for bits in (31, 32, 33, 48, 49, 56, 57, 60, 61, 62):
        field = Field(int(prevprime(1 << bits)))
        tables = [np.full(301, field.q - 1)] * 21
        assert set(table(field, blocks(codes), tables).tolist()) == {-21 % field.q}


@pytest.mark.parametrize("vectors", VECTORS)
def test_processors_without_vectors_give_the_same(vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "VECTORS", vectors)
    rng, field = np.random.default_rng(1), Field(10_007)
    codes = rng.integers(0, 200, (1000, 9)).astype(np.uint8)
    tables, coefficients = [rng.integers(0, field.q, 256) for _ in range(9)], [rng.integers(0, field.q, 9)] * 2
    laid = blocks(codes)
    assert np.array_equal(table(field, laid, tables), table(field, codes, tables))
    expected = cpu.polynomial(field, codes, coefficients, 199)
    assert np.array_equal(cpu.polynomial(field, laid, coefficients, 199), expected)


def test_codes_take_no_more_bytes_than_they_need() -> None:
    """A feature may have many levels, but few occur in these rows: codes take one byte, and tables are cut to match."""
    rng, field = np.random.default_rng(6), Field(10_007)
    codes, tables = rng.integers(0, 256, (300, 5)).astype(np.uint16), [rng.integers(0, field.q, 1000) for _ in range(5)]
    assert blocks(codes).data.dtype == np.uint8
    assert np.array_equal(table(field, blocks(codes), tables), table(field, codes, tables))
    coefficients = [rng.integers(0, field.q, 5)] * 2
    expected = cpu.polynomial(field, codes, coefficients, 999)
    assert np.array_equal(cpu.polynomial(field, blocks(codes), coefficients, 999), expected)


def test_scans_asked_for_meanwhile_are_done_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty questions at once the first is scanned alone; those that wait for it are scanned together."""
    rng, field = np.random.default_rng(4), Field(10_007)
    codes = rng.integers(0, 16, (20_000, 6)).astype(np.uint8)
    laid, batches, together = blocks(codes, threads=2), list[int](), Blocks._together
    begun, go_on = threading.Event(), threading.Event()

    def watched(self: Blocks, jobs: list[Any]) -> None:
        batches.append(len(jobs))
        begun.set()
        assert go_on.wait(LONG)
        together(self, jobs)

    monkeypatch.setattr(Blocks, "_together", watched)
    questions = [[rng.integers(0, field.q, 16) for _ in range(6)] for _ in range(40)]
    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(table, field, laid, questions[0])
        assert begun.wait(LONG)
        others = [pool.submit(table, field, laid, question) for question in questions[1:]]
        wait_until(lambda: len(laid._waiting) >= 39)
        go_on.set()
        found = [each.result() for each in (first, *others)]
    assert batches == [1, 39]
    for question, values in zip(questions, found, strict=True):
        assert np.array_equal(values, table(field, codes, question))


def test_a_scan_that_fails_takes_nobody_along() -> None:
    codes = np.arange(1000, dtype=np.uint8).reshape(500, 2) % 7
    laid, begun, go_on = blocks(codes), threading.Event(), threading.Event()

    def bad(*_: Any) -> None:
        begun.set()
        assert go_on.wait(LONG)
        raise MemoryError

    tables = [np.arange(7)] * 2
    with ThreadPoolExecutor(9) as pool:
        failing = [pool.submit(laid.scanned, bad)]
        assert begun.wait(LONG)
        good = [pool.submit(table, Field(101), laid, tables) for _ in range(4)]  # one of these takes the next turn
        wait_until(lambda: len(laid._waiting) >= 4)
        failing += [pool.submit(laid.scanned, bad) for _ in range(4)]
        wait_until(lambda: len(laid._waiting) >= 8)
        go_on.set()
        assert all(isinstance(each.exception(), MemoryError) for each in failing)
        for each in good:
            assert np.array_equal(each.result(), codes.sum(axis=1))


SCAN = """
import numpy as np
from counterveil import Field, engine
from counterveil.engine import cpu
from counterveil.engine.blocks import Blocks
from counterveil.engine.cpu import CpuRows
rng = np.random.default_rng(1)
codes, field = rng.integers(0, 200, (1000, 9)).astype(np.uint8), Field(10_007)
laid = engine.lay_out(codes, worthwhile=0).data
assert isinstance(laid, Blocks)
entries, sizes, coefficients = rng.integers(0, field.q, 9 * 200), np.full(9, 200), [rng.integers(0, field.q, 9)] * 2
for rows in (codes, laid):
    values = cpu.table(field, rows, entries, sizes), cpu.polynomial(field, rows, coefficients, 199)
    print(int((values[0] * np.arange(1000)).sum()), int((values[1] * np.arange(1000)).sum()))
"""


def scan_elsewhere(**environment: str) -> None:
    """Scan in another process, and see that both ways say the same."""
    ran = subprocess.run([sys.executable, "-c", SCAN], env=os.environ | environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    plain, laid = ran.stdout.splitlines()
    assert plain == laid


@pytest.mark.slow
def test_damaged_code_is_not_used_nor_such_as_others_could_have_put_there(tmp_path: Path) -> None:
    folder, trace = tmp_path / "kept", tmp_path / "trace"
    scan_elsewhere(NUMBA_CACHE_DIR=str(folder))
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    for path in kept:
        path.write_bytes(pickle.dumps(Planted(trace)))
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o777)
    scan_elsewhere(NUMBA_CACHE_DIR=str(folder))
    assert not trace.exists()
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    scan_elsewhere(NUMBA_CACHE_DIR=str(folder))
    assert trace.exists()  # the control: a cache of our own is read; a damaged one is not used


@pytest.mark.slow
def test_processors_that_are_kept_from_vectors_do_without(tmp_path: Path) -> None:
    scan_elsewhere(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME="generic")


def test_a_map_that_can_be_written_keeps_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "codes").write_bytes(bytes(1 << 16))
    codes = np.memmap(tmp_path / "codes", dtype=np.uint8, mode="c").reshape(-1, 4)
    codes[:] = 7
    assert (blocks(codes).data == 7).all()
    assert (codes == 7).all()


def test_only_what_pays_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(engine.lay_out(np.zeros((100, 3), dtype=np.uint8)).data, Blocks)
    assert not isinstance(engine.lay_out(np.zeros((2_000_000, 3), dtype=np.uint32)).data, Blocks)
    assert isinstance(engine.lay_out(np.zeros((2_000_000, 3), dtype=np.uint8)).data, Blocks)
    monkeypatch.setattr(cpu, "_plans", lambda: None)  # no numba
    assert not isinstance(engine.lay_out(np.zeros((2_000_000, 3), dtype=np.uint8)).data, Blocks)


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(64, 300))
def test_xor_of_records_both_ways(seed: int, M: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    records, chosen = rng.integers(0, 256, (M, length), dtype=np.uint8), rng.integers(0, 2, M).astype(bool)
    expected = np.bitwise_xor.reduce(records[chosen], axis=0) if chosen.any() else np.zeros(length, dtype=np.uint8)
    for least in (0, 1 << 30):
        assert np.array_equal(cpu.xor(records, chosen, worthwhile=least), expected)


@pytest.mark.parametrize("name", ["table/distances", "linear/differences", "baseline", "mask+", "table/sealed"])
def test_a_scheme_answers_the_same_from_blocks(name: str) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 31, (500, 5)).astype(np.uint8)
    scheme = make_scheme(name, largest=30, d=5, d_min=3 if "mask" in name else 1)
    common = scheme.common(bytes(32), bytes(32), b"ticket")
    query = rng.integers(0, scheme.field.q, scheme.symbols)
    assert np.array_equal(
        scheme.answer(2, codes, query, common), scheme.answer(2, CpuRows(blocks(codes)), query, common)
    )


@pytest.mark.parametrize("d", [1, 3, 31, 127, 1023])
@pytest.mark.parametrize("largest", [1, 255, 2**16 - 1, 2**21 - 1, 94_906_267, 2**31 - 1])
def test_polynomial_is_exact_at_the_edge(d: int, largest: int) -> None:
    """All entries and all coefficients at their largest and odd, so that a sum past 2^53 would lose its last bit."""
    for bits in range(18, 62):
        field = Field(smallest_prime_above(2**bits))
        rows = np.full((2, d), largest).astype(np.min_scalar_type(largest))
        rows[1, 0] -= 1
        coefficients = [np.full(d, 2**bits - 1), np.full(d, 2**bits - 3)]
        expected = [
            sum(int(c[0]) * sum(int(y) ** k for y in row) for k, c in enumerate(coefficients, start=1)) % field.q
            for row in rows
        ]
        assert cpu.polynomial(field, rows, coefficients, largest).tolist() == expected


@pytest.mark.parametrize("d", [1, 31, 63, 127])
@pytest.mark.parametrize("bits", [20, 40, 50, 53, 61])
def test_polynomial_is_exact_where_one_limb_just_fits(d: int, bits: int) -> None:
    for largest in (2**16 - 1, 2**24 - 1, 2**26 - 1):
        field = Field(int(prevprime(2**bits)))
        rows = np.full((2, d), largest).astype(np.uint32)
        rows[1, 0] -= 1
        values = cpu.polynomial(field, rows, [np.full(d, field.q - 1)], largest)
        assert values.tolist() == [-sum(int(y) for y in row) % field.q for row in rows]


def test_table_at_the_largest_field_does_not_overflow() -> None:
    field = Field(smallest_prime_above(2**62 - 1000))
    tables = [np.array([field.q - 1])] * 100
    assert table(field, np.zeros((3, 100), dtype=np.uint8), tables).tolist() == [(-100) % field.q] * 3


@given(seed=st.integers(0, 2**32), M=st.integers(1, 30) | st.just(5000), length=st.integers(1, 20))
def test_xor_and_combine(seed: int, M: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (M, length), dtype=np.uint8)
    chosen = rng.integers(0, 2, M).astype(bool)
    expected = np.zeros(length, dtype=np.uint8)
    for record in records[chosen]:
        expected ^= record
    assert np.array_equal(cpu.xor(records, chosen), expected)
    assert np.array_equal(plain.combine(records, chosen.astype(np.uint8)), expected)
