"""What an institution and its applicants agree on in public: schema, scheme, tariff, and the records of a question.

The form of the question decides which preferences a deployment accepts, and which columns of its rows are scanned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from ..algebra import checks
from ..algebra.arrays import Codes, Vector
from ..crypto.keys import SIGNATURE_BYTES
from ..crypto.randomness import KEY_BYTES
from ..errors import NotOffered, OutOfRange, RuleNotKept, TooFewServers, UnknownName, WrongType
from ..schema.layouts import RecordKind, layout
from ..schema.schema import Schema
from ..schema.tariff import Tariff
from ..schemes import defaults
from ..schemes.forms import form_for, form_named
from ..schemes.protocols import Request, Size
from ..schemes.scheme import Scheme, make_parts, pair_named
from .parameters import DOWNLOAD, MOST_RECORDS, Certificate, Options, Parameters, Part

AUTO = "auto"  # `defaults.SCHEME`, by the protocol that suits the number of rows; `serving` chooses
_FARTHEST = np.iinfo(np.int64).max
_UNIT = "unit"  # an option of forms of tables: the cost of a change across a whole range
_NORM = "norm"  # a form's option that is a field of `Parameters`, not of `options`; 2 where the form has no norm
_SQUARE = 2
_WITH_OPTIONS = ("form", "record", "protocol")
_LINKED = "linked servers: start each with `--link URL` of the other, then `counterveil terms --linked`"
_BY_NAME = "an opened reveal, which shows costs, by name: `--scheme table/differences`"
_LARGEST_UNIT = 2**32


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
    def certificate(self) -> Certificate | None: ...
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
    certificate: Certificate | None = None  # what the institution says of its regions

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        scheme: str = defaults.SCHEME,
        record: RecordKind = "row",
        k: int = defaults.K,
        max_weight: int = defaults.MAX_WEIGHT,
        shuffle: bool = defaults.SHUFFLE,
        d_min: int = defaults.D_MIN,
        norm: int = defaults.NORM,
        servers: int | None = None,
        collusion: int | None = None,
        protocol: str | None = None,
        dealer: str | None = None,
        options: Options | None = None,
    ) -> Deployment:
        """Make a deployment from its public parameters; the field of the arithmetic follows from them.

        `protocol` says how the reveal is computed, if there is a choice: ``"garbled"`` or ``"joint"`` for sealed
        reveals. `options` are the parameters that only some forms, records or protocols have:
        ``{"form": {"percent": 50}, "protocol": {"dealer": "server"}}``. `dealer` is short for the latter. For tables of
        costs, ``{"form": {"unit": 16}}`` is the cost of a change across a whole range: the smaller, the fewer bits a
        cost has. With ``{"record": {"intervals": True}}`` applicants' costs of regions may have holes, and questions
        are larger. `model`, `sampled`, `at_most`, `epsilon` and `delta` are those of `Certificate`.
        """
        checks.integer("k", k, 1)
        form_name, reveal_name = pair_named(scheme)
        given = _options(options or {}, dealer)
        reveal, how = make_parts(
            reveal_name, protocol=protocol, options=given.get("protocol"), shuffle=shuffle, d_min=d_min
        )
        if how.questions > 1:
            raise NotOffered("protocol", got=how.name, expected="a protocol that asks every server once")
        if reveal.shuffle and not shuffle:
            raise NotOffered("shuffle", got=f"no shuffle of {reveal_name}", expected="always shuffled")
        most = min((each.most_records for each in (reveal, how) if each.most_records is not None), default=k)
        if k > most:
            got = f"{k} records from {reveal_name} by {how.name}"
            raise NotOffered("k", got=got, expected=f"{most}: it tells the nearest row alone")
        intervals, certificate = _record_options(record, given.get("record", {}))
        own = _form_options(form_name, norm, given.get("form", {}))
        unit = own.pop(_UNIT, None) if form_named(form_name).tabular else None
        tariff = Tariff(schema, checks.integer("max_weight", max_weight, 1), d_min, record, intervals)
        tariff.check_efforts()
        if unit is not None:
            tariff = replace(tariff, chosen_unit=checks.integer("options, unit", unit, 1, _LARGEST_UNIT))
        elif tariff.layout.regions:
            tariff = tariff.small(defaults.REGION_BITS, defaults.LEAST_UNIT)
        form = form_for(form_name, tariff, own)
        if tariff.layout.regions and not form.tabular:
            raise NotOffered("record", got=f"regions with the form {form_name}", expected="a form of tables, as table")
        made = Scheme.of(form, reveal, how, servers=servers, collusion=collusion)
        return cls(schema=schema, scheme=made, tariff=tariff, record=record, k=k, certificate=certificate)

    @classmethod
    def serving(cls, database: Holdings, *, robust: int = 0, linked: bool = False, **given: Any) -> Deployment:
        """Make the deployment of a database: what is given counts first, then its schema's `[deployment]`.

        If neither names a scheme, it is "auto". That means `table/sealed`, at every size. Servers need not talk to each
        other if k = 1 and the answers to a question have at most `download_limit` MiB in all. For more than that the
        operators must have linked their servers, and say so with `linked`. "auto" never shows costs: for that, name
        the scheme.
        """
        chosen = database.schema.choice(given)
        if database.certificate is not None:
            options = dict(chosen.get("options") or {})
            said = msgspec.to_builtins(database.certificate)
            chosen["options"] = options | {"record": dict(options.get("record") or {}) | said}
        limit = checks.integer("download_limit", chosen.pop("download_limit", DOWNLOAD), 0) << 20
        make = partial(cls.of, database.schema, record=database.record)
        if chosen.get("scheme", AUTO) != AUTO:
            return make(**chosen)
        colluding = 1 if chosen.get("collusion") is None else checks.integer("collusion", chosen["collusion"], 1)
        if colluding > 1:
            got = f"{colluding} for scheme = {AUTO}"
            raise NotOffered("collusion", got=got, expected=f"1: sealed reveals need that; or {_BY_NAME}")
        chosen |= {"scheme": defaults.SCHEME, "collusion": 1}
        if chosen.get("dealer") is not None and chosen.get("protocol") is None:
            chosen["protocol"] = defaults.LINKED
        if chosen.get("protocol") is not None:
            return make(**chosen)
        alone, k = make(**(chosen | {"k": 1})), checks.integer("k", chosen.get("k", defaults.K), 1, MOST_RECORDS)
        size, most = alone.download(database.rows, robust), alone.scheme.protocol.most_records or k
        if k <= most and size <= limit:
            return make(**chosen)
        if not linked:
            served = f"{database.rows:,} {alone.served}s"
            why = f"k = {k}" if k > most else f"{served}, {size / 2**20:,.1f} MiB down a question,"
            raise NotOffered("servers", got=f"{why} for scheme = {AUTO}", expected=f"{_LINKED}; or {_BY_NAME}")
        return make(**(chosen | {"protocol": defaults.LINKED}))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record in the form that servers hold: signed and packaged."""
        return layout(self.schema, self.record).itemsize + SIGNATURE_BYTES + KEY_BYTES

    def download(self, rows: int, robust: int = 0) -> int:
        """Return how many bytes all servers together send in answer to one question, without envelopes."""
        sizes = sum(each.answered.packed(down) for each in self._requests(rows, robust) for down in each.down)
        return sizes * len(self._among(robust).runs())

    def upload(self, rows: int) -> int:
        """Return how many bytes an applicant sends to all servers together, without envelopes."""
        return sum(each.body(seat) for each in self._requests(rows) for seat in range(len(each.down)))

    def between(self, rows: int) -> int:
        """Return how many bytes each server sends to each other server because of one question."""
        return sum(each.between for each in self._requests(rows))

    def rounds(self, rows: int) -> int:
        """Return how often servers wait for each other's messages in one question."""
        return sum(each.rounds for each in self._requests(rows))

    def _requests(self, rows: int, robust: int = 0) -> tuple[Request, ...]:
        return self._among(robust).requests(Size(rows, self.record_bytes, self.k))

    def _among(self, robust: int) -> Scheme:
        """Return the scheme of as few servers as a ticket may name."""
        needed = self.scheme.needed(checks.integer("robust", robust, 0))
        if self.scheme.servers < needed:
            raise TooFewServers("servers", got=self.scheme.servers, expected=f"at least {needed}: {robust} may lie")
        return self.scheme.among(range(1, needed + 1), robust)

    def says(self, rows: int) -> str:
        """Describe in one line the scheme, the size of a question, and what an applicant learns from it."""
        scheme, size = self.scheme, f"{_size(self.download(rows))} down a question"
        if scheme.protocol.linked:
            up, down, between = map(_size, (self.upload(rows), self.download(rows), self.between(rows)))
            size = f"by {scheme.protocol.name}, {up} up and {down} down a question, {between} from server to server"
        return f"{scheme.name}, {size}: {self.gives}; {self.tells(rows)}"

    @property
    def served(self) -> str:
        """What is served, in a word: a row or a region."""
        return "region" if self.tariff.layout.regions else "row"

    def tells(self, rows: int) -> str:
        """Say in words what the applicant learns of all rows, or regions."""
        return self.scheme.reveal.tells(rows).replace("rows", f"{self.served}s")

    @property
    def gives(self) -> str:
        """Which rows, or regions, an applicant gets with a question, in words."""
        what = self.served
        several = f"up to {self.k} {what}s" if self.scheme.protocol.fetches else f"the {self.k} nearest {what}s"
        return (f"the nearest {what}" if self.k == 1 else several) + ("" if self.scheme.exact else ", approximately")

    def measure(self) -> str:
        """Say how large costs are: the unit, the largest cost, and the bits of a number in the arithmetic."""
        bound, bits = self.scheme.form.bound, self.scheme.field.bits
        return f"{self.unit:,} for a change across a whole range, {bound:,} at most; numbers have {bits} bits"

    def lasts(self) -> str:
        """Say in words how many tickets let one applicant rebuild the rows, or the regions."""
        tickets, what = self.scheme.rebuilt_after, self.served
        if tickets is None:
            each = f"one {what}" if self.k == 1 else f"{self.k} {what}s"
            return f"no attack we know rebuilds the {what}s faster than {each} a ticket"
        return f"{tickets:,} ticket{'s' * (tickets != 1)} of one applicant rebuild{'s' * (tickets == 1)} the {what}s"

    def parameters(self) -> Parameters:
        """Return the arguments from which `Deployment.of` made this, without schema and record."""
        scheme, form = self.scheme, self.scheme.form
        own = {name: getattr(form, name) for name in sorted(form.options - {_NORM})}
        own |= {_UNIT: self.tariff.chosen_unit} if self.tariff.chosen_unit is not None else {}
        record = {"intervals": True} if self.tariff.intervals else {}
        record |= msgspec.to_builtins(self.certificate) if self.certificate else {}
        options: dict[Part, dict[str, Any]] = {"form": own} if own else {}
        options |= {"record": record} if record else {}
        _, usual = make_parts(pair_named(scheme.name)[1], shuffle=scheme.reveal.shuffle, d_min=scheme.reveal.d_min)
        if scheme.protocol != usual:
            options["protocol"] = dict(sorted(asdict(scheme.protocol).items()))
        return Parameters(
            scheme=scheme.name,
            servers=scheme.servers,
            collusion=scheme.collusion,
            k=self.k,
            max_weight=self.tariff.max_weight,
            shuffle=scheme.reveal.shuffle,
            d_min=scheme.reveal.d_min,
            norm=form.power or _SQUARE,
            options=options or msgspec.UNSET,
            protocol=msgspec.UNSET if scheme.protocol.name == usual.name else scheme.protocol.name,
        )

    def check_serves(self, database: Holdings) -> None:
        """Refuse a database with another schema, another kind of record, or fewer than k rows.

        Warn of rules of the schema that the form of the question cannot keep.
        """
        if self.schema != database.schema or self.record != database.record:
            raise WrongType("deployment", got="another schema or kind of record", expected="those of the database")
        if self.certificate != database.certificate:
            raise WrongType("deployment", got="regions of another model", expected="those of the database")
        if self.k > database.rows:
            raise OutOfRange("k", got=self.k, expected=f"at most {database.rows}, the number of {self.served}s")
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
        return self.scheme.form.prepare(self.tariff, self.tariff.layout.columns(codes))

    def choose(self, relative: Vector, spread: float = 0.0) -> list[int]:
        """Return the k positions to fetch: the nearest row, then rows that each cost at least `spread` more.

        `spread` is in units of a change across a whole range. Exactly k rows are fetched (rule 10): if too few rows
        are that far apart, the nearest of the others are taken as well.
        """
        if isinstance(spread, bool) or not isinstance(spread, int | float) or not spread >= 0:
            raise OutOfRange("spread", got=repr(spread), expected="a number, 0 or more")
        if spread and self.k > 1 and not self.scheme.protocol.fetches:
            raise NotOffered("spread", got=spread, expected=f"0: servers choose, and give {self.gives}")
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


