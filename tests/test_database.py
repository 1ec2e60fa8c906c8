from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import rich.progress
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from counterveil import Categorical, Counterfactual, Database, Numeric, Schema, local
from counterveil.crypto.keys import Issuer
from counterveil.errors import (
    EmptyDatabase,
    InvalidBundle,
    MissingValue,
    OutOfRange,
    UnknownName,
    UnknownValue,
    WrongShape,
    WrongType,
)
from counterveil.schema.layouts import decode
from people import random_case

SCHEMA = Schema(
    features=(
        Numeric(name="income", low=0, high=5000, step=500),
        Categorical(name="job", values=("clerk", "baker")),
        Numeric(name="age", low=0, high=100, step=10, role="record"),
    )
)
FRAME: dict[str, list[Any]] = {
    "income": [4100, 900, 3900, 4600, 4010, 4100],
    "job": ["clerk", "clerk", "clerk", "baker", "clerk", "clerk"],
    "age": [31, 52, 28, 77, 44, 33],
    "verdict": ["yes", "no", "yes", "yes", "yes", "yes"],
}
ACCEPTED = ("verdict", "yes")


def test_quantises_drops_duplicates_and_keeps_the_first_record() -> None:
    built = Database.build(FRAME, SCHEMA, accepted=ACCEPTED)
    assert built.codes.tolist() == [[8, 0, 3], [9, 1, 8]]
    assert built.source is not None
    assert built.source.tolist() == [0, 3]
    counts = built.counts
    assert (counts.seen, counts.accepted, counts.duplicates, counts.too_rare, counts.rows) == (6, 5, 3, 0, 2)
    record = decode(SCHEMA, "row", built.records[1].tobytes())
    assert record.values == {"income": 4600.0, "job": "baker", "age": 77.0}
    assert record.codes.tolist() == [9, 1, 8]
    assert repr(built) == "Database(2 rows, 3 features, records of rows)"


def test_cells_hold_levels_alone() -> None:
    built = Database.build(FRAME, SCHEMA, accepted=ACCEPTED, record="cell")
    assert decode(SCHEMA, "cell", built.records[0].tobytes()).values == {"income": 4000.0, "job": "clerk", "age": 30.0}
    assert built.records.shape == (2, 6)


def test_min_cell_counts_people_over_all_record_columns_before_duplicates_are_dropped() -> None:
    """(8, clerk) has ages 30, 30, 40 and 30: three people share the cell with age 30, one has age 40."""
    built = Database.build(FRAME, SCHEMA, accepted=ACCEPTED, record="cell", min_cell=3)
    assert built.codes.tolist() == [[8, 0, 3]]
    assert built.counts.too_rare == 2
    with pytest.raises(EmptyDatabase, match="min_cell: got no cell of 4 people"):
        Database.build(FRAME, SCHEMA, accepted=ACCEPTED, record="cell", min_cell=4)
    with pytest.raises(WrongType, match='record: got rows with min_cell, expected record="cell"'):
        Database.build(FRAME, SCHEMA, accepted=ACCEPTED, min_cell=2)


def write_csv(frame: dict[str, list[Any]], path: Path) -> Path:
    pl.DataFrame(frame).write_csv(path)
    return path


def test_every_make_of_frame_builds_the_same_bytes(tmp_path: Path) -> None:
    parquet = tmp_path / "frame.parquet"
    pl.DataFrame(FRAME).write_parquet(parquet)
    makes = [FRAME, pd.DataFrame(FRAME), pl.DataFrame(FRAME), pa.table(FRAME), parquet]
    makes += [write_csv(FRAME, tmp_path / "frame.csv"), str(parquet)]
    files = []
    for n, frame in enumerate(makes):
        Database.build(frame, SCHEMA, accepted=ACCEPTED).save(tmp_path / str(n))
        files.append((tmp_path / str(n)).read_bytes())
    assert len(set(files)) == 1


def test_rows_stand_in_the_order_of_their_codes_whatever_order_they_came_in() -> None:
    backwards = {name: column[::-1] for name, column in FRAME.items()}
    built = [Database.build(frame, SCHEMA, accepted=ACCEPTED, record="cell") for frame in (FRAME, backwards)]
    assert np.array_equal(built[0].codes[:, :2], built[1].codes[:, :2])


