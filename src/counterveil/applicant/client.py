"""The applicant's client: it checks the terms, asks all servers at once over HTTP, and explains the answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import httpx2

from ..algebra import checks
from ..crypto.keys import is_pinned
from ..errors import Disagreement, InvalidInput, OutOfRange, Refused, ServerFault, WrongType
from ..schema.frames import as_person
from ..schema.layouts import Record
from ..schema.preferences import Preferences
from ..schemes.forms import Question
from ..schemes.protocols import Seen
from ..terms import tickets, wire
from ..terms.addresses import is_loopback as is_loopback
from ..terms.agreement import Peer, Traffic, check_agreement
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of, read_terms
from ..terms.wire import SignedTerms, Terms, Ticket
from .ask import compile_question, compiled_by
from .board import Board
from .conversation import Conversation
from .exchange import Connections, safe_address
from .explain import Counterfactual, Explanation, explain
from .offer import Offer, make_offer, settle
from .runs import OTHER_OFFER, Progress, Watch

T = TypeVar("T")

_AGAIN = 3  # times that a question is asked again because the servers have another offer, and nothing is spent
_SPARE = 1.0  # seconds of patience with a server that may turn out not to be needed


class _Chosen(NamedTuple):
    """The offer to ask under, and the servers that have it."""

    offer: Offer
    peers: Sequence[Peer] = ()


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
        self.urls = [safe_address(url, insecure) for url in checks.listed("servers", listed, "a list of addresses")]
        for what, seconds in (("timeout", timeout), ("patience", patience)):
            if not isinstance(seconds, int | float) or not 0 <= seconds < 1e6:
                raise OutOfRange(what, got=seconds, expected="seconds, 0 or more")
        self.timeout, self.patience, self._watch, self._progress = timeout, patience, watch, progress
        self._issuer, self._operators = issuer, tuple(operators)
        self._insecure = insecure
        self._targets = {safe_address(url, True): safe_address(to, insecure) for url, to in (connect_to or {}).items()}
        self.verify = httpx2.create_ssl_context() if verify is True else verify
        self.traffic = {url: Traffic() for url in self.urls}
        self.peers: list[Peer] = []  # the servers, once their manifests were fetched
        self._board, self._lock, self._offers = Board(), anyio.Lock(), dict[bytes, Offer]()
        self._pinned, self._offer = issued, None
        if issued is not None:
            self._offer = self._accept(issued)

    _offer: Offer | None  # the offer that was chosen last
    _met: float | None = None  # when servers last saw this client: manifests were read, or a question ended

    @property
    def missing(self) -> dict[str, ServerFault]:
        """Servers that were out of reach when their manifests were fetched, by address, and why."""
        return self._board.missing

    def target(self, url: str) -> str:
        """Return the address to connect to for a server's address."""
        return self._targets.get(url) or safe_address(url, self._insecure)

    def _accept(self, issued: SignedTerms) -> Offer:
        """Check terms, and choose the step of time for questions under them; once for each."""
        if issued.digest not in self._offers:
            if self._issuer is not None and issued.terms.issuer != self._issuer.hex():
                raise Disagreement("terms: got another issuer's, expected those of the issuer given; nothing was asked")
            self._offers[issued.digest] = make_offer(issued, deployment_of(check_terms(issued).terms))
        return self._offers[issued.digest]._replace(issued=issued)

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
                await self._choose(lines, None)
        return self.peers, self.deployment

    async def _choose(self, lines: Connections, ticket: Ticket | None) -> _Chosen:
        """Choose the newest offer that all servers of the ticket have, or the one in the terms file.

        A server that is out of reach may be a spare. It is left out if two others agree, until a ticket needs it.
        """
        async with self._lock:
            if not self._board.is_fresh:
                patience = min(self.patience, _SPARE) if len(self.urls) > 2 else self.patience
                await self._board.read(lines, self.urls, patience)
                self._met = time.monotonic()
            peers = await self._board.choose(lines, partial(self._wanted, ticket))
            if peers != self.peers:
                self._check(peers)
            self._offer, self.peers = self._accept(peers[0].manifest.issued), peers
            return _Chosen(self._offer, peers)

    def _check(self, peers: Sequence[Peer]) -> None:
        """Refuse servers that do not agree, or that do not have what the terms file says; forget what they showed."""
        board, self._board = self._board, Board()
        if self._pinned is not None and (lack := board.lacks(self._pinned, {peer.url for peer in peers})):
            raise Disagreement(f"terms: {lack}; nothing was asked")
        try:
            check_agreement(peers, issuer=self._issuer, operators=self._operators)
        except Disagreement as error:
            raise Disagreement(f"{error}{''.join(f'; {fault}' for fault in board.missing.values())}") from None
        self._board = board

    def _wanted(self, ticket: Ticket | None, issued: SignedTerms) -> Sequence[int] | None:
        """Return the servers that a ticket is for under some terms; None if it is not for these terms."""
        if self._pinned is not None and issued.text != self._pinned.text:
            return None
        try:
            scheme = self._accept(issued).deployment.scheme
        except (InvalidInput, Disagreement):
            return ()  # who checks the agreement says what is wrong
        if ticket is None:
            met = [n for n, url in enumerate(issued.addresses, start=1) if url in self._board.shown]
            return met if len(met) >= scheme.needed() else range(1, scheme.needed() + 1)
        try:
            tickets.verify(ticket, issued.terms, time.time())
        except Refused as error:
            if error.code == "ticket_not_offered":
                return None
        servers = tickets.servers_of(ticket.claims, scheme)
        try:
            fits = scheme.among(servers, ticket.claims.robust).runs()
        except InvalidInput:
            fits = []
        given = [
            n for n in ticket.claims.servers if n <= len(issued.addresses) and issued.addresses[n - 1] in self.urls
        ]
        return (given or servers) if fits else None  # servers that a ticket names are asked at the addresses given

    async def visit(self, url: str) -> Peer:
        """Fetch one server's manifest, over a new connection."""
        async with Connections(self) as lines:
            return await lines.visit(url)

    async def manifests(self, url: str) -> list[wire.Manifest]:
        """Fetch all manifests of one server, the newest last, over a new connection."""
        async with Connections(self) as lines:
            return await lines.manifests(url)

    async def linked(self, url: str) -> list[wire.Linked]:
        """Ask a server which others it is linked to, where servers talk to each other."""
        async with Connections(self) as lines:
            return await lines.linked(url)

    async def check_ready(self, url: str) -> None:
        """Raise `ServerFault` with the code `not_ready` if a server cannot answer questions now."""
        async with Connections(self) as lines:
            await lines.check_ready(url)

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
        given = wire.decode_ticket_text(ticket) if isinstance(ticket, str) else ticket
        wishes, tries, refused, before = Preferences.of(preferences, **more), 1 + _AGAIN, None, None
        while True:
            chosen = await self._terms(given)
            offer, deployment, tries = chosen.offer, chosen.offer.deployment, tries - 1
            if refused is not None and compiled_by(deployment) != before:
                # A message was sent. If the question did not fit the new terms, silence would tell that (rule 10).
                raise refused
            values = as_person(person, deployment.schema.names)
            own = deployment.schema.codes(values, clamp=clamp)
            question, costs = compile_question(deployment, own, wishes)
            conversation = self._conversation(offer, self._ticket(offer, given, robust), question, spread=spread)
            try:
                await self._carry(conversation, chosen, spending)
                break
            except ServerFault as error:
                # The servers have another offer now, and nothing is spent. That does not depend on the question.
                if not tries or self._pinned or not conversation.is_untouched:
                    raise
                spending, refused, before = None, error, compiled_by(deployment)
        # Every connection is closed, so no server can notice what happens from here on.
        records = conversation.checked(costs)
        shown = {f.name: f.given(values.get(f.name)) for f in deployment.schema.cost_features}
        found = explain(conversation.deployment, costs, shown, records)
        if isinstance(found, Counterfactual):
            found = replace(found, issued=offer.issued)
        return replace(found, liars=tuple(conversation.liars))

    async def reveal(
        self, question: Question, *, ticket: Ticket | str | None = None, deployment: Deployment | None = None
    ) -> tuple[Seen, Record]:
        """Return everything that a question reveals, and the nearest record, for measurements and attacks.

        An attack may pass another `deployment` than the servers', as a cheating applicant would.
        """
        given = wire.decode_ticket_text(ticket) if isinstance(ticket, str) else ticket
        chosen = await self._terms(given)
        own = self._ticket(chosen.offer, given, 0)
        conversation = self._conversation(chosen.offer, own, question, deployment=deployment)
        await self._carry(conversation, chosen)
        return conversation.result(), conversation.signed()[0]

    async def _terms(self, ticket: Ticket | None) -> _Chosen:
        """Return the checked terms to ask under: from a file, or from the servers, which are then known too."""
        if self._pinned is not None:
            return _Chosen(self._accept(self._pinned))
        async with Connections(self) as lines:
            return await self._choose(lines, ticket)

    def _conversation(self, *args: Any, **options: Any) -> Conversation:
        return Conversation(*args, patience=self.patience, progress=self._progress, watch=self._watch, **options)

    async def _carry(
        self, conversation: Conversation, chosen: _Chosen, spending: Callable[[], None] | None = None
    ) -> None:
        """Carry all messages of a question, then close the connections."""
        if self._met is not None:  # hides how long the last answer took to explain, and this question to compile
            await settle(self._met, conversation.offer.step)
        try:
            async with Connections(self) as lines:
                peers = chosen.peers or (await self._choose(lines, conversation.ticket)).peers
                conversation.meet(peers)
                if spending is not None:
                    spending()
                await lines.carry(conversation)
        except ServerFault as error:
            if error.code in OTHER_OFFER or conversation.is_untouched:
                self._board = Board()  # the manifests are fetched again before the next question
            raise
        finally:
            self._met = time.monotonic()

    def _ticket(self, offer: Offer, ticket: Ticket | None, robust: int) -> Ticket:
        """Return the ticket to use, after the checks that need no server."""
        terms = offer.issued.terms
        if ticket is None:
            if terms.tickets != "open":
                raise Refused("ticket_missing", "these servers want a ticket, and none was given")
            ticket = self._own_ticket(terms, offer.deployment, robust)
        tickets.verify(ticket, terms, time.time())
        servers = tickets.servers_of(ticket.claims, offer.deployment.scheme)
        asked = [bytes.fromhex(terms.keys[n - 1]) for n in servers if n <= len(terms.keys)]
        if not all(any(is_pinned(operator, key) for key in asked) for operator in self._operators):
            raise Disagreement("ticket: got one for other servers than that of the operator given; nothing was asked")
        return ticket

    def _own_ticket(self, terms: Terms, deployment: Deployment, robust: int) -> Ticket:
        known = [peer.manifest.server for peer in self.peers] or range(1, terms.parameters.servers + 1)
        numbers = sorted(known)[: deployment.scheme.needed(robust)]
        step = max(1, terms.window // 4)  # coarse, because the exact second could tell one applicant from another
        expires = (int(time.time()) + terms.window // 2) // step * step
        return tickets.mint(terms, numbers, expires=expires, k=deployment.k, robust=robust)


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
    def missing(self) -> dict[str, ServerFault]:
        """Servers that were out of reach and that no question needed, by address, and why."""
        return self._client.missing

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
