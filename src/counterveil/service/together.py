"""Everything that a server needs to work on questions together with others: the link, attempts, and tapes."""

from __future__ import annotations

from collections.abc import Sequence

from ..crypto.keys import SigningKey
from ..terms.wire import Linked
from .attempts import Attempts
from .link.channel import Channel
from .link.frames import Frame, Tape
from .link.hub import Links
from .meeting import Meeting
from .server import Server

_DEALER = 0  # the number of a dealing server, on the link


class Together:
    """The link of a server to its peers, and the attempts that they make together.

    `urls` are addresses of processes of the other servers; by default the addresses of these servers in the terms.
    """

    def __init__(self, server: Server, own: SigningKey, urls: Sequence[str] = (), *, insecure: bool = False) -> None:
        issued, number = server.epoch.issued, server.number
        keys = enumerate(issued.terms.keys, start=1)
        others = [url for n, url in enumerate(issued.addresses, start=1) if n != number]
        self.tapes, self.peers = None, [n for n in range(1, len(others) + 2) if n != number]
        self.links = Links(
            number=number,
            own=own,
            service=issued.terms.service,
            pinned={n: bytes.fromhex(key) for n, key in keys if n != number},
            urls=list(urls) or others,
            heard=self._heard,
            opened=self._opened,
            lost=self._lost,
            insecure=insecure,
        )
        self.meeting = Meeting(Attempts(number, server.ledger), lambda n: list(self.links.channels(n)))

    def _heard(self, channel: Channel, frame: Frame) -> None:
        if channel.number != _DEALER and not isinstance(frame, Tape):
            self.meeting.heard(channel, frame)

    def _opened(self, channel: Channel) -> None:
        self.meeting.opened(channel)

    def _lost(self, channel: Channel) -> None:
        self.meeting.lost(channel)

    def connections(self, number: int) -> int:
        """Return how many connections there are to processes of a server."""
        return len(self.links.channels(number))

    def status(self) -> list[Linked]:
        """Return which servers this one is linked to, and how long a message to each and back takes."""
        status = []
        for number in self.peers:
            channels = self.links.channels(number)
            trips = [1000 * channel.round_trip for channel in channels if channel.round_trip is not None]
            status.append(Linked(number, len(channels), round(min(trips), 1) if trips else None))
        return status
