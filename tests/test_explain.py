from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from counterveil import (
    Boolean,
    Categorical,
    Counterfactual,
    Database,
    Local,
    NoCounterfactual,
    Numeric,
    Ordinal,
    Preferences,
    Schema,
    local,
)
from counterveil.crypto.randomness import Common
from counterveil.errors import (
    MissingPackage,
    MissingValue,
    NotOffered,
    OutOfRange,
    Tampered,
    UnknownName,
    UnknownValue,
    WrongShape,
    WrongType,
)
from counterveil.schemes.fetch import Subsets
from counterveil.service.server import Server

SCHEMA = Schema(
    features=(
        Numeric(name="savings", low=0, high=10_000, step=500, unit="€"),
        Ordinal(name="flat", values=("small", "large"), missing="level"),
        Categorical(name="job", values=("clerk", "<baker>")),
        Boolean(name="owner", label="owns a home"),
        Numeric(name="age", low=0, high=100, step=1, unit="years", role="record"),
    )
)
ROWS: dict[str, list[Any]] = {
    "savings": [5100, 9000],
    "flat": ["large", "small"],
    "job": ["<baker>", "clerk"],
    "owner": [False, True],
    "age": [44, 51],
}
PERSON = {"savings": 1000, "flat": "large", "job": "clerk", "owner": False}


@pytest.fixture(scope="module")
def bank() -> Local:
    return local(Database.build(ROWS, SCHEMA, lambda _: [True, True]))


def ask(bank: Local, **wishes: Any) -> Counterfactual:
    found = bank.ask(PERSON, **wishes)
    assert isinstance(found, Counterfactual)
    return found


def test_changes_come_in_the_applicants_own_units_the_costliest_first(bank: Local) -> None:
    found = ask(bank)
    assert found.text() == "Change job from clerk to <baker> and raise savings from 1,000 € to 5,000 €."
    assert [c.feature.name for c in found.changes] == ["job", "savings"]
    assert [f.name for f in found.unchanged] == ["flat", "owner"]
    assert "flat, owns a home" in found._repr_html_()
    assert found.cost == pytest.approx(1.16)
    assert [c.share for c in found.changes] == pytest.approx([1 / 1.16, 0.16 / 1.16])
    assert found.values == {"savings": 5000.0, "flat": "large", "job": "<baker>", "owner": False, "age": 44.0}
    assert found.record == found.values | {"savings": 5100.0}
    assert repr(found) == "Counterfactual(2 changes, cost 1.16)"


def test_a_reason_where_there_is_no_answer(bank: Local) -> None:
    found = bank.ask(PERSON, immutable=["job", "flat"])
    assert isinstance(found, NoCounterfactual)
    assert not found.feasible
    assert found.advice
    assert found.text().startswith("No accepted row satisfies your constraints. Relaxing this one would help: ")
    assert found.advice[0].feature.name in ("job", "flat")
    two = bank.ask(PERSON, immutable=["job", "flat", "owner"], ranges={"savings": (0, 2000)})
    assert isinstance(two, NoCounterfactual)
    assert two.hopeless
    assert two.text().endswith("Relaxing a single one would not help.")
    assert json.loads(json.dumps(two.to_dict()))["feasible"] is False
    assert "satisfies" in two._repr_html_()


def test_constraints_that_contradict_each_other_are_an_outcome_too(bank: Local) -> None:
    found = bank.ask(PERSON, immutable=["savings"], ranges={"savings": (6000, 8000)}, weights={"job": 3})
    assert isinstance(found, NoCounterfactual)
    assert found.advice[0].feature.name == "savings"
    assert found.advice[0].constraints == ("immutable", "ranges")


def test_advice_names_the_constraint_that_is_broken(bank: Local) -> None:
    found = bank.ask(PERSON, increase_only=["savings"], ranges={"savings": (0, 4000)})
    assert isinstance(found, NoCounterfactual)
    assert found.text().endswith("Relaxing this one would help: savings must lie in a range.")


