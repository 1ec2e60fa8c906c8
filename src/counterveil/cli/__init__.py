"""The command line. An error is one line on standard error and exit code 2, never a traceback."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import click

from ..errors import CounterveilError

_COMMANDS = {  # each command, and the module that it is in
    "advise": "research",
    "ask": "ask",
    "attack": "research",
    "bench": "bench",
    "build": "institution",
    "deal": "deal",
    "doctor": "doctor",
    "inspect": "institution",
    "keygen": "provision",
    "leakage": "research",
    "ledger": "ledger",
    "reproduce": "reproduce",
    "schema": "institution",
    "serve": "institution",
    "terms": "provision",
    "ticket": "provision",
}


class _Group(click.Group):
    """Loads the module of the command that is run, and turns Counterveil's own errors into one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found: click.Command = getattr(import_module(f".{_COMMANDS[cmd_name]}", __name__), cmd_name)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = lambda message, *_, **__: click.echo(f"counterveil: warning: {message}", err=True)
        try:
            return super().invoke(ctx)
        except CounterveilError as error:
            click.echo(f"counterveil: {' '.join(str(error).split())}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "COUNTERVEIL"})
@click.version_option(package_name="counterveil")
def main() -> None:
    """Find out what would have been accepted, without showing anybody what you ask."""
