"""A server's stock of tapes: one-time randomness that a dealing server has sent ahead.

A tape is for one question under some terms, and for two processes, one of each server; each of them has its half. The
leader picks a tape, and names it to the follower, who claims it. The dealer sends the follower's half first, and the
leader's half once the follower has its own. So a leader that has a tape may pick it.

Security: a tape leaves the stock when it is picked or claimed, before the first opening, and never comes back. Nothing
is written to a disk, so a restart loses the stock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ..algebra.arrays import Bytes
from ..crypto.randomness import ID_BYTES, Fresh, Randomness
from ..engine.party import Send
from ..errors import Malformed, Refused
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme
from .attempts import Line
from .link.frames import TAG, Frame, Kept, Peers, Tape, Used, Wants
from .link.handshake import DEALER

MOST = 1 << 30  # bytes: the most that a process holds; one tape may be longer, if it is alone


def deal(scheme: Scheme, size: Size, draw: Randomness | None = None) -> tuple[Bytes, Bytes]:
    """Deal the randomness of one run: the leader's half of a tape, and the follower's."""
    parts: tuple[list[Bytes], list[Bytes]] = ([], [])
    pair = scheme.among((1, 2))
    for effect in pair.protocol.deal(pair, size, draw or Fresh()):
        if isinstance(effect, Send):
            parts[int(effect.to)].append(effect.symbols)
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def halves(scheme: Scheme, size: Size) -> tuple[int, int]:
    """Return how many bytes the leader's half of a tape has, and the follower's."""
    (sizes,) = scheme.among((1, 2)).requests(size)
    first, second = sizes.dealt
    return first, second


@dataclass
class _Half:
    """A half of a tape, whole or on its way."""

    name: bytes
    peer: bytes  # the process that has the other half
    length: int
    data: bytearray = field(default_factory=bytearray)


@dataclass
class _Feed:
    """What one connection to a dealer has brought."""

    told: dict[bytes, int] = field(default_factory=dict)  # processes that the dealer was told of, and their servers
    coming: dict[tuple[bytes, bytes], _Half] = field(default_factory=dict)  # by peer and the tag of the terms


class Stock:
    """The tapes of one process.

    `pick`, `claim`, `check` and `count` may be called in any thread, all else in the event loop.

    Parameters
    ----------
    number : this server's.
    dealt : by the tag of terms, how many bytes the leader's half of a tape has, and the follower's.
    stocked : called when a tape is complete.
    """

    def __init__(
        self, number: int, dealt: Mapping[bytes, tuple[int, int]], stocked: Callable[[], None], *, most: int = MOST
    ) -> None:
        self._number, self._dealt, self._stocked, self._most = number, dict(dealt), stocked, most
        self._lock = threading.Lock()
        self._tapes: dict[bytes, _Half] = {}  # whole ones, the oldest first
        self._linked: dict[bytes, int] = {}  # processes of other servers, and their servers
        self._feeds: dict[Line, _Feed] = {}
        self._last: dict[tuple[bytes, ...], bytes] = {}  # by dealer, terms and peer, the last tape that began

    # --- what attempts and requests need ----------------------------------------------------------------------------

    def pick(self, peer: bytes, terms: bytes) -> tuple[bytes, Bytes] | None:
        """Remove and return a tape for these terms whose other half that process has: its name, and its bytes."""
        for name in self._names(lambda tape: tape.peer == peer and _is_for(tape.name, terms)):
            tape = self.claim(peer, terms, name)
            if tape is not None:  # else another thread was faster
                return name, tape
        return None

    def claim(self, peer: bytes, terms: bytes, name: bytes) -> Bytes | None:
        """Remove and return the tape of that name, if it is for these terms."""
        with self._lock:
            tape = self._tapes.get(name)
            if tape is None or tape.peer != peer or not _is_for(name, terms):
                return None
            del self._tapes[name]
        self._say_used(name)
        return np.frombuffer(tape.data, dtype=np.uint8)

    def check(self, number: int) -> None:
        """Refuse unless there is a tape for a process of that server, or a dealer to bring one."""
        with self._lock:
            if not self._feeds and not any(self._linked.get(tape.peer) == number for tape in self._tapes.values()):
                raise Refused("peer_unreachable", "the dealing server cannot be reached; nothing is spent")

    def count(self, number: int) -> int:
        """Return how many tapes wait for questions with a server; for the number of the dealer, how many in all."""
        with self._lock:
            return sum(number in (DEALER, self._linked.get(tape.peer)) for tape in self._tapes.values())

    # --- what the link brings ---------------------------------------------------------------------------------------

    def met(self, boot: bytes, number: int) -> None:
        """Take note of a process of another server."""
        with self._lock:
            self._linked[boot] = number
        self._tell_peers()

    def parted(self, boot: bytes) -> None:
        """Take note that a process of another server is gone; drop all tapes for it."""
        with self._lock:
            self._linked.pop(boot, None)
        self._drop(self._names(lambda tape: tape.peer == boot))
        self._tell_peers()

    def opened(self, dealer: Line) -> None:
        """Take up a connection to a dealer; tell it which of its tapes are here, and who is linked."""
        with self._lock:
            self._feeds[dealer] = _Feed()
        for name in self._names(lambda tape: _dealer_of(tape.name) == dealer.boot):
            _tell(dealer, Kept(name))
        _tell(dealer, Wants(tuple(sorted(self._dealt))))
        self._tell_peers()

    def lost(self, dealer: Line) -> None:
        """Take note that a connection to a dealer is gone; what it has brought in part goes with it."""
        with self._lock:
            self._feeds.pop(dealer, None)

    def heard(self, dealer: Line, frame: Frame) -> None:
        """Take what a dealer says; an error ends the connection."""
        if isinstance(frame, Tape):
            self._take(dealer, self._feeds[dealer], frame)
        elif isinstance(frame, Used):  # the other half is gone
            coming = self._feeds[dealer].coming
            for place in [place for place, half in coming.items() if half.name == frame.id]:
                del coming[place]
                _tell(dealer, frame)
            if _dealer_of(frame.id) == dealer.boot:
                self._drop([frame.id])
        else:
            raise Malformed("frame", got=type(frame).__name__.lower(), expected="tapes from a dealer")

    def _take(self, dealer: Line, feed: _Feed, frame: Tape) -> None:
        half = feed.coming.get((frame.peer, tag_in(frame.id))) or self._begun(dealer, feed, frame)
        at = len(half.data)
        if (frame.id, frame.total, frame.offset) != (half.name, half.length, at) or not frame.data:
            raise Malformed("tape", got="another part", expected=f"the part at byte {at} of the tape under way")
        half.data += frame.data
        if len(half.data) < half.length:
            return
        del feed.coming[half.peer, tag_in(half.name)]
        with self._lock:
            kept = half.peer in self._linked
            if kept:
                self._tapes[half.name] = half
        _tell(dealer, Kept(half.name) if kept else Used(half.name))
        if kept:
            self._stocked()

    def _begun(self, dealer: Line, feed: _Feed, frame: Tape) -> _Half:
        """Check the first part of a tape, and make room."""
        number = feed.told.get(frame.peer)
        if number is None:
            raise Malformed("tape", got="one for a stranger", expected="a process that this server is linked to")
        tag = tag_in(frame.id)
        if tag not in self._dealt:
            raise Malformed("tape", got="one for other terms", expected="terms that this server has asked tapes for")
        length = self._dealt[tag][0 if self._number < number else 1]
        if frame.total != length:
            raise Malformed("tape", got=f"{frame.total} bytes", expected=f"{length}, as the terms imply")
        pair = dealer.boot, tag, frame.peer
        if _dealer_of(frame.id) != dealer.boot or frame.id <= self._last.get(pair, b""):
            raise Malformed("tape", got="an id that is not new", expected="the dealer's boot id, and a higher number")
        self._make_room(dealer, length)
        self._last[pair] = frame.id
        feed.coming[frame.peer, tag] = _Half(frame.id, frame.peer, length)
        return feed.coming[frame.peer, tag]

    def _make_room(self, dealer: Line, length: int) -> None:
        """Drop tapes of other dealers, the oldest first, until one of this length fits."""
        coming = sum(half.length for feed in self._feeds.values() for half in feed.coming.values())
        others = self._names(lambda tape: _dealer_of(tape.name) != dealer.boot)
        while (held := coming + self._held()) and held + length > self._most:
            if not others:
                raise Malformed("tape", got=f"more than {self._most} bytes of tapes", expected="a smaller stock")
            self._drop([others.pop(0)])

    def _held(self) -> int:
        with self._lock:
            return sum(tape.length for tape in self._tapes.values())

    def _names(self, which: Callable[[_Half], bool]) -> list[bytes]:
        """Return the names of whole tapes, the oldest first."""
        with self._lock:
            return [name for name, tape in self._tapes.items() if which(tape)]

    def _drop(self, names: list[bytes]) -> None:
        for name in names:
            with self._lock:
                dropped = self._tapes.pop(name, None)
            if dropped is not None:  # else somebody has used it, and said so
                self._say_used(name)

    def _say_used(self, name: bytes) -> None:
        """Tell the dealer of a tape that it is not here any more."""
        with self._lock:
            dealers = [dealer for dealer in self._feeds if dealer.boot == _dealer_of(name)]
        for dealer in dealers:
            _tell(dealer, Used(name))

    def _tell_peers(self) -> None:
        for dealer, feed in self._feeds.items():
            feed.told |= self._linked
            _tell(dealer, Peers(tuple(sorted(self._linked))))


def tag_of(terms: bytes) -> bytes:
    """Return what a tape's name has of the digest of its terms."""
    return terms[:TAG]


def tag_in(name: bytes) -> bytes:
    """Return the tag of the terms that a tape is for: it follows the id of the dealer's process."""
    return name[ID_BYTES : ID_BYTES + TAG]


def _is_for(name: bytes, terms: bytes) -> bool:
    return tag_in(name) == tag_of(terms)


def _dealer_of(name: bytes) -> bytes:
    """Return which process dealt a tape: the first half of its name."""
    return name[:ID_BYTES]


def _tell(dealer: Line, frame: Frame) -> None:
    """Send a frame, if the connection is still there. A new connection begins with what is here."""
    with suppress(Refused):
        dealer.send(frame)
