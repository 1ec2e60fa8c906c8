"""Models fitted on raw values of three public data sets, and raw values drawn from regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from counterveil import Categorical, Numeric, Ordinal, Schema
from counterveil.institution.regions.cells import ends
from counterveil.institution.regions.models import booster_file
from counterveil.institution.regions.trees import Boxes, Trees
from counterveil.research import experiments
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns
from datafiles import OTHERS, SHIPPED

DATA = ("german", "wine", "compas")
PEOPLE = 700  # of the larger data sets
MODELS = ("logistic", "forest", "boosting", "xgboost", "lightgbm")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, its people, and how raw values get a verdict from the model's own code."""

    model: Any
    people: Columns
    schema: Schema
    codes: Any
    accepts: Callable[[Any], Any]  # of a pandas frame of raw values
    scores: Callable[[Any], Any]  # likewise
    thresholds: dict[str, Any]  # the numbers at which trees split each column

    @property
    def accepted(self) -> Any:
        """Whom of its people the model accepts."""
        return self.accepts(self.people.select(self.schema.names))


@cache
def data(name: str) -> tuple[pd.DataFrame, Schema, Any]:
    """Return raw people, their schema, and whether each was accepted."""
    if name == "german":
        frame, schema = german_credit()
        people = Columns(frame)
        columns = {each: list(people.column(each)) for each in people.names}
        made = pd.DataFrame(columns)
        return made[schema.names], schema, made["credit"].to_numpy() == "good"
    if name == "wine":
        made = pd.read_csv(SHIPPED / experiments.WINE, sep=";").iloc[:PEOPLE]
        numbers = [column for column in made if column != "quality"]
        features = tuple(
            Numeric(name=c, low=float(made[c].min()), high=float(made[c].max()) + 0.1, levels=30) for c in numbers
        )
        return made[numbers].astype(float), Schema(features=features), made["quality"].to_numpy() >= 6
    made = pd.read_csv(OTHERS / experiments.COMPAS).iloc[:PEOPLE]
    schema = Schema(
        features=(
            Numeric(name="age", low=18, high=80, step=1),
            Numeric(name="priors_count", low=0, high=40, step=1),
            Numeric(name="juv_fel_count", low=0, high=20, step=1),
            Numeric(name="days_b_screening_arrest", low=-100, high=100, levels=50, missing="level"),
            Numeric(name="c_jail_time", low=0, high=800, levels=40, missing="level"),
            Categorical(name="c_charge_degree", values=("F", "M", "O")),
            Categorical(name="race", values=tuple(sorted(made["race"].unique()))),
            Categorical(name="sex", values=("Female", "Male")),
        )
    )
    raw = made[schema.names].copy()
    for feature in schema.features:
        if isinstance(feature, Numeric):
            raw[feature.name] = raw[feature.name].astype(float)
    return raw, schema, made["is_recid"].to_numpy() == 0


@cache
def fitted(name: str, on: str) -> Fitted:
    """Return one of the five models, fitted on raw values of one of the data sets."""
    raw, schema, verdicts = data(on)
    people, codes = Columns(raw), schema.quantise(raw, clamp=True)
    numbers = list(raw.select_dtypes("number"))
    listed = [f for f in schema.features if f.name not in numbers]
    if name in ("xgboost", "lightgbm"):
        return _booster(name, raw, verdicts, people, schema, codes)
    estimators = {
        "logistic": LogisticRegression(max_iter=2000),
        "forest": RandomForestClassifier(n_estimators=40, max_depth=6, random_state=0),
        "boosting": GradientBoostingClassifier(n_estimators=60, random_state=0),
    }
    values = [[f.value(code) for code in range(f.steps + 1)] for f in listed]
    encoder = OneHotEncoder(categories=values, sparse_output=False)
    scaled: Any = make_pipeline(SimpleImputer(), StandardScaler()) if name == "logistic" else SimpleImputer()
    steps = make_column_transformer((encoder, [f.name for f in listed]), (scaled, numbers))
    model = make_pipeline(steps, estimators[name]).fit(raw, verdicts)
    thresholds: dict[str, Any] = {}
    if name != "logistic":
        before = sum(map(len, values))
        trees = np.ravel(model[-1].estimators_)
        for k, number in enumerate(numbers):
            thresholds[number] = np.concatenate([t.tree_.threshold[t.tree_.feature == before + k] for t in trees])
    return Fitted(
        model, people, schema, codes, model.predict, lambda frame: model.predict_proba(frame)[:, 1], thresholds
    )


