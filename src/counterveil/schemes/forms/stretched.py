"""Distances between columns of equal range: the common part of `euclidean`, `weighted`, `linear` and `even_norm`.

Every ordered feature is stretched to the same number of levels, so that full ranges count the same. Every category is a
column of its own. These forms, except `euclidean`, take weights; an immutable feature gets the largest weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...algebra.arrays import Codes, Vector
from ...errors import NotOffered
from ...schema.costs import Costs
from ...schema.features import Categorical, Feature
from ...schema.tariff import Tariff
from .form import Example, Form, Polynomial, Question


class Stretched(Polynomial):
    """A polynomial form whose cost is sum_j w_j (y_j - x_j)^n, n = `power`, over stretched columns."""

    offers = frozenset({"weights", "immutable", "override"})

    @property
    def power(self) -> int:
        """The power n of the distance: 2."""
        return 2

    @classmethod
    def for_tariff(cls, tariff: Tariff, **options: Any) -> Form:
        """Return the form over stretched columns. The largest weight makes an immutable feature too dear to change."""
        features = tariff.schema.cost_features
        columns = sum(_columns(tariff, f, np.zeros(1, dtype=np.int64)).shape[1] for f in features)
        form = cls(largest=(tariff.stretch,) * columns, **options)
        for f in features:
            if f.ordered and f.missing == "level":
                got = f"a missing level in a deployment of {form.name}"
                raise NotOffered(f.name, got=got, expected="a table deployment")
            if isinstance(f, Categorical) and f.encoding == "mismatch" and f.largest > 1:
                got = f"mismatch costs in a deployment of {form.name}"
                raise NotOffered(f.name, got=got, expected='encoding = "one-hot"')
        if "weights" not in cls.offers:
            return form
        cap = tariff.max_weight * tariff.stretch**form.power * 2  # one-hot categories change two columns
        return replace(form, max_weight=len(features) * cap + tariff.d_min)

    def prepare(self, tariff: Tariff, codes: Codes | Vector) -> Codes:
        """Return the stretched columns."""
        return self.load(_stretched(tariff, codes))

    def question(self, tariff: Tariff, costs: Costs) -> tuple[Question, Costs]:
        """Ask from the stretched codes. They and the weights give the cost of every level."""
        weights, tables = [], []
        each = zip(costs.features, costs.own.tolist(), costs.weights, costs.allowed, strict=True)
        for feature, a, w, allowed in each:
            w = self.max_weight if {"immutable", "change"} & allowed.keys() else w
            levels = _columns(tariff, feature, np.arange(feature.largest + 1))
            tables.append(w * (np.abs(levels - levels[a]) ** self.power).sum(axis=1))
            weights += [w] * levels.shape[1]
        x = _stretched(tariff, costs.own[None, :])[0]
        return Question(x, weights if self.offers else None), replace(costs, tables=tables)

    def unit(self, tariff: Tariff) -> int:
        """Return the cost, at weight 1, of a change across a whole range."""
        return int(tariff.stretch**self.power)

    @classmethod
    def example(cls) -> Example:
        """Return the form over one feature of two levels, where all weights are 1."""
        form = cls(largest=(1,), max_weight=1)
        return Example(form, form.load([[0], [1]]), (Question([0]), Question([1])))


def _columns(tariff: Tariff, feature: Feature, codes: Vector) -> Vector:
    """Return a feature's codes stretched to the tariff's levels: one column, or one for each category."""
    if isinstance(feature, Categorical) and feature.encoding == "one-hot":
        chosen = codes[:, None] == np.arange(feature.largest + 1)
        return np.where(chosen, tariff.stretch, 0).astype(np.int64)
    return np.asarray(np.rint(codes[:, None] * (tariff.stretch / feature.largest)), dtype=np.int64)


def _stretched(tariff: Tariff, codes: Codes | Vector) -> Vector:
    features = tariff.schema.cost_features
    return np.concatenate([_columns(tariff, f, codes[:, j].astype(np.int64)) for j, f in enumerate(features)], axis=1)
