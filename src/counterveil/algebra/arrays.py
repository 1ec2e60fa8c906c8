"""The types of the arrays that modules pass to each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer]  # any integers, not yet checked
Vector = NDArray[np.int64]  # field elements, in [0:q-1]
Codes = NDArray[np.unsignedinteger]  # (M, d) quantised rows, in [0:R]
Bytes = NDArray[np.uint8]  # (M, length) records, or one record
Order = NDArray[np.intp]  # position p stands for row order[p]
Labels = NDArray[np.uint64]  # (bits, rows, 2): two words for each label of a garbled wire
Symbols = Vector | Bytes  # what goes into a message
