"""A scikit-learn estimator: fit it on people and verdicts, then ask for private counterfactuals. It takes frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..algebra import checks
from ..applicant.explain import Counterfactual, Explanation
from ..errors import EmptyDatabase, MissingPackage, UnknownName, WrongType
from ..institution.database import Database
from ..schema.frames import Columns, rows_as_frame
from ..schema.preferences import Preferences
from ..schema.schema import Schema
from ..schemes import defaults
from ..terms.deployment import AUTO, Deployment
from .bank import Local

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise MissingPackage("PrivateCounterfactuals", got="no scikit-learn", expected="counterveil[sklearn]") from None


class PrivateCounterfactuals(BaseEstimator):  # type: ignore[misc]
    """Nearest accepted rows, retrieved privately; all parties in one process.

    Parameters
    ----------
    schema : the public schema. By default it is inferred from X, and then shows the extremes of X (rounded outwards).
    accepted : the label in y of accepted people; by default the greatest number. It must be given if labels are text.
    scheme, max_weight, shuffle, servers : as in `Deployment.of`.
    n_neighbors : how many rows `kneighbors` returns by default.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[1.0, 5.0], [2.0, 4.0], [8.0, 1.0], [9.0, 2.0]]), [0, 0, 1, 1]
    >>> PrivateCounterfactuals().fit(X, y).kneighbors([[2.0, 3.0]])[1]
    array([[2]])
    """

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        accepted: Any = None,
        scheme: str = AUTO,
        n_neighbors: int = 1,
        max_weight: int = defaults.MAX_WEIGHT,
        shuffle: bool = defaults.SHUFFLE,
        servers: int | None = None,
    ) -> None:
        self.schema = schema
        self.accepted = accepted
        self.scheme = scheme
        self.n_neighbors = n_neighbors
        self.max_weight = max_weight
        self.shuffle = shuffle
        self.servers = servers

    def fit(self, X: Any, y: Any = None) -> PrivateCounterfactuals:
        """Keep the rows of X whose y is the accepted label; without y, keep all rows."""
        table = self._table(X, reset=True)
        keep = np.ones(table.count, dtype=bool)
        if y is not None:
            verdicts = column_or_1d(y)
            check_consistent_length(X, verdicts)
            labels = np.unique(verdicts)
            if self.accepted is None and any(isinstance(label, str) for label in labels.tolist()):
                raise WrongType("accepted", got="no label", expected=f"one of {', '.join(map(str, labels[:9]))}")
            self.accepted_ = labels[-1] if self.accepted is None else self.accepted
            keep = np.asarray(verdicts == self.accepted_)
            if not keep.any():
                raise EmptyDatabase("y", got=f"no row with {self.accepted_!r}", expected="at least one")
        named = hasattr(X, "columns") or hasattr(
            X, "column_names"
        )  # an array's columns are features, whatever they hold
        self.schema_ = Schema.infer(table, include=() if named else table.names) if self.schema is None else self.schema
        self.database_ = Database.build(table, self.schema_, lambda _: keep, clamp=self.schema is None)
        return self

    def kneighbors(self, X: Any, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Return the costs of the nearest accepted rows (in whole ranges), and their row numbers in the X of `fit`.

        Numbers of rows are nothing that a protocol tells, so this computes the scheme's specification, for all people
        in a moment. With a mask, the rows depend on chance, and each person's question runs by the protocol.
        """
        check_is_fitted(self)
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        bank, table = self._bank(k), self._table(X, reset=False)
        costs, indices = [], []
        source, costed = self.database_.source, self.schema_.costed
        codes = self.database_.codes[:, costed].astype(np.int64)
        row_of = {row.tobytes(): n for n, row in enumerate(codes)}
        for own in self.schema_.quantise(table, clamp=self.schema is None):
            if bank.deployment.scheme.reveal.masked:
                compiled, records = bank.fetch(own, Preferences())
                rows = [row_of[record.codes[costed].tobytes()] for record in records]
            else:
                compiled, rows = bank.nearest(own, Preferences())
            costs.append([sum(compiled.of(codes[row])) / bank.deployment.unit for row in rows])
            indices.append(rows if source is None else source[rows])
        return (np.array(costs), np.array(indices)) if return_distance else np.array(indices)

    def explain(self, X: Any, preferences: Any = None, **more: Any) -> Any:
        """Return the nearest accepted row for each row of X, as a frame of the same library as X.

        Columns are those of the schema, then `cost` and `explanation`. If no row is feasible, the values are empty and
        the explanation says why.
        """
        table = self._table(X, reset=False)
        check_is_fitted(self)
        bank, names = self._bank(1), self.schema_.names
        clash = sorted({"cost", "explanation"} & set(names))
        if clash:
            raise UnknownName("feature", got=f"{clash[0]}, which explain adds", expected="a feature of another name")
        people = [{name: person[name] for name in names if name in person} for person in table.people()]
        found = [bank.ask(person, preferences, clamp=self.schema is None, **more) for person in people]
        rows = [e.values if isinstance(e, Counterfactual) else dict.fromkeys(names) for e in found]
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
        columns["cost"] = [e.cost if isinstance(e, Counterfactual) else None for e in found]
        columns["explanation"] = [e.text() for e in found]
        return rows_as_frame(columns, table)

    def ask(self, person: Any, preferences: Any = None, **more: Any) -> Explanation:
        """Explain one rejection, as `local(...).ask` does."""
        check_is_fitted(self)
        return self._bank(1).ask(person, preferences, clamp=self.schema is None, **more)

    def _bank(self, k: int) -> Local:
        checks.integer("n_neighbors", k, 1, self.database_.counts.rows)
        deployment = Deployment.serving(
            self.database_,
            linked=True,
            scheme=self.scheme,
            k=k,
            max_weight=self.max_weight,
            shuffle=self.shuffle,
            servers=self.servers,
        )
        return Local(self.database_, deployment)

    def _table(self, X: Any, *, reset: bool) -> Columns:
        """Check X as scikit-learn does, and return its columns; the columns of an array are named x0, x1, …"""
        if hasattr(X, "columns") or hasattr(X, "column_names"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return Columns(X)
        array = validate_data(self, X, reset=reset, dtype="numeric")
        return Columns({f"x{j}": array[:, j] for j in range(array.shape[1])})
