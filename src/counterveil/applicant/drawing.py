"""Draw an explanation: for every change an arrow from the applicant's value to the accepted value."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np

from ..errors import MissingPackage


def draw(changes: Sequence[Any], title: str, ax: Any = None, note: str = "") -> Any:
    """Draw the changes of an explanation, each on its feature's range, and return the axes; needs matplotlib.

    A condition of a region has a band where values are inside. `note` stands below.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingPackage("plot", got="no matplotlib", expected="counterveil[plots]") from None
    if ax is None:
        _, ax = plt.subplots(figsize=(8, 1.2 + 0.7 * max(1, len(changes))), layout="constrained")
    for row, change in enumerate(reversed(changes)):
        _draw(ax, row, change)
    ax.set_yticks(range(len(changes)), [c.feature.title for c in reversed(changes)])
    ax.set_xlim(-0.3, 1.3)
    ax.set_ylim(-0.6, max(1, len(changes)) - 0.4)
    ax.set_xticks([0, 1], ["lowest", "highest"])
    ax.set_title(title)
    ax.set_xlabel(fill(note, 90), fontsize=8)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def _draw(ax: Any, row: int, change: Any) -> None:
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
    shown = (change.feature.show(change.before), change.accepted())
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
