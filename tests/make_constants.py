"""Write `web/constants.js` anew: `make constants`.

The page needs numbers and names that the Python side has too. They come from there, so that neither can change alone;
`test_shared_constants.py` fails where the file is old.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import NODEFAULT
from msgspec.structs import fields

from counterveil.algebra import gf256
from counterveil.algebra.field import LIMIT
from counterveil.applicant import conversation, exchange, offer
from counterveil.applicant.client import AsyncClient
from counterveil.crypto import garbling, randomness
from counterveil.crypto.keys import SIGNATURE_BYTES, Purpose, SigningKey, fingerprint
from counterveil.schema import features, schema, tariff
from counterveil.schema.features import Boolean, Categorical, Numeric, Ordinal
from counterveil.schema.layouts import RecordKind
from counterveil.schemes.fetch import LEAST_PART
from counterveil.schemes.protocols import circuit, garbled
from counterveil.terms import published, wire

FILE = Path(__file__).parent.parent / "src" / "counterveil" / "applicant" / "web" / "constants.js"
HEAD = """\
// What the Python side and this one both know. It comes from there: `make constants` writes this file.

"""
KINDS = {str(kind.__struct_config__.tag): kind for kind in (Numeric, Ordinal, Categorical, Boolean)}


def text() -> str:
    """Return the module, one constant a line, each with what it means."""
    lines = [f"export const {name} = {_written(value)};" + f" // {why}" * bool(why) for name, value, why in _shared()]
    return HEAD + "\n".join(lines) + "\n"


def _shared() -> list[tuple[str, Any, str]]:
    return [
        ("PROTOCOL", randomness.VERSION.decode(), "what every signature begins with, and the version of terms"),
        ("VERSION", wire.VERSION, "of messages and tickets"),
        ("MEDIA_TYPE", wire.MEDIA_TYPE, ""),
        ("MANIFEST_PATH", wire.MANIFEST_PATH, ""),
        ("ANSWER_PATH", wire.ANSWER_PATH, ""),
        ("RECORD_PATH", wire.RECORD_PATH, ""),
        ("REQUEST_KINDS", get_args(wire.RequestKind), ""),
        ("REPLY_KINDS", get_args(wire.ReplyKind), ""),
        ("RECORD_KINDS", get_args(RecordKind), ""),
        ("TICKET_MODES", get_args(_type(wire.Terms, "tickets")), ""),
        ("PURPOSES", get_args(Purpose), "of signatures"),
        ("MOST_SERVERS", wire.MOST_SERVERS, ""),
        ("MOST_RECORDS", wire.MOST_RECORDS, ""),
        ("MOST_ROBUST", wire.MOST_ROBUST, ""),
        ("MOST_ROWS", _meta(wire.Terms, "rows").lt - 1, ""),
        ("LONGEST_REVEAL", _meta(wire.Claims, "reveal").max_length, "characters, in a ticket"),
        ("SERVICE_PATTERN", _meta(wire.Claims, "service").pattern, ""),
        ("ENVELOPE", wire.ENVELOPE, "bytes that a message has at most around its body"),
        ("MANIFEST_LIMIT", wire.MANIFEST_LIMIT, "bytes"),
        ("ANSWER_LIMIT", published._LONGEST, "bytes: no server's answer may have that many"),
        ("ID_BYTES", randomness.ID_BYTES, "of tickets, common keys and ledgers"),
        ("KEY_BYTES", randomness.KEY_BYTES, "of packages, and of the secret that a request carries"),
        ("PUBLIC_KEY_BYTES", len(SigningKey().public), ""),
        ("SIGNATURE_BYTES", SIGNATURE_BYTES, ""),
        ("FINGERPRINT_BYTES", len(bytes.fromhex(fingerprint(b""))), "of the digest of a public key"),
        ("FIELD_LIMIT", _Big(LIMIT), "every q is below that, or that"),
        ("LEAST_PART", LEAST_PART, "bytes: a missing part of a package must be beyond guessing"),
        ("GF256_POLYNOMIAL", gf256._POLYNOMIAL, ""),
        ("LABEL", garbling.LABEL, "bytes of a wire's label"),
        ("AND", garbling.AND, "bytes of a gate"),
        ("SEAL_KEY", garbling._KEY.decode(), "fixed and public"),
        ("CHUNK_BITS", circuit.CHUNK_BITS, "rows are garbled in chunks of two to that power"),
        ("LEVEL_STEPS", circuit.LEVEL_STEPS, "names of gates that a level of the tournament has"),
        ("PASS_STEP", circuit.PASS_STEP, "of those, where passing on begins"),
        ("KEY_STEPS", garbled._KEYS, "no gate has such a step"),
        ("PAD_STEP", garbled._PADS, "nor this one"),
        ("AHEAD", conversation._AHEAD, "bytes of one answer that wait at most for the other"),
        ("STEP", _milliseconds(offer._STEP), "milliseconds: what is computed here ends on a multiple of that"),
        ("ROWS_A_STEP", offer._ROWS_A_STEP, "rows that make the step longer by one of those"),
        ("REHEARSALS", offer._REHEARSALS, "tries"),
        ("MOST_REHEARSED", offer._MOST_REHEARSED, "rows: of more rows the time is scaled"),
        ("TIMEOUT", _milliseconds(_default("timeout")), "milliseconds for a server to answer one request"),
        ("PATIENCE", _milliseconds(_default("patience")), "milliseconds over which a request is sent again"),
        ("PAUSE", _milliseconds(exchange._PAUSE), "milliseconds before that, twice as long each time"),
        ("LONGEST_PAUSE", _milliseconds(exchange._LONGEST_PAUSE), "milliseconds"),
        ("SLOWEST", exchange._SLOWEST, "bytes a second that a long answer may be sent at"),
        ("RETRIED", exchange._RETRIED, "HTTP statuses after which a request is sent again"),
        ("FEATURE_FIELDS", {tag: [each.encode_name for each in _fields(tag)] for tag in KINDS}, ""),
        ("FEATURE_DEFAULTS", _defaults(), ""),
        ("ROLES", features._ROLES, ""),
        ("MISSING", features._MISSING, ""),
        ("ENCODINGS", features._ENCODINGS, ""),
        ("LONGEST_TEXT", features.LONGEST_TEXT, "characters of a name, a label, a unit, a category"),
        ("MOST_LEVELS", features.MOST_LEVELS, ""),
        ("MOST_FEATURES", schema._MOST_FEATURES, ""),
        ("MOST_LEVELS_TOGETHER", schema._MOST_LEVELS_TOGETHER, "of all features"),
        ("FARTHEST", features._FARTHEST, "what `low` and `high` may be"),
        ("FORMAT_PATTERN", features._FORMAT.pattern, "of all of a format: no width"),
        ("LEAST_UNIT", tariff._LEAST_UNIT, "of costs, across a whole range"),
    ]


class _Big(int):
    """A whole number that JavaScript would round: a BigInt there."""


def _written(value: Any) -> str:
    if isinstance(value, _Big):
        return f"{int(value)}n"
    plain = json.dumps(value, ensure_ascii=False)
    return f"/** @type {{const}} */ ({plain})" if isinstance(value, tuple | dict) else plain


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _default(option: str) -> float:
    return float(inspect.signature(AsyncClient).parameters[option].default)


def _type(struct: type, field: str) -> Any:
    return get_type_hints(struct, include_extras=True)[field]


def _meta(struct: type, field: str) -> Any:
    return _type(struct, field).__metadata__[0]


def _fields(tag: str) -> Any:
    return fields(KINDS[tag])


def _defaults() -> dict[str, Any]:
    every = [each for tag in KINDS for each in _fields(tag)]
    return {each.encode_name: each.default for each in every if each.default is not NODEFAULT}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
