"""Servers that lie: the person is told, and the liar learns nothing from what the client does next."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from counterveil import Counterfactual, local
from counterveil.algebra.gf256 import PRODUCTS
from counterveil.applicant.client import Client
from counterveil.crypto.randomness import Common
from counterveil.errors import Disagreement, Refused, ServerFault, Tampered, TooManyLiars
from counterveil.schemes.fetch import Polynomials, Subsets
from counterveil.schemes.protocols import Size
from counterveil.terms import wire
from deployed import (
    PERSON,
    Altered,
    Deployed,
    bump,
    deployed,
    flip,
    garbage,
    noise,
    record_step,
    symbols,
    two_records,
    views,
)
from service import numbers_database

pytestmark = pytest.mark.slow


def sums_of_records(made: Deployed, groups: dict[tuple[int, ...], list[int]], robust: int) -> list[Any]:
    """Ask for records as a cheat does: each group of servers is told another set. Return the answers, by server."""
    ticket, generator, answers = made.ticket(robust=robust), np.random.default_rng(1), []
    made.ask_nothing(ticket, range(1, len(made.servers) + 1))
    for among, servers in groups.items():
        for n in servers:
            body = generator.bytes(record_step(made.servers[0], robust).query_bytes(len(made.database.codes)))
            message = made.request("record-query", n, ticket, 1, among, body)
            reply = wire.decode_reply(made.servers[n - 1].record(wire.encode(message)).whole(), "record-answer")
            answers.append(np.frombuffer(reply.body, dtype=np.uint8))
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("reveal", ["distances", "differences"])
def test_a_liar_sees_what_an_honest_server_sees(reveal: str, tmp_path: Path) -> None:
    database = numbers_database(30, 3)
    every_row = [symbols(lambda values, q: values + 1), symbols(noise)]
    with deployed(tmp_path, database, 2, scheme=f"table/{reveal}", k=2) as made, Client(made.urls) as client:
        honest, found = views(made, client, ticket=made.ticket(k=2))
        assert isinstance(found, Counterfactual)
        assert [path for _, path, _ in honest[0]] == ["/v1/answer", "/v1/record", "/v1/record"]
        told = 0
        lies: list[tuple[str, Altered]] = [("on_answer", alter) for alter in [*every_row, *map(bump, range(29))]]
        lies += [("on_record", alter) for alter in (garbage, two_records, flip)]
        for liar in (0, 1):
            for name, alter in lies:
                setattr(made.servers[liar], name, alter)
                seen, outcome = views(made, client, ticket=made.ticket(k=2))
                setattr(made.servers[liar], name, None)
                assert seen == honest
                if name == "on_record" and alter is not two_records:
                    assert isinstance(outcome, Tampered)
                if alter is every_row[1]:
                    assert isinstance(outcome, Tampered)
                told += isinstance(outcome, Tampered)
                if isinstance(
                    outcome, Counterfactual
                ):  # not noticed: then the rows shown are true rows of the database
                    assert tuple(outcome.record.values()) in {tuple(row) for row in database.codes.tolist()}
        assert told > 8


@pytest.mark.parametrize("reveal", ["differences", "sealed"])
def test_a_ticket_draws_its_order_once(reveal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for its record, which is fetched in the same order."""
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme=f"table/{reveal}") as made, Client(made.urls) as client:
        drawn, order = list[int](), Common._drawn

        def watched(self: Common, count: int) -> Any:
            drawn.append(count)
            return order(self, count)

        monkeypatch.setattr(Common, "_drawn", watched)
        for n in (1, 2):
            views(made, client, ticket=made.ticket())
            assert drawn == [30, 30] * n  # at both servers


