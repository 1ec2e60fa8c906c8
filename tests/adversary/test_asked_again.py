"""What a client does when servers say that they have another offer now: it never depends on the question (rule 10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterveil import Client, Counterfactual
from counterveil.applicant import client as module
from counterveil.applicant.offer import settle
from counterveil.crypto.keys import CommonKey
from counterveil.errors import Refused, ServerFault
from counterveil.service.epochs import make_epoch
from counterveil.service.offers import Offers
from counterveil.service.server import Server
from counterveil.terms.published import make_terms, sign_terms
from counterveil.terms.wire import decode_head
from deployed import Deployed, deployed
from service import numbers_database

OUTSIDE, INSIDE = {"x0": 3, "x1": 9, "x2": 14}, {"x0": 3, "x1": 9, "x2": 7}  # of a schema of levels 0 to 10


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployed]:
    with deployed(tmp_path, numbers_database(30, 3), 2) as made:
        yield made


def replaced(made: Deployed, monkeypatch: pytest.MonkeyPatch, levels: int) -> list[bytes]:
    """Let both servers have a newer offer too, and refuse the first one from its first question on.

    Return the digests of the terms of all questions.
    """
    other, asked, first = numbers_database(31, 3, levels).sign(made.issuer), list[bytes](), made.issued.digest
    deployment = type(made.deployment).of(other.schema, record=other.record, scheme="table/differences")
    keys = [key.public for key in made.own]
    terms = make_terms(other, deployment, keys=keys, service="tests", begins=int(time.time()))
    epochs = [made.servers[0].epoch, make_epoch(other, sign_terms(terms, made.urls, made.issuer), deployment)]
    admit = Server.admit

    def admitting(self: Server, head: bytes, length: int, kind: Any) -> Any:
        asked.append(decode_head(head, length, kind)[0].terms)
        if asked[-1] == first:
            raise Refused("other_terms", "the request was made for other terms than these")
        return admit(self, head, length, kind)

    def shown(offers: Offers) -> Any:
        return lambda: [offer for offer in offers.all if (offer.epoch.issued.digest == first) != bool(asked)]

    for server, own in zip(made.servers, made.own, strict=True):
        both = Server(server.number, epochs, keys=[CommonKey(made.common)], own=own, ledger=server.ledger)
        server.__dict__.update(_keys=both._keys, offers=both.offers, _common=both._common, _among=both._among)
        monkeypatch.setattr(server.offers, "shown", shown(server.offers))
    monkeypatch.setattr(Server, "admit", admitting)
    return asked


@pytest.mark.parametrize("person", [OUTSIDE, INSIDE])
def test_a_question_is_not_sent_again_under_another_schema(
    person: dict[str, int], made: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: it was sent again if the person had a place in the new schema, and not if not."""
    asked = replaced(made, monkeypatch, levels=10)
    with Client(made.urls, patience=0.2) as client, pytest.raises(ServerFault) as fault:
        client.ask(person, ticket=made.ticket())
    assert fault.value.code == "other_terms"
    assert set(asked) == {made.issued.digest}


def test_a_question_is_sent_again_under_new_data_with_the_same_schema(
    made: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replaced(made, monkeypatch, levels=20)
    with Client(made.urls, patience=0.2) as client:
        assert isinstance(client.ask(OUTSIDE, ticket=made.ticket()), Counterfactual)
    assert len(set(asked)) == 2


def test_every_question_waits_for_the_public_step(made: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: whoever connected first and asked later showed how long the question took to compile.

    Broken: whoever asked twice showed how long the first answer took to explain.
    """
    waited = list[float]()

    async def noting(began: float, step: float) -> None:
        waited.append(began)
        await settle(began, step)

    monkeypatch.setattr(module, "settle", noting)
    with Client(made.urls) as client:
        connected = time.monotonic()
        client.ask(INSIDE, ticket=made.ticket())
        explained = time.monotonic()
        client.ask(INSIDE, ticket=made.ticket())
    assert len(waited) == 2
    assert waited[0] < connected < waited[1] < explained