def test_a_lying_server_learns_nothing_from_what_happens_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 10: all k records are asked for before the first is looked at."""
    asked = []
    real = Subsets.answer

    def tampering(self: Subsets, server: int, *arguments: Any, **keywords: Any) -> Any:
        asked.append((server, keywords["request"]))
        return real(self, server, *arguments, **keywords) ^ np.uint8(0xFF if server == 1 else 0)

    monkeypatch.setattr(Subsets, "answer", tampering)
    database = Database.build(ROWS, SCHEMA, lambda _: [True, True], record="cell")
    bank = local(database, "table/differences", k=2)
    asked.clear()  # of what the servers rehearsed
    with pytest.raises(Tampered, match="record: got level"):
        bank.ask(PERSON)
    assert asked == [(1, 1), (2, 1), (1, 2), (2, 2)]  # records are numbered from 1, as over HTTP


def test_every_question_has_a_ticket_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers' key outlasts a question; their randomness must not."""
    tickets: list[bytes | None] = []
    real = Server._drawn

    def drawn(self: Server, key: bytes, alphas: tuple[int, ...], digest: bytes, ticket: bytes | None) -> Common:
        tickets.append(ticket)
        return real(self, key, alphas, digest, ticket)

    monkeypatch.setattr(Server, "_drawn", drawn)
    bank = local(Database.build(ROWS, SCHEMA, lambda _: [True, True]))
    assert set(tickets) == {None}  # what servers rehearse with is no ticket's, and is not sent
    tickets.clear()
    for _ in range(3):
        bank.ask(PERSON)
    assert None not in tickets
    assert len(set(tickets)) == 3
    assert len(tickets) == 2 * 3  # at each of two servers once


def test_a_persons_own_value_is_said_as_it_is() -> None:
    schema = Schema(
        features=(
            Numeric(name="rate", low=0, high=10, step=1),
            Numeric(name="log", low=0.5, high=500, levels=7, log=True),
        )
    )
    bank = local(Database.build({"rate": [2.0], "log": [1.3]}, schema, lambda _: [True]))
    found = bank.ask({"rate": Decimal("2.51"), "log": np.float32(0.6)})
    assert found.text() == "Raise log from 0.6 to 1.341 and lower rate from 2.51 to 2."
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["changes"][1]["from"] == 2.51


def test_nothing_to_change(bank: Local) -> None:
    same = {name: column[0] for name, column in ROWS.items()}
    found = bank.ask(same)
    assert isinstance(found, Counterfactual)
    assert found.changes == ()
    assert found.text() == "An accepted row has the same levels as yours in everything that counts."


def test_json_html_and_frames(bank: Local) -> None:
    found = ask(bank)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["feasible"] is True
    assert plain["changes"][1]["from"] == 1000
    assert plain["changes"][1]["to_text"] == "5,000 €"
    page = found._repr_html_()
    assert "&lt;baker&gt;" in page
    assert "<baker>" not in page
    for backend, kind in (("pandas", pd.DataFrame), ("polars", pl.DataFrame), ("pyarrow", pa.Table)):
        frame = found.to_frame(backend)
        assert isinstance(frame, kind)
        assert list(frame["feature"])[:1] == ["job"] or frame["feature"][0].as_py() == "job"
    same = bank.ask({name: column[0] for name, column in ROWS.items()})
    assert isinstance(same, Counterfactual)
    assert same.to_frame("polars").shape == (0, 5)


def test_plot_says_what_it_needs(bank: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingPackage, match=r"plot: got no matplotlib, expected counterveil\[plots\]"):
        ask(bank).plot()


