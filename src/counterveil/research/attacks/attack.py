"""The contract of an attack: what it tries, and what it gets to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...algebra.arrays import Codes
from ..oracles import Oracle
from .report import Point

if TYPE_CHECKING:
    from .scene import Known, Scene

Success = tuple[float, float]  # what the attack is measured by, and a second number beside it


@dataclass(frozen=True)
class RowAttack:
    """An attack on rows: it asks a deployment, and guesses the levels of every row."""

    name: str
    tells: str  # what it does, in one line
    run: Callable[[Oracle, Codes], list[Point]]
    needs: str = "a bundle"


@dataclass(frozen=True)
class PeopleAttack:
    """An attack on people, or on the model that decides: it gets what tickets have shown, and a measure says how well.

    `plain` is what somebody reaches who has no answer, but as many points: people with their verdicts.
    """

    name: str
    tells: str
    source: str
    measure: str  # what the first number is
    second: str  # what the number beside it is
    chance: float  # the first number of somebody who guesses
    stopped_by: str
    run: Callable[[Scene, Known], Success]
    plain: Callable[[Scene, int], Success] | None = None
    most_tickets: int | None = None  # for each person, beyond which more tickets tell no more
    needs: str = "people"
