"""A server that sends requests to another server learns nothing of the applicant (rule 13).

Broken in 2026-11: server 2 has the ticket and its own share, so a guess of the question gives it server 1's exact
bytes. It posted them, and the reply (200 or `ticket_used`) told whether the guess was right. It found the true person
out of 300, and the fetched position.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from counterveil import Client, Preferences, Question, make_scheme
from counterveil.applicant.ask import compile_question
from counterveil.crypto.randomness import new_key
from counterveil.errors import Refused
from counterveil.service import server as server_module
from counterveil.service.epochs import check_holdings
from counterveil.service.server import Server
from counterveil.terms import wire
from counterveil.terms.agreement import Peer
from deployed import Deployed, deployed, record_step
from enumeration import Fixed
from service import numbers_database

pytestmark = pytest.mark.slow

SECRET, OTHER = b"a" * 32, b"b" * 32


def outcome(server: Server, request: wire.Request) -> str:
    """Send a request as anybody could; return what they can tell from the reply."""
    try:
        (server.answer if request.kind == "query" else server.record)(wire.encode(request)).whole()
    except Refused as error:
        return f"{error.code}: {error}"
    return "answered"


@pytest.mark.parametrize("reveal", ["sealed", "differences", "distances"])
@pytest.mark.parametrize("knows", [False, True])
def test_a_server_that_guesses_the_question_cannot_try_its_guess(reveal: str, knows: bool, tmp_path: Path) -> None:
    """Server 2 tries 300 people, one of whom asked. In the control it knows the secret, and finds them."""
    rng = np.random.default_rng(4)
    people = [{f"x{j}": int(v) for j, v in enumerate(row)} for row in rng.integers(0, 21, (300, 3))]
    true, seen = 123, dict[tuple[int, str], wire.Request]()

    def watch(peer: Peer, sent: wire.Request, _: wire.Reply) -> None:
        seen[peer.manifest.server, sent.kind] = sent

    with deployed(tmp_path, numbers_database(60, 3), 2, scheme=f"table/{reveal}") as made:
        with Client(made.urls, watch=watch) as client:
            client.ask(people[true], ticket=made.ticket())
        said = []
        for person in people:
            bodies = guessed(made, person, seen[2, "query"].body)
            secret = seen[1, "query"].secret if knows else new_key()
            guess = msgspec.structs.replace(seen[1, "query"], body=bodies, secret=secret)
            said.append(outcome(made.servers[0], guess))
        query = np.frombuffer(seen[2, "record-query"].body, dtype=np.uint8)
        fetched = []
        for position in range(made.deployment.scheme.protocol.positions(60)):  # a sealed position may be past the rows
            flipped = query.copy()
            flipped[position // 8] ^= 1 << position % 8
            secret = seen[1, "record-query"].secret if knows else new_key()
            guess = msgspec.structs.replace(seen[1, "record-query"], body=flipped.tobytes(), secret=secret)
            fetched.append(outcome(made.servers[0], guess))
    if knows:
        assert [i for i, code in enumerate(said) if code == "answered"] == [true]
        assert fetched.count("answered") == 1
    else:
        assert set(said) == {"ticket_used: the ticket was used for another request"}
        assert set(fetched) == set(said)


def guessed(made: Deployed, person: dict[str, int], second: bytes) -> bytes:
    """Return server 1's share if this person had asked, given server 2's."""
    deployment, scheme = made.deployment, made.deployment.scheme
    question, _ = compile_question(deployment, deployment.schema.codes(person), Preferences())
    if scheme.reveal.name == "sealed":
        table = np.array([*np.concatenate(question.costs or []), 0])
        share = scheme.field.sub(table, wire.unpack("", scheme.field, second, scheme.symbols))
    else:  # s + Z and s + 2 Z: the first is (s + second) / 2
        secret = scheme.form.secret(scheme.field, question)
        theirs = wire.unpack("", scheme.field, second, scheme.symbols)
        half = (scheme.field.q + 1) // 2
        share = scheme.field.mul(scheme.field.add(np.array(secret), theirs), half)
    return wire.pack(scheme.field, np.asarray(share))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two servers over F_3 with one feature of two levels, so that every pad can be tried."""
    small = make_scheme("table/distances", largest=1, d=1, cap=1)
    assert (small.field.q, small.symbols) == (3, 2)

    def held(*arguments: Any) -> Any:
        deployment = check_holdings(*arguments)
        object.__setattr__(deployment, "scheme", small)
        return deployment

    monkeypatch.setattr(server_module, "check_holdings", held)
    with deployed(tmp_path, numbers_database(9, 1, levels=1), 2, scheme="table/distances", shuffle=False) as made:
        yield made, small