def test_a_model_a_function_or_a_column_says_who_is_accepted() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.uniform(0, 10, 200), "b": rng.uniform(0, 10, 200)})
    schema = Schema.infer(frame)
    truth = frame["a"] + frame["b"] > 10
    model = LogisticRegression().fit(frame, np.where(truth, "good", "bad"))
    predicted = model.predict(frame) == "good"
    by_model = Database.build(frame, schema, model, "good")
    by_function = Database.build(frame, schema, lambda rows: model.predict(rows) == "good")
    by_column = Database.build(frame.assign(ok=predicted), schema, accepted="ok")
    by_number = Database.build(frame.assign(ok=predicted.astype(int)), schema, accepted="ok")
    assert by_model.digest == by_function.digest == by_column.digest == by_number.digest
    assert by_model.counts.accepted == int(predicted.sum())
    swapped = LogisticRegression().fit(frame[["b", "a"]], truth)
    Database.build(frame, schema, swapped)  # the model gets its columns under the names and in the order that it knows


@pytest.mark.parametrize(
    ("change", "arguments", "error", "message"),
    [
        ({}, {"accepted": "nowhere"}, UnknownName, "column: got 'nowhere', expected one of income, job, age, verdict"),
        ({}, {"accepted": "verdict"}, WrongType, "column 'verdict': got 'yes', expected True or False"),
        ({}, {"accepted": ("verdict", "perhaps")}, EmptyDatabase, "column 'verdict': got no row with 'perhaps'"),
        ({}, {}, WrongType, "accepted: got no model and no column"),
        ({}, {"model": lambda _: [False] * 6}, EmptyDatabase, "accepted: got none of 6 rows"),
        ({}, {"model": lambda _: [True]}, WrongShape, "model: got 1 verdicts, expected one for each of 6 rows"),
        ({}, {"model": 3}, WrongType, "model: got int, expected a classifier with predict, or a function"),
        ({}, {"accepted": ACCEPTED, "record": "all"}, UnknownName, "record: got 'all', expected row, cell or region"),
        ({}, {"accepted": ACCEPTED, "min_cell": 0}, OutOfRange, "min_cell: got 0, expected at least 1"),
        ({"income": [9000] * 6}, {"accepted": ACCEPTED}, OutOfRange, r"income\[0\]: got 9000.0, expected 0 to 5000"),
        ({"job": ["pilot"] * 6}, {"accepted": ACCEPTED}, UnknownValue, r"job\[0\]: got 'pilot'"),
        ({"income": [float("nan")] * 6}, {"accepted": ACCEPTED}, MissingValue, r"income\[0\]: got nothing"),
        ({"income": ["1"] * 6}, {"accepted": ACCEPTED}, WrongType, r"income\[0\]: got '1', expected a number"),
        ({"income": []}, {"accepted": ACCEPTED}, WrongShape, "frame: got columns of lengths"),
        ({k: [] for k in FRAME}, {"accepted": ACCEPTED}, EmptyDatabase, "frame: got no rows"),
    ],
)
def test_bad_input_gets_one_clear_error(
    change: dict[str, Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Database.build(FRAME | change, SCHEMA, **arguments)


def test_clamp_only_when_asked() -> None:
    built = Database.build(FRAME | {"income": [9000] * 6}, SCHEMA, accepted=ACCEPTED, clamp=True)
    assert built.codes[:, 0].tolist() == [10, 10]


def test_a_progress_bar_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shows, issuer = [], Issuer()

    def track(parts: Any, description: str, **options: Any) -> Any:
        shows.append(description)
        return rich.progress.Progress(disable=True).track(parts, total=options["total"])

    monkeypatch.setattr("rich.progress.track", track)
    quiet, shown = (
        Database.build(FRAME, SCHEMA, accepted=ACCEPTED, progress=progress).sign(issuer, progress=progress)
        for progress in (False, True)
    )
    assert shown.digest == quiet.digest
    assert shown.packed == quiet.packed
    assert shows == ["quantising", "signing"]


def test_a_row_number_counts_from_the_start_of_the_column() -> None:
    many = {"x": [1.0] * 70_000 + [99.0]}
    with pytest.raises(OutOfRange, match=r"x\[70000\]: got 99.0"):
        Database.build(many, Schema(features=(Numeric(name="x", low=0, high=2, levels=2),)), lambda f: [True] * len(f))


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 60), st.sampled_from(["row", "cell"]))
def test_a_bundle_comes_back_as_it_was_and_is_the_same_twice(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, record: Any
) -> None:
    folder = tmp_path_factory.mktemp("bundles")
    schema, frame = random_case(seed, count)
    built = Database.build(frame, schema, accepted="accepted", record=record)
    for name in ("a", "b"):
        Database.build(frame, schema, accepted="accepted", record=record).save(folder / name)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    opened = Database.open(folder / "a")
    assert opened.schema == schema
    assert opened.digest == built.digest
    assert np.array_equal(opened.codes, built.codes)
    assert np.array_equal(opened.records, built.records)
    assert opened.counts == built.counts


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    Database.build(FRAME, SCHEMA, accepted=ACCEPTED).save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(altered)
        with pytest.raises(InvalidBundle, match="bundle: got"):
            Database.open(path)
    path.write_bytes(whole)
    assert len(Database.open(path).codes) == 2


