"""Which tickets were used, and for what. `contract` has the rules, `sqlite` a file that lasts, `memory` one process."""

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
