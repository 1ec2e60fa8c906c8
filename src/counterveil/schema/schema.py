"""A schema says which features there are, and how their values become codes.

Security: public, the ranges too. A range read off the data tells where the data ends.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import tomli_w

from ..algebra import checks
from ..algebra.arrays import Vector
from ..errors import (
    EmptyDatabase,
    InvalidInput,
    InvalidSchema,
    LeftOut,
    MissingValue,
    Suspicious,
    UnknownName,
    WrongType,
)
from .features import (
    LONGEST_TEXT,
    MOST_LEVELS,
    Boolean,
    Categorical,
    Feature,
    Numeric,
    Ordinal,
    Plain,
    Value,
)
from .frames import Columns, columns_of
from .inference import Options, guess, why

_VERSION = 1
_MOST_FEATURES = 10_000
MOST_LEVELS_TOGETHER = 2**24  # an applicant's table of costs has an entry for each
_LONGEST_MESSAGE = 500
_HEADER = """\
# A Counterveil schema: which columns there are, and how their values become levels. It is public.
# Ranges below were read off the data and rounded outwards. They still tell roughly where the data ends: put in
# numbers that you would say in public anyway. The same goes for lists of values and for mad.
# levels = 10 means eleven values, 0/10 to 10/10 of the range; step = 50 means low, low + 50, …
# role = "record" shows a column with the row and keeps it out of the cost.
# change = "up", "down" or "never" binds everybody who asks; effort = 3 makes a change three times as dear.
# docs/schema.md describes every field.
"""


_DROPPED = {  # a parameter that is given, to the parameters that were chosen for its old value
    "scheme": ("d_min", "norm", "options", "servers", "collusion", "protocol", "dealer"),
    "protocol": ("dealer",),
    "options": ("dealer",),
    "collusion": ("servers",),
}


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an institution chose for its deployment: `[deployment]` in a schema file. None stands for no choice.

    Its fields are those of `terms.parameters.Parameters`, the limit that `scheme = "auto"` goes by, and `dealer`, which
    is short for `options.protocol.dealer`.

    `counterveil advise` writes it; `counterveil serve` and `local` start from it.
    """

    scheme: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] | None = None
    servers: int | None = None
    collusion: int | None = None
    k: int | None = None
    max_weight: int | None = None
    shuffle: bool | None = None
    d_min: int | None = None
    norm: int | None = None
    options: dict[str, dict[str, Any]] | None = None  # what only this form has, or only this protocol
    protocol: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] | None = None
    dealer: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] | None = None
    download_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None  # MiB down, for `scheme = "auto"`

    def given(self) -> dict[str, Any]:
        """Return the parameters that were chosen, by name."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"features": "feature"}):
    """The features, in order.

    >>> schema = Schema(features=(Numeric(name="income", low=0, high=5000, step=500, unit="€"), Boolean(name="owner")))
    >>> schema.codes({"income": 2400, "owner": True})
    array([5, 1])
    >>> schema.values([5, 1])
    {'income': 2500.0, 'owner': True}
    """

    features: tuple[Feature, ...]
    version: int = _VERSION
    deployment: Chosen | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.features, tuple) or not all(isinstance(f, Feature) for f in self.features):
            raise InvalidSchema("features", got=repr(self.features)[:60], expected="a tuple of features")
        if len(self.features) > _MOST_FEATURES:
            raise ValueError(f"feature: got {len(self.features)} of them, expected at most {_MOST_FEATURES}")
        together = sum(feature.largest + 1 for feature in self.features)
        if together > MOST_LEVELS_TOGETHER:
            raise ValueError(f"levels: got {together} in all features, expected at most {MOST_LEVELS_TOGETHER}")
        twice = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if twice:
            raise ValueError(f"name: got {twice[0]!r} twice, expected each once")
        if not any(feature.role == "feature" for feature in self.features):
            raise ValueError("role: got no feature, expected at least one that counts in the cost")
        if self.version != _VERSION:
            raise ValueError(f"version: got {self.version}, expected {_VERSION}")

    def choice(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters chosen in the schema, replaced by those given now.

        What was chosen for another scheme, protocol or collusion than the one given now is dropped (`_DROPPED`).
        """
        chosen = self.deployment.given() if isinstance(self.deployment, Chosen) else {}
        for name in [name for cause, names in _DROPPED.items() if cause in given for name in names]:
            chosen.pop(name, None)
        if "protocol" in given and "options" in chosen:
            chosen["options"].pop("protocol", None)
        return chosen | dict(given)

    @property
    def names(self) -> list[str]:
        """The columns, in order."""
        return [feature.name for feature in self.features]

    @property
    def costed(self) -> list[int]:
        """The positions of the features that count in the cost."""
        return [j for j, feature in enumerate(self.features) if feature.role == "feature"]

    @property
    def cost_features(self) -> list[Feature]:
        """The features that count in the cost."""
        return [self.features[j] for j in self.costed]

    def feature(self, name: str) -> Feature:
        """Return the feature of that name."""
        if name not in self.names:
            raise UnknownName("feature", got=repr(name), expected="one of " + ", ".join(self.names))
        return self.features[self.names.index(name)]

    def quantise(self, frame: Any, *, clamp: bool = False) -> Vector:
        """Return the codes of a frame's rows, one column for each feature."""
        columns = columns_of(frame, self.names)
        return np.stack([f.codes(columns[f.name], clamp=clamp) for f in self.features], axis=1)

    def codes(self, person: Mapping[str, Any], *, clamp: bool = False) -> Vector:
        """Return one person's codes, a number for each feature; None says that there is no value, and must be said."""
        unknown = sorted(set(person) - set(self.names))
        if unknown:
            raise UnknownName("feature", got=repr(unknown[0]), expected="one of " + ", ".join(self.names))
        codes = []
        for feature in self.features:
            if feature.role == "record":  # not part of the cost, so the person's value does not matter
                codes.append(0)
                continue
            if feature.name not in person and feature.missing == "level":
                raise MissingValue(feature.name, got="no word of it", expected="a value, or None (null) for none")
            value = person.get(feature.name)
            try:
                codes.append(int(feature.codes([value], clamp=clamp)[0]))
            except InvalidInput as error:
                raise error.at(feature.name) from None
        return np.array(codes, dtype=np.int64)

    def values(self, codes: Iterable[int]) -> dict[str, Value]:
        """Return the value that each code stands for."""
        return {f.name: f.value(int(code)) for f, code in zip(self.features, codes, strict=True)}

    def to_toml(self) -> str:
        """Write the schema as a file that a person can edit."""
        written = self.to_builtins()
        parts = [_HEADER, ""]
        for feature, entry in zip(self.features, written.pop("feature"), strict=True):
            reason = why(feature)
            parts += [f"# change: {reason}."] if reason else []
            parts += ["[[feature]]", _as_toml(entry)]
        parts[1] = tomli_w.dumps(written)
        return "\n".join(parts).rstrip() + "\n"

    def save(self, path: str | Path) -> None:
        """Write the schema to a file."""
        try:
            Path(path).write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise InvalidSchema(str(path), got=error.strerror, expected="a place that can be written") from None

    @classmethod
    def from_toml(cls, text: str, source: str = "schema") -> Schema:
        """Read a schema; errors name the source, the feature and the field."""
        try:
            raw = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits, and deep nesting
            raise InvalidSchema(source, got=str(error)[:_LONGEST_MESSAGE], expected="TOML") from None
        return cls.from_builtins(raw, source)

    def to_builtins(self) -> dict[str, Any]:
        """Return the schema as plain dictionaries."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_builtins(cls, raw: Any, source: str = "schema") -> Schema:
        """Read a schema from plain dictionaries, as a bundle's manifest holds it."""
        try:
            return msgspec.convert(raw, cls)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            got = message[:_LONGEST_MESSAGE]  # it can quote long values of the schema
            raise InvalidSchema(_place(source, path, raw), got=got, expected="a schema of version 1") from None

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema from a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSchema(str(path), got=getattr(error, "strerror", "bytes"), expected="a text file") from None
        return cls.from_toml(text, str(path))

    @classmethod
    def infer(
        cls,
        frame: Any,
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        quantiles: Iterable[str] = (),
        most_levels: int = 100,
        round_outwards: bool = True,
    ) -> Schema:
        """Guess a schema from data: kinds by type, steps for whole numbers, ranges rounded outwards.

        Check the result before you publish it: ranges, values and `mad` come from the data. Warnings name the columns
        that are left out, being ids, dates or free text, and say what looks wrong.

        Parameters
        ----------
        frame : a pandas, polars or pyarrow frame, a mapping of columns, or the path of a CSV or Parquet file.
        exclude : columns to leave out, such as the verdict. A column that repeats one of them is warned about.
        include : columns to take although they look like ids or free text.
        quantiles : numeric columns whose levels are to hold about as many rows each.
        most_levels : about how many levels a numeric feature has at most.
        round_outwards : do not show the data's extremes.
        """
        table = Columns(frame)
        checks.integer("most_levels", most_levels, 1, MOST_LEVELS)
        named = {"exclude": exclude, "include": include, "quantiles": quantiles}
        chosen = {what: _columns(what, given, table.names) for what, given in named.items()}
        made = guess(table, Options(**chosen, most_levels=most_levels, round_outwards=round_outwards))
        if not made.features:
            raise EmptyDatabase("schema", got="no column that could be a feature", expected="at least one")
        if made.left_out:
            said = "; ".join(f"{name} ({reason})" for name, reason in made.left_out.items())
            warnings.warn(f"left out: {said}", LeftOut, stacklevel=2)
        for notice in made.notices:
            warnings.warn(notice, Suspicious, stacklevel=2)
        return cls(features=tuple(made.features))


