"""What an attack asks: a deployment in this process, or running servers, seen as an applicant sees them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ..algebra.arrays import Vector
from ..applicant.ask import compile_question
from ..applicant.client import Client
from ..errors import OutOfRange
from ..inprocess.bank import Local
from ..institution.database import Database
from ..schema.preferences import Preferences
from ..schemes.forms import Question
from ..schemes.scheme import Scheme
from ..terms.deployment import Deployment


class Oracle(Protocol):
    """A deployment as an applicant sees it. Every call costs a ticket."""

    deployment: Deployment

    def reveal(self, question: Question) -> Shown: ...
    def fetch(self, own: Vector) -> Vector: ...


class Shown(NamedTuple):
    """What one ticket gives: everything revealed, the position that was fetched, and the codes of that record."""

    revealed: Vector
    position: int  # -1, which is as good as any other, if the protocol tells none
    record: Vector


def unbounded(scheme: Scheme) -> Scheme:
    """Return the scheme with costs as large as the field holds. A cheat may use it, since no server can notice."""
    q, protocol = scheme.field.q, scheme.protocol
    room = bisect_left(range(q), q, key=lambda bound: protocol.must_exceed(bound, scheme.reveal, scheme.servers)) - 1
    return replace(scheme, form=scheme.form.unbounded(room))


class Asking:
    """Asks as a cheating applicant would: its messages are well-formed, and its question is anything it likes.

    It spends `tickets`. Without them it makes a ticket for each question, as open mode allows.
    """

    def __init__(self, bank: Local | Client, tickets: Sequence[str] | None = None) -> None:
        self.deployment, self._bank = bank.deployment, bank
        self._tickets: Iterator[str] | None = None if tickets is None else iter(tickets)
        self._cheat = replace(self.deployment, scheme=unbounded(self.deployment.scheme))

    def _asked(self, question: Question, deployment: Deployment) -> Shown:
        options: dict[str, Any] = {}
        if self._tickets is not None:
            options["ticket"] = next(self._tickets, None)
            if options["ticket"] is None:
                raise OutOfRange("tickets", got="none left", expected="one for every question of the attack")
        seen, record = self._bank.reveal(question, deployment=deployment, **options)
        return Shown(seen.revealed, seen.positions[0] if seen.positions else -1, record.codes)

    def reveal(self, question: Question) -> Shown:
        """Ask a question, honest or not, and return everything it reveals."""
        return self._asked(question, self._cheat)

    def fetch(self, own: Vector) -> Vector:
        """Ask honestly for a person with these codes; return the codes of the fetched record."""
        question, _ = compile_question(self.deployment, own, Preferences())
        return self._asked(question, self.deployment).record


def in_process(database: Database, deployment: Deployment) -> Asking:
    """Return a deployment in this process for an attack to ask."""
    return Asking(Local(database, deployment))
