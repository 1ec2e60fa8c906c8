"""Write `vectors/`, all but `randomness.json`: `python tests/make_vectors.py`.

They are made once and then hold: a change of the protocol is a change of these files, and of the version.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from counterveil import (
    Boolean,
    Categorical,
    Database,
    Deployment,
    Numeric,
    Ordinal,
    Preferences,
    Question,
    Schema,
    make_scheme,
    run,
)
from counterveil.algebra.field import Field
from counterveil.applicant.ask import compile_question
from counterveil.applicant.conversation import Conversation
from counterveil.applicant.offer import Offer
from counterveil.applicant.runs import Do, Line
from counterveil.crypto.garbling import Garbler, hashed, tweaks
from counterveil.crypto.keys import Issuer, SigningKey
from counterveil.crypto.packages import unpackage
from counterveil.crypto.randomness import keystream, uniform
from counterveil.errors import ServerFault, WrongShape
from counterveil.inprocess.linked import Dealer, Wires
from counterveil.institution.bundle import Counts
from counterveil.schema.boxes import Interval, any_interval, family, words
from counterveil.schema.frames import Columns
from counterveil.schema.layouts import encode
from counterveil.schemes.fetch import make_spir
from counterveil.schemes.protocols import circuit
from counterveil.schemes.protocols.garbled import _Garbler
from counterveil.schemes.scheme import nearest
from counterveil.service.ledger import Ledger, MemoryLedger
from counterveil.service.server import Server
from counterveil.terms import wire
from counterveil.terms.agreement import Peer
from counterveil.terms.parameters import Certificate
from counterveil.terms.published import make_terms, sign_terms
from counterveil.terms.wire import Claims, Reply, Request, SignedTerms, Ticket
from form_vectors import forms
from joint_vectors import joint
from offer_vectors import offers
from receipt_vectors import made as receipts

FOLDER = Path(__file__).parent.parent / "vectors"
NOW = 1_800_000_000
PRIVATE, COMMON = bytes(range(32)), bytes(range(32, 64))
OWN = [bytes(range(64, 96)), bytes(range(96, 128))]
ADDRESSES = ("https://one.example", "https://two.example")
DATA = {
    "income": [1000, 2000, 3000, 4000, 2500],
    "job": ["clerk", "cook", "clerk", "driver", "cook"],
    "school": ["none", "basic", "higher", "basic", "higher"],
    "owner": [False, True, True, False, True],
    "ok": [True] * 5,
}
OPENED = "table/differences"  # where a vector names no other scheme
PERSON = {"income": 2000, "job": "driver", "school": "basic", "owner": False}
PREFERENCES: dict[str, Any] = {"immutable": ["owner"], "weights": {"job": 3}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "differences": {},
    "three records, apart where they can be": {"k": 3, "spread": 3.5},
    "any two of three servers collude": {"scheme": "table/distances", "servers": 3, "collusion": 2},
    "one of four servers lies": {"servers": 4, "collusion": 1, "robust": 1},
    "sealed": {"scheme": "table/sealed"},
    "sealed, the record inside": {"scheme": "table/sealed_record"},
    "sealed, one of three servers lies": {"scheme": "table/sealed", "servers": 3, "collusion": 1, "robust": 1},
    "joint, dealt by the applicant": {"scheme": "table/sealed", "protocol": "joint"},
    "joint, three records": {"scheme": "table/sealed", "protocol": "joint", "k": 3},
    "joint, dealt by a server": {"scheme": "table/sealed", "protocol": "joint", "dealer": "server"},
    "joint, an attempt that broke off": {"scheme": "table/sealed", "protocol": "joint", "breaks": True},
    "joint, one of three servers lies": {
        "scheme": "table/sealed",
        "protocol": "joint",
        "servers": 3,
        "collusion": 1,
        "robust": 1,
    },
}


REGIONS: dict[str, dict[str, Any]] = {
    "regions": {"options": {"form": {"unit": 16}, "record": {"model": "5e" * 32}}},
    "sealed regions": {
        "scheme": "table/sealed",
        "options": {"form": {"unit": 20}, "record": {"model": "5e" * 32, "intervals": True}},
    },
}


def schema() -> Schema:
    return Schema(
        features=(
            Numeric(name="income", low=0, high=5000, step=500, unit="€", mad=500.0),
            Categorical(name="job", values=("clerk", "cook", "driver")),
            Ordinal(name="school", values=("none", "basic", "higher")),
            Boolean(name="owner"),
        )
    )


class Pads:
    """The applicant's randomness, recorded: for vectors alone."""

    def __init__(self, seed: int) -> None:
        self._read = keystream(hashlib.sha256(b"vectors %d" % seed).digest())

    def elements(self, q: int, count: int) -> Any:
        return uniform(self._read, q, count)


