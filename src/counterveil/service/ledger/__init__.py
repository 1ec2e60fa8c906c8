"""Ledgers say which tickets were used. `contract` has the rules, `sqlite` keeps them in a file, `memory` in memory."""

from .contract import (
    GRACE,
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
from .sqlite import KEY_ID_BYTES, Ledger, backup

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
]
