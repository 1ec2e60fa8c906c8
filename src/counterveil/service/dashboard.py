"""The operator's dashboard: how much was asked and given away over time, and never what was asked.

It says so in numbers, which the operator's page puts into words of the reader's language.

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
        terms, deployment = self._server.terms, self._server.epoch.deployment
        questions, k = self._server.ledger.questions(), terms.parameters.k
        told = self._bits * questions
        return {
            "server": self._server.number,
            "servers": terms.parameters.servers,
            "hours": (time.time() - self._began) / 3600,
            "trouble": self._trouble(),
            "questions": questions,
            "open": terms.tickets == "open",
            "issued": self._issued,
            "held": self._server.ledger.count(),
            "rows": terms.rows,
            "regions": deployment.served == "region",
            "given": min(terms.rows, questions * k),  # at most; which ones, and which twice, a server cannot know
            "k": k,
            "told": told,
            "rebuilt_after": deployment.scheme.rebuilt_after,
            "offers": self._server.offers.facts(),
            "leaked": told + questions * k * math.log2(max(2, terms.rows)),
            "budget": self._budget,
            "linked": None if self._together is None else self._linked(self._together),
            "minutes": [minute._asdict() for minute in self._tally.minutes()],
        }

    def _linked(self, together: Together) -> dict[str, Any]:
        made, count = self._tally.sums(), self.connections or together.connections
        servers = [
            {"server": each.server, "connections": count(each.server), "milliseconds": each.milliseconds}
            for each in together.status()
        ]
        return {"servers": servers, "broke_off": made["broke off"]} | {
            name: made[name] for name in ("complete", "rounds", "bytes")
        }

    def _trouble(self) -> str | None:
        """Say why the server is not ready; None if it is."""
        try:
            self._server.ledger.check()
        except Exception as error:
            return str(error)
        return None


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