def test_plot_shows_before_and_after(bank: Local, tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    axes = ask(bank).plot()
    shown = {text.get_text() for text in axes.texts}
    assert {"1,000 €", "5,000 €", "clerk", "<baker>"} <= shown
    assert [label.get_text() for label in axes.get_yticklabels()] == ["savings", "job"]
    axes.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    matplotlib.pyplot.close(axes.figure)


@pytest.mark.parametrize("kind", ["mapping", "series", "pandas", "polars", "pyarrow"])
def test_a_person_may_come_in_any_form(bank: Local, kind: str) -> None:
    one = {name: [value] for name, value in PERSON.items()}
    person: Any = {
        "mapping": PERSON,
        "series": pd.Series(PERSON),
        "pandas": pd.DataFrame(one),
        "polars": pl.DataFrame(one),
        "pyarrow": pa.table(one),
    }[kind]
    assert bank.ask(person).text() == ask(bank).text()
    assert bank.ask(person, Preferences(weights={"job": 9})).text() == bank.ask(person, {"weights": {"job": 9}}).text()


@pytest.mark.parametrize(
    ("wishes", "error", "message"),
    [
        ({"weights": {"hat": 2}}, UnknownName, "weights: got 'hat', expected one of savings, flat, job, owner"),
        ({"weights": {"age": 2}}, UnknownName, "weights: got 'age'"),
        ({"weights": {"job": 11}}, OutOfRange, r"weights, job: got 11, expected 1 to 10"),
        ({"weights": {"job": 1.5}}, WrongType, "weights, job: got float, expected int"),
        ({"weights": [1, 2]}, WrongType, "weights: got list, expected a mapping"),
        ({"immutable": ["hat"]}, UnknownName, "immutable: got 'hat'"),
        ({"immutable": "job"}, WrongType, "immutable: got the text 'job', expected a list of features"),
        ({"increase_only": ["job"]}, NotOffered, "increase_only: got job, whose values have no order"),
        ({"ranges": {"job": ("clerk", None)}}, NotOffered, "ranges: got job, whose values have no order"),
        ({"ranges": {"savings": 5}}, WrongShape, "ranges, savings: got 5, expected lowest and highest"),
        ({"ranges": {"savings": ("a", None)}}, WrongType, r"ranges, savings\[0\]: got 'a', expected a number"),
        ({"ranges": {"savings": (1j, None)}}, WrongType, r"ranges, savings\[0\]: got 1j, expected a number"),
        ({"immutable": 3}, WrongType, "immutable: got int, expected a list of features"),
        ({"immutable": [["job"]]}, UnknownName, "immutable: got"),
        ({"forbidden": {"job": "clerk"}}, WrongType, "forbidden, job: got 'clerk', expected a list of values"),
        ({"forbidden": {"job": [["clerk"]]}}, UnknownValue, r"got \['clerk'\], expected one of"),
        ({"spread": "a"}, OutOfRange, "spread: got 'a', expected a number, 0 or more"),
        ({"preferences": 3}, WrongType, "preferences: got int, expected Preferences, or a mapping"),
        ({"ranges": {"savings": (float("nan"), None)}}, WrongType, "ranges, savings: got nan"),
        ({"ranges": {"flat": ("huge", None)}}, UnknownValue, "got 'huge', expected one of 'small', 'large'"),
        ({"forbidden": {"job": ["pilot"]}}, UnknownValue, "got 'pilot', expected one of 'clerk', '<baker>'"),
        ({"costs": {"job": {"clerk": 2}}}, OutOfRange, "costs, job, 'clerk': got 2, expected 0 to 1"),
        ({"costs": {"job": [1]}}, WrongType, "costs, job: got list, expected a mapping from value to cost"),
        ({"metric": "cosine"}, UnknownName, "metric: got 'cosine', expected one of l2, l1, mad, heom"),
        ({"metric": "mad"}, MissingValue, "metric mad, savings: got no mad, expected a mad in the schema"),
        ({"speed": 3}, UnknownName, "preference: got 'speed', expected one of weights, immutable"),
    ],
)
def test_preferences_that_make_no_sense(
    bank: Local, wishes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bank.ask(PERSON, **wishes)


def test_people_that_make_no_sense(bank: Local) -> None:
    with pytest.raises(WrongShape, match="person: got 2 rows, expected one"):
        bank.ask(pd.DataFrame(ROWS))
    with pytest.raises(WrongType, match="frame: got int"):
        bank.ask(3)
    with pytest.raises(MissingValue, match="savings: got nothing, expected 0 to 10000"):
        bank.ask({"job": "clerk"})
    with pytest.raises(WrongType, match="preferences: got an object and keywords"):
        bank.ask(PERSON, Preferences(), immutable=["job"])


def test_preferences_have_no_printed_form() -> None:
    assert "savings" not in repr(Preferences(weights={"savings": 7}))


LONG = Schema(
    features=(
        Numeric(name="a", label="the present employment, counted in years since it began", low=0, high=100, step=1),
        Categorical(name="b", label="housing", values=("lives for free with parents or other relatives", "owned")),
        Ordinal(name="c", values=("small and not at all enough", "large, and more than anybody needs")),
    )
)
FAR = {"a": 90, "b": "owned", "c": "large, and more than anybody needs"}
NEAR = {"a": 3, "b": "lives for free with parents or other relatives", "c": "small and not at all enough"}


def long_bank() -> Local:
    return local(Database.build({name: [value] for name, value in FAR.items()}, LONG, lambda _: [True]))


@pytest.mark.parametrize("given", [False, True])
def test_plot_lays_out_long_labels(given: bool) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    own = plt.subplots(figsize=(10, 4), layout="constrained")[1] if given else None
    found = long_bank().ask(NEAR)
    assert isinstance(found, Counterfactual)
    ax = found.plot(own)
    ax.figure.canvas.draw()
    labels = [*ax.get_yticklabels(), *(text for text in ax.texts if text.get_text())]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == 9
    width, height = ax.figure.canvas.get_width_height()
    for n, box in enumerate(boxes):
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[:n])
    plt.close(ax.figure)


def test_deployments_and_databases_show_themselves_in_notebooks() -> None:
    schema = Schema(features=(Numeric(name="x", label="<b>income</b>", low=0, high=9, step=1, unit="€"),))
    database = Database.build({"x": [3, 4, 4]}, schema, lambda _: [True, True, False])
    shown = database._repr_html_()
    for words in ("&lt;b&gt;income&lt;/b&gt;", "9 €", "2, from 2 accepted of 3 people", "not for servers"):
        assert words in shown
    page = local(database)._repr_html_()
    assert shown in page
    for words in ("table/sealed, by garbled", "2; 1 may collude", "no attack we know"):
        assert words in page


def test_a_metric_of_ones_own_for_single_features() -> None:
    schema = Schema(
        features=(
            Numeric(name="x", low=0, high=10, step=1, missing="level"),
            Ordinal(name="y", values=("low", "mid", "top")),
        )
    )
    bank = local(Database.build({"x": [9, 1], "y": ["low", "top"]}, schema, lambda _: [True, True]))
    called: list[tuple[Any, Any]] = []

    def cheap(before: Any, after: Any) -> float:
        called.append((before, after))
        return 0.05

    def costs(**wishes: Any) -> dict[str, float]:
        found = bank.ask(person, **wishes)
        assert isinstance(found, Counterfactual)
        return {change.feature.name: change.cost for change in found.changes}

    person = {"x": 1, "y": "low"}
    assert costs() == pytest.approx({"x": 0.64})
    assert costs(metric={"y": cheap}) == pytest.approx({"y": 0.05})
    assert called == [("low", "mid"), ("low", "top")]
    assert costs(metric={"x": "l1", "y": "l1"}) == pytest.approx({"x": 0.8})
    called.clear()
    bank.ask({"x": None, "y": "low"}, metric={"x": cheap})
    assert not called
    for wrong in (2.0, -1, float("nan"), "near", None, True):
        with pytest.raises(OutOfRange, match=r"metric, y, from 'low' to 'mid': got .*, expected 0 to 1"):
            bank.ask(person, metric={"y": lambda *_, cost=wrong: cost})
    with pytest.raises(UnknownName, match="metric: got 'z', expected one of x, y"):
        bank.ask(person, metric={"z": cheap})
    for bad in ("fewest", 3):
        with pytest.raises(UnknownName, match=r"metric, x: got .*, expected a function, or one of l2, l1, mad, heom"):
            bank.ask(person, metric={"x": bad})
    bare = Schema(features=(Numeric(name="x", low=0, high=10, step=1),))
    linear = local(Database.build({"x": [9]}, bare, lambda _: [True]), "linear/differences")
    with pytest.raises(NotOffered, match="metric: got a metric for single features in a deployment of linear"):
        linear.ask({"x": 1}, metric={"x": cheap})
