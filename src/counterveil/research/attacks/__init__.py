"""Attack one's own deployment, to see what an applicant with many tickets or crafted questions learns.

Each attack sees only what an applicant sees: the terms, and what its questions reveal. The truth is compared with the
attack's guess afterwards. These are simulations: their questions come from a seeded generator. One table holds all
attacks: attacks on rows need a bundle, and attacks on people need a frame of people.
"""

from __future__ import annotations

from .catalogue import ATTACKS, PEOPLE_ATTACKS, ROW_ATTACKS
from .crafted_digits import crafted
from .deployments import attack_all, attack_deployment
from .linking_orders import linking
from .multilateration import multilateration
from .report import Point, Report
from .scene import KINDS, Known, Scene, Served, asked
from .trials import TICKETS, Finding, Measured, Trials, attack_people

__all__ = [
    "ATTACKS",
    "KINDS",
    "PEOPLE_ATTACKS",
    "ROW_ATTACKS",
    "TICKETS",
    "Finding",
    "Known",
    "Measured",
    "Point",
    "Report",
    "Scene",
    "Served",
    "Trials",
    "asked",
    "attack_all",
    "attack_deployment",
    "attack_people",
    "crafted",
    "linking",
    "multilateration",
]
