"""Kill servers at random moments under load, restart them, and check that nothing was answered twice or lost silently.

`python tests/faults.py [--joint] [--ledger postgres] [--workers N] [KILLS]` prints what happened. Two servers run in
their own processes; with `--workers` single workers, supervisors and whole servers are killed in turn. Applicants ask
all the time, and some of them cheat: they ask two different questions with one ticket. With `--joint` the servers work
on each question together, and the link between them is cut as often as each of them is killed. With ledgers in
PostgreSQL, one kill in ten is that of a server's PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import anyio

from books import Databases, Files, kept
from counterveil import Counterfactual, local
from counterveil.applicant.client import AsyncClient
from counterveil.errors import CounterveilError
from counterveil.terms import wire
from counterveil.terms.agreement import Peer
from families import kill, victims
from patience import LONG
from service import Process, Service, numbers_database, running

_ASKING = 6  # applicants at a time
_STARTS = 1000  # a server that does not start is started again, as a service manager does


class Fault:
    """One run: the kills, the applicants, and the outcome of each question."""

    def __init__(self, service: Service, books: Files | Databases, kills: int, seed: int) -> None:
        self.service, self.books, self.random = service, books, random.Random(seed)
        self.databases = kills // 10 if isinstance(books, Databases) else 0  # kills of PostgreSQL
        self.left = kills - self.databases
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.answered: defaultdict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
        self.people = [{name: self.random.randint(0, 20) for name in service.database.schema.names} for _ in range(20)]
        bank = local(service.database)
        self.expected = [bank.ask(person) for person in self.people]

    async def run(self) -> None:
        killers = [asyncio.create_task(self._kill(process)) for process in self.service.processes]
        killers.append(asyncio.create_task(self._kill_databases()))
        asking = [asyncio.create_task(self._applicant(n)) for n in range(_ASKING)]
        await asyncio.gather(*killers)
        with anyio.fail_after(LONG):  # until some have asked and some have cheated, however slow this machine is
            while self.outcomes["answered"] < 5 or not self.outcomes["ServerFault ticket_used"]:
                await asyncio.sleep(0.05)
        self.done = True
        await asyncio.gather(*asking)

    done = False
    workers = 0  # of each server, under a supervisor; 0: a server is one process

    async def _kill(self, process: Process) -> None:
        """Kill a server again and again. It lives about as long as its start took, or a slow machine answers nobody."""
        turns, took = victims(several=self.workers > 0), 0.5
        while self.left > 0:
            self.left -= 1
            await asyncio.sleep(self.random.uniform(0.0, took))
            victim, began = next(turns), time.monotonic()
            await asyncio.to_thread(kill, process, victim)
            self.outcomes[f"kills of a {victim}"] += 1
            if victim != "worker":
                await asyncio.to_thread(self._start, process)
                took = max(0.5, time.monotonic() - began)

    def _start(self, process: Process) -> None:
        """Start a server until it stays up: it refuses to start while its PostgreSQL, or the standby, is down."""
        for _ in range(_STARTS):
            process.start()
            try:
                return process.wait()
            except RuntimeError:
                if not process.log.read_text().splitlines()[-1].startswith("counterveil: postgresql://"):
                    raise
                self.outcomes["starts refused without PostgreSQL"] += 1
        raise AssertionError(f"a server did not start: {process.log.read_text()[-2000:]}")

    async def _kill_databases(self) -> None:
        while isinstance(self.books, Databases) and self.databases > 0:
            self.databases -= 1
            await asyncio.sleep(self.random.uniform(0.0, 2.0))
            number = self.random.randrange(len(self.service.processes))
            await asyncio.to_thread(self.books.kill, number, self.random)
            self.outcomes["kills of PostgreSQL"] += 1

    async def _applicant(self, number: int) -> None:
        client = AsyncClient(self.service.urls, timeout=LONG, patience=LONG, watch=self._note)
        while not self.done:
            ticket = self.service.ticket()
            if number % 3 == 0:
                who = self.random.sample(range(len(self.people)), 2)
                await asyncio.gather(*(self._ask(client, i, ticket, cheats=True) for i in who))
            else:
                await self._ask(client, self.random.randrange(len(self.people)), ticket, cheats=False)
        await client.close()

    def _note(self, peer: Peer, sent: wire.Request, _: wire.Reply) -> None:
        """Keep what a server answered, by ticket and request."""
        ticket = hashlib.sha256(wire.decode_ticket(sent.ticket).claims.id).digest()
        key = (peer.manifest.server, ticket, sent.request)
        self.answered[key].add(hashlib.sha256(wire.encode(sent)).digest())

    async def _ask(self, client: AsyncClient, i: int, ticket: wire.Ticket, *, cheats: bool) -> None:
        try:
            found = await client.ask(self.people[i], ticket=ticket)
        except CounterveilError as error:
            self.outcomes[f"{type(error).__name__} {getattr(error, 'code', '')}"] += 1
            if not cheats:
                self.wrong.append(f"an honest applicant was refused: {error}")
            return
        self.outcomes["answered"] += 1
        expected = self.expected[i]
        right = (
            isinstance(found, Counterfactual) and isinstance(expected, Counterfactual) and found.cost == expected.cost
        )
        if not right:
            self.wrong.append(f"a wrong answer to {self.people[i]}")

    def check(self) -> None:
        """Fail if a ticket was answered for two questions, an answer is in no ledger, or a ledger is damaged."""
        twice = [key for key, bodies in self.answered.items() if len(bodies) > 1]
        assert not twice, f"{len(twice)} requests were answered for two different bodies"
        assert not self.wrong, self.wrong[:3]
        assert self.outcomes["answered"] >= 5, self.outcomes
        for process in self.service.processes:
            for rows in self.books.rows(process):
                spent = {(ticket, request): proof for ticket, request, _, _, proof, _ in rows}
                for (server, ticket, request), bodies in self.answered.items():
                    if server == process.number:
                        assert bodies == {spent[ticket, request]}


class JointFault(Fault):
    """Servers that work together: they are killed, and so is the link between them."""

    cuts = 0

    async def run(self) -> None:
        cutter = asyncio.create_task(self._cut())
        await super().run()
        await cutter

    async def _cut(self) -> None:
        while self.left > 0:
            self.left -= 1
            self.cuts += 1
            await asyncio.sleep(self.random.uniform(0.0, 2.0))
            for link in self.service.links:
                link.sever()

    def check(self) -> None:
        """Fail unless every honest applicant was answered, and no ticket has two attempts that were not given up.

        A server plays an attempt only after it has written "running", which happens once. So one entry for each attempt
        that began shows that no tape was opened twice.
        """
        assert not self.wrong, self.wrong[:3]
        answers = {(server, ticket, attempt) for server, ticket, attempt in self.answered}
        assert len(answers) == len({(server, ticket) for server, ticket, _ in answers}), "a ticket gave two records"
        for process in self.service.processes:
            for rows in self.books.rows(process):
                held = [(ticket, attempt) for ticket, _, attempt, state, _, _ in rows if state == "held"]
                states = [(state, served) for _, _, _, state, _, served in rows if state != "spent"]
                assert len(held) == len({ticket for ticket, _ in held}), "a ticket holds two attempts"
                mine = {(ticket, attempt) for server, ticket, attempt in answers if server == process.number}
                assert mine <= set(held)
                assert {served for _, served in states} <= {0, 1}  # begun once at most
                given_up = sum(state == "given up" for state, _ in states)
            self.outcomes[f"attempts given up at server {process.number}"] = given_up


def run_faults(
    folder: Path, kills: int = 50, seed: int = 1, *, joint: bool = False, ledger: str = "sqlite", workers: int = 0
) -> Fault:
    """Run the kills and the applicants, and check the outcome."""
    options = ["--scheme", "table/sealed", "--protocol", "joint"] if joint else ["--scheme", "table/differences"]
    options += ["--workers", str(workers)] if workers else []
    rows, features = (20_000, 4) if joint else (2000, 3)  # so many that a kill may hit a question in the middle
    database = numbers_database(rows, features)
    with kept(ledger) as books:
        with running(folder, database, 2, *options, links=joint, ledgers=books.addresses) as service:
            fault = (JointFault if joint else Fault)(service, books, kills, seed)
            fault.workers = workers
            asyncio.run(fault.run())
        fault.check()
    return fault


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", nargs="?", type=int, default=50)
    parser.add_argument("--joint", action="store_true")
    parser.add_argument("--ledger", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--workers", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        made = run_faults(
            Path(name),
            chosen.kills,
            int(time.time()),
            joint=chosen.joint,
            ledger=chosen.ledger,
            workers=chosen.workers,
        )
        took = time.perf_counter() - began
        print(f"{took:.0f} s, {len(made.answered)} requests answered; outcomes:")  # noqa: T201
        for outcome, count in made.outcomes.most_common():
            print(f"  {count:6} {outcome}")  # noqa: T201
