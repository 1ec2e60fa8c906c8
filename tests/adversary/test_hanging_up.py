"""The order of a client's actions tells servers nothing. `timing.py` measures the times themselves.

Broken in 2026-11: the client explained its answer before it hung up, and skipped that if a check failed. A lying server
could tell from one hang-up which of two rows is nearer (76 % right, AUC 0.84). A server that was caught lying could
notice it, because the record step named another set of servers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from adversary.timing import OldOrder
from counterveil.applicant import client, conversation, exchange, offer
from counterveil.applicant.client import AsyncClient
from counterveil.errors import Tampered
from counterveil.schemes import fetch
from counterveil.schemes.protocols import Garbled, Padded
from counterveil.terms import deployment, wire
from deployed import PERSON, bump, deployed, garbage
from service import numbers_database

pytestmark = pytest.mark.slow


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that depends on the question, and every message, in the order it happens."""
    seen: list[str] = []

    def noted(owner: Any, name: str, event: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(event)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    def awaited(owner: Any, name: str, before: str, after: str) -> None:
        real = getattr(owner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            seen.append(before)
            try:
                return await real(*arguments, **options)
            finally:
                seen.append(after)

        monkeypatch.setattr(owner, name, call)

    noted(client, "compile_question", "compile")
    for protocol in (Padded, Garbled):
        noted(protocol, "query", "share")
    noted(deployment.Deployment, "choose", "choose")
    for spir in (fetch.Subsets, fetch.Polynomials):
        noted(spir, "recover", "recover")
    noted(conversation, "unpackage", "unpackage")
    noted(conversation, "is_signed", "check")
    noted(client, "explain", "explain")
    awaited(exchange.Connections, "visit", "visit", "visited")
    awaited(exchange.Connections, "_send", "send", "received")
    awaited(exchange.Connections, "close", "closing", "closed")
    awaited(exchange, "settle", "wait", "waited")
    monkeypatch.setattr(client, "settle", vars(exchange)["settle"])
    return seen


SHARED = ["compile", "share"]
QUESTION = ["visit", "visit", "visited", "visited", "send", "send", "received", "received"]
RECORD = ["send", "send", "received", "received"]


@pytest.mark.parametrize("reveal", ["distances", "differences", "sealed", "sealed_record"])
@pytest.mark.parametrize("lie", ["none", "answer", "record"])
def test_nothing_of_the_question_happens_between_the_last_byte_and_the_end_of_the_connections(
    reveal: str, lie: str, tmp_path: Path, events: list[str]
) -> None:
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme=f"table/{reveal}") as made:
        client_of = AsyncClient(terms=made.issued)
        assert client_of.deployment  # calibrated, before the question
        if lie == "answer":
            made.servers[0].on_answer = garbage if reveal.startswith("sealed") else bump(3)
        elif lie == "record":
            made.servers[0].on_record = garbage
        events.clear()

        async def run() -> None:
            await client_of.ask(PERSON, ticket=made.ticket())

        try:
            asyncio.run(run())
        except Tampered:
            assert lie != "none"
    ours = [event for event in events if event != "choose"]
    before = [*SHARED, *QUESTION, "wait", "waited"]
    if reveal != "sealed_record":
        before += [*RECORD, "wait", "waited"]
    hung_up = [*before, "closing", "closed", "wait", "waited"]  # and the ends have left before anything else begins
    assert ours[: len(hung_up)] == hung_up
    after = set(ours[len(hung_up) :])
    assert after <= {"recover", "unpackage", "check", "explain"}
    assert ("explain" in after) >= (lie == "none")
    chosen = [i for i, event in enumerate(events) if event == "choose"]
    answered = events.index("received")
    assert all(i < events.index("visit") or answered < i < events.index("waited") for i in chosen)  # within the wait


def test_the_old_order_is_caught(tmp_path: Path, events: list[str]) -> None:
    """The control: if the client explained before it closes the connections, the test above would fail."""
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme="table/differences") as made:
        old = OldOrder(terms=made.issued)
        old.person = PERSON
        asyncio.run(old.ask(PERSON, ticket=made.ticket()))
    assert events.index("check") < events.index("closed")


def test_the_step_is_at_least_twice_what_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is calibrated with made-up numbers, however slow this machine is just now."""
    with deployed(tmp_path, numbers_database(2000, 3), 2, scheme="table/differences") as made:
        assert offer.make_offer(made.issued, made.deployment).step >= 0.02
        monkeypatch.setattr(offer, "_rehearsed", lambda *_: 0.05)
        assert offer.make_offer(made.issued, made.deployment).step == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("liar", [None, 0, 2])
def test_a_caught_liar_sees_sets_as_any_server_does(liar: int | None, tmp_path: Path) -> None:
    """Four servers, of which one may lie: every server sees each set of three that includes it equally often."""
    seen: list[list[tuple[int, ...]]] = [[] for _ in range(4)]
    with deployed(tmp_path, numbers_database(20, 2), 4, robust=1, scheme="table/differences") as made:
        for n, server in enumerate(made.servers):
            real = server.admit

            def admit(head: bytes, length: int, kind: wire.RequestKind, n: int = n, real: Any = real) -> Any:
                if kind == "record-query":
                    seen[n].append(wire.decode_head(head, length, kind)[0].among)
                return real(head, length, kind)

            server.admit = admit  # type: ignore[method-assign]
        if liar is not None:
            made.servers[liar].on_answer = bump(4)

        async def run() -> None:
            one = AsyncClient(terms=made.issued)
            one._offers = {digest: offer._replace(step=0.001) for digest, offer in one._offers.items()}
            for _ in range(60):
                found = await one.ask({"x0": 3, "x1": 9}, ticket=made.ticket(robust=1))
                assert found.liars == (() if liar is None else (liar + 1,))

        asyncio.run(run())
    for n in range(4):
        sets = Counter(seen[n])
        allowed = [s for s in combinations(range(1, 5), 3) if n + 1 in s]
        if liar in (None, n):  # uniform: 60 in three classes, each below 6 with probability 3e-5
            assert set(sets) == set(allowed)
            assert min(sets.values()) >= 6
