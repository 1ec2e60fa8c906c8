"""I-PCR's form: squared distance, but a change of any immutable feature costs more than all else, three servers.

The paper on immutable features (arXiv 2411.10429) and *What If, But Privately* (arXiv 2508.03681) publish it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import WrongType
from .form import Example, Question
from .weighted import Weighted


@dataclass(frozen=True, kw_only=True)
class Fixed(Weighted):
    """Share x and w, where w_j is L for an immutable feature and 1 for any other; L = sum R_j² + 1 follows from R.

    A row that agrees with x on all immutable features costs its squared distance, less than L. Any other costs L or
    more. The set of immutable features is shared like x, so no server learns it, nor how many there are.
    """

    max_weight: int = field(init=False, default=1)

    name = "fixed"
    offers = frozenset({"immutable"})

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_weight", self.limit + 1)

    @property
    def limit(self) -> int:
        """The largest squared distance there can be: sum R_j²."""
        return sum(R**2 for R in self.largest)

    def weights(self, question: Question) -> list[int]:
        """Check and return w: from the set of immutable features, or as given, each 1 or L."""
        if question.immutable is not None and question.weights is None and question.costs is None:
            return [self.max_weight if h else 1 for h in self.immutable(question)]
        weights = super().weights(question)
        if not set(weights) <= {1, self.max_weight}:
            raise WrongType("weights", got="other weights", expected=f"1, or {self.max_weight} if immutable")
        return weights

    @classmethod
    def example(cls) -> Example:
        """Return the form over one feature of two levels, which may be immutable or not."""
        form = cls(largest=(1,))
        asked = tuple(Question([x], immutable=[h]) for x in (0, 1) for h in (0, 1))
        return Example(form, form.load([[0], [1]]), asked)
