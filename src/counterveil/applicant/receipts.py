"""Receipts: what an institution signed of an answer, in one file that anybody can check without asking a server.

A receipt holds signed records and the signed terms. All else in it follows from these, from the date, and from the
person's values, if they want them in it. So a receipt is checked by making it anew: the bytes must be the same. The
page makes the same bytes.

Security: a receipt holds no ticket and nothing that a server saw. The records alone show what was answered. The
person's own values are in it only if they ask for that.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date as calendar
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from ..crypto.keys import SIGNATURE_BYTES, fingerprint, is_pinned, is_signed
from ..errors import InvalidInput, InvalidReceipt
from ..schema.boxes import unmet
from ..schema.features import Feature, Numeric, Value
from ..schema.layouts import Layout, Record, decode
from ..schema.schema import Schema
from ..terms import wire
from ..terms.published import check_terms

VERSION: Final = "counterveil/receipt/1"
PROVES: Final = (
    "The holder of the issuer's key in the terms signed these terms.",
    "The same key signed each record as an accepted row or region of the database that the terms name.",
)
DOES_NOT_PROVE: Final = (
    "Whose key that is: compare its fingerprint with the one that the institution publishes.",
    "Who asked, when, and what: the date, and the question if it is here, are the word of whoever shows this.",
    "That no other accepted row or region is nearer, or was answered too.",
    "That the institution must accept anybody, or that it still decides as it did when it signed.",
)
LIMIT: Final = 3 * wire.MANIFEST_LIMIT  # bytes of a file
DIGITS = 12  # of a number that a level stands for: floating-point errors come after them
DAY = "^[12][0-9]{3}-[0-9]{2}-[0-9]{2}$"

_Scalar = str | int | float | bool | None


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a receipt says of itself, in words."""

    does_not_prove: tuple[str, ...] = DOES_NOT_PROVE
    proves: tuple[str, ...] = PROVES


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One record: its bytes, its signature, and what it says."""

    record: Annotated[str, Meta(pattern="^([0-9a-f]{2})+$")]
    signature: wire.Hex64
    accepted: dict[str, Any]  # a row's values; of a region, both ends of an interval, or all values inside
    changes: tuple[str, ...] | UnsetType = UNSET  # features of the question that are otherwise in the record


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an institution signed of an answer. `verify` checks it."""

    receipt: Literal["counterveil/receipt/1"]
    about: About
    answers: Annotated[tuple[Answer, ...], Meta(min_length=1, max_length=wire.MOST_RECORDS)]  # the nearest first
    date: Annotated[str, Meta(pattern=DAY)]  # the person's word
    terms: wire.SignedTerms
    terms_digest: wire.Hex32
    check: wire.Hex32  # the SHA-256 of all else: it shows damage, and stops no forger
    question: dict[str, _Scalar] | UnsetType = UNSET  # the person's values

    def encode(self) -> bytes:
        """Return the receipt's bytes. There is no other way to write it."""
        return _written(msgspec.to_builtins(self)).encode() + b"\n"

    def save(self, path: str | Path) -> None:
        """Write the receipt to a file."""
        try:
            Path(path).write_bytes(self.encode())
        except OSError as error:
            raise InvalidReceipt(str(path), got=error.strerror, expected="a place that can be written") from None


