"""Messages to bytes and back: vectors, good and bad, in Python and through HTTP; and whatever bytes a fuzzer finds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import make_vectors
from counterveil import Deployment, Preferences, Schema
from counterveil.algebra.field import Field
from counterveil.applicant.ask import compile_question
from counterveil.applicant.client import Client
from counterveil.crypto.keys import is_signed
from counterveil.crypto.packages import unpackage
from counterveil.errors import Malformed
from counterveil.schemes.fetch import make_spir
from counterveil.schemes.reveals import Opened
from counterveil.service.app import REFUSALS
from counterveil.terms import wire
from deployed import serving
from patience import LONG

VECTORS = Path(__file__).parent.parent / "vectors"
WIRE: dict[str, Any] = json.loads((VECTORS / "wire.json").read_text("utf-8"))
SERVICE: dict[str, Any] = json.loads((VECTORS / "service.json").read_text("utf-8"))
TERMS: dict[str, Any] = json.loads(SERVICE["manifests"][0]["issued"]["terms"])


def test_vectors_are_what_the_code_makes(tmp_path: Path) -> None:
    made = json.loads(json.dumps(make_vectors.make(tmp_path)))
    for manifest in (*made["service.json"]["manifests"], *SERVICE["manifests"]):
        manifest.pop("software", None)  # the release's own name, and what covers it
        manifest.pop("signature", None)
    assert made["wire.json"] == WIRE
    assert made["service.json"] == SERVICE


@pytest.mark.parametrize("case", WIRE["packing"], ids=lambda case: case["q"])
def test_packing_vectors(case: dict[str, Any]) -> None:
    field, values, data = Field(int(case["q"])), [int(v) for v in case["values"]], bytes.fromhex(case["hex"])
    assert wire.pack(field, np.array(values)) == data
    assert wire.unpack("vector", field, data, len(values)).tolist() == values
    bits = "".join(format(v, f"0{field.bits}b")[::-1] for v in values)  # an independent packing, bit by bit
    padded = bits + "0" * (-len(bits) % 8)
    assert bytes(int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8)) == data


@pytest.mark.parametrize("case", WIRE["bad_packing"], ids=lambda case: case["why"])
def test_bad_packing_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        wire.unpack("vector", Field(int(case["q"])), bytes.fromhex(case["hex"]), case["count"])


@pytest.mark.parametrize("case", WIRE["messages"], ids=lambda case: case["kind"])
def test_message_vectors(case: dict[str, Any]) -> None:
    decode: Any = wire.decode_request if "secret" in case else wire.decode_reply
    message = decode(bytes.fromhex(case["hex"]), case["kind"])
    assert (message.server, message.request, list(message.among)) == (case["server"], case["request"], case["among"])
    assert (message.ticket.hex(), message.body.hex()) == (case["ticket"], case["body"])
    if "secret" in case:
        assert (message.terms.hex(), message.key.hex()) == (case["terms"], case["key"])
        assert message.secret.hex() == case["secret"]
    assert wire.encode(message).hex() == case["hex"]
    other = {"query": "record-query", "record-query": "query", "answer": "record-answer", "record-answer": "answer"}
    with pytest.raises(Malformed, match="got the kind"):
        decode(bytes.fromhex(case["hex"]), other[case["kind"]])


@pytest.mark.parametrize("case", WIRE["bad_messages"], ids=lambda case: case["why"])
def test_bad_message_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        wire.decode_request(bytes.fromhex(case["hex"]), "query")


@pytest.mark.parametrize("case", WIRE["tickets"], ids=lambda case: case["id"])
def test_ticket_vectors(case: dict[str, Any]) -> None:
    ticket = wire.decode_ticket_text(case["text"])
    claims = ticket.claims
    assert (claims.id.hex(), claims.expires, claims.service) == (case["id"], case["expires"], case["service"])
    assert (list(claims.servers), claims.robust, claims.k) == (case["servers"], case["liars"], case["k"])
    assert claims.reveal == case["reveal"]
    public = bytes.fromhex(TERMS["issuer"])
    assert is_signed(public, bytes.fromhex(case["signature"]), "ticket", ticket.signed)
    assert not is_signed(public, bytes.fromhex(case["signature"]), "record", ticket.signed)
    assert ticket.text() == case["text"]


@pytest.mark.parametrize("case", WIRE["bad_tickets"], ids=lambda case: case["why"])
def test_bad_ticket_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        wire.decode_ticket_text(case["text"])


def test_the_recorded_question_in_python_and_through_http(tmp_path: Path) -> None:
    question = SERVICE["question"]
    made = [make_vectors.server(n, make_vectors.new_ledger(tmp_path / f"l{n}", n)) for n in (1, 2)]
    urls = [serving(server) for server in made]
    for kind, path in (("", "/v1/answer"), ("record_", "/v1/record")):
        queries = question["queries" if not kind else "record_queries"]
        answers = question["answers" if not kind else "record_answers"]
        for url, query, answer in zip(urls, queries, answers, strict=True):
            for _ in range(2):  # again: the very same answer
                reply = httpx2.post(url + path, content=bytes.fromhex(query), timeout=LONG)
                assert reply.status_code == 200
                assert reply.content.hex() == answer
    for case in question["refused_by_server_1"]:
        reply = httpx2.post(urls[0] + case["path"], content=bytes.fromhex(case["hex"]), timeout=LONG)
        assert (reply.json()["code"], reply.status_code) == (case["code"], REFUSALS[case["code"]][0]), case["why"]
    for case in WIRE["bad_messages"]:
        reply = httpx2.post(urls[0] + "/v1/answer", content=bytes.fromhex(case["hex"]), timeout=LONG)
        assert reply.json()["code"] == "malformed"
    assert made[0].ledger.count() == 2  # a malformed request burns nothing
    addresses = made[0].manifest.issued.addresses
    with Client(addresses, connect_to=dict(zip(addresses, urls, strict=True))) as client:
        assert wire.encode_manifest(client.peers[0].manifest) == wire.encode_manifest(made[0].manifest)


def test_the_recorded_question_is_recovered() -> None:
    question, terms = SERVICE["question"], TERMS
    deployment = Deployment.of(Schema.from_builtins(terms["schema"]), scheme="table/differences")
    scheme = deployment.scheme
    asked, _ = compile_question(
        deployment, deployment.schema.codes(question["person"]), Preferences.of(question["preferences"])
    )
    answers = [
        wire.unpack("answer", scheme.field, wire.decode_reply(bytes.fromhex(a), "answer").body, 4)
        for a in question["answers"]
    ]
    queries = np.array([[int(v) for v in symbols] for symbols in question["symbols"]])
    revealed = scheme.recover(asked, queries, answers, 5).revealed
    assert [str(v) for v in revealed] == question["revealed"]
    assert isinstance(scheme.reveal, Opened)
    assert scheme.reveal.nearest(scheme.field, revealed) == question["position"]
    record = bytes.fromhex(question["record"])
    parts = [
        np.frombuffer(wire.decode_reply(bytes.fromhex(a), "record-answer").body, dtype=np.uint8)
        for a in question["record_answers"]
    ]
    packaged = make_spir(servers=2, collusion=1, length=len(record) + 32).recover(parts)
    assert packaged.hex() == question["package"]
    assert unpackage(packaged) == record
    database, signer = bytes.fromhex(terms["database"]), bytes.fromhex(terms["issuer"])
    assert is_signed(signer, record[-64:], "record", database, record[:-64])


@given(st.data())
def test_packing_is_exact(data: st.DataObject) -> None:
    q = data.draw(st.sampled_from([2, 3, 5, 257, 809, 65537, 2**31 - 1, 2**61 - 1]))
    values = data.draw(st.lists(st.integers(0, q - 1), max_size=40))
    packed = wire.pack(Field(q), np.array(values, dtype=np.int64))
    assert len(packed) == Field(q).packed(len(values))
    assert wire.unpack("vector", Field(q), packed, len(values)).tolist() == values


def test_packing_across_blocks() -> None:
    for q in (3, 809, 2**61 - 1):
        values = np.random.default_rng(2).integers(0, q, 3 * (1 << 16) + 5)
        packed = wire.pack(Field(q), values)
        assert np.array_equal(wire.unpack("vector", Field(q), packed, values.size), values)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_malformed_or_read_exactly(data: bytes) -> None:
    with suppress(Malformed):
        assert wire.encode(wire.decode_request(data, "query", "attempt", "collect")) == data
    with suppress(Malformed):
        assert wire.encode(wire.decode_reply(data, "record-answer")) == data


@given(st.sampled_from(["attempt", "collect"]), st.integers(0, 70_000), st.integers(0, 15), st.binary(max_size=300))
def test_an_attempt_is_known_by_its_head(kind: wire.RequestKind, length: int, attempt: int, ticket: bytes) -> None:
    message = wire.Request(2, kind, 1, b"t" * 32, b"k" * 16, ticket, attempt, (1, 2), b"s" * 32, bytes(length))
    whole = wire.encode(message)
    bare, start = wire.decode_head(whole[: wire.ENVELOPE], len(whole), "attempt", "collect")
    assert (bare.kind, bare.request, bare.body, len(whole) - start) == (kind, attempt, b"", length)
    assert wire.head(message, length) == whole[:start]
    for others in (("query",), ("record-query",)):
        with pytest.raises(Malformed):
            wire.decode_head(whole[: wire.ENVELOPE], len(whole), *others)
    with pytest.raises(Malformed):
        wire.decode_head(whole[: wire.ENVELOPE], len(whole) + 1, "attempt", "collect")


def test_a_manifest_is_read_strictly() -> None:
    raw = json.dumps(SERVICE["manifests"][0] | {"software": "counterveil 0.1.0"}).encode()
    manifest = wire.decode_manifest(raw)
    assert wire.decode_manifest(wire.encode_manifest(manifest)) == manifest
    assert hashlib.sha256(manifest.issued.text.encode()).digest() == manifest.issued.digest
    issued = SERVICE["manifests"][0]["issued"]
    changes: list[dict[str, Any]] = [{"server": 0}, {"instance": "x"}, {"more": 1}, {"issued": {}}, {"key": 5}]
    changes += [{"issued": issued | {"terms": json.dumps(TERMS | change)}} for change in (
        {"keys": TERMS["keys"][:1]}, {"keys": TERMS["keys"][:1] * 2}, {"service": "a b"}, {"rows": 0}, {"more": 1},
        {"schema": {"feature": "x" * 2000}},
    )]  # fmt: skip
    changes += [{"issued": issued | change} for change in (
        {"addresses": ["https://one.example"]}, {"addresses": ["https://one.example"] * 2}, {"signature": ""},
        {"addresses": ["https://one.example; script-src *", "https://two.example"]},
        {"addresses": ["https://one.example", "javascript://two.example"]},
        {"addresses": ["https://one.example", "https://user@two.example"]},
    )]  # fmt: skip
    for change in changes:
        with pytest.raises(Malformed):
            wire.decode_manifest(json.dumps(SERVICE["manifests"][0] | change).encode())
    for other in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(Malformed):
            wire.decode_manifest(other)


@pytest.mark.slow
def test_a_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """Atheris, 40,000 inputs to every reader; `python tests/fuzz_wire.py` goes on for as long as one likes."""
    pytest.importorskip("atheris")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for i, case in enumerate([*WIRE["messages"], *WIRE["bad_messages"]]):
        (seeds / str(i)).write_bytes(bytes.fromhex(case["hex"]))
    (seeds / "manifest").write_text(json.dumps(SERVICE["manifests"][0]))
    script = Path(__file__).parent / "fuzz_wire.py"
    command = [sys.executable, str(script), "-runs=40000", "-seed=7", "-max_len=4096", f"-artifact_prefix={tmp_path}/"]
    fuzzed = subprocess.run([*command, str(seeds)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert fuzzed.returncode == 0, fuzzed.stderr[-2000:]
    assert "Done 40000 runs" in fuzzed.stderr
