"""Whole questions over HTTP, as users get them: two servers, a dealing server if one deals, and an applicant.

Each is a process of its own on this machine. Before a question is asked, a dealing server has filled its stock. The
bytes are those that the applicant sends and gets, with all headers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np

from counterveil import Client, Database, Numeric, Schema
from counterveil.crypto.keys import PRIVATE, Issuer, write_keys
from counterveil.research.processes import TERMS, Serve, serving
from counterveil.terms.published import deployment_of, read_terms
from counterveil.terms.tickets import mint
from counterveil.terms.wire import LINK_PATH, SignedTerms, decode_linked

FEATURES, LEVELS, QUESTIONS = 20, 16, 5
PERSON = {f"x{j}": j % LEVELS for j in range(FEATURES)}
WIDTHS: tuple[dict[str, Any], ...] = (  # the fewest bits that terms for so many features can have, and 21 bits
    {"max_weight": 1, "options": {"form": {"unit": 1}}},
    {"max_weight": 12},
)
JOINT: list[dict[str, Any]] = [{"protocol": "joint", "dealer": dealer} for dealer in ("applicant", "server")]
GARBLED: list[dict[str, Any]] = [{"protocol": "garbled"}]


class Asked(NamedTuple):
    """What a question took."""

    bits: int  # of a cost
    by: str
    seconds: float  # the median
    up: int  # bytes
    down: int


def database(rows: int) -> Database:
    """Return random rows."""
    codes = np.random.default_rng(1).integers(0, LEVELS, (rows, FEATURES))
    schema = Schema(features=tuple(Numeric(name=name, low=0, high=LEVELS - 1, step=1) for name in PERSON))
    data = dict(zip(PERSON, codes.T, strict=True)) | {"ok": np.ones(rows, dtype=bool)}
    return Database.build(data, schema, accepted="ok", record="cell")


def measured(rows: int, protocols: list[dict[str, Any]]) -> Iterator[Asked]:
    """Ask by each of these protocols, for each width of costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_keys(folder)
        signed = database(rows).sign(Issuer.load(folder / PRIVATE))
        for width in WIDTHS:
            for protocol in protocols:
                with serving(folder, signed, scheme="table/sealed", **width, **protocol) as servers:
                    yield _asked(folder, read_terms(folder / TERMS), servers)


def _asked(folder: Path, issued: SignedTerms, servers: list[Serve]) -> Asked:
    """Ask once to warm up, and then several times."""
    issuer, expires = Issuer.load(folder / PRIVATE), int(time.time()) + 3600
    stock = _Stock(servers[0]) if issued.terms.dealer else None
    taken = list[tuple[float, int, int]]()
    with Client([server.url for server in servers], terms=issued) as client:
        for _ in range(1 + QUESTIONS):
            ticket = mint(issued.terms, [1, 2], expires=expires, issuer=issuer)
            if stock is not None:
                stock.wait()
            before, began = _traffic(client), time.perf_counter()
            client.ask(PERSON, ticket=ticket)
            took, after = time.perf_counter() - began, _traffic(client)
            taken.append((took, after[0] - before[0], after[1] - before[1]))
    seconds, up, down = zip(*taken[1:], strict=True)
    scheme = deployment_of(issued.terms).scheme
    dealer = {"applicant": ", the applicant deals", "dealer": ", a server deals"}.get(str(scheme.protocol.dealt_by), "")
    return Asked(scheme.field.bits, scheme.protocol.name + dealer, statistics.median(seconds), max(up), max(down))


def _traffic(client: Client) -> tuple[int, int]:
    """Return how many bytes went up and came down so far."""
    return sum(peer.traffic.up for peer in client.peers), sum(peer.traffic.down for peer in client.peers)


class _Stock:
    """The tapes of a server. The first time it counts as full when no tape has come for two seconds."""

    def __init__(self, server: Serve) -> None:
        self._url, self._full = f"{server.url}{LINK_PATH}", 0
        while self._full == 0 or self._count() != self._full:
            self._full = self._count()
            time.sleep(2)

    def _count(self) -> int:
        return max(each.tapes or 0 for each in decode_linked(httpx2.get(self._url).content))

    def wait(self) -> None:
        """Wait until the stock is full."""
        while self._count() < self._full:
            time.sleep(0.05)