@dataclass(frozen=True)
class Verified:
    """A receipt that was checked: whose key signed it, and what that key signed."""

    receipt: Receipt
    schema: Schema
    records: tuple[Record, ...]
    issuer: bytes  # the public key that signed the terms and the records
    pinned: bool  # whether this is the key that the caller expected

    def changes(self, values: Mapping[str, Any]) -> list[Feature]:
        """Return the features in which the first record is otherwise than these values."""
        kind = self.receipt.terms.terms.record
        return [self.schema.feature(name) for name in _changes(self.schema, kind, self.records[0], values)]

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as plain values, ready for JSON."""
        receipt, terms = self.receipt, self.receipt.terms.terms
        return {
            "valid": True,
            "pinned": self.pinned,
            "issuer": self.issuer.hex(),
            "fingerprint": fingerprint(self.issuer),
            "service": terms.service,
            "terms_digest": receipt.terms_digest,
            "database": terms.database,
            "kind": terms.record,
            "date": receipt.date,
            "accepted": [each.accepted for each in receipt.answers],
            "changes": [list(each.changes) for each in receipt.answers if each.changes is not UNSET],
            "question": None if receipt.question is UNSET else receipt.question,
            "proves": list(receipt.about.proves),
            "does_not_prove": list(receipt.about.does_not_prove),
        }


def verify(receipt: Receipt | bytes | str | Path, issuer: bytes | None = None) -> Verified:
    """Check a receipt, or a file of one, without asking a server; refuse one in which a byte is wrong.

    `issuer` is the institution's public key, 32 bytes, or its fingerprint, 16 bytes. Without it everything may be
    right, and still be signed by somebody else: compare `fingerprint(found.issuer)` with what the institution says.
    """
    data = receipt.encode() if isinstance(receipt, Receipt) else _read(receipt)
    read = _decoded(data)
    try:
        issued = check_terms(wire.decode_terms(wire.encode_terms(read.terms)))
        schema = Schema.from_builtins(issued.terms.schema, "schema")
        signed = [bytes.fromhex(each.record + each.signature) for each in read.answers]
        records = tuple(_record(issued, schema, each) for each in signed)
        made = make_receipt(issued, signed, read.date, None if read.question is UNSET else read.question)
        if made.encode() != data:
            raise InvalidReceipt(_different(read, made), got="something else", expected="what the signed parts say")
    except InvalidInput as error:
        raise error if isinstance(error, InvalidReceipt) else InvalidReceipt.inside("receipt", error) from None
    public = bytes.fromhex(issued.terms.issuer)
    if issuer is not None and not is_pinned(issuer, public):
        raise InvalidReceipt(
            "issuer", got=f"a key with the fingerprint {fingerprint(public)}", expected="the key given"
        )
    return Verified(made, schema, records, public, issuer is not None)


def make_receipt(
    issued: wire.SignedTerms, signed: Sequence[bytes], date: str, values: Mapping[str, Any] | None = None
) -> Receipt:
    """Make a receipt of records, each with its signature behind it. `values` are the person's own, or None."""
    schema, kind = Schema.from_builtins(issued.terms.schema, "schema"), issued.terms.record
    try:
        if calendar.fromisoformat(date).isoformat() != date:
            raise ValueError
    except ValueError:
        raise InvalidReceipt("date", got=repr(date)[:40], expected="a day, such as 2027-01-31") from None
    names = [feature.name for feature in schema.cost_features]
    if values is not None and sorted(values) != sorted(names):
        raise InvalidReceipt("question", got="other features", expected=f"a value for each of {len(names)} features")
    if len(set(signed)) < len(signed):
        raise InvalidReceipt("answers", got="one record twice", expected="each once")
    answers = []
    for whole in signed:
        record, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
        read = decode(schema, kind, record)
        changes = UNSET if values is None else tuple(_changes(schema, kind, read, values))
        answers.append(Answer(record.hex(), signature.hex(), _accepted(schema, kind, read), changes))
    given: Any = UNSET if values is None else {f.name: f.given(values[f.name]) for f in schema.cost_features}
    bare = Receipt(VERSION, About(), tuple(answers), date, issued, issued.digest.hex(), "", given)
    body = {name: value for name, value in msgspec.to_builtins(bare).items() if name != "check"}
    return msgspec.structs.replace(bare, check=hashlib.sha256(_written(body).encode()).hexdigest())


def _record(issued: wire.SignedTerms, schema: Schema, signed: bytes) -> Record:
    """Read a record; refuse one that the terms' key did not sign for the terms' database."""
    terms, record, signature = issued.terms, signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
    if not is_signed(bytes.fromhex(terms.issuer), signature, "record", bytes.fromhex(terms.database), record):
        expected = "that of the issuer, for the database of these terms"
        raise InvalidReceipt("signature", got="a wrong one", expected=expected)
    return decode(schema, terms.record, record)


