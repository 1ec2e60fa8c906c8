"""Draw figures: leakage by reveal, accuracy by levels, what attacks reach by tickets, several questions, speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidData, MissingPackage, OutOfRange
from .attacks import PEOPLE_ATTACKS, Finding, Report
from .bench import Timed
from .budget import Told
from .experiments import Accuracy, Claim

_COLOURS = [
    "#3b6ea8",
    "#c8553d",
    "#588157",
    "#8e6c8a",
    "#d4a017",
    "#4a4e69",
    "#6d9dc5",
    "#9b2226",
    "#7f8c4f",
    "#b5838d",
]


def _axes(width: float, height: float) -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError:
        raise MissingPackage("plots", got="no matplotlib", expected="counterveil[plots]") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InvalidData(str(path), got=error.strerror, expected="a place that can be written") from None
    finally:
        plt.close(figure)
    return path


Mark = tuple[float, str]


def ladder(
    path: Path, rungs: Sequence[tuple[str, float, float, float]], *, title: str, unit: str, mark: Mark | None = None
) -> Path:
    """Draw leakage by reveal as bars, from most to least, with intervals. A rung is (name, value, low, high)."""
    figure, axes = _axes(8, 1.4 + 0.36 * len(rungs))
    ordered = sorted(rungs, key=lambda rung: rung[1])
    for row, (_, value, low, high) in enumerate(ordered):
        axes.barh(row, value, height=0.62, color=_COLOURS[0], alpha=0.85)
        if high > low:
            axes.plot([low, high], [row, row], color="black", linewidth=1.5)
        axes.annotate(f"{value:,.4g}", (max(value, high), row), xytext=(5, 0), textcoords="offset points", va="center")
    if mark is not None:
        axes.axvline(mark[0], color=_COLOURS[1], linestyle="--", linewidth=1.2)
        axes.annotate(
            mark[1], (mark[0], 1), xycoords=("data", "axes fraction"), xytext=(6, -2), textcoords="offset points",
            color=_COLOURS[1], va="top", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
        axes.set_ylim(-0.6, len(ordered) + 0.3)
    axes.set_yticks(range(len(ordered)), [name for name, *_ in ordered])
    axes.set_xlim(0, 1.12 * max(high for *_, high in rungs))
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left")
    axes.tick_params(axis="y", length=0)
    return _save(figure, path)


def claims(path: Path, found: Sequence[Claim], *, title: str, unit: str, mark: Mark | None = None) -> Path:
    """Draw claims as bars with intervals."""
    return ladder(path, [(c.what, c.ours, c.low, c.high) for c in found], title=title, unit=unit, mark=mark)


def accuracy(path: Path, results: Sequence[Accuracy], *, title: str) -> Path:
    """Draw accuracy against levels, one line for each mask, with bands of two standard errors."""
    figure, axes = _axes(7, 4.6)
    for colour, d_min in zip(_COLOURS, sorted({r.d_min for r in results}), strict=False):
        line = sorted((r for r in results if r.d_min == d_min), key=lambda r: r.levels)
        levels, means = [r.levels for r in line], [r.mean for r in line]
        low, high = ([r.mean + sign * 1.96 * r.error for r in line] for sign in (-1, 1))
        label = "no mask" if d_min == 1 else f"d_min = {d_min}"
        axes.plot(levels, means, marker="o", markersize=4, color=colour, label=label)
        axes.fill_between(levels, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("levels R")
    axes.set_ylabel("accuracy")
    axes.set_ylim(None, 1.0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.set_title(title, loc="left")
    return _save(figure, path)


def recovered(path: Path, reports: Sequence[Report], *, title: str) -> Path:
    """Draw the share of rows that each attack has recovered, by the number of tickets."""
    figure, axes = _axes(8.5, 5)
    styles = ["-", "--", ":"]
    most = max(report.last.tickets for report in reports)
    for n, report in enumerate(reports):
        tickets, rows = [0, *(p.tickets for p in report.curve)], [0.0, *(p.rows for p in report.curve)]
        axes.plot([tickets[-1], most], [rows[-1]] * 2, color=_COLOURS[n % len(_COLOURS)], linewidth=1, alpha=0.35)
        axes.step(
            tickets,
            rows,
            where="post",
            color=_COLOURS[n % len(_COLOURS)],
            linestyle=styles[n // len(_COLOURS)],
            marker="o",
            markersize=3,
            label=f"{report.attack}: {report.against}",
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(0, None)
    axes.set_ylim(-0.03, 1.05)
    axes.set_xlabel("tickets spent")
    axes.set_ylabel("share recovered whole")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_title(title, loc="left")
    return _save(figure, path)


def budget(path: Path, curves: Sequence[tuple[str, Sequence[Told]]], *, title: str) -> Path:
    """Draw the bits that honest questions tell, a line for each reveal: bounds for the most of them, dots for fewer."""
    figure, axes = _axes(9, 1.6 + 0.36 * len(curves))
    for row, (_, curve) in enumerate(reversed(curves)):
        last = curve[-1]
        axes.barh(row, last.high - last.low, left=last.low, height=0.62, color=_COLOURS[0], alpha=0.3)
        axes.plot([told.high for told in curve], [row] * len(curve), "o", markersize=4, color=_COLOURS[0], alpha=0.85)
        axes.plot(last.whole, row, "|", markersize=14, markeredgewidth=2, color=_COLOURS[1])
        axes.annotate(f"{last.share:.0%}", (last.whole, row), xytext=(7, 0), textcoords="offset points", va="center")
    asked = ", ".join(str(told.questions) for told in curves[0][1])
    axes.set_xscale("log")
    axes.set_xlim(1, None)
    axes.set_yticks(range(len(curves)), [name for name, _ in reversed(curves)])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"bits (dots: {asked} questions, at most; bars: bounds for the most; red: all that there are)")
    axes.set_title(title, loc="left")
    return _save(figure, path)


def attacked(path: Path, findings: Sequence[Finding], *, title: str) -> Path:
    """Draw how well attacks on people do by the number of tickets: a panel an attack, with bands of 95 %."""
    lines = [finding for finding in findings if len(finding.curve) > 1]
    names = list(dict.fromkeys(finding.attack for finding in lines))
    if not names:
        raise OutOfRange(
            "plots", got="no attack by tickets", expected="two numbers of tickets and an attack that uses them"
        )
    figure, first = _axes(1.5 + 3.1 * len(names), 4.2)
    first.remove()
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    against = list(dict.fromkeys((finding.records, finding.reveal) for finding in lines))
    against.sort(key=lambda each: not each[1])  # what has no reveal has no answers: it is drawn last
    kinds = list(dict.fromkeys(records for records, _ in against))
    styles = {"sealed": "-", "opened": "--", "": ":"}
    looks = {each: (_COLOURS[kinds.index(each[0])] if each[1] else "black", styles[each[1]]) for each in against}
    for axes, name in zip(panels, names, strict=True):
        here = {(each.records, each.reveal): each for each in lines if each.attack == name}
        for finding in (here[key] for key in against if key in here):
            colour, style = looks[finding.records, finding.reveal]
            tickets = [p.tickets for p in finding.curve]
            width = 3.2 - 0.5 * kinds.index(finding.records)  # so that a line shows under another
            axes.plot(tickets, [p.value for p in finding.curve], style, color=colour, linewidth=width)
            low, high = [p.low for p in finding.curve], [p.high for p in finding.curve]
            axes.fill_between(tickets, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.axhline(PEOPLE_ATTACKS[name].chance, color="#9aa5b1", linestyle=":", linewidth=1)
        axes.set_xscale("log", base=4)
        axes.set_xticks(tickets, [f"{n:,}" for n in tickets])
        axes.minorticks_off()
        axes.set_ylim(-0.03, 1.03)
        axes.set_title(f"{name}\n{PEOPLE_ATTACKS[name].measure}", loc="left", fontsize=9)
        axes.set_xlabel("tickets spent")
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for records, reveal in against:
        colour, style = looks[records, reveal]
        label = f"{records}, {reveal}" if reveal else f"{records}, no answers"
        panels[-1].plot([], [], style, color=colour, label=label)
    panels[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return _save(figure, path)


def speed(path: Path, timed: Sequence[Timed], scaled: Sequence[Timed], *, title: str) -> Path:
    """Draw the time of one question, ours and others', and the time for each code as the database grows."""
    figure, axes = _axes(9, 0.8 + 0.34 * len(timed))
    limit = min((t.milliseconds for t in timed if not t.trust), default=0.0)
    for place, each in enumerate(reversed(timed)):
        colour = "#9aa5b1" if not each.trust else _COLOURS[1] if each.trust.startswith("none") else _COLOURS[0]
        axes.barh(place, each.milliseconds, color=colour, height=0.6)
        axes.text(each.milliseconds, place, f" {each.milliseconds:,.3g} ms", va="center", fontsize=8)
    axes.axvline(limit, color="#9aa5b1", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(timed)), [each.what for each in reversed(timed)], fontsize=8)
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = [n * 10.0**e for e in range(-3, 6) for n in (1, 2, 5)]
    low, high = axes.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [f"{tick:,g}" for tick in shown])
    axes.set_xlabel("milliseconds for one question (blue: private; red: in the clear; grey: the machine)")
    axes.set_title(title, loc="left", fontsize=10)
    _save(figure, path)
    if scaled:
        figure, axes = _axes(7, 3.8)
        for label, kept, hue in (("M grows, d = 32", "d = 32", 0), ("d grows, M = 1,000,000", "M = 1,000,000,", 1)):
            points = sorted((t.read, t.milliseconds) for t in scaled if kept in t.what)
            codes, times = [n for n, _ in points], [1e6 * ms / n for n, ms in points]
            axes.plot(codes, times, "o-", color=_COLOURS[hue], label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("codes in the database, M · d")
        axes.set_ylabel("nanoseconds a code")
        axes.minorticks_off()
        ticks = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
        low, high = axes.get_ylim()
        shown = [tick for tick in ticks if low <= tick <= high]
        axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
        axes.set_title("One question, table with 16 levels: flat once it is worth the call", loc="left", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
        _save(figure, path.with_name("scaling.png"))
    return path
