"""Write `web/constants.js`: run `make constants`.

The page needs numbers and names that the Python code has too. They are generated from there, so that neither side can
change alone. `test_shared_constants.py` fails if the file is old.
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
from counterveil.applicant import exchange, offer, receipts, runs
from counterveil.applicant.client import AsyncClient
from counterveil.crypto import garbling, randomness
from counterveil.crypto.keys import SIGNATURE_BYTES, Purpose, SigningKey, fingerprint
from counterveil.schema import boxes, features, languages, preferences, schema, tariff
from counterveil.schema.features import Boolean, Categorical, Numeric, Ordinal
from counterveil.schema.layouts import RecordKind
from counterveil.schemes.fetch import LEAST_PART
from counterveil.schemes.protocols import circuit, garbled, joint, packed, rounds
from counterveil.terms import deployment, published, wire

FILE = Path(__file__).parent.parent / "src" / "counterveil" / "applicant" / "web" / "constants.js"
HEAD = """\
// Constants that Python and JavaScript share. `make constants` writes this file from the Python code.

"""
KINDS = {str(kind.__struct_config__.tag): kind for kind in (Numeric, Ordinal, Categorical, Boolean)}


def text() -> str:
    """Return the module's text, one constant a line, each with its meaning."""
    lines = [f"export const {name} = {_written(value)};" + f" // {why}" * bool(why) for name, value, why in _shared()]
    return HEAD + "\n".join(lines) + "\n"


