"""Explain the answer: the changes that would have led to acceptance, in the person's units, or why there are none."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import narwhals as nw
import numpy as np
from msgspec import to_builtins

from ..errors import WrongType
from ..schema.boxes import Members, beyond, words
from ..schema.costs import Costs
from ..schema.features import Feature, Numeric, Ordinal, Value
from ..schema.frames import installed_backend
from ..schema.layouts import Record
from ..schema.preferences import Preferences
from ..terms.deployment import Deployment
from ..terms.parameters import Certificate
from ..terms.wire import SignedTerms
from .changes import Change as Change
from .changes import Condition as Condition
from .receipts import Receipt, make_receipt

_STAYS = "everything else may stay as it is"
_WORDS = {
    "immutable": "must stay as it is",
    "ranges": "must lie in a range",
    "increase_only": "may only go up",
    "decrease_only": "may only go down",
    "forbidden": "must not get certain values",
    "missing": "must not become missing",
    "change": "can change in some ways only, as the schema says",
}


@dataclass(frozen=True, repr=False)
class Counterfactual:
    """The nearest accepted row, as changes to the applicant's values; `others` are the next rows, if k > 1."""

    changes: tuple[Change, ...]  # the costliest first
    unchanged: tuple[Feature, ...]
    values: dict[str, Value]  # the applicant's values after the changes, at the schema's levels; every constraint holds
    record: dict[str, Value]  # the record that was fetched; a row's values are within half a step of `values`
    cost: float
    others: tuple[Counterfactual, ...] = ()
    liars: tuple[int, ...] = ()  # servers whose wrong answers were corrected
    approximate: bool = False  # the costs were masked, so a nearer row may exist
    outside: tuple[Feature, ...] = ()  # whose value in `record` is outside the range that was asked for
    signed: bytes = b""  # the record and its signature, as they were fetched
    issued: SignedTerms | None = None  # the terms, if they are signed
    max_weight: int = 1  # the most that a feature may weigh

    feasible = True

    def __repr__(self) -> str:
        return f"Counterfactual({len(self.changes)} changes, cost {self.cost:.4g}{', approximate' * self.approximate})"

    def text(self) -> str:
        """Describe all changes in one sentence, and say what must be known about them."""
        if not self.changes:
            return " ".join(["An accepted row has the same levels as yours in everything that counts.", *self.notes()])
        said = [change.text() for change in self.changes]
        sentence = _and(said)
        return " ".join([sentence[0].upper() + sentence[1:] + ".", *self.notes()])

    def notes(self) -> list[str]:
        """Return what must be known about the answer: values outside what was asked for, and a mask."""
        notes = [
            f"The accepted row itself has {f.show(self.record[f.name])} for {f.title}: outside the range that you "
            "asked for, but in the same level as its end."
            for f in self.outside
        ]
        return [*notes, "This is approximate: a nearer accepted row may exist."] if self.approximate else notes

    __str__ = text

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        return {
            "feasible": True,
            "text": self.text(),
            "cost": self.cost,
            "changes": [change.to_dict() for change in self.changes],
            "unchanged": [feature.name for feature in self.unchanged],
            "values": self.values,
            "record": self.record,
            "others": [other.to_dict() for other in self.others],
            "liars": list(self.liars),
            "approximate": self.approximate,
            "outside": [feature.name for feature in self.outside],
        }

    def receipt(self, *, question: bool = False, day: str | None = None) -> Receipt:
        """Return what the institution signed of this answer; `counterveil.verify` checks it without asking a server.

        With `question` it holds your own values too. `day` is today unless you say otherwise: the date is your word.
        """
        if self.issued is None:
            expected = "one of servers whose terms are signed"
            raise WrongType("receipt", got="an answer of servers in one process", expected=expected)
        own = {c.feature.name: c.before for c in self.changes}
        own |= {f.name: self.values[f.name] for f in self.unchanged}
        signed = [each.signed for each in (self, *self.others)]
        return make_receipt(self.issued, signed, day or date.today().isoformat(), own if question else None)

    def another(
        self, preferences: Preferences | Mapping[str, Any] | None = None, *, keep: bool = False, **more: Any
    ) -> Preferences:
        """Return preferences for a different answer, made from those that led to this one.

        What this answer changes costs three times as much, or must stay as it is with `keep`: there may be no such
        answer then, and the ticket is used all the same.
        """
        changed = [change.feature for change in self.changes]
        return Preferences.of(preferences, **more).unlike(changed, self.max_weight, keep=keep)

    def to_frame(self, backend: str | None = None) -> Any:
        """Return the changes as a frame, one row a change. `backend` may be polars, pyarrow or pandas."""
        columns: dict[str, list[Any]] = {
            "feature": [c.feature.name for c in self.changes],
            "from": [c.feature.show(c.before) for c in self.changes],
            "to": [c.accepted() for c in self.changes],
            "cost": [c.cost for c in self.changes],
            "share": [c.share for c in self.changes],
        }
        text, number = nw.String(), nw.Float64()
        schema = {"feature": text, "from": text, "to": text, "cost": number, "share": number}
        chosen: Any = backend or installed_backend()
        return nw.to_native(nw.from_dict(columns, schema=schema, backend=chosen))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(c.feature.title)}</th><td>{html.escape(c.feature.show(c.before))}</td>"
            f"<td>→ <b>{html.escape(c.accepted())}</b></td><td>{c.share:.0%}</td></tr>"
            for c in self.changes
        )
        head = "<tr><th>feature</th><th>now</th><th>accepted at</th><th>share of the cost</th></tr>"
        below = html.escape(self.caption())
        return f"<p>{html.escape(self.text())}</p><table>{head}{rows}</table><p>{below}</p>"

    def caption(self) -> str:
        """Say what stays as it is."""
        return f"Unchanged: {', '.join(feature.title for feature in self.unchanged) or 'nothing'}."

    def plot(self, ax: Any = None) -> Any:
        """Draw every change, from before to after, on its feature's range, and return the axes; needs matplotlib.

        Of a region, the values inside are drawn too.
        """
        from .drawing import draw

        title = "What would have been accepted" + ", approximately" * self.approximate
        return draw(self.changes, title if self.changes else self.text(), ax, self.note())

    def note(self) -> str:
        """Say what a drawing of the changes does not show."""
        return ""


