"""Tickets: each allows one question. The issuer's private key mints them, its public key verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..algebra import checks
from ..crypto.keys import Issuer, is_signed
from ..crypto.randomness import new_id
from ..errors import Refused
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
    """Return a new ticket for these servers of a service; without an issuer, only open mode accepts it.

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


def verify(ticket: Ticket, terms: Terms, now: float, grace: int = 0) -> None:
    """Refuse a ticket that is forged, expired, for another service, or for something that the terms do not offer.

    The ledger decides whether it was used before. `grace` is how many seconds ago it may have expired.
    """
    claims, parameters = ticket.claims, terms.parameters
    is_open = terms.tickets == "open"
    if not is_open and not is_signed(bytes.fromhex(terms.issuer), ticket.signature, _PURPOSE, ticket.signed):
        raise Refused("ticket_forged", "the ticket does not carry the issuer's signature")
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
    if claims.k > parameters.k or claims.robust > terms.robust or claims.servers[-1] > parameters.servers:
        raise Refused("ticket_not_offered", "the ticket asks for records, servers or corrections that are not offered")
    if terms.dealer and claims.k != parameters.k:  # the dealing server knows no ticket
        said = f"the ticket is for {claims.k} records; where a server deals, every ticket is for {parameters.k}"
        raise Refused("ticket_not_offered", said)
