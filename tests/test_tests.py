"""The tests themselves: shared code has modules of its own, and the quick tests cover every package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def imported(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, and of what it imports from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)}
    return names


def test_nothing_is_imported_from_a_test_module() -> None:
    files = sorted(TESTS.rglob("*.py"))
    tests = {path.stem for path in files if path.name.startswith("test_")}
    assert len(tests) > 30
    for path in files:
        parts = {part for name in imported(path) for part in name.split(".")}
        assert not parts & tests, path
    assert "browser" in {part for name in imported(TESTS / "test_page.py") for part in name.split(".")}  # a control


def test_the_quick_tests_cover_every_package() -> None:
    """Each package is imported by a test module that `make quick` does not leave out whole."""
    packages = {path.parent.name for path in (TESTS.parent / "src" / "counterveil").glob("*/__init__.py")}
    assert {"algebra", "schemes", "service", "applicant"} <= packages
    quick = [
        path for path in TESTS.rglob("test_*.py") if "\npytestmark = pytest.mark.slow\n" not in path.read_text("utf-8")
    ]
    assert TESTS / "test_service.py" not in quick
    covered = {name.split(".")[1] for path in quick for name in imported(path) if name.startswith("counterveil.")}
    assert packages <= covered


def test_what_to_run_first_is_named_first() -> None:
    root = TESTS.parent
    commands = re.findall(r"^make \w+", (root / "CONTRIBUTING.md").read_text("utf-8"), flags=re.M)
    assert commands[:2] == ["make quick", "make test"]
    assert 'echo "make quick ' in (root / "Makefile").read_text("utf-8")