def _columns(what: str, given: Iterable[str], names: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise WrongType(what, got=f"the text {given!r}", expected="a list of columns")
    chosen = list(given)
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        raise UnknownName(what, got=repr(unknown[0]), expected="one of " + ", ".join(names))
    return chosen


def _as_toml(entry: Mapping[str, Any]) -> str:
    """Write a feature; a table by language as `label.de = …`, so that it stays inside its feature."""
    made = tomli_w.dumps({name: value for name, value in entry.items() if not isinstance(value, dict)})
    tables = [(name, table) for name, table in entry.items() if isinstance(table, dict)]
    return made + "".join(
        f"{name}.{tomli_w.dumps({tag: said})}" for name, table in tables for tag, said in table.items()
    )


def _place(source: str, path: str, raw: Any) -> str:
    """Name the file, the feature and the field of an error whose path is, for example, `.feature[2].low`."""
    match = re.match(r"\.feature\[(\d+)\](?:\.(\w+))?", path)
    if not match:
        return source
    number, field = int(match[1]), match[2]
    entry = raw["feature"][number]
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or len(name) > LONGEST_TEXT:
        name = f"number {number + 1}"
    return f"{source}, feature {name!r}" + (f", {field}" if field else "")


__all__ = ["Boolean", "Categorical", "Feature", "Numeric", "Ordinal", "Plain", "Schema"]