def issuer() -> Issuer:
    return Issuer(Ed25519PrivateKey.from_private_bytes(PRIVATE))


def own(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(OWN[number - 1]))


def database() -> Database:
    return Database.build(DATA, schema(), accepted="ok").sign(issuer())


def regions() -> Database:
    """Return five regions of the same features; a region says nothing of how it was found."""
    found = [  # lowest and highest income, jobs, lowest and highest school, lowest and highest owner
        [6, 10, 6, 0, 2, 0, 1],
        [3, 10, 0, 1, 2, 0, 1],
        [5, 7, 3, 2, 2, 1, 1],
        [0, 4, 2, 0, 1, 0, 0],
        [9, 9, 4, 1, 1, 0, 0],
    ]
    codes = np.array(sorted(found), dtype=np.uint8)
    counts = Counts(seen=9, accepted=7, too_rare=0, duplicates=0, rows=len(codes))
    served = encode(schema(), "region", codes, Columns(DATA))
    bare = Database(
        schema=schema(), record="region", min_cell=1, counts=counts, codes=codes, served=served,
        certificate=Certificate("5e" * 32),
    )  # fmt: skip
    return bare.sign(issuer())


def sets() -> list[dict[str, Any]]:
    """Return sets of levels of several features: their codes, their words, and what they cost one applicant."""
    features = (
        Numeric(name="months", low=0, high=48, step=6, unit="months", missing="level"),
        Numeric(name="rate", low=0, high=1, levels=8, format=".1f"),
        Ordinal(name="rank", values=("low", "middle", "top")),
        Categorical(name="town", values=("Ulm", "Bonn", "Kiel", "Trier"), missing="level"),
        Categorical(name="trade", values=tuple(f"trade {n}" for n in range(10))),
        Boolean(name="owner", missing="level"),
    )
    made = []
    for feature in features:
        own = family(feature)
        every = list(product(*(range(largest + 1) for largest in own.largest)))
        good = [codes for codes in every if not isinstance(own, Interval) or _is_interval(own, codes)]
        at = feature.steps // 2
        levels = [abs(level - at) * 3 if level <= feature.steps else 40 for level in range(feature.largest + 1)]
        tables = own.tables(np.array(levels)) or []
        made.append(
            {
                "feature": json.loads(json.dumps(Schema(features=(feature,)).to_builtins()))["feature"][0],
                "largest": list(own.largest),
                "sets": [[list(c), words(feature, own.members(c))] for c in good],
                "refused": [list(c) for c in every if c not in good],
                "costs": levels,
                "tables": [table.tolist() for table in tables],
                "every interval": any_interval(feature).tables(np.array(levels))[0].tolist() if feature.ordered else [],
            }
        )
    return made


def _is_interval(own: Interval, codes: tuple[int, ...]) -> bool:
    try:
        return bool(own.members(codes).any())
    except WrongShape:
        return False


def issued(addresses: tuple[str, ...] = ADDRESSES, **changes: Any) -> SignedTerms:
    held = database()
    deployment = Deployment.of(held.schema, scheme=OPENED, record=held.record)
    keys = [own(n).public for n in (1, 2)]
    return sign_terms(make_terms(held, deployment, keys=keys, service="vectors", **changes), addresses, issuer())


