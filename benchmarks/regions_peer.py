"""One peer of `regions.py`, run in an environment of its own: python regions_peer.py PEER METHOD FOLDER.

It reads known.csv and asked.csv, and writes answer.json: a way in for each person asked for, where it finds one, and
the seconds that took. Nothing of Counterveil is imported here, since its packages are not installed there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

VERDICT = "credit"


def fit(known: pd.DataFrame, estimator: Any) -> Any:
    """Return gradient boosting, fitted on raw values: numbers as they are, a column for each listed value."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    features = known.drop(columns=VERDICT)
    listed = [c for c in features if not pd.api.types.is_numeric_dtype(features[c]) or features[c].dtype == bool]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = make_column_transformer((encoder, listed), remainder="passthrough")
    return make_pipeline(steps, estimator(random_state=0)).fit(features, known[VERDICT])


def main() -> None:
    """Look for ways in, and write them down."""
    from sklearn.ensemble import GradientBoostingClassifier

    peer, method, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    known, asked = pd.read_csv(folder / "known.csv"), pd.read_csv(folder / "asked.csv")
    model = fit(known, GradientBoostingClassifier)
    search = _dice if peer == "dice" else _nice
    began = time.perf_counter()
    found, whose = search(model, known, asked, method)
    took = time.perf_counter() - began
    answer = {"found": json.loads(found.to_json(orient="records")), "whose": whose, "seconds": took}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _dice(model: Any, known: pd.DataFrame, asked: pd.DataFrame, method: str) -> tuple[pd.DataFrame, list[int]]:
    import dice_ml

    features = known.drop(columns=VERDICT)
    numbers = [c for c in features if pd.api.types.is_numeric_dtype(features[c]) and features[c].dtype != bool]
    people = features.assign(**{VERDICT: (known[VERDICT] == "good").astype(int)})

    class Verdict:
        """The model with the classes 0 and 1, as DiCE expects them."""

        def predict_proba(self, frame: pd.DataFrame) -> Any:
            return model.predict_proba(frame[features.columns].astype(features.dtypes.to_dict()))[:, :: _step(model)]

        def predict(self, frame: pd.DataFrame) -> Any:
            return self.predict_proba(frame).argmax(axis=1)

    data = dice_ml.Data(dataframe=people, continuous_features=numbers, outcome_name=VERDICT)
    dice = dice_ml.Dice(data, dice_ml.Model(model=Verdict(), backend="sklearn"), method=method)
    rows, whose = [], []
    for n in range(len(asked)):
        one = asked.drop(columns=VERDICT).iloc[n : n + 1]
        options = {"random_seed": 0} if method == "random" else {}
        try:
            found = dice.generate_counterfactuals(one, total_CFs=1, desired_class=1, verbose=False, **options)
        except Exception as error:  # DiCE raises errors of several kinds where it finds nothing
            print(f"person {n}: {error}", file=sys.stderr)
            continue
        made = found.cf_examples_list[0].final_cfs_df
        if made is not None and len(made):
            rows.append(made[features.columns].iloc[:1])
            whose.append(n)
    return pd.concat(rows, ignore_index=True), whose


def _step(model: Any) -> int:
    """Return 1 where the model's classes are bad and good in this order, -1 where they are not."""
    return 1 if list(model.classes_) == ["bad", "good"] else -1


def _nice(model: Any, known: pd.DataFrame, asked: pd.DataFrame, method: str) -> tuple[pd.DataFrame, list[int]]:
    from nice import NICE

    features = known.drop(columns=VERDICT)
    listed = [c for c in features if not pd.api.types.is_numeric_dtype(features[c]) or features[c].dtype == bool]
    values = {c: sorted(set(features[c]) | set(asked[c]), key=str) for c in listed}

    def coded(frame: pd.DataFrame) -> Any:
        made = frame[features.columns].copy()
        for c in listed:
            made[c] = [values[c].index(v) for v in made[c]]
        return made.to_numpy(dtype=np.float64)

    def named(rows: Any) -> pd.DataFrame:
        made = pd.DataFrame(np.asarray(rows, dtype=np.float64), columns=features.columns)
        for c in listed:
            made[c] = [values[c][round(v)] for v in made[c]]
        return made.astype(features.dtypes.to_dict())

    def shares(rows: Any) -> Any:
        return model.predict_proba(named(rows))[:, :: _step(model)]

    place = [list(features.columns).index(c) for c in listed]
    nice = NICE(
        shares, coded(features), place, y_train=(known[VERDICT] == "good").astype(int).to_numpy(), optimization=method
    )
    made = [nice.explain(coded(asked.iloc[n : n + 1])) for n in range(len(asked))]
    return named(np.concatenate(made)), list(range(len(asked)))


if __name__ == "__main__":
    main()