@dataclass(frozen=True, repr=False)
class WayIn(Counterfactual):
    """The nearest region in which everybody is accepted, as the conditions that do not hold yet.

    Whoever meets these conditions, and changes nothing else, is in the region.
    """

    certificate: Certificate | None = None  # how certain that is, and which model decides

    def __repr__(self) -> str:
        return f"WayIn({len(self.changes)} conditions, cost {self.cost:.4g}{', approximate' * self.approximate})"

    def text(self) -> str:
        """Describe all conditions in one sentence, and say whether it is approximate."""
        if not self.changes:
            return " ".join(["You are in a region in which everybody is accepted.", *self.notes()])
        sentence = "; ".join([*(condition.text() for condition in self.changes), *[_STAYS] * bool(self.unchanged)])
        return " ".join([sentence[0].upper() + sentence[1:] + ".", *self.notes()])

    def notes(self) -> list[str]:
        """Return what must be known about the answer: whether costs were masked."""
        return ["This is approximate: a nearer region may exist."] if self.approximate else []

    __str__ = text

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON, with what is certain and of which model."""
        said = self.certificate
        certificate = {"certificate": to_builtins(said) | {"text": said.text()}} if said else {}
        return super().to_dict() | certificate

    def caption(self) -> str:
        """Say what may stay as it is, what is certain, and which model decides."""
        stays = [f"{_STAYS[0].upper()}{_STAYS[1:]}."] if self.unchanged else []
        return " ".join(stays + ([self.certificate.text()] if self.certificate else []))

    note = caption


def _and(said: Sequence[str]) -> str:
    """Return parts of a sentence with commas between them, and "and" before the last one."""
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]]))


@dataclass(frozen=True)
class Advice:
    """One feature whose constraints are all that keeps the nearest row from being a counterfactual."""

    feature: Feature
    constraints: tuple[str, ...]  # the constraints that the nearest row breaks

    def text(self) -> str:
        """Describe the constraints in words."""
        return f"{self.feature.title} " + " and ".join(_WORDS[constraint] for constraint in self.constraints)


@dataclass(frozen=True, repr=False)
class NoCounterfactual:
    """No accepted row satisfies the constraints. `advice` names the feature to relax, if one feature is enough."""

    advice: tuple[Advice, ...]
    violated: tuple[Feature, ...]  # the features whose constraints the nearest row breaks
    hopeless: bool  # whether relaxing the constraints of one feature certainly does not help
    ruled: bool = False  # whether the nearest row breaks a rule of the schema, which the applicant cannot relax
    liars: tuple[int, ...] = ()  # servers whose wrong answers were corrected
    regions: bool = False  # whether there are regions instead of rows

    feasible = False

    def __repr__(self) -> str:
        return f"NoCounterfactual(violated={[feature.name for feature in self.violated]})"

    def text(self) -> str:
        """Say that no row satisfies the constraints, and what would help."""
        what = "way into a region in which everybody is accepted" if self.regions else "accepted row"
        text = f"No {what} satisfies your constraints{' and those of the schema' * self.ruled}."
        if self.advice:
            return f"{text} Relaxing this one would help: {self.advice[0].text()}."
        only = " Relaxing a single one would not help." if self.hopeless else ""
        return f"{text} The nearest one breaks those on {_and([feature.title for feature in self.violated])}.{only}"

    __str__ = text

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        advice = [{"feature": a.feature.name, "constraints": list(a.constraints)} for a in self.advice]
        violated = [feature.name for feature in self.violated]
        return {
            "feasible": False,
            "text": self.text(),
            "advice": advice,
            "violated": violated,
            "liars": list(self.liars),
        }

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.text())}</p>"


Explanation = Counterfactual | NoCounterfactual


def explain(deployment: Deployment, costs: Costs, person: dict[str, Value], records: Sequence[Record]) -> Explanation:
    """Explain the fetched records to this person; the records' codes decide what is feasible (rule 11).

    If the nearest row breaks the constraints of one feature only, relaxing them helps. Suppose that it breaks those of
    more features, and that every forbidden change costs the same. Then the nearest row breaks the fewest constraints of
    all rows, so relaxing one feature cannot help.
    """
    features = {feature.name: feature for feature in costs.features}
    broken = [costs.violated(deployment.tariff.layout.nearest(costs, record)) for record in records]
    verdicts = zip(records, broken, strict=True)
    found = [_counterfactual(deployment, costs, person, record) for record, violated in verdicts if not violated]
    if found:
        first, *others = (_labelled(each, costs, approximate=not deployment.scheme.exact) for each in found)
        return replace(first, others=tuple(others))
    fewest = min(broken, key=len)
    ruled = [name for name, kinds in fewest.items() if "change" in kinds and not features[name].override]
    advice = [Advice(features[n], tuple(kinds)) for n, kinds in fewest.items()] if len(fewest) == 1 else []
    return NoCounterfactual(
        () if ruled else tuple(advice),
        tuple(features[name] for name in fewest),
        hopeless=deployment.scheme.form.forbids_evenly and not advice,
        ruled=bool(ruled),
        regions=deployment.tariff.layout.regions,
    )


def _labelled(found: Counterfactual, costs: Costs, *, approximate: bool) -> Counterfactual:
    """Say whether the answer is approximate, and where the record lies outside the ranges that were asked for.

    A level may lie just outside a range whose end falls into it. The record's own value is then shown, if it is inside.
    A region holds all values of a level, so that the end of the range is shown.
    """
    regions = isinstance(found, WayIn)
    asked = {f.name: f for f in costs.features if f.name in costs.ranges and f.name in found.record}
    values, changes, outside = dict(found.values), list(found.changes), []
    for name, feature in asked.items():
        low, high = costs.ranges[name]
        own = min(max(float(found.values[name] or 0), low), high) if regions else found.record[name]
        if not low <= float(own or 0) <= high:
            outside.append(feature)
        elif not low <= float(values[name] or 0) <= high:
            values[name] = own
            changes = [replace(c, after=own) if c.feature.name == name else c for c in changes]
    return replace(found, changes=tuple(changes), values=values, approximate=approximate, outside=tuple(outside))


def _counterfactual(deployment: Deployment, costs: Costs, person: dict[str, Value], record: Record) -> Counterfactual:
    unit, layout = deployment.unit, deployment.tariff.layout
    codes = layout.nearest(costs, record)
    values = {} if layout.regions else deployment.schema.values(record.codes)
    each = costs.shown(codes, unit)
    total = costs.price(codes, unit)
    changed = sum(cost for own, code, cost in zip(costs.own, codes, each, strict=True) if own != code)
    sets = layout.members(record.codes) if layout.regions else None
    changes: list[Change] = []
    unchanged = []
    for j, (feature, own, code, cost) in enumerate(
        zip(costs.features, costs.own.tolist(), codes.tolist(), each, strict=True)
    ):
        values[feature.name] = feature.value(code)
        over = beyond(feature, person[feature.name]) if sets else ""
        if own == code and not over:
            unchanged.append(feature)
            values[feature.name] = person[feature.name]
            continue
        ordered = max(own, code) <= feature.steps and isinstance(feature, Numeric | Ordinal) and feature.ordered
        about: dict[str, Any] = {
            "feature": feature,
            "before": person[feature.name],
            "after": values[feature.name],
            "direction": (1 if code > own else -1) if ordered else 0,
            "cost": cost,
            "share": cost / changed if changed else 0.0,
        }
        if sets is None:
            changes.append(Change(**about))
        else:
            members = sets[j] & _proposable(feature, costs.allowed[j])
            inside = words(feature, members)
            changes.append(Condition(**about, inside=over if own == code else inside, members=members))
    changes.sort(key=lambda change: -change.cost)
    parts = (tuple(changes), tuple(unchanged), values, record.values, total)
    rest: dict[str, Any] = {"signed": record.signed, "max_weight": deployment.tariff.max_weight}
    if layout.regions:
        return WayIn(*parts, certificate=deployment.certificate, **rest)
    return Counterfactual(*parts, **rest)


def _proposable(feature: Feature, allowed: Mapping[str, Members]) -> Members:
    """Return which levels a condition may name: all but the missing one, where nobody asked for that."""
    there: Members = np.arange(feature.largest + 1) <= feature.steps
    return there | allowed.get("missing", ~there)