def _booster(name: str, raw: Any, verdicts: Any, people: Columns, schema: Schema, codes: Any) -> Fitted:
    def typed(frame: Any) -> Any:
        made = frame.copy()
        for feature in schema.features:
            if isinstance(feature, Ordinal):
                made[feature.name] = pd.Categorical(made[feature.name], categories=list(feature.values))
        return made

    model: Any
    if name == "xgboost":
        model = xgboost.XGBClassifier(n_estimators=60, max_depth=4, enable_categorical=True, random_state=0, n_jobs=2)
    else:
        model = lightgbm.LGBMClassifier(n_estimators=60, num_leaves=15, random_state=0, verbose=-1, n_jobs=2)
    model.fit(typed(raw), verdicts.astype(int))
    trees = booster_file(model).ensemble.trees
    found = {f.name: [t.threshold[t.column == j] for t in trees] for j, f in enumerate(schema.features)}
    thresholds = {each: np.concatenate(found[each]) for each in found if isinstance(schema.feature(each), Numeric)}
    scores = partial(_score, model, typed)
    return Fitted(model, people, schema, codes, lambda frame: model.predict(typed(frame)) == 1, scores, thresholds)


def _score(model: Any, typed: Callable[[Any], Any], frame: Any) -> Any:
    return model.predict_proba(typed(frame))[:, 1]


def saved(model: Any, folder: Path, suffix: str) -> Path:
    """Write a booster's own file; return where."""
    path = folder / f"model{suffix}"
    if suffix == ".txt":
        model.booster_.save_model(path)
    else:
        model.save_model(path)
    return path


def inside(fit: Fitted, boxes: Boxes, rng: np.random.Generator, open_ended: Any = ()) -> pd.DataFrame:
    """Return raw values, one point in each box: anywhere in a cell, at its ends, beyond the range, or about thresholds.

    About a threshold means on it, or the least step of 64 or of 32 bits from it.
    """
    count, columns, start = len(boxes), {}, 0
    for j, feature in enumerate(fit.schema.features):
        members = boxes[:, start : start + feature.largest + 1]
        start += feature.largest + 1
        level = (members * (rng.random(members.shape) + 1e-9)).argmax(axis=1)
        if not isinstance(feature, Numeric):
            columns[feature.name] = [feature.value(int(code)) for code in level]
            continue
        low, high = ends(feature, open_ended=False)
        beyond = open_ended[j] if open_ended else (False, False)
        low[0], high[-1] = feature.low - 1e6 * beyond[0], feature.high + 1e6 * beyond[1]
        gone, at = level > feature.steps, np.minimum(level, feature.steps)
        low, high = low[at], high[at]
        drawn = low + (high - low) * rng.random(count)
        near = drawn
        cuts = fit.thresholds.get(feature.name, np.zeros(0))
        cuts = cuts[np.abs(cuts) < 1e30]  # some splits tell only what is missing from all the rest
        if cuts.size:
            near = rng.choice(cuts, size=count)
            narrow = near.astype(np.float32)
            step = np.nextafter(narrow, rng.choice([-np.inf, np.inf], size=count).astype(np.float32))
            between = narrow.astype(float) + (step.astype(float) - narrow) / 2  # where 32 bits round up or down
            near = np.where(rng.random(count) < 0.3, between, near)
            near = np.nextafter(near, np.where(rng.random(count) < 0.6, rng.choice([-np.inf, np.inf], count), near))
        near = np.where((near >= low) & (near <= high), near, drawn)
        where = rng.integers(5, size=count)
        chosen = np.select([where == 0, where == 1, where == 2], [low, high, drawn], near)
        columns[feature.name] = np.where(gone, np.nan, chosen).tolist()
    return pd.DataFrame(columns)


def worst(fit: Fitted, boxes: Boxes, rng: np.random.Generator, open_ended: Any = ()) -> pd.DataFrame:
    """Return one point in each box with a low score: of each feature in turn, the worst of a few values is taken."""
    few = pd.concat([inside(fit, boxes, rng, open_ended) for _ in range(5)], ignore_index=True)
    least, rows = few.iloc[: len(boxes)].copy(), np.arange(len(boxes))
    for name in fit.schema.names:
        tried = pd.concat([least] * 5, ignore_index=True)
        tried[name] = few[name]
        which = fit.scores(tried).reshape(5, -1).argmin(axis=0)
        least[name] = few[name].to_numpy()[which * len(boxes) + rows]
    return least


def wider(schema: Schema, boxes: Boxes, rng: np.random.Generator) -> Boxes:
    """Return boxes of which one bound of one feature is a level farther out, cut down to that level of the feature."""
    made = boxes.copy()
    for box in made:
        ways, start = [], 0
        for feature in schema.features:
            levels = np.flatnonzero(box[start : start + feature.steps + 1])
            if feature.ordered and levels.size:
                beyond = [level for level in (levels[0] - 1, levels[-1] + 1) if 0 <= level <= feature.steps]
                ways += [(start, start + feature.largest + 1, start + level) for level in beyond]
            start += feature.largest + 1
        if ways:
            first, last, level = ways[rng.integers(len(ways))]
            box[first:last] = False
            box[level] = True
    return made


def points(trees: Trees, codes: Any) -> Boxes:
    """Return people as boxes of one level for each feature."""
    return trees.levels_of(trees.points(codes))
