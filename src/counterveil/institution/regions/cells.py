"""Which raw values fall into each level of a number: both ends, to the last bit.

A region is certified for whole cells: for every raw value that the schema takes for one of the region's levels.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...schema.features import Numeric

_FARTHEST = float(np.finfo(np.float64).max)  # beyond it lie the infinities, which go wherever it goes
_SLACK = 1e-9  # of the range: what the schema takes beyond its ends without being told to clamp
_LOG = 1e-12  # logarithms may be wrong in their last bits


def ends(feature: Numeric, *, open_ended: bool = True) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest number of every level.

    With `open_ended` the first and the last level hold everything beyond the schema's range, as `clamp` reads it.
    """
    below, above = feature.numbers()[: feature.steps + 1], feature.numbers()[1 : feature.steps + 1]
    inside, outside = below[:-1].copy(), above.copy()  # the last number of a level, and the first one of the next
    level = np.arange(feature.steps)
    while True:
        middle = inside + (outside - inside) / 2
        between = (middle > inside) & (middle < outside)
        if not between.any():
            break
        up = feature.codes(cast(Any, middle), clamp=True) > level
        outside = np.where(between & up, middle, outside)
        inside = np.where(between & ~up, middle, inside)
    if feature.log:
        outside, inside = outside * (1 - _LOG), inside * (1 + _LOG)
    slack = _SLACK * (feature.high - feature.low)
    first, last = (-_FARTHEST, _FARTHEST) if open_ended else (feature.low - slack, feature.high + slack)
    return np.concatenate([[first], outside]), np.concatenate([inside, [last]])
