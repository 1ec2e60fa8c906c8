"""Forms: what is sent, and how a server turns its share of the question into one value per row.

One table holds them all; `make_form` builds one from its name and public parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...algebra import checks
from ...errors import UnknownName
from .dot import Dot
from .euclidean import Euclidean
from .even_norm import EvenNorm
from .form import Form, Polynomial, Question
from .table import Table
from .weighted import Weighted

FORMS: dict[str, Callable[..., Form]] = {
    "euclidean": Euclidean,
    "weighted": Weighted,
    "linear": partial(EvenNorm, norm=2),
    "dot": Dot,
    "even_norm": EvenNorm,
    "table": Table,
}
_PARAMETERS = {"even_norm": ["max_weight", "norm"], "table": ["max_weight", "cap"]}


def make_form(name: str, *, levels: ArrayLike, d: int, **parameters: Any) -> Form:
    """Build the form of that name; `levels` is one largest code R for all d features, or one for each."""
    if name not in FORMS:
        raise UnknownName("form", got=name, expected=f"one of {', '.join(FORMS)}")
    known = _PARAMETERS.get(name, ["max_weight"])
    for given in parameters:
        if given not in known:
            raise UnknownName("parameter", got=given, expected=f"one of {', '.join(known)}, for the form {name}")
    checks.integer("d", d, 1)
    one = levels.ndim == 0 if isinstance(levels, np.ndarray) else isinstance(levels, int | float | str | np.generic)
    each = (levels,) * d if one else checks.integers("levels", levels, (d,))
    return FORMS[name](levels=each, **parameters)


__all__ = ["FORMS", "Form", "Polynomial", "Question", "make_form"]
