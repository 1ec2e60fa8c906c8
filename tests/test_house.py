"""The house: what `ls` shows, names of 0.1 that still work, and names that only the schemes may compare."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import counterveil
from counterveil import FORMS, REVEALS, make_scheme, retrieve
from counterveil.schemes.protocols import PROTOCOLS
from counterveil.schemes.scheme import ALIASES

SOURCE = Path(counterveil.__file__).parent


def test_ls_shows_the_packages() -> None:
    entries = [path.name for path in SOURCE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16, entries
    assert {path.name for path in SOURCE.iterdir() if path.suffix == ".py"} == {"__init__.py", "errors.py"}


def test_type_checkers_see_the_public_names_that_a_program_sees() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            module = f"{node.module}.{name.name}" if node.module else name.name
            seen[name.asname or name.name] = module
    told = {name: where.replace(":", ".") for name, where in counterveil._PUBLIC.items()}
    assert seen == told
    assert list(counterveil.__all__) == list(told)
    assert all(hasattr(counterveil, public) for public in told)


@pytest.mark.slow
@pytest.mark.parametrize("old", counterveil._MOVED)
def test_modules_import_under_their_old_names(old: str) -> None:
    """In a process of its own, since a module is imported once."""
    new = f"counterveil.{counterveil._MOVED[old]}"
    script = f"""
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import counterveil.{old} as old
import {new} as new
assert old is new and new.__spec__.name == {new!r}, (old, new.__spec__)
said = [str(w.message) for w in caught if w.category is DeprecationWarning]
assert said == ["counterveil.{old} has moved: import {new}"], said
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_old_names_of_the_issue_are_there() -> None:
    assert {"datasets", "keys", "tickets", "wire", "frames", "agreement", "randomness"} <= set(counterveil._MOVED)


def test_old_parameters_and_classes_warn_and_work() -> None:
    rows, x = [[20, 0], [0, 20]], [1, 2]
    with pytest.warns(DeprecationWarning, match="levels is now called largest"):
        assert retrieve(rows, x, levels=20).index == retrieve(rows, x, largest=20).index
    with pytest.warns(DeprecationWarning, match="levels is now called largest"):
        assert make_scheme("diff", levels=20, d=2) == make_scheme("diff", largest=20, d=2)
    frames = importlib.import_module("counterveil.schema.frames")
    with pytest.warns(DeprecationWarning, match="Columns"):
        assert frames.Table is frames.Columns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not hasattr(frames, "Other")


def test_only_the_schemes_compare_names_of_forms_reveals_and_protocols() -> None:
    names = {*FORMS, *REVEALS, *PROTOCOLS, *ALIASES, "table/sealed", "table/differences"}
    found = []
    for path in SOURCE.rglob("*.py"):
        if SOURCE / "schemes" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
                constants = [c for part in parts for c in ast.walk(part) if isinstance(c, ast.Constant)]
                found += [f"{path.name}:{node.lineno}" for c in constants if c.value in names]
    # a plan's kind is the engine's own word
    assert [place for place in found if not place.startswith(("cpu.py", "card.py"))] == []
