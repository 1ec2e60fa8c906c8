"""Make `vectors/forms.json`: values as levels, preferences as costs, and a conversation for each form and reveal.

People and rows have values between the levels, and every ticket's order differs from the rows' own order.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from counterveil import Boolean, Categorical, Database, Deployment, Numeric, Ordinal, Preferences, Schema
from counterveil.applicant.ask import compile_question
from counterveil.crypto.keys import Issuer
from counterveil.errors import NoMask, RuleNotKept
from counterveil.schemes.reveals import REVEALS
from counterveil.terms import wire
from counterveil.terms.published import deployment_of

COMMON = bytes(range(32, 64))
FIRST = 101  # the number of the first ticket
OPENED = [name for name, reveal in REVEALS.items() if reveal.protocol == "padded"]
STRETCHED = ("euclidean", "weighted", "fixed", "linear", "even_norm")

INCOME = Numeric(name="income", low=0, high=5000, step=500, unit="€", mad=800.0)
AGE = Numeric(name="age", low=18, high=65, points=(18.0, 25.0, 40.0, 65.0), mad=9.5, change="up")
JOB = Categorical(name="job", values=("clerk", "cook", "driver"), encoding="one-hot")
SCHOOL = Ordinal(name="school", values=("none", "basic", "middle", "higher"))
OWNER = Boolean(name="owner", effort=2, override=True)
NOTE = Numeric(name="note", low=0, high=9, levels=3, role="record", mad=1.0)
EVEN = Schema(features=(INCOME, AGE, NOTE, JOB, SCHOOL, OWNER))  # what every form can take
RATE = Numeric(name="rate", low=1, high=100, levels=8, log=True, mad=7.5)
SAVED = Numeric(name="saved", low=-200, high=800, levels=40, mad=150.0, missing="level", change="up")
HOME = Categorical(name="home", values=("own", "rent", "other", "none"), missing="level")
ROOMS = Categorical(name="rooms", values=(1, 2, 4))
TITLE = Categorical(name="title", values=("Dr",), change="never", override=True)
MIXED = Schema(features=(INCOME, RATE, AGE, NOTE, SAVED, JOB, HOME, SCHOOL, OWNER, TITLE))

ROWS: dict[str, list[Any]] = {
    "income": [4100.0, 2740.5, 1250, 3620, 4999.99, 2250],
    "age": [31, 47.5, 32.5, 65, 28, 52.25],
    "note": [1.25, 7.5, 4.0, 0.0, 8.875, 2.5],
    "job": ["clerk", "cook", "driver", "driver", "cook", "clerk"],
    "school": ["higher", "basic", "middle", "none", "higher", "middle"],
    "owner": [False, True, True, False, True, False],
    "rate": [3.7, 55.0, 1.0, 20.25, 99.5, 10.0],
    "saved": [-12.5, None, 310, 800, 37.5, None],
    "home": ["rent", "own", None, "none", "own", "other"],
    "title": ["Dr"] * 6,
    "ok": [True] * 6,
}
PERSON: dict[str, Any] = {"income": 2250, "age": 29.3, "job": "driver", "school": "basic", "owner": False}
OTHERS: dict[str, Any] = {"rate": 7.3, "saved": 62.5, "home": "rent", "title": "Dr"}

PEOPLE: list[dict[str, Any]] = [
    PERSON | OTHERS,
    PERSON | OTHERS | {"income": 1250, "age": 18, "rate": 1, "saved": None, "home": None},
    PERSON | OTHERS | {"income": 5000.000004, "age": 65, "rate": 100, "saved": -200, "home": "none", "owner": True},
    PERSON | OTHERS | {"income": 750, "age": 32.5, "rate": 31.6, "saved": 787.5, "school": "none"},
]
WISHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "weights": {"weights": {"income": 3, "job": 10}},
    "constraints": {
        "immutable": ["school"],
        "ranges": {"income": [1700, 4300], "saved": [None, 100], "rate": [5, None]},
        "decrease_only": ["rate"],
        "forbidden": {"job": ["cook"], "income": [3000, 3600]},
    },
    "a range of levels": {"ranges": {"school": ["basic", "middle"], "owner": [True, None]}},
    "a range that nothing is in": {"ranges": {"income": [5100, None], "rate": [30, 20]}},
    "only up": {"increase_only": ["income", "saved", "school"]},
    "may become missing": {"missing": ["saved", "home"]},
    "override": {"override": ["owner", "title"], "weights": {"owner": 1}},
    "l1": {"metric": "l1", "weights": {"school": 2}},
    "mad": {"metric": "mad", "weights": {"rate": 4}},
    "heom": {"metric": "heom"},
    "fewest": {"metric": "fewest", "weights": {"income": 5}, "immutable": ["school"]},
    "costs of one's own": {"costs": {"school": {"none": 0.25, "higher": 0.1}, "income": {2000: 0.5}}},
}
UNITS: list[int | None] = [None, 16]

MADE = {"immutable": ["school"], "weights": {"income": 3}}
ASKED: dict[str, dict[str, Any]] = {  # the preferences of conversations, by form
    "table": {"ranges": {"income": [2000, None]}, "weights": {"income": 3}, "decrease_only": ["rate"]},
    "euclidean": {},
    "fixed": {"immutable": ["school"]},
    "weighted": MADE,
    "linear": MADE | {"override": ["owner"]},
    "even_norm": MADE,
}
Effects = Callable[..., dict[str, Any]]


def forms(effects: Effects, issuer: Issuer) -> dict[str, Any]:
    """Return the file; `effects` makes a conversation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuleNotKept)  # a rule that a form cannot keep is left out, as the page says
        warnings.simplefilter("ignore", NoMask)
        return {"levels": levels(), "costs": costs(), "conversations": dict(conversations(effects, issuer))}


