"""Reveals: what the applicant gets to see of the rows' costs.

One table holds them all; `make_reveal` builds one from its name.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnknownName
from .. import defaults
from .agreeing import Agreeing
from .opened import Opened
from .reveal import Reveal
from .sealed import Sealed

REVEALS: dict[str, Reveal] = {
    reveal.name: reveal
    for reveal in [
        Opened(name="distances"),
        Opened(name="differences", differences=True),
        Opened(name="masked", masked=True),
        Opened(name="masked_differences", masked=True, differences=True),
        Agreeing(name="agreeing"),
        Sealed(name="sealed"),
    ]
}


def make_reveal(
    name: str,
    *,
    shuffle: bool = defaults.SHUFFLE_BARE,
    d_min: int = defaults.D_MIN,
    expansion: int = defaults.EXPANSION,
) -> Reveal:
    """Build the reveal of that name. A reveal that always shuffles ignores `shuffle`."""
    if name not in REVEALS:
        raise UnknownName("reveal", got=name, expected=f"one of {', '.join(REVEALS)}")
    known = REVEALS[name]
    return replace(known, shuffle=shuffle or known.shuffle, d_min=d_min, expansion=expansion)


__all__ = ["REVEALS", "Agreeing", "Opened", "Reveal", "Sealed", "make_reveal"]
