"""Settings that commands take from a task file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import WrongType

if TYPE_CHECKING:
    from ..terms.task import Task
    from ..terms.wire import SignedTerms

_TASK = "counterveil.task"  # where the context of a command keeps what it knows of the task
_PLACES = ("epochs", "common_key", "key", "ledger")
_OWN = (*_PLACES, "host", "port", "tls_cert", "tls_key", "workers", "threads", "log_level", "operator_token", "budget")
"""Settings that a task file may have for a server. The digest does not cover them, so whoever sends the file could have
written them. Those that tell a server whom to trust, or to whom to send anything, are not among them."""


def task_defaults(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Take settings from a task file, where neither a flag, nor the environment, nor --config says otherwise.

    It is the callback of --task, and for `serve` of --server too: a server's settings need both.
    """
    if value is None:
        return None
    known = context.meta.setdefault(_TASK, {})
    known[parameter.name] = value
    if "task" in known and ("server" in known or context.command.name != "serve"):
        from ..terms.task import read_task  # here, so that a supervisor of servers without a task stays small

        path, number = known["task"], known.get("server")
        task = read_task(path)
        settings = of_server(path, task, number) if number is not None else _of_issuer(path, task)
        context.default_map = settings | dict(context.default_map or {})
    return value


def of_server(path: Path, task: Task, number: int) -> dict[str, Any]:
    """Return the settings of one server: those that its operator added, and where its files lie."""
    operator = task.server.get(str(number))
    if operator is None:
        raise WrongType("--server", got=number, expected=f"a server of {path}: {', '.join(task.server)}")
    own = {name.replace("-", "_"): value for name, value in operator.serve.items()}
    if others := own.keys() - set(_OWN):
        got = f"{min(others)} in [server.{number}.serve]"
        raise WrongType(str(path), got=got, expected="it on the command line or in --config: the digest covers none")
    places = {name: own.pop(name, getattr(task.places, name)) for name in _PLACES}
    return own | {name: placed(path, value) for name, value in places.items()}


def _of_issuer(path: Path, task: Task) -> dict[str, Any]:
    from ..terms.task import newest_terms

    given = {"valid": task.tickets.valid, "records": task.tickets.records, "robust": task.tickets.robust}
    terms = newest_terms(Path(placed(path, task.places.epochs)), time.time())
    return given | {"key": placed(path, task.places.issuer_key), "terms_file": str(terms)}


def placed(path: Path, place: str) -> str:
    """Return where a place of a task lies; an address of a database stays as it is."""
    return place if "://" in place else str(path.parent / place)


def check_by_task(context: click.Context, served: Iterable[SignedTerms]) -> None:
    """Refuse terms that do not fit the task file, if a command was given one."""
    path = context.meta.get(_TASK, {}).get("task")
    if path is not None:
        from ..terms.task import read_task

        task = read_task(path)
        for issued in served:
            task.check(issued)
