"""Ledgers say which tickets were used. `contract` has the rules; `sqlite`, `postgres` and `memory` keep the entries."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ...errors import InvalidLedger, MissingPackage
from .backups import backup
from .contract import (
    GRACE,
    KEY_ID_BYTES,
    MOST_ATTEMPTS,
    MOST_SERVED,
    TABLE,
    AnyLedger,
    Entry,
    Key,
    Standing,
    State,
)
from .memory import MemoryLedger
from .sqlite import Ledger

__all__ = [
    "GRACE",
    "KEY_ID_BYTES",
    "MOST_ATTEMPTS",
    "MOST_SERVED",
    "TABLE",
    "AnyLedger",
    "Entry",
    "Key",
    "Ledger",
    "MemoryLedger",
    "Standing",
    "State",
    "backup",
    "is_address",
    "open_ledger",
    "postgres_at",
]


def is_address(ledger: str | Path) -> bool:
    """Say whether a ledger is named by the address of a PostgreSQL database, not by the path of a file."""
    return str(ledger).startswith(("postgresql://", "postgres://"))


def postgres_at(ledger: str) -> ModuleType:
    """Return the module for ledgers in PostgreSQL; refuse the path of a file."""
    if not is_address(ledger):
        raise InvalidLedger(ledger, got="a path", expected="an address: postgresql://user@host:port/database")
    try:
        from . import postgres
    except ImportError as error:
        raise MissingPackage(
            "a ledger in PostgreSQL", got=f"no {error.name or 'libpq'}", expected="counterveil[postgres]"
        ) from None
    return postgres


def open_ledger(
    ledger: str, server: int, *, key_id: bytes | None = None, owner: bytes = b"", new: bool = False, bound: bool = False
) -> AnyLedger:
    """Open a server's ledger, in a file or in PostgreSQL; with `new`, make it. `admit` takes up common keys.

    `bound` says that the common key was used before. A database that does not know it then lacks entries; a backup of a
    file refuses the keys that it knows, and has another instance id.
    """
    if not is_address(ledger):
        return Ledger(ledger, server, key_id=key_id, owner=owner, new=new)
    kind = postgres_at(ledger).PostgresLedger
    opened: AnyLedger = kind(ledger, server, key_id=key_id, owner=owner, new=new, bound=bound)
    return opened
