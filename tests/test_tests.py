"""The tests themselves: what they share stands in modules of its own, and the quick ones cover the package."""

from __future__ import annotations

import ast
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
