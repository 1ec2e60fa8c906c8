"""A form from another package needs one file and one entry point. It then deploys and explains like any other."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from counterveil import (
    FORMS,
    REVEALS,
    Counterfactual,
    Database,
    Deployment,
    Field,
    NoCounterfactual,
    Question,
    Schema,
    local,
    make_scheme,
    retrieve,
)
from counterveil.algebra.arrays import Vector
from counterveil.algebra.field import Residues
from counterveil.errors import BrokenPlugin, Disagreement, NotOffered, UnknownName
from counterveil.research.attacks import attack_deployment
from counterveil.research.leakage import Population, estimate, exact
from counterveil.research.oracles import in_process
from counterveil.schema.schema import Chosen
from counterveil.schemes.conformance import check_kind, check_protocol, check_reveal
from counterveil.schemes.forms import Form, form_named
from counterveil.schemes.reveals import Opened
from counterveil.terms import wire
from counterveil.terms.parameters import Parameters
from counterveil.terms.published import deployment_of, read_terms
from enumeration import database_private, feasible, rows_for, tiny, told_apart, user_private
from plugins import EXAMPLE, install
from service import cli, numbers_database, running, terms_command

pytestmark = pytest.mark.slow

PERCENT = 30
SCHEMA = """
version = 1

[[feature]]
kind = "numeric"
name = "income"
low = 0
high = 10
step = 1

[[feature]]
kind = "numeric"
name = "savings"
low = 0
high = 20
step = 1

[[feature]]
kind = "categorical"
name = "job"
values = ["clerk", "cook", "smith"]

[deployment]
scheme = "capped_l1/differences"

