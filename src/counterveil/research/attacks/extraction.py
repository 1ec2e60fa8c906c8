"""Model extraction: train a copy of the model on people who were rejected and on the answers that they got.

Every ticket gives two points: the person who asked was rejected, and the record that came back is accepted. Of a region
every point is accepted, so that a few are drawn from it besides the nearest. The copy is a logistic regression over the
levels. `DualCF` (Wang et al. 2022) also asks for the counterfactual of a counterfactual. Nobody can ask for that here,
because only accepted records are served.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...algebra.arrays import Vector
from .attack import PeopleAttack, Success
from .scene import Floats, Known, Scene, Served, level_distances

_STEPS = 300  # of accelerated gradient descent
_RIDGE = 1e-3
_THRESHOLDS = 8  # at which the copy cuts an ordered feature
_DRAWN = 4  # points of a region, besides the one nearest to the person who asked


def extraction(scene: Scene, known: Known) -> Success:
    """Train a copy on the answers as on ordinary accepted people; return how often it agrees with the model."""
    return copied(scene, known, clamped=False)


def copied(scene: Scene, known: Known, *, clamped: bool) -> Success:
    """Train a copy on what is known, and compare it with the model on people whom neither has seen."""
    served, askers = known.served, scene.codes[known.askers][:, scene.schema.costed]
    answers = nearest(served, known.records, askers[len(askers) - len(known.records) :])
    more = np.repeat(known.distinct, _DRAWN) if served.database.record == "region" else known.records[:0]
    if known.read:
        more = np.concatenate([more, np.arange(served.database.rows)])
    points = np.concatenate([askers, answers, drawn(served, more, scene.generator("points of regions"))])
    place = np.arange(len(points))
    label = place >= len(askers)
    at_border = label & clamped & (place < len(askers) + len(answers))
    return agreement(scene, train(_encoded(scene, points), label, at_border))


def nearest(served: Served, records: Vector, people: Vector) -> Vector:
    """Return the point of each record that is nearest to the person who got it."""
    made = []
    for feature, sets, codes in zip(served.scene.schema.cost_features, served.members, people.T, strict=True):
        far = np.where(sets[records], level_distances(feature)[codes], np.inf)
        made.append(far.argmin(axis=1))
    return np.stack(made, axis=1)


def drawn(served: Served, records: Vector, generator: np.random.Generator) -> Vector:
    """Return a random point of each record."""
    inside = [sets[records] for sets in served.members]
    return np.stack([(each * generator.random(each.shape)).argmax(axis=1) for each in inside], axis=1)


def _encoded(scene: Scene, points: Vector) -> Floats:
    """Return inputs of the copy: a constant; each category; and whether an ordered feature reaches each threshold."""
    columns = [np.ones(len(points))]
    for feature, codes in zip(scene.schema.cost_features, points.T, strict=True):
        if feature.ordered:
            cuts = np.unique(np.ceil(np.linspace(0, feature.steps, min(_THRESHOLDS, feature.steps) + 1)[1:]))
            columns += [codes >= cut for cut in cuts]
        else:
            columns += [codes == level for level in range(feature.largest + 1)]
    return np.stack(columns, axis=1).astype(np.float64)


def train(inputs: Floats, label: NDArray[np.bool_], at_border: NDArray[np.bool_]) -> Floats:
    """Fit a logistic regression in which both labels weigh the same, and return its coefficients.

    A point at the border may be scored anything above one half: only less is a fault.
    """
    share = np.where(label, 1 / max(1, label.sum()), 1 / max(1, (~label).sum())) / 2
    rate = 1 / (np.linalg.norm((inputs.T * share) @ inputs, 2) / 4 + _RIDGE)
    place = ahead = np.zeros(inputs.shape[1])
    for step in range(_STEPS):
        score = 1 / (1 + np.exp(-inputs @ ahead))
        wanted = np.where(at_border, np.maximum(score, 0.5), label)
        moved = ahead - rate * (inputs.T @ (share * (score - wanted)) + _RIDGE * ahead)
        ahead, place = moved + step / (step + 3) * (moved - place), moved
    return np.asarray(place)


def agreement(scene: Scene, copy: Floats) -> Success:
    """Return the mean of how often both accept and how often both reject; and how often they agree, of all people."""
    says = _encoded(scene, scene.codes[scene.outside][:, scene.schema.costed]) @ copy > 0
    model = scene.accepted[scene.outside]
    each = [float((says[model == verdict] == verdict).mean()) for verdict in (True, False) if (model == verdict).any()]
    return sum(each) / len(each), float((says == model).mean())


def labelled(scene: Scene, tickets: int) -> Success:
    """Train a copy on the same people who ask, and on as many people who were accepted, without any answer."""
    accepted = scene.generator("verdicts").permutation(scene.own[scene.accepted[scene.own]])
    people = np.concatenate([scene.askers[:tickets], accepted[:tickets]])
    codes, label = scene.codes[people][:, scene.schema.costed], scene.accepted[people]
    return agreement(scene, train(_encoded(scene, codes), label, np.zeros(len(label), dtype=bool)))


ATTACK = PeopleAttack(
    name="extraction",
    tells="how does the model decide? Answers as ordinary accepted points",
    source="Aïvodji, Bolot and Gambs 2020, arXiv 2009.01884",
    measure="balanced fidelity",
    second="fidelity",
    chance=0.5,
    stopped_by="few tickets; neither sealed nor regions do",
    run=extraction,
    plain=labelled,
)
