"""What an attack on rows reports: how many rows and values it had recovered, by the number of tickets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...schemes.reveals import Opened
from ...schemes.scheme import Scheme
from ..oracles import Shown


@dataclass(frozen=True)
class Point:
    """What an attack had recovered after a number of tickets."""

    tickets: int
    rows: float  # share of rows recovered whole
    cells: float  # share of all values recovered


@dataclass(frozen=True)
class Report:
    """One attack on one deployment."""

    attack: str
    against: str
    curve: tuple[Point, ...]
    stopped_by: str

    @property
    def last(self) -> Point:
        """The end of the curve."""
        return self.curve[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        curve = [{"tickets": p.tickets, "rows": round(p.rows, 4), "cells": round(p.cells, 4)} for p in self.curve]
        return {"attack": self.attack, "against": self.against, "stopped_by": self.stopped_by, "curve": curve}


def counted(tickets: int, guess: Vector, known: NDArray[np.bool_], rows: Vector) -> Point:
    """Count the right values of a guess, row i against true row i. `known` marks the columns that it has guessed."""
    right = (guess == rows) & known
    return Point(tickets, float(right.all(axis=1).mean()), float(right.mean()))


def costs_shown(scheme: Scheme, shown: Shown, rows: int) -> Vector:
    """Return the costs by position. If no cost is revealed, return 0 for the fetched position and 1 for all others."""
    if isinstance(scheme.reveal, Opened):
        return scheme.reveal.relative(scheme.field, shown.revealed)
    costs = np.ones(scheme.protocol.positions(rows), dtype=np.int64)
    costs[shown.position] = 0
    return costs
