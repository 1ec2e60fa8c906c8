"""Linkage: find the person behind a record, by features that everybody knows of everybody.

The attacker has a list of people with names and some features, the quasi-identifiers. If exactly one person of the list
fits a record, the record is said to be theirs, and tells the rest of their values.
"""

from __future__ import annotations

import numpy as np

from .attack import PeopleAttack, Success
from .scene import Known, Scene


def linkage(scene: Scene, known: Known) -> Success:
    """Return the share of accepted people who are found, and the share of records that find somebody.

    Somebody is found if they alone fit the record in what is known of them, and if they are a member whom it holds.
    """
    far, records = known.apart(scene.known)
    fits = far == 0
    alone = np.flatnonzero(fits.sum(axis=0) == 1)
    who = fits[:, alone].argmax(axis=0)
    holds = known.served.apart(exact=False) == 0
    right = holds[who, records[alone]] & np.isin(who, scene.members)
    found = np.unique(records[alone[right]]).size / max(1, np.unique(records).size)
    return len(np.unique(who[right])) / len(scene.members), float(found)


ATTACK = PeopleAttack(
    name="linkage",
    tells="whose record is this? By features that everybody knows of everybody",
    source="Goethals, Sörensen and Martens 2022, arXiv 2210.12051",
    measure="accepted people who are found",
    second="records that find somebody",
    chance=0.0,
    stopped_by="min_cell or min_people of 2 or more: then no record fits one person alone",
    run=linkage,
)