def server(number: int, ledger: Ledger, addresses: tuple[str, ...] = ADDRESSES, key: bytes = COMMON) -> Server:
    return Server.open(
        number, database(), issued(addresses), key=key, own=own(number), ledger=ledger, clock=lambda: NOW
    )


def new_ledger(path: Path, number: int) -> Ledger:
    """Return a new ledger with a known id."""
    Ledger(path, number, new=True, clock=lambda: NOW).close()
    with closing(sqlite3.connect(path)) as file:
        for table in ("about", "origin"):
            file.execute(f"UPDATE {table} SET instance = ?", (bytes([number] * 16),))  # noqa: S608
        file.commit()
    return Ledger(path, number, clock=lambda: NOW)


def ticket(server: Server, number: int, **changes: Any) -> Ticket:
    """Return a ticket with a known id."""
    claims = Claims(2, bytes([number] * 16), NOW + 3600, "vectors", (1, 2), "differences, shuffled", 0, 1)
    signed = wire.encode_claims(msgspec.structs.replace(claims, **changes))
    return Ticket(msgspec.structs.replace(claims, **changes), signed, issuer().sign("ticket", signed))


def request(server: Server, kind: wire.RequestKind, number: int, good: Ticket, at: int, body: bytes) -> Request:
    """Return a request with a known secret."""
    manifest = server.manifest
    secret = hashlib.sha256(b"secret %d" % number).digest()
    key = bytes.fromhex(manifest.key)
    return Request(2, kind, number, manifest.issued.digest, key, good.encode(), at, (1, 2), secret, body)


