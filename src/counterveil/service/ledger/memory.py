"""A ledger in memory, for servers in a single process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import get_args

from ...crypto.randomness import new_id
from ...errors import Refused
from .contract import GRACE, PURGE_EVERY, Entry, Key, Row, Standing, State, check_clock, decide, one_by_one, unwritable


class MemoryLedger:
    """A ledger that threads may share. It is lost when the process ends, and with it which tickets were used."""

    at_once = 1

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.instance = new_id()
        self._clock, self._lock = clock, threading.RLock()
        self._tickets: dict[bytes, dict[Key, Row]] = {}
        self._watermark = self._questions = 0
        self._closed = False
        self.purge()

    def admit(self, key_id: bytes, *, bound: bool = False) -> None:
        """Take up any common key: this ledger begins empty, and ends with its process."""

    def perform(self, entry: Entry) -> Standing:
        """Enter a state if the table allows it, or refuse."""
        with self._lock:
            if self._closed:
                raise unwritable()
            if self._clock() - self._purged > PURGE_EVERY:
                self.purge()
            rows = self._tickets.get(entry.key.ticket, {})
            row, question, standing = decide(rows, entry, max(self._watermark, self._clock()))
            self._tickets[entry.key.ticket] = rows | {entry.key: row}
            self._questions += question
            return standing

    def perform_all(self, entries: Sequence[Entry]) -> list[Standing | Refused]:
        """Perform entries one after the other; in place of one that is not allowed return the refusal."""
        return one_by_one(self.perform, entries)

    def state(self, key: Key) -> State | None:
        """Return the state of a key, to tell it to the peer."""
        with self._lock:
            if self._closed:
                raise unwritable()
            row = self._tickets.get(key.ticket, {}).get(key)
        return row.state if row else None

    def purge(self) -> None:
        """Remove expired entries. The watermark keeps their tickets refused for ever, since it never falls."""
        with self._lock:
            self._purged = self._clock()
            self._watermark = max(self._watermark, int(self._purged))
            for ticket, rows in list(self._tickets.items()):
                kept = {key: row for key, row in rows.items() if self._is_kept(row)}
                if kept:
                    self._tickets[ticket] = kept
                else:
                    del self._tickets[ticket]

    def _is_kept(self, row: Row) -> bool:
        return row.expires + (0 if row.state == "spent" else GRACE) > self._watermark

    def counts(self) -> dict[State, int]:
        """Return how many entries are in each state."""
        with self._lock:
            states = [row.state for rows in self._tickets.values() for row in rows.values()]
        return {state: states.count(state) for state in get_args(State)}

    def count(self) -> int:
        """Return how many entries there are."""
        return sum(self.counts().values())

    def questions(self) -> int:
        """Return how many tickets were ever used."""
        return self._questions

    def check(self) -> None:
        """Refuse unless the ledger is open, and the clock is not behind its watermark."""
        if self._closed:
            raise unwritable()
        check_clock(self._watermark, self._clock())

    def close(self) -> None:
        """Close the ledger: it refuses every entry from now on."""
        self._closed = True
