"""The command line. An error is one line on standard error and exit code 2, never a traceback.

docs/command-line.md lists the exit codes.
"""

from __future__ import annotations

import json
import warnings
from importlib import import_module
from typing import Any

import click

from ..errors import CounterveilError

_COMMANDS = {  # each command, and the module that it is in
    "advise": "advise",
    "ask": "ask",
    "attack": "attack",
    "bench": "bench",
    "build": "institution",
    "deal": "deal",
    "doctor": "doctor",
    "inspect": "institution",
    "keygen": "provision",
    "leakage": "research",
    "ledger": "ledger",
    "plan": "plan",
    "provision": "task",
    "reproduce": "reproduce",
    "rotate": "rotate",
    "schema": "institution",
    "serve": "serve",
    "terms": "provision",
    "ticket": "provision",
    "verify": "verify",
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
        as_json = "--json" in ctx.args

        def say(what: str, text: str, **more: str) -> None:
            line = " ".join(text.split())
            shown = f"counterveil: {'warning: ' * (what == 'warning')}{line}"
            click.echo(json.dumps({what: line} | more, ensure_ascii=False) if as_json else shown, err=True)

        ctx.obj = say
        warnings.showwarning = lambda message, *_, **__: say("warning", str(message))
        try:
            return super().invoke(ctx)
        except CounterveilError as error:
            say("error", str(error), kind=type(error).__name__)
            ctx.exit(2)
        except click.UsageError as error:
            if not as_json:
                raise
            say("error", error.format_message(), kind="UsageError")
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"auto_envvar_prefix": "COUNTERVEIL"})
@click.version_option(package_name="counterveil")
def main() -> None:
    """Find out what would have been accepted, without showing anybody what you ask."""
