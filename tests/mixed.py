"""A schema with a feature of every kind, and strategies for its regions, its people and what they prefer."""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st

from counterveil import Boolean, Categorical, Numeric, Ordinal, Preferences, Schema
from counterveil.schema.boxes import Subsets
from counterveil.schema.layouts import Layout

MIXED = Schema(
    features=(
        Numeric(name="income", low=0, high=6, step=1, unit="k€", mad=2, missing="level"),
        Ordinal(name="rank", values=("low", "middle", "high", "top")),
        Categorical(name="job", values=("a", "b", "c", "d"), missing="level", encoding="one-hot"),
        Categorical(name="town", values=tuple("ABCDEFGHIJ")),
        Boolean(name="owner"),
        Numeric(name="shown", low=0, high=1, levels=1, role="record"),
    )
)
LAYOUT = Layout(MIXED, "region")


@st.composite
def boxes(draw: st.DrawFn) -> list[int]:
    """Codes of a region: for every feature a set that has some."""
    codes: list[int] = []
    for each in LAYOUT.families:
        if isinstance(each, Subsets):
            codes.append(draw(st.integers(0, each.largest[0])))
        else:
            alone = each.missing and draw(st.integers(0, 9)) == 0
            low = draw(st.integers(0, each.steps))
            gone = each.missing and draw(st.booleans())
            high = each.steps if alone else draw(st.integers(low, each.steps))
            codes += [2 * each.steps + 2 if alone else low + gone * (each.steps + 1), high]
    return codes


@st.composite
def wishes(draw: st.DrawFn) -> Preferences:
    """Preferences of every kind whose costs rise away from where a person stands."""
    ordered = [f.name for f in MIXED.cost_features if f.ordered]
    some = partial(st.lists, max_size=2, unique=True)
    low = draw(st.integers(0, 6))
    return Preferences(
        weights=draw(st.dictionaries(st.sampled_from([f.name for f in MIXED.cost_features]), st.integers(1, 5))),
        immutable=draw(some(st.sampled_from([f.name for f in MIXED.cost_features]))),
        increase_only=draw(some(st.sampled_from(ordered))),
        decrease_only=draw(some(st.sampled_from(ordered))),
        ranges=draw(st.sampled_from([{}, {"income": (low, None)}, {"income": (low, min(6, low + 2))}])),
        forbidden=draw(
            st.sampled_from([{}, {"town": ["A", "B"], "job": ["c"]}, {"income": [0, 1]}, {"rank": ["top"]}])
        ),
        metric=draw(st.sampled_from(["l1", "l2", "mad", "heom", "fewest"])),
    )


@st.composite
def people(draw: st.DrawFn) -> list[int]:
    return [draw(st.integers(0, f.largest)) for f in MIXED.features]
