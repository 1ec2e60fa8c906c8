"""Direct membership inference: ask in the name of the person in question, and look how near the answer is.

A row that comes back is a row of the institution. So whoever asks in the name of a person, and gets that person's own
values back, knows that this person was accepted there. One ticket a person is enough.
"""

from __future__ import annotations

import numpy as np

from ...schema.preferences import Preferences
from .attack import PeopleAttack, Success
from .membership import scores, told_apart
from .scene import Known, Scene


def direct_membership(scene: Scene, known: Known) -> Success:
    """Ask once for every stranger and for as many members, and score each by the answer alone."""
    members = scene.generator("direct membership").permutation(scene.members)[: len(scene.strangers)]
    people = np.concatenate([members, scene.strangers])
    got = [known.served.ask(person, Preferences()) for person in people.tolist()]
    far = known.served.apart(exact=True)[people, got]
    return told_apart(scores(scene, people, far[:, None]), len(members))


ATTACK = PeopleAttack(
    name="direct membership",
    tells="was this person among the institution's people? By asking in their name",
    source="ours",
    measure="AUC",
    second="members found at 1 % false alarms",
    chance=0.5,
    stopped_by="regions, nearly; with rows and cells only tickets that nobody gets in another's name",
    run=direct_membership,
    most_tickets=1,
)
