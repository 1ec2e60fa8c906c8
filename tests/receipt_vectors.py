"""Make `vectors/receipts.json`, and receipts in which one thing is wrong."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from counterveil import Boolean, Categorical, Database, Deployment, Numeric, Ordinal, Schema
from counterveil.applicant import receipts
from counterveil.crypto.keys import Issuer, SigningKey
from counterveil.crypto.packages import unpackage
from counterveil.institution.bundle import Counts
from counterveil.schema.frames import Columns
from counterveil.schema.layouts import encode
from counterveil.terms.parameters import Certificate
from counterveil.terms.published import make_terms, sign_terms
from counterveil.terms.wire import SignedTerms

DATE = "2027-01-15"
ADDRESSES = ("https://one.example", "https://two.example")
SCHEMA = Schema(
    features=(
        Numeric(name="income", label="yearly income", low=0, high=5000, step=500, unit="€"),
        Numeric(name="1", low=1, high=1e24, levels=10, log=True),  # JavaScript puts such names first
        Numeric(name="rate", low=0, high=1e-5, levels=3, missing="level"),
        Categorical(name="Straße 🏠", values=("Ulm", 'a "b" \\ c', "Bonn", "Kiel"), missing="level"),
        Ordinal(name="\ufb01nal", values=(0, 2.5, 1e22)),  # its place differs in UTF-8 and UTF-16
        Boolean(name="owner"),
        Numeric(name="size", low=0, high=10, step=1, role="record"),
    )
)  # fmt: skip
DATA: dict[str, Any] = {
    "income": [1000.25, 2000, 0.1 + 0.2],
    "1": [1e21, 123456789012345680000.0, 3.5e10],
    "rate": [1e-7, None, 9.87e-6],
    "Straße 🏠": ["Bonn", None, 'a "b" \\ c'],
    "\ufb01nal": [0, 2.5, 1e22],
    "owner": [False, True, True],
    "size": [1, 2, 9.5],
    "ok": [True] * 3,
}
PERSON = {"income": 1234.5, "1": 1e22, "rate": None, "Straße 🏠": "Kiel", "\ufb01nal": 2.5, "owner": True}
FAR = PERSON | {"income": 6000, "rate": -2}  # beyond the schema's range
BOXES = [[2, 10, 3, 9, 0, 3, 1, 1, 2, 0, 1], [0, 4, 0, 10, 8, 3, 30, 0, 1, 1, 1]]


def issuer() -> Issuer:
    return Issuer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def regions() -> Database:
    codes = np.array(sorted(BOXES), dtype=np.uint8)
    counts = Counts(seen=9, accepted=7, too_rare=0, duplicates=0, rows=len(codes))
    return Database(
        schema=SCHEMA, record="region", min_cell=1, counts=counts, codes=codes,
        served=encode(SCHEMA, "region", codes, Columns(DATA)), certificate=Certificate("5e" * 32),
    )  # fmt: skip


def database(kind: Any) -> Database:
    made = regions() if kind == "region" else Database.build(DATA, SCHEMA, accepted="ok", record=kind)
    return made.sign(issuer())


def issued(held: Database, **parameters: Any) -> SignedTerms:
    if held.record == "region":
        parameters["options"] = {"form": {"unit": 16}, "record": {"model": "5e" * 32}}
    deployment = Deployment.of(SCHEMA, scheme="table/differences", record=held.record, **parameters)
    keys = [SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))).public for n in (1, 2)]
    return sign_terms(make_terms(held, deployment, keys=keys, service="vectors"), ADDRESSES, issuer())


def signed(held: Database) -> list[bytes]:
    """Return every record with its signature behind it, as a row's order in the bundle has them."""
    return [unpackage(bytes(package)) for package in held.served]


def made() -> dict[str, Any]:
    """Return the file: receipts of rows, cells and regions, with the question and without."""
    cases = []
    for kind, some, values in (
        ("row", [0], None), ("row", [2, 1], PERSON), ("row", [1], PERSON), ("cell", [2], PERSON),
        ("region", [0, 1], None), ("region", [1], PERSON), ("row", [1], FAR), ("region", [1, 0], FAR),
    ):  # fmt: skip
        held = database(kind)
        terms, records = issued(held), signed(held)
        chosen = [records[n] for n in some]
        receipt = receipts.make_receipt(terms, chosen, DATE, values)
        question = "without the question" if values is None else "with the question" + ", far" * (values is FAR)
        cases.append(
            {
                "why": f"{kind}, {len(some)} of them, {question}",
                "terms": {"terms": terms.text, "addresses": list(terms.addresses), "signature": terms.signature},
                "signed": [each.hex() for each in chosen],
                "date": DATE,
                "values": values,
                "receipt": receipt.encode().decode(),
            }
        )
    return {"issuer": issuer().public.hex(), "receipts": cases}


def _at(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _at(value[key], (*path, key))


def _flipped(value: Any) -> list[Any]:
    """Return other values in the place of one: of another content, and of another type."""
    if isinstance(value, str):
        middle = len(value) // 2
        other = "0" if value[middle : middle + 1] != "0" else "1"
        return [value[:middle] + other + value[middle + 1 :], value + " ", value + "0", "", None, 7]
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int | float):
        return [2 * value + 1, str(value), None, [value]]
    if value is None:
        return [0, "x"]
    if isinstance(value, list):
        return [value[1:], [*value, *value[:1]], [*value, "x"], {}]
    return [dict(list(value.items())[1:]), value | {"more": 1}, []]


def mutated(text: str, *, forged: bool) -> Iterator[tuple[str, str]]:
    """Yield receipts in which one thing is otherwise, each with what that is; `forged`: the check is computed anew."""
    whole = json.loads(text)
    for path in _at(whole):
        name = ".".join(map(str, path))
        if forged and (path in (("check",), ("date",)) or path[0] == "question"):
            continue  # those are the word of whoever shows the receipt
        at = copy.deepcopy(whole)
        holder = at
        for key in path[:-1]:
            holder = holder[key]
        for other in _flipped(holder[path[-1]]):
            if forged and path == ("answers",) and 0 < len(other) < len(whole["answers"]):
                continue  # nothing shows how many records were answered
            holder[path[-1]] = other
            if forged:
                body = {key: value for key, value in at.items() if key != "check"}
                at["check"] = hashlib.sha256(receipts._written(body).encode()).hexdigest()
            yield f"{name}: {other!r}"[:80], receipts._written(at) + "\n"


def damaged(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts that are no receipt, or not written as one."""
    compact = json.dumps(json.loads(text), ensure_ascii=False)
    yield from {
        "nothing": "", "no JSON": "receipt", "null": "null", "a list": "[]", "an object": "{}", "deep": "[" * 100_000,
        "compact": compact, "no end of line": text[:-1], "a line more": text + "\n", "a space more": " " + text,
        "a field twice": text.replace('"date"', f'"date": "{DATE}",\n "date"', 1),
        "an escape": text.replace("vectors", "v\\u0065ctors", 1), "cut short": text[: len(text) // 2],
        "no such day": text.replace(DATE, "2027-02-30", 1),
    }.items()  # fmt: skip
