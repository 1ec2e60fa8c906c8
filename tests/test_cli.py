"""The command line, as a person uses it: a real process, its exit code, and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from counterveil import Database, Schema
from counterveil.research.datasets import german_credit

pytestmark = pytest.mark.slow


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from counterveil.cli import main; main(prog_name='counterveil')"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    frame, schema = german_credit()
    frame.write_csv(folder / "credit.csv")
    frame.write_parquet(folder / "credit.parquet")
    schema.save(folder / "credit.toml")
    return folder


def test_from_csv_to_bundle(folder: Path) -> None:
    guessed = run("schema", "infer", folder / "credit.csv", "--exclude", "credit", "-o", folder / "guess.toml")
    assert guessed.returncode == 0, guessed.stderr
    assert "20 features. Check it before you build, because it is public." in guessed.stdout
    assert len(Schema.load(folder / "guess.toml").features) == 20
    printed = run("schema", "infer", folder / "credit.parquet", "--exclude", "credit", "--levels", 10)
    assert Schema.from_toml(printed.stdout).feature("amount").steps <= 22

    for source in ("credit.csv", "credit.parquet"):
        built = run("build", folder / source, "--schema", folder / "credit.toml", "--accepted", "credit=good",
                    "-o", folder / f"{source}.bundle")  # fmt: skip
        assert built.returncode == 0, built.stderr
        assert "700 rows of 700 accepted people." in built.stdout
    assert (folder / "credit.csv.bundle").read_bytes() == (folder / "credit.parquet.bundle").read_bytes()

    shown = run("inspect", folder / "credit.csv.bundle")
    assert shown.returncode == 0, shown.stderr
    assert Database.open(folder / "credit.csv.bundle").digest in shown.stdout
    for words in ("rows served", "700", "amount of the credit", "20,000 DM", "a row of"):
        assert words in shown.stdout


def test_a_schema_is_checked(folder: Path) -> None:
    fine = run("schema", "check", folder / "credit.toml")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "20 features, 20 of them in the cost. It is public." in fine.stdout
    assert "up ×2" in fine.stdout
    (folder / "wrong.toml").write_text('[[feature]]\nkind = "boolean"\nname = "a"\neffort = 0\n')
    wrong = run("schema", "check", folder / "wrong.toml")
    assert wrong.returncode == 2
    assert "wrong.toml, feature 'a'" in wrong.stderr
    assert "effort: got 0, expected a whole number from 1 to 1000" in wrong.stderr


def test_what_looks_wrong_is_said(folder: Path) -> None:
    rows = [f"{n};{1000 + n % 97};{n * 37 % 101};2020-01-0{n % 9 + 1};{n % 3 > 0}" for n in range(400)]
    text = "id;betrag;größe;datum;urteil\n" + "\n".join(rows) + "\n400;1000000000;7;2020-01-01;True\n"
    (folder / "odd.csv").write_text(text, encoding="latin-1")
    common = ["schema", "infer", folder / "odd.csv", "--exclude", "urteil", "-o", folder / "odd.toml"]
    said = run(*common)
    assert "left out: id (it looks like an id or a row number); datum (dates;" in said.stderr
    assert "betrag: 99.8% of the rows fall into one of its" in said.stderr
    build = ["build", folder / "odd.csv", "--schema", folder / "odd.toml", "--accepted", "urteil"]
    assert run(*build, "-o", folder / "odd.bundle").returncode == 0
    shown = run("inspect", folder / "odd.bundle")
    assert "betrag: 99.0% of the rows fall into one of its" in shown.stderr
    again = run(*common, "--quantiles", "betrag")
    assert "99.8%" not in again.stderr
    assert Schema.load(folder / "odd.toml").feature("betrag").steps > 10


def test_cells_of_enough_people(folder: Path) -> None:
    frame = pl.DataFrame({"x": [1, 1, 1, 2], "ok": [True] * 4})
    frame.write_csv(folder / "cells.csv")
    run("schema", "infer", folder / "cells.csv", "--exclude", "ok", "-o", folder / "cells.toml")
    common = ["build", folder / "cells.csv", "--schema", folder / "cells.toml", "--accepted", "ok"]
    built = run(*common, "--record", "cell", "--min-cell", 3, "-o", folder / "cells.bundle")
    assert "1 row of 4 accepted people." in built.stdout, built.stderr


ERRORS: list[tuple[list[str], str]] = [
    (["schema", "infer", "none.csv"], "none.csv: got no such file, expected a CSV or Parquet file"),
    (["schema", "infer", "credit.toml"], "credit.toml: got .toml, expected .csv or .parquet"),
    (["schema", "infer", "credit.csv", "--exclude", "hat"], "exclude: got 'hat', expected one of checking_account"),
    (["schema", "infer", "empty.csv"], "empty.csv: got"),
    (["schema", "infer", "header.csv"], "frame: got no rows, expected at least one"),
    (["build", "credit.csv", "--schema", "none.toml", "--accepted", "credit=good"], "none.toml: got No such file"),
    (["build", "credit.csv", "--schema", "bad.toml", "--accepted", "credit=good"], "bad.toml, feature 'age', low: got"),
    (["build", "credit.csv", "--schema", "credit.toml", "--accepted", "hat"], "column: got 'hat', expected one of"),
    (["build", "credit.csv", "--schema", "credit.toml", "--accepted", "credit"], "column 'credit': got 'good'"),
    (["build", "credit.csv", "--schema", "credit.toml", "--accepted", "credit=fine"], "got no row with 'fine'"),
    (
        ["build", "small.csv", "--schema", "small.toml", "--accepted", "ok"],
        "small.csv, row 2, x: got 99.0, expected 0 to 10; give the schema another low",
    ),
    (
        ["build", "gap.csv", "--schema", "small.toml", "--accepted", "ok"],
        "gap.csv, row 2, x: got nothing, expected 0 to 10",
    ),
    (
        ["build", "text.csv", "--schema", "small.toml", "--accepted", "ok"],
        "text.csv, row 1, x: got 'a', expected a number",
    ),
    (["build", "none.csv", "--schema", "small.toml", "--accepted", "ok"], "none.csv: got no such file"),
    (["build", "rejected.csv", "--schema", "small.toml", "--accepted", "ok"], "accepted: got none of 1 rows"),
    (["build", "credit.csv", "--schema", "credit.toml", "--accepted", "credit=--5"], "got no row with '--5'"),
    (
        ["build", "unseen.csv", "--schema", "job.toml", "--accepted", "ok"],
        "unseen.csv, row 1, job: got 'pilot', expected one of 'clerk'",
    ),
    (["build", "small.csv", "--schema", "odd.toml", "--accepted", "ok"], "odd.toml, feature 'number 1': got"),
    (
        ["build", "small.csv", "--schema", "huge.toml", "--accepted", "ok"],
        "huge.toml, feature 'x': got low: got 0.0",
    ),
    (["inspect", "credit.csv"], "credit.csv: got first line: something else, expected COUNTERVEIL BUNDLE 2"),
    (["inspect", "none.bundle"], "none.bundle: got No such file"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_errors_are_one_line_and_exit_code_2(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("x,ok\n")
    (folder / "bad.toml").write_text('[[feature]]\nname = "age"\nkind = "numeric"\nlow = "a"\nhigh = 1\nlevels = 1\n')
    (folder / "small.toml").write_text('[[feature]]\nname = "x"\nkind = "numeric"\nlow = 0\nhigh = 10\nlevels = 10\n')
    (folder / "small.csv").write_text("x,ok\n1,true\n99,true\n")
    (folder / "gap.csv").write_text("x,ok\n1,true\n,true\n")
    (folder / "text.csv").write_text("x,ok\na,true\n")
    (folder / "odd.toml").write_text("feature = [3]\n")
    (folder / "huge.toml").write_text(
        '[[feature]]\nname = "x"\nkind = "numeric"\nlow = 0\nhigh = 1e308\nstep = 1e-10\n'
    )
    (folder / "job.toml").write_text('[[feature]]\nname = "job"\nkind = "categorical"\nvalues = ["clerk"]\n')
    (folder / "unseen.csv").write_text("job,ok\npilot,true\n")
    (folder / "rejected.csv").write_text("x,ok\n1,false\n")
    paths = [str(folder / a) if "." in a and not a.startswith("-") else a for a in arguments]
    if arguments[0] == "build":
        paths += ["-o", str(folder / "out.bundle")]
    failed = run(*paths)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert failed.stderr.startswith("counterveil: ")
    assert failed.stderr.count("\n") == 1
    assert "Traceback" not in failed.stderr
    assert not (folder / "out.bundle").exists()


@pytest.mark.slow
def test_output_that_cannot_be_written(folder: Path) -> None:
    source, schema = folder / "credit.csv", folder / "credit.toml"
    nowhere = folder / "no" / "such" / "place"
    for output in (nowhere, folder):
        failed = run("schema", "infer", source, "-o", output)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
        assert "expected a place that can be written" in failed.stderr
        failed = run("build", source, "--schema", schema, "--accepted", "credit=good", "-o", output)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
        assert "expected a" in failed.stderr
    assert not list(folder.parent.glob(f".{folder.name}*"))
    odd = run("schema", "infer", source, "--levels", 0)
    assert odd.returncode == 2
    assert "Traceback" not in odd.stderr


def test_labels_are_shown_as_they_are_written(folder: Path) -> None:
    (folder / "label.toml").write_text(
        '[[feature]]\nname = "x"\nlabel = "[/x] income [net]"\nkind = "numeric"\nlow = 0\nhigh = 99\nlevels = 9\n'
    )
    (folder / "label.csv").write_text("x,ok,note\n1,true,2026-01-01\n")
    run(
        "build",
        folder / "label.csv",
        "--schema",
        folder / "label.toml",
        "--accepted",
        "ok",
        "-o",
        folder / "label.bundle",
    )
    shown = run("inspect", folder / "label.bundle")
    assert "[/x] income [net]" in shown.stdout, shown.stderr


def test_infer_says_what_it_leaves_out(folder: Path) -> None:
    names = "\n".join(f"person {i},{i % 7}" for i in range(60))
    (folder / "names.csv").write_text(f"name,x\n{names}\n")
    said = run("schema", "infer", folder / "names.csv", "-o", folder / "names.toml")
    assert "left out: name (it looks like an id: each value occurs once)" in said.stderr


@pytest.mark.slow
def test_bench_times_ours_and_others_side_by_side(tmp_path: Path) -> None:
    ran = run("bench", "--quick", "--json", "--rows", 2000, "--features", 5, "--plots", tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    named = {each["what"] for part in ("scans", "clear") for each in found[part]}
    assert {"streaming read of the codes", "SPIR's xor of records, one thread", "scikit-learn brute force"} <= named
    assert all(each["milliseconds"] > 0 for part in found.values() for each in part)
    assert (tmp_path / "speed.png").stat().st_size > 10_000
