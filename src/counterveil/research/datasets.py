"""Data that comes with the package, for demonstrations and tests; `data/README.md` names its source."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

from ..schema.frames import Columns
from ..schema.schema import Schema

_DATA = files("counterveil") / "research" / "data"


def german_credit() -> tuple[Any, Schema]:
    """Return 1000 credit applicants as a frame, with their schema; the column `credit` says good or bad.

    Statlog (German Credit Data), Hans Hofmann, UCI Machine Learning Repository, CC BY 4.0.

    >>> frame, schema = german_credit()
    >>> len(frame), len(schema.features)
    (1000, 20)
    """
    with as_file(_DATA / "german_credit.csv") as path:
        table = Columns(path)
    schema = Schema.from_toml((_DATA / "german_credit.toml").read_text(encoding="utf-8"), "german_credit.toml")
    return table.select(table.names), schema


def german_credit_model() -> Any:
    """Fit gradient boosting of scikit-learn on the raw values of all these applicants, and return the pipeline.

    It says good or bad. It is for demonstrations: it rejects some of those on whom it was fitted.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    frame, schema = german_credit()
    table = Columns(frame)
    words = [name for name in schema.names if not table.dtype(name).is_numeric()]
    encoded = make_column_transformer((OrdinalEncoder(), words), remainder="passthrough")
    model = make_pipeline(encoded, GradientBoostingClassifier(n_estimators=50, max_depth=2, random_state=0))
    return model.fit(table.select(schema.names), table.column("credit"))
