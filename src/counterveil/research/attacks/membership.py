"""Membership inference from counterfactuals alone: was this person among the institution's people?

It reads a set of counterfactuals as if it were synthetic data, and needs no access to the model. We could read only the
abstract of arXiv 2606.06334. The score is our own choice among those made for synthetic data: how dense the records are
around a person, seen through a kernel that is narrower where the attacker's own accepted people are denser.
"""

from __future__ import annotations

import numpy as np

from ...algebra.arrays import Vector
from .attack import PeopleAttack, Success
from .scene import Floats, Known, Scene, level_distances

WIDTH = 0.1  # of the kernel, as a share of the distance to the nearest of the attacker's own accepted people
LEAST = 0.05  # that this distance counts as, in whole ranges
FALSE = 0.01  # the share of strangers who may be called members


def membership(scene: Scene, known: Known) -> Success:
    """Score members and strangers by the records that are known; the model accepts all of them."""
    people = np.concatenate([scene.members, scene.strangers])
    far, _ = known.apart()
    return told_apart(scores(scene, people, far[people]), len(scene.members))


def scores(scene: Scene, people: Vector, far: Floats) -> Floats:
    """Return the logarithm of how dense records are around each person, from how far each record is from them."""
    width = WIDTH * np.maximum(LEAST, _nearest_own(scene, people))
    if not far.shape[1]:
        return np.zeros(len(people))
    least = far.min(axis=1)
    near = np.exp(-(far - least[:, None]) / width[:, None]).sum(axis=1)
    return np.asarray(np.log(near) - least / width)


def _nearest_own(scene: Scene, people: Vector) -> Floats:
    """Return how far each person is from the nearest of the attacker's own accepted people."""
    own = scene.own[scene.accepted[scene.own]]
    far = np.zeros((len(people), len(own)))
    for j, feature in enumerate(scene.schema.cost_features):
        codes = scene.codes[:, scene.schema.costed[j]]
        far += level_distances(feature)[codes[people]][:, codes[own]]
    return np.asarray(far.min(axis=1))


def told_apart(found: Floats, members: int) -> Success:
    """Return the area under the curve of true and false positives, and how many members are found at 1 % false ones.

    The area is the chance that a member has a higher score than a stranger. Equal scores count half.
    """
    inside, outside = found[:members], np.sort(found[members:])
    below, up_to = np.searchsorted(outside, inside, "left"), np.searchsorted(outside, inside, "right")
    area = float((below + up_to).mean() / (2 * len(outside)))
    limit = outside[len(outside) - 1 - int(FALSE * len(outside))]
    return area, float((inside > limit).mean())


ATTACK = PeopleAttack(
    name="membership",
    tells="was this person among the institution's people? From the answers that others got",
    source="after arXiv 2606.06334",
    measure="AUC",
    second="members found at 1 % false alarms",
    chance=0.5,
    stopped_by="regions; with rows and cells sealed and few tickets, because each answer is then one member",
    run=membership,
)
