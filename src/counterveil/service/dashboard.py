"""The operator's dashboard: how much was asked and given away over time, and never what was asked.

Security: for the operator only, who must show a token.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidKey
from ..terms.wire import ANSWER_PATH, ATTEMPT_PATH, RECORD_PATH
from .attempts import Attempt
from .server import Server

if TYPE_CHECKING:
    from .together import Together  # it needs packages that a command without servers does not

_MINUTES = 24 * 60
_LEAST_TOKEN = 16  # characters: the shortest token


@dataclass
class _Minute:
    began: int
    answered: int = 0
    refused: int = 0


class Operator:
    """Counts requests by the minute since the process began, and says how many bits the answers gave away."""

    def __init__(self, server: Server, token: str, *, bits: float, budget: float | None, issued: int | None) -> None:
        self._server, self._token, self._bits, self._budget, self._issued = server, token, bits, budget, issued
        self._began = time.time()
        self._minutes: deque[_Minute] = deque(maxlen=_MINUTES)
        self._together: Together | None = None
        self._attempts: Counter[str] = Counter()

    def link(self, together: Together) -> None:
        """Show the link to other servers too, and count what this server computes with them."""
        self._together = together
        together.meeting.watchers.append(self._ended)

    def _ended(self, attempt: Attempt) -> None:
        self._attempts["broke off" if attempt.refusal else "complete"] += 1
        self._attempts["rounds"] += attempt.rounds
        self._attempts["bytes"] += attempt.received

    def admits(self, authorization: str) -> bool:
        """Say whether a request carries the token."""
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def count(self, path: str, code: str, **_: float) -> None:
        """Count one request."""
        if path not in (ANSWER_PATH, RECORD_PATH, ATTEMPT_PATH):
            return
        minute = self._now()
        if code != "ok":
            minute.refused += 1
        elif path != RECORD_PATH:
            minute.answered += 1

    def _now(self) -> _Minute:
        """Return the counts of this minute; add empty minutes for the time in which nobody asked."""
        now = int(time.time()) // 60
        if not self._minutes or now - self._minutes[-1].began > _MINUTES:
            self._minutes.clear()
            self._minutes.append(_Minute(now))
        while self._minutes[-1].began < now:
            self._minutes.append(_Minute(self._minutes[-1].began + 1))
        return self._minutes[-1]

    def status(self) -> dict[str, Any]:
        """Return the facts and counts that the operator's page shows."""
        self._now()
        terms, questions = self._server.terms, self._server.ledger.questions()
        leaked = self._bits * questions
        hours = (time.time() - self._began) / 3600
        facts = [
            ("server", f"{self._server.number} of {terms.parameters.servers}, up for {hours:.1f} hours"),
            ("health", self._health()),
            ("questions answered", f"{questions:,} since the ledger was made"),
            ("tickets", "open: everyone makes their own" if terms.tickets == "open" else self._left(questions)),
            ("requests held in the ledger", f"{self._server.ledger.count():,}"),
            ("one question gives away", f"{self._bits:,.1f} bits ({terms.parameters.scheme})"),
            ("how long that lasts", self._server.epoch.deployment.lasts()),
            ("given away so far", f"{leaked:,.0f} bits" + (f" of {self._budget:,.0f}" if self._budget else "")),
        ]
        if self._together is not None:
            facts += self._linked(self._together)
        minutes = [{"answered": minute.answered, "refused": minute.refused} for minute in list(self._minutes)]
        return {"facts": facts, "leaked": leaked, "budget": self._budget, "minutes": minutes}

    def _linked(self, together: Together) -> list[tuple[str, str]]:
        seen, made = together.status(), self._attempts
        trips = [
            f"server {each.server}: {each.connections} connection{'s' * (each.connections != 1)}"
            + ("" if each.milliseconds is None else f", {each.milliseconds:g} ms there and back")
            for each in seen
        ]
        sizes = f"{made['rounds']:,} rounds, {made['bytes'] / 2**20:,.1f} MiB from other servers"
        attempts = f"{made['complete']:,} complete, {made['broke off']:,} broke off; {sizes}"
        return [("linked to", "; ".join(trips)), ("attempts since the start", attempts)]

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
