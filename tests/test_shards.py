"""Shards in a real Ray cluster of two nodes: the same bytes as one process, whole or refused, whoever is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from counterveil import Boolean, Client, Numeric, Schema, Scheme, make_scheme
from counterveil.algebra import maps
from counterveil.algebra.field import Field
from counterveil.cli import main
from counterveil.crypto.keys import COMMON, PRIVATE, SERVER_PRIVATE, Issuer, SigningKey, write_keys
from counterveil.engine import Plan, as_rows, hold
from counterveil.engine.shards import ShardedRecords, ShardedRows, Shards
from counterveil.errors import CounterveilError, InvalidBundle, InvalidData, NotServed, OutOfRange, Refused
from counterveil.institution import parallel, streaming
from counterveil.institution.bundle import Counts, begins
from counterveil.institution.bundle import read as read_bundle
from counterveil.institution.cluster import ray_crew, size_of
from counterveil.institution.database import Database
from counterveil.research.processes import BUNDLE, COMMAND, TERMS, Serve, free_port, publish, running
from counterveil.schemes.forms import FORMS
from counterveil.schemes.protocols import PROTOCOLS, Size, make_protocol
from counterveil.schemes.reveals import REVEALS
from counterveil.service.epochs import Hosting
from counterveil.service.parts import Ways, parts_of
from counterveil.service.starting import Holding, lay_out_all, read_holding
from counterveil.terms.published import deployment_of
from counterveil.terms.wire import SignedTerms
from mapped import resident
from patience import LONG, wait_until
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


# --- builds ---------------------------------------------------------------------------------------------------------


@contextmanager
def signatures() -> Iterator[list[int]]:
    """Count what this process signs, and let it start no others."""
    sign, counted = Issuer.sign, list[int]()

    def counting(self: Issuer, *what: Any) -> bytes:
        counted.append(1)
        return sign(self, *what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Issuer, "sign", counting)
        patch.setattr(parallel, "ProcessPoolExecutor", None)
        yield counted


def test_a_build_in_the_cluster_writes_the_bytes_of_one_here(cluster: str, tmp_path: Path) -> None:
    rng, folder, schema = np.random.default_rng(0), tmp_path / "in", tmp_path / "schema.toml"
    folder.mkdir()
    for n in range(3):
        columns = {"a": rng.integers(0, 60, 6000), "b": rng.integers(0, 60, 6000), "ok": rng.random(6000) < 0.9}
        pl.DataFrame(columns).write_parquet(folder / f"{n}.parquet")
    Schema(features=tuple(Numeric(name=name, low=0, high=60, step=1) for name in "ab")).save(schema)
    write_keys(tmp_path / "keys")
    words = ["build", folder, "--schema", schema, "--accepted", "ok", "--key", tmp_path / "keys" / PRIVATE]
    ways = {"here": ["--processes", "1"], "there": ["--engine", "ray", "--ray-address", cluster]}
    signed = dict[str, int]()
    for name, way in ways.items():
        with signatures() as counted:
            said = CliRunner().invoke(main, [*map(str, words), "-o", str(tmp_path / name), *way])
        assert said.exit_code == 0, said.output
        signed[name] = len(counted)
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    rows = Database.open(tmp_path / "here").rows
    assert rows > 3000
    assert signed["here"] - signed["there"] == rows  # the cluster signed all records
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "in", "keys", "schema.toml", "there"]


def test_a_bundle_in_parts_that_the_cluster_builds_has_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": np.arange(9000) % 4321, "ok": [True] * 9000})
    (tmp_path / "in").mkdir()
    frame.write_parquet(tmp_path / "in" / "a.parquet", row_group_size=500)
    schema, issuer = Schema(features=(Numeric(name="a", low=0, high=5000, step=1),)), Issuer()
    for name, hired in (("here", {}), ("there", {"processes": 2, "hire": partial(ray_crew, cluster)})):
        given: Any = {"accepted": "ok", "issuer": issuer, "part_rows": 700, "memory": 1 << 29} | hired
        assert streaming.build(tmp_path / "in", schema, output=tmp_path / name, **given).parts == 7
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


def test_a_crew_uses_all_machines_in_order_and_does_a_task_again_whose_process_is_lost(
    cluster: str, tmp_path: Path
) -> None:
    def work(number: int) -> tuple[int, str]:
        import ray

        again = (tmp_path / f"{number}").exists()
        (tmp_path / f"{number}").touch()
        if number == 3 and not again:
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + LONG
        while number < 2 and not (tmp_path / f"{1 - number}").exists():  # the first two run at the same time
            assert time.monotonic() < until
            time.sleep(0.02)
        return number, ray.get_runtime_context().get_node_id()

    assert size_of(cluster) == (2, 2)
    with ray_crew(cluster, 2) as run:
        found = list(run(work, range(8)))
    assert [number for number, _ in found] == list(range(8))
    assert found[0][1] != found[1][1]


def test_errors_of_tasks_are_told_as_if_they_had_run_here(cluster: str, tmp_path: Path) -> None:
    def work(number: int) -> bytes:
        if number:
            raise OutOfRange("age", got=130, expected="at most 120", row=7)
        return (tmp_path / "nowhere").read_bytes()

    with ray_crew(cluster, 2) as run:
        with pytest.raises(OutOfRange, match=r"^age\[7\]: got 130, expected at most 120$"):
            list(run(work, [1, 1, 1]))
        with pytest.raises(InvalidData, match="nowhere: got no such file, expected files at the same path on all mach"):
            list(run(work, [0]))


def test_a_build_refuses_settings_that_contradict_each_other(tmp_path: Path) -> None:
    for words, error in (
        (["--engine", "ray", "--processes", "2"], "--engine ray: got --processes, expected all cores of the cluster"),
        (["--ray-address", "a:1"], "--engine cpu: got --ray-address, expected it with --engine ray only"),
    ):
        Schema(features=(Numeric(name="a", low=0, high=60, step=1),)).save(tmp_path / "s")
        common = ["build", tmp_path, "--schema", tmp_path / "s", "--accepted", "ok", "-o", tmp_path / "b"]
        said = CliRunner().invoke(main, [*map(str, common), *words])
        assert said.exit_code == 2
        assert error in said.output
    said = CliRunner().invoke(main, [*map(str, [*common[:1], tmp_path / "f.csv", *common[2:]]), "--engine", "ray"])
    assert "--engine ray: got a file in memory, expected a folder of Parquet files, or --memory" in said.output


def test_rows_are_not_fetched_over_plain_http_from_another_machine(tmp_path: Path) -> None:
    publish(tmp_path, numbers_database(20, 2), ["http://a.test", "http://b.test"])
    place = "http://store.test/bundle?signature=hush"
    server = Serve(tmp_path, 1, free_port(), "--engine", "ray", "--shards", 2, "--shard-bundle", place)
    refused = CliRunner().invoke(main, [*map(str, server.command()[len(COMMAND) :])])
    assert refused.exit_code == 2
    assert "--shard-bundle: got plain http to another machine, expected https: rows are secret" in refused.output
    assert "hush" not in refused.output


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


@contextmanager
def stored(path: Path) -> Iterator[str]:
    """Put a file into an object storage, and give its address."""
    served = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Ranges,), {"file": path}))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{served.server_port}/bundle"
    finally:
        served.shutdown()
        served.server_close()


def test_parts_of_a_bundle_from_a_file_and_from_an_object_storage(tmp_path: Path) -> None:
    issued = publish(tmp_path, numbers_database(200, 2), ["http://a.test", "http://b.test"])
    path = tmp_path / BUNDLE
    database, deployment = Database.open(path), deployment_of(issued.terms)
    with stored(path) as address:
        for place in ("", address):
            cuts, parts = parts_of(database, issued, deployment, Ways(worthwhile=1 << 40), count=3, place=place)
            held = [part() for part in parts]
            codes = np.concatenate([rows.data for rows, _ in held])  # type: ignore[attr-defined]
            assert np.array_equal(codes, deployment.rows(database.codes))
            assert np.array_equal(np.concatenate([records.data for _, records in held]), database.served)  # type: ignore[attr-defined]
            assert len(held) == 3
            assert cuts[-1] == database.rows
    spoiled = bytearray(path.read_bytes())
    spoiled[-1] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(InvalidBundle, match="records: altered bytes"):
        parts[-1].__class__(**{**vars(parts[-1]), "place": str(path)})()
    in_memory = numbers_database(20, 2).sign(Issuer.load(tmp_path / PRIVATE))
    with pytest.raises(InvalidBundle, match="rows in memory"):
        parts_of(in_memory, issued, deployment, Ways(), count=2)


WIDE = Schema(features=tuple(Boolean(name=f"x{j}") for j in range(150)))


def in_parts(folder: Path, rows: int, size: int, *, spoil: int | None = None, level: int = 1) -> SignedTerms:
    """Publish a bundle in parts of this many rows. Spoil a byte in the records of a row, or have a level too high."""
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 2, (rows, 150), dtype=np.uint8)
    codes[rows // 2, 7] = level
    made = Database(
        schema=WIDE, record="row", min_cell=1, counts=Counts(rows, rows, 0, 0, rows), codes=codes,
        served=rng.integers(0, 256, (rows, 300), dtype=np.uint8), part_rows=size,
    )  # fmt: skip
    issued = publish(folder, made, ["http://a.test", "http://b.test"])
    if spoil is not None:
        with (folder / BUNDLE).open("r+b") as file:
            file.seek(begins(read_bundle(folder / BUNDLE).manifest)[1] + spoil * 396)
            file.write(b"spoiled!")
    return issued


def holding(folder: Path) -> Holding:
    return read_holding(folder / BUNDLE, folder / TERMS, 1, SigningKey.load(folder / "1" / SERVER_PRIVATE), whole=False)


def test_the_head_reads_only_the_manifest_and_a_shard_names_a_damaged_part_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "let_go", lambda _: None)  # so that what was read stays in memory, and is counted
    in_parts(tmp_path, 20_000, 4000, spoil=9000)
    path = tmp_path / BUNDLE
    assert path.stat().st_size > 10_000_000
    database, issued, deployment = holding(tmp_path)
    cuts, parts = parts_of(database, issued, deployment, Ways(), count=3)
    assert resident(path) < 1_000_000
    assert cuts == [0, 6667, 13_334, 20_000]
    opened = [parts[0](), parts[2]()]
    assert [len(rows) for rows, _ in opened] == [len(records) for _, records in opened] == [6667, 6666]
    assert resident(path) > 5_000_000  # the control: shards read what they check
    with pytest.raises(InvalidBundle, match=r"got part 3 of 5, rows 8,000 to 11,999, records: altered bytes, expected"):
        parts[1]()


def test_a_shard_refuses_levels_beyond_a_feature(tmp_path: Path) -> None:
    in_parts(tmp_path, 500, 100, level=2)
    _, parts = parts_of(*holding(tmp_path), Ways(), count=2)
    parts[0]()
    with pytest.raises(InvalidBundle, match="codes: a level beyond its feature's"):
        parts[1]()


def test_rows_of_any_shard_lie_in_parts_that_are_checked(tmp_path: Path) -> None:
    in_parts(tmp_path, 500, 70)
    held = holding(tmp_path)
    right = held.deployment.rows(held.database.codes), held.database.served
    with stored(tmp_path / BUNDLE) as address:
        for count, place in [*((count, "") for count in (1, 2, 7, 8, 11, 500)), (3, address)]:
            cuts, parts = parts_of(*held, Ways(worthwhile=1 << 40), count=count, place=place)
            opened = [part() for part in parts]
            assert len(opened) == count
            assert [len(rows) for rows, _ in opened] == np.diff(cuts).tolist()
            assert np.array_equal(np.concatenate([rows.data for rows, _ in opened]), right[0])  # type: ignore[attr-defined]
            assert np.array_equal(np.concatenate([records.data for _, records in opened]), right[1])  # type: ignore[attr-defined]


def test_a_server_whose_shard_finds_a_damaged_part_says_which_and_serves_what_is_left(
    cluster: str, tmp_path: Path
) -> None:
    held = []
    for name, spoil in (("good", None), ("bad", 90)):
        (tmp_path / name).mkdir()
        in_parts(tmp_path / name, 100, 30, spoil=spoil)
        held.append(holding(tmp_path / name))
    ways: Any = {"threads": 1, "worthwhile": 0, "hosting": Hosting(shards=2, address=cluster)}
    with pytest.warns(NotServed, match="an epoch is not served: .*part 4 of 4, rows 90 to 99, records: altered bytes"):
        laid = lay_out_all(held, **ways)
    assert [each.issued.digest for each, _ in laid] == [held[0].issued.digest]
    settings = ["--engine", "ray", "--shards", 2, "--ray-address", cluster]
    with (
        pytest.raises(RuntimeError, match=r"did not start: .*part 4 of 4, rows 90 to 99, records: altered bytes"),
        running([Serve(tmp_path / "bad", 1, free_port(), *settings)]),
    ):
        pass
    left = {path.name for path in (tmp_path / "bad").iterdir()}
    assert not left & {"ledger-1", f"{COMMON}.server-1"}  # the next start may make the ledger
