"""Clamped extraction: a copy for which answers lie at the model's border, so that it need not be sure of them."""

from __future__ import annotations

from .attack import PeopleAttack, Success
from .extraction import copied
from .scene import Known, Scene


def clamped_extraction(scene: Scene, known: Known) -> Success:
    """Train a copy that may score an answer anything above one half, and compare it with the model."""
    return copied(scene, known, clamped=True)


ATTACK = PeopleAttack(
    name="clamped extraction",
    tells="how does the model decide? Answers as points at its border",
    source="Dissanayake and Dutta 2024, arXiv 2405.05369",
    measure="balanced fidelity",
    second="fidelity",
    chance=0.5,
    stopped_by="few tickets; neither sealed nor regions do",
    run=clamped_extraction,
)
