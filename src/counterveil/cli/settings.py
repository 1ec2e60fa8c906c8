"""The file of settings of serve (`--config`), and the log level that it says while the server runs."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import CounterveilError, UnknownName, WrongType

log = logging.getLogger("counterveil")

LEVELS = ["debug", "info", "warning", "error"]
_FILE = "counterveil.settings"  # in a context: the file of settings, if there is one
_AT_START = "epochs, keys and all else are read at a start; restart, or run with --workers"  # on SIGHUP


def settings_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Read settings from a TOML file; flags and the environment override it."""
    if path is not None:
        ctx.meta[_FILE] = path
        ctx.default_map = dict(ctx.default_map or {}) | _read_settings(ctx, path)


def _read_settings(ctx: click.Context, path: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise WrongType(str(path), got=error.strerror, expected="a file of settings") from None
    except ValueError as error:
        raise WrongType(str(path), got=str(error), expected="TOML") from None
    known = {option.opts[-1].lstrip("-"): option for option in ctx.command.params if isinstance(option, click.Option)}
    del known["config"], known["task"]
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UnknownName(str(path), got=name, expected=f"one of {', '.join(sorted(known))}")
        option = known[name]
        parts = value if option.multiple and isinstance(value, list) else [value]
        if option.multiple != isinstance(value, list) or not all(isinstance(v, str | int | float) for v in parts):
            expected = "a list of texts" if option.multiple else "one value"
            raise WrongType(f"{path}, {name}", got=repr(value), expected=expected)
        settings[str(option.name)] = value
    return settings


def take_new_log_level(ctx: click.Context) -> None:
    """Log by the level that the file of settings has now, unless a flag or the environment says which."""
    source, path = ctx.get_parameter_source("log_level"), ctx.meta.get(_FILE)
    if path is None or source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        log.warning(f"SIGHUP, and no file of settings says the log level; nothing is changed; {_AT_START}")
        return
    try:
        level = _read_settings(ctx, path).get("log_level", "info")
        if level not in LEVELS:
            raise UnknownName(f"{path}, log-level", got=repr(level), expected=f"one of {', '.join(LEVELS)}")
    except CounterveilError as error:
        log.error("SIGHUP, and the settings cannot be read; nothing is changed", extra={"fields": {"why": str(error)}})
        return
    for name in ("counterveil", "uvicorn.error"):
        logging.getLogger(name).setLevel(level.upper())
    log.log(logging.getLogger("counterveil").level, "log level", extra={"fields": {"is": level, "else": _AT_START}})
