"""Shards in a real Ray cluster of two nodes: the same bytes as one process, whole or refused, whoever is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterveil import Client, Scheme, make_scheme
from counterveil.algebra.field import Field
from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.engine import Plan, as_rows, hold
from counterveil.engine.shards import ShardedRecords, ShardedRows, Shards
from counterveil.errors import CounterveilError, InvalidBundle, Refused
from counterveil.institution.database import Database
from counterveil.research.processes import BUNDLE, Serve, free_port, publish, running
from counterveil.schemes.forms import FORMS
from counterveil.schemes.protocols import PROTOCOLS, Size, make_protocol
from counterveil.schemes.reveals import REVEALS
from counterveil.service.parts import Ways, parts_of
from counterveil.terms.published import deployment_of
from patience import wait_until
from service import numbers_database
from shard_load import FEW, MANY, RECORD, TOP, D, data, held_by, killed_under_load, processes, said, sharded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of what it will change


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    from two_nodes import two_nodes  # here, since Ray takes a second to import

    with two_nodes() as address:
        yield address


@pytest.fixture(scope="module")
def few(cluster: str) -> Shards:
    return sharded("few", FEW, 1, 3)


@pytest.fixture(scope="module")
def many(cluster: str) -> Shards:
    return sharded("many", MANY, make_protocol("joint").together(MANY), 2)


def combinations() -> list[Any]:
    """Return every form, reveal and protocol that go together, and the further settings of each protocol."""
    found = list[Any]()
    for form in FORMS:
        for reveal in REVEALS:
            for protocol in PROTOCOLS:
                try:
                    make_scheme(f"{form}/{reveal}", largest=TOP, d=D, d_min=1 + ("masked" in reveal), protocol=protocol)
                except CounterveilError:
                    continue
                found.append(pytest.param(form, reveal, protocol, {}, 1, id=f"{form}-{reveal}-{protocol}"))
    joints = [("few, seeded", {"rounds": "few", "seeded": True}, 1), ("a server deals", {"dealer": "server"}, 3)]
    found += [pytest.param("table", "sealed", "joint", options, k, id=name) for name, options, k in joints]
    return [*found, pytest.param("table", "sealed", "garbled", {"records_inside": True}, 1, id="records inside")]


def test_every_protocol_is_among_them() -> None:
    assert {each.values[2] for each in combinations()} == set(PROTOCOLS)
    assert {each.values[0] for each in combinations()} == set(FORMS)
    assert {each.values[1] for each in combinations()} == set(REVEALS)


@pytest.mark.parametrize(("form", "reveal", "protocol", "options", "k"), combinations())
def test_the_same_bytes_as_one_process(
    form: str, reveal: str, protocol: str, options: dict[str, Any], k: int, few: Shards, many: Shards
) -> None:
    made = make_scheme(f"{form}/{reveal}", largest=TOP, d=D, d_min=1 + ("masked" in reveal), protocol=protocol)
    scheme = Scheme.of(made.form, made.reveal, make_protocol(protocol, **options)) if options else made
    shards = many if protocol == "joint" else few
    codes, records = data(shards.bounds[-1])
    here = held_by(as_rows(codes), hold(records))
    there = held_by(ShardedRows(shards), ShardedRecords(shards, RECORD))
    size = Size(len(codes), RECORD, k)
    alone = said(scheme, [here, here], size)
    assert said(scheme, [there, here], size) == alone
    assert len(alone[-1][1]) == k  # the records themselves


def test_heads_that_give_the_same_name_share_shards(few: Shards) -> None:
    again = sharded("few", FEW, 1, 3)
    assert [each[0]["process"] for each in again.abouts] == [each[0]["process"] for each in few.abouts]


def test_shards_that_are_killed_under_load_give_whole_answers_or_none(many: Shards) -> None:
    counts = killed_under_load(many, 2)
    assert counts["wrong"] == 0
    assert min(counts["scan"], counts["xor"], counts["joint"]) > 2


def test_a_question_is_refused_whole_if_a_shard_does_not_come_back(cluster: str) -> None:
    shards = sharded("impatient", FEW, 1, 2, patience=1.0)
    stopped = processes(shards)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(Refused, match="1 of 2 parts") as refused:
            ShardedRows(shards).scan(Plan("polynomial", Field(11), (np.ones(D, dtype=np.int64),), TOP))
        assert refused.value.code == "not_ready"
    finally:
        os.kill(stopped, signal.SIGCONT)
        shards.stop()


def test_another_replica_answers_for_one_that_hangs_and_shards_without_a_head_end(cluster: str) -> None:
    import ray

    shards = sharded("replicas", FEW, 1, 1, replicas=2, lease=4.0)
    stopped = processes(shards)[0]
    plan = Plan("polynomial", Field(101), (np.ones(D, dtype=np.int64),), TOP)
    right = as_rows(data(FEW)[0]).scan(plan)
    os.kill(stopped, signal.SIGSTOP)
    try:
        for _ in range(2):  # each replica is asked first once
            assert np.array_equal(ShardedRows(shards).scan(plan), right)
    finally:
        os.kill(stopped, signal.SIGCONT)
    shards.close()

    def gone() -> bool:
        try:
            ray.get_actor("replicas-0.0", namespace="counterveil")
        except ValueError:
            return True
        return False

    wait_until(gone)


def test_a_server_with_shards_beside_a_server_without(cluster: str, tmp_path: Path) -> None:
    """Joint runs over HTTP. When a shard is killed, the attempt is given up, and the next one is answered."""
    import ray

    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    publish(tmp_path, numbers_database(80_000, 3, 60), urls, is_open=True, scheme="table/sealed", protocol="joint")
    before = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    settings = ["--engine", "ray", "--shards", 2, "--ray-address", cluster]
    with running([Serve(tmp_path, 1, ports[0], *settings), Serve(tmp_path, 2, ports[1])]), Client(urls) as client:
        assert client.ask({"x0": 1, "x1": 1, "x2": 30}).feasible
        own = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)} - before
        assert len(own) == 2
        about: Any = ray.get(ray.get_actor(own.pop(), namespace="counterveil").about.remote())
        os.kill(about["process"], signal.SIGKILL)
        assert client.ask({"x0": 5, "x1": 1, "x2": 30}).feasible


# --- parts of a bundle ----------------------------------------------------------------------------------------------


class Ranges(BaseHTTPRequestHandler):
    """An object storage that gives ranges of one file."""

    file: Path

    def do_GET(self) -> None:
        first, last = map(int, self.headers["range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("content-length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(self.file.read_bytes()[first : last + 1])

    def log_message(self, *_: Any) -> None:
        pass


def test_parts_of_a_bundle_from_a_file_and_from_an_object_storage(tmp_path: Path) -> None:
    issued = publish(tmp_path, numbers_database(200, 2), ["http://a.test", "http://b.test"])
    path = tmp_path / BUNDLE
    database, deployment = Database.open(path), deployment_of(issued.terms)
    served = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Ranges,), {"file": path}))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        for place in ("", f"http://127.0.0.1:{served.server_port}/bundle"):
            cuts, parts = parts_of(database, issued, deployment, Ways(worthwhile=1 << 40), count=3, place=place)
            held = [part() for part in parts]
            codes = np.concatenate([rows.data for rows, _ in held])  # type: ignore[attr-defined]
            assert np.array_equal(codes, deployment.rows(database.codes))
            assert np.array_equal(np.concatenate([records.data for _, records in held]), database.served)  # type: ignore[attr-defined]
            assert len(held) == 3
            assert cuts[-1] == database.rows
    finally:
        served.shutdown()
        served.server_close()
    spoiled = bytearray(path.read_bytes())
    spoiled[-1] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(InvalidBundle, match="other bytes"):
        parts[-1].__class__(**{**vars(parts[-1]), "place": str(path)})()
    in_memory = numbers_database(20, 2).sign(Issuer.load(tmp_path / PRIVATE))
    with pytest.raises(InvalidBundle, match="rows in memory"):
        parts_of(in_memory, issued, deployment, Ways(), count=2)
