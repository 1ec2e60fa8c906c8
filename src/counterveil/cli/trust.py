"""Options that the applicant's commands share: the servers' addresses, the keys they must have, and tickets."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..crypto.keys import read_public
from ..errors import WrongType
from ..terms.published import read_terms

_PATH = click.Path(path_type=Path)
UNPINNED = (
    "no operator's key is given (--operator): if the institution runs all these servers itself, it reads the question"
)


def addressed(command: Any) -> Any:
    """Give a command the options for the servers' addresses, the keys they must have, and tickets."""
    for option in (
        click.option(
            "--timeout",
            default=60.0,
            show_default=True,
            type=click.FloatRange(0.1, 86_400),
            help="Seconds that a server has to answer a request.",
        ),
        click.option(
            "--ca", type=_PATH, help="Trust the certificate authority in this PEM file instead of the system's."
        ),
        click.option(
            "--insecure",
            is_flag=True,
            help="Allow plain http to other machines; others on the network can then read the question.",
        ),
        click.option(
            "--operator",
            "operators",
            multiple=True,
            metavar="KEY",
            help="The public key, or its fingerprint, of a server that must be among those asked: a file, or "
            "hexadecimal digits. Get it from the operator of that server, not from the institution. Repeatable.",
        ),
        click.option(
            "--issuer", metavar="KEY", help="The public key that must have signed the terms: a file, or hexadecimal."
        ),
        click.option(
            "--tickets",
            "ticket_file",
            type=_PATH,
            help="A file of tickets, one a line, or - for standard input. `ask` uses the first that is not marked as "
            "used, and marks it.",
        ),
        click.option(
            "--ticket",
            metavar="TICKET",
            envvar="COUNTERVEIL_TICKET",
            help="The ticket itself. Others on this machine can read it in the list of processes, so a file "
            "(--tickets) or the environment (COUNTERVEIL_TICKET) is safer.",
        ),
        click.option(
            "--server", "servers", multiple=True, metavar="URL", help="A server's address. Repeat it for each."
        ),
        click.option(
            "--terms",
            type=_PATH,
            help="The institution's terms file. With it, your input is checked before any server is contacted.",
        ),
    ):
        command = option(command)
    return command


def trusted(
    terms: Path | None,
    timeout: float,
    ca: Path | None,
    insecure: bool,
    operators: Sequence[str],
    issuer: str | None,
) -> dict[str, Any]:
    """Return the client's options for terms, keys and connections."""
    return {
        "terms": None if terms is None else read_terms(terms),
        "timeout": timeout,
        "verify": trust(ca),
        "insecure": insecure,
        "operators": [_public_key("--operator", text) for text in operators],
        "issuer": None if issuer is None else _public_key("--issuer", issuer),
    }


def _public_key(option: str, text: str) -> bytes:
    """Read a public key from a file, or a key or fingerprint from hexadecimal digits."""
    if not Path(text).exists():
        try:
            pin = bytes.fromhex(text)
        except ValueError:
            pin = b""
        if len(pin) in ((16, 32) if option == "--operator" else (32,)):
            return pin
        raise WrongType(option, got=repr(text), expected="a key file, or its hexadecimal digits")
    return read_public(text)


def trust(ca: Path | None) -> ssl.SSLContext | bool:
    """Return how to check TLS certificates: by this authority, or by the system's."""
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise WrongType(str(ca), got=str(error), expected="a certificate authority in PEM") from None


def text_of(path: Path) -> str:
    """Read a file; - is standard input."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongType(str(path), got=getattr(error, "strerror", None) or "no text", expected="a file") from None
