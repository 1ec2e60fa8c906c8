"""Everything that a server needs to work on questions together with others: the link, attempts, and tapes."""

from __future__ import annotations

from collections.abc import Sequence

from ..crypto.keys import SigningKey
from ..terms.wire import Linked
from .attempts import Attempts
from .link.channel import Channel
from .link.frames import Frame
from .link.handshake import DEALER
from .link.hub import Links
from .meeting import Meeting
from .server import Server
from .stock import Stock, halves


class Together:
    """The link of a server to its peers, and the attempts that they make together.

    `urls` are addresses of processes of the other servers; by default the addresses of these servers in the terms.
    """

    def __init__(self, server: Server, own: SigningKey, urls: Sequence[str] = (), *, insecure: bool = False) -> None:
        issued, number = server.epoch.issued, server.number
        pinned = {n: bytes.fromhex(key) for n, key in enumerate(issued.terms.keys, start=1) if n != number}
        if issued.terms.dealer:
            pinned[DEALER] = bytes.fromhex(issued.terms.dealer)
        others = [url for n, url in enumerate(issued.addresses, start=1) if n != number]
        self.tapes, self.peers = None, [n for n in range(1, len(others) + 2) if n != number]
        self.links = Links(
            number=number,
            own=own,
            service=issued.terms.service,
            pinned=pinned,
            urls=list(urls) or others,
            heard=self._heard,
            opened=self._opened,
            lost=self._lost,
            insecure=insecure,
        )
        self.meeting = Meeting(Attempts(number, server.ledger), lambda n: list(self.links.channels(n)))
        if issued.terms.dealer:
            lengths = halves(server.epoch.deployment.scheme, server.epoch.size)
            self.tapes = Stock(number, lengths, self.meeting.stocked)

    tapes: Stock | None  # what the dealing server has sent, if one deals

    def _heard(self, channel: Channel, frame: Frame) -> None:
        if channel.number != DEALER:
            self.meeting.heard(channel, frame)
        elif self.tapes is not None:
            self.tapes.heard(channel, frame)

    def _opened(self, channel: Channel) -> None:
        if channel.number != DEALER:
            self.meeting.opened(channel)
            if self.tapes is not None:
                self.tapes.met(channel.boot, channel.number)
        elif self.tapes is not None:
            self.tapes.opened(channel)

    def _lost(self, channel: Channel) -> None:
        if channel.number != DEALER:
            self.meeting.lost(channel)
            if self.tapes is not None and all(c.boot != channel.boot for c in self.links.channels(channel.number)):
                self.tapes.parted(channel.boot)
        elif self.tapes is not None:
            self.tapes.lost(channel)

    def check_reaches(self, number: int) -> None:
        """Refuse unless a question can be worked on with that server: it is linked, and randomness is dealt."""
        self.meeting.check_reaches(number)
        if self.tapes is not None:
            self.tapes.check(number)

    def connections(self, number: int) -> int:
        """Return how many connections there are to processes of a server."""
        return len(self.links.channels(number))

    def status(self) -> list[Linked]:
        """Return which servers this one is linked to, how long a message to each and back takes, and the stock."""
        status = []
        for number in [*self.peers, *([DEALER] if self.tapes is not None else [])]:
            channels = self.links.channels(number)
            trips = [1000 * channel.round_trip for channel in channels if channel.round_trip is not None]
            tapes = None if self.tapes is None else self.tapes.count(number)
            status.append(Linked(number, len(channels), round(min(trips), 1) if trips else None, tapes))
        return status
