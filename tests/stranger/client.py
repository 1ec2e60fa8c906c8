"""Ask a question, as docs/wire.md says it. `carry` brings messages to servers, or looks them up in a vector."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import msgspec

from . import dealing, garbled
from .numbers import bits_of, pack, package_at_0, stream, times, unpack, value_at, verifies, xor
from .questions import Question
from .trust import Ticket

PATHS = {"query": "/v1/answer", "record-query": "/v1/record", "attempt": "/v1/attempt", "collect": "/v1/attempt"}
REPLIES = {"query": "answer", "record-query": "record-answer", "attempt": "attempt-answer", "collect": "attempt-answer"}
ROUNDS = 200  # of attempts and of what collects them; whoever carries the messages waits in between
NOTHING_BEGAN = ("peer_unreachable", "busy")
ASK_AGAIN = ("attempt_held", "attempt_first", "not_ready", "too_slow", "internal", "busy", None)


class Draw(Protocol):
    """Where an applicant's numbers come from."""

    def __call__(self, q: int, count: int) -> list[int]: ...


class Message(NamedTuple):
    """A request on its way."""

    server: int
    kind: str
    request: int
    run: int
    data: bytes


Carry = Callable[[list[Message]], list[bytes | str | None]]  # replies, codes of refusals, or None for no reply


class Answer(NamedTuple):
    """What came of a question."""

    revealed: list[int]
    positions: list[int]
    packages: list[bytes]
    codes: list[list[int]]
    honest: list[int]  # places of the servers whose answers fit together
    liars: list[int]  # numbers of servers that lied


class Run:
    """Servers that work on a question together, and what they have said so far."""

    def __init__(self, servers: list[int], number: int) -> None:
        self.servers, self.number = servers, number
        self.secret: list[int] = []
        self.queries: list[list[int]] = []
        self.revealed: list[int] = []
        self.honest = list(range(len(servers)))
        self.positions: list[int] = []
        self.packages: list[bytes] = []
        self.attempt = 0
        self.failed = False


