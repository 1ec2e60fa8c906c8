"""The right to ask, once: tickets are minted with the issuer's private key and verified with the public key alone."""

from __future__ import annotations

from collections.abc import Sequence

from . import checks, wire
from .errors import Refused
from .keys import Issuer, is_signed
from .randomness import new_id
from .wire import Claims, Terms, Ticket

_PURPOSE = "ticket"


def mint(
    digest: bytes, servers: Sequence[int], *, expires: int, k: int = 1, liars: int = 0, issuer: Issuer | None = None
) -> Ticket:
    """Return a new ticket for these servers; without an issuer, one that only open mode takes."""
    checks.integer("k", k, 1, wire.MOST_RECORDS)
    checks.integer("liars", liars, 0, wire.MOST_LIARS)
    for server in servers:
        checks.integer("servers", server, 1, wire.MOST_SERVERS)
    claims = Claims(1, new_id(), checks.integer("expires", expires, 0), digest, tuple(sorted(set(servers))), liars, k)
    signed = wire.encode_claims(claims)
    return Ticket(claims, signed, issuer.sign(_PURPOSE, signed) if issuer else b"")


def verify(ticket: Ticket, terms: Terms, digest: bytes, now: float) -> None:
    """Refuse a ticket that is forged, expired, or for another database, another deployment, other servers.

    Whether it was used before is for the ledger to say.
    """
    claims, parameters = ticket.claims, terms.parameters
    if terms.issuer is not None and not is_signed(
        bytes.fromhex(terms.issuer), ticket.signature, _PURPOSE, ticket.signed
    ):
        raise Refused("ticket_forged", "the ticket does not carry the issuer's signature")
    if terms.issuer is None and ticket.signature:
        raise Refused("ticket_forged", "the ticket is signed, but this deployment is open: make your own")
    if claims.digest != digest:
        raise Refused("ticket_for_another_database", "the ticket is for another database, or other terms, than these")
    if claims.expires <= now:
        raise Refused("ticket_expired", "the ticket has expired")
    if terms.issuer is None and claims.expires > now + terms.window:
        raise Refused("ticket_forged", f"a ticket of one's own must expire within {terms.window} seconds")
    if claims.k > parameters.k or claims.liars > terms.robust or claims.servers[-1] > parameters.servers:
        raise Refused("ticket_not_offered", "the ticket asks for records, servers or corrections that are not offered")
