"""A dealing server and the stocks of two servers, wired to each other in memory: what each makes of what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from counterveil.crypto.keys import SERVER_PRIVATE, SigningKey
from counterveil.errors import Malformed, Refused
from counterveil.research.processes import DEALER, publish
from counterveil.service import dealer as module
from counterveil.service.dealer import Dealer
from counterveil.service.link.frames import Frame, Ping, Tape
from counterveil.service.stock import Stock
from linked import until
from patience import LONG
from service import numbers_database

STOCK = 3


class End:
    """One end of a connection. What is sent arrives at the other end, in order, in the next round of the loop."""

    def __init__(self, number: int, boot: bytes) -> None:
        self.number, self.boot, self.alive = number, boot, True
        self.sent: list[Frame] = []

    def join(self, heard: Any, other: End) -> None:
        self._heard, self._other = heard, other

    def send(self, frame: Frame) -> None:
        if not self.alive:
            raise Refused("peer_unreachable", "the link is down")
        self.sent.append(frame)
        asyncio.get_running_loop().call_soon(self._arrive, frame)

    def _arrive(self, frame: Frame) -> None:
        if self.alive:
            self._heard(self._other, frame)

    async def drained(self, most: int) -> None:
        await asyncio.sleep(0)


class Party:
    """A server's process, as far as the dealer sees it: its stock, and a connection."""

    def __init__(self, dealer: Dealer, number: int, **options: Any) -> None:
        self.dealer, self.number, self.boot = dealer, number, bytes([number]) * 16
        self.stock = Stock(number, dealer.lengths, lambda: None, **options)

    def connect(self) -> None:
        self.here, self.there = End(0, self.dealer.links.boot), End(self.number, self.boot)
        self.here.join(self.dealer.heard, self.there)
        self.there.join(self.stock.heard, self.here)
        self.dealer.opened(self.there)  # type: ignore[arg-type]
        self.stock.opened(self.here)

    def disconnect(self) -> None:
        self.here.alive = self.there.alive = False
        self.stock.lost(self.here)
        self.dealer.lost(self.there)  # type: ignore[arg-type]

    def names(self) -> list[bytes]:
        return self.stock._names(lambda _: True)


@asynccontextmanager
async def met(dealer: Dealer) -> AsyncIterator[tuple[Party, Party]]:
    """Yield a leader and a follower that know each other, with full stocks."""
    leader, follower = Party(dealer, 1), Party(dealer, 2)
    leader.stock.met(follower.boot, 2)
    follower.stock.met(leader.boot, 1)
    for each in (leader, follower):
        each.connect()
    await until(lambda: full(leader, follower))
    yield leader, follower


def terms(dealer: Dealer) -> bytes:
    """Return the tag of the terms that are dealt for."""
    (tag,) = dealer.lengths
    return tag


def full(leader: Party, follower: Party) -> bool:
    """Say whether both have the same tapes, and as many as they should."""
    return len(leader.names()) == STOCK and leader.names() == follower.names()


@pytest.fixture
def dealer(tmp_path: Path) -> Dealer:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    chosen: dict[str, Any] = {"scheme": "table/sealed", "protocol": "joint", "dealer": "server", "linked": True}
    issued = publish(tmp_path, numbers_database(20, 2), urls, **chosen)
    return Dealer([issued], SigningKey.load(tmp_path / DEALER / SERVER_PRIVATE), stock=STOCK)


def test_a_half_leaves_once_and_the_leader_has_none_before_the_follower(dealer: Dealer) -> None:
    async def main() -> None:
        async with met(dealer) as (leader, follower):
            for _ in range(10):
                picked = leader.stock.pick(follower.boot, terms(dealer))
                assert picked is not None
                assert picked[0] in follower.names()
                assert follower.stock.claim(leader.boot, terms(dealer), picked[0]) is not None
                await until(lambda: full(leader, follower))
            for party in (leader, follower):
                tapes = [frame for frame in party.there.sent if isinstance(frame, Tape)]
                assert len(tapes) == len({tape.id for tape in tapes}) == STOCK + 10
            halves = [[f.data for f in party.there.sent if isinstance(f, Tape)] for party in (leader, follower)]
            assert len({*halves[0], *halves[1]}) == 2 * (STOCK + 10)

    asyncio.run(main())


