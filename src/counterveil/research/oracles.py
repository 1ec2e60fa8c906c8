"""Whom an attack asks, seeing what an applicant sees: a deployment in this process, or servers that run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from ..algebra.arrays import Vector
from ..applicant.ask import compile_question
from ..applicant.client import Client
from ..crypto.randomness import new_key
from ..errors import OutOfRange
from ..inprocess.bank import Local
from ..institution.database import Database
from ..schema.preferences import Preferences
from ..schemes.forms import Question
from ..schemes.scheme import Scheme, run
from ..terms.deployment import Deployment


class Oracle(Protocol):
    """A deployment, as one who asks it sees it. Every call costs a ticket."""

    deployment: Deployment

    def reveal(self, question: Question) -> Seen: ...
    def fetch(self, own: Vector) -> Vector: ...


class Seen(NamedTuple):
    """What one ticket gives: all that is revealed, the position that was fetched, and the codes of that record."""

    revealed: Vector
    position: int
    record: Vector


def unbounded(scheme: Scheme) -> Scheme:
    """Return the scheme as a cheat asks it: costs as large as the field holds, which no server can see."""
    room = bisect_left(range(scheme.field.q), scheme.field.q, key=lambda B: scheme.reveal.least(B, scheme.servers)) - 1
    return replace(scheme, form=scheme.form.unbounded(room))


class InProcess:
    """All parties in this process."""

    def __init__(self, database: Database, deployment: Deployment) -> None:
        self.deployment, self._bank = deployment, Local(database, deployment)
        self._rows, self._scheme = deployment.rows(database.codes), unbounded(deployment.scheme)
        self._key, self._digest, self._codes = new_key(), self._scheme.digest(self._rows), database.codes
        self._records = database.records

    def reveal(self, question: Question) -> Seen:
        """Ask, honestly or not, and return all that comes of it."""
        common = self._scheme.common(self._key, self._digest, new_key())
        asked = run(self._scheme, self._rows, question, common=common, records=self._records)
        order = self._scheme.reveal.order(len(self._rows), common)
        row = asked.position if order is None else order[asked.position]
        return Seen(asked.revealed, asked.position, self._codes[row].astype(np.int64))

    def fetch(self, own: Vector) -> Vector:
        """Ask as a person with these codes; return the codes of the record that comes back."""
        return self._bank.fetch(own, Preferences())[1][0].codes


class OverHttp:
    """Servers that run, and tickets for them."""

    def __init__(self, client: Client, tickets: Sequence[str]) -> None:
        self.deployment, self._client, self._tickets = client.deployment, client, iter(tickets)
        self._cheat = replace(client.deployment, scheme=unbounded(client.deployment.scheme))

    def _ticket(self) -> str:
        ticket = next(self._tickets, None)
        if ticket is None:
            raise OutOfRange("tickets", got="none left", expected="one for every question of the attack")
        return ticket

    def reveal(self, question: Question) -> Seen:
        """Ask, honestly or not, and return all that comes of it."""
        revealed, record = self._client.reveal(question, ticket=self._ticket(), deployment=self._cheat)
        return Seen(revealed, self._cheat.scheme.nearest(revealed), record.codes)

    def fetch(self, own: Vector) -> Vector:
        """Ask as a person with these codes; return the codes of the record that comes back."""
        question, _ = compile_question(self.deployment, own, Preferences())
        return self._client.reveal(question, ticket=self._ticket())[1].codes
