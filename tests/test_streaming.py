"""A bundle that is built outside memory is the bundle that is built in memory, byte for byte."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from counterveil import Boolean, Categorical, Database, Numeric, Ordinal, Schema
from counterveil.algebra import maps
from counterveil.cli import main
from counterveil.crypto.keys import Issuer
from counterveil.errors import EmptyDatabase, InvalidBundle, NotOffered, OutOfRange, Suspicious, UnknownName, WrongType
from counterveil.institution import bundle, streaming
from counterveil.institution.parallel import crew, in_order
from counterveil.institution.signing import pieces, signed
from counterveil.schema.parquet import sampled
from counterveil.service.starting import read_holding
from counterveil.terms.deployment import Deployment
from counterveil.terms.published import make_terms, sign_terms, write_terms
from mapped import resident

SCHEMA = Schema(
    features=(
        Numeric(name="age", low=0, high=100, step=10, role="record"),
        Numeric(name="income", low=0, high=5000, step=500, missing="level"),
        Categorical(name="job", values=("clerk", "baker", "smith")),
        Boolean(name="owner"),
    )
)
WIDE = Schema(features=(Numeric(name="x", low=0, high=1000, step=1), Ordinal(name="y", values=(1, 2, 3))))
ACCEPTED = ("verdict", "yes")
ISSUER = Issuer()


def people(count: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "income": pl.Series([None if v > 4900 else v for v in rng.uniform(0, 5000, count).round(1).tolist()]),
            "note": ["not read"] * count,
            "job": np.array(["clerk", "baker", "smith"])[rng.integers(0, 3, count)],
            "age": rng.integers(0, 101, count),
            "owner": rng.integers(0, 2, count).astype(bool),
            "verdict": np.array(["no", "yes", "yes"])[rng.integers(0, 3, count)],
        }
    )


def folder_of(frame: pl.DataFrame, folder: Path, files: int, group: int = 100) -> Path:
    folder.mkdir()
    size = -(-len(frame) // files)
    for n in range(files):
        frame.slice(n * size, size).write_parquet(folder / f"part-{n:03}.parquet", row_group_size=group)
    return folder


def smaller(monkeypatch: pytest.MonkeyPatch, run: int, bucket: int) -> None:
    """Let runs have this many rows, and cut them into this many buckets."""
    monkeypatch.setattr(streaming, "_MOST", run)
    borders = streaming._Builder._borders
    monkeypatch.setattr(streaming._Builder, "_borders", lambda self, runs, _: borders(self, runs, bucket))


@pytest.mark.parametrize(
    ("files", "run", "buckets", "part", "kind", "min_cell", "signs"),
    [
        (1, 5000, 1, 0, "row", 1, True),
        (3, 150, 7, 20, "row", 1, True),
        (2, 97, 40, 33, "row", 1, False),
        (4, 64, 5, 50, "cell", 1, True),
        (3, 150, 9, 40, "cell", 3, True),
        (1, 31, 3, 1, "cell", 2, False),
    ],
)
def test_every_way_to_cut_the_work_gives_the_bytes_of_the_build_in_memory(
    files: int, run: int, buckets: int, part: int, kind: Any, min_cell: int, signs: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    frame = people(1200)
    built = Database.build(frame, SCHEMA, accepted=ACCEPTED, record=kind, min_cell=min_cell)
    assert 0 < built.rows < built.counts.accepted
    built = replace(built, part_rows=part)
    (built.sign(ISSUER) if signs else built).save(tmp_path / "right")
    smaller(monkeypatch, run, buckets)
    made = streaming.build(
        folder_of(frame, tmp_path / "in", files), SCHEMA, accepted=ACCEPTED, output=tmp_path / "made",
        issuer=ISSUER if signs else None, record=kind, min_cell=min_cell, part_rows=part,
    )  # fmt: skip
    assert made.counts == built.counts
    assert (tmp_path / "made").read_bytes() == (tmp_path / "right").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "made", "right"]
    made.check()
    assert made.parts == -(-built.rows // (part or built.rows))


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 300), seed=st.integers(0, 9), run=st.integers(1, 100), buckets=st.integers(1, 20))
def test_codes_of_two_bytes_stand_in_order_too(
    count: int, seed: int, run: int, buckets: int, tmp_path_factory: Any
) -> None:
    folder, rng = tmp_path_factory.mktemp("wide"), np.random.default_rng(seed)
    frame = pl.DataFrame({"x": rng.integers(0, 1001, count), "y": rng.integers(1, 4, count), "ok": [True] * count})
    frame.write_parquet(folder / "x.parquet")
    right = Database.build(frame, WIDE, accepted="ok")
    with pytest.MonkeyPatch.context() as patch:
        smaller(patch, run, buckets)
        made = streaming.build(folder / "x.parquet", WIDE, accepted="ok", output=folder / "made", part_rows=7)
    assert made.codes.tolist() == right.codes.tolist()
    assert np.array_equal(made.records, right.records)


def test_several_processes_write_the_same_file(tmp_path: Path) -> None:
    folder = folder_of(people(700), tmp_path / "in", 3)
    for processes in (1, 2):
        streaming.build(
            folder, SCHEMA, accepted=ACCEPTED, output=tmp_path / str(processes), issuer=ISSUER, processes=processes,
            memory=1 << 30, part_rows=9,
        )  # fmt: skip
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert not multiprocessing.active_children()


def test_records_can_be_signed_from_any_number_on() -> None:
    records = np.random.default_rng(0).integers(0, 256, (50, 9), dtype=np.uint8)
    with crew(1) as run:
        ways = [np.concatenate(list(signed(pieces(records, size), ISSUER, b"d", run))) for size in (50, 7, 1)]
    assert all(np.array_equal(ways[0], way) for way in ways)


def test_a_model_that_cannot_travel_is_asked_here_and_the_rest_of_the_work_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, asked, shared = people(500), list[int](), list[str]()

    def model(rows: pl.DataFrame) -> list[bool]:
        asked.append(len(rows))
        return [income is not None and income > 2500 for income in rows["income"]]

    right = Database.build(frame, SCHEMA, model)
    smaller(monkeypatch, 60, 2)
    folder = folder_of(frame, tmp_path / "in", 2)

    def submit(work: Any, task: Any) -> Any:
        shared.append(work.func.__name__)
        pickle.dumps((work, task))  # it would be sent
        return pool.submit(work, task)

    @contextmanager
    def hire(processes: int) -> Iterator[Any]:
        yield in_order(submit, processes)

    with ThreadPoolExecutor(1) as pool:
        made = streaming.build(folder, SCHEMA, model, output=tmp_path / "made", processes=2, hire=hire)
    assert made.digest == right.digest
    assert set(shared) == {"cuts_of", "merged", "written"}
    assert asked == [500, *[60, 60, 60, 60, 10] * 2]


def test_a_damaged_part_is_named_and_the_others_are_not_read(tmp_path: Path) -> None:
    folder, path = folder_of(people(900), tmp_path / "in", 1), tmp_path / "made"
    made = streaming.build(folder, SCHEMA, accepted=ACCEPTED, output=path, issuer=ISSUER, part_rows=15)
    whole, (codes, records) = path.read_bytes(), bundle.begins(bundle.read(path).manifest)
    assert made.parts > 4
    for name, place in (("codes", codes + 50 * 4), ("records", records + 50 * made.served.shape[1])):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        opened = Database.open(path, whole=False)  # the tree's root and the manifest are in order
        opened.check([0, 1, 2])
        error = rf"made: got part 4 of \d, rows 45 to 59, {name}: altered bytes, expected the SHA-256 in the manifest"
        for _ in range(2):
            with pytest.raises(InvalidBundle, match=error):
                opened.check(threads=2)
        with pytest.raises(InvalidBundle, match=error):
            Database.open(path)
    leaf = bundle.read(path).manifest.leaves()[2][0].encode()
    path.write_bytes(whole.replace(leaf, leaf[::-1]))
    with pytest.raises(InvalidBundle, match="manifest: altered bytes, expected the digest it was written with"):
        Database.open(path, whole=False)


def test_packages_of_parts_are_bound_to_the_root_that_the_terms_name(tmp_path: Path) -> None:
    path = tmp_path / "made"
    streaming.build(
        folder_of(people(300), tmp_path / "in", 1), SCHEMA, accepted=ACCEPTED, output=path, issuer=ISSUER, part_rows=30
    )
    manifest = bundle.read(path).manifest
    assert manifest.parts
    whole, leaf = path.read_bytes(), manifest.parts.packed[1].encode()
    path.write_bytes(whole.replace(leaf, leaf[::-1]))  # the digest does not cover packages, but their root does
    with pytest.raises(InvalidBundle, match="parts: other digests"):
        Database.open(path, whole=False)


def test_parts_are_whole_blocks_of_the_joint_protocol() -> None:
    from counterveil.schemes.protocols.packed import LANES, Layout

    assert [bundle.usual_part(rows) for rows in (1, 1000, 1 << 20)] == [1, 1000, 1 << 20]
    for rows in (1 << 20 | 1, 3_000_000, 10**8, 10**9, 1 << 30):
        size, block = bundle.usual_part(rows), LANES * Layout.of(rows).words
        assert size % block == 0
        assert 1 << 19 < size <= 1 << 20


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"record": "region"}, NotOffered, "record: got regions of a folder, expected rows or cells; regions need all"),
        ({"record": "all"}, UnknownName, "record: got 'all'"),
        ({"min_cell": 2}, WrongType, 'expected record="cell"'),
        ({"record": "cell", "min_cell": 900}, EmptyDatabase, "min_cell: got no cell of 900 people"),
        ({"memory": 1000}, OutOfRange, "memory: got 1000, expected at least 536870912"),
        ({"accepted": ("verdict", "perhaps")}, EmptyDatabase, "accepted: got none of 300 rows"),
        ({"accepted": "nowhere"}, UnknownName, "column: got 'nowhere', expected one of income, note"),
        ({"accepted": "verdict"}, WrongType, "column 'verdict': got 'yes', expected True or False"),
        ({"path": "nothing"}, WrongType, "nothing: got no Parquet file"),
        ({"schema": Schema(features=(Numeric(name="age", low=0, high=90, step=10),))}, OutOfRange, r"age\[\d+\]: got"),
    ],
)
def test_bad_input_gets_one_clear_error_and_leaves_nothing_behind(
    arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = folder_of(people(300), tmp_path / "in", 2)
    given: dict[str, Any] = {
        "path": folder,
        "schema": SCHEMA,
        "accepted": ACCEPTED,
        "output": tmp_path / "made",
    } | arguments
    if given["path"] == "nothing":
        (tmp_path / "nothing").mkdir()
        given["path"] = tmp_path / "nothing"
    with pytest.raises(error, match=message):
        streaming.build(**given)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("in", "nothing")]


def test_an_error_names_the_row_among_all_files(tmp_path: Path) -> None:
    frame = people(300).with_columns(verdict=pl.lit("yes"))
    bad = frame.with_columns(job=pl.when(pl.int_range(300) == 271).then(pl.lit("pilot")).otherwise("job"))
    with pytest.raises(Exception, match=r"job\[271\]: got 'pilot'"):
        streaming.build(folder_of(bad, tmp_path / "in", 4), SCHEMA, accepted=ACCEPTED, output=tmp_path / "made")


def test_a_feature_that_repeats_the_verdict_is_warned_of(tmp_path: Path) -> None:
    frame = people(400).with_columns(owner=pl.col("verdict") == "yes")
    with pytest.warns(Suspicious, match="owner repeats the verdict"):
        streaming.build(folder_of(frame, tmp_path / "in", 2), SCHEMA, accepted=ACCEPTED, output=tmp_path / "made")


def test_pyarrow_reads_stretches_across_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from counterveil.schema import frames, parquet

    frame = people(500)
    folder = folder_of(frame, tmp_path / "in", 2, group=70)
    right = Database.build(frame, SCHEMA, accepted=ACCEPTED)
    for module in (frames, parquet):
        monkeypatch.setattr(module, "installed_backend", lambda: "pyarrow")
    smaller(monkeypatch, 90, 3)
    assert streaming.build(folder, SCHEMA, accepted=ACCEPTED, output=tmp_path / "made").digest == right.digest


def test_a_server_refuses_a_damaged_part_and_names_it(tmp_path: Path) -> None:
    folder, path, own = folder_of(people(900), tmp_path / "in", 1), tmp_path / "made", [Issuer(), Issuer()]
    made = streaming.build(folder, SCHEMA, accepted=ACCEPTED, output=path, issuer=ISSUER, part_rows=15)
    terms = make_terms(made, Deployment.serving(made), keys=[each.public for each in own], service="parts")
    write_terms(tmp_path / "terms", sign_terms(terms, ["http://localhost:1", "http://localhost:2"], ISSUER))
    held = read_holding(path, tmp_path / "terms", 1, own[0])
    assert len(held.epoch(threads=1, worthwhile=0).rows) == made.rows
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InvalidBundle, match="got part 5 of 5, rows 60 to 70, records: altered bytes"):
        read_holding(path, tmp_path / "terms", 1, own[0])


def test_all_parts_are_checked_and_inspected_with_little_of_the_file_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, schema = tmp_path / "large", Schema(features=tuple(Boolean(name=f"x{j}") for j in range(100)))
    rng, rows = np.random.default_rng(0), 300_000
    Database(
        schema=schema, record="row", min_cell=1, counts=bundle.Counts(rows, rows, 0, 0, rows), part_rows=100_000,
        codes=rng.integers(0, 2, (rows, 100), dtype=np.uint8), served=rng.integers(0, 256, (rows, 200), dtype=np.uint8),
    ).save(path)  # fmt: skip
    assert path.stat().st_size > 90_000_000
    held, let_go = list[int](), maps.let_go

    def watching(array: Any) -> None:
        held.append(resident(path))
        let_go(array)

    monkeypatch.setattr(maps, "let_go", watching)
    monkeypatch.setattr("counterveil.cli.institution.cores", lambda: 1)  # each thread holds as much
    said = run("inspect", path, "--verify")
    assert "3, all checked" in said.output
    assert len(held) == 3 * 3 * 2 + 5  # digests of codes and of records, codes by themselves; and their tallies
    assert 10_000_000 < max(held) < 20_000_000  # 65,536 rows of records are 13 MB


def run(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_commands_take_folders(tmp_path: Path) -> None:
    frame = people(600).drop("note")
    folder, schema, made = folder_of(frame, tmp_path / "in", 3), tmp_path / "schema.toml", tmp_path / "made"
    assert run("schema", "infer", folder, "--exclude", "verdict", "-o", schema).exit_code == 0
    common = ["build", folder, "--schema", schema, "--accepted", "verdict=yes", "--processes", 1, "-o"]
    built = run(*common, made, "--memory", "1GiB", "--json")
    assert built.exit_code == 0, built.output
    right = Database.build(frame, Schema.load(schema), accepted=ACCEPTED)
    assert json.loads(built.output)["digest"] == right.digest == Database.open(made).digest
    assert json.loads(run("inspect", made, "--verify", "--json").output)["parts"] == 1
    for wrong, said in (
        (["--record", "region"], "--record: got regions of a folder, or with --memory, expected rows or cells"),
        (["--memory", "lots"], "expected a size as 4GiB or 500MB"),
        (["--memory", "5MB"], "memory: got 5000000, expected at least 536870912"),
        ([], "made: got a file that exists, expected a new file, or --force"),
    ):
        refused = run(*common, made, *wrong) if not wrong else run(*common, tmp_path / "other", *wrong)
        assert refused.exit_code == 2
        assert said in refused.output


def test_a_schema_is_guessed_from_rows_all_over_a_folder(tmp_path: Path) -> None:
    folder = folder_of(people(1000).with_columns(age=pl.int_range(1000)), tmp_path / "in", 4)
    assert len(sampled(folder, 5000).frame) == 1000
    some = sampled(folder, 200).frame["age"].to_list()
    assert len(some) == 200
    assert min(some) < 50
    assert max(some) > 940
