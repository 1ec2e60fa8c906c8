"""Forms of the question: what is sent, and how a server turns its share of it into one value per row.

One table holds the forms of this package; forms of other packages load by entry point. `make_form` builds a form from
its name and public parameters, `form_for` the form that a deployment uses. `docs/adding.md` shows how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from inspect import isabstract
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from ...algebra import checks
from ...errors import BrokenPlugin, UnknownName
from ...schema.tariff import Tariff
from .dot import Dot
from .euclidean import Euclidean
from .even_norm import EvenNorm, Linear
from .fixed import Fixed
from .form import Example, Form, Polynomial, Question
from .table import Table
from .weighted import Weighted

FORMS: dict[str, type[Form]] = {
    "euclidean": Euclidean,
    "weighted": Weighted,
    "fixed": Fixed,
    "linear": Linear,
    "dot": Dot,
    "even_norm": EvenNorm,
    "table": Table,
}
PLUGINS = "counterveil.forms"  # the entry point group for forms of other packages


def form_named(name: str) -> type[Form]:
    """Return the form of that name: from the table, or else from an installed package.

    Packages are searched only for a name that the table lacks, so that none can replace a form of the table.
    """
    if name in FORMS:
        return FORMS[name]
    found = list(entry_points(group=PLUGINS, name=name))
    if not found:
        known = ", ".join(dict.fromkeys([*FORMS, *(point.name for point in entry_points(group=PLUGINS))]))
        raise UnknownName("form", got=name, expected=f"one of {known}, or the package that brings it")
    if len(found) > 1:
        raise BrokenPlugin(f"form {name}", got="two packages that bring it", expected="one")
    what = f"form {name}, from {found[0].value}"
    try:
        kind = found[0].load()
    except Exception as error:  # another package's code: it may fail in any way
        raise BrokenPlugin(what, got=f"{type(error).__name__}: {error}", expected="a module that imports") from error
    if (
        not isinstance(kind, type)
        or not issubclass(kind, Form)
        or isabstract(kind)
        or getattr(kind, "name", "") != name
    ):
        raise BrokenPlugin(what, got=repr(kind), expected=f"a Form with every method, called {name}")
    return kind


def make_form(name: str, *, largest: ArrayLike | None = None, d: int, **parameters: Any) -> Form:
    """Build the form of that name; `largest` is the largest code R, one for all d features or one for each."""
    largest = checks.renamed("levels", "largest", largest, parameters)
    kind = form_named(name)
    known = [f.name for f in fields(kind) if f.init and f.name != "largest"]
    for given in parameters:
        if given not in known:
            raise UnknownName("parameter", got=given, expected=f"one of {', '.join(known)}, for the form {name}")
    checks.integer("d", d, 1)
    one = largest.ndim == 0 if isinstance(largest, np.ndarray) else isinstance(largest, int | float | str | np.generic)
    each = (largest,) * d if one else checks.integers("largest", largest, (d,))
    return kind(largest=cast(tuple[int, ...], each), **parameters)


def form_for(name: str, tariff: Tariff, options: Mapping[str, Any]) -> Form:
    """Return the form of that name as a deployment with this tariff uses it; refuse options that it does not have."""
    kind = form_named(name)
    for given in options:
        if given not in kind.options:
            known = f"one of {', '.join(sorted(kind.options))}" if kind.options else "none"
            raise UnknownName("option", got=repr(given), expected=f"{known}, for the form {name}")
    return kind.for_tariff(tariff, **options)


__all__ = [
    "FORMS",
    "PLUGINS",
    "Example",
    "Fixed",
    "Form",
    "Polynomial",
    "Question",
    "form_for",
    "form_named",
    "make_form",
]
