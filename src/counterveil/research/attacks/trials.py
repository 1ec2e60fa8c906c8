"""Attacks on people, tried: every attack against every kind of record and reveal, over several scenes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import Progress

from ...algebra import checks
from ...errors import EmptyDatabase, UnknownName, WrongType
from ...schema.schema import Schema
from .attack import Success
from .catalogue import PEOPLE_ATTACKS, chosen
from .scene import KINDS, REVEALS, Floats, Scene, Served, asked

TICKETS = (1, 4, 16, 64, 256)
PLAIN = "verdicts"  # in place of a kind of record: people with their verdicts, and no answers


@dataclass(frozen=True)
class Measured:
    """How well an attack did with a number of tickets: the mean over scenes, with a 95 % interval."""

    tickets: int
    value: float
    low: float
    high: float
    second: float  # the mean of the number beside it


@dataclass(frozen=True)
class Finding:
    """One attack on people against one kind of record and one reveal."""

    attack: str
    records: str
    reveal: str
    curve: tuple[Measured, ...]

    @property
    def against(self) -> str:
        """What was attacked, in words."""
        return self.records if self.records == PLAIN else f"{self.records}, {self.reveal}"

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        attack = PEOPLE_ATTACKS[self.attack]
        curve = [
            {
                "tickets": p.tickets, "value": round(p.value, 4), "low": round(p.low, 4), "high": round(p.high, 4),
                "second": round(p.second, 4),
            }
            for p in self.curve
        ]  # fmt: skip
        return {
            "attack": self.attack, "records": self.records, "reveal": self.reveal, "measure": attack.measure,
            "second": attack.second, "chance": attack.chance, "stopped_by": attack.stopped_by, "curve": curve,
        }  # fmt: skip


@dataclass(frozen=True)
class Trials:
    """All findings, and the kinds of record that some scene could not serve, with the reason."""

    findings: tuple[Finding, ...]
    left_out: dict[str, str]


def attack_people(
    frame: Any,
    schema: Schema,
    accepted: Any,
    *,
    names: Collection[str] = (),
    kinds: Collection[str] = (),
    tickets: Sequence[int] = TICKETS,
    scenes: int = 8,
    most: int = 1000,
    known: Sequence[str] = (),
    seed: int = 1,
    progress: bool = False,
) -> Trials:
    """Try attacks on people against every kind of record, with costs sealed and opened.

    Parameters
    ----------
    frame, schema, accepted : people, and who of them was accepted, as for `Database.build`.
    names, kinds : which attacks and which of `KINDS` to try; by default all.
    tickets : after how many tickets to look.
    scenes : how many times people are drawn anew into members and strangers, and the model is fitted anew.
    most : how many people a scene has at most.
    known : the features by which linkage knows people.
    """
    checks.integer("scenes", scenes, 2)
    wanted = chosen(names, PEOPLE_ATTACKS)
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName("records", got=repr(kind), expected=f"one of {', '.join(KINDS)}")
    if "linkage" in wanted and not known:
        raise WrongType("known", got="no feature", expected="features that everybody knows of everybody, for linkage")
    seen: dict[tuple[str, str, str, int], list[Success]] = {}
    left_out: dict[str, str] = {}
    looks, served_kinds = sorted(set(tickets)), [kind for kind in KINDS if not kinds or kind in kinds]
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("attacks", total=scenes * len(served_kinds))
        for n in range(scenes):
            scene = Scene.drawn(frame, schema, accepted, seed=seed + n, most=most, known=known)
            for name in wanted:
                if plain := PEOPLE_ATTACKS[name].plain:
                    for count in looks:
                        seen.setdefault((name, PLAIN, "", count), []).append(plain(scene, count))
            for kind in served_kinds:
                bar.update(task, description=kind)
                for reveal, found in _tried(scene, kind, wanted, looks, left_out):
                    for (name, count), success in found.items():
                        seen.setdefault((name, kind, reveal, count), []).append(success)
                bar.advance(task)
    kept = [PLAIN, *(kind for kind in KINDS if kind not in left_out)]
    order = [(name, kind, reveal) for name in wanted for kind in kept for reveal in ("", *REVEALS)]
    return Trials(tuple(_finding(key, looks, seen) for key in order if (*key, looks[0]) in seen), left_out)


def _tried(
    scene: Scene, kind: str, names: Sequence[str], looks: Sequence[int], left_out: dict[str, str]
) -> list[tuple[str, dict[tuple[str, int], Success]]]:
    """Try attacks in one scene against one kind of record; note why, if there is nothing to serve."""
    try:
        database = scene.serve(kind)
    except EmptyDatabase as error:
        left_out[kind] = str(error)
        return []
    made, kept = [], dict[tuple[bool, tuple[str, ...]], Floats]()
    for reveal in REVEALS:
        found = {}
        for known, count in zip(asked(Served(scene, database, reveal, kept), looks), looks, strict=True):
            for name in names:
                limit = PEOPLE_ATTACKS[name].most_tickets
                if limit is None or count == looks[0]:
                    found[name, count] = PEOPLE_ATTACKS[name].run(scene, known)
        made.append((reveal, found))
    return made


def _finding(
    key: tuple[str, str, str], looks: Sequence[int], seen: dict[tuple[str, str, str, int], list[Success]]
) -> Finding:
    limit = PEOPLE_ATTACKS[key[0]].most_tickets
    points = [
        _mean(limit if limit is not None else count, seen[(*key, count)]) for count in looks if (*key, count) in seen
    ]
    return Finding(*key, tuple(points))


def _mean(tickets: int, found: Sequence[Success]) -> Measured:
    """Return the mean of both numbers, and a 95 % interval of the first by Student's t over scenes."""
    from scipy.stats import t

    values = np.array(found)
    mean = float(values[:, 0].mean())
    spread = values[:, 0].std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    half = float(t.ppf(0.975, max(1, len(values) - 1)) * spread)
    return Measured(tickets, mean, mean - half, mean + half, float(values[:, 1].mean()))
