"""From a person and what they prefer to the question that is asked.

Security: private to the applicant. What a question looks like from outside does not depend on it.
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
    """Return the question that a person with these codes asks, and the costs that explain its answer.

    Security: both are private to the applicant. The question's shape is the same whatever they prefer.
    """
    form = deployment.scheme.form
    for given in PREFERENCES:
        if given not in form.offers and getattr(preferences, given) != getattr(_NONE, given):
            got = f"{preferences.metric if given == 'metric' else given} in a deployment of {form.name}"
            takers = " or ".join(name for name, kind in FORMS.items() if given in kind.offers)
            raise NotOffered(given, got=got, expected=f"a {takers} deployment")
    costs = compile_costs(deployment.tariff, own[deployment.schema.costed], preferences)
    return form.question(deployment.tariff, costs)
