"""Scan rows, add up records, and play parties. `contract` says what a database must be able to do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ..algebra.arrays import Bytes, Codes
from .contract import Plan, Records, Rows
from .cpu import LASTING, WORTHWHILE, CpuRecords, CpuRows, lay_out


def as_rows(rows: Codes | Rows) -> Rows:
    """Return codes as rows that can be scanned, in the layout that they have."""
    return CpuRows(rows) if isinstance(rows, np.ndarray) else rows


def hold(records: Bytes | Records) -> Records:
    """Return an array of records as `Records`, which can be added up."""
    return CpuRecords(records) if isinstance(records, np.ndarray) else records


ENGINES = {"cpu": "cpu", "cuda": "cuda"}  # what scans the rows of one process: the module that lays them out


def named(engine: str) -> Any:
    """Return the module of an engine. It has `lay_out` and `hold`, which return `Rows` and `Records`."""
    return importlib.import_module(f".{ENGINES[engine]}", __package__)


__all__ = ["ENGINES", "LASTING", "WORTHWHILE", "Plan", "Records", "Rows", "as_rows", "hold", "lay_out", "named"]
