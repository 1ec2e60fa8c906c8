"""Offers: a server's terms with its common keys. New data, a new scheme, more servers, a new key: each is a new offer.

An applicant takes the newest offer that all servers of the ticket have. So the servers may get a new one minutes apart.
A server shows an offer until its terms or its key end. It answers for `GRACE` seconds more: a question ends with the
offer that it began with, or that the applicant read just before the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from ..crypto.keys import CommonKey
from ..errors import InvalidTerms, Refused
from ..terms.agreement import age
from ..terms.wire import MOST_OFFERS, Manifest, SignedTerms
from .epochs import Epoch, has_ended
from .ledger import GRACE


class Offer(NamedTuple):
    """An epoch and a common key, and what the server says of itself under both."""

    manifest: Manifest
    epoch: Epoch
    key: CommonKey

    @property
    def name(self) -> str:
        """The name of the offer, by which processes of one server compare what they have."""
        return f"{self.epoch.issued.digest.hex()}/{self.key.id.hex()}"

    def is_shown(self, now: float) -> bool:
        """Say whether applicants may begin a question under this offer."""
        return not has_ended(self.epoch.ends, now) and not has_ended(self.key.ends, now)

    def rank(self, now: float) -> tuple[Any, ...]:
        """Return what orders offers, the newest last; a key that waits to be used comes before those in use."""
        return *age(self.epoch.issued), self.key.state(now) == "active", self.key.begins, self.key.id


class Offers:
    """All offers of one server: each of its epochs with each of its common keys."""

    def __init__(
        self,
        epochs: Sequence[Epoch],
        keys: Sequence[CommonKey],
        sign: Callable[[SignedTerms, CommonKey], Manifest],
        clock: Callable[[], float],
    ) -> None:
        if len({epoch.issued.terms.service for epoch in epochs}) > 1:
            raise InvalidTerms("terms", got="several services", expected="one service: its tickets are in one ledger")
        self.epochs = sorted(epochs, key=lambda epoch: age(epoch.issued))
        self._by_digest, self._keys = {epoch.issued.digest: epoch for epoch in epochs}, {key.id: key for key in keys}
        self.all = [Offer(sign(epoch.issued, key), epoch, key) for epoch in self.epochs for key in keys]
        self._clock = clock
        self.agreed: Callable[[], Container[str] | None] = lambda: None  # names of offers that all processes have

    def shown(self) -> list[Offer]:
        """Return the offers that applicants may begin a question under, at most `MOST_OFFERS`, the newest last.

        If a server has several processes, those that all of them have are shown: any of them may get the question.
        """
        now, agreed = self._clock(), self.agreed()
        shown = sorted((offer for offer in self.all if offer.is_shown(now)), key=lambda offer: offer.rank(now))
        if agreed is not None:
            shown = [offer for offer in shown if offer.name in agreed] or shown
        return shown[-MOST_OFFERS:]

    @property
    def newest(self) -> Offer:
        """The newest offer; if all have ended, the one that was the newest."""
        return (self.shown() or sorted(self.all, key=lambda offer: offer.rank(0)))[-1]

    @property
    def end(self) -> float:
        """When the last offer ends and nobody can ask any more, in seconds since 1970; infinite if one has no end."""
        return max(min(offer.epoch.ends or math.inf, offer.key.ends or math.inf) for offer in self.all)

    @property
    def is_linked(self) -> bool:
        """Whether servers work on questions together, under some of the terms."""
        return any(epoch.deployment.scheme.protocol.linked for epoch in self.epochs)

    def find(self, terms: bytes, key: bytes) -> Epoch:
        """Return the epoch that a request names by the digest of its terms; refuse one that is over, or another key."""
        epoch, common, now = self._by_digest.get(terms), self._keys.get(key), self._clock()
        if epoch is None or has_ended(epoch.ends, now, GRACE):
            raise Refused("other_terms", "the request was made for other terms than these: read the manifests again")
        if common is None or has_ended(common.ends, now, GRACE):
            raise Refused("other_key", "the servers have another common key now: read the manifests again")
        return epoch

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of all offers, for the log and the operator: their terms and keys, and when these end."""
        now, newest = self._clock(), self.newest
        return [
            {
                "terms": offer.epoch.issued.digest.hex()[:16],
                "rows": len(offer.epoch.rows),
                "begins": age(offer.epoch.issued)[0],
                "ends": offer.epoch.ends,
                "key": offer.key.id.hex()[:8],
                "key_state": offer.key.state(now),
                "key_ends": offer.key.ends,
                "state": "newest" if offer is newest else "shown" if offer.is_shown(now) else "ended",
            }
            for offer in sorted(self.all, key=lambda offer: offer.rank(now))
        ]
