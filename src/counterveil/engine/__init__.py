"""Where rows are scanned and records added up, and the parties that do it. `contract` says what that takes."""

from __future__ import annotations

import numpy as np

from ..algebra.arrays import Bytes, Codes
from .contract import Plan, Records, Rows
from .cpu import LASTING, WORTHWHILE, CpuRecords, CpuRows, lay_out


def as_rows(rows: Codes | Rows) -> Rows:
    """Return codes as rows that can be scanned, without laying them out."""
    return CpuRows(rows) if isinstance(rows, np.ndarray) else rows


def hold(records: Bytes | Records) -> Records:
    """Return an array of records as records that can be added up."""
    return CpuRecords(records) if isinstance(records, np.ndarray) else records


__all__ = ["LASTING", "WORTHWHILE", "Plan", "Records", "Rows", "as_rows", "hold", "lay_out"]
