"""The ledger: what was used stays used, through restarts, races, purges and clocks that go backwards."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from counterveil.errors import InvalidLedger, Refused
from counterveil.ledger import Ledger

A, B = b"a" * 32, b"b" * 32


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def code(ledger: Ledger, *arguments: Any) -> str:
    try:
        ledger.spend(*arguments)
    except Refused as error:
        return error.code
    return "ok"


def test_the_same_bytes_may_come_again_and_others_may_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", 1, new=True)
    later = 2**40
    assert code(ledger, b"id", 0, A, later) == "ok"
    assert code(ledger, b"id", 0, A, later) == "ok"
    assert code(ledger, b"id", 0, B, later) == "ticket_used"
    assert code(ledger, b"id", 1, B, later) == "ok"  # another request of the same ticket
    assert code(ledger, b"di", 0, B, later) == "ok"
    ledger.close()
    again = Ledger(tmp_path / "l", 1)
    assert code(again, b"id", 0, B, later) == "ticket_used"
    assert again.count() == 3
    again.close()


def test_a_purge_forgets_and_never_forgives(tmp_path: Path) -> None:
    clock = Clock(1000)
    ledger = Ledger(tmp_path / "l", 1, new=True, clock=clock)
    for i in range(100):
        assert code(ledger, b"%d" % i, 0, A, 1100 + i) == "ok"
    clock.now = 1150
    ledger.purge()
    assert ledger.count() == 49  # those that expire at 1151 and later
    assert code(ledger, b"new", 0, A, 1150) == "ticket_expired"
    clock.now = 10  # the clock goes back: the watermark does not
    ledger.purge()
    assert code(ledger, b"0", 0, B, 1100) == "ticket_expired"
    assert code(ledger, b"new", 0, A, 1150) == "ticket_expired"
    assert code(ledger, b"new", 0, A, 1151) == "ok"
    with pytest.raises(Refused, match="the clock is behind"):
        ledger.check()
    ledger.close()
    again = Ledger(tmp_path / "l", 1, clock=clock)
    assert code(again, b"0", 0, B, 1120) == "ticket_expired"
    again.close()


def test_its_size_is_bounded_by_what_is_unexpired(tmp_path: Path) -> None:
    clock = Clock(1000)
    ledger = Ledger(tmp_path / "l", 1, new=True, clock=clock)
    for i in range(2000):
        clock.now += 1  # one ticket a second, each good for 100
        assert code(ledger, b"%d" % i, 0, A, int(clock.now) + 100) == "ok"
    assert ledger.count() <= 100 + 61  # and those of the minute between purges
    ledger.close()


def _race(path: Path, which: int, results: Any) -> None:
    ledger = Ledger(path, 1)
    results.put([code(ledger, b"%d" % i, 0, bytes([which]) * 32, 2**40) for i in range(200)])


def test_processes_race_and_one_wins(tmp_path: Path) -> None:
    Ledger(tmp_path / "l", 1, new=True).close()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path / "l", n, results)) for n in range(3)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join()
    for each in zip(*outcomes, strict=True):
        assert sorted(each) == ["ok", "ticket_used", "ticket_used"]


def test_ledgers_are_missing_foreign_or_broken(tmp_path: Path) -> None:
    with pytest.raises(InvalidLedger, match="got no ledger"):
        Ledger(tmp_path / "l", 1)
    Ledger(tmp_path / "l", 1, new=True).close()
    assert (tmp_path / "l").stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidLedger, match="there already"):
        Ledger(tmp_path / "l", 1, new=True)
    with pytest.raises(InvalidLedger, match="expected that of server 2"):
        Ledger(tmp_path / "l", 2)
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with pytest.raises(InvalidLedger, match="not a database"):
        Ledger(tmp_path / "junk", 1)
    sqlite3.connect(tmp_path / "empty").close()
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidLedger, match="no such table"):
        Ledger(tmp_path / "empty", 1)
    Ledger(tmp_path / "empty", 1, new=True).close()  # killed before it was made: nothing was in it
    with pytest.raises(InvalidLedger, match="No such file"):
        Ledger(tmp_path / "no" / "folder", 1, new=True)


def test_a_ledger_that_cannot_be_written_answers_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", 1, new=True)
    ledger._database.execute("PRAGMA query_only = ON")  # as a full disk would: reads work, writes fail
    assert code(ledger, b"id", 0, A, 2**40) == "not_ready"
    with pytest.raises(Refused, match="cannot be written"):
        ledger.check()
    ledger._database.execute("PRAGMA query_only = OFF")
    assert code(ledger, b"id", 0, A, 2**40) == "ok"
    ledger.check()
    ledger.close()