@pytest.mark.slow
@pytest.mark.parametrize("reveal", ["sealed", "sealed_record"])
def test_a_liar_who_garbles_something_else_learns_nothing(reveal: str, tmp_path: Path) -> None:
    """Gates of noise, one bit of a label, other decoding: some position comes of it, and the messages are the same."""
    database = numbers_database(30, 3)
    rng = np.random.default_rng(2)

    def bit(at: int) -> Altered:
        return lambda _, message: message.body[:at] + bytes([message.body[at] ^ 1]) + message.body[at + 1 :]

    with deployed(tmp_path, database, 2, scheme=f"table/{reveal}") as made, Client(made.urls) as client:
        honest, found = views(made, client, ticket=made.ticket())
        assert isinstance(found, Counterfactual)
        fetches = ["/v1/answer"] + ["/v1/record"] * (reveal == "sealed")
        assert [path for _, path, _ in honest[0]] == [path for _, path, _ in honest[1]] == fetches
        told = 0
        for liar in (0, 1):
            size = client.deployment.scheme.requests(Size(30, made.database.served.shape[1]))[0].down[liar]
            lies = [garbage, *(bit(int(at)) for at in rng.integers(0, size, 12)), bit(size - 1)]
            for alter in lies:
                made.servers[liar].on_answer = alter
                seen, outcome = views(made, client, ticket=made.ticket())
                made.servers[liar].on_answer = None
                assert seen == honest
                if isinstance(outcome, Counterfactual):  # not noticed: then it is a true row
                    assert tuple(outcome.record.values()) in {tuple(row) for row in database.codes.tolist()}
                else:
                    assert isinstance(outcome, Tampered)
                    told += 1
        if reveal == "sealed_record":  # a fetched record is signed whichever it is; one inside opens by its own key
            assert told > 8
        for length in (-1, 1):
            made.servers[0].on_answer = lambda _, message, n=length: (message.body + b"x")[: len(message.body) + n]
            _, outcome = views(made, client, ticket=made.ticket())
            assert isinstance(outcome, ServerFault)
            assert "bytes, expected" in str(outcome)


def test_one_rows_answer_plus_one_is_told_where_it_concerns_the_row_shown(tmp_path: Path) -> None:
    """With `distances`, a lie about the row that is fetched contradicts the record."""
    database = numbers_database(30, 3)
    with deployed(tmp_path, database, 2, scheme="table/distances", shuffle=False) as made, Client(made.urls) as client:
        right = local(database, "table/distances", shuffle=False).ask(PERSON)
        assert isinstance(right, Counterfactual)
        row = database.codes.tolist().index([int(str(value).split(".")[0]) for value in right.record.values()])
        for liar in (0, 1):
            made.servers[liar].on_answer = bump(row)
            _, outcome = views(made, client, ticket=made.ticket())
            made.servers[liar].on_answer = None
            other = isinstance(outcome, Counterfactual) and outcome.cost > right.cost
            assert isinstance(outcome, Tampered) or other  # pushed behind another true row: only robust mode sees that
        made.servers[1].on_answer = bump(row)  # its weight is -1: the row looks nearer than it is
        _, outcome = views(made, client, ticket=made.ticket())
        assert isinstance(outcome, Tampered)
        assert "a server lied" in str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table/differences", "table/distances", "linear-diff", "baseline"])
def test_robust_mode_corrects_and_names_the_liar(name: str, tmp_path: Path) -> None:
    database = numbers_database(40, 3)
    right = local(database, name).ask(PERSON)
    assert isinstance(right, Counterfactual)
    with deployed(tmp_path, database, 4, robust=1, scheme=name, k=1) as made, Client(made.urls) as client:
        honest, found = views(made, client, ticket=made.ticket(robust=1))
        assert isinstance(found, Counterfactual)
        assert (found.cost, found.liars) == (right.cost, ())
        for liar in range(4):
            for alter in (symbols(noise), bump(5), symbols(lambda values, q: values + 1)):
                made.servers[liar].on_answer = alter
                seen, found = views(made, client, ticket=made.ticket(robust=1))
                made.servers[liar].on_answer = None
                assert isinstance(found, Counterfactual)
                assert (found.cost, found.liars) == (right.cost, (liar + 1,))
                assert found.to_dict()["liars"] == [liar + 1]
                assert seen == honest
        for liar in (0, 1):
            made.servers[liar].on_answer = bump(3 + liar)
        _, outcome = views(made, client, ticket=made.ticket(robust=1))
        assert isinstance(outcome, TooManyLiars)


