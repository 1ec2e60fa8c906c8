"""The dealing server: it sends tapes ahead of questions, to every two processes that are linked to each other.

It holds nothing of the database: the terms, which are public, and its own key are enough. It learns that a question
took place, and nothing else.

The dealer keeps a stock at each pair of processes. A tape's name is the boot id of the dealer's process and a number. A
half leaves once, and is never made again. First the follower gets its half. When it has said so, the leader gets the
other. When one of them has used or lost its half, the stock is filled up.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from ..algebra.arrays import Bytes
from ..crypto.keys import SigningKey
from ..errors import InvalidKey, InvalidTerms, Malformed, Refused
from ..schemes.protocols import Size
from ..terms.published import deployment_of
from ..terms.wire import SignedTerms
from .link.channel import Channel
from .link.frames import Frame, Kept, Peers, Tape, Used
from .link.handshake import DEALER
from .link.hub import Links
from .stock import MOST, deal, halves

log = logging.getLogger("counterveil")

_PIECE = 1 << 18  # bytes of a tape in one frame: small, so that openings do not wait long behind it
_AHEAD = 1 << 21  # bytes that wait to be sent to one process
_GRACE = 60.0  # seconds for a follower to claim a tape that the leader has picked
_PAUSE = 1.0  # seconds until a pair is looked at again
_STOCK, _FEWEST, _MANY = 64 << 20, 2, 32  # the default stock: bytes, and the fewest and the most tapes
_NUMBER = 16  # bytes of a tape's number


class _Pair(NamedTuple):
    """Two processes by their boot ids: one of the server with the lower number, and one of the other."""

    leader: bytes
    follower: bytes


@dataclass
class _Dealt:
    """A tape that was dealt."""

    pair: _Pair
    holders: dict[bytes, int] = field(default_factory=dict)  # processes that have a half, and its bytes
    kept: asyncio.Event = field(default_factory=asyncio.Event)  # at the follower, whole
    spent: bool = False  # one of them has used or lost it


@dataclass
class _Told:
    """What a process has said over one connection."""

    peers: frozenset[bytes] | None = None  # None until it has said so
    kept: set[bytes] = field(default_factory=set)  # tapes that it had when the connection opened


class Dealer:
    """A dealing server. `urls` are addresses of the servers' processes; by default those in the terms."""

    def __init__(
        self,
        issued: SignedTerms,
        own: SigningKey,
        urls: Sequence[str] = (),
        *,
        stock: int | None = None,
        insecure: bool = False,
    ) -> None:
        terms, deployment = issued.terms, deployment_of(issued.terms)
        if not terms.dealer:
            raise InvalidTerms("terms", got="no dealing server", expected="terms made with --dealer server")
        if own.public.hex() != terms.dealer:
            raise InvalidKey("dealer's key", got="another one", expected="that of the dealing server in the terms")
        self._scheme, self._size = deployment.scheme, Size(terms.rows, deployment.record_bytes, deployment.k)
        self.lengths = halves(self._scheme, self._size)
        self.stock = stock or min(max(_STOCK // max(self.lengths), _FEWEST), _MANY)
        self._service, self._rows = terms.service, terms.rows
        self._told: dict[Channel, _Told] = {}
        self._tapes: dict[bytes, _Dealt] = {}
        self._filling: dict[_Pair, asyncio.Task[None]] = {}
        self._filled: set[_Pair] = set()
        self._number, self._one = 0, anyio.CapacityLimiter(1)
        self.links = Links(
            number=DEALER,
            own=own,
            service=terms.service,
            pinned={n: bytes.fromhex(key) for n, key in enumerate(terms.keys, start=1)},
            urls=list(urls) or list(issued.addresses),
            heard=self.heard,
            opened=self.opened,
            lost=self.lost,
            insecure=insecure,
        )

    def about(self) -> dict[str, Any]:
        """Return the facts that the log shows when the dealer starts."""
        return {"service": self._service, "rows": self._rows, "tape_bytes": self.lengths, "stock": self.stock}

    async def run(self) -> None:
        """Deal until a signal."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        dialling = asyncio.create_task(self.links.run())
        log.info("dealing", extra={"fields": self.about()})
        await stop.wait()
        await self.links.close()
        await dialling

    # --- what processes say -----------------------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        """Take up a connection to a process. It begins with what the process has and whom it is linked to."""
        self._told[channel] = _Told()

    def lost(self, channel: Channel) -> None:
        """Take note that a connection is gone. The process may come back, and still have its tapes."""
        del self._told[channel]
        if self._line(channel.boot) is None:
            for task in [task for pair, task in self._filling.items() if channel.boot in pair]:
                task.cancel()
            self._filled = {pair for pair in self._filled if channel.boot not in pair}
        for name in [*self._tapes]:
            self._forget(name)
        self._tend()

    def heard(self, channel: Channel, frame: Frame) -> None:
        """Take what a process says; an error ends the connection."""
        told = self._told[channel]
        if isinstance(frame, Peers):
            if told.peers is None and self._line(channel.boot) is channel:
                self._compare(channel, told.kept)
            told.peers = frozenset(frame.boots)
        elif isinstance(frame, Kept):
            tape = self._tapes.get(frame.id)
            if tape is None or channel.boot not in tape.holders:
                channel.send(Used(frame.id))  # the other half is gone
            elif told.peers is None:
                told.kept.add(frame.id)
            elif channel.boot == tape.pair.follower:
                tape.kept.set()
        elif isinstance(frame, Used):
            self._used(channel.boot, frame.id)
        else:
            raise Malformed("frame", got=type(frame).__name__.lower(), expected="what a server tells a dealer")
        self._tend()

    def _compare(self, channel: Channel, kept: set[bytes]) -> None:
        """Take note of tapes that a process used while it was away."""
        for name in [name for name, tape in self._tapes.items() if channel.boot in tape.holders and name not in kept]:
            self._used(channel.boot, name)

    def _used(self, boot: bytes, name: bytes) -> None:
        tape = self._tapes.get(name)
        if tape is None or tape.holders.pop(boot, None) is None:
            return
        tape.spent = True
        tape.kept.set()  # nobody need wait for it
        if boot == tape.pair.follower:
            self._recall(name, tape.pair.leader)
        else:  # the follower needs its half now, or never
            asyncio.get_running_loop().call_later(_GRACE, self._recall, name, tape.pair.follower)
        self._forget(name)

    def _recall(self, name: bytes, holder: bytes) -> None:
        """Tell a process that the other half of a tape is gone."""
        tape, line = self._tapes.get(name), self._line(holder)
        if tape is not None and holder in tape.holders and line is not None:
            with suppress(Refused):
                line.send(Used(name))

    def _forget(self, name: bytes) -> None:
        """Forget a tape if nobody who is connected has it."""
        tape = self._tapes.get(name)
        if tape is not None and not any(self._line(holder) for holder in tape.holders):
            del self._tapes[name]

    # --- the stock --------------------------------------------------------------------------------------------------

    def _line(self, boot: bytes) -> Channel | None:
        """Return the oldest connection to a process."""
        return next((channel for channel in self._told if channel.boot == boot and channel.alive), None)

    def _met(self, leader: Channel, follower: Channel) -> bool:
        """Say whether two processes are of two servers, in this order, and both say that they are linked."""
        to, back = self._told[leader].peers or (), self._told[follower].peers or ()
        return leader.number < follower.number and follower.boot in to and leader.boot in back

    def _pairs(self) -> list[_Pair]:
        lines = [channel for channel in self._told if self._line(channel.boot) is channel]
        return [_Pair(a.boot, b.boot) for a in lines for b in lines if self._met(a, b)]

    def _tend(self) -> None:
        """Fill every stock that is not full."""
        for pair in self._pairs():
            if pair not in self._filling and self._lacks(pair):
                self._filling[pair] = asyncio.get_running_loop().create_task(self._fill(pair))

    def _lacks(self, pair: _Pair) -> bool:
        """Say whether a pair has fewer tapes than it should, and room for one."""
        if sum(tape.pair == pair and not tape.spent for tape in self._tapes.values()) >= self.stock:
            return False
        held = [sum(tape.holders.get(boot, 0) for tape in self._tapes.values()) for boot in pair]
        return all(not has or has + length <= MOST for has, length in zip(held, self.lengths, strict=True))

    async def _fill(self, pair: _Pair) -> None:
        try:
            while pair in self._pairs() and self._lacks(pair):
                await self._supply(pair)
            if pair in self._pairs() and pair not in self._filled:
                self._filled.add(pair)
                log.info("stock full", extra={"fields": {"boots": [boot.hex() for boot in pair]}})
        except Refused as error:
            log.debug("tape lost", extra={"fields": {"why": str(error)}})
        except Exception as error:  # other pairs go on
            log.error("failure", extra={"fields": {"error": type(error).__name__, "at": "dealing"}})
        finally:
            del self._filling[pair]
            if self._line(pair.leader) and self._line(pair.follower):  # one may have come back meanwhile
                asyncio.get_running_loop().call_later(_PAUSE, self._tend)

    async def _supply(self, pair: _Pair) -> None:
        """Deal a tape and send both halves; if that fails, recall what was sent."""
        first, second = await anyio.to_thread.run_sync(deal, self._scheme, self._size, limiter=self._one)
        self._number += 1
        name = self.links.boot + self._number.to_bytes(_NUMBER, "big")
        tape, sent = _Dealt(pair), False
        self._tapes[name] = tape
        try:
            await self._send(name, tape, pair.follower, second)
            await tape.kept.wait()
            if not tape.spent:
                await self._send(name, tape, pair.leader, first)
            sent = True
        finally:
            if not sent:
                tape.spent = True
                for holder in pair:
                    self._recall(name, holder)
                    if self._line(holder) is None:  # if it comes back, it is told then
                        tape.holders.pop(holder, None)
                self._forget(name)

    async def _send(self, name: bytes, tape: _Dealt, to: bytes, half: Bytes) -> None:
        line = self._line(to)
        if line is None:
            raise Refused("peer_unreachable", "a process is gone")
        tape.holders[to] = half.size
        (other,) = set(tape.pair) - {to}
        for start in range(0, half.size, _PIECE):
            line.send(Tape(name, start, half.size, other, half[start : start + _PIECE].tobytes()))
            await line.drained(_AHEAD)
            if tape.spent:
                return
