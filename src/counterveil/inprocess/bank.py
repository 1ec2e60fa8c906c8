"""The whole system in one process: a database, its servers, and an applicant who asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..algebra.arrays import Vector
from ..applicant.ask import compile_question
from ..applicant.explain import Explanation, explain
from ..crypto.randomness import new_key
from ..institution.database import Database
from ..schema.costs import Costs
from ..schema.frames import as_person
from ..schema.layouts import Record, decode
from ..schema.preferences import Preferences
from ..schemes.fetch import make_spir
from ..schemes.fetch import run as fetch_record
from ..schemes.scheme import run
from ..terms.deployment import Deployment


class Local:
    """All parties in one process; `ask` goes through the same messages as real servers would see."""

    def __init__(self, database: Database, deployment: Deployment) -> None:
        deployment.check_serves(database)
        self.database, self.deployment = database, deployment
        self._rows = deployment.rows(database.codes)
        scheme, held = deployment.scheme, database.records
        self._key, self._digest = new_key(), scheme.digest(self._rows, held)
        self._spir = make_spir(servers=scheme.servers, collusion=scheme.collusion, length=held.shape[1])

    def __repr__(self) -> str:
        return f"Local({self.deployment.says(len(self._rows))})"

    def ask(
        self,
        person: Any,
        preferences: Preferences | Mapping[str, Any] | None = None,
        *,
        spread: float = 0.0,
        clamp: bool = False,
        **more: Any,
    ) -> Explanation:
        """Explain one rejection: the changes to the nearest accepted row, or why there is none.

        Parameters
        ----------
        person : a mapping from feature to value, or a frame of one row.
        preferences : `Preferences`, or a mapping of them; single ones may be keywords: ``immutable=["age"]``.
        spread : where the deployment gives k > 1 records, how much farther each must be than the one before.
        clamp : pull values beyond the schema's range to its ends instead of refusing them.
        """
        wishes = Preferences.of(preferences, **more)
        values = as_person(person, self.deployment.schema.names)
        own = self.deployment.schema.codes(values, clamp=clamp)
        costs, fetched, _ = self.fetch(own, wishes, spread=spread)
        given = {f.name: f.given(values.get(f.name)) for f in self.deployment.schema.cost_features}
        return explain(self.deployment, costs, given, fetched)

    def fetch(self, own: Vector, wishes: Preferences, *, spread: float = 0.0) -> tuple[Costs, list[Record], list[int]]:
        """Play all parties for one question: N answers, then k record steps; return the records and their rows."""
        deployment, scheme = self.deployment, self.deployment.scheme
        question, costs = compile_question(deployment, own, wishes)
        common = scheme.common(self._key, self._digest, ticket=new_key())
        asked = run(scheme, self._rows, question, common=common, records=self.database.records)
        positions = deployment.choose(scheme.reveal.relative(scheme.field, asked.revealed), spread)

        order = scheme.reveal.order(len(self._rows), common)
        fetched = (
            [asked.record]
            if asked.record is not None
            else [
                fetch_record(self._spir, self.database.records, position, common, order=order, request=request).record
                for request, position in enumerate(positions)
            ]
        )
        records = [decode(deployment.schema, deployment.record, record) for record in fetched]  # after all k (rule 10)
        rows = positions if order is None else [int(order[p]) for p in positions]
        return costs, records, rows


def local(database: Database | str | Path, scheme: str | None = None, **parameters: Any) -> Local:
    """Run a deployment of this database, or bundle, in one process; `parameters` are those of `Deployment.serving`.

    What is not said here is as the schema's `[deployment]` says, or as `Deployment.serving` has it.

    >>> from counterveil import Database, Schema, local
    >>> data = {"income": [1000, 2000, 3000, 4000], "loans": [0, 3, 1, 0], "accepted": [0, 0, 1, 1]}
    >>> schema = Schema.infer(data, exclude=["accepted"])
    >>> bank = local(Database.build(data, schema, accepted="accepted"))
    >>> bank.ask({"income": 2000, "loans": 1}).text()
    'Raise income from 2,000 to 3,000.'
    """
    if isinstance(database, str | Path):
        database = Database.open(database)
    given = parameters if scheme is None else {"scheme": scheme, **parameters}
    return Local(database, Deployment.serving(database, **given))