def _shared() -> list[tuple[str, Any, str]]:
    return [
        ("PROTOCOL", randomness.VERSION.decode(), "the first part of what is signed, and the version of terms"),
        ("VERSION", wire.VERSION, "of messages and tickets"),
        ("MEDIA_TYPE", wire.MEDIA_TYPE, ""),
        ("MANIFEST_PATH", wire.MANIFEST_PATH, ""),
        ("MANIFESTS_PATH", wire.MANIFESTS_PATH, ""),
        ("ROUTES", dict(wire.ROUTES), "where each kind of request goes, and what comes back"),
        ("REQUEST_KINDS", get_args(wire.RequestKind), ""),
        ("REPLY_KINDS", get_args(wire.ReplyKind), ""),
        ("RECORD_KINDS", get_args(RecordKind), ""),
        ("TICKET_MODES", get_args(_type(wire.Terms, "tickets")), ""),
        ("PURPOSES", get_args(Purpose), "of signatures: the second part of what is signed"),
        ("MOST_SERVERS", wire.MOST_SERVERS, ""),
        ("MOST_RECORDS", wire.MOST_RECORDS, ""),
        ("MOST_ROBUST", wire.MOST_ROBUST, ""),
        ("MOST_ROWS", _meta(wire.Terms, "rows").lt - 1, ""),
        ("LONGEST_REVEAL", _meta(wire.Claims, "reveal").max_length, "characters, in a ticket"),
        ("SERVICE_PATTERN", _meta(wire.Claims, "service").pattern, ""),
        ("ENVELOPE", wire.ENVELOPE, "bytes: the most that a message has before its body"),
        ("MANIFEST_LIMIT", wire.MANIFEST_LIMIT, "bytes"),
        ("MANIFESTS_LIMIT", wire.MANIFESTS_LIMIT, "bytes"),
        ("MOST_OFFERS", wire.MOST_OFFERS, "manifests that a server shows"),
        ("ANSWER_LIMIT", published._LONGEST, "bytes; an answer must be shorter"),
        ("ID_BYTES", randomness.ID_BYTES, "of tickets, common keys and ledgers"),
        ("KEY_BYTES", randomness.KEY_BYTES, "of packages, and of the secret that a request carries"),
        ("PUBLIC_KEY_BYTES", len(SigningKey().public), ""),
        ("SIGNATURE_BYTES", SIGNATURE_BYTES, ""),
        ("FINGERPRINT_BYTES", len(bytes.fromhex(fingerprint(b""))), "of the digest of a public key"),
        ("FIELD_LIMIT", _Big(LIMIT), "the greatest q"),
        ("LEAST_PART", LEAST_PART, "bytes: a shorter part of a package could be guessed"),
        ("GF256_POLYNOMIAL", gf256._POLYNOMIAL, ""),
        ("LABEL", garbling.LABEL, "bytes of a wire's label"),
        ("AND", garbling.AND, "bytes of a gate"),
        ("SEAL_KEY", garbling._KEY.decode(), "fixed and public"),
        ("CHUNK_BITS", circuit.CHUNK_BITS, "rows are garbled in chunks of 2 to this power"),
        ("LEVEL_STEPS", circuit.LEVEL_STEPS, "step numbers of gates in one level of the tournament"),
        ("PASS_STEP", circuit.PASS_STEP, "the first step number in a level of gates that pass a winner on"),
        ("KEY_STEPS", garbled._KEYS, "step numbers from here on are of keys; no gate has one"),
        ("PAD_STEP", garbled._PADS, "the step number of pads; no gate and no key has it"),
        ("LANE_BITS", packed.LANE_BITS, "the joint protocol puts 2 to this power rows into one word"),
        ("BLOCK", packed.BLOCK, "the most rows of a block of the joint protocol"),
        ("TREES_FROM", packed.TREES_FROM, "the first level of the joint tournament whose comparisons are trees"),
        ("PROFILES", packed.PROFILES, "of the rounds of the joint protocol: few rounds cost more bytes"),
        ("MOST_FACTORS", rounds.WIDTH, "of a product in the joint protocol with few rounds"),
        ("DEALERS", tuple(joint._ROLES), "who may deal for the joint protocol"),
        ("MOST_ATTEMPTS", runs.MOST_ATTEMPTS, "of servers that talk to each other"),
        ("OTHER_OFFER", runs.OTHER_OFFER, "refusals of a server that has another offer than the one asked under"),
        ("OTHERS", _milliseconds(exchange._OTHERS), "milliseconds of patience with such a server"),
        ("NOTHING_BEGAN", runs._NOTHING_BEGAN, "refusals of a server that has not taken the attempt"),
        ("NOT_YET", runs._NOT_YET, "refusals after which an attempt may still have an answer; null: no answer at all"),
        ("ATTEMPT_PAUSE", _milliseconds(runs._PAUSE), "milliseconds before they are asked again; then twice as long"),
        ("LONGEST_ATTEMPT_PAUSE", _milliseconds(runs._LONGEST_PAUSE), "milliseconds"),
        ("AHEAD", runs._AHEAD, "bytes: the most that one answer may be ahead of the others"),
        ("STEP", _milliseconds(offer._STEP), "milliseconds: the shortest step; messages leave only at multiples of it"),
        (
            "ROWS_A_STEP",
            offer._ROWS_A_STEP,
            "the step grows by STEP for each this many rows, where costs are computed from answers",
        ),
        ("REHEARSALS", offer._REHEARSALS, "how often the time of computing is measured"),
        ("MOST_REHEARSED", offer._MOST_REHEARSED, "rows; for more rows, the time that these take is scaled up"),
        ("TIMEOUT", _milliseconds(_default("timeout")), "milliseconds for a server to answer one request"),
        ("PATIENCE", _milliseconds(_default("patience")), "milliseconds for which a request is sent again"),
        ("PAUSE", _milliseconds(exchange._PAUSE), "milliseconds before it is sent again; then twice as long each time"),
        ("LONGEST_PAUSE", _milliseconds(exchange._LONGEST_PAUSE), "milliseconds"),
        ("SLOWEST", exchange._SLOWEST, "bytes a second: a server must send a long answer at least this fast"),
        ("RETRIED", exchange._RETRIED, "HTTP statuses after which a request is sent again"),
        ("FEATURE_FIELDS", {tag: [each.encode_name for each in _fields(tag)] for tag in KINDS}, ""),
        ("FEATURE_DEFAULTS", _defaults(), ""),
        ("ROLES", features._ROLES, ""),
        ("MISSING", features._MISSING, ""),
        ("ENCODINGS", features._ENCODINGS, ""),
        ("CHANGES", features._CHANGES, ""),
        ("MOST_EFFORT", features.MOST_EFFORT, ""),
        ("LONGEST_TEXT", features.LONGEST_TEXT, "characters of a name, a label, a unit, a group, a category"),
        ("LANGUAGE_PATTERN", languages.LANGUAGE, "of the tags in a table of texts by language"),
        ("MOST_LANGUAGES", languages.MOST_LANGUAGES, ""),
        ("MOST_LEVELS", features.MOST_LEVELS, ""),
        ("MOST_FEATURES", schema._MOST_FEATURES, ""),
        ("MOST_LEVELS_TOGETHER", schema.MOST_LEVELS_TOGETHER, "of all features"),
        ("FARTHEST", features.FARTHEST, "the greatest absolute value of `low` and `high`"),
        ("FORMAT_PATTERN", features._FORMAT.pattern, "must match a whole format; it allows no width"),
        ("ALL_SUBSETS", boxes.ALL_SUBSETS, "levels of a category up to which every set of them has a code"),
        ("MOST_CODES", boxes.MOST_CODES, "of sets of one feature's levels"),
        ("FEWEST_STEPS", tariff.FEWEST_STEPS, "costs that fewest changes first tells apart, at least"),
        ("LARGEST_UNIT", deployment._LARGEST_UNIT, ""),
        ("LEAST_UNIT", tariff._LEAST_UNIT, "the least cost of a change across a whole range, at weight 1"),
        ("DEARER", preferences.DEARER, "times as much does a change of the last answer cost, if another is asked for"),
        ("RECEIPT", receipts.VERSION, "the version of receipts"),
        ("PROVES", receipts.PROVES, "what a receipt says of itself"),
        ("DOES_NOT_PROVE", receipts.DOES_NOT_PROVE, ""),
        ("RECEIPT_LIMIT", receipts.LIMIT, "bytes"),
        ("RECEIPT_DAY", receipts.DAY, ""),
        ("RECEIPT_DIGITS", receipts.DIGITS, "of a number that a level stands for"),
    ]


class _Big(int):
    """A whole number that JavaScript would round, so it is written as a BigInt."""


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
