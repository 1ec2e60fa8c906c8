"""One ticket gives one row, whatever is asked: mixtures of records, rotated keys, other terms, replayed tickets.

Broken in 2026-11: records were not packaged, and one ticket gave several rows (a record and x⁴ times another came back
in separate nibbles). With a new common key and the same ledger, one ticket gave ten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from counterveil import Client
from counterveil.algebra.gf256 import PRODUCTS
from counterveil.crypto.keys import SIGNATURE_BYTES, is_signed
from counterveil.crypto.packages import unpackage
from counterveil.crypto.randomness import new_key
from counterveil.errors import Refused, ServerFault
from counterveil.schema.layouts import layout
from counterveil.schemes.fetch import Spir
from counterveil.service.ledger import MOST_SERVED
from counterveil.service.server import Server
from counterveil.terms import wire
from counterveil.terms.published import make_terms, sign_terms
from deployed import Deployed, deployed, record_step
from service import numbers_database

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "two servers": {"servers": 2},
    "three servers": {"servers": 3, "scheme": "weighted/distances"},
    "two of three collude": {"servers": 3, "collusion": 2},
    "robust": {"servers": 4, "robust": 1},
}


def mixtures(made: Deployed, spir: Spir, pair: tuple[int, int], robust: int) -> list[bytes]:
    """Ask for mixtures of two records in every way that a cheat can; return what comes back, one ticket each."""
    count = len(made.database.codes)
    among = tuple(range(1, spir.servers + 1))
    made_up: list[list[bytes]] = []
    if hasattr(spir, "parts"):
        noise = np.random.default_rng(1).integers(0, 2, count * spir.parts, dtype=np.uint8)
        queries = [noise.copy() for _ in among]
        for j in range(spir.parts):  # part j of both records at once
            for row in pair:
                queries[j][row * spir.parts + j] ^= 1
        made_up.append([np.packbits(q, bitorder="little").tobytes() for q in queries])
        crossed = [noise.copy() for _ in among]
        for j in range(spir.parts):  # every other part from the other record
            crossed[j][pair[j % 2] * spir.parts + j] ^= 1
        if spir.parts > 1:  # with one part this is an honest query
            made_up.append([np.packbits(q, bitorder="little").tobytes() for q in crossed])
    else:
        for factor in (16, 2, 255):  # 1 at one row and a factor at the other, the same at every server
            vector = np.zeros(count, dtype=np.uint8)
            vector[pair[0]], vector[pair[1]] = 1, factor
            made_up.append([vector.tobytes() for _ in among])
    found = []
    for bodies in made_up:
        ticket, answers = made.ticket(robust=robust, servers=list(range(1, len(made.servers) + 1))), []
        made.ask_nothing(ticket, among)
        for n, body in zip(among, bodies, strict=True):
            request = made.request("record-query", n, ticket, 1, among, body)
            reply = wire.decode_reply(made.servers[n - 1].record(wire.encode(request)).whole(), "record-answer")
            answers.append(np.frombuffer(reply.body, dtype=np.uint8))
        found.append(spir.recover(answers))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_of_records_is_worth_nothing(kind: str, tmp_path: Path) -> None:
    """What comes back is a mixture of packages; no part of it, opened in any way, is a part of a record."""
    options = dict(KINDS[kind])
    liars = options.get("robust", 0)
    database = numbers_database(40, 6, levels=15)
    width = layout(database.schema, "row").itemsize
    with deployed(tmp_path, database, **{"scheme": "table/distances"} | options) as made:
        spir = record_step(made.servers[0], liars)
        records, packages = made.database.records, made.database.served
        rows = {record.tobytes() for record in records}
        public, digest = made.issuer.public, bytes.fromhex(made.database.digest)
        for pair in ((0, 1), (3, 20), (5, 39)):
            for mixed in mixtures(made, spir, pair, liars):
                opened = unpackage(mixed)
                assert not is_signed(public, opened[-SIGNATURE_BYTES:], "record", digest, opened[:width])
                assert opened[:width] not in rows
                for factor in (1, 16, 255):  # taken apart by hand, as the nibbles were
                    scaled = PRODUCTS[factor, np.frombuffer(mixed, dtype=np.uint8)]
                    for row in pair:
                        agree = np.unpackbits(scaled[:width] ^ records[row]).mean()
                        assert agree == pytest.approx(0.5, abs=0.2)
        control = unpackage(packages[5].tobytes())  # an honest one opens
        assert control[:width] == records[5].tobytes()
        assert is_signed(public, control[width:], "record", digest, control[:width])


def test_the_control_unpackaged_records_come_apart() -> None:
    """The control: records of small numbers that are not packaged can both be read from the same mixture."""
    generator = np.random.default_rng(3)
    a, b = generator.integers(0, 16, (2, 12), dtype=np.uint8)
    mixed = a ^ PRODUCTS[16, b]
    assert np.array_equal(mixed & 15, a)
    assert np.array_equal(mixed >> 4, b)


@pytest.mark.parametrize("reveal", ["sealed", "differences"])
def test_no_record_before_its_question_and_none_for_another(reveal: str, tmp_path: Path) -> None:
    """A record before a made-up question gave a bit more than one row, and another server could use up the ticket."""
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme=f"table/{reveal}") as made:
        ticket, first = made.ticket(), made.servers[0]
        positions = first.epoch.deployment.scheme.protocol.positions(30)
        body = bytes(record_step(first).query_bytes(positions))
        record = made.request("record-query", 1, ticket, 1, (1, 2), body)
        with pytest.raises(Refused) as refused:
            first.record(wire.encode(record))
        assert refused.value.code == "question_first"
        made.ask_nothing(ticket, [1, 2])
        with pytest.raises(Refused) as refused:  # from somebody who has the ticket, but not the secret
            first.record(wire.encode(_with(record, secret=new_key())))
        assert refused.value.code == "ticket_used"
        assert first.record(wire.encode(record)).whole()  # the applicant's own still works


def rotated(made: Deployed, n: int, key: bytes) -> Server:
    """The same server with the same ledger after its common key was changed."""
    old = made.servers[n - 1]
    return Server.open(n, made.database, made.issued, key=key, own=made.own[n - 1], ledger=old.ledger)


@pytest.mark.parametrize("reveal", ["sealed", "differences"])
def test_a_new_common_key_revives_no_ticket(reveal: str, tmp_path: Path) -> None:
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme=f"table/{reveal}") as made:
        sent: list[wire.Request] = []
        with Client(made.urls, watch=lambda _, request, __: sent.append(request)) as client:
            client.ask({"x0": 3, "x1": 9, "x2": 14}, ticket=made.ticket())
        scheme = made.deployment.scheme
        for _ in range(3):
            key = new_key()
            for n in (1, 2):
                server = rotated(made, n, key)
                own = [request for request in sent if request.server == n]
                for request in own:  # the same bytes name the old key
                    ask = server.answer if request.kind == "query" else server.record
                    with pytest.raises(Refused) as refused:
                        ask(wire.encode(request))
                    assert refused.value.code == "other_key"
                    named = wire.encode(_with(request, key=bytes.fromhex(server.manifest.key)))
                    with pytest.raises(Refused) as refused:  # other bytes are another request
                        ask(named)
                    assert refused.value.code == "ticket_used"
        assert made.servers[0].epoch.deployment.scheme == scheme


def test_a_rotation_between_question_and_record_is_an_error_and_not_a_wrong_row(tmp_path: Path) -> None:
    """Broken: 40 of 40 were shown a wrong row as the nearest."""
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme="table/differences") as made:
        key, servers, answered = new_key(), list(made.servers), set[int]()

        def rotate(_: Any, request: wire.Request, __: Any) -> None:
            answered.add(request.server)
            if request.kind == "query" and len(answered) == 2:
                for n, server in enumerate(servers, start=1):
                    fresh = rotated(made, n, key)
                    server.__dict__.update(_keys=fresh._keys, offers=fresh.offers, _common=fresh._common)

        with Client(made.urls, watch=rotate) as client:
            with pytest.raises(ServerFault) as fault:
                client.ask({"x0": 3, "x1": 9, "x2": 14}, ticket=made.ticket())
            assert fault.value.code == "other_key"


def test_a_ticket_is_spent_once_over_all_terms_of_a_service(tmp_path: Path) -> None:
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme="table/sealed") as made:
        ticket, sent = made.ticket(), list[wire.Request]()
        with Client(made.urls, watch=lambda _, request, __: sent.append(request)) as client:
            client.ask({"x0": 3, "x1": 9, "x2": 14}, ticket=ticket)
        other = numbers_database(31, 3).sign(made.issuer)
        keys = [key.public for key in made.own]
        terms = make_terms(other, made.deployment, keys=keys, service="tests")
        issued = sign_terms(terms, made.urls, made.issuer)
        assert issued.digest != made.issued.digest
        server = Server.open(1, other, issued, key=made.common, own=made.own[0], ledger=made.servers[0].ledger)
        request = next(r for r in sent if r.server == 1 and r.kind == "query")
        with pytest.raises(Refused) as refused:
            server.answer(wire.encode(request))
        assert refused.value.code == "other_terms"
        with pytest.raises(Refused) as refused:
            server.answer(wire.encode(_with(request, terms=issued.digest)))
        assert refused.value.code == "ticket_used"


def test_a_ticket_for_less_gets_no_more(tmp_path: Path) -> None:
    """A ticket of a sealed service is refused where every cost is shown, with the same issuer and service."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    database = numbers_database(30, 3)
    with (
        deployed(tmp_path / "a", database, 2, scheme="table/sealed") as sealed,
        deployed(tmp_path / "b", database, 2, scheme="table/distances") as opened,
    ):
        opened.issuer = sealed.issuer
        opened.database = sealed.database
        terms = make_terms(sealed.database, opened.deployment, keys=[key.public for key in opened.own], service="tests")
        issued = sign_terms(terms, opened.urls, sealed.issuer)
        server = Server.open(
            1, sealed.database, issued, key=opened.common, own=opened.own[0], ledger=opened.servers[0].ledger
        )
        scheme = opened.deployment.scheme
        body = bytes(scheme.field.packed(scheme.symbols))
        digest, key = issued.digest, bytes.fromhex(server.manifest.key)
        request = wire.Request(2, "query", 1, digest, key, sealed.ticket().encode(), 0, (1, 2), new_key(), body)
        with pytest.raises(Refused, match="the ticket lets servers reveal 'sealed, shuffled'"):
            server.answer(wire.encode(request))


def test_a_request_is_served_so_often_and_no_more(tmp_path: Path) -> None:
    with deployed(tmp_path, numbers_database(10, 2), 2, scheme="table/differences") as made:
        scheme = made.deployment.scheme
        body = bytes(scheme.field.packed(scheme.symbols))
        request = wire.encode(made.request("query", 1, made.ticket(), 0, (1, 2), body))
        first = made.servers[0].answer(request).whole()
        for _ in range(MOST_SERVED - 1):
            assert made.servers[0].answer(request).whole() == first
        with pytest.raises(Refused) as refused:
            made.servers[0].answer(request)
        assert refused.value.code == "too_often"


def _with(request: wire.Request, **changes: Any) -> wire.Request:
    return msgspec.structs.replace(request, **changes)