def view(made: Any, scheme: Any, costs: tuple[int, ...], pads: tuple[int, ...], secret: bytes, late: bool) -> Any:
    """What server 2 sees of a question, and of server 1's replies to every request that it can make up."""
    queries = scheme.query(Question(costs=[list(costs)]), Fixed(pads))
    ticket = made.ticket()
    request = made.request("query", 1, ticket, 0, (1, 2), wire.pack(scheme.field, queries[0]))
    real = msgspec.structs.replace(request, secret=SECRET)
    guesses = [wire.pack(scheme.field, np.array(share)) for share in product(range(3), repeat=2)]
    probes = [msgspec.structs.replace(real, body=guess, secret=secret) for guess in guesses]
    first = made.servers[0]
    before = [] if late else [outcome(first, probe) for probe in probes]
    asked = outcome(first, real)
    assert (asked == "answered") is (late or (secret == SECRET and real == probes[0]))
    return tuple(queries[1]), tuple(before), tuple(outcome(first, probe) for probe in probes if late)


@pytest.mark.parametrize("late", [True, False])
def test_a_servers_view_is_the_same_for_every_question_also_if_it_sends(toy: Any, late: bool) -> None:
    """Every pad, every cost table, every probe, before or after the applicant's own request."""
    made, scheme = toy
    tables = list(product(range(2), repeat=2))
    views = [
        Counter(view(made, scheme, costs, pads, OTHER, late) for pads in product(range(3), repeat=2))
        for costs in tables
    ]
    assert all(seen == views[0] for seen in views)
    if late:  # the control: without the secret bytes the view tells the question
        told = [
            Counter(view(made, scheme, costs, pads, SECRET, late) for pads in product(range(3), repeat=2))
            for costs in tables
        ]
        assert all(a != b for i, a in enumerate(told) for b in told[:i])


@pytest.mark.parametrize("secret", [OTHER, SECRET])
def test_the_same_for_the_position_of_a_record(toy: Any, secret: bytes) -> None:
    """Two rows: every noise, both positions, every probe."""
    made, _ = toy
    spir, first = record_step(made.servers[0]), made.servers[0]
    views = []
    for position in range(2):
        seen: Counter[Any] = Counter()
        for noise in range(4):
            queries = spir.query(2, position, Fixed([noise]))
            ticket = made.ticket()
            real = made.request("record-query", 1, ticket, 1, (1, 2), queries[0].tobytes())
            real = msgspec.structs.replace(real, secret=SECRET)
            question = made.request("query", 1, ticket, 0, (1, 2), bytes(first.epoch.deployment.scheme.field.packed(2)))
            assert outcome(first, msgspec.structs.replace(question, secret=SECRET)) == "answered"
            assert outcome(first, real) == "answered"
            probes = [msgspec.structs.replace(real, body=bytes([guess]), secret=secret) for guess in range(4)]
            seen[queries[1].tobytes(), tuple(outcome(first, probe) for probe in probes)] += 1
        views.append(seen)
    assert (views[0] == views[1]) is (secret == OTHER)


def test_neither_secrets_nor_fingerprints_are_told(tmp_path: Path) -> None:
    """It is not in replies, not in what the operator sees, and in the ledger's file only as a hash."""
    seen: list[tuple[wire.Request, wire.Reply]] = []
    with deployed(tmp_path, numbers_database(20, 3), 2) as made:
        with Client(made.urls, watch=lambda _, sent, got: seen.append((sent, got))) as client:
            client.ask({"x0": 1, "x1": 2, "x2": 3}, ticket=made.ticket())
        assert len({(sent.server, sent.secret) for sent, _ in seen}) == len({sent.secret for sent, _ in seen}) == 2
        for sent, got in seen:
            assert sent.secret not in wire.encode(got)
        for server in made.servers:
            assert sent.secret.hex() not in repr(server.manifest)
    for path in tmp_path.iterdir():
        held = path.read_bytes()
        for sent, _ in seen:
            assert sent.secret not in held
            assert wire.decode_ticket(sent.ticket).claims.id not in held
