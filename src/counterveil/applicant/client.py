"""The applicant's client: it checks the terms, asks all servers at once over HTTP, and explains the answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from ..algebra import checks
from ..crypto.keys import is_pinned
from ..errors import Disagreement, Malformed, OutOfRange, Refused, ServerFault, WrongType
from ..schema.frames import as_person
from ..schema.layouts import Record
from ..schema.preferences import Preferences
from ..schemes.forms import Question
from ..schemes.protocols import Seen
from ..terms import tickets, wire
from ..terms.addresses import canonical
from ..terms.addresses import is_loopback as is_loopback
from ..terms.agreement import Peer, Traffic, check_agreement
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of, read_terms
from ..terms.wire import SignedTerms, Terms, Ticket
from .ask import compile_question
from .conversation import Conversation
from .exchange import Connections, everyone
from .explain import Explanation, explain
from .offer import Offer, make_offer, settle
from .runs import Progress, Watch

T = TypeVar("T")


class AsyncClient:
    """Asks N servers of one deployment; `async with AsyncClient(urls) as client: await client.ask(person, …)`.

    Connections are opened for one question, and closed before the client processes the last answers.

    Parameters
    ----------
    servers : the servers' addresses, in any order; by default those in the terms.
    terms : a terms file, or what was read from one. With it, a question is checked and compiled before any connection.
        Without it, the terms come from the servers, so they see that somebody asked for them.
    issuer : the public key that must have signed the terms, 32 bytes.
    operators : public keys of servers that must be among those asked, 32 bytes each, or their fingerprints, 16 bytes.
        Get at least one from its operator and not from the institution, which could otherwise run all the servers.
    insecure : allow plain http to other machines. Anybody on the network path can then read the question.
    timeout : seconds for a server to answer one request.
    patience : seconds for which the same request is sent again when its connection breaks.
    verify : how to check TLS certificates, as in httpx2: True, False, or an SSL context.
    connect_to : a server's address, to the address to connect to instead, for relays; like curl's `--connect-to`.
    watch : called with each server, the message to it, and its reply.
    progress : called with how many bytes of the answers have arrived, and how many there are, if answers are streamed.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        terms: SignedTerms | str | Path | None = None,
        issuer: bytes | None = None,
        operators: Sequence[bytes] = (),
        insecure: bool = False,
        timeout: float = 60.0,
        patience: float = 10.0,
        verify: Any = True,
        connect_to: Mapping[str, str] | None = None,
        watch: Watch | None = None,
        progress: Progress | None = None,
    ) -> None:
        issued = read_terms(terms) if isinstance(terms, str | Path) else terms
        if servers is None and issued is None:
            raise WrongType("servers", got="neither servers nor terms", expected="the addresses, or a terms file")
        listed = issued.addresses if servers is None and issued else servers
        self.urls = [_address(url, insecure) for url in checks.listed("servers", listed, "a list of addresses")]
        for what, seconds in (("timeout", timeout), ("patience", patience)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
                raise OutOfRange(what, got=seconds, expected="seconds, 0 or more")
        self.timeout, self.patience, self._watch, self._progress = timeout, patience, watch, progress
        self._issuer, self._operators = issuer, tuple(operators)
        others = {_address(url, True): _address(to, insecure) for url, to in (connect_to or {}).items()}
        self.targets = {url: others.get(url, url) for url in self.urls}
        self.verify = httpx2.create_ssl_context() if verify is True else verify
        self.traffic = {url: Traffic() for url in self.urls}
        self.peers: list[Peer] = []  # the servers, once their manifests were fetched
        self._pinned, self._offer, self._looked = issued is not None, None, None
        if issued is not None:
            self._accept(issued)

    _offer: Offer | None
    _looked: float | None  # when the servers sent their terms, until the next question

    def _accept(self, issued: SignedTerms) -> Offer:
        if self._issuer is not None and issued.terms.issuer != self._issuer.hex():
            raise Disagreement("terms: got another issuer's, expected those of the issuer given; nothing was asked")
        self._offer = make_offer(issued, deployment_of(check_terms(issued).terms))
        return self._offer

    @property
    def deployment(self) -> Deployment:
        """The deployment that the terms describe. The terms come from a file, or from `connect`."""
        if self._offer is None:
            raise Disagreement("terms: got none yet, expected a terms file, or `connect` before this")
        return self._offer.deployment

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Do nothing: connections are closed after each question."""

    async def connect(self) -> tuple[list[Peer], Deployment]:
        """Fetch all manifests, refuse servers that do not agree, and close the connections."""
        if not self.peers:
            async with Connections(self) as lines:
                await self._agree(lines)
        return self.peers, self.deployment

    async def _agree(self, lines: Connections) -> list[Peer]:
        """Fetch all manifests, and accept terms only from servers that agree on them."""
        peers = await everyone([partial(lines.visit, url) for url in self.urls])
        check_agreement(peers, issuer=self._issuer, operators=self._operators)
        issued = peers[0].manifest.issued
        if self._pinned and self._offer is not None and issued.text != self._offer.issued.text:
            raise Disagreement("terms: the servers have others than the terms file; get the new one; nothing was asked")
        if self._offer is None:
            self._accept(issued)
            self._looked = time.monotonic()
        self.peers = peers
        return peers

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest, over a new connection."""
        async with Connections(self) as lines:
            return await lines.visit(url)

    async def linked(self, url: str) -> list[wire.Linked]:
        """Ask a server which others it is linked to, where servers talk to each other."""
        async with Connections(self) as lines:
            return await lines.linked(url)

    async def ask(
        self,
        person: Any,
        preferences: Preferences | Mapping[str, Any] | None = None,
        *,
        ticket: Ticket | str | None = None,
        robust: int = 0,
        spread: float = 0.0,
        clamp: bool = False,
        spending: Callable[[], None] | None = None,
        **more: Any,
    ) -> Explanation:
        """Explain one rejection, as `Local.ask` does, with servers that learn nothing about it.

        A ticket is needed unless the deployment is open. The question uses it up; the client never gets another ticket
        by itself. `robust` is how many wrong answers to correct. It counts in an open deployment only; elsewhere the
        ticket has that number. `spending` is called once, just before the question is sent: until then the ticket is
        not used.
        """
        offer = await self._terms()
        deployment = offer.deployment
        wishes = Preferences.of(preferences, **more)
        values = as_person(person, deployment.schema.names)
        own = deployment.schema.codes(values, clamp=clamp)
        question, costs = compile_question(deployment, own, wishes)
        conversation = self._conversation(offer, self._ticket(offer, ticket, robust), question, spread=spread)
        await self._carry(conversation, spending)
        # Every connection is closed, so no server can notice what happens from here on.
        records = conversation.checked(costs)
        given = {f.name: f.given(values.get(f.name)) for f in deployment.schema.cost_features}
        found = explain(conversation.deployment, costs, given, records)
        return replace(found, liars=tuple(conversation.liars))

    async def reveal(
        self, question: Question, *, ticket: Ticket | str | None = None, deployment: Deployment | None = None
    ) -> tuple[Seen, Record]:
        """Return everything that a question reveals, and the nearest record, for measurements and attacks.

        An attack may pass another `deployment` than the servers', as a cheating applicant would.
        """
        offer = await self._terms()
        conversation = self._conversation(offer, self._ticket(offer, ticket, 0), question, deployment=deployment)
        await self._carry(conversation)
        return conversation.result(), conversation.signed()[0]

    async def _terms(self) -> Offer:
        """Return the checked terms, from a file or from the servers."""
        if self._offer is None:
            await self.connect()
        offer = self._offer
        if offer is None:
            raise AssertionError("`connect` accepts terms or raises")
        return offer

    def _conversation(self, *args: Any, **options: Any) -> Conversation:
        return Conversation(*args, patience=self.patience, progress=self._progress, watch=self._watch, **options)

    async def _carry(self, conversation: Conversation, spending: Callable[[], None] | None = None) -> None:
        """Carry all messages of a question, then close the connections."""
        looked, self._looked = self._looked, None
        if looked is not None:
            await settle(looked, conversation.offer.step)  # hides how long the question took to compile
        try:
            async with Connections(self) as lines:
                conversation.meet(self.peers or await self._agree(lines))
                if spending is not None:
                    spending()
                await lines.carry(conversation)
        except ServerFault as error:
            if error.code in ("other_terms", "other_key"):  # fetch the manifests again before the next question
                self.peers = []
                self._offer = self._offer if self._pinned else None
            raise

    def _ticket(self, offer: Offer, ticket: Ticket | str | None, robust: int) -> Ticket:
        """Return the ticket to use, after the checks that need no server."""
        terms = offer.issued.terms
        if ticket is None:
            if terms.tickets != "open":
                raise Refused("ticket_missing", "these servers want a ticket, and none was given")
            ticket = self._own_ticket(terms, offer.deployment, robust)
        elif isinstance(ticket, str):
            ticket = wire.decode_ticket_text(ticket)
        tickets.verify(ticket, terms, time.time())
        asked = [bytes.fromhex(terms.keys[n - 1]) for n in ticket.claims.servers]
        if not all(any(is_pinned(operator, key) for key in asked) for operator in self._operators):
            raise Disagreement("ticket: got one for other servers than that of the operator given; nothing was asked")
        return ticket

    def _own_ticket(self, terms: Terms, deployment: Deployment, robust: int) -> Ticket:
        known = [peer.manifest.server for peer in self.peers] or range(1, terms.parameters.servers + 1)
        numbers = sorted(known)[: deployment.scheme.needed(robust)]
        step = max(1, terms.window // 4)  # coarse, because the exact second could tell one applicant from another
        expires = (int(time.time()) + terms.window // 2) // step * step
        return tickets.mint(terms, numbers, expires=expires, k=deployment.k, robust=robust)


def _address(given: Any, insecure: bool) -> str:
    """Return an address as `canonical` writes it; refuse what is not an address, and plain http to other machines."""
    try:
        url = canonical(str(given))
    except Malformed:
        raise ServerFault(str(given)[:100], "is not an address, such as https://one.example") from None
    if url.startswith("http:") and not insecure and not is_loopback(urlsplit(url).hostname or ""):
        raise ServerFault(
            url, "is plain http: somebody on the way to both servers could read the question; expected https"
        )
    return url


class Client:
    """`AsyncClient` for code that is not asynchronous: it runs in its own thread and has the same parameters."""

    def __init__(self, servers: Sequence[str] | None = None, **options: Any) -> None:
        self._client = AsyncClient(servers, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        if options.get("terms") is None:
            try:
                self._wait(self._client.connect())
            except BaseException:
                self.close()
                raise

    @property
    def peers(self) -> list[Peer]:
        """The servers, once their manifests were fetched."""
        return self._client.peers

    @property
    def deployment(self) -> Deployment:
        """The deployment that the terms describe."""
        return self._client.deployment

    def ask(
        self, person: Any, preferences: Preferences | Mapping[str, Any] | None = None, **options: Any
    ) -> Explanation:
        """Explain one rejection; see `AsyncClient.ask`."""
        return self._wait(self._client.ask(person, preferences, **options))

    def reveal(self, question: Question, **options: Any) -> tuple[Seen, Record]:
        """Return everything that a question reveals; see `AsyncClient.reveal`."""
        return self._wait(self._client.reveal(question, **options))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop the thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
