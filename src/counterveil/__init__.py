"""Counterveil: the nearest accepted row, for a person who tells no server anything.

>>> import counterveil
>>> counterveil.retrieve([[20, 0], [0, 20]], [1, 2], levels=20, scheme="diff").index
1
"""

from . import conformance, errors, masking, spir
from .errors import CounterveilError, CounterveilWarning, InvalidInput
from .field import Field, smallest_prime_above
from .forms import FORMS, Form, Question
from .retrieval import Retrieval, retrieve
from .reveals import REVEALS, Reveal
from .scheme import CATALOGUE, Scheme, make_scheme, run

__version__ = "0.1.0"

__all__ = [
    "CATALOGUE",
    "FORMS",
    "REVEALS",
    "CounterveilError",
    "CounterveilWarning",
    "Field",
    "Form",
    "InvalidInput",
    "Question",
    "Retrieval",
    "Reveal",
    "Scheme",
    "conformance",
    "errors",
    "make_scheme",
    "masking",
    "retrieve",
    "run",
    "smallest_prime_above",
    "spir",
]
