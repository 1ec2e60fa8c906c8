"""Check regions of a model that only predicts: on sampled points, with a bound and without a certificate.

A model of ours, fitted to what the other one says of many points, proposes regions. Points are then drawn from each
region, and a region in which one of them is rejected is left out. If none of n is, the Clopper-Pearson bound says which
share of a region's points may still be rejected. It holds for all regions that were tried at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from ...crypto.randomness import keystream, new_key, uniform
from ...errors import MissingPackage
from ...schema.features import Numeric
from ...schema.frames import Columns, rows_as_frame
from ...schema.schema import Schema
from .cells import ends
from .ensembles import Floats
from .models import Thresholded
from .trees import Boxes

SURE = 0.95
MOST_TRIED = 2000  # regions
_FITTED = 20_000  # points that the proposing model is fitted on, at least
_THRESHOLDS = (0.5, 0.8, 0.95)  # how sure the proposing model is
_AT_ONCE = 1 << 17  # points that a model is asked about
_BITS = 53  # of a random fraction

Predict = Callable[[Any], NDArray[np.bool_]]


class Draw:
    """Random fractions and places."""

    def __init__(self) -> None:
        self._read = keystream(new_key())

    def fractions(self, count: int) -> Floats:
        """Return numbers from 0 to below 1."""
        return uniform(self._read, 1 << _BITS, count, count) / float(1 << _BITS)

    def places(self, below: int, count: int) -> Vector:
        """Return whole numbers below `below`."""
        return uniform(self._read, below, count, count)


def bound(points: int, regions: int) -> float:
    """Return the largest share of rejected points in any of the regions, if none of each one's points was rejected."""
    return float(1 - ((1 - SURE) / regions) ** (1 / points))


def proposals(predict: Predict, table: Columns, schema: Schema, draw: Draw) -> Iterator[Thresholded]:
    """Return models that propose regions: fitted to what the model says of people, and of mixtures of them."""
    try:
        from sklearn.compose import make_column_transformer
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder
    except ImportError:
        raise MissingPackage("regions", got="no scikit-learn", expected="counterveil[sklearn]") from None
    columns = {name: table.column(name) for name in schema.names}
    mixed: dict[str, Any] = {}
    for name, column in columns.items():
        others = [column[int(n)] for n in draw.places(table.count, max(0, _FITTED - table.count))]
        mixed[name] = [*column, *others]
    frame = rows_as_frame(mixed, table)
    listed = [f for f in schema.features if not isinstance(f, Numeric)]
    values = [[f.value(code) for code in range(f.largest + 1)] for f in listed]
    encoder = OneHotEncoder(categories=values, sparse_output=False, handle_unknown="ignore")
    steps = make_column_transformer((encoder, [f.name for f in listed]), remainder="passthrough")
    fitted = make_pipeline(steps, HistGradientBoostingClassifier(random_state=0)).fit(frame, predict(frame))
    for threshold in _THRESHOLDS:
        yield Thresholded(fitted, threshold, True)


def points_in(schema: Schema, boxes: Boxes, draw: Draw) -> dict[str, list[Any]]:
    """Return one point of each box of levels: for each feature a level of the box, for a number a value of the cell."""
    columns: dict[str, list[Any]] = {}
    start = 0
    for feature in schema.features:
        members = boxes[:, start : start + feature.largest + 1]
        start += feature.largest + 1
        level = (members * (draw.fractions(members.size).reshape(members.shape) + 1e-9)).argmax(axis=1)
        if isinstance(feature, Numeric):
            low, high = ends(feature, open_ended=False)
            low, high = np.append(low, np.nan)[level], np.append(high, np.nan)[level]  # nan where it is missing
            drawn = np.clip(low + (high - low) * draw.fractions(len(boxes)), feature.low, feature.high)
            columns[feature.name] = [None if value != value else value for value in drawn.tolist()]
        else:
            columns[feature.name] = [feature.value(int(code)) for code in level]
    return columns


def all_accepted(
    predict: Predict,
    table: Columns,
    schema: Schema,
    boxes: Boxes,
    points: int,
    draw: Draw,
    say: Callable[[float], None],
) -> NDArray[np.bool_]:
    """Tell in which boxes the model accepts all of so many points."""
    good, size = np.ones(len(boxes), dtype=bool), max(1, _AT_ONCE // points)
    for at in range(0, len(boxes), size):
        some = np.repeat(boxes[at : at + size], points, axis=0)
        verdicts = predict(rows_as_frame(points_in(schema, some, draw), table))
        good[at : at + size] = np.asarray(verdicts).reshape(-1, points).all(axis=1)
        say(min(1.0, (at + size) / len(boxes)))
    return good
