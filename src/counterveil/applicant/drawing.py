"""Draw an explanation: for every change an arrow from the applicant's value to the accepted value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import MissingPackage


def draw(changes: Sequence[Any], title: str, ax: Any = None) -> Any:
    """Draw the changes of an explanation, each on its feature's range, and return the axes; needs matplotlib."""
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
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def _draw(ax: Any, row: int, change: Any) -> None:
    """Draw one change: a hollow dot for the value now, an arrow, a full dot for the accepted value, and both values."""
    ends = [
        change.feature.codes([value], clamp=True)[0] / change.feature.largest for value in (change.before, change.after)
    ]
    if change.direction == 0:
        ends = [0.0, 1.0]
    before, after = ends
    ax.plot([0, 1], [row, row], color="#d8dce2", linewidth=3, solid_capstyle="round", zorder=1)
    ax.annotate(
        "", (after, row), (before, row), arrowprops={"arrowstyle": "-|>", "color": "#3b6ea8", "lw": 2}, zorder=2
    )
    ax.scatter([before], [row], s=70, facecolor="white", edgecolor="#6b7280", linewidth=2, zorder=3)
    ax.scatter([after], [row], s=80, color="#3b6ea8", zorder=3)
    left = before <= after
    for x, value, bold, on_left in ((before, change.before, False, left), (after, change.after, True, not left)):
        ax.annotate(
            change.feature.show(value),
            (x, row),
            xytext=(-9 if on_left else 9, 0),
            textcoords="offset points",
            ha="right" if on_left else "left",
            va="center",
            fontweight="bold" if bold else "normal",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
