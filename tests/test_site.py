"""The documentation site builds without warnings, its notebooks run, and the institution's page works as printed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import lightgbm
import pytest

import counterveil
from counterveil.research.datasets import german_credit
from patience import LONG
from shell import run_in_shell

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = ("applicant", "institution", "researcher")


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_shows_what_the_notebooks_draw(tmp_path: Path) -> None:
    """As `make docs` does: Sphinx runs the notebooks with nbclient, and fails if a cell fails."""
    makefile = (ROOT / "Makefile").read_text()
    (flags,) = re.findall(r"-m sphinx (.*) -d build/doctrees \. build/site$", makefile, flags=re.M)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *flags.split(), "-d", tmp_path / "doctrees", ".", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "index.html").exists()
    for name in NOTEBOOKS:
        page = (tmp_path / "site" / "examples" / f"{name}.html").read_text()
        assert re.search(r'<img [^>]*src="\.\./_images/[0-9a-f]+\.png"', page), name
    assert "accepted at" in (tmp_path / "site" / "examples" / "applicant.html").read_text()  # the answer's own table
    commands = (tmp_path / "site" / "docs" / "commands.html").read_text()
    assert 'id="cmdoption-counterveil-serve-common-key"' in commands


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stripped_and_use_public_names(name: str) -> None:
    book = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None]
    used = set()
    for node in ast.walk(ast.parse("\n".join("".join(cell["source"]) for cell in cells))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("counterveil"):
            assert node.module == "counterveil"
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            assert not [alias for alias in node.names if alias.name.startswith("counterveil.")]
    assert used
    assert used <= set(counterveil.__all__)


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^\.\. (?:auto\w+|py:data):: (?:counterveil\.)?(\w+)$", (DOCS / "api.md").read_text(), re.M)
    errors = {name for name in counterveil.__all__ if hasattr(counterveil.errors, name)}  # with all other errors
    assert sorted(listed) == sorted(set(counterveil.__all__) - errors)


def test_every_extra_is_on_the_institutions_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (DOCS / "institution.md").read_text()
    assert not [extra for extra in project["optional-dependencies"] if f"\n| `{extra}` |" not in page]


@pytest.mark.slow
def test_the_institutions_page_as_printed(tmp_path: Path) -> None:
    """All its commands and programs, in order: build, sign, serve, ask, roll over, back up, restore."""
    frame, _ = german_credit()
    people = frame.rename({"credit": "verdict"})
    people.write_csv(tmp_path / "people.csv")
    (tmp_path / "many").mkdir()
    for n in range(2):
        people.slice(500 * n, 500).write_parquet(tmp_path / "many" / f"{n}.parquet")
    numbers = people.select("duration", "amount", "age").to_pandas()
    fitted = lightgbm.LGBMClassifier(n_estimators=30, num_leaves=8, verbose=-1).fit(numbers, frame["credit"] == "good")
    fitted.booster_.save_model(tmp_path / "model.txt")
    person = people.drop("verdict").row(29, named=True)  # whom both models of the page reject
    (tmp_path / "me.json").write_text(json.dumps(person))
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", (DOCS / "institution.md").read_text(), flags=re.S | re.M)
    assert [language for language, _ in blocks].count("python") == 2
    said = run_in_shell(
        "\n".join(code if language == "sh" else f"python - <<'EOF'\n{code}EOF" for language, code in blocks), tmp_path
    )
    assert said.count("everything else may stay as it is.") == 3
    assert said.count("All is well.") == 2
    assert "one.backup: a backup of 6 requests." in said
