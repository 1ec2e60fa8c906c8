"""What an institution and its applicants agree on in public: schema, scheme, tariff, and the records of a question.

The form of the question decides which preferences a deployment accepts, and which columns of its rows are scanned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from ..algebra import checks
from ..algebra.arrays import Codes, Vector
from ..crypto.keys import SIGNATURE_BYTES
from ..crypto.randomness import KEY_BYTES
from ..errors import NotOffered, OutOfRange, RuleNotKept, UnknownName, WrongType
from ..schema.layouts import RecordKind, layout
from ..schema.schema import Schema
from ..schema.tariff import Tariff
from ..schemes import defaults
from ..schemes.forms import form_for, form_named
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme, make_parts, pair_named
from .parameters import DOWNLOAD, Options, Parameters

AUTO = "auto"
SEALED, OPENED = "table/sealed", "table/differences"  # "auto" is one of these two; `serving` chooses
_FARTHEST = np.iinfo(np.int64).max
_NORM = "norm"  # a form's option that is a field of `Parameters`, not of `options`; 2 where the form has no norm
_SQUARE = 2


class Holdings(Protocol):
    """The facts about a database that its terms publish. None of them describes a row."""

    @property
    def schema(self) -> Schema: ...
    @property
    def record(self) -> RecordKind: ...
    @property
    def rows(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def packed(self) -> str: ...
    @property
    def signer(self) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Everything that a question depends on, except the question itself and the rows.

    Security: public.
    """

    schema: Schema
    scheme: Scheme
    tariff: Tariff
    record: RecordKind = "row"
    k: int = defaults.K  # records that one question may fetch

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        scheme: str = OPENED,
        record: RecordKind = "row",
        k: int = defaults.K,
        max_weight: int = defaults.MAX_WEIGHT,
        shuffle: bool = defaults.SHUFFLE,
        d_min: int = defaults.D_MIN,
        norm: int = defaults.NORM,
        servers: int | None = None,
        collusion: int | None = None,
        options: Options | None = None,
    ) -> Deployment:
        """Make a deployment from its public parameters; the field of the arithmetic follows from them.

        `options` are the parameters that only this form of the question has: ``{"form": {"percent": 50}}``.
        """
        checks.integer("k", k, 1)
        form_name, reveal_name = pair_named(scheme)
        reveal, protocol = make_parts(reveal_name, shuffle=shuffle, d_min=d_min)
        if reveal.shuffle and not shuffle:
            raise NotOffered("shuffle", got=f"no shuffle of {reveal_name}", expected="always shuffled")
        if reveal.most_records is not None and k > reveal.most_records:
            raise NotOffered("k", got=f"{k} records from {reveal_name}", expected="1: it tells the nearest row alone")
        tariff = Tariff(schema, checks.integer("max_weight", max_weight, 1), d_min)
        tariff.check_efforts()
        form = form_for(form_name, tariff, _form_options(form_name, norm, options or {}))
        made = Scheme.of(form, reveal, protocol, servers=servers, collusion=collusion)
        return cls(schema=schema, scheme=made, tariff=tariff, record=record, k=k)

    @classmethod
    def serving(cls, database: Holdings, *, robust: int = 0, **given: Any) -> Deployment:
        """Make the deployment of a database: what is given counts first, then its schema's `[deployment]`.

        If neither names a scheme, it is "auto". That means `table/sealed` where the answers to a question have at most
        `download_limit` MiB in all, and shuffled differences where they have more. It also means shuffled differences
        where a sealed reveal is not offered: for k > 1, for more than two servers, and where the applicant is to
        correct wrong answers (`robust`).
        """
        chosen = database.schema.choice(given)
        limit = checks.integer("download_limit", chosen.pop("download_limit", DOWNLOAD), 0) << 20
        make = partial(cls.of, database.schema, record=database.record)
        if chosen.setdefault("scheme", AUTO) != AUTO:
            return make(**chosen)
        try:
            made = make(**(chosen | {"scheme": SEALED}))
        except NotOffered:
            made = None
        if made is not None and not robust and made.download(database.rows) <= limit:
            return made
        return make(**(chosen | {"scheme": OPENED}))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record in the form that servers hold: signed and packaged."""
        return layout(self.schema, self.record).itemsize + SIGNATURE_BYTES + KEY_BYTES

    def download(self, rows: int) -> int:
        """Return how many bytes all servers together send in answer to one question, without envelopes."""
        asked = self.scheme.requests(Size(rows, self.record_bytes, self.k))
        return sum(request.answered.packed(down) for request in asked for down in request.down)

    def says(self, rows: int) -> str:
        """Describe in one line the scheme, the size of the answers, and what an applicant learns from a question."""
        scheme = self.scheme
        size = f"{self.download(rows) / 2**20:,.2f} MiB down a question"
        records = "the nearest row" if self.k == 1 else f"up to {self.k} rows"
        records += "" if scheme.exact else ", approximately"
        return f"{scheme.name}, {size}: {records}; {scheme.reveal.tells(rows)}"

    def lasts(self) -> str:
        """Say in words how many tickets let one applicant rebuild the rows."""
        tickets = self.scheme.rebuilt_after
        if tickets is None:
            return "no attack we know rebuilds the rows faster than one row a ticket"
        return f"{tickets:,} ticket{'s' * (tickets != 1)} of one applicant rebuild{'s' * (tickets == 1)} the rows"

    def parameters(self) -> Parameters:
        """Return the arguments from which `Deployment.of` made this, without schema and record."""
        scheme, form = self.scheme, self.scheme.form
        own = {name: getattr(form, name) for name in sorted(form.options - {_NORM})}
        return Parameters(
            scheme=scheme.name,
            servers=scheme.servers,
            collusion=scheme.collusion,
            k=self.k,
            max_weight=self.tariff.max_weight,
            shuffle=scheme.reveal.shuffle,
            d_min=scheme.reveal.d_min,
            norm=form.power or _SQUARE,
            options={"form": own} if own else msgspec.UNSET,
        )

    def check_serves(self, database: Holdings) -> None:
        """Refuse a database with another schema, another kind of record, or fewer than k rows.

        Warn of rules of the schema that the form of the question cannot keep.
        """
        if self.schema != database.schema or self.record != database.record:
            raise WrongType("deployment", got="another schema or kind of record", expected="those of the database")
        if self.k > database.rows:
            raise OutOfRange("k", got=self.k, expected=f"at most {database.rows}, the number of rows")
        offers, features = self.scheme.form.offers, self.schema.cost_features
        lost = [f.name for f in features if f.change != "any" and "immutable" not in offers]
        lost += [f.name for f in features if f.effort > 1 and "weights" not in offers and f.name not in lost]
        if lost:
            said = f"a {self.scheme.form.name} deployment does not keep the schema's rules on {', '.join(lost)}"
            warnings.warn(f"{said}; a table one does", RuleNotKept, stacklevel=2)

    @property
    def unit(self) -> int:
        """The cost, at weight 1, of a change from one end of a feature's range to the other."""
        return self.scheme.form.unit(self.tariff)

    def rows(self, codes: Codes | Vector) -> Codes:
        """Return a database's codes in the columns that the form scans."""
        costed = self.schema.costed
        counted = codes if len(costed) == codes.shape[1] else codes[:, costed]  # no copy if all columns count
        return self.scheme.form.prepare(self.tariff, counted)

    def choose(self, relative: Vector, spread: float = 0.0) -> list[int]:
        """Return the k positions to fetch: the nearest row, then rows that each cost at least `spread` more.

        `spread` is in units of a change across a whole range. Exactly k rows are fetched (rule 10): if too few rows
        are that far apart, the nearest of the others are taken as well.
        """
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 0:
            raise OutOfRange("spread", got=repr(spread), expected="a number, 0 or more")
        chosen: list[int] = []
        taken, threshold, apart = np.zeros(relative.size, dtype=bool), 0, math.ceil(spread * self.unit)
        # k passes over all rows and no sort, so that the time does not depend on the costs (rule 10).
        for _ in range(min(self.k, relative.size)):
            near = taken | (relative < threshold) if chosen else taken
            excluded = taken if near.all() else near
            at = int(np.argmin(np.where(excluded, _FARTHEST, relative)))
            farther = int(relative[at]) + apart
            taken[at], threshold = True, max(threshold, farther) if chosen else farther
            chosen.append(at)
        return chosen


def _form_options(form: str, norm: int, options: Options) -> dict[str, Any]:
    """Return the parameters that only this form has; refuse options of other parts, since none has options yet."""
    for part, own in options.items():
        if not isinstance(own, Mapping) or (part != "form" and own):
            raise UnknownName("options", got=f"{part} = {own!r}"[:100], expected="those of the form, by their names")
    given = dict(options.get("form", {}))
    if _NORM in given:
        raise UnknownName("option", got=repr(_NORM), expected="the parameter of that name")
    return given | ({_NORM: norm} if _NORM in form_named(form).options else {})
