"""Counterveil finds the accepted row nearest to a person, and no server learns their values or preferences.

>>> import counterveil
>>> counterveil.retrieve([[20, 0], [0, 20]], [1, 2], largest=20, scheme="diff").index
1

Names are imported when they are first used, so that a program loads only what it needs.
"""

import sys
import warnings
from importlib import import_module
from importlib.util import spec_from_loader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from .algebra.field import Field as Field
    from .algebra.field import smallest_prime_above as smallest_prime_above
    from .applicant.client import AsyncClient as AsyncClient
    from .applicant.client import Client as Client
    from .applicant.explain import Counterfactual as Counterfactual
    from .applicant.explain import NoCounterfactual as NoCounterfactual
    from .applicant.receipts import Receipt as Receipt
    from .applicant.receipts import verify as verify
    from .errors import CounterveilError as CounterveilError
    from .errors import CounterveilWarning as CounterveilWarning
    from .errors import InvalidInput as InvalidInput
    from .inprocess.bank import Local as Local
    from .inprocess.bank import local as local
    from .inprocess.estimator import PrivateCounterfactuals as PrivateCounterfactuals
    from .inprocess.retrieve import Retrieval as Retrieval
    from .inprocess.retrieve import retrieve as retrieve
    from .institution import masking as masking
    from .institution.database import Database as Database
    from .research import datasets as datasets
    from .schema.features import Boolean as Boolean
    from .schema.features import Categorical as Categorical
    from .schema.features import Numeric as Numeric
    from .schema.features import Ordinal as Ordinal
    from .schema.preferences import Preferences as Preferences
    from .schema.schema import Schema as Schema
    from .schemes import conformance as conformance
    from .schemes import fetch as spir  # noqa: F401
    from .schemes.forms import FORMS as FORMS
    from .schemes.forms import Form as Form
    from .schemes.forms import Question as Question
    from .schemes.playing import run as run
    from .schemes.reveals import REVEALS as REVEALS
    from .schemes.reveals import Reveal as Reveal
    from .schemes.scheme import CATALOGUE as CATALOGUE
    from .schemes.scheme import Scheme as Scheme
    from .schemes.scheme import make_scheme as make_scheme
    from .terms.deployment import Deployment as Deployment

__version__ = "0.1.0"

_PUBLIC = {  # where each public name is defined; the imports above say the same to type checkers (a test compares)
    "CATALOGUE": "schemes.scheme:CATALOGUE",
    "FORMS": "schemes.forms:FORMS",
    "REVEALS": "schemes.reveals:REVEALS",
    "AsyncClient": "applicant.client:AsyncClient",
    "Boolean": "schema.features:Boolean",
    "Categorical": "schema.features:Categorical",
    "Client": "applicant.client:Client",
    "Counterfactual": "applicant.explain:Counterfactual",
    "CounterveilError": "errors:CounterveilError",
    "CounterveilWarning": "errors:CounterveilWarning",
    "Database": "institution.database:Database",
    "Deployment": "terms.deployment:Deployment",
    "Field": "algebra.field:Field",
    "Form": "schemes.forms:Form",
    "InvalidInput": "errors:InvalidInput",
    "Local": "inprocess.bank:Local",
    "NoCounterfactual": "applicant.explain:NoCounterfactual",
    "Numeric": "schema.features:Numeric",
    "Ordinal": "schema.features:Ordinal",
    "Preferences": "schema.preferences:Preferences",
    "PrivateCounterfactuals": "inprocess.estimator:PrivateCounterfactuals",
    "Question": "schemes.forms:Question",
    "Receipt": "applicant.receipts:Receipt",
    "Retrieval": "inprocess.retrieve:Retrieval",
    "Reveal": "schemes.reveals:Reveal",
    "Schema": "schema.schema:Schema",
    "Scheme": "schemes.scheme:Scheme",
    "conformance": "schemes.conformance",
    "datasets": "research.datasets",
    "errors": "errors",
    "local": "inprocess.bank:local",
    "make_scheme": "schemes.scheme:make_scheme",
    "masking": "institution.masking",
    "retrieve": "inprocess.retrieve:retrieve",
    "run": "schemes.playing:run",
    "smallest_prime_above": "algebra.field:smallest_prime_above",
    "spir": "schemes.fetch",
    "verify": "applicant.receipts:verify",
}
__all__ = list(_PUBLIC)

_MOVED = {  # old module names, of release 0.1, and the new ones; old names still import, with a warning
    "advice": "research.advice",
    "agreement": "terms.agreement",
    "app": "service.app",
    "attacks": "research.attacks",
    "client": "applicant.client",
    "database": "institution.database",
    "datasets": "research.datasets",
    "deployment": "terms.deployment",
    "estimator": "inprocess.estimator",
    "explain": "applicant.explain",
    "features": "schema.features",
    "field": "algebra.field",
    "forms": "schemes.forms",
    "frames": "schema.frames",
    "keys": "crypto.keys",
    "leakage": "research.leakage",
    "ledger": "service.ledger",
    "preferences": "schema.preferences",
    "randomness": "crypto.randomness",
    "records": "schema.layouts",
    "retrieval": "inprocess.retrieve",
    "reveals": "schemes.reveals",
    "scheme": "schemes.scheme",
    "server": "service.server",
    "sharing": "crypto.sharing",
    "tickets": "terms.tickets",
    "wire": "terms.wire",
}


class _Moved:
    """An import finder for old module names: it returns the module of the new name, and warns."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        package, _, module = name.rpartition(".")
        return spec_from_loader(name, self) if package == __name__ and module in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        new = f"{__name__}.{_MOVED[spec.name.rpartition('.')[2]]}"
        warnings.warn(f"{spec.name} has moved: import {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        """Restore the module's own spec. Nothing is run: the module ran when it was imported under its new name."""
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_Moved())


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'counterveil' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found: Any = import_module(f".{module}", __name__)
    globals()[name] = found = getattr(found, attribute) if attribute else found
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
