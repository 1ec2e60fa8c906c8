"""Turn a person's codes and preferences into the question that is asked.

Security: private to the applicant. Servers see only shares of the question, whose size and distribution are public.
"""

from __future__ import annotations

from ..algebra.arrays import Vector
from ..errors import NotOffered
from ..schema.costs import PREFERENCES, Costs
from ..schema.preferences import Preferences, compile_costs
from ..schemes.forms import FORMS, Question
from ..terms.deployment import Deployment

_NONE = Preferences()


def compile_question(deployment: Deployment, own: Vector, preferences: Preferences) -> tuple[Question, Costs]:
    """Return the question of a person with these codes, and the costs from which its answer is explained.

    It refuses preferences that the deployment's form of the question does not offer.

    Security: both are private to the applicant. The question's shape does not depend on the preferences.
    """
    form = deployment.scheme.form
    for given in PREFERENCES:
        if given not in form.offers and getattr(preferences, given) != getattr(_NONE, given):
            metric = preferences.metric if isinstance(preferences.metric, str) else "a metric for single features"
            got = f"{metric if given == 'metric' else given} in a deployment of {form.name}"
            takers = " or ".join(name for name, kind in FORMS.items() if given in kind.offers)
            raise NotOffered(given, got=got, expected=f"a {takers} deployment")
    costs = compile_costs(deployment.tariff, own[deployment.schema.costed], preferences, form.offers)
    return form.question(deployment.tariff, costs)


def compiled_by(deployment: Deployment) -> tuple[object, ...]:
    """Return all that decides whether a question can be compiled, and to what."""
    return deployment.tariff, deployment.scheme.form
