"""The clerk enters all that waits in one transaction, and tells everybody what came of their own entry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from counterveil.crypto.keys import Issuer
from counterveil.errors import Refused
from counterveil.service.clerk import Clerk
from counterveil.service.ledger import Entry, Key, Ledger, MemoryLedger, Standing
from counterveil.terms import wire
from counterveil.terms.tickets import Verified
from counterveil.terms.wire import Claims, Ticket
from patience import LONG

LATER = 1 << 40


def entry(number: int, proof: bytes = b"p") -> Entry:
    return Entry(Key(number.to_bytes(16, "big")), "spent", proof, LATER, holder=b"h")


class Book(MemoryLedger):
    """A ledger that waits for the test, and notes how many entries came together."""

    def __init__(self, at_once: int = 1) -> None:
        super().__init__()
        self.at_once, self.go, self.batches = at_once, threading.Event(), list[int]()

    def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
        self.batches.append(len(entries))
        assert self.go.wait(LONG)
        return super().perform_all(entries)


async def performed(clerk: Clerk, each: Entry) -> str:
    try:
        return (await clerk.perform(each)).state
    except Refused as error:
        return error.code


def outcomes(book: Book, entries: list[Entry]) -> list[str]:
    async def go() -> list[str]:
        clerk = Clerk(book)
        tasks = [asyncio.create_task(performed(clerk, each)) for each in entries]
        while not book.batches:
            await asyncio.sleep(0.001)
        book.go.set()
        return await asyncio.gather(*tasks)

    return asyncio.run(go())


def test_what_waits_is_entered_together_and_each_is_told_its_own() -> None:
    book = Book()
    said = outcomes(book, [entry(0), *map(entry, range(1, 9)), entry(3, b"another request")])
    assert said == ["spent"] * 9 + ["ticket_used"]
    assert book.batches == [1, 9]


def test_a_ledger_that_ends_many_transactions_at_a_time_gets_them_one_by_one() -> None:
    book = Book(at_once=4)
    assert outcomes(book, [*map(entry, range(10))]) == ["spent"] * 10
    assert book.batches == [1] * 10


def test_a_failure_is_told_to_all_of_its_batch_and_not_to_the_next() -> None:
    class Failing(Book):
        def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
            if super().perform_all(entries) and len(self.batches) == 1:
                raise Refused("not_ready", "the ledger cannot be written")
            return [Standing(True, "spent", b"") for _ in entries]

    assert outcomes(Failing(), [*map(entry, range(3))]) == ["not_ready", "spent", "spent"]


def test_threads_share_a_transaction_and_a_ticket_is_spent_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        ledger = Ledger(tmp_path / "ledger", 1, new=True)
        commits: list[int] = []
        enter = ledger._enter

        def counted(jobs: Any) -> Any:
            commits.append(len(jobs))
            return enter(jobs)

        ledger._enter = counted  # type: ignore[method-assign]

        def spend(number: int) -> str:
            try:
                return ledger.perform(entry(number % 50, str(number).encode())).state
            except Refused as error:
                return error.code

        said = [*pool.map(spend, range(200))]
        assert ledger.count() == ledger.questions() == 50
        ledger.close()
    assert (said.count("spent"), said.count("ticket_used")) == (50, 150)
    assert sum(commits) == 200
    assert len(commits) < 200  # some waited together


def test_an_entry_whose_transaction_failed_is_not_entered_later(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", 1, new=True)
    run = ledger._run

    def full(statement: str, *values: object) -> list[tuple[object, ...]]:
        if statement == "COMMIT":
            raise OSError("the disk is full")
        return run(statement, *values)

    ledger._run = full  # type: ignore[method-assign]
    with pytest.raises(Refused, match="cannot be written"):
        ledger.perform(entry(1))
    ledger._run = run  # type: ignore[method-assign]
    ledger.perform(entry(2))
    assert ledger.count() == 1
    ledger.close()


def test_only_good_signatures_are_remembered() -> None:
    issuer, verified = Issuer(), Verified(2)
    claims = [Claims(2, bytes([n]) * 16, LATER, "tests", (1, 2), "differences", 0, 1) for n in range(4)]
    signed = [wire.encode_claims(each) for each in claims]
    good = [Ticket(each, raw, issuer.sign("ticket", raw)) for each, raw in zip(claims, signed, strict=True)]
    forged = Ticket(claims[0], signed[0], bytes(64))
    public = issuer.public.hex()
    assert verified.is_signed(good[0], public)
    assert not any(verified.is_signed(forged, public) for _ in range(5))
    assert len(verified._kept) == 1
    assert all(verified.is_signed(each, public) for each in good)
    assert len(verified._kept) == 2
    assert not verified.is_signed(good[3], Issuer().public.hex())
