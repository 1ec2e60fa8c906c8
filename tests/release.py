"""Build sdist and wheel, and try the wheel under each Python that this machine has; `make release` runs it.

Under each Python the wheel is tried twice: alone, with nothing but what it asks for; and with the pinned development
dependencies, by the quick tests. No test reads the package from the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

import counterveil

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
ALONE = """
import counterveil
assert "site-packages" in counterveil.__file__, counterveil.__file__
assert counterveil.retrieve([[20, 0], [0, 20]], [1, 2], largest=20, scheme="table/sealed").index == 1
"""


def run(*command: object) -> None:
    """Run a command in the repository. It may not see the package that lies there."""
    click.echo(f"+ {' '.join(map(str, command))}")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([*map(str, command)], check=True, cwd=ROOT, env=clean)


def interpreter(version: str) -> str | None:
    """Return the newest interpreter of a version: one on the PATH, or one of pyenv's."""
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}") or sys.executable
    says = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in (on_path, *map(str, sorted(own.glob(f"{version}.*/bin/python"), reverse=True))):
        said = subprocess.run([path, "-c", says], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:  # a shim of pyenv may be there and lead nowhere
            return path
    return None


def try_wheel(wheel: Path, python: str) -> None:
    """Install the wheel into two bare environments, and run it in both."""
    uv = [sys.executable, "-m", "uv"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("alone", "tests"):
            run(*uv, "venv", "--quiet", "--python", python, Path(folder) / name)
        alone, tests = (Path(folder) / name / "bin" for name in ("alone", "tests"))
        run(*uv, "pip", "install", "--quiet", "--python", alone / "python", wheel)
        run(alone / "python", "-c", ALONE)
        run(alone / "counterveil", "--version")
        requirements = ["--require-hashes", "--requirement", "requirements-dev.txt"]
        run(*uv, "pip", "install", "--quiet", "--python", tests / "python", *requirements)
        run(*uv, "pip", "install", "--quiet", "--python", tests / "python", "--no-deps", wheel)
        run(tests / "python", "-c", ALONE)
        quick = ["-n", "auto", "-m", "not slow", "--hypothesis-profile", "quick", "-q"]
        run(tests / "python", "-m", "pytest", "tests", *quick)


def main(versions: list[str]) -> None:
    """Build, and try the wheel under each of these versions of Python that is there."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build")
    wheel = DIST / f"counterveil-{counterveil.__version__}-py3-none-any.whl"
    found = {version: interpreter(version) for version in versions}
    for python in found.values():
        if python is not None:
            try_wheel(wheel, python)
    click.echo(f"{wheel.name} and its sdist are in dist/.")
    for version, python in found.items():
        click.echo(
            f"Python {version}: {'the quick tests passed' if python else 'not run, for it is not installed here'}"
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:] or [*PYTHONS])
    except subprocess.CalledProcessError as error:
        sys.exit(f"release: {error.cmd[0]} … failed, exit code {error.returncode}")
