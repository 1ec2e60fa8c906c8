"""The task file: what the institution and every operator agree on before they start, in one public TOML file.

`serve --task` and `ticket issue --task` take what they need from it. Each party may add settings of its own, which are
not part of the digest. People compare the digest by telephone. There is no secret in the file, only ids of keys.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..crypto.keys import CommonKey
from ..errors import InvalidTerms
from .addresses import Address
from .agreement import age
from .parameters import MOST_RECORDS
from .published import read_terms
from .wire import MOST_ROBUST, Hex16, Hex32, Service, SignedTerms

_GROUPS, _DIGITS = 8, 5  # of the digest as people say it
_SHORT = 16  # bytes of the digest that people compare


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server: its address, its own public key, and settings of `serve` that its operator adds for itself."""

    address: Address
    key: Hex32
    serve: dict[str, Any] = {}


class Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One epoch: the digests of its terms and of its bundle, and when it begins and ends."""

    terms: Hex32
    database: Hex32
    begins: datetime | None = None
    ends: datetime | None = None


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A common key, by its id, and when it begins and ends."""

    id: Hex16
    begins: datetime | None = None
    ends: datetime | None = None


class Tickets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `ticket issue` mints unless it is told otherwise."""

    valid: str = "7d"
    records: Annotated[int, Meta(ge=1, le=MOST_RECORDS)] = 1
    robust: Annotated[int, Meta(ge=0, le=MOST_ROBUST)] = 0


class Places(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Where files lie at each party, seen from the task file."""

    epochs: str = "epochs"
    common_key: str = "keys"
    key: str = "server.key"
    ledger: str = "ledger"
    issuer_key: str = "issuer.key"


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", dict=True):
    """A task file. `server` has one entry for each number, from "1" on."""

    version: Literal[1]
    service: Service
    issuer: Hex32
    server: dict[str, Operator]
    epoch: list[Epoch] = []
    common_key: list[Common] = []
    tickets: Tickets = Tickets()
    places: Places = Places()

    def digest(self) -> bytes:
        """Return the digest of everything that all parties share: not places, and not an operator's own settings."""
        servers = {number: [each.address, each.key] for number, each in self.server.items()}
        shared = [self.version, self.service, self.issuer, servers, self.epoch, self.common_key, self.tickets]
        return hashlib.sha256(msgspec.json.encode(shared, order="deterministic")).digest()

    def check(self, issued: SignedTerms) -> None:
        """Refuse terms of another issuer or service, or with other servers than the task's."""
        terms = issued.terms
        for what, got, expected in (
            ("issuer", terms.issuer, self.issuer),
            ("service", terms.service, self.service),
            ("servers", [*zip(issued.addresses, terms.keys, strict=True)], self.servers()[: len(terms.keys)]),
        ):
            if got != expected:
                raise InvalidTerms("terms", got=f"another {what} than the task's", expected=str(expected)[:200])

    def servers(self) -> list[tuple[str, str]]:
        """Return the address and the key of each server, in order of their numbers."""
        listed = [self.server.get(str(n)) for n in range(1, len(self.server) + 1)]
        if None in listed:
            raise InvalidTerms("task", got=f"servers {', '.join(self.server)}", expected="numbers from 1 on")
        return [(each.address, each.key) for each in listed if each is not None]


def spoken(digest: bytes) -> str:
    """Return a digest as groups of digits, which people can compare by telephone.

    >>> spoken(bytes(32))
    '00000 00000 00000 00000 00000 00000 00000 00000'
    """
    digits = str(int.from_bytes(digest[:_SHORT], "big")).zfill(_GROUPS * _DIGITS)
    return " ".join(digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))


def make_task(terms: list[SignedTerms], keys: list[CommonKey], tickets: Tickets) -> Task:
    """Return the task of these terms and common keys. The newest terms say which servers there are."""
    latest = max(terms, key=age)
    listed = zip(latest.addresses, latest.terms.keys, strict=True)
    task = Task(
        version=1,
        service=latest.terms.service,
        issuer=latest.terms.issuer,
        server={str(n): Operator(address, key) for n, (address, key) in enumerate(listed, start=1)},
        epoch=[epoch_of(issued) for issued in sorted(terms, key=age)],
        common_key=[Common(key.id.hex(), _moment(key.begins or None), _moment(key.ends)) for key in keys],
        tickets=tickets,
    )
    for issued in terms:
        task.check(issued)
    return task


def epoch_of(issued: SignedTerms) -> Epoch:
    """Return what a task says of some terms."""
    terms = issued.terms
    return Epoch(issued.digest.hex(), terms.database, _moment(terms.begins), _moment(terms.ends))


def _moment(at: Any) -> datetime | None:
    return datetime.fromtimestamp(at, UTC) if isinstance(at, int) else None


def read_task(path: str | Path) -> Task:
    """Read a task file."""
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
        task = msgspec.convert(given, Task)
        task.servers()
        return task
    except OSError as error:
        raise InvalidTerms(str(path), got=error.strerror, expected="a task file") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidTerms(str(path), got=str(error)[:300], expected="a task file, as provision makes it") from None


def write_task(path: str | Path, task: Task) -> None:
    """Write a task file atomically."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(_lines(task)) + "\n")
        os.chmod(temporary, 0o644)  # everybody may read it
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidTerms(str(path), got=error.strerror, expected="a place that can be written") from None


def _lines(task: Task) -> Iterator[str]:
    """Yield the lines of a task file."""
    yield "# What the institution and all operators of a service agree on. There is no secret in it."
    yield "# `counterveil provision check` compares it with the files here, and shows its digest."
    yield from _values({"version": task.version, "service": task.service, "issuer": task.issuer})
    for heading, value in (("tickets", task.tickets), ("places", task.places)):
        yield f"\n[{heading}]"
        yield from _values(msgspec.to_builtins(value, builtin_types=(datetime,)))
    for number, operator in task.server.items():
        yield f"\n[server.{number}]"
        yield from _values({"address": operator.address, "key": operator.key})
        if operator.serve:
            yield f"[server.{number}.serve]  # this operator's own settings"
            yield from _values(operator.serve)
    for heading, values in (("epoch", task.epoch), ("common-key", task.common_key)):
        for each in values:
            yield f"\n[[{heading}]]"
            yield from _values(msgspec.to_builtins(each, builtin_types=(datetime,)))


def _values(values: dict[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, datetime):
            yield f"{name} = {value.isoformat()}"
        elif value is not None:
            yield f"{name} = {msgspec.json.encode(value).decode()}"  # JSON's texts, numbers and lists are TOML's too


def newest_terms(folder: Path, now: float) -> Path:
    """Return the terms file of a folder that begins last, of those that have not ended."""
    found = [(age(issued := read_terms(path)), path, issued.terms.ends) for path in folder.glob("*.terms")]
    live = [(order, path) for order, path, ends in found if not isinstance(ends, int) or ends > now]
    if not live:
        raise InvalidTerms(str(folder), got="no terms that are not over", expected="NAME.terms")
    return max(live)[1]