def test_a_truncated_or_padded_bundle_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    Database.build(FRAME, SCHEMA, accepted=ACCEPTED).save(path)
    whole = path.read_bytes()
    for length in [0, 1, 10, 25, 100, 4096, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidBundle, match=r"truncated|something else|empty file"):
            Database.open(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InvalidBundle, match="end: 1 bytes more, expected nothing after the records"):
        Database.open(path)
    path.write_bytes(whole.replace(b"BUNDLE 2", b"BUNDLE 3"))
    with pytest.raises(InvalidBundle, match="first line: something else, expected COUNTERVEIL BUNDLE 2"):
        Database.open(path)
    with pytest.raises(InvalidBundle, match="No such file"):
        Database.open(tmp_path / "nowhere")
    with pytest.raises(InvalidBundle, match="expected a place that can be written"):
        Database.build(FRAME, SCHEMA, accepted=ACCEPTED).save(tmp_path / "no" / "such" / "folder")


def test_a_writer_killed_half_way_leaves_the_old_bundle_whole(tmp_path: Path) -> None:
    """Whenever the process dies while writing, the file is the old one or the new one, never half of it."""
    path = tmp_path / "bundle"
    old = Database.build(FRAME, SCHEMA, accepted=ACCEPTED)
    old.save(path)
    script = """
import os, sys
from counterveil import Database
calls, stop = 0, int(sys.argv[2])
def dying(real):
    def call(*arguments, **keywords):
        global calls
        calls += 1
        if calls == stop:
            os.kill(os.getpid(), 9)
        return real(*arguments, **keywords)
    return call
os.fsync, os.replace, os.fdopen = dying(os.fsync), dying(os.replace), dying(os.fdopen)
held = Database.open(sys.argv[1])
held.save(sys.argv[1])
"""
    for stop in (1, 2, 3):
        killed = subprocess.run([sys.executable, "-c", script, path, str(stop)], check=False)
        assert killed.returncode == -9
        assert Database.open(path).digest == old.digest
    assert subprocess.run([sys.executable, "-c", script, path, "0"], check=True).returncode == 0


def test_an_opened_bundle_is_memory_mapped_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    Database.build(FRAME, SCHEMA, accepted=ACCEPTED).save(path)
    opened = Database.open(path)
    base: Any = opened.codes
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    found = local(opened).ask({"income": 3000, "job": "baker"})
    assert isinstance(found, Counterfactual)
    assert found.record["income"] == 4600.0
    assert found.values["income"] == 4500.0


