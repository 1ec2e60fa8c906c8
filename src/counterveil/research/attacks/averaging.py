"""Averaging a mask: multilateration, repeated until the mask has averaged out."""

from __future__ import annotations

from ...algebra.arrays import Codes
from ..oracles import Oracle
from .multilateration import multilateration
from .report import Point

REPEATS = (1, 2, 4, 8, 16, 32)


def averaging(oracle: Oracle, rows: Codes) -> list[Point]:
    """Ask every question of multilateration again and again, and take the mean of what is shown."""
    return multilateration(oracle, rows, repeats=REPEATS)