[deployment.options.form]
percent = 30
"""
PERSON = {"income": 2, "savings": 3, "job": "cook"}


@pytest.fixture
def capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Form]:
    install(tmp_path / "site", monkeypatch)
    return form_named("capped_l1")


def a_database(rows: int = 60) -> tuple[Database, list[dict[str, Any]]]:
    rng = np.random.default_rng(11)
    jobs = ["clerk", "cook", "smith"]
    people = [
        {"income": int(rng.integers(0, 11)), "savings": int(rng.integers(0, 21)), "job": jobs[rng.integers(0, 3)]}
        for _ in range(rows)
    ]
    frame = {name: [person[name] for person in people] for name in ("income", "savings", "job")}
    return Database.build(frame, Schema.from_toml(SCHEMA), lambda _: [True] * rows), people


def cost(person: dict[str, Any], row: dict[str, Any], weights: dict[str, int]) -> float:
    """Capped L1 by its definition, in units of a whole range."""
    away = {
        "income": abs(person["income"] - row["income"]) / 10,
        "savings": abs(person["savings"] - row["savings"]) / 20,
        "job": float(person["job"] != row["job"]),
    }
    return float(sum(weights.get(name, 1) * min(apart, PERCENT / 100) for name, apart in away.items()))


WISHES: list[dict[str, Any]] = [
    {},
    {"weights": {"income": 9}},
    {"immutable": ["job"], "weights": {"savings": 4}},
    {"ranges": {"income": (5, 6)}, "increase_only": ["savings"]},
    {"forbidden": {"job": ["cook", "clerk"]}},
]


def allowed(row: dict[str, Any], wishes: dict[str, Any]) -> bool:
    low, high = wishes.get("ranges", {}).get("income", (0, 10))
    return (
        low <= row["income"] <= high
        and ("job" not in wishes.get("immutable", []) or row["job"] == PERSON["job"])
        and ("savings" not in wishes.get("increase_only", []) or row["savings"] >= PERSON["savings"])
        and row["job"] not in wishes.get("forbidden", {}).get("job", [])
    )


def assert_nearest(found: Any, people: list[dict[str, Any]], wishes: dict[str, Any]) -> None:
    best = min(cost(PERSON, row, wishes.get("weights", {})) for row in people if allowed(row, wishes))
    assert isinstance(found, Counterfactual)
    assert found.cost == pytest.approx(best)
    assert sum(change.cost for change in found.changes) == pytest.approx(best)


def test_it_deploys_over_http_and_explains_an_answer(tmp_path: Path, capped: type[Form]) -> None:
    """Real server processes, which load the form on their own; every answer against a search in the clear."""
    database, people = a_database()
    with running(tmp_path, database, 2) as service:
        said = service.issued.terms.parameters
        assert said.scheme == "capped_l1/differences"
        assert said.options == {"form": {"percent": PERCENT}}
        with service.client() as client:
            assert type(client.deployment.scheme.form) is capped
            for wishes in WISHES:
                found = client.ask(PERSON, wishes, ticket=service.ticket(client))
                assert_nearest(found, people, wishes)
            nothing = client.ask(PERSON, {"ranges": {"income": (99, None)}}, ticket=service.ticket(client))
            assert isinstance(nothing, NoCounterfactual)
            assert nothing.text() == (
                "No accepted row satisfies your constraints. Relaxing this one would help: income must lie in a range."
            )
            with pytest.raises(NotOffered, match="l1 in a deployment of capped_l1, expected a table deployment"):
                client.ask(PERSON, metric="l1", ticket=service.ticket(client))
        tickets = tmp_path / "tickets"
        tickets.write_text("\n".join(service.ticket().text() for _ in range(30)))
        servers = [part for url in service.urls for part in ("--server", url)]
        report = cli("attack", service.bundle, "--json", "--probes", 3, "--tickets", tickets, *servers)
        assert report.returncode == 0, report.stderr
        assert {each["attack"] for each in json.loads(report.stdout)} == {"linking orders", "probing"}


@pytest.mark.parametrize("reveal", ["distances", "sealed"])
def test_every_reveal_takes_it(reveal: str, capped: type[Form]) -> None:
    database, people = a_database()
    options = {"form": {"percent": PERCENT}}
    bank = local(database, f"capped_l1/{reveal}", options=options)
    for wishes in WISHES:
        assert_nearest(bank.ask(PERSON, wishes), people, wishes)


def test_leakage_and_attacks_run_on_a_bundle_of_it(tmp_path: Path, capped: type[Form]) -> None:
    database, _ = a_database(30)
    database.save(tmp_path / "bundle")
    leaked = cli("leakage", tmp_path / "bundle", "--json", "--samples", 10)
    assert leaked.returncode == 0, leaked.stderr
    found = {(r["reveal"], r["shuffle"]): r for r in json.loads(leaked.stdout)["reveals"]}
    assert found["distances", False]["bits"] > found["differences", True]["bits"] > found["sealed", True]["bits"] == 0
    reports = cli("attack", tmp_path / "bundle", "--json", "--probes", 5)
    assert reports.returncode == 0, reports.stderr
    deployed = [r for r in json.loads(reports.stdout) if r["against"].startswith("capped_l1/differences, shuffled")]
    assert [r["attack"] for r in deployed] == ["linking orders", "probing"]


def test_it_conforms_and_its_privacy_is_enumerated(capped: type[Form]) -> None:
    check_kind(capped)
    example = capped.example()
    for reveal in ("distances", "sealed"):
        assert user_private(tiny(example.form, reveal), example.questions)
        assert told_apart(tiny(example.form, reveal), example.questions)
    for reveal in ("distances", "differences", "masked"):
        scheme = tiny(example.form, reveal, shuffle=True)
        assert feasible(example.form, reveal)
        assert database_private(scheme, rows_for(scheme))
    assert not database_private(tiny(example.form, "differences"), 2, unfilled=[1])


def test_retrieve_takes_it_by_name(capped: type[Form]) -> None:
    found = retrieve([[9, 0], [3, 3]], [0, 0], largest=10, scheme="capped_l1/distances", percent=40, weights=[1, 3])
    assert found.revealed.tolist() == [4, 3 + 9]


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    def make(name: str, code: str, points: str) -> None:
        source = tmp_path / f"source-{name}"
        source.mkdir()
        (source / f"{name}.py").write_text(code)
        (source / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "1"\n[project.entry-points."counterveil.forms"]\n{points}\n'
        )
        install(tmp_path / f"site-{name}", monkeypatch, source)

    return make


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("Mine = 3", "got 3, expected a Form with every method, called mine"),
        ("from counterveil.schemes.forms.table import Table as Mine", "expected a Form with every method, called mine"),
        ("from counterveil import Form\nclass Mine(Form):\n    name = 'mine'", "expected a Form with every method"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_package_gives_one_clear_error(plugin: Any, code: str, says: str) -> None:
    plugin("broken_form", code, 'mine = "broken_form:Mine"')
    with pytest.raises(BrokenPlugin, match=re.escape(says)) as raised:
        form_named("mine")
    assert str(raised.value).startswith("form mine, from broken_form:Mine: got")
    assert retrieve([[1]], [1], largest=2).index == 0  # other forms still work


def test_no_package_takes_the_place_of_a_form_that_is_there(plugin: Any) -> None:
    plugin("cuckoo", "raise SystemExit('never imported')", 'table = "cuckoo:Mine"')
    assert form_named("table") is FORMS["table"]


def test_two_packages_with_one_name_are_refused(plugin: Any, capped: type[Form]) -> None:
    plugin("another", "", 'capped_l1 = "another:Mine"')
    with pytest.raises(BrokenPlugin, match="form capped_l1: got two packages that bring it, expected one"):
        form_named("capped_l1")


def test_an_unknown_form_names_those_that_are_known(capped: type[Form]) -> None:
    with pytest.raises(UnknownName, match=r"form: got cubic, expected one of .*, table, capped_l1, or the package"):
        Deployment.of(Schema.from_toml(SCHEMA), scheme="cubic/differences")


# --- parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options", "says"),
    [
        ("capped_l1/differences", {"form": {"cap": 3}}, "option: got 'cap', expected one of percent, for the form"),
        ("capped_l1/differences", {"form": {"percent": 0}}, r"percent: got 0, expected 1 to 100"),
        ("capped_l1/differences", {"reveal": {"width": 1}}, "options: got reveal = .*, expected those of the form"),
        ("capped_l1/differences", {"from": {"percent": 1}}, "options: got from = .*, expected those of the form"),
        ("table/differences", {"form": {"percent": 3}}, "option: got 'percent', expected none, for the form table"),
        ("even_norm/differences", {"form": {"norm": 6}}, "option: got 'norm', expected the parameter of that name"),
    ],
)
def test_unknown_options_are_refused(capped: type[Form], scheme: str, options: Any, says: str) -> None:
    schema = Schema.from_toml(SCHEMA.replace('kind = "categorical"', 'kind = "categorical"\nencoding = "one-hot"'))
    with pytest.raises(ValueError, match=says):
        Deployment.of(schema, scheme=scheme, options=options)


def test_options_travel_in_the_terms_and_are_absent_where_there_are_none(capped: type[Form]) -> None:
    database, _ = a_database()
    chosen = Deployment.serving(database)
    assert Deployment.of(database.schema, record=database.record, **chosen.parameters().chosen()) == chosen
    assert b"options" not in msgspec.json.encode(Deployment.of(database.schema).parameters())
    other = Deployment.serving(database, scheme="capped_l1/differences").parameters()
    assert other.options == {"form": {"percent": 50}}  # another scheme, even of the same name, has its own options


def test_terms_with_a_form_that_is_not_installed_are_refused() -> None:
    terms = json.loads((EXAMPLE.parent.parent / "vectors" / "service.json").read_text())["manifests"][0]
    made = wire.decode_manifest(json.dumps(terms).encode()).terms
    changed = msgspec.structs.replace(made.parameters, scheme="capped_l1/differences")
    with pytest.raises(Disagreement, match="the servers' terms are refused: form: got capped_l1, expected one of"):
        deployment_of(msgspec.structs.replace(made, parameters=changed))


@pytest.mark.parametrize(("more", "percent"), [([], 30), (["--option", "form.percent=20"], 20)])
def test_terms_on_the_command_line_take_options(
    tmp_path: Path, capped: type[Form], more: list[str], percent: int
) -> None:
    terms = terms_command(tmp_path, a_database(5)[0])
    made = terms(*more)
    assert made.returncode == 0, made.stderr
    assert read_terms(tmp_path / "terms").terms.parameters.options == {"form": {"percent": percent}}
    wrong = terms("--option", "percent")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "counterveil: --option: got 'percent', expected PART.NAME=VALUE, such as form.percent=50\n",
    )


def test_a_schema_may_choose_every_parameter() -> None:
    assert set(Chosen.__struct_fields__) == {*Parameters.__struct_fields__, "download_limit", "dealer"}


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_page_shows_the_example_as_it_is() -> None:
    """Every line of code in docs/adding.md stands in the example, in that order, and its first block is the project."""
    page = (EXAMPLE.parent.parent / "docs" / "adding.md").read_text()
    (project,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    assert project in (EXAMPLE / "pyproject.toml").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    module, at = (EXAMPLE / "capped_l1.py").read_text(), 0
    assert len(blocks) > 2
    for block in blocks:
        assert block in module[at:], block
        at = module.index(block, at) + len(block)
    for name in [*vars(Form), *Form.__abstractmethods__]:
        if not name.startswith("_"):
            assert f"`{name}`" in page, name


def test_the_page_s_sessions_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(FORMS, "capped_l1", raising=False)
    known = set(FORMS)
    result = doctest.testfile(str(EXAMPLE.parent.parent / "docs" / "adding.md"), module_relative=False)
    for name in set(FORMS) - known:  # what the page registers
        del FORMS[name]
    assert result.attempted > 0
    assert result.failed == 0


# --- a reveal of one's own ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToTheFirst(Opened):
    """Every cost less the first one: a linear map that the package does not have."""

    name: str = "to_the_first"
    differences: bool = True

    def linear(self, field: Residues, values: Vector) -> Vector:
        return field.sub(values[1:], np.broadcast_to(values[:1], values[1:].shape))

    def relative(self, field: Residues, revealed: Vector) -> Vector:
        return np.concatenate([[0], field.signed(revealed)])


def test_a_reveal_is_one_class_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another line it deploys, runs on real servers, explains, and is measured, attacked and checked."""
    monkeypatch.setitem(REVEALS, "to_the_first", ToTheFirst())
    database = numbers_database(40, 3)
    person = {"x0": 3, "x1": 9, "x2": 14}
    bank = local(database, "table/to_the_first")
    found, expected = bank.ask(person), local(database, "table/distances").ask(person)
    assert isinstance(found, Counterfactual)
    assert isinstance(expected, Counterfactual)
    assert found.cost == expected.cost
    assert "table/to_the_first" in repr(bank)
    scheme = make_scheme("table/to_the_first", largest=9, d=2)
    check_reveal(scheme.reveal, scheme.field, np.array([5, 9, 2, 2, 7]), scheme.common(bytes(32), b"", b"t"))
    rows, common = [[1, 2], [3, 4], [0, 9]], scheme.common(bytes(32), b"", b"t")
    check_protocol(scheme, rows, Question([2, 2]), common)
    cases = [Population.of(np.array([0, 1, 1, 4]))]
    measured = estimate(scheme.reveal, cases, 3, generator=np.random.default_rng(1))
    assert measured.method == "bounded"
    assert measured.high >= exact(scheme.reveal, Field(11), cases, 3).bits > 0
    assert attack_deployment(in_process(database, bank.deployment), database, tickets=2)[0].last.rows > 0