class Asking:
    """One question with one ticket."""

    def __init__(
        self,
        text: str,
        key: str,
        ticket: str,
        person: dict[str, Any],
        wishes: dict[str, Any],
        draw: Draw,
        *,
        spread: float = 0.0,
    ) -> None:
        self.terms: dict[str, Any] = json.loads(text)
        self.digest, self.key = hashlib.sha256(text.encode()).digest(), bytes.fromhex(key)
        self.ticket, self.draw, self.spread = Ticket(ticket), draw, spread
        self.question = asked = Question(self.terms, person, wishes)
        self.q = int(self.terms["q"])
        alphas = self.terms["alphas"]
        if self.q != asked.q or len(alphas) != asked.N or len({a % self.q for a in alphas} - {0}) != asked.N:
            raise ValueError("q or alphas that do not belong to the terms")
        self.rows, self.T = int(self.terms["rows"]), int(self.terms["parameters"]["collusion"])
        chosen = self.terms["parameters"].get("options", {}).get("protocol", {})
        self.joint = self.terms["parameters"].get("protocol") == "joint"
        self.deals = self.joint and chosen.get("dealer", "applicant") == "applicant"
        self.seeded, self.few = bool(chosen.get("seeded")), chosen.get("rounds") == "few"
        self.sealed, self.inside = asked.reveal.startswith("sealed"), asked.reveal == "sealed_record"
        self.runs = [Run(servers, number) for number, servers in enumerate(self._together())]
        self._over: dict[tuple[int, int], str | None] = {}  # the last refusal of each run's servers

    def _together(self) -> list[list[int]]:
        liars = self.ticket.liars
        needed = 2 + liars if self.sealed else self.question.e * self.T + 1 + 2 * liars
        servers = self.ticket.servers = self.ticket.servers or list(range(1, needed + 1))
        if not self.sealed:
            if len(servers) != needed:
                raise ValueError("a ticket for another number of servers")
            return [servers]
        if len(servers) == 2 + liars:
            return [list(pair) for pair in combinations(servers, 2)]
        if len(servers) != 2 + 2 * liars:
            raise ValueError("a ticket for another number of servers")
        return [servers[at : at + 2] for at in range(0, len(servers), 2)]

    def alphas(self, run: Run) -> list[int]:
        """Return the evaluation points of a run's servers."""
        return [self.terms["alphas"][server - 1] for server in run.servers]

    def _message(self, run: Run, place: int, kind: str, request: int, among: Sequence[int], body: bytes) -> Message:
        server = run.servers[place]
        fields = [2, kind, server, self.digest, self.key, self.ticket.raw, request, [run.servers[p] for p in among]]
        data = msgspec.msgpack.encode([*fields, self.secrets[server], body])
        return Message(server, kind, request, run.number, data)

    def _body(self, message: Message, reply: bytes | str | None) -> bytes:
        """Return the body of a reply, or refuse it."""
        if not isinstance(reply, bytes):
            raise ConnectionError(f"server {message.server} refused: {reply}")
        among = msgspec.msgpack.decode(message.data)[7]
        fields = msgspec.msgpack.decode(reply)
        head = [2, REPLIES[message.kind], message.server, self.ticket.id, message.request, among]
        if fields[:6] != head or len(fields) != 7 or msgspec.msgpack.encode(fields) != reply:
            raise ValueError("a reply to something else")
        return bytes(fields[6])

    def ask(self, carry: Carry) -> Answer:
        """Ask, and return what came of it, checked."""
        self.secrets = {server: bytes(self.draw(256, 32)) for server in self.ticket.servers}
        for run in self.runs:
            self._share(run)
        if self.joint:
            self._attempt(carry)
        else:
            self._query(carry)
        return self._checked()

    def _share(self, run: Run) -> None:
        asked, q = self.question, self.q
        s = [v % q for v in asked.s]
        if self.sealed:
            s.append(asked.offset % q)
            noise = self.draw(q, len(s))
            run.queries = [noise, [(a - b) % q for a, b in zip(s, noise, strict=True)]]
            return
        drawn = self.draw(q, self.T * len(s))
        pads = [drawn[t * len(s) : (t + 1) * len(s)] for t in range(self.T)]
        run.secret = s
        run.queries = [
            [(v + sum(alpha ** (t + 1) * pads[t][j] for t in range(self.T))) % q for j, v in enumerate(s)]
            for alpha in self.alphas(run)
        ]

    def _query(self, carry: Carry) -> None:
        sent = [
            self._message(run, place, "query", 0, range(len(run.servers)), pack(self.q, Q))
            for run in self.runs
            for place, Q in enumerate(run.queries)
        ]
        replies = carry(sent)
        bodies = [self._body(message, reply) for message, reply in zip(sent, replies, strict=True)]
        steps: list[list[tuple[list[int], list[tuple[list[int], bytes]]]]] = []
        for run in self.runs:
            mine = [body for message, body in zip(sent, bodies, strict=True) if message.run == run.number]
            wanted = self._read_sealed(run, mine) if self.sealed else self._read_opened(run, mine)
            steps.append([] if self.inside else [self._record_step(run, p) for p in wanted])
        for request in range(1, (0 if self.inside else self.ticket.k) + 1):
            sent = [
                self._message(run, place, "record-query", request, among, body)
                for run, each in zip(self.runs, steps, strict=True)
                for place, (among, body) in enumerate(each[request - 1][1])
            ]
            replies = carry(sent)
            answers = {
                (message.run, message.server): self._body(message, reply)
                for message, reply in zip(sent, replies, strict=True)
            }
            for run, each in zip(self.runs, steps, strict=True):
                among = each[request - 1][0]
                run.packages.append(self._joined([answers[run.number, run.servers[place]] for place in among]))

    def _read_opened(self, run: Run, bodies: list[bytes]) -> list[int]:
        asked, q, alphas = self.question, self.q, self.alphas(run)
        count = self.rows - asked.differences
        shares = []
        for Q, body in zip(run.queries, bodies, strict=True):
            known = 0 if asked.differences else asked.known(Q) - asked.known(run.secret) - asked.offset
            shares.append([(v - known) % q for v in unpack(q, body, count)])
        degree = len(alphas) - 1 - 2 * self.ticket.liars
        run.honest = self._honest(alphas, shares, degree)
        basis = run.honest[: degree + 1]
        run.revealed = value_at(0, q, [alphas[n] for n in basis], [shares[n] for n in basis])
        relative = asked.relative(run.revealed, q)
        at_random = self.draw(self.rows, self.ticket.k)
        if asked.plausible(relative):
            run.positions = asked.choose(relative, self.ticket.k, self.spread)
        return run.positions or at_random

    def _honest(self, alphas: list[int], shares: list[list[int]], degree: int) -> list[int]:
        every = range(len(alphas))
        for count in range(self.ticket.liars + 1):
            for left_out in combinations(every, count):
                kept = [n for n in every if n not in left_out]
                basis = kept[: degree + 1]
                points, values = [alphas[n] for n in basis], [shares[n] for n in basis]
                if all(value_at(alphas[n], self.q, points, values) == shares[n] for n in kept[degree + 1 :]):
                    return kept
        raise ValueError("too many liars")

    def _read_sealed(self, run: Run, bodies: list[bytes]) -> list[int]:
        inside = self.question.package if self.inside else 0
        position, package = garbled.evaluate(bodies, self.rows, bits_of(self.q), inside)
        run.positions = [position]
        if inside:
            run.packages = [package]
        else:
            self.draw(self._slots, self.ticket.k)  # random positions, which a sealed answer never needs
        return run.positions

    @property
    def _slots(self) -> int:
        """The number of positions that a record can be fetched from."""
        return 1 << (self.rows - 1).bit_length() if self.sealed else self.rows

    # --- records ------------------------------------------------------------------------------------------------------

    @property
    def _whole(self) -> bool:
        """Whether records are fetched by polynomials, so that each answer is as long as a package."""
        P = 2 if self.sealed else len(self.ticket.servers)
        liars = 0 if self.sealed else self.ticket.liars
        return self.T > 1 or liars > 0 or max(1, self.question.package // 16) < P - 1

    def _record_step(self, run: Run, position: int) -> tuple[list[int], list[tuple[list[int], bytes]]]:
        """Return whose answers give the record; and for each server, whom its query names, and the query."""
        size = len(run.servers) - (0 if self.sealed else self.ticket.liars)
        among = self._some(run.honest, size)
        made = dict(zip(among, self._record_queries(size, position), strict=True))
        sent = []
        for place in range(len(run.servers)):
            if place in made:
                sent.append((among, made[place]))
                continue
            others = self._some([p for p in range(len(run.servers)) if p != place], size - 1)
            sent.append((sorted([*others, place]), self._record_queries(size, 0)[0]))
        return among, sent

    def _some(self, places: Sequence[int], size: int) -> list[int]:
        left = list(places)
        while len(left) > size:
            left.pop(self.draw(len(left), 1)[0])
        return left

    def _record_queries(self, P: int, position: int) -> list[bytes]:
        slots = self._slots
        if self._whole:
            drawn = self.draw(256, self.T * slots)
            queries = []
            for point in range(1, P + 1):
                row = bytearray(slots)
                row[position] = 1
                power = 1
                for t in range(self.T):
                    power = times(power, point)
                    multiple = [times(power, value) for value in range(256)]
                    row = bytearray(a ^ multiple[z] for a, z in zip(row, drawn[t * slots :], strict=False))
                queries.append(bytes(row))
            return queries
        bits = slots * (P - 1)
        H = int.from_bytes(bytes(self.draw(256, -(-bits // 8))), "little") & ((1 << bits) - 1)
        flipped = [H ^ 1 << (position * (P - 1) + j) for j in range(P - 1)]
        return [each.to_bytes(-(-bits // 8), "little") for each in (*flipped, H)]

    def _joined(self, answers: list[bytes]) -> bytes:
        """Return the package that the answers of all servers asked make."""
        length, parts = self.question.package, len(answers) - 1
        expected = length if self._whole else -(-length // parts)
        if any(len(answer) != expected for answer in answers):
            raise ValueError("a record answer of another length")
        if self._whole:
            return package_at_0(range(1, len(answers) + 1), answers)
        cuts = [j * length // parts for j in range(parts + 1)]
        return b"".join(xor(answers[j], answers[-1])[: cuts[j + 1] - cuts[j]] for j in range(parts))

    # --- servers that work together -----------------------------------------------------------------------------------

    def _attempt(self, carry: Carry) -> None:
        """Send attempts, and collect them, until every run has both parts or has failed."""
        todo = [(run, place, "attempt") for run in self.runs for place in (0, 1)]
        parts: dict[tuple[int, int], bytes] = {}
        for _ in range(ROUNDS):
            bodies = self._bodies([run for run, _, kind in todo if kind == "attempt"])
            sent = [
                self._message(run, place, kind, run.attempt, (0, 1), bodies.get((run.number, place), b""))
                for run, place, kind in todo
            ]
            said: dict[tuple[int, int], str | None] = {}
            for (run, place, _), message, reply in zip(todo, sent, carry(sent), strict=True):
                if isinstance(reply, bytes):
                    parts[run.number, place] = self._body(message, reply)
                else:
                    said[run.number, place] = reply
            todo = [each for run in self.runs for each in self._next(run, parts, self._noted(run, said))]
            if not todo:
                break
        else:
            raise ConnectionError("the servers do not get together")
        for run in self.runs:
            if not run.failed:
                both = xor(parts[run.number, 0], parts[run.number, 1])
                size = self.question.package
                run.packages = [both[at : at + size] for at in range(0, len(both), size)]

    def _noted(self, run: Run, said: dict[tuple[int, int], str | None]) -> dict[int, str | None]:
        """Remember the last refusal of each server."""
        self._over |= said
        return {place: self._over[run.number, place] for place in (0, 1) if (run.number, place) in self._over}

    def _next(
        self, run: Run, parts: dict[tuple[int, int], bytes], said: dict[int, str | None]
    ) -> list[tuple[Run, int, str]]:
        missing = [place for place in (0, 1) if (run.number, place) not in parts]
        if not missing or run.failed:
            return []
        codes = [said[place] for place in missing]
        again = len(missing) == 2 and all(code in NOTHING_BEGAN for code in codes)
        if again or (len(missing) == 2 and all(code == "attempt_over" for code in codes)):
            run.attempt += not again
            self._over = {key: code for key, code in self._over.items() if key[0] != run.number}
            self._share(run)
            return [(run, place, "attempt") for place in (0, 1)]
        if any(code not in (*ASK_AGAIN, "peer_unreachable", "attempt_over") for code in codes) or run.attempt > 15:
            run.failed = True
            return []
        return [(run, place, "collect") for place in missing if said[place] != "attempt_over"]

    def _bodies(self, runs: Sequence[Run]) -> dict[tuple[int, int], bytes]:
        made = {}
        for run in dict.fromkeys(runs):
            dealt = [b"", b""]
            if self.deals:
                todo = dealing.batches(self.rows, bits_of(self.q), self.ticket.k, self.few)
                dealt = dealing.tapes(todo, self._octets, stream if self.seeded else None)
            for place, Q in enumerate(run.queries):
                made[run.number, place] = pack(self.q, Q) + dealt[place]
        return made

    def _octets(self, count: int) -> bytes:
        return b"".join(v.to_bytes(7, "little") for v in self.draw(1 << 56, -(-count // 7)))[:count]

    # --- after hanging up ---------------------------------------------------------------------------------------------

    def _checked(self) -> Answer:
        found = []
        for run in self.runs:
            try:
                codes = [self._opened(package) for package in run.packages]
                paid = [self.question.price(each) for each in codes]
            except ValueError:
                continue
            if not run.failed and self._fits(run, paid):
                found.append((paid, codes, run))
        if not found:
            raise ValueError("no record verifies: a server lied")
        best = min(paid for paid, _, _ in found)
        right = [run for paid, _, run in found if paid == best]
        wrong = [run for run in self.runs if run not in right]
        suspects = combinations(self.ticket.servers, self.ticket.liars if len(self.runs) > 1 else 0)
        if not any(all(set(run.servers) & set(some) for run in wrong) for some in suspects):
            raise ValueError("more servers lied than may")
        liars = {n for run in wrong for n in run.servers} - {n for run in right for n in run.servers}
        run = self.runs[0]
        if len(self.runs) == 1:
            liars = {n for place, n in enumerate(run.servers) if place not in run.honest}
        codes = next(codes for paid, codes, _ in found if paid == best)
        return Answer(run.revealed, run.positions, run.packages, codes, run.honest, sorted(liars))

    def _fits(self, run: Run, paid: list[int]) -> bool:
        if self.sealed:
            return len(set(run.packages)) == len(run.packages)
        relative = self.question.relative(run.revealed, self.q)
        return bool(run.positions) and self.question.fits([relative[p] for p in run.positions], paid)

    def _opened(self, package: bytes) -> list[int]:
        """Open a package, verify its record, and return its codes."""
        body = package[:-32]
        plain = xor(body, stream(xor(package[-32:], hashlib.sha256(body).digest()), len(body)))
        record, signature = plain[:-64], plain[-64:]
        if not verifies(self.terms["issuer"], signature, "record", bytes.fromhex(self.terms["database"]), record):
            raise ValueError("the record does not verify")
        return self.question.codes(record)
