"""Crafted digits: level reading with costs beyond the public cap, which no server can notice."""

from __future__ import annotations

from ...algebra.arrays import Codes
from ..oracles import Oracle, unbounded
from .level_reading import level_reading
from .report import Point


def crafted(oracle: Oracle, rows: Codes) -> list[Point]:
    """Read levels off costs as large as the field holds; a larger field would give away more at once (rule 5)."""
    return level_reading(oracle, rows, most=unbounded(oracle.deployment.scheme).form.bound)
