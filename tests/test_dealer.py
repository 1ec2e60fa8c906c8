"""A dealing server, over real processes: whole questions, a stock that is kept full, and everybody killed in turn."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest

from counterveil import Client, Database, local
from counterveil.applicant.explain import Counterfactual, Explanation
from counterveil.crypto.keys import PRIVATE, SERVER_PRIVATE, Issuer, SigningKey
from counterveil.errors import InvalidKey, InvalidTerms, Refused, ServerFault
from counterveil.research.processes import DEALER, TERMS, Deal, Serve, free_port, publish, running
from counterveil.service.dealer import Dealer
from counterveil.service.link.channel import Channel
from counterveil.service.link.frames import Frame, Peers, Tape, Used
from counterveil.service.link.hub import Links
from counterveil.terms.published import read_terms
from counterveil.terms.tickets import mint, verify
from counterveil.terms.wire import Linked, SignedTerms, Ticket, decode_linked
from linked import until
from patience import LONG, wait_until
from service import cli, numbers_database, reading

D = 20
PERSON = {f"x{j}": j % 16 for j in range(D)}
CHOSEN: dict[str, Any] = {"scheme": "table/sealed", "protocol": "joint", "dealer": "server", "linked": True}


def _cost(found: Explanation) -> float:
    assert isinstance(found, Counterfactual)
    return found.cost


class Dealt:
    """A deployment with a dealing server: keys and terms in a folder, and the processes of its servers."""

    def __init__(self, folder: Path, database: Database, **chosen: Any) -> None:
        self.folder, ports = folder, [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.issued: SignedTerms = publish(folder, database, self.urls, **CHOSEN | chosen)
        self.issuer = Issuer.load(folder / PRIVATE)
        self.servers = [Serve(folder, number, port) for number, port in enumerate(ports, start=1)]

    def key(self) -> SigningKey:
        return SigningKey.load(self.folder / DEALER / SERVER_PRIVATE)

    def ticket(self, **options: Any) -> Ticket:
        return mint(self.issued.terms, [1, 2], expires=int(time.time()) + 3600, issuer=self.issuer, **options)

    def client(self, **options: Any) -> Client:
        return Client(self.urls, terms=self.issued, **{"timeout": LONG, "patience": LONG} | options)

    def ask(self, ticket: Ticket | None = None, **options: Any) -> float:
        """Ask; return what the nearest row costs."""
        with self.client(**options) as client:
            found = client.ask(PERSON, ticket=ticket or self.ticket())
        return _cost(found)

    def entries(self) -> int:
        """Return how many attempts the ledgers know."""
        count = 0
        for server in self.servers:
            with reading(server.ledger) as ledger:
                count += ledger.execute("SELECT count(*) FROM attempts").fetchone()[0]
        return count

    @contextmanager
    def dealer(self, *settings: object) -> Iterator[Deal]:
        """Run a dealing server until the block ends; it may have been killed by then."""
        made = Deal(self.folder, *settings)
        with running([made]):
            made.wait_full()
            yield made


@pytest.fixture(scope="module")
def database() -> Database:
    return numbers_database(1 << 10, D, 15)


@pytest.fixture(scope="module")
def nearest(database: Database) -> float:
    found = local(database, "table/sealed", protocol="garbled").ask(PERSON)
    return _cost(found)


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory, database: Database) -> Iterator[Dealt]:
    made = Dealt(tmp_path_factory.mktemp("dealt"), database)
    with running(made.servers):
        yield made


class Recorder(Dealer):
    """A dealing server in this process, which keeps all that it is told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.frames: list[tuple[Channel, Frame]] = []
        super().__init__(*args, **options)

    def heard(self, channel: Channel, frame: Frame) -> None:
        self.frames.append((channel, frame))
        super().heard(channel, frame)

    def stocks(self) -> list[int]:
        """Return how many good tapes each pair has."""
        return [*Counter(tape.order for tape in [*self._tapes.values()] if not tape.spent).values()]