def test_a_record_from_a_lying_server_is_refused() -> None:
    good = Database.build(FRAME, SCHEMA, accepted=ACCEPTED, record="cell").records[0].tobytes()
    with pytest.raises(WrongShape, match="record: got 5 bytes, expected 6"):
        decode(SCHEMA, "cell", good[:-1])
    with pytest.raises(WrongShape, match="record: got level 65535 of income, expected at most 10"):
        decode(SCHEMA, "cell", b"\xff\xff" + good[2:])
    row = Database.build(FRAME, SCHEMA, accepted=ACCEPTED).records[0].tobytes()
    for number in (float("inf"), float("nan")):
        with pytest.raises((OutOfRange, MissingValue), match="income"):
            decode(SCHEMA, "row", np.float64(number).tobytes() + row[8:])


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a bundle with a changed manifest and the digest that fits it, which takes no secret."""
    Database.build(FRAME, SCHEMA, accepted=ACCEPTED, record="cell").save(path)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 9
    end = start + int.from_bytes(whole[start - 8 : start], "little")
    manifest = json.loads(whole[start:end])
    change(manifest)
    manifest["digest"] = ""
    unsigned = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    manifest["digest"] = hashlib.sha256(unsigned).hexdigest()
    forged = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    head = whole[: start - 8] + len(forged).to_bytes(8, "little") + forged
    path.write_bytes(head + bytes(-len(head) % 4096) + whole[4096:])


def set_in(manifest: dict[str, Any], place: str, value: Any) -> None:
    *parents, last = place.split(".")
    for parent in parents:
        manifest = manifest[parent]
    manifest[last] = value


def test_a_forged_manifest_that_says_the_same_opens(tmp_path: Path) -> None:
    forge(tmp_path / "bundle", lambda _: None)
    assert len(Database.open(tmp_path / "bundle").codes) == 2


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("codes.dtype", "O"),
        ("codes.dtype", "xyz"),
        ("codes.dtype", "|S0"),
        ("codes.dtype", "(2,)u1"),
        ("codes.dtype", "|b1"),
        ("records.dtype", "|V1"),
        ("codes.shape", [-1, -3]),
        ("codes.shape", [10**30, 3]),
        ("records.shape", [1, 6]),
        ("records.shape", [0, 6]),
        ("counts.rows", -5),
        ("counts.rows", 0),
        ("min_cell", 0),
        ("schema", {"feature": [3]}),
        ("schema", {"feature": []}),
        ("schema", []),
        ("record", "row"),
    ],
)
def test_a_forged_manifest_that_does_not_fit_is_refused(tmp_path: Path, place: str, value: Any) -> None:
    forge(tmp_path / "bundle", lambda manifest: set_in(manifest, place, value))
    with pytest.raises(InvalidBundle, match="bundle: got"):
        Database.open(tmp_path / "bundle")


def test_codes_beyond_their_levels_are_refused(tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["schema"]["feature"][0]["high"] = 1500.0

    forge(tmp_path / "bundle", change)
    with pytest.raises(InvalidBundle, match="codes: a level beyond its feature's"):
        Database.open(tmp_path / "bundle")


def test_a_manifest_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    Database.build(FRAME, SCHEMA, accepted=ACCEPTED).save(path)
    deep = b'{"schema":' + b"[" * 200_000
    path.write_bytes(b"COUNTERVEIL BUNDLE 2\n" + len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(InvalidBundle, match="manifest: something that cannot be read"):
        Database.open(path)


def test_save_does_not_replace_what_is_not_a_file(tmp_path: Path) -> None:
    built = Database.build(FRAME, SCHEMA, accepted=ACCEPTED)
    with pytest.raises(InvalidBundle, match="got something that is not a file"):
        built.save(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidBundle, match="got something that is not a file"):
        built.save(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "frame: got the column 'x' twice, expected each once"),
        (pl.LazyFrame({"x": [1]}), "frame: got LazyFrame, expected a pandas, polars or pyarrow frame"),
        ({"x": [[1, 2]], "ok": [True]}, r"x\[0\]: got .*, expected a number"),
    ],
)
def test_frames_that_cannot_be_read(frame: Any, message: str) -> None:
    schema = Schema(features=(Numeric(name="x", low=0, high=2, levels=2),))
    with pytest.raises((WrongShape, WrongType), match=message):
        Database.build(frame, schema, accepted="ok")


def test_frames_that_need_care(tmp_path: Path) -> None:
    mixed = {"x": [1, 2.5, None], "ok": [True, True, True]}
    schema = Schema.infer(mixed, exclude=["ok"])
    assert schema.features[0].missing == "level"
    for frame in (
        mixed,
        pd.DataFrame(mixed),
        pd.DataFrame({"x": pd.array([1, 2.5, pd.NA], dtype="Float64"), "ok": True}),
        pd.DataFrame({"x": pd.Series([1, 2.5, pd.NA], dtype=object), "ok": True}),
    ):
        assert len(Database.build(frame, schema, accepted="ok").codes) == 3
    numbered = pd.DataFrame({0: [1.0, 2.0], 1: [True, False]})
    assert Schema.infer(numbered, exclude=["1"]).names == ["0"]
    assert len(Database.build(numbered, Schema.infer(numbered, exclude=["1"]), accepted="1").codes) == 1
    (tmp_path / "late.csv").write_text("x\n" + "1\n" * 300 + "1.5\nNA\n")
    (late,) = Schema.infer(tmp_path / "late.csv").features
    assert isinstance(late, Numeric)
    assert late.missing == "level"
    with pytest.raises(WrongType, match=r"column 'ok': got <NA>, expected a verdict for every row"):
        Database.build(pd.DataFrame({"x": [1.0], "ok": pd.array([pd.NA], dtype="boolean")}), schema, accepted="ok")
    for verdict in (lambda _: None, lambda _: [[1, 2], [3, 4], [5, 6]], lambda _: [None] * 3):
        with pytest.raises(WrongType, match="model: got"):
            Database.build(mixed, schema, verdict)
    assert Database.build(mixed, schema, lambda _: np.ones((3, 1))).counts.accepted == 3
    with pytest.raises(WrongType, match="accepted: got list, expected a column"):
        Database.build(mixed, schema, accepted=[True, True, True])
    with pytest.raises(WrongType, match="schema: got str, expected a Schema"):
        Database.build(mixed, "schema.toml", accepted="ok")  # type: ignore[arg-type]
