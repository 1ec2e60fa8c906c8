from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterveil.algebra.arrays import Bytes
from counterveil.crypto.packages import package, package_all, unpackage, unpackage_all
from counterveil.crypto.randomness import Common, Fresh, new_key
from counterveil.errors import EmptyDatabase, InvalidInput, OutOfRange, TooFewServers, WrongShape, WrongType
from counterveil.schemes.fetch import LEAST_PART, Polynomials, Spir, Subsets, as_records, make_spir


def random_records(M: int, length: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (M, length), dtype=np.uint8)


def common_for(ticket: bytes | None) -> Common:
    return Common(new_key(), digest=b"digest", ticket=ticket, servers=(1, 2))


def fetch(spir: Spir, records: Bytes, position: int, *, shuffle: bool = False) -> tuple[bytes, int]:
    """Play all parties; return the record and how many bytes came down."""
    common = common_for(b"ticket")
    order = common.order(len(records)) if shuffle else None
    queries = spir.query(len(records), position, Fresh())
    answers = [spir.answer(n, records, Q, common, order=order) for n, Q in enumerate(queries, start=1)]
    return spir.recover(answers), sum(a.nbytes for a in answers)


@given(
    M=st.integers(1, 60) | st.just(5000),
    length=st.integers(1, 200),
    servers=st.integers(2, 6),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_fetches_the_record_at_the_position(M: int, length: int, servers: int, seed: int, data: st.DataObject) -> None:
    collusion = data.draw(st.integers(1, servers - 1))
    position = data.draw(st.integers(0, M - 1))
    records = random_records(M, length, seed)
    spir = make_spir(servers=servers, collusion=collusion, length=length)
    assert fetch(spir, records, position)[0] == records[position].tobytes()


@pytest.mark.parametrize(("servers", "collusion"), [(2, 1), (3, 1), (3, 2)])
def test_fetches_in_the_tickets_order(servers: int, collusion: int) -> None:
    records = random_records(100, 7)
    spir = make_spir(servers=servers, collusion=collusion, length=7)
    common = common_for(b"ticket")
    order = common.order(100)
    queries = spir.query(100, 42, Fresh())
    answers = [spir.answer(n, records, Q, common, order=order) for n, Q in enumerate(queries, start=1)]
    assert spir.recover(answers) == records[order[42]].tobytes()
    assert order[42] != 42 or order[41] != 41


@pytest.mark.parametrize("servers", [2, 3, 5, 9])
def test_rate_is_one_less_one_over_n(servers: int) -> None:
    """Long records: what comes down is N/(N-1) times the record."""
    length = 16_000
    spir = Subsets(servers, length)
    record, down = fetch(spir, random_records(3, length), 1)
    assert len(record) == length
    assert length / down == pytest.approx(1 - 1 / servers, rel=1e-3)
    assert spir.query(1000, 3, Fresh()).shape == (servers, 1000 * (servers - 1) // 8)


@pytest.mark.parametrize("servers", [3, 4, 8])
@pytest.mark.parametrize("length", [24, 100, 187])
def test_parts_of_different_records_are_worthless(servers: int, length: int) -> None:
    """A cheating applicant may take each part from another package. The parts then open to neither record."""
    records = random_records(2, length)
    packages = package_all(records, new_key())
    spir = make_spir(servers=servers, collusion=1, length=length + 32)
    if isinstance(spir, Polynomials):
        assert (length + 32) // (servers - 1) < LEAST_PART
        return
    for start, end in spir._bounds:
        assert end - start >= LEAST_PART
        mixed = packages[0].copy()
        mixed[start:end] = packages[1, start:end]
        opened = np.frombuffer(unpackage(mixed.tobytes()), dtype=np.uint8)
        for record in records:
            assert np.unpackbits(opened ^ record).mean() == pytest.approx(0.5, abs=0.2)
            assert record.tobytes()[:4] not in mixed.tobytes()


def test_equal_records_have_different_packages() -> None:
    records = np.zeros((50, 40), dtype=np.uint8)
    packages = package_all(records, new_key())
    assert len({row.tobytes() for row in packages}) == 50
    assert np.array_equal(unpackage_all(packages), records)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 500])