def _size(count: int) -> str:
    return f"{count / 1000:,.1f} kB" if count < 1 << 20 else f"{count / 2**20:,.2f} MiB"


def _options(options: Options, dealer: str | None) -> dict[str, dict[str, Any]]:
    """Return the parameters that only one part has, `dealer` among the protocol's; refuse those of any other part."""
    for part, own in options.items():
        if not isinstance(own, Mapping) or (part not in _WITH_OPTIONS and own):
            expected = "those of the form, the record or the protocol, by their names"
            raise UnknownName("options", got=f"{part} = {own!r}"[:100], expected=expected)
    made = {part: dict(own) for part, own in options.items()}
    return made if dealer is None else made | {"protocol": made.get("protocol", {}) | {"dealer": dealer}}


def _form_options(form: str, norm: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that only this form has, its norm among them."""
    if _NORM in given:
        raise UnknownName("option", got=repr(_NORM), expected="the parameter of that name")
    return given | ({_NORM: norm} if _NORM in form_named(form).options else {})


def _record_options(record: RecordKind, options: Any) -> tuple[bool, Certificate | None]:
    """Return whether regions have one code over all intervals of a feature, and what the institution says of them."""
    given = dict(options) if isinstance(options, Mapping) else {"": options}
    wanted = given.pop("intervals", False)
    try:
        certificate = msgspec.convert(given, Certificate) if given else None
    except msgspec.ValidationError:
        certificate, wanted = None, None
    if not isinstance(wanted, bool) or (options and record != "region"):
        expected = "intervals, model, sampled, at_most, epsilon and delta, for regions"
        raise UnknownName("options", got=f"record = {options!r}"[:100], expected=expected)
    return wanted, certificate
