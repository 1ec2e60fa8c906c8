"""Kill servers at random moments under load, restart them, and check that nothing was answered twice or lost silently.

`python tests/faults.py [--joint] [KILLS]` prints what happened. Two servers run in their own processes. Applicants ask
all the time, and some of them cheat: they ask two different questions with one ticket. With `--joint` the servers work
on each question together, and the link between them is cut as often as each of them is killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import anyio

from counterveil import Counterfactual, local
from counterveil.applicant.client import AsyncClient
from counterveil.errors import CounterveilError
from counterveil.terms import wire
from counterveil.terms.agreement import Peer
from patience import LONG
from service import Service, numbers_database, running

_ASKING = 6  # applicants at a time


class Fault:
    """One run: the kills, the applicants, and the outcome of each question."""

    def __init__(self, service: Service, kills: int, seed: int) -> None:
        self.service, self.left, self.random = service, kills, random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.answered: defaultdict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
        self.people = [{name: self.random.randint(0, 20) for name in service.database.schema.names} for _ in range(20)]
        bank = local(service.database)
        self.expected = [bank.ask(person) for person in self.people]

    async def run(self) -> None:
        killers = [asyncio.create_task(self._kill(process)) for process in self.service.processes]
        asking = [asyncio.create_task(self._applicant(n)) for n in range(_ASKING)]
        await asyncio.gather(*killers)
        with anyio.fail_after(LONG):  # until some have asked and some have cheated, however slow this machine is
            while self.outcomes["answered"] < 5 or not self.outcomes["ServerFault ticket_used"]:
                await asyncio.sleep(0.05)
        self.done = True
        await asyncio.gather(*asking)

    done = False

    async def _kill(self, process: Any) -> None:
        while self.left > 0:
            self.left -= 1
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            process.kill()
            process.start()
            await asyncio.to_thread(process.wait)

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
            with sqlite3.connect(process.ledger) as database:
                assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                spent = {(i, r): f for i, r, f in database.execute("SELECT ticket, request, fingerprint FROM spent")}
            for (server, ticket, request), bodies in self.answered.items():
                if server == process.number:
                    assert bodies == {spent[ticket, request]}


class JointFault(Fault):
    """Servers that work together: they are killed, and so is the link between them."""

    def __init__(self, service: Service, kills: int, seed: int) -> None:
        super().__init__(service, kills, seed)
        self.cuts = 0

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
            with sqlite3.connect(process.ledger) as database:
                assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                held = database.execute("SELECT ticket, attempt FROM attempts WHERE state = 'held'").fetchall()
                rows = database.execute("SELECT state, served FROM attempts").fetchall()
            assert len(held) == len({ticket for ticket, _ in held}), "a ticket holds two attempts"
            assert {(ticket, attempt) for server, ticket, attempt in answers if server == process.number} <= set(held)
            assert {served for _, served in rows} <= {0, 1}  # begun once at most
            self.outcomes[f"attempts given up at server {process.number}"] = sum(s == "given up" for s, _ in rows)


def run_faults(folder: Path, kills: int = 50, seed: int = 1, *, joint: bool = False) -> Fault:
    """Run the kills and the applicants, and check the outcome."""
    options = ["--scheme", "table/sealed", "--protocol", "joint"] if joint else ["--scheme", "table/differences"]
    rows, features = (20_000, 4) if joint else (2000, 3)  # so many that a kill may hit a question in the middle
    with running(folder, numbers_database(rows, features), 2, *options, links=joint) as service:
        fault = (JointFault if joint else Fault)(service, kills, seed)
        asyncio.run(fault.run())
    fault.check()
    return fault


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
        kills = numbers[0] if numbers else 50
        made = run_faults(Path(name), kills, int(time.time()), joint="--joint" in sys.argv)
        took = time.perf_counter() - began
        print(f"{took:.0f} s, {len(made.answered)} requests answered; outcomes:")  # noqa: T201
        for outcome, count in made.outcomes.most_common():
            print(f"  {count:6} {outcome}")  # noqa: T201
