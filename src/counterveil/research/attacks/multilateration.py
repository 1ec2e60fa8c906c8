"""Multilateration: honest questions from known places, rows in the same order every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...algebra.arrays import Codes, Vector
from ...schema.features import Categorical
from ...schemes.forms import Question
from ...terms.deployment import Deployment
from ..oracles import Oracle
from .report import Point, costs_shown, counted


def multilateration(oracle: Oracle, rows: Codes, *, repeats: Sequence[int] = (1,)) -> list[Point]:
    """Ask from the origin and from the end of every axis: d + 1 honest questions to a form of the question of power 2.

    ‖y‖² - ‖y - R e_j‖² = 2R y_j - R². With differences, all rows are shifted by one unknown vector. It follows from the
    norms, and from one-hot columns, which sum to a constant. A mask is averaged out over `repeats`.
    """
    deployment = oracle.deployment
    R, d, truth = deployment.tariff.stretch, rows.shape[1], rows.astype(np.int64)
    totals: list[Any] = [0.0] * (d + 1)
    points, asked = [], 0
    for repeat in repeats:
        while asked < repeat:
            for j in range(d + 1):
                x = np.zeros(d, dtype=np.int64)
                if j:
                    x[j - 1] = R
                shown = oracle.reveal(Question(x))
                totals[j] = totals[j] + costs_shown(deployment.scheme, shown, len(rows))[: len(rows)]
            asked += 1
        along = np.stack([(totals[0] - total) / asked for total in totals[1:]], axis=1)
        if deployment.scheme.reveal.differences:
            guess = _from_differences(deployment, totals[0] / asked, along / (2 * R))
        else:
            guess = np.rint((along + R * R) / (2 * R))
        points.append(counted(asked * (d + 1), guess, np.ones(d, dtype=bool), truth))
    return points


def _from_differences(deployment: Deployment, norms: Any, along: Any) -> Vector:
    """Find the first row from the norms, ‖y_i‖² - ‖y_1‖² = ‖δ_i‖² + 2 y_1·δ_i, and from sums that are constant."""
    delta = np.rint(along - along[0])
    equations = [2 * delta]
    right = [(norms - norms[0]) - (delta**2).sum(axis=1)]
    start = 0
    for feature in deployment.schema.cost_features:
        one_hot = isinstance(feature, Categorical) and feature.encoding == "one-hot"
        width = feature.largest + 1 if one_hot else 1
        if one_hot:
            unit = np.eye(delta.shape[1])[start : start + width]
            never = (delta[:, start : start + width] == 0).all(axis=0)  # a category that no row has
            equations += [unit.sum(axis=0, keepdims=True), unit[never]]
            right += [np.array([deployment.tariff.stretch], dtype=np.float64), np.zeros(int(never.sum()))]
        start += width
    first, *_ = np.linalg.lstsq(np.concatenate(equations), np.concatenate(right), rcond=None)
    return np.asarray(np.rint(first) + delta)
