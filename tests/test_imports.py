"""A program loads only the modules that it uses: no servers, figures or compilers that it does not need."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest

from counterveil import cli

HEAVY = ["fastapi", "matplotlib", "numba", "sklearn", "sympy", "uvicorn", "pandas", "polars"]
ASK_HELP = "from counterveil.cli import main; main(['ask', '--help'], standalone_mode=False)"


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import counterveil", [*HEAVY, "httpx2", "numpy", "msgspec", "click", "rich"]),
        ("from counterveil import Schema", [*HEAVY, "httpx2", "rich", "cryptography"]),
        ("from counterveil import Database", [*HEAVY, "httpx2", "rich"]),
        ("from counterveil import Client", [*HEAVY, "rich"]),
        (ASK_HELP, [*HEAVY, "counterveil.research", "counterveil.service", "counterveil.institution"]),
    ],
)
def test_only_what_is_used_is_loaded(program: str, absent: list[str]) -> None:
    said = f"{program}\nimport sys; print('loaded', *(name for name in {absent} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded"


def test_every_command_is_found_in_the_module_that_the_table_names() -> None:
    context = click.Context(cli.main)
    for module in set(cli._COMMANDS.values()):
        found = [each for each in vars(import_module(f"counterveil.cli.{module}")).values() if is_command(each)]
        inner = [each for group in found if isinstance(group, click.Group) for each in group.commands.values()]
        named = {name: cli.main.get_command(context, name) for name, home in cli._COMMANDS.items() if home == module}
        assert named == {each.name: each for each in found if each not in inner}
    assert cli.main.get_command(context, "no-such-command") is None


def is_command(value: object) -> bool:
    return isinstance(value, click.Command)
