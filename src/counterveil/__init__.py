"""Counterveil: the nearest accepted row, for a person who tells no server anything.

>>> import counterveil
>>> counterveil.retrieve([[20, 0], [0, 20]], [1, 2], levels=20, scheme="diff").index
1
"""

from typing import Any

from . import conformance, errors, masking, spir
from .client import AsyncClient, Client
from .database import Database
from .deployment import Deployment
from .errors import CounterveilError, CounterveilWarning, InvalidInput
from .explain import Counterfactual, NoCounterfactual
from .features import Boolean, Categorical, Numeric, Ordinal
from .field import Field, smallest_prime_above
from .forms import FORMS, Form, Question
from .in_process import Local, local
from .preferences import Preferences
from .retrieval import Retrieval, retrieve
from .reveals import REVEALS, Reveal
from .schema import Schema
from .scheme import CATALOGUE, Scheme, make_scheme, run

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what needs an optional package only when it is asked for."""
    if name == "PrivateCounterfactuals":
        from .estimator import PrivateCounterfactuals

        return PrivateCounterfactuals
    raise AttributeError(f"module 'counterveil' has no attribute {name!r}")


__all__ = [
    "CATALOGUE",
    "FORMS",
    "REVEALS",
    "AsyncClient",
    "Boolean",
    "Categorical",
    "Client",
    "Counterfactual",
    "CounterveilError",
    "CounterveilWarning",
    "Database",
    "Deployment",
    "Field",
    "Form",
    "InvalidInput",
    "Local",
    "NoCounterfactual",
    "Numeric",
    "Ordinal",
    "Preferences",
    "Question",
    "Retrieval",
    "Reveal",
    "Schema",
    "Scheme",
    "conformance",
    "errors",
    "local",
    "make_scheme",
    "masking",
    "retrieve",
    "run",
    "smallest_prime_above",
    "spir",
]