def levels() -> list[dict[str, Any]]:
    """Return features with values on, between and beyond levels: the level of each, and the value of each level."""
    tried: dict[Any, list[Any]] = {
        INCOME: [0, 249.9, 250, 250.1, 750, 1250, 1750, 2260, 5000, 5000.000004, -0.000004],
        AGE: [18, 21.4, 21.5, 21.6, 32.5, 52.5, 65],
        RATE: [1, 1.3, 7.3, 10, 31.6, 74.9, 75, 100],
        SAVED: [-200, -187.5, -12.5, 0.1, 62.5, 787.5, 800, None],
        NOTE: [0, 1.5, 4.5, 7.5],
        HOME: ["own", "other", None],
        ROOMS: [1, 2.0, 4],
        SCHOOL: ["none", "higher"],
        OWNER: [False, True, 0, 1],
        TITLE: ["Dr"],
    }
    return [
        {
            "feature": Schema(features=(feature,)).to_builtins()["feature"][0] if feature.role == "feature" else
            EVEN.to_builtins()["feature"][2],
            "values": [[value, int(feature.codes([value])[0])] for value in values],
            "stand_for": [feature.value(code) for code in range(feature.largest + 1)],
        }
        for feature, values in tried.items()
    ]  # fmt: skip


def costs() -> dict[str, Any]:
    """Return the tables of a `table` deployment for several people, preferences and units of cost."""
    cases = []
    for unit in UNITS:
        chosen: dict[str, Any] = {} if unit is None else {"options": {"form": {"unit": unit}}}
        made = Deployment.of(MIXED, scheme="table/differences", **chosen)
        for number, person in enumerate(PEOPLE):
            for name, wishes in WISHES.items():
                _, found = compile_question(made, MIXED.codes(person), Preferences(**wishes))
                tables = [" ".join(map(str, table)) for table in found.tables]
                cases.append({"unit": unit, "person": number, "preferences": name, "tables": tables})
    wishes = {name: _plain(each) for name, each in WISHES.items()}
    return {"schema": MIXED.to_builtins(), "max_weight": 10, "people": PEOPLE, "preferences": wishes, "cases": cases}


def _plain(wishes: dict[str, Any]) -> dict[str, Any]:
    """Write costs of one's own as pairs, since a name in JSON is no number."""
    own = {name: [[value, cost] for value, cost in table.items()] for name, table in wishes.get("costs", {}).items()}
    return wishes | ({"costs": own} if own else {})


def conversations(effects: Effects, issuer: Issuer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a conversation for each form and reveal that servers offer."""
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for form in ("table", *STRETCHED):
        asked += [(form, reveal, {"d_min": 40} if REVEALS[reveal].masked else {}) for reveal in OPENED]
    for form in ("table", "linear", "even_norm"):
        asked += [(form, reveal, {}) for reveal in ("sealed", "sealed_record")]
    joint = {"protocol": "joint", "options": {"protocol": {"seeded": True}}}
    asked += [("linear", "sealed", joint)]
    asked += [("even_norm", "sealed", joint | {"options": {"protocol": {"seeded": True, "rounds": "few"}}})]
    asked += [("table", "differences", {"record": "cell", "k": 2}), ("linear", "distances", {"shuffle": False})]
    asked += [("weighted", "distances", {"servers": 5, "collusion": 2})]
    asked += [("linear", "distances", {"servers": 4, "collusion": 2, "asked_of": (1, 2, 4)})]
    asked += [("table", "sealed", {"servers": 3, "collusion": 1, "asked_of": (2, 3)})]
    for number, (form, reveal, chosen) in enumerate(asked, FIRST):
        said = [f"{name} = {value}" for name, value in chosen.items() if name not in ("options", "d_min")]
        if "options" in chosen:
            said += [f"{name} = {value}" for name, value in chosen["options"]["protocol"].items()]
        yield ", ".join([f"{form}/{reveal}", *said]), _conversation(effects, issuer, number, form, reveal, **chosen)


def _conversation(
    effects: Effects, issuer: Issuer, number: int, form: str, reveal: str, *, record: Any = "row", **chosen: Any
) -> dict[str, Any]:
    schema = MIXED if form == "table" else EVEN
    held = Database.build({name: ROWS[name] for name in (*schema.names, "ok")}, schema, accepted="ok", record=record)
    held = held.sign(issuer)
    person = PERSON | OTHERS if form == "table" else PERSON
    given: dict[str, Any] = {"scheme": f"{form}/{reveal}", "max_weight": 5} | chosen
    made = effects(number, held, person=person, preferences=ASKED[form], **given)
    return made | {"rows": held.codes.tolist(), "order": _order(made, held)}


def _order(made: dict[str, Any], held: Database) -> list[int] | None:
    """Return which row stands at each position, -1 for none; None where no position is told."""
    terms = wire._from_json("terms", made["terms"].encode(), wire.Terms)
    ticket = wire.decode_ticket_text(made["ticket"])
    scheme = deployment_of(terms).scheme.among(ticket.claims.servers)
    common = scheme.common(COMMON, hashlib.sha256(made["terms"].encode()).digest(), ticket.signed)
    if scheme.protocol.linked:
        return None
    order = scheme.protocol.order(scheme, held.rows, common)
    return list(range(held.rows)) if order is None else np.asarray(order).tolist()
