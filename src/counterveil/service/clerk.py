"""Enter what requests wait for in the ledger: one thread, and one transaction for all that wait meanwhile.

A ledger in a file waits for the disk at the end of each transaction, and the disk takes as long for many entries as for
one. So entries that arrive during a transaction wait for its end, and are then entered together. A ledger in a database
ends many transactions at the same time, and gets as many threads as it can use.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from ..errors import Refused
from .ledger import AnyLedger, Entry, Standing

_TOGETHER = 256  # entries of one transaction


class _Waiting(NamedTuple):
    entry: Entry
    outcome: asyncio.Future[Standing]


class Clerk:
    """Performs entries for one event loop. As many wait as there are places for answers (`desk`)."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger, self._free = ledger, ledger.at_once
        self._most = _TOGETHER if ledger.at_once == 1 else 1
        self._threads = ThreadPoolExecutor(ledger.at_once, thread_name_prefix="clerk")
        self._waiting: deque[_Waiting] = deque()

    async def perform(self, entry: Entry) -> Standing:
        """Enter a state if the ledger allows it, or refuse. The entry is durable on return.

        If the caller is cancelled, the entry may still be performed.
        """
        waiting = _Waiting(entry, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._begin()
        return await waiting.outcome

    def _begin(self) -> None:
        """Hand entries that wait to a thread, if one is free."""
        while self._free and self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            entries = [each.entry for each in batch]
            self._free -= 1
            done = asyncio.get_running_loop().run_in_executor(self._threads, self._ledger.perform_all, entries)
            done.add_done_callback(partial(self._end, batch))

    def _end(self, batch: list[_Waiting], done: asyncio.Future[list[Standing | Refused]]) -> None:
        """Tell everybody in a batch what came of their entry."""
        self._free += 1
        failed = done.exception()
        for place, (_, outcome) in enumerate(batch):
            said = failed or done.result()[place]
            if outcome.cancelled():
                continue
            if isinstance(said, Standing):
                outcome.set_result(said)
            else:
                outcome.set_exception(said)
        self._begin()