def test_any_missing_bit_of_a_package_hides_the_whole_record(length: int) -> None:
    record = random_records(1, length)[0].tobytes()
    packaged = package(record, new_key())
    assert unpackage(packaged) == record
    assert len(packaged) == length + 32
    changed = []
    for bit in range(0, 8 * len(packaged), 7):
        other = bytearray(packaged)
        other[bit // 8] ^= 1 << bit % 8
        changed.append(np.frombuffer(unpackage(bytes(other)), dtype=np.uint8) ^ np.frombuffer(record, dtype=np.uint8))
    assert np.unpackbits(np.array(changed), axis=1).mean() == pytest.approx(0.5, abs=0.1)


def test_pads_differ_between_requests_and_agree_between_servers() -> None:
    spir, records, common = Subsets(2, 32), random_records(4, 32), common_for(b"ticket")
    nothing = np.zeros(1, dtype=np.uint8)
    first = spir.answer(1, records, nothing, common)
    assert np.array_equal(first, spir.answer(2, records, nothing, common))
    assert not np.array_equal(first, spir.answer(1, records, nothing, common, request=1))
    shares = Polynomials(3, 2, 32)
    answers = [shares.answer(1, records, np.zeros(4, dtype=np.uint8), common, request=r) for r in (0, 1, 0)]
    assert np.array_equal(answers[0], answers[2])
    assert not np.array_equal(answers[0], answers[1])


@pytest.mark.parametrize(
    ("records", "error", "message"),
    [
        ([], EmptyDatabase, "records: got M = 0"),
        ([b"ab", b"abc"], WrongShape, "records: got lengths 2 to 3, expected one length"),
        ([b"", b""], WrongShape, "length at least 1"),
        (["ab", "cd"], WrongType, "records: got other things, expected bytes"),
        (np.zeros((2, 3)), WrongType, "records: got dtype float64, expected uint8"),
        (np.zeros(3, dtype=np.uint8), WrongShape, r"records: got shape \(3,\)"),
    ],
)
def test_bad_records_are_refused(records: list[bytes], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_records(records)


def test_bad_queries_and_answers_are_refused() -> None:
    records, common = random_records(9, 4), common_for(b"ticket")
    for spir in (Subsets(2, 4), Polynomials(3, 2, 4)):
        length = spir.query(9, 0, Fresh()).shape[1]
        with pytest.raises(WrongShape, match="record query: got shape"):
            spir.answer(1, records, np.zeros(length + 1, dtype=np.uint8), common)
        with pytest.raises(OutOfRange, match=r"server: got \d, expected 1 to "):
            spir.answer(4, records, np.zeros(length, dtype=np.uint8), common)
        with pytest.raises(OutOfRange, match=r"position: got 9, expected 0 to 8"):
            spir.query(9, 9, Fresh())
        with pytest.raises(WrongShape, match=r"records: got shape \(9, 5\), expected \(any, 4\)"):
            spir.answer(1, random_records(9, 5), np.zeros(length, dtype=np.uint8), common)
        with pytest.raises(WrongShape, match="record answers: got 1, expected one from each"):
            spir.recover([np.zeros(4, dtype=np.uint8)])
        with pytest.raises(InvalidInput, match="record answer of server 2"):
            spir.recover([np.zeros(4 - (n == 1), dtype=np.uint8) for n in range(spir.servers)])
    with pytest.raises(WrongShape, match="order: got 8, expected a place for each of 9 records"):
        Polynomials(3, 2, 4).answer(1, records, np.zeros(8, dtype=np.uint8), common, order=np.arange(8))
    with pytest.raises(WrongShape, match="bits set after the last, expected 9 bits"):
        Subsets(2, 4).answer(1, records, np.array([0, 2], dtype=np.uint8), common)
    with pytest.raises(OutOfRange, match="got 300"):
        Polynomials(3, 2, 4).answer(1, records, np.full(9, 300), common)


@pytest.mark.parametrize(("servers", "collusion"), [(1, 1), (2, 2), (3, 5)])
def test_too_few_servers_are_refused(servers: int, collusion: int) -> None:
    with pytest.raises(TooFewServers, match=f"servers: got {servers}"):
        make_spir(servers=servers, collusion=collusion, length=4)
