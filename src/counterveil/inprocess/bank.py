"""The whole system in one process: real servers with tickets and ledgers, and an applicant who asks them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..algebra.arrays import Codes, Vector
from ..applicant.ask import compile_question
from ..applicant.conversation import Conversation
from ..applicant.explain import Explanation, explain
from ..applicant.offer import Offer
from ..applicant.runs import Do, Line
from ..crypto.keys import SIGNATURE_BYTES, CommonKey, Issuer, SigningKey
from ..crypto.packages import package_all
from ..crypto.randomness import new_key
from ..institution.database import Database, as_table
from ..schema.costs import Costs
from ..schema.frames import as_person
from ..schema.layouts import Record
from ..schema.preferences import Preferences
from ..schemes.forms import Question
from ..schemes.protocols import Seen
from ..service.attempts import Attempt
from ..service.epochs import make_epoch
from ..service.ledger import MemoryLedger
from ..service.server import Asked, Server
from ..terms import tickets, wire
from ..terms.agreement import Peer
from ..terms.deployment import Deployment
from ..terms.published import make_terms
from ..terms.wire import SignedTerms
from .linked import Dealer, Wires

_SERVICE = "in-process"
_WINDOW = 600  # seconds within which a ticket must expire


class Local:
    """All parties in one process. Servers see the same bytes as over HTTP, spend tickets, and keep ledgers."""

    def __init__(self, database: Database, deployment: Deployment) -> None:
        deployment.check_serves(database)
        self.database, self.deployment = database, deployment
        self._issuer: Issuer | None = None  # a throwaway key, if the database is not signed
        if not database.signer:
            self._issuer = Issuer()
            database = _with_blanks(database, self._issuer)
        own = [SigningKey() for _ in range(deployment.scheme.servers)]
        keys = [key.public for key in own]
        dealt = deployment.scheme.protocol.dealt_by == "dealer"
        dealer = SigningKey().public if dealt else None
        terms = make_terms(
            database, deployment, keys=keys, service=_SERVICE, is_open=True, window=_WINDOW, dealer=dealer
        )
        addresses = tuple(f"http://server-{n}" for n in range(1, len(own) + 1))
        issued = SignedTerms(terms.text(), addresses, "0" * 128)  # no signature: nobody outside this process reads it
        epoch, common = make_epoch(database, issued, deployment), CommonKey(new_key())
        servers = [Server(n, [epoch], keys=[common], own=key, ledger=MemoryLedger()) for n, key in enumerate(own, 1)]
        self._servers = {server.number: server for server in servers}
        self._peers = [Peer(url, s.manifest, 0.0, None, None) for url, s in zip(addresses, servers, strict=True)]
        self._offer = Offer(issued, deployment, 0.0)
        self._wires, self._tapes = Wires(self._servers), Dealer(deployment.scheme, epoch.size) if dealt else None

    @cached_property
    def _rows(self) -> Codes:
        return self.deployment.rows(self.database.codes)

    def __repr__(self) -> str:
        return f"Local({self.deployment.says(self.database.rows)})"

    def _repr_html_(self) -> str:
        scheme = self.deployment.scheme
        about = {
            "scheme": f"{scheme.name}, by {scheme.protocol.name}",
            "servers": f"{scheme.servers}; {scheme.collusion} may collude",
            "a question gives": f"{self.deployment.gives}; {self.deployment.tells(self.database.rows)}",
            "attacks": self.deployment.lasts(),
        }
        return as_table("A deployment in this process", about) + self.database._repr_html_()

    def ask(
        self,
        person: Any,
        preferences: Preferences | Mapping[str, Any] | None = None,
        *,
        spread: float = 0.0,
        clamp: bool = False,
        **more: Any,
    ) -> Explanation:
        """Explain one rejection: the changes to the nearest accepted row, or why there is none.

        Parameters
        ----------
        person : a mapping from feature to value, or a frame of one row.
        preferences : `Preferences`, or a mapping of them; each may also be a keyword: ``immutable=["age"]``.
        spread : if the deployment gives k > 1 records, how much more each must cost than the one before.
        clamp : move values beyond the schema's range to its ends instead of refusing them.
        """
        wishes = Preferences.of(preferences, **more)
        values = as_person(person, self.deployment.schema.names)
        own = self.deployment.schema.codes(values, clamp=clamp)
        costs, fetched = self.fetch(own, wishes, spread=spread)
        given = {f.name: f.given(values.get(f.name)) for f in self.deployment.schema.cost_features}
        return explain(self.deployment, costs, given, fetched)

    def fetch(self, own: Vector, wishes: Preferences, *, spread: float = 0.0) -> tuple[Costs, list[Record]]:
        """Ask for a person with these codes; return the costs of their changes, and the records."""
        question, costs = compile_question(self.deployment, own, wishes)
        conversation = self._carried(question, spread=spread)
        return costs, conversation.checked(costs, self._issuer)

    def nearest(self, own: Vector, wishes: Preferences) -> tuple[Costs, list[int]]:
        """Return what `fetch` would find: the costs of a person's changes, and the numbers of the nearest rows.

        It computes the scheme's specification on all rows, without tickets, shares and messages. Nobody could ask a
        server for that; in one process nothing is hidden anyway, and a thousand people take seconds.
        """
        question, costs = compile_question(self.deployment, own, wishes)
        return costs, self.deployment.choose(self.deployment.scheme.form.costs(self._rows, question))

    def reveal(self, question: Question, *, deployment: Deployment | None = None) -> tuple[Seen, Record]:
        """Return everything that a question reveals, and the nearest record, for measurements and attacks.

        An attack may pass another `deployment` than the servers', as a cheating applicant would.
        """
        conversation = self._carried(question, deployment=deployment)
        return conversation.result(), conversation.signed(self._issuer)[0]

    def begun(self, question: Question, **options: Any) -> Conversation:
        """Return a conversation about a question, with a new ticket. Nothing of it was sent yet."""
        numbers, expires = range(1, self.deployment.scheme.needed() + 1), int(time.time()) + _WINDOW // 2
        ticket = tickets.mint(self._offer.issued.terms, numbers, expires=expires, k=self.deployment.k)
        conversation = Conversation(self._offer, ticket, question, **options)
        conversation.meet(self._peers)
        return conversation

    def replies(self, do: Do) -> Iterator[bytes]:
        """Hand a message to its server; return the reply, part by part."""
        if do.line is None or do.message is None:
            raise AssertionError("a message to send must name its server")
        turn = self._servers[do.line.server].turn(wire.encode(do.message), do.message.kind)
        return turn.answered().parts

    def _together(self, conversation: Conversation, sent: list[Do]) -> None:
        """Hand attempts to servers that talk to each other, and their parts of the answer to the conversation."""
        messages = {do.line: do.message for do in sent if do.line is not None and do.message is not None}
        bodies = {line: bytearray(wire.head(made, conversation.upload(line))) for line, made in messages.items()}
        lines = set(bodies)
        while lines:
            for line in list(lines):
                part = conversation.more(line)
                if part is None:
                    lines.remove(line)
                else:
                    bodies[line] += part
        asked, attempts = dict[Line, Asked](), dict[Line, Attempt]()
        for line, body in bodies.items():
            server = self._servers[line.server]
            asked[line] = server.asked(bytes(body[: wire.ENVELOPE]), len(body), self._tapes)
            attempts[line] = asked[line].join(np.frombuffer(body, dtype=np.uint8))
            self._wires.start(line.server, attempts[line])
        self._wires.deliver()
        for line, attempt in attempts.items():
            if attempt.reply is None:
                raise AssertionError(f"an attempt in one process has no end: {attempt.phase}, {attempt.refusal}")
            self._wires.drop(line.server, attempt)
            conversation.heard(line, asked[line].reply + attempt.reply)
            conversation.ended(line)

    def _carried(self, question: Question, **options: Any) -> Conversation:
        """Carry all messages of a question, and the replies part by part, when the conversation wants more."""
        conversation = self.begun(question, **options)
        while sent := [do for do in conversation.todo() if do.what == "send"]:
            if self.deployment.scheme.protocol.linked:
                self._together(conversation, sent)
                continue
            replies = {do.line: self.replies(do) for do in sent if do.line is not None}
            while replies:
                for line in [line for line in replies if conversation.wants(line)]:
                    part = next(replies[line], None)
                    if part is None:
                        del replies[line]
                        conversation.ended(line)
                    else:
                        conversation.heard(line, part)
        return conversation


def _with_blanks(database: Database, issuer: Issuer) -> Database:
    """Return an unsigned database in the form that servers hold: packages of records, with zeros for signatures.

    Fetched records are signed when they have arrived, because signing every row would take 35 µs a row.
    """
    blank = np.zeros((database.rows, SIGNATURE_BYTES), dtype=np.uint8)
    packages = package_all(np.concatenate([database.records, blank], axis=1), new_key())
    return replace(
        database,
        served=packages,
        signer=issuer.public,
        _known_digest=database.digest,
        _known_packed=("0" * 64,),
    )


def local(database: Database | str | Path, scheme: str | None = None, **parameters: Any) -> Local:
    """Run a deployment of this database, or bundle, in one process; `parameters` are those of `Deployment.serving`.

    Parameters that are not given come from the schema's `[deployment]`, or else are the defaults. Servers in one
    process are linked, so the default is `table/sealed` at every size: costs are shown only by a scheme given by name.

    >>> from counterveil import Database, Schema, local
    >>> data = {"income": [1000, 2000, 3000, 4000], "loans": [0, 3, 1, 0], "accepted": [0, 0, 1, 1]}
    >>> schema = Schema.infer(data, exclude=["accepted"])
    >>> bank = local(Database.build(data, schema, accepted="accepted"))
    >>> bank.ask({"income": 2000, "loans": 1}).text()
    'Raise income from 2,000 to 3,000.'
    """
    if isinstance(database, str | Path):
        database = Database.open(database)
    given = parameters if scheme is None else {"scheme": scheme, **parameters}
    return Local(database, Deployment.serving(database, linked=True, **given))
