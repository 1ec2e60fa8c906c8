"""Draw an explanation: for every change an arrow from the applicant's value to the accepted value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from ..errors import MissingPackage

_NAME, _VALUE, _TITLE, _NOTE = 28, 26, 80, 90  # characters of a line
_CHARACTER, _LINE = 0.085, 0.17  # inches that a character of a label and a line of labels take
_SPAN = 3.5  # inches from the lowest to the highest value, if nobody gives axes


def draw(changes: Sequence[Any], title: str, ax: Any = None, note: str = "") -> Any:
    """Draw the changes of an explanation, each on its feature's range, and return the axes; needs matplotlib.

    A condition of a region has a band where values are inside. `note` stands below. Long labels are broken into lines,
    and there is room for them beside the ranges.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingPackage("plot", got="no matplotlib", expected="counterveil[plots]") from None
    names = [fill(change.feature.title, _NAME) for change in reversed(changes)]
    values = [[fill(text, _VALUE) for text in (c.feature.show(c.before), c.accepted())] for c in reversed(changes)]
    beside = 0.3 + _CHARACTER * _widest(text for pair in values for text in pair)
    before = 0.5 + _CHARACTER * _widest(names)
    if ax is None:
        lines = max((text.count("\n") + 1 for pair in (names, *values) for text in pair), default=1)
        height = 1.2 + (0.53 + _LINE * lines) * max(1, len(changes))
        _, ax = plt.subplots(figsize=(max(8.0, before + 2 * beside + _SPAN), height), layout="constrained")
    span = max(1.0, ax.figure.get_figwidth() - before - 2 * beside)
    for row, (change, shown) in enumerate(zip(reversed(changes), values, strict=True)):
        _draw(ax, row, change, shown)
    ax.set_yticks(range(len(changes)), names)
    ax.set_xlim(-beside / span, 1 + beside / span)
    ax.set_ylim(-0.6, max(1, len(changes)) - 0.4)
    ax.set_xticks([0, 1], ["lowest", "highest"])
    ax.set_title(fill(title, _TITLE))
    ax.set_xlabel(fill(note, _NOTE), fontsize=8)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def _widest(texts: Iterable[str]) -> int:
    """Return the characters of the longest line."""
    return max((len(line) for text in texts for line in text.splitlines()), default=0)


def _draw(ax: Any, row: int, change: Any, shown: Sequence[str]) -> None:
    """Draw one change: a hollow dot for the value now, an arrow, a full dot for the accepted value, and both values."""
    inside, largest = getattr(change, "members", None), change.feature.largest
    before, after = (
        int(change.feature.codes([value], clamp=True)[0]) / largest for value in (change.before, change.after)
    )
    if change.direction == 0 and inside is None:
        before, after = 0.0, 1.0
    ax.plot([0, 1], [row, row], color="#d8dce2", linewidth=3, solid_capstyle="round", zorder=1)
    for first, last in _runs(inside) if inside is not None else ():
        band = {"color": "#9ccfa8", "linewidth": 11, "solid_capstyle": "round"}
        ax.plot([first / largest, last / largest], [row, row], zorder=1.5, **band)
    ax.annotate(
        "", (after, row), (before, row), arrowprops={"arrowstyle": "-|>", "color": "#3b6ea8", "lw": 2}, zorder=2
    )
    ax.scatter([before], [row], s=70, facecolor="white", edgecolor="#6b7280", linewidth=2, zorder=3)
    ax.scatter([after], [row], s=80, color="#3b6ea8", zorder=3)
    left = before <= after
    for x, value, bold, on_left in ((before, shown[0], False, left), (after, shown[1], True, not left)):
        ax.annotate(
            value,
            (x, row),
            xytext=(-9 if on_left else 9, 0 if inside is None else 12),  # above a band, so that it can be seen
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="center",
            fontweight="bold" if bold else "normal",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )


def _runs(inside: Any) -> list[tuple[int, int]]:
    """Return the first and the last of each run of levels that are inside."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    return [(int(first), int(after) - 1) for first, after in edges.reshape(-1, 2)]