@contextmanager
def recording(deployment: Dealt, **options: Any) -> Iterator[Recorder]:
    made: list[Recorder] = []
    loop = asyncio.new_event_loop()

    async def deal() -> None:
        made.append(Recorder([deployment.issued], deployment.key(), **options))
        await made[0].links.run()

    thread = threading.Thread(target=loop.run_forever)  # not until `deal` ends: `close` ends later
    thread.start()
    dealing = asyncio.run_coroutine_threadsafe(deal(), loop)
    try:
        wait_until(lambda: bool(made))
        yield made[0]
    finally:
        asyncio.run_coroutine_threadsafe(made[0].links.close(), loop).result(LONG)
        dealing.result(LONG)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.slow
def test_questions_are_answered_and_no_tape_is_used_twice(dealt: Dealt, nearest: float) -> None:
    with recording(dealt, stock=3) as dealer:
        wait_until(lambda: dealer.stocks() == [3])
        with ThreadPoolExecutor(4) as pool:
            costs = [*pool.map(lambda _: dealt.ask(), range(12))]
        assert costs == [nearest] * 12
        wait_until(lambda: dealer.stocks() == [3])  # it is full again
        used = [(channel.number, frame.id) for channel, frame in dealer.frames if isinstance(frame, Used)]
    assert max(Counter(used).values()) == 1
    assert {name for number, name in used if number == 1} == {name for number, name in used if number == 2}
    assert len(used) >= 24


@pytest.mark.slow
def test_without_a_dealer_the_stock_is_used_up_and_then_nothing_is_spent(dealt: Dealt, nearest: float) -> None:
    with dealt.dealer("--stock", 2) as dealer:
        dealer.kill()
        spent, fault, ticket = [dealt.entries()], None, dealt.ticket()
        while fault is None and len(spent) < 100:  # the stock of the tests before may be there too
            try:
                assert dealt.ask(ticket, patience=1) == nearest
                ticket = dealt.ticket()
            except ServerFault as error:
                fault = error
            spent.append(dealt.entries())
        assert spent[-1] == spent[-2] > spent[-3] > spent[-4]  # two tapes or more, and then nothing
        assert fault is not None
        assert fault.code == "peer_unreachable"
        assert "the dealing server cannot be reached; nothing is spent" in str(fault)
        dealer.start()
        dealer.wait_full()
        assert dealt.ask(ticket) == nearest


@pytest.mark.slow
def test_operators_see_the_dealer_and_the_stock(tmp_path: Path) -> None:
    made = Dealt(tmp_path, numbers_database(20, 2))

    def links(server: Serve) -> dict[int, Linked]:
        return {each.server: each for each in decode_linked(httpx2.get(f"{server.url}/v1/link").content)}

    def stocked(server: Serve) -> bool:
        return links(server)[0].tapes == 3

    def parted(server: Serve) -> bool:
        return not links(server)[0].connections

    def metrics(server: Serve) -> list[str]:
        return httpx2.get(f"{server.url}/metrics").text.splitlines()

    def doctor() -> tuple[int, str]:
        done = cli("doctor", "--terms", made.folder / TERMS)
        return done.returncode, " ".join(done.stdout.split())

    with running(made.servers):
        with made.dealer("--stock", 3):
            for server, peer in zip(made.servers, (2, 1), strict=True):
                wait_until(partial(stocked, server))
                seen = links(server)
                assert seen.keys() == {0, peer}
                assert seen[peer].tapes == 3
                assert all(each.connections for each in seen.values())
                assert f'counterveil_tapes{{server="{peer}"}} 3.0' in metrics(server)
                assert 'counterveil_linked{server="0"} 1.0' in metrics(server)
            code, said = doctor()
            assert code == 0
            assert "at least 3 wait for any two of these servers" in said
        for server in made.servers:
            wait_until(partial(parted, server))
            assert links(server)[0].tapes == 3
        code, said = doctor()
        assert code == 1
        assert "is not linked to the dealing server: is counterveil deal running?" in said


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
def test_a_server_that_is_killed_loses_its_stock_and_gets_another(dealt: Dealt, nearest: float, seat: int) -> None:
    server = dealt.servers[seat]
    with recording(dealt, stock=2) as dealer:
        wait_until(lambda: dealer.stocks() == [2])
        before = {*dealer._tapes}
        server.kill()
        server.start()
        server.wait()
        wait_until(lambda: dealer.stocks() == [2] and not before & {*dealer._tapes})
        assert [dealt.ask() for _ in range(3)] == [nearest] * 3


