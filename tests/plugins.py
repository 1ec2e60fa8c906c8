"""Load forms of the question from outside, as if a package were installed: its module, and its entry points."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "capped_l1"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: Path = EXAMPLE) -> None:
    """Put a project's module and entry points where this process, and those it starts, find them."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items())
        for group, each in project["entry-points"].items()
    )
    name = project["name"].replace("-", "_")
    metadata = folder / f"{name}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "entry_points.txt").write_text(points)
    for module in source.glob("*.py"):
        shutil.copy(module, folder)
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
    importlib.invalidate_caches()
