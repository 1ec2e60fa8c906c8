"""What the servers show of themselves, and which of their offers to take: the newest that all servers of a ticket have.

An offer is signed terms and a common key. While servers get a new one, minutes apart, only some of them show it. The
applicant then takes an older one, which all of them still have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from ..errors import ServerFault
from ..terms.agreement import Peer, age, lacking, newest
from ..terms.published import check_terms
from ..terms.wire import SignedTerms
from .exchange import Connections, attempted

_FRESH = 300.0  # seconds for which what the servers show counts; they answer for longer under what they have shown

Wanted = Callable[[SignedTerms], Sequence[int] | None]  # the servers to ask by terms; none: all; None: not these terms


class Board:
    """The manifests that servers have shown, by address. First the newest of each; all of them where those differ."""

    def __init__(self) -> None:
        self.shown: dict[str, list[Peer]] = {}
        self.missing: dict[str, ServerFault] = {}  # servers that were out of reach
        self._read_at, self._is_whole = 0.0, False

    @property
    def is_fresh(self) -> bool:
        """Whether the servers were asked a short time ago."""
        return bool(self.shown) and time.monotonic() < self._read_at + _FRESH

    async def read(self, lines: Connections, urls: Sequence[str], patience: float) -> None:
        """Fetch the newest manifest of every server. One that is out of reach may be a spare, if two others are not."""
        found, errors = await attempted([partial(lines.visit, url, patience) for url in urls])
        missing = {urls[n]: error for n, error in errors.items() if isinstance(error, ServerFault)}
        other = [error for error in errors.values() if not isinstance(error, ServerFault)]
        if other or (errors and len(found) < 2):
            self.missing = missing
            raise other[0] if other else errors[min(errors)]
        self.shown, self.missing = {urls[n]: [found[n]] for n in sorted(found)}, missing
        self._read_at, self._is_whole = time.monotonic(), False

    async def choose(self, lines: Connections, wanted: Wanted) -> list[Peer]:
        """Return all servers that have the newest offer that is wanted; or what each has newest."""
        found = await self._newest(lines, wanted)
        if found is None and not self._is_whole:
            for url in self.shown:
                self.shown[url] = await self._all_of(lines, url)
            self._is_whole = True
            found = await self._newest(lines, wanted)
        return found or [peers[-1] for peers in self.shown.values()]

    def lacks(self, issued: SignedTerms, urls: Collection[str]) -> str:
        """Say which of some servers do not have these terms, and what to do; "" if all have them."""
        every = [(peers[-1], [peer.manifest for peer in peers]) for peers in self.shown.values()]
        return lacking(issued, [(peer, shown) for peer, shown in every if peer.url in urls])

    async def _all_of(self, lines: Connections, url: str) -> list[Peer]:
        """Fetch all manifests of a server, except those for another address of it."""
        first, shown = self.shown[url][-1], await lines.manifests(url)
        fit = [each for each in shown if each.issued.addresses[each.server - 1 : each.server] == (url,)]
        return [replace(first, manifest=each) for each in fit] or [first]

    async def _newest(self, lines: Connections, wanted: Wanted) -> list[Peer] | None:
        fault: ServerFault | None = None
        offered = {peer.manifest.issued for peers in self.shown.values() for peer in peers}
        for issued in sorted(offered, key=age, reverse=True):
            if sum(self._has(url, issued) for url in self.shown) < 2:
                continue
            asked = wanted(issued)
            if asked is None:
                continue
            urls = [issued.addresses[n - 1] for n in asked] or list(self.shown)
            if not all(self._has(url, issued) for url in urls if url in self.shown):
                continue
            try:
                await self._meet(lines, issued, [url for url in urls if url not in self.shown])
            except ServerFault as error:
                fault = fault or error
                continue
            found = newest([[peer.manifest for peer in self.shown[url]] for url in urls], partial(_is, issued))
            if found is not None:
                return self._peers(issued, found[0].key)
        if fault is not None:
            raise fault
        return None

    def _has(self, url: str, issued: SignedTerms) -> bool:
        return any(peer.manifest.issued == issued for peer in self.shown[url])

    async def _meet(self, lines: Connections, issued: SignedTerms, urls: Sequence[str]) -> None:
        """Fetch the manifests of servers that were out of reach, or that only these terms name."""
        if urls:
            check_terms(issued)  # before a connection to an address in them
        for url in urls:
            self.shown[url] = [await lines.visit(url)]
            if not self._has(url, issued):
                self.shown[url] = await self._all_of(lines, url)
            self.missing.pop(url, None)

    def _peers(self, issued: SignedTerms, key: str) -> list[Peer]:
        every = [peer for peers in self.shown.values() for peer in peers]
        return [peer for peer in every if peer.manifest.issued == issued and peer.manifest.key == key]


def _is(issued: SignedTerms, other: SignedTerms) -> bool:
    return issued == other
