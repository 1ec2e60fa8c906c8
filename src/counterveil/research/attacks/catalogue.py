"""The table of attacks. To add one, write a file and add a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...errors import UnknownName
from . import clamped_extraction, direct_membership, extraction, linkage, membership
from .attack import PeopleAttack, RowAttack
from .averaging import averaging
from .crafted_digits import crafted
from .level_reading import level_reading
from .linking_orders import linking
from .multilateration import multilateration
from .probing import probing

ROW_ATTACKS: dict[str, RowAttack] = {
    attack.name: attack
    for attack in [
        RowAttack("multilateration", "people at the ends of every axis ask: costs tell every row", multilateration),
        RowAttack("level reading", "tables of costs whose sums are digits, within the public cap", level_reading),
        RowAttack("averaging a mask", "multilateration, repeated until the mask has averaged out", averaging),
        RowAttack("crafted digits", "level reading with costs as large as the field holds", crafted),
        RowAttack("linking orders", "answers in different orders are joined on features that all tell", linking),
        RowAttack("probing", "random people ask, and the records that they get are kept", probing),
    ]
}
PEOPLE_ATTACKS: dict[str, PeopleAttack] = {
    attack.name: attack
    for attack in [
        membership.ATTACK,
        direct_membership.ATTACK,
        linkage.ATTACK,
        extraction.ATTACK,
        clamped_extraction.ATTACK,
    ]
}
ATTACKS: dict[str, RowAttack | PeopleAttack] = {**ROW_ATTACKS, **PEOPLE_ATTACKS}


def chosen(names: Iterable[str], among: Mapping[str, RowAttack | PeopleAttack]) -> list[str]:
    """Return the attacks of these names, in the table's order; all of them without a name."""
    wanted = set(names)
    for name in wanted:
        if name not in among:
            needs = f", which needs {ATTACKS[name].needs}" if name in ATTACKS else ""
            raise UnknownName("attack", got=repr(name) + needs, expected=f"one of {', '.join(among)}")
    return [name for name in among if not wanted or name in wanted]