def _accepted(schema: Schema, kind: Any, record: Record) -> dict[str, Any]:
    """Return what a record says: a value for each feature, or of a region's features the values inside."""
    if kind != "region":
        own = kind == "row"  # numbers of a row are its own, and all others those of levels
        pairs = zip(schema.features, record.codes.tolist(), strict=True)
        return {
            f.name: record.values[f.name] if own and isinstance(f, Numeric) else _value(f, code) for f, code in pairs
        }
    return {
        feature.name: _inside(feature, np.flatnonzero(members).tolist())
        for feature, members in zip(schema.cost_features, Layout(schema, kind).members(record.codes), strict=True)
    }


def _inside(feature: Feature, levels: list[int]) -> list[Value]:
    there = [level for level in levels if level <= feature.steps]
    ends = [there[0], there[-1]] if feature.ordered and there else there
    return [_value(feature, level) for level in [*ends, *levels[len(there) :]]]


def _value(feature: Feature, level: int) -> Value:
    """Return the value of a level; a number with the digits that Python and JavaScript agree on."""
    value = feature.value(level)
    return float(f"{value:.{DIGITS}g}") if isinstance(feature, Numeric) and value is not None else value


def _changes(schema: Schema, kind: Any, record: Record, values: Mapping[str, Any]) -> list[str]:
    """Return the names of the features whose value here has another level than the record, or is outside the region.

    A value beyond the schema's range is outside every region, since nothing is certified there.
    """
    features = schema.cost_features
    given = {f.name: values[f.name] for f in features if f.name in values}
    own = schema.codes(given, clamp=True)[schema.costed].tolist()
    if kind == "region":
        return list(conditions(schema, record, given))
    codes = record.codes[schema.costed].tolist()
    return [f.name for f, code, there in zip(features, own, codes, strict=True) if code != there]


def conditions(schema: Schema, record: Record, values: Mapping[str, Any]) -> dict[str, str]:
    """Return what a region asks of these values, by feature: the conditions that they do not meet."""
    sets = zip(schema.cost_features, Layout(schema, "region").members(record.codes), strict=True)
    said = {f.name: unmet(f, members, values[f.name]) for f, members in sets}
    return {name: text for name, text in said.items() if text}


def _read(given: bytes | str | Path) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        with Path(given).open("rb") as file:
            return file.read(LIMIT + 1)
    except OSError as error:
        raise InvalidReceipt(str(given), got=error.strerror, expected="a receipt") from None


def _decoded(data: bytes) -> Receipt:
    if len(data) > LIMIT:
        raise InvalidReceipt("receipt", got=f"more than {LIMIT:,} bytes", expected="a receipt")
    try:
        return msgspec.json.decode(data, type=Receipt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        said = str(error)[:200]
        got = said if said.isprintable() and said else "something else"
        raise InvalidReceipt("receipt", got=got, expected=f"JSON of {VERSION}") from None


def _different(read: Receipt, made: Receipt) -> str:
    """Name the first field in which two receipts differ, or their bytes if no field does."""
    fields = ("about", "terms_digest", "answers", "question", "check")
    return next((name for name in fields if getattr(read, name) != getattr(made, name)), "bytes")


def _written(value: Any, depth: int = 0) -> str:
    """Write JSON as JavaScript's `JSON.stringify` does with an indent of 1, and keys in the order of UTF-16."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda name: name.encode("utf-16-be"))
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_written(value[key], depth + 1)}" for key in keys]
    elif isinstance(value, list | tuple):
        parts = [_written(each, depth + 1) for each in value]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    else:
        return json.dumps(value, ensure_ascii=False)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    if not parts:
        return opened + closed
    line = "\n" + " " * depth
    return f"{opened}{line} " + f",{line} ".join(parts) + f"{line}{closed}"


def _number(value: float) -> str:
    """Write a number as JavaScript does: the shortest digits that are read as the same number."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidReceipt("receipt", got="a number that is not finite", expected="numbers that JSON can hold")
    sign, digits, exponent = Decimal(repr(number + 0.0)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)
    if len(text) <= point <= 21:
        body = text + "0" * (point - len(text))
    elif 0 < point <= 21:
        body = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        body = "0." + "0" * -point + text
    else:
        body = f"{text[0]}{'.' * (len(text) > 1)}{text[1:]}e{point - 1:+d}"
    return "-" * sign + body
