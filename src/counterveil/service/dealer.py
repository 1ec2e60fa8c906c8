"""The dealing server: it sends tapes ahead of questions, to every two processes that are linked to each other.

It holds nothing of the database: the terms, which are public, and its own key are enough. It learns that a question
took place, and nothing else.

The dealer keeps a stock at each pair of processes, for each of its terms that both want. A tape's name is the boot id
of the dealer's process, a tag of the terms, and a number. A half leaves once, and is never made again. First the
follower gets its half. When it has said so, the leader gets the other. When one of them has used or lost its half, the
stock is filled up.
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
from ..schemes.scheme import Scheme
from ..terms.published import deployment_of
from ..terms.wire import SignedTerms
from .link.channel import Channel
from .link.frames import Frame, Kept, Peers, Tape, Used, Wants
from .link.handshake import DEALER
from .link.hub import Links
from .pins import pinned_by
from .stock import MOST, deal, halves, tag_of

log = logging.getLogger("counterveil")

_PIECE = 1 << 18  # bytes of a tape in one frame: small, so that openings do not wait long behind it
_AHEAD = 1 << 21  # bytes that wait to be sent to one process
_GRACE = 60.0  # seconds for a follower to claim a tape that the leader has picked
_PAUSE = 1.0  # seconds until a pair is looked at again
_STOCK, _FEWEST, _MANY = 64 << 20, 2, 32  # the default stock: bytes, and the fewest and the most tapes
_NUMBER = 8  # bytes of a tape's number


class _Pair(NamedTuple):
    """Two processes by their boot ids: one of the server with the lower number, and one of the other."""

    leader: bytes
    follower: bytes


class _Shape(NamedTuple):
    """What tapes for some terms look like, and how many each pair has in stock."""

    tag: bytes
    scheme: Scheme
    size: Size
    lengths: tuple[int, int]
    stock: int


class _Order(NamedTuple):
    """A stock that is kept: for two processes, and for some terms."""

    pair: _Pair
    tag: bytes


@dataclass
class _Dealt:
    """A tape that was dealt."""

    order: _Order
    holders: dict[bytes, int] = field(default_factory=dict)  # processes that have a half, and its bytes
    kept: asyncio.Event = field(default_factory=asyncio.Event)  # at the follower, whole
    spent: bool = False  # one of them has used or lost it


@dataclass
class _Told:
    """What a process has said over one connection."""

    peers: frozenset[bytes] | None = None  # None until it has said so
    kept: set[bytes] = field(default_factory=set)  # tapes that it had when the connection opened
    wants: frozenset[bytes] = frozenset()  # tags of the terms that it needs tapes for


class Dealer:
    """A dealing server, for all these terms of one service.

    `urls` are addresses of the servers' processes; by default those in the terms.
    """

    def __init__(
        self,
        terms: Sequence[SignedTerms],
        own: SigningKey,
        urls: Sequence[str] = (),
        *,
        stock: int | None = None,
        insecure: bool = False,
    ) -> None:
        self._shapes = {shape.tag: shape for shape in (_shape(issued, own, stock) for issued in terms)}
        self.lengths = {shape.tag: shape.lengths for shape in self._shapes.values()}
        if len({issued.terms.service for issued in terms}) != 1:
            raise InvalidTerms("terms", got="several services, or none", expected="terms of one service")
        self._service = terms[0].terms.service
        self._told: dict[Channel, _Told] = {}
        self._tapes: dict[bytes, _Dealt] = {}
        self._filling: dict[_Order, asyncio.Task[None]] = {}
        self._filled: set[_Order] = set()
        self._number, self._one = 0, anyio.CapacityLimiter(1)
        self.links = Links(
            number=DEALER,
            own=own,
            service=self._service,
            pinned={n: key for n, key in pinned_by(terms).items() if n != DEALER},
            urls=list(urls) or list(dict.fromkeys(url for issued in terms for url in issued.addresses)),
            heard=self.heard,
            opened=self.opened,
            lost=self.lost,
            insecure=insecure,
        )

    def about(self) -> dict[str, Any]:
        """Return the facts that the log shows when the dealer starts."""
        shapes = [
            {"terms": shape.tag.hex(), "rows": shape.size.rows, "tape_bytes": shape.lengths, "stock": shape.stock}
            for shape in self._shapes.values()
        ]
        return {"service": self._service, "tapes": shapes}

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
            for task in [task for order, task in self._filling.items() if channel.boot in order.pair]:
                task.cancel()
            self._filled = {order for order in self._filled if channel.boot not in order.pair}
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
        elif isinstance(frame, Wants):
            told.wants = frozenset(frame.terms)
        elif isinstance(frame, Kept):
            tape = self._tapes.get(frame.id)
            if tape is None or channel.boot not in tape.holders:
                channel.send(Used(frame.id))  # the other half is gone
            elif told.peers is None:
                told.kept.add(frame.id)
            elif channel.boot == tape.order.pair.follower:
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
        pair = tape.order.pair
        if boot == pair.follower:
            self._recall(name, pair.leader)
        else:  # the follower needs its half now, or never
            asyncio.get_running_loop().call_later(_GRACE, self._recall, name, pair.follower)
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

    def _orders(self) -> list[_Order]:
        """Return the stocks to keep: pairs of processes that met, and terms that both want."""
        lines = [channel for channel in self._told if self._line(channel.boot) is channel]
        met = [(a, b) for a in lines for b in lines if self._met(a, b)]
        return [
            _Order(_Pair(a.boot, b.boot), tag)
            for a, b in met
            for tag in self._shapes
            if tag in self._told[a].wants & self._told[b].wants
        ]

    def _tend(self) -> None:
        """Fill every stock that is not full."""
        for order in self._orders():
            if order not in self._filling and self._lacks(order):
                self._filling[order] = asyncio.get_running_loop().create_task(self._fill(order))

    def _lacks(self, order: _Order) -> bool:
        """Say whether a pair has fewer tapes for some terms than it should, and room for one."""
        shape = self._shapes[order.tag]
        if sum(tape.order == order and not tape.spent for tape in self._tapes.values()) >= shape.stock:
            return False
        held = [sum(tape.holders.get(boot, 0) for tape in self._tapes.values()) for boot in order.pair]
        return all(not has or has + length <= MOST for has, length in zip(held, shape.lengths, strict=True))

    async def _fill(self, order: _Order) -> None:
        try:
            while order in self._orders() and self._lacks(order):
                await self._supply(order)
            if order in self._orders() and order not in self._filled:
                self._filled.add(order)
                fields = {"boots": [boot.hex() for boot in order.pair], "terms": order.tag.hex()}
                log.info("stock full", extra={"fields": fields})
        except Refused as error:
            log.debug("tape lost", extra={"fields": {"why": str(error)}})
        except Exception as error:  # other pairs go on
            log.error("failure", extra={"fields": {"error": type(error).__name__, "at": "dealing"}})
        finally:
            del self._filling[order]
            if all(self._line(boot) for boot in order.pair):  # one may have come back meanwhile
                asyncio.get_running_loop().call_later(_PAUSE, self._tend)

    async def _supply(self, order: _Order) -> None:
        """Deal a tape and send both halves; if that fails, recall what was sent."""
        shape, pair = self._shapes[order.tag], order.pair
        first, second = await anyio.to_thread.run_sync(deal, shape.scheme, shape.size, limiter=self._one)
        self._number += 1
        name = self.links.boot + order.tag + self._number.to_bytes(_NUMBER, "big")
        tape, sent = _Dealt(order), False
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
        (other,) = set(tape.order.pair) - {to}
        for start in range(0, half.size, _PIECE):
            line.send(Tape(name, start, half.size, other, half[start : start + _PIECE].tobytes()))
            await line.drained(_AHEAD)
            if tape.spent:
                return


def _shape(issued: SignedTerms, own: SigningKey, stock: int | None) -> _Shape:
    """Return what tapes for some terms look like; refuse terms that name no dealer, or another one."""
    terms, deployment = issued.terms, deployment_of(issued.terms)
    if not terms.dealer:
        raise InvalidTerms("terms", got="no dealing server", expected="terms made with --dealer server")
    if own.public.hex() != terms.dealer:
        raise InvalidKey("dealer's key", got="another one", expected="that of the dealing server in the terms")
    size = Size(terms.rows, deployment.record_bytes, deployment.k)
    lengths = halves(deployment.scheme, size)
    usual = min(max(_STOCK // max(lengths), _FEWEST), _MANY)
    return _Shape(tag_of(issued.digest), deployment.scheme, size, lengths, stock or usual)
