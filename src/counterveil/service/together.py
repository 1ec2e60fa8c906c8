"""Everything that a server needs to work on questions together with others: the link, attempts, and tapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..crypto.keys import SigningKey
from ..terms.wire import Linked
from .attempts import Attempts
from .link.channel import Channel
from .link.frames import Frame
from .link.handshake import DEALER
from .link.hub import Links
from .meeting import Meeting
from .pins import pinned_by
from .server import Server
from .stock import Stock, halves, tag_of


class Together:
    """The link of a server to its peers, and the attempts that they make together.

    `urls` are addresses of processes of the other servers; by default the addresses of these servers in the terms.
    `folder` is that of this process's family, if it has one.
    """

    def __init__(
        self,
        server: Server,
        own: SigningKey,
        urls: Sequence[str] = (),
        *,
        insecure: bool = False,
        folder: Path | None = None,
    ) -> None:
        number, epochs = server.number, server.offers.epochs
        issued = epochs[-1].issued
        pinned = {n: key for n, key in pinned_by([epoch.issued for epoch in epochs]).items() if n != number}
        others = {url: None for epoch in epochs for n, url in enumerate(epoch.issued.addresses, start=1) if n != number}
        self.tapes, self.peers = None, sorted(set(pinned) - {DEALER})
        self.links = Links(
            number=number,
            own=own,
            service=issued.terms.service,
            pinned=pinned,
            urls=list(urls) or list(others),
            heard=self._heard,
            opened=self._opened,
            lost=self._lost,
            insecure=insecure,
            folder=folder,
        )
        self.meeting = Meeting(Attempts(number, server.ledger), lambda n: list(self.links.channels(n)))
        dealt = {tag_of(e.issued.digest): halves(e.deployment.scheme, e.size) for e in epochs if e.issued.terms.dealer}
        if dealt:
            self.tapes = Stock(number, dealt, self.meeting.stocked)
        self._dealt = frozenset(dealt)

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

    def check_reaches(self, number: int, terms: bytes) -> None:
        """Refuse unless a question can be worked on with that server: it is linked, and randomness is dealt."""
        self.meeting.check_reaches(number)
        if self.tapes is not None and tag_of(terms) in self._dealt:
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
