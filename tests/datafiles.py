"""Data files that tests read: wine is in `data/`; COMPAS may not be shipped, so COUNTERVEIL_DATA says where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from counterveil.research import experiments

SHIPPED = Path(__file__).parent / "data"
_FOLDER = os.environ.get("COUNTERVEIL_DATA")
OTHERS = Path(_FOLDER or "nowhere")

needs_compas = pytest.mark.skipif(
    not (_FOLDER and (OTHERS / experiments.COMPAS).is_file()),
    reason=f"set COUNTERVEIL_DATA to a folder that holds {experiments.COMPAS}",
)