@pytest.mark.slow
def test_a_dealer_with_another_key_is_refused(dealt: Dealt, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = dealt.folder / "1" / SERVER_PRIVATE  # server 1's, which may not deal
    said = cli("deal", "--terms", dealt.folder / TERMS, "--key", keys)
    assert (said.returncode, said.stdout) == (2, "")
    assert (
        said.stderr == "counterveil: dealer's key: got another one, expected that of the dealing server in the terms\n"
    )

    async def tried() -> None:
        links = links_of(dealt, SigningKey.load(keys), lambda *_: None)
        dialling = asyncio.create_task(links.run())
        await until(lambda: any("proof" in str(getattr(r, "fields", "")) for r in caplog.records))
        assert links.channels(1) == links.channels(2) == []
        await links.close()
        await dialling

    with caplog.at_level(logging.WARNING, logger="counterveil"):
        asyncio.run(tried())
    assert "one by the key that the terms pin for the dealer" in str([r.fields for r in caplog.records])  # type: ignore[attr-defined]


def links_of(deployment: Dealt, own: SigningKey, heard: Callable[[Channel, Frame], None], **options: Any) -> Links:
    """Return the links of somebody who poses as the dealer."""
    keys = enumerate(deployment.issued.terms.keys, start=1)
    pinned = {n: bytes.fromhex(key) for n, key in keys}
    given: dict[str, Any] = {"opened": lambda _: None, "lost": lambda _: None, "urls": deployment.urls} | options
    return Links(number=0, own=own, service=deployment.issued.terms.service, pinned=pinned, heard=heard, **given)


def _short(name: bytes, peer: bytes, length: int) -> list[Tape]:
    return [Tape(name, 0, length - 1, peer, b"abc")]


def _twice(name: bytes, peer: bytes, length: int) -> list[Tape]:
    return [Tape(name, 0, length, peer, bytes(length))] * 2


def _strange(name: bytes, peer: bytes, length: int) -> list[Tape]:
    return [Tape(name, 0, length, bytes(16), bytes(length))]


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", [_short, _twice, _strange])
def test_a_dealer_that_breaks_the_rules_loses_its_channel(dealt: Dealt, nearest: float, spoilt: Any) -> None:
    length = max(next(iter(Dealer([dealt.issued], dealt.key()).lengths.values())))
    lost: list[Channel] = []

    async def broke_them() -> None:
        def heard(channel: Channel, frame: Frame) -> None:
            if isinstance(frame, Peers) and frame.boots:
                for tape in spoilt(links.boot + bytes(16), frame.boots[0], length):
                    channel.send(tape)

        links = links_of(dealt, dealt.key(), heard, urls=dealt.urls[:1], lost=lost.append)
        dialling = asyncio.create_task(links.run())
        await until(lambda: bool(lost))
        await links.close()
        await dialling

    asyncio.run(broke_them())
    assert {channel.number for channel in lost} == {1}
    with dealt.dealer():
        assert dealt.ask() == nearest


def traffic(deployment: Dealt) -> tuple[int, int]:
    """Ask twice; return how many bytes went up and came down on the connections of the second question."""
    seen = []
    with deployment.client() as client:
        for ticket in (deployment.ticket(), deployment.ticket()):
            client.ask(PERSON, ticket=ticket)
            seen.append([sum(getattr(peer.traffic, way) for peer in client.peers) for way in ("up", "down")])
    (up, down), (up_both, down_both) = seen
    return up_both - up, down_both - down


@pytest.mark.slow
def test_the_applicant_sends_and_gets_the_same_few_bytes_at_any_size(dealt: Dealt, tmp_path: Path) -> None:
    with dealt.dealer():
        small = traffic(dealt)
    large = Dealt(tmp_path, numbers_database(1 << 17, D, 15))
    with running(large.servers), large.dealer("--stock", 2):
        assert traffic(large) == small
    assert sum(small) <= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("dealer", ["server", "applicant"])
def test_any_process_of_one_server_reaches_the_process_of_the_other_that_has_the_ticket(
    tmp_path: Path, database: Database, nearest: float, dealer: str
) -> None:
    made = Dealt(tmp_path, database, dealer=dealer)
    ports = [server.port for server in made.servers] + [free_port(), free_port()]
    links = [part for port in ports for part in ("--link", f"http://127.0.0.1:{port}")]
    ones, twos = [0, 2], [1, 3]
    first = [Serve(tmp_path, n, ports[n - 1], *(links[2 * i + j] for i in _others(n) for j in (0, 1))) for n in (1, 2)]
    second = [Serve(tmp_path, n, ports[n + 1], *(links[2 * i + j] for i in _others(n) for j in (0, 1))) for n in (1, 2)]
    for each in second:
        each.log = tmp_path / f"log-{each.number}-2"
    dealers = [Deal(tmp_path, "--stock", 3, *links)] if dealer == "server" else []
    with running(first), running(second), running(dealers):
        for running_dealer in dealers:
            running_dealer.wait_full(4)
        for a, b in product(ones, twos):
            reached = {made.urls[0]: f"http://127.0.0.1:{ports[a]}", made.urls[1]: f"http://127.0.0.1:{ports[b]}"}
            assert made.ask(connect_to=reached) == nearest


def _others(number: int) -> tuple[int, int]:
    """Return where the processes of the other server stand in a list of A1, B1, A2, B2."""
    return (1, 3) if number == 1 else (0, 2)


def test_where_a_server_deals_all_tickets_are_for_as_many_records_as_the_terms_say(tmp_path: Path) -> None:
    made = Dealt(tmp_path, numbers_database(20, 2), k=3)
    with pytest.raises(Refused, match="every ticket is for 3") as refused:
        verify(made.ticket(k=2), made.issued.terms, time.time())
    assert refused.value.code == "ticket_not_offered"
    verify(made.ticket(k=3), made.issued.terms, time.time())
    issue = ["ticket", "issue", "--key", tmp_path / PRIVATE, "--terms", tmp_path / TERMS]
    refusal = cli(*issue, "-k", 2)
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "every ticket is for 3" in refusal.stderr
    assert cli(*issue).returncode == 0


def test_a_dealer_needs_terms_that_name_it(tmp_path: Path) -> None:
    made = Dealt(tmp_path, numbers_database(20, 2))
    with pytest.raises(InvalidKey, match="that of the dealing server"):
        Dealer([made.issued], SigningKey())
    issued = publish(tmp_path, numbers_database(20, 2), made.urls)
    with pytest.raises(InvalidTerms, match="no dealing server"):
        Dealer([issued], made.key())


def test_the_default_stock_goes_by_bytes(tmp_path: Path) -> None:
    made = Dealt(tmp_path, numbers_database(20, 2))
    dealer = Dealer([made.issued], made.key())
    assert [tapes["stock"] for tapes in dealer.about()["tapes"]] == [32]
    assert read_terms(tmp_path / TERMS).terms.dealer == made.key().public.hex()


@pytest.mark.parametrize("k", [1, 3])
def test_a_server_deals_in_one_process_too(k: int) -> None:
    database = numbers_database(100, 2)
    person = {"x0": 1, "x1": 2}
    dealt = local(database, "table/sealed", protocol="joint", dealer="server", k=k)
    clear = local(database, "table/differences", k=k)
    assert _cost(dealt.ask(person)) == _cost(clear.ask(person))
