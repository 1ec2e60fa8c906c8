"""Tickets: each allows one question. The issuer's private key mints them, its public key verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..algebra import checks
from ..crypto.keys import Issuer, is_signed
from ..crypto.randomness import new_id
from ..errors import Refused
from ..schemes.scheme import Scheme
from . import wire
from .wire import Claims, Terms, Ticket

_PURPOSE: Final = "ticket"


def mint(
    terms: Terms,
    servers: Sequence[int],
    *,
    expires: int,
    k: int = 1,
    robust: int = 0,
    issuer: Issuer | None = None,
) -> Ticket:
    """Return a new ticket for these servers of a service, or for none by name; without an issuer, for open mode alone.

    It stays valid when the service's terms change, as long as they reveal the same. It can be used once in all.
    """
    checks.integer("k", k, 1, wire.MOST_RECORDS)
    checks.integer("robust", robust, 0, wire.MOST_ROBUST)
    for server in servers:
        checks.integer("servers", server, 1, wire.MOST_SERVERS)
    claims = Claims(
        wire.VERSION,
        new_id(),
        checks.integer("expires", expires, 0),
        terms.service,
        tuple(sorted(set(servers))),
        terms.parameters.reveal,
        robust,
        k,
    )
    signed = wire.encode_claims(claims)
    return Ticket(claims, signed, issuer.sign(_PURPOSE, signed) if issuer else b"")


def servers_of(claims: Claims, scheme: Scheme) -> tuple[int, ...]:
    """Return the servers that answer a ticket under some terms: those that it names, or else the first ones.

    Security: any two sets of first servers share server 1, whose ledger lets a ticket be used under one terms only.
    """
    return claims.servers or tuple(range(1, scheme.needed(claims.robust) + 1))


class Verified:
    """Tickets whose signature was right, the last ones seen: each has several requests, and its signature is slow.

    Forged tickets are not kept, so a flood of them drives no other ticket out.
    """

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, dict[tuple[str, bytes, bytes], None]()

    def is_signed(self, ticket: Ticket, issuer: str) -> bool:
        """Say whether the issuer, given by its public key in hexadecimal, signed a ticket."""
        name = issuer, ticket.signed, ticket.signature
        if name in self._kept:
            return True
        if not is_signed(bytes.fromhex(issuer), ticket.signature, _PURPOSE, ticket.signed):
            return False
        self._kept[name] = None
        while len(self._kept) > self._most:
            self._kept.pop(next(iter(self._kept)), None)
        return True


def verify(ticket: Ticket, terms: Terms, now: float, grace: int = 0, verified: Verified | None = None) -> None:
    """Refuse a ticket that is forged, expired, for another service, or for something that the terms do not offer.

    The ledger decides whether it was used before. `grace` is how many seconds ago it may have expired. The signature is
    checked last, since it takes the longest.
    """
    _check_claims(ticket, terms, now, grace)
    if terms.tickets == "signed" and not (verified or Verified(1)).is_signed(ticket, terms.issuer):
        raise Refused("ticket_forged", "the ticket does not carry the issuer's signature")


def _check_claims(ticket: Ticket, terms: Terms, now: float, grace: int) -> None:
    claims, parameters = ticket.claims, terms.parameters
    is_open = terms.tickets == "open"
    if is_open and ticket.signature:
        raise Refused("ticket_forged", "the ticket is signed, but this deployment is open: make your own")
    if claims.service != terms.service:
        raise Refused(
            "ticket_for_another_service", f"the ticket is for the service {claims.service}, not for {terms.service}"
        )
    if claims.expires + grace <= now:
        raise Refused("ticket_expired", "the ticket has expired")
    if is_open and claims.expires > now + terms.window:
        raise Refused("ticket_forged", f"a ticket of one's own must expire within {terms.window} seconds")
    if claims.reveal != parameters.reveal:
        said = f"the ticket lets servers reveal {claims.reveal!r}; these reveal {parameters.reveal!r}"
        raise Refused("ticket_not_offered", said)
    if claims.k > parameters.k or claims.robust > terms.robust or max(claims.servers, default=1) > parameters.servers:
        raise Refused("ticket_not_offered", "the ticket asks for records, servers or corrections that are not offered")
    if terms.dealer and claims.k != parameters.k:  # the dealing server knows no ticket
        said = f"the ticket is for {claims.k} records; where a server deals, every ticket is for {parameters.k}"
        raise Refused("ticket_not_offered", said)