def test_a_robust_ticket_gives_one_record_however_the_sets_are_named(tmp_path: Path) -> None:
    """A cheat names different sets to different servers: a set of N - v is whole only once."""
    database = numbers_database(20, 3)
    with deployed(tmp_path, database, 4, robust=1) as made:
        ticket = made.ticket(robust=1)
        good = made.request("record-query", 1, ticket, 1, (1, 2), bytes(3))
        with pytest.raises(Refused, match="a record comes from 3 servers of its ticket"):
            made.servers[0].record(wire.encode(good))
        with pytest.raises(Refused, match="a record comes from 3 servers"):
            made.servers[0].record(wire.encode(msgspec.structs.replace(good, among=(1, 2, 3, 4))))
        plain = made.ticket(servers=[1, 2])
        with pytest.raises(Refused, match="a record comes from 2 servers"):
            made.servers[0].record(wire.encode(msgspec.structs.replace(good, ticket=plain.encode(), among=(1,))))
        for servers in ([1], [1, 2, 3], [1, 2, 3, 4]):
            other = msgspec.structs.replace(good, ticket=made.ticket(servers=servers).encode())
            with pytest.raises(Refused, match=f"a ticket for {len(servers)} servers, where 2 answer"):
                made.servers[0].record(wire.encode(other))


def test_breaches_of_the_protocol_name_the_server(tmp_path: Path) -> None:
    database = numbers_database(20, 3)
    with deployed(tmp_path, database, 2) as made, Client(made.urls) as client:
        second = made.servers[1]
        for alter, said in (
            (lambda server, message: message.body[:-1], "bytes, expected"),
            (lambda server, message: b"\xff" * len(message.body), "a symbol of q or more|bits set after the last"),
            (lambda server, message: message.body + bytes(100_000), "more than"),
        ):
            second.on_answer = alter
            _, outcome = views(made, client, ticket=made.ticket())
            assert isinstance(outcome, ServerFault)
            assert "server 2" in str(outcome) or made.urls[1] in str(outcome)
            assert re.search(said, str(outcome)), str(outcome)


def test_answers_of_an_incomplete_set_are_noise(tmp_path: Path) -> None:
    """Six servers, two may lie: sets of four overlap, and two answers of the second set tell nothing by themselves.

    Were they under one pad, as with subsets of two servers, their xor would be an xor of records.
    """
    with deployed(tmp_path, numbers_database(20, 3), 6, robust=2) as made:
        four, other = (1, 2, 3, 4), (3, 4, 5, 6)
        *_, fifth, sixth = sums_of_records(made, {four: [1, 2, 3, 4], other: [5, 6]}, 2)
        whole = fifth ^ sixth
        scaled = [PRODUCTS[c, made.database.served] for c in range(1, 256)]
        assert not any((record == whole).all() for multiple in scaled for record in multiple)
        assert isinstance(record_step(made.servers[0], 2), Polynomials)
        assert isinstance(record_step(made.servers[0]), Subsets)
        with Client(made.urls) as client:
            made.servers[3].on_answer = made.servers[5].on_answer = symbols(noise)
            _, found = views(made, client, ticket=made.ticket(robust=2))
            assert isinstance(found, Counterfactual)
            assert found.liars == (4, 6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": "1000001"}, "q: got 1000001, expected a prime"),
        ({"q": "2305843009213693951"}, "expected .* the smallest prime that does"),
        ({"q": "7"}, "q: got 7, expected a prime above"),
        ({"alphas": (1, 1)}, "alphas: got .*expected distinct and non-zero"),
        ({"alphas": (0, 1)}, "alphas: got .*expected distinct and non-zero"),
        ({"alphas": (1, 2, 3)}, "alphas: got 3, expected one for each of 2"),
        ({"schema": {}}, "schema of the manifest"),
    ],
)
def test_terms_that_break_the_rules_are_refused_before_a_question(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Both servers say the same wrong thing: the rules do not depend on whom one asks."""
    with deployed(tmp_path, numbers_database(20, 3), 2) as made:
        made.publish(msgspec.structs.replace(made.terms, **change))
        with pytest.raises(Disagreement, match=said):
            Client(made.urls)
        assert all(path == "/v1/manifest" for seen in made.seen for _, path, _ in seen)