def packing() -> list[dict[str, Any]]:
    cases = []
    for q in (2, 3, 251, 257, 809, 65537, 2**31 - 1, 4294967311, 2**61 - 1):
        field = Field(q)
        values = [0, 1, q - 1, q // 2, q // 3, 1, 0, q - 1, q - 2]
        cases.append({"q": str(q), "values": list(map(str, values)), "hex": wire.pack(field, np.array(values)).hex()})
    return cases


def bad_packing() -> list[dict[str, Any]]:
    return [
        {"why": "a symbol of q", "q": "251", "count": 1, "hex": "fb"},
        {"why": "too short", "q": "257", "count": 2, "hex": "ffff"},
        {"why": "too long", "q": "251", "count": 1, "hex": "0000"},
        {"why": "bits after the last symbol", "q": "3", "count": 1, "hex": "04"},
        {"why": "nothing", "q": "3", "count": 1, "hex": ""},
    ]


def messages(first: Server) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    good_ticket = ticket(first, 1)
    message = request(first, "query", 1, good_ticket, 0, b"\x01\x02\x03")
    good: list[Request | Reply] = [message, msgspec.structs.replace(message, kind="record-query", request=1)]
    good += [
        Reply(2, "answer", 2, bytes(16), 0, (1, 2), b""),
        Reply(2, "record-answer", 64, bytes(16), 255, (64,), b""),
    ]
    whole = wire.encode(message)
    fields = msgspec.msgpack.decode(whole)

    def other(place: int, value: Any) -> bytes:
        return msgspec.msgpack.encode([*fields[:place], value, *fields[place + 1 :]])

    bad = {
        "nothing": b"",
        "cut short": whole[:-1],
        "a byte more": whole + b"\0",
        "version 1": other(0, 1),
        "version as text": other(0, "2"),
        "an unknown kind": other(1, "sealed"),
        "server 0": other(2, 0),
        "server 65": other(2, 65),
        "a digest of 31 bytes": other(3, bytes(31)),
        "a key id of 17 bytes": other(4, bytes(17)),
        "a ticket as text": other(5, "ticket"),
        "a ticket of 513 bytes": other(5, bytes(513)),
        "request 256": other(6, 256),
        "request -1": other(6, -1),
        "no servers": other(7, []),
        "servers in disorder": other(7, [2, 1]),
        "a server twice": other(7, [1, 1]),
        "a secret of 31 bytes": other(8, bytes(31)),
        "no secret": other(8, b""),
        "a body as text": other(9, "body"),
        "a field too few": msgspec.msgpack.encode(fields[:-1]),
        "a field too many": msgspec.msgpack.encode([*fields, 0]),
        "a map": msgspec.msgpack.encode({"version": 2}),
        "a number written longer than needed": whole.replace(b"\x02\xa5query", b"\xcc\x02\xa5query"),
        "an array written longer than needed": b"\xdc\x00\x0a" + whole[1:],
    }
    shown = [
        {
            "kind": m.kind,
            "server": m.server,
            "ticket": m.ticket.hex(),
            "request": m.request,
            "among": list(m.among),
            "body": m.body.hex(),
            "hex": wire.encode(m).hex(),
        }
        | ({"terms": m.terms.hex(), "key": m.key.hex(), "secret": m.secret.hex()} if isinstance(m, Request) else {})
        for m in good
    ]
    return shown, [{"why": why, "hex": data.hex()} for why, data in bad.items()]


def tickets(first: Server) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shown = [
        {
            "id": t.claims.id.hex(),
            "expires": t.claims.expires,
            "service": t.claims.service,
            "servers": list(t.claims.servers),
            "reveal": t.claims.reveal,
            "liars": t.claims.robust,
            "k": t.claims.k,
            "signature": t.signature.hex(),
            "text": t.text(),
        }
        for t in (ticket(first, 1), ticket(first, 2, servers=(1, 3, 4, 7), robust=1, k=5, expires=2**53 - 1))
    ]
    text = ticket(first, 1).text()
    bad = {"nothing": "", "other letters": text[:-1] + "!", "cut short": text[:-4], "more": text + "AAAA"}
    short = msgspec.msgpack.encode(
        [msgspec.msgpack.encode([2, bytes(15), NOW, "vectors", [1, 2], "sealed", 0, 1]), bytes(64)]
    )
    bad["an id of 15 bytes"] = Ticket.text(Encoded(short))  # type: ignore[arg-type]
    return shown, [{"why": why, "text": data} for why, data in bad.items()]


class Encoded:
    """Bytes that `Ticket.text` can write."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def encode(self) -> bytes:
        return self.data


def conversation(servers: list[Server]) -> dict[str, Any]:
    """Return one whole question, all bytes of it, and requests that must be refused after it."""
    deployment = Deployment.of(schema(), scheme=OPENED)
    scheme = deployment.scheme
    question, _ = compile_question(deployment, deployment.schema.codes(PERSON), Preferences(**PREFERENCES))
    good = ticket(servers[0], 7)
    queries = scheme.query(question, Pads(1))
    first = servers[0]
    asked = [request(first, "query", n, good, 0, wire.pack(scheme.field, q)) for n, q in enumerate(queries, 1)]
    replies = [s.answer(wire.encode(m)).whole() for s, m in zip(servers, asked, strict=True)]
    answers = [wire.unpack("answer", scheme.field, wire.decode_reply(r, "answer").body, 4) for r in replies]
    found = scheme.recover(question, queries, answers, 5)
    revealed, position = found.revealed, scheme.protocol.candidates(scheme, found, partial(nearest, 1))[0]
    spir = make_spir(servers=2, collusion=1, length=servers[0].epoch.records.length)
    wanted = [
        request(first, "record-query", n, good, 1, q.tobytes())
        for n, q in enumerate(spir.query(5, position, Pads(2)), 1)
    ]
    records = [s.record(wire.encode(m)).whole() for s, m in zip(servers, wanted, strict=True)]
    parts = [np.frombuffer(wire.decode_reply(r, "record-answer").body, dtype=np.uint8) for r in records]

    def refused(code: str, why: str, message: Request, path: str = "/v1/answer") -> dict[str, str]:
        return {"why": why, "code": code, "path": path, "hex": wire.encode(message).hex()}

    change = msgspec.structs.replace
    query, record = asked[0], wanted[0]

    def with_ticket(message: Request, **changes: Any) -> Request:
        return change(message, ticket=ticket(servers[0], 8, **changes).encode())

    forged = change(good, signature=bytes(64))
    refusals = [
        refused("ticket_used", "another question on a used ticket", change(query, body=asked[1].body)),
        refused("ticket_used", "another record on a used ticket", change(record, body=wanted[1].body), "/v1/record"),
        refused("ticket_forged", "a signature of zeros", change(query, ticket=forged.encode())),
        refused("ticket_expired", "an hour ago", with_ticket(query, expires=NOW - 3600)),
        refused("ticket_expired", "this very second", with_ticket(query, expires=NOW)),
        refused("ticket_used", "the same question with another secret", change(query, secret=bytes(32))),
        refused("other_terms", "a stale digest", change(query, terms=bytes(32))),
        refused("other_key", "a common key that was rotated", change(query, key=bytes(16))),
        refused("ticket_for_another_service", "a ticket of another service", with_ticket(query, service="other")),
        refused("ticket_not_offered", "a ticket for less", with_ticket(query, reveal="sealed, shuffled")),
        refused("ticket_not_offered", "two records", with_ticket(query, k=2)),
        refused("ticket_not_offered", "corrections", with_ticket(query, robust=1)),
        refused(
            "ticket_for_other_servers", "a ticket for server 2 alone",
            with_ticket(query, servers=(2,)),
        ),
        refused("wrong_server", "a message to server 2", asked[1]),
        refused("malformed", "a byte too few", change(with_ticket(query), body=query.body[:-1])),
        refused(
            "malformed", "symbols of q or more",
            change(with_ticket(query), body=b"\xff" * len(query.body)),
        ),
        refused("question_first", "a record before its question", with_ticket(record), "/v1/record"),
        refused("malformed", "a record as a question", with_ticket(record)),
        refused("malformed", "a question as a record", with_ticket(query), "/v1/record"),
        refused(
            "malformed", "record 2 of 1", change(with_ticket(record), request=2), "/v1/record"
        ),
        refused(
            "malformed", "a bit after the last", change(with_ticket(record), body=b"\xe0"),
            "/v1/record",
        ),
    ]  # fmt: skip
    return {
        "person": PERSON,
        "preferences": PREFERENCES,
        "ticket": good.text(),
        "symbols": [[str(v) for v in q] for q in queries],
        "queries": [wire.encode(m).hex() for m in asked],
        "answers": [r.hex() for r in replies],
        "revealed": [str(v) for v in revealed],
        "position": position,
        "record_queries": [wire.encode(m).hex() for m in wanted],
        "record_answers": [r.hex() for r in records],
        "package": spir.recover(parts).hex(),
        "record": unpackage(spir.recover(parts)).hex(),
        "refused_by_server_1": refusals,
    }


def label(text: str) -> Any:
    raw = hashlib.sha256(text.encode()).digest()[:16]
    return np.frombuffer(bytearray(raw), dtype="<u8").reshape(1, 1, 2)


def hex_of(labels: Any) -> str:
    return bytes(labels.astype("<u8").tobytes()).hex()


def garbled(script: Any) -> tuple[Any, Any]:
    """Run a script over gates that are made; return what it comes to, and the bytes that were sent."""
    sent = []
    try:
        while True:
            sent.append(next(script).symbols)
    except StopIteration as end:
        return end.value, np.concatenate(sent)


def sealed() -> dict[str, Any]:
    """The hash, one gate, an adder of three bits, and the least of five: every label is a hash of a name."""
    delta = label("delta") | np.array([1, 0], dtype=np.uint64)
    a, b = label("a"), label("b")
    gates = Garbler(delta[0, 0])
    out, made = gates.both(a, b, 7, 5)
    gate = {"step": 7, "row": 5, "delta": hex_of(delta), "a0": hex_of(a), "b0": hex_of(b), "out0": hex_of(out),
            "tables": [made[:16].tobytes().hex(), made[16:].tobytes().hex()]}  # fmt: skip
    u, v = (np.concatenate([label(f"{name}{i}") for i in range(3)]) for name in "uv")
    total, sent = garbled(circuit.add(_Garbler(delta[0, 0]), u, v, 3))
    adder = {"start": 3, "delta": hex_of(delta), "u0": [hex_of(w) for w in u], "v0": [hex_of(w) for w in v],
             "sum0": [hex_of(w) for w in total],
             "tables": [sent[at : at + 16].tobytes().hex() for at in range(0, len(sent), 16)]}  # fmt: skip
    costs = [9, 4, 11, 2, 7]
    scheme = make_scheme("table/sealed_record", largest=4, d=1, cap=15)
    records = np.frombuffer(b"".join(b"record %d" % i for i in range(5)), dtype=np.uint8).reshape(5, 8)
    common = scheme.common(COMMON, bytes(32), b"vectors")
    played = run(scheme, np.arange(5)[:, None], Question(costs=[costs]), randomness=Pads(9), common=common,
                 records=records)  # fmt: skip
    least = {"costs": costs, "bits": scheme.field.bits, "record_bytes": 8, "position": played.position,
             "record": (played.record or b"").hex(), "answers": [a.tobytes().hex() for a in played.answers],
             "order": np.asarray(scheme.protocol.order(scheme, 5, common)).tolist()}  # fmt: skip
    hashes = []
    for name, step, row in (("x", 0, 0), ("x", 0, 1), ("x", 1, 0), ("y", 2**40, 12345)):
        tweak = tweaks(step, 1, row, 1)
        hashes.append({"x": hex_of(label(name)), "tweak": hex_of(tweak), "hash": hex_of(hashed(label(name), tweak))})
    return {"key": "counterveil seal", "hash": hashes, "gate": gate, "adder": adder, "least": least}


class Recorded:
    """Pads, and a note of everything that was drawn of them."""

    def __init__(self, seed: int) -> None:
        self._pads, self.drawn = Pads(seed), list[dict[str, str]]()

    def elements(self, q: int, count: int) -> Any:
        values = self._pads.elements(q, count)
        self.drawn.append({"q": str(q), "values": " ".join(map(str, values))})
        return values


class Carrier:
    """Carries messages to real servers. Server 3 lies, if any may; the first attempt breaks off, if `breaks`."""

    def __init__(self, servers: list[Server], *, robust: int, breaks: bool) -> None:
        self._servers = {server.number: server for server in servers}
        self._scheme, self._robust, self._breaks = servers[0].epoch.deployment.scheme, robust, breaks
        self._wires, self._dealer = Wires(self._servers), None
        if self._scheme.protocol.dealt_by == "dealer":
            self._dealer = Dealer(self._scheme.among((1, 2)), servers[0].epoch.size, Pads(99))

    def replies(self, sent: dict[Line, tuple[Request, bytes]]) -> dict[Line, bytes | str | None]:
        """Return the reply to each message, or the code of a refusal, None if nothing came back."""
        if self._scheme.protocol.linked:
            return self._together(sent)
        return {line: self._alone(line, message) for line, (message, _) in sent.items()}

    def _alone(self, line: Line, message: Request) -> bytes:
        lies = self._robust and line[:2] == (3, 0)
        if lies and self._scheme.protocol.pairs:
            message = msgspec.structs.replace(message, body=_altered(message.body, len(message.body)))
        reply = self._servers[line.server].turn(wire.encode(message), message.kind).answered().whole()
        return _lied(reply, self._scheme.field) if lies and not self._scheme.protocol.pairs else reply

    def _together(self, sent: dict[Line, tuple[Request, bytes]]) -> dict[Line, bytes | str | None]:
        asked, attempts = {}, {}
        query = self._scheme.field.packed(self._scheme.symbols)
        for line, (message, body) in sent.items():
            body = _altered(body, query) if self._robust and line.server == 3 else body
            whole = wire.head(message, len(body)) + body
            asked[line] = made = self._servers[line.server].asked(whole[: wire.ENVELOPE], len(whole), self._dealer)
            if made.kind == "collect":
                attempts[line] = self._wires._attempts[line.server].collect(made.run, made.seat, made.entry, [])
            else:
                attempts[line] = made.join(np.frombuffer(whole, dtype=np.uint8))
                self._wires.start(line.server, attempts[line])
        if self._breaks:
            self._break_off()
        self._wires.deliver()
        replies: dict[Line, bytes | str | None] = {}
        for line, attempt in attempts.items():
            self._wires.drop(line.server, attempt)
            is_lost = self._breaks and line.server == 1
            refused = None if is_lost or attempt.refusal is None else attempt.refusal.code
            replies[line] = refused if attempt.reply is None else asked[line].reply + attempt.reply
        self._breaks = False
        return replies

    def _break_off(self) -> None:
        """Deliver the first frames, then break the connection; the answer of server 1 is lost on its way as well."""
        wires = self._wires
        for _ in range(6):
            source, to, frame = wires._sent.popleft()
            wires._attempts[to].heard(wires._ends[to, source], frame)
        for (number, _), end in wires._ends.items():
            for begun in wires._attempts[number].runs():
                wires._attempts[number].lost(begun, end)
        wires._sent.clear()


def _altered(body: bytes, query: int) -> bytes:
    """Return a message as if somebody had asked another question: the first `query` bytes are others, the last kept."""
    return bytes(each ^ 0x55 for each in body[: query - 1]) + body[query - 1 :]


def effects(
    number: int,
    held: Database,
    *,
    k: int = 1,
    spread: float = 0.0,
    robust: int = 0,
    breaks: bool = False,
    person: dict[str, Any] = PERSON,
    preferences: dict[str, Any] = PREFERENCES,
    asked_of: tuple[int, ...] = (),
    **parameters: Any,
) -> dict[str, Any]:
    """Return one conversation with real servers: everything it does, in order, what comes back, and what it comes to.

    The ticket is for the servers `asked_of`, by default for all.

    If servers may lie, the third does: it adds one to the first number of its answer. Where pairs of servers answer, it
    answers another question than it got.
    """
    signer = issuer()
    deployment = Deployment.of(held.schema, record=held.record, k=k, **{"scheme": OPENED} | parameters)
    numbers = range(1, deployment.scheme.servers + 1)
    own = [SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))) for n in numbers]
    addresses = tuple(f"https://server-{n}.example" for n in numbers)
    keys = [key.public for key in own]
    dealer = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([99] * 32))).public
    chosen: dict[str, Any] = {"dealer": dealer} if parameters.get("dealer") == "server" else {}
    terms = make_terms(held, deployment, keys=keys, service="vectors", robust=robust, **chosen)
    issued = sign_terms(terms, addresses, signer)
    servers = [
        Server.open(n, held, issued, key=COMMON, own=key, ledger=MemoryLedger(), clock=lambda: NOW)
        for n, key in enumerate(own, 1)
    ]
    reveal = issued.terms.parameters.reveal
    good = ticket(servers[0], number, servers=asked_of or tuple(numbers), reveal=reveal, robust=robust, k=k)
    question, costs = compile_question(deployment, held.schema.codes(person), Preferences(**preferences))
    pads, events = Recorded(number), list[dict[str, Any]]()
    asked = Conversation(Offer(issued, deployment, 0.0), good, question, spread=spread, randomness=pads)
    asked.meet([Peer(url, s.manifest, 0.0, None, None) for url, s in zip(addresses, servers, strict=True)])
    carrier = Carrier(servers, robust=robust, breaks=breaks)
    while {"what": "hang up"} not in events:
        todo, bodies = started(asked)
        events += [shown(do, bodies) for do in todo]
        sent = {do.line: (do.message, bodies[do.line]) for do in todo if do.line is not None and do.message is not None}
        for line, reply in carrier.replies(sent).items():
            events.append(_heard(line, reply))
            tell(asked, line, reply)
    seen = asked.result()
    codes = [record.codes.tolist() for record in asked.checked(costs)]
    return {
        "terms": issued.text,
        "addresses": addresses,
        "key": servers[0].manifest.key,
        "ticket": good.text(),
        "person": person,
        "preferences": preferences,
        "spread": spread,
        "drawn": pads.drawn,
        "events": events,
        "revealed": " ".join(map(str, seen.revealed)),
        "positions": seen.positions,
        "records": [record.hex() for record in seen.records],
        "honest": seen.honest,
        "codes": codes,
    } | ({"liars": asked.liars} if deployment.scheme.protocol.pairs and robust else {})


def started(asked: Conversation) -> tuple[list[Do], dict[Line, bytes]]:
    """Return what a conversation wants done, and the bodies that it makes while it sends them, run by run."""
    todo = list(asked.todo())
    bodies = {do.line: bytearray() for do in todo if do.line is not None}
    for number in sorted({line.run for line in bodies}):
        left = [line for line in bodies if line.run == number and asked.upload(line)]
        while left:
            for line in list(left):
                part = asked.more(line)
                if part is None:
                    left.remove(line)
                else:
                    bodies[line] += part
    return todo, {line: bytes(body) for line, body in bodies.items()}


def tell(asked: Conversation, line: Line, reply: bytes | str | None) -> None:
    """Tell a conversation what came back: a whole reply, or the code of a refusal."""
    if isinstance(reply, bytes):
        asked.heard(line, reply)
        asked.ended(line)
    else:
        asked.broke(line, ServerFault("a server", "refused", reply))


def _named(line: Line) -> dict[str, int]:
    return {"server": line.server, "request": line.request} | ({"run": line.run} if line.run else {})


def _heard(line: Line, reply: bytes | str | None) -> dict[str, Any]:
    if isinstance(reply, bytes):
        return {"what": "reply", **_named(line), "hex": reply.hex()}
    return {"what": "refusal", **_named(line), "code": reply}


def shown(do: Do, bodies: dict[Line, bytes]) -> dict[str, Any]:
    """Return what a conversation wants done, as the file has it."""
    if do.what == "wait":
        return {"what": do.what, "seconds": do.seconds}
    if do.line is None or do.message is None:
        return {"what": do.what}
    body = bodies[do.line]
    whole = wire.head(do.message, len(body)) + body if body else wire.encode(do.message)
    return {"what": do.what, **_named(do.line), "hex": whole.hex()}


def _lied(reply: bytes, field: Any) -> bytes:
    honest = wire.decode_reply(reply, "answer")
    values = wire.unpack("answer", field, honest.body, 4)
    values[0] = (values[0] + 1) % field.q
    return wire.encode(msgspec.structs.replace(honest, body=wire.pack(field, values)))


def make(ledgers: Path) -> dict[str, Any]:
    """Return all files."""
    servers = [server(n, new_ledger(ledgers / f"ledger-{n}", n)) for n in (1, 2)]
    good, bad = messages(servers[0])
    good_tickets, bad_tickets = tickets(servers[0])
    return {
        "wire.json": {
            "packing": packing(),
            "bad_packing": bad_packing(),
            "messages": good,
            "bad_messages": bad,
            "tickets": good_tickets,
            "bad_tickets": bad_tickets,
        },
        "service.json": {
            "now": NOW,
            "common_key": COMMON.hex(),
            "issuer_private_key": PRIVATE.hex(),
            "server_private_keys": [key.hex() for key in OWN],
            "data": DATA,
            "manifests": [json.loads(wire.encode_manifest(s.manifest)) for s in servers],
            "question": conversation(servers),
        },
        "offers.json": offers(issued, own),
        "sealed.json": sealed(),
        "joint.json": joint(),
        "receipts.json": receipts(),
        "conversation.json": {
            name: effects(n, database(), **parameters) for n, (name, parameters) in enumerate(CONVERSATIONS.items(), 11)
        },
        "regions.json": {
            "sets": sets(),
            "conversations": {
                name: effects(n, regions(), **parameters) for n, (name, parameters) in enumerate(REGIONS.items(), 41)
            },
        },
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for file, content in (make(Path(name)) | {"forms.json": forms(effects, issuer())}).items():
            (FOLDER / file).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