def test_processes_that_are_not_linked_to_each_other_get_nothing(dealer: Dealer) -> None:
    async def main() -> None:
        async with met(dealer) as (leader, follower):
            stranger = Party(dealer, 3)
            stranger.stock.met(leader.boot, 1)  # which the leader does not say
            stranger.connect()
            picked = leader.stock.pick(follower.boot, terms(dealer))
            await until(lambda: len(leader.names()) == STOCK)
            assert picked is not None
            assert stranger.names() == []

    asyncio.run(main())


def test_who_comes_back_keeps_its_tapes_and_what_was_used_meanwhile_is_made_good(dealer: Dealer) -> None:
    async def main() -> None:
        async with met(dealer) as (leader, follower):
            before = leader.names()
            leader.disconnect()
            picked = leader.stock.pick(follower.boot, terms(dealer))
            assert picked is not None
            assert follower.stock.claim(leader.boot, terms(dealer), picked[0]) is not None
            leader.connect()
            await until(lambda: full(leader, follower))
            assert leader.names()[:2] == before[1:]

    asyncio.run(main())


def test_a_tape_that_the_follower_lost_is_recalled_from_the_leader(dealer: Dealer) -> None:
    async def main() -> None:
        async with met(dealer) as (leader, follower):
            before = {*leader.names()}
            follower.stock.parted(leader.boot)  # a connection that only one of them has noticed to break
            follower.stock.met(leader.boot, 1)
            await until(lambda: full(leader, follower) and not before & {*leader.names()})

    asyncio.run(main())


def test_a_tape_that_the_leader_picked_in_vain_is_recalled_from_the_follower(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.05)

    async def main() -> None:
        async with met(dealer) as (leader, follower):
            picked = leader.stock.pick(follower.boot, terms(dealer))  # and its ledger refused the attempt
            assert picked is not None
            assert picked[0] in follower.names()
            await until(lambda: picked[0] not in follower.names() and full(leader, follower))
            await until(lambda: not [tape for tape in dealer._tapes.values() if tape.spent])

    asyncio.run(main())


@pytest.mark.parametrize("goes", [0, 1])
@pytest.mark.parametrize("gets", [0, 1])
def test_a_process_that_goes_half_way_leaves_nothing_behind(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch, goes: int, gets: int
) -> None:
    monkeypatch.setattr(module, "_PIECE", 16)  # so that a tape takes many parts

    def coming(party: Party) -> bool:
        return any(feed.coming for feed in party.stock._feeds.values())

    async def main() -> None:
        async with met(dealer) as parties, asyncio.timeout(LONG):
            leader, follower = parties
            picked = leader.stock.pick(follower.boot, terms(dealer))
            assert picked is not None
            assert follower.stock.claim(leader.boot, terms(dealer), picked[0]) is not None
            while not coming(parties[gets]):
                await asyncio.sleep(0)
            parties[goes].disconnect()
            while any(map(coming, parties)):
                await asyncio.sleep(0)
            parties[goes].connect()
            await until(lambda: full(leader, follower))

    asyncio.run(main())


def test_a_process_gets_no_more_than_it_may_hold(dealer: Dealer, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * max(dealer.lengths[terms(dealer)])
    monkeypatch.setattr(module, "MOST", most)

    async def main() -> None:
        leader, follower = Party(dealer, 1, most=most), Party(dealer, 2, most=most)
        leader.stock.met(follower.boot, 2)
        follower.stock.met(leader.boot, 1)
        for each in (leader, follower):
            each.connect()
        await until(lambda: len(leader.names()) == 2)
        for _ in range(5):
            picked = leader.stock.pick(follower.boot, terms(dealer))
            assert picked is not None
            assert follower.stock.claim(leader.boot, terms(dealer), picked[0]) is not None
            await until(lambda: len(leader.names()) == 2)
        assert len(follower.names()) == 2

    asyncio.run(main())


def test_what_a_server_may_not_say_is_an_error(dealer: Dealer) -> None:
    async def main() -> None:
        async with met(dealer) as (leader, _):
            with pytest.raises(Malformed, match="got ping, expected what a server tells a dealer"):
                dealer.heard(leader.there, Ping(1))  # type: ignore[arg-type]

    asyncio.run(main())
