"""A thousand million rows fit every size, number and message; sizes are computed without making anything as large."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from counterveil import Numeric, Schema
from counterveil.crypto.keys import Issuer
from counterveil.errors import Malformed, NotOffered
from counterveil.schema.layouts import RecordKind
from counterveil.schemes.protocols import Size, dealing, packed
from counterveil.terms import wire
from counterveil.terms.deployment import Deployment
from counterveil.terms.parameters import Certificate
from counterveil.terms.published import deployment_of, make_terms

ROWS = (10**9, 1 << 30, (1 << 32) - 1)
SCHEMA = Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=15, step=1) for j in range(40)))


@dataclass(frozen=True)
class Holdings:
    """What terms say about a database, without the database."""

    rows: int
    schema: Schema = SCHEMA
    record: RecordKind = "row"
    digest: str = "d" * 64
    packed: str = "e" * 64
    certificate: Certificate | None = None
    signer: bytes = bytes(32)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rounds", ["balanced", "few"])
def test_the_joint_protocol_has_sizes_in_proportion_to_the_rows(rows: int, k: int, rounds: str) -> None:
    options = {"protocol": {"rounds": rounds, "dealer": "server"}}
    scheme = Deployment.of(SCHEMA, scheme="table/sealed", protocol="joint", k=k, options=options).scheme
    tracemalloc.start()
    (large,) = scheme.requests(Size(rows, 416, k))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 4 << 20
    (small,) = scheme.requests(Size(1 << 20, 416, k))
    for one, other in ((small.between, large.between), (small.dealt[1], large.dealt[1])):
        assert other / rows == pytest.approx(one / (1 << 20), rel=0.02)
    assert small.rounds < large.rounds < small.rounds + 100 * k


def test_batches_that_carry_nothing_are_those_of_wires_that_do() -> None:
    """`planned` is what the dealer and both servers go by; a run that keeps to it is tested in test_joint.py."""
    for rows in (1, 63, 64, 1000, 70_000):
        layout = dealing._Outline(*packed.Layout.of(rows))
        assert layout.wires(3).shape == (3, layout.words, layout.blocks, 0)
        assert layout.wires(3).nbytes == 0
        assert dealing.opened(dealing.planned(rows, 5, 1)) > rows // 8


@pytest.mark.parametrize("rows", ROWS)
def test_terms_of_so_many_rows_can_be_made_and_read(rows: int) -> None:
    keys = [Issuer().public for _ in range(3)]
    deployment = Deployment.serving(Holdings(rows), linked=True, dealer="server")
    terms = make_terms(Holdings(rows), deployment, keys=keys[:2], service="large", dealer=keys[2])
    assert deployment_of(terms).scheme.protocol.name == "joint"
    assert wire.check_terms(terms).rows == rows
    assert deployment.between(rows) > rows
    with pytest.raises(Malformed):
        wire.check_terms(replace(terms, rows=1 << 32))
    with pytest.raises(NotOffered, match=r"answers of [\d.]+ GiB, expected less than 1 GiB"):
        make_terms(Holdings(rows), Deployment.of(SCHEMA, scheme="table/distances"), keys=keys[:2], service="large")


@pytest.mark.parametrize("length", [0, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, 12_283_885_629, 1 << 50])
def test_a_body_of_any_length_has_a_head(length: int) -> None:
    """An applicant who deals for 10^9 rows sends 12 GB to each server, which MessagePack's lengths do not reach."""
    message = wire.Request(2, "attempt", 1, b"t" * 32, b"k" * 16, b"ticket", 3, (1, 2), b"s" * 32, b"")
    head = wire.head(message, length)
    bare, start = wire.decode_head(head + bytes(wire.ENVELOPE)[: max(0, length)], len(head) + length, "attempt")
    assert (bare, start) == (message, len(head))
    with pytest.raises(Malformed):
        wire.decode_head(head + bytes(wire.ENVELOPE), len(head) + length + 1, "attempt")


def test_a_body_has_one_way_to_say_its_length() -> None:
    message = wire.Request(2, "attempt", 1, b"t" * 32, b"k" * 16, b"ticket", 3, (1, 2), b"s" * 32, b"")
    for length in (5, 70_000, (1 << 32) - 1):
        longer = wire.head(message, 0)[:-2] + b"\xc1" + length.to_bytes(8, "big")
        with pytest.raises(Malformed):
            wire.decode_head(longer + bytes(wire.ENVELOPE), len(longer) + length, "attempt")
