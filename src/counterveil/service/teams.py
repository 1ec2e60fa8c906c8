"""Which servers work on a request together, and what its ticket allows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from ..crypto.randomness import delimited
from ..errors import InvalidInput, Refused
from ..schemes.scheme import Scheme
from ..terms import tickets
from ..terms.wire import Claims, Request


class Team(NamedTuple):
    """The servers that work on a question together, by number, and the scheme of these servers."""

    servers: tuple[int, ...]
    scheme: Scheme
    is_pair: bool = False  # one of several pairs of the ticket's servers


def team_of(message: Request, claims: Claims, offered: Scheme, among: Callable[..., Scheme]) -> Team:
    """Return the team that a request belongs to: all servers of its ticket, or the pair that it names.

    `among` returns the scheme that is offered for some of its servers, as `Scheme.among` does.
    """
    servers = tickets.servers_of(claims, offered)
    count, needed = len(servers), offered.needed(claims.robust)
    other = Refused("ticket_not_offered", f"a ticket for {count} servers, where {needed} answer")
    if count < needed:
        raise other
    try:
        scheme = among(servers, claims.robust)
    except InvalidInput as error:
        raise Refused("ticket_not_offered", str(error)) from None
    runs = scheme.runs()
    if not runs:
        raise other
    if not scheme.protocol.pairs:
        return Team(servers, scheme)
    pairs = [tuple(servers[seat] for seat in seats) for seats in runs]
    if message.among not in pairs:
        raise Refused("malformed", f"a request to servers {list(message.among)}, expected a pair of its ticket")
    return Team(message.among, among(message.among), message.among != servers)


def holder_of(message: Request) -> bytes:
    """Return who sends a request, and under which offer: the ledger lets both be the same for a whole ticket."""
    return hashlib.sha256(delimited([message.secret, message.terms, message.key])).digest()


def check_request(message: Request, claims: Claims, team: Team) -> None:
    """Refuse a request that its ticket does not allow.

    A question goes to all servers of its team. A record step has a number 1..k, and goes to all of them but as many as
    may be lying (`robust`).
    """
    if team.scheme.protocol.linked:
        raise Refused("malformed", "a question without an attempt, where servers talk to each other")
    if message.kind == "query":
        if message.request or message.among != team.servers:
            raise Refused("malformed", "a question is request 0, to all servers of its ticket")
        return
    if not team.scheme.protocol.fetches:
        raise Refused("malformed", "a record step, where the answer brings the record")
    if not 1 <= message.request <= claims.k:
        raise Refused("malformed", f"request {message.request} of a ticket for {claims.k} records")
    servers = len(team.servers) - team.scheme.robust
    if not set(message.among) <= set(team.servers) or len(message.among) != servers:
        raise Refused("malformed", f"a record comes from {servers} servers of its ticket")
