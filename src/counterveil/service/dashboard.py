"""The operator's dashboard: how much was asked and given away over time, and never what was asked.

Security: for the operator only, who must show a token.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidKey
from ..terms.wire import ANSWER_PATH, ATTEMPT_PATH, RECORD_PATH
from .attempts import Attempt
from .family import Family
from .server import Server
from .tally import Tally

if TYPE_CHECKING:
    from .together import Together  # it needs packages that a command without servers does not

_LEAST_TOKEN = 16  # characters: the shortest token


class Operator:
    """Counts requests by the minute since the server began, and says what the answers gave away."""

    def __init__(
        self,
        server: Server,
        token: str,
        *,
        bits: float,
        budget: float | None,
        issued: int | None,
        family: Family | None = None,
    ) -> None:
        self._server, self._token, self._bits, self._budget, self._issued = server, token, bits, budget, issued
        self._began = time.time() if family is None else family.place.began
        self._tally = Tally() if family is None else Tally(family.folder, family.place.seat)
        self._together: Together | None = None
        self.connections: Callable[[int], int] | None = None  # of all processes, if there are several

    def link(self, together: Together) -> None:
        """Show the link to other servers too, and count what this server computes with them."""
        self._together = together
        together.meeting.watchers.append(self._ended)

    def _ended(self, attempt: Attempt) -> None:
        broke = int(attempt.refusal is not None)
        self._tally.add(complete=1 - broke, broke_off=broke, rounds=attempt.rounds, bytes=attempt.received)

    def admits(self, authorization: str) -> bool:
        """Say whether a request carries the token."""
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def count(self, path: str, code: str, **_: float) -> None:
        """Count one request."""
        if path not in (ANSWER_PATH, RECORD_PATH, ATTEMPT_PATH):
            return
        if code != "ok":
            self._tally.count(refused=1)
        elif path != RECORD_PATH:
            self._tally.count(answered=1)

    def status(self) -> dict[str, Any]:
        """Return the facts and counts that the operator's page shows."""
        terms, questions = self._server.terms, self._server.ledger.questions()
        told = self._bits * questions
        leaked = told + questions * terms.parameters.k * math.log2(max(2, terms.rows))
        hours = (time.time() - self._began) / 3600
        facts = [
            ("server", f"{self._server.number} of {terms.parameters.servers}, up for {hours:.1f} hours"),
            ("health", self._health()),
            ("questions answered", f"{questions:,} since the ledger was made"),
            ("tickets", "open: everyone makes their own" if terms.tickets == "open" else self._left(questions)),
            ("requests held in the ledger", f"{self._server.ledger.count():,}"),
            ("given away so far", self._records(questions)),
            ("beside that", f"{told:,.0f} bits about the others" if told else "nothing about the others"),
            ("known attacks would need", self._needed()),
        ]
        facts += [("offer", self._offer(each)) for each in self._server.offers.facts()]
        if self._budget:
            facts.append(("budget", f"{leaked:,.0f} of {self._budget:,.0f} bits are used"))
        if self._together is not None:
            facts += self._linked(self._together)
        minutes = [minute._asdict() for minute in self._tally.minutes()]
        return {"facts": facts, "leaked": leaked, "budget": self._budget, "minutes": minutes}

    def _linked(self, together: Together) -> list[tuple[str, str]]:
        made, count = self._tally.sums(), self.connections or together.connections
        trips = [
            f"server {each.server}: {count(each.server)} connection{'s' * (count(each.server) != 1)}"
            + ("" if each.milliseconds is None else f", {each.milliseconds:g} ms there and back")
            for each in together.status()
        ]
        sizes = f"{made['rounds']:,} rounds, {made['bytes'] / 2**20:,.1f} MiB from other servers"
        attempts = f"{made['complete']:,} complete, {made['broke off']:,} broke off; {sizes}"
        return [("linked to", "; ".join(trips)), ("attempts since the start", attempts)]

    @staticmethod
    def _offer(offer: dict[str, Any]) -> str:
        """Say what applicants may ask under: terms and a common key, and when these end."""
        ends = [
            "never" if at is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
            for at in (offer["ends"], offer["key_ends"])
        ]
        key = f"common key {offer['key']} {offer['key_state']}, ends {ends[1]}"
        return f"terms {offer['terms']}, {offer['rows']:,} rows, end {ends[0]}; {key}: {offer['state']}"

    def _records(self, questions: int) -> str:
        """Say how many rows or regions have left. Which ones, and how often the same, a server cannot know."""
        terms, regions = self._server.terms, self._server.epoch.deployment.tariff.layout.regions
        most = min(terms.rows, questions * terms.parameters.k)
        what = "regions, none of which is a person's row" if regions else "rows, each of which is a person's"
        return f"{'at most ' * (most > 0)}{most:,} of {terms.rows:,} {what}"

    def _needed(self) -> str:
        deployment, rows = self._server.epoch.deployment, self._server.terms.rows
        tickets = f"{-(-rows // deployment.k):,} tickets or more: " if deployment.scheme.rebuilt_after is None else ""
        return tickets + deployment.lasts()

    def _left(self, used: int) -> str:
        return f"{used:,} used" + (
            "" if self._issued is None else f", {max(0, self._issued - used):,} left of {self._issued:,}"
        )

    def _health(self) -> str:
        try:
            self._server.ledger.check()
        except Exception as error:
            return str(error)
        return "ready"


def read_token(path: str | Path) -> str:
    """Read the operator's token from a file."""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidKey(str(path), got=str(error), expected="a file with a token") from None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidKey(
            str(path), got="something short or odd", expected=f"a token of {_LEAST_TOKEN} characters or more"
        )
    return token
