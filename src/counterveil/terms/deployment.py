"""What an institution and its applicants agree on in public: schema, scheme, tariff, and records a question gets.

Which preferences a deployment takes, and what of its rows is scanned, is for its form of the question to say.
"""

from __future__ import annotations

import math
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
from ..errors import NotOffered, OutOfRange, UnknownName, WrongType
from ..schema.layouts import RecordKind, layout
from ..schema.schema import Schema
from ..schema.tariff import Tariff
from ..schemes import defaults
from ..schemes.forms import form_for, form_named
from ..schemes.protocols import Size
from ..schemes.scheme import Scheme, make_parts, pair_named
from .parameters import DOWNLOAD, Options, Parameters

AUTO = "auto"
SEALED, OPENED = "table/sealed", "table/differences"  # what it stands for, by size
_FARTHEST = np.iinfo(np.int64).max
_NORM = "norm"  # the one option of a form that has a field of its own; forms without it say 2 there
_SQUARE = 2


class Holdings(Protocol):
    """What terms say of a database: nothing of any row."""

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
    """Everything public that a question depends on.

    Security: public.
    """

    schema: Schema
    scheme: Scheme
    tariff: Tariff
    record: RecordKind = "row"
    k: int = defaults.K  # records that one question gets

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
        """Choose the public numbers; the field follows from them.

        `options` are parameters of a form's own: ``{"form": {"percent": 50}}``.
        """
        checks.integer("k", k, 1)
        form_name, reveal_name = pair_named(scheme)
        reveal, protocol = make_parts(reveal_name, shuffle=shuffle, d_min=d_min)
        if reveal.shuffle and not shuffle:
            raise NotOffered("shuffle", got=f"no shuffle of {reveal_name}", expected="always shuffled")
        if reveal.most is not None and k > reveal.most:
            raise NotOffered("k", got=f"{k} records from {reveal_name}", expected="1: it tells the nearest row alone")
        tariff = Tariff(schema, checks.integer("max_weight", max_weight, 1), d_min)
        form = form_for(form_name, tariff, _form_options(form_name, norm, options or {}))
        made = Scheme.of(form, reveal, protocol, servers=servers, collusion=collusion)
        return cls(schema=schema, scheme=made, tariff=tariff, record=record, k=k)

    @classmethod
    def serving(cls, database: Holdings, *, robust: int = 0, **given: Any) -> Deployment:
        """Choose for a database: what is given, else what its schema's `[deployment]` says, else `scheme="auto"`.

        That is `table/sealed` where all that a question brings down is at most `download_limit` MiB, and shuffled
        differences where it is not, or where sealed is not offered: for k > 1, for more than two servers, and where
        wrong answers are to be corrected (`robust`).
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
        """Bytes of a record as servers hold it: signed and packaged."""
        return layout(self.schema, self.record).itemsize + SIGNATURE_BYTES + KEY_BYTES

    def download(self, rows: int) -> int:
        """Return the bytes that one question brings down from all servers together, envelopes aside."""
        asked = self.scheme.requests(Size(rows, self.record_bytes, self.k))
        return sum(request.answered.packed(down) for request in asked for down in request.down)

    def says(self, rows: int) -> str:
        """Say in one line what was chosen, what an applicant learns from a question, and what it brings down."""
        scheme = self.scheme
        size = f"{self.download(rows) / 2**20:,.2f} MiB down a question"
        records = "the nearest row" if self.k == 1 else f"up to {self.k} rows"
        return f"{scheme.name}, {size}: {records}; {scheme.reveal.tells(rows)}"

    def lasts(self) -> str:
        """Say in words how many tickets rebuild the rows."""
        tickets = self.scheme.rebuilt_after
        if tickets is None:
            return "no attack we know rebuilds the rows faster than one row a ticket"
        return f"{tickets:,} ticket{'s' * (tickets != 1)} of one applicant rebuild{'s' * (tickets == 1)} the rows"

    def parameters(self) -> Parameters:
        """Return what `Deployment.of` made this from, schema and record aside."""
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
        """Refuse a database with another schema, another kind of record, or fewer rows than a question gets."""
        if self.schema != database.schema or self.record != database.record:
            raise WrongType("deployment", got="another schema or kind of record", expected="those of the database")
        if self.k > database.rows:
            raise OutOfRange("k", got=self.k, expected=f"at most {database.rows}, the number of rows")

    @property
    def unit(self) -> int:
        """The cost, at weight 1, of a change across a whole range."""
        return self.scheme.form.unit(self.tariff)

    def rows(self, codes: Codes | Vector) -> Codes:
        """Return a database's codes as the form scans them."""
        costed = self.schema.costed
        counted = codes if len(costed) == codes.shape[1] else codes[:, costed]  # a memory map stays one if it can
        return self.scheme.form.prepare(self.tariff, counted)

    def choose(self, relative: Vector, spread: float = 0.0) -> list[int]:
        """Return the k positions to fetch: the nearest, each next one at least `spread` (in whole ranges) farther.

        Where too few are that far apart, the nearest of the others fill up: exactly k are fetched (rule 10).
        """
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 0:
            raise OutOfRange("spread", got=repr(spread), expected="a number, 0 or more")
        chosen: list[int] = []
        taken, from_on, apart = np.zeros(relative.size, dtype=bool), 0, math.ceil(spread * self.unit)
        # k passes over all rows, and no sort: how long it takes must not tell how the costs lie (rule 10).
        for _ in range(min(self.k, relative.size)):
            far = taken | (relative < from_on) if chosen else taken
            left = taken if far.all() else far
            at = int(np.argmin(np.where(left, _FARTHEST, relative)))
            taken[at], from_on = True, max(from_on, int(relative[at]) + apart) if chosen else int(relative[at]) + apart
            chosen.append(at)
        return chosen


def _form_options(form: str, norm: int, options: Options) -> dict[str, Any]:
    """Return the form's own parameters; refuse those of any other part of the scheme: none has any yet."""
    for part, own in options.items():
        if not isinstance(own, Mapping) or (part != "form" and own):
            raise UnknownName("options", got=f"{part} = {own!r}"[:100], expected="those of the form, by their names")
    given = dict(options.get("form", {}))
    if _NORM in given:
        raise UnknownName("option", got=repr(_NORM), expected="the parameter of that name")
    return given | ({_NORM: norm} if _NORM in form_named(form).options else {})
