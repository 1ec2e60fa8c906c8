"""Answers about regions: what costs are counted in, fewest changes first, what is said, and of which model."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier

import make_vectors
from counterveil import Categorical, Counterfactual, Database, Deployment, Numeric, Preferences, Schema, local
from counterveil.applicant.ask import compile_question
from counterveil.applicant.explain import WayIn
from counterveil.cli.institution import _class
from counterveil.crypto.keys import Issuer, SigningKey
from counterveil.errors import InvalidBundle, NotOffered, OutOfRange, UnknownName, WrongType
from counterveil.institution import bundle
from counterveil.institution.regions import load_model
from counterveil.research.attacks import attack_all
from counterveil.research.datasets import german_credit
from counterveil.schema.frames import Columns
from counterveil.schema.layouts import Record, decode, encode
from counterveil.terms.parameters import Certificate
from counterveil.terms.published import deployment_of, make_terms
from mixed import LAYOUT, MIXED, boxes, people, wishes
from service import cli as run
from service import running

_, CREDIT = german_credit()


# --- costs ---------------------------------------------------------------------------------------------------------


def test_costs_of_regions_have_twenty_bits() -> None:
    """German credit: 25 bits where the unit is the square of the largest range."""
    rows = Deployment.of(CREDIT, scheme="table/sealed")
    regions = Deployment.of(CREDIT, scheme="table/sealed", record="region")
    assert (rows.scheme.field.bits, regions.scheme.field.bits) == (25, 20)
    assert regions.measure() == "262 for a change across a whole range, 1,048,020 at most; numbers have 20 bits"
    larger = Deployment.of(CREDIT, scheme="table/sealed", record="region", options={"form": {"unit": 263}})
    assert larger.scheme.field.bits == 21  # so 262 was the largest
    for deployment in (rows, regions, larger):
        again = Deployment.of(CREDIT, record=deployment.record, **deployment.parameters().chosen())
        assert again == deployment
    assert rows.parameters().options is msgspec.UNSET
    assert regions.parameters().options == {"form": {"unit": 262}}


def test_a_bound_counts_features_and_not_codes() -> None:
    deployment = Deployment.of(MIXED, record="region")
    features, columns = len(MIXED.cost_features), len(LAYOUT.held)
    assert (features, columns) == (5, 8)
    assert deployment.scheme.form.bound == features * deployment.tariff.forbidden


def test_regions_of_too_many_sets_are_refused() -> None:
    """A server's schema must not make an applicant count up a cost for billions of sets."""
    wide = tuple(Categorical(name=f"f{n}", values=tuple(range(1500))) for n in range(8))
    with pytest.raises(OutOfRange, match="18,012,008 sets of levels"):
        Deployment.of(Schema(features=wide), record="region")
    Deployment.of(Schema(features=wide[:7]), record="region")
    Deployment.of(Schema(features=wide))
    deep = Schema(features=(Numeric(name="deep", low=0, high=1, levels=4000),))
    Deployment.of(deep, record="region")
    with pytest.raises(OutOfRange, match="deep"):
        Deployment.of(deep, record="region", options={"record": {"intervals": True}})


def test_the_unit_is_refused_where_it_cannot_be() -> None:
    for wrong in (0, -1, 2**33):
        with pytest.raises(OutOfRange, match="options, unit"):
            Deployment.of(CREDIT, options={"form": {"unit": wrong}})
    numbers = Schema(features=(Numeric(name="income", low=0, high=9, step=1),))
    with pytest.raises(UnknownName, match="unit"):
        Deployment.of(numbers, scheme="weighted/differences", options={"form": {"unit": 16}})


@given(st.integers(1, 2000), people())
def test_no_change_is_free_however_coarse_the_unit(unit: int, own: list[int]) -> None:
    deployment = Deployment.of(MIXED, record="region", options={"form": {"unit": unit}})
    _, costs = compile_question(deployment, np.array(own), Preferences())
    for table, code in zip(costs.tables, costs.own.tolist(), strict=True):
        assert table[code] == 0
        assert (np.delete(table, code) > 0).all()


@given(st.lists(boxes(), min_size=2, max_size=12), people(), wishes(), st.integers(1, 10))
def test_fewest_changes_come_first_then_the_least_cost(
    regions: list[list[int]], own: list[int], preferences: Preferences, unit: int
) -> None:
    """Against the definition; costs are compared in the steps that the bound leaves."""
    options: dict[str, dict[str, Any]] = {"form": {"unit": unit}, "record": {"intervals": True}}
    deployment = Deployment.of(MIXED, scheme="table/distances", record="region", options=options)
    question, costs = compile_question(deployment, np.array(own), replace(preferences, metric="fewest"))
    paid = deployment.scheme.form.costs(deployment.rows(np.array(regions)), question).tolist()
    assert max(paid) <= deployment.scheme.form.bound
    ways = []
    for row, cost in zip(regions, paid, strict=True):
        levels = LAYOUT.nearest(costs, Record(np.array(row), {}))
        if not costs.violated(levels):
            ways.append((int((levels != costs.own).sum()), costs.price(levels, unit), cost))
            assert cost < deployment.tariff.forbidden
    for changes, exact, cost in ways:
        for other_changes, other_exact, other_cost in ways:
            if changes < other_changes:
                assert cost < other_cost
            elif changes == other_changes and cost < other_cost:
                most = max(float(t.max()) for t in costs.exact or [])
                assert exact <= other_exact + changes * most / 7  # a step is at most a seventh of the dearest change


def test_fewest_is_refused_where_no_step_is_left() -> None:
    features = tuple(Numeric(name=f"f{n}", low=0, high=1, levels=2) for n in range(120))
    deployment = Deployment.of(Schema(features=features), max_weight=1)
    with pytest.raises(NotOffered, match="metric: got fewest, over 120 features"):
        compile_question(deployment, np.zeros(120, dtype=int), Preferences(metric="fewest"))
    few = Preferences(metric="fewest", immutable=[f"f{n}" for n in range(60)])
    compile_question(deployment, np.zeros(120, dtype=int), few)
    chosen = Deployment.of(Schema(features=features), max_weight=1, options={"form": {"unit": 16}})
    compile_question(chosen, np.zeros(120, dtype=int), Preferences(metric="fewest"))


def test_fewest_prefers_one_large_change_to_two_small_ones() -> None:
    schema = Schema(features=tuple(Numeric(name=name, low=0, high=10, step=1) for name in "ab"))
    bank = local(Database.build({"a": [9, 1], "b": [0, 1], "ok": [1, 1]}, schema, accepted="ok"))
    near, few = (bank.ask({"a": 0, "b": 0}, metric=metric) for metric in ("l2", "fewest"))
    assert near.text() == "Raise a from 0 to 1 and raise b from 0 to 1."
    assert few.text() == "Raise a from 0 to 9."
    assert isinstance(few, Counterfactual)
    assert few.cost == pytest.approx(0.81)  # as by l2, whatever the question counts in


# --- what is said --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database() -> Database:
    """A model that can be read: accepted are durations up to 24 months with savings of 500 or more, except in Kiel."""
    schema = Schema(
        features=(
            Numeric(name="duration", low=0, high=48, step=6, unit="months"),
            Numeric(name="savings", low=0, high=1000, step=100, unit="DM"),
            Categorical(name="town", values=("Ulm", "Bonn", "Kiel")),
        )
    )
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {
        "duration": rng.integers(0, 9, 400) * 6,
        "savings": rng.integers(0, 11, 400) * 100,
        "town": rng.choice(["Ulm", "Bonn", "Kiel"], 400).tolist(),
    }
    verdict = (data["duration"] <= 24) & (data["savings"] >= 500) & (np.array(data["town"]) != "Kiel")
    encoded = make_column_transformer((OrdinalEncoder(), ["town"]), remainder="passthrough")
    model = make_pipeline(encoded, DecisionTreeClassifier(random_state=0))
    return Database.build(data, schema, model.fit(Columns(data).select(schema.names), verdict), record="region")


PERSON = {"duration": 36, "savings": 200, "town": "Kiel"}


def test_a_way_in_is_said_in_every_form(database: Database) -> None:
    found = local(database).ask(PERSON)
    assert isinstance(found, WayIn)
    assert found.certificate == database.certificate
    assert found.certificate is not None
    said = f"It is certified that the model with the digest {found.certificate.model[:16]}… accepts everybody in this"
    assert found.certificate.text() == f"{said} region."
    assert found.text() == "Town: Ulm or Bonn; savings at least 600 DM; duration at most 24 months."
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["certificate"] == {"model": found.certificate.model, "text": found.certificate.text()}
    assert [change["inside"] for change in plain["changes"]] == [
        {"values": ["Ulm", "Bonn"], "missing": False},
        {"lowest": 600, "highest": 1000, "missing": False},
        {"lowest": 0, "highest": 24, "missing": False},
    ]
    assert found.to_frame("polars")["to"].to_list() == ["Ulm or Bonn", "at least 600 DM", "at most 24 months"]
    page = found._repr_html_()
    assert found.certificate.text() in page
    assert "at most 24 months" in page
    assert "everything else" not in page  # there is nothing else

    fewer = local(database).ask(PERSON | {"town": "Ulm"})
    assert fewer.text() == "Savings at least 600 DM; duration at most 24 months; everything else may stay as it is."
    assert "<p>Everything else may stay as it is. It is certified" in fewer._repr_html_()


def test_a_drawing_has_a_band_where_values_are_inside(database: Database) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    found = local(database).ask(PERSON)
    assert isinstance(found, WayIn)
    ax = found.plot()
    bands = [line.get_xdata().tolist() for line in ax.lines if line.get_linewidth() == 11]
    assert bands == [[0.0, 0.5], [0.6, 1.0], [0.0, 0.5]]  # from below: duration, savings, town
    assert ax.get_xlabel().replace("\n", " ") == found.caption()
    dots = [tuple(points.get_offsets()[0].tolist()) for points in ax.collections]
    assert dots == [(0.75, 0), (0.5, 0), (0.2, 1), (0.6, 1), (1.0, 2), (0.5, 2)]


def test_regions_that_were_sampled_are_never_called_certified(database: Database) -> None:
    sampled = replace(database, certificate=Certificate("ab" * 32, sampled=3000, at_most=1000))
    found = local(sampled).ask(PERSON)
    assert isinstance(found, WayIn)
    assert "This is not certified: the model with the digest abababababababab… accepted 3,000 points" in found.caption()
    assert "it rejects at most 0.1 % of them" in found.caption()
    assert "It is certified" not in found._repr_html_()


def test_which_model_decides_is_in_the_terms_and_in_the_bundle(database: Database, tmp_path: Any) -> None:
    signed = database.sign(Issuer())
    signed.save(tmp_path / "regions")
    again = Database.open(tmp_path / "regions")
    assert again.certificate == database.certificate
    assert replace(database, certificate=Certificate("ab" * 32)).digest != database.digest
    deployment = Deployment.serving(again)
    terms = make_terms(again, deployment, keys=[SigningKey().public for _ in range(2)], service="test")
    assert deployment_of(terms) == deployment
    assert deployment.certificate == database.certificate
    with pytest.raises(WrongType, match="regions of another model"):
        Deployment.of(database.schema, record="region").check_serves(database)
    for wrong in ({"model": "ab"}, {"model": "AB" * 32}, {"sampled": 3}, {"model": "ab" * 32, "at_most": -1}):
        with pytest.raises(UnknownName, match="options"):
            Deployment.of(database.schema, record="region", options={"record": wrong})
    bare = database._manifest()
    with pytest.raises(InvalidBundle, match="certificate"):
        bundle._check_manifest(msgspec.structs.replace(bare, certificate=msgspec.UNSET), database.schema)


def test_records_are_read_as_they_were_written(database: Database) -> None:
    for codes, record in zip(database.codes, database.records, strict=True):
        read = decode(database.schema, "region", record.tobytes())
        assert read.codes.tolist() == codes.tolist()
        assert encode(database.schema, "region", codes[None], Columns({"none": [0]})).tobytes() == record.tobytes()


def test_attacks_rebuild_regions_where_costs_are_shown_and_not_where_they_are_sealed() -> None:
    found = {(report.attack, report.against): report.curve[-1].rows for report in attack_all(make_vectors.regions())}
    assert found["level reading", "table/distances"] == 1
    assert found["level reading", "table/differences"] == 1
    assert found["level reading", "table/sealed"] < 1
    assert any("as deployed" in against for _, against in found)


# --- from the command line -----------------------------------------------------------------------------------------


def test_commands_count_regions_and_not_rows(tmp_path: Path) -> None:
    make_vectors.regions().save(tmp_path / "bundle")
    for options in (("leakage", "--samples", 2, "--applicants", 1), ("attack", "--probes", 2)):
        said = run(options[0], tmp_path / "bundle", *options[1:])
        assert " regions" in said.stdout, said.stderr
        assert not re.search(r"\brows?\b", said.stdout)


@pytest.mark.slow
def test_from_a_models_file_to_an_answer(tmp_path: Path) -> None:
    """The institution builds, inspects and writes terms; the applicant asks running servers."""
    lightgbm = pytest.importorskip("lightgbm")
    frame, schema = german_credit()
    few = Schema(features=tuple(f for f in schema.features if frame[f.name].dtype.is_numeric()))
    people = frame.head(300).select(*few.names, "credit")
    people.write_csv(tmp_path / "people.csv")
    few.save(tmp_path / "people.toml")
    fitted = lightgbm.LGBMClassifier(n_estimators=10, num_leaves=4, verbose=-1)
    fitted.fit(people.select(few.names).to_pandas(), people["credit"] == "good")
    fitted.booster_.save_model(tmp_path / "model.txt")
    made = run("keygen", tmp_path / "keys")
    assert made.returncode == 0
    common = [
        "build", tmp_path / "people.csv", "--schema", tmp_path / "people.toml", "--record", "region",
        "--model", tmp_path / "model.txt", "--key", tmp_path / "keys" / "issuer.key", "-o", tmp_path / "people.bundle",
    ]  # fmt: skip
    built = run(*common, "--threshold", 0.7, "--regions", 20, "--min-people", 2, "--report")
    assert re.search(
        r"rejected people who were held out.*\n  [0-9,]+ rows: .* changes .*\n  20 regions: .* changes", built.stdout
    )
    assert built.returncode == 0, built.stderr
    assert "20 regions, from " in built.stdout
    assert "Class 1 of the model counts as accepted. If that is class 0," in built.stdout
    digest = hashlib.sha256((tmp_path / "model.txt").read_bytes()).hexdigest()
    assert f"Applicants are told: It is certified that the model with the digest {digest[:16]}… accepts" in built.stdout
    shown = run("inspect", tmp_path / "people.bundle").stdout
    assert f"the model                  {digest}" in shown
    assert "regions served             20" in shown
    assert "signed by                  the key " + made.stdout.splitlines()[-1] in shown
    assert re.search("numbers have [0-9]+ bits", shown)
    database = Database.open(tmp_path / "people.bundle")
    rare = database.counts.too_rare
    assert (f"{rare:,} regions with fewer than 2 accepted people" in shown) == (rare > 1)
    assert ("left out" in shown) == (rare > 0)
    scores = fitted.predict_proba(people.select(few.names).to_pandas())[:, 1]
    rejected = people.row(int(np.argmin(scores)), named=True)
    (tmp_path / "me.json").write_text(json.dumps({name: rejected[name] for name in few.names}))
    (tmp_path / "service").mkdir()
    with running(tmp_path / "service", database, 2) as service:
        where = ["--terms", service.folder / "terms", "--ticket", service.ticket().text()]
        answer = run("ask", *where, "--person", tmp_path / "me.json", "--metric", "fewest", "--json")
        table = run("ask", *where[:3], service.ticket().text(), "--person", tmp_path / "me.json")
        checked = " ".join(run("doctor", *where[:2]).stdout.split())
    assert "the nearest region; of the costs of all 20 regions nothing" in checked
    assert "rebuilds the regions faster than one region a ticket" in checked
    found = json.loads(answer.stdout)
    assert found["certificate"]["model"] == digest
    assert found["text"].endswith("; everything else may stay as it is.")
    moved = pl.DataFrame({name: [found["values"][name]] for name in few.names}).to_pandas()
    assert fitted.predict_proba(moved)[0, 1] > 0.7 > scores.min()
    assert "Everything else may stay as it is. It is certified that" in " ".join(table.stdout.split())

    named = run(*common, "--regions", 5, "--force", "--accepted", "credit=good")
    assert "Class 1 of the model counts as accepted: it agrees with credit=good for " in named.stdout
    assert _class([Columns(people)], few, load_model(tmp_path / "model.txt"), "credit=bad")[0] == 0
    for wrong, said in (
        (["--accepted", "credit=fine"], "column 'credit': got no row with 'fine', expected at least one"),
        (["--accepted", "credit=good", "--epsilon", "1"], "--accepted: got 'credit=good', expected 1 or 0, a class of"),
        (["--min-people", "100000"], "no region of 100000 people"),
    ):
        refused = run(*common, *wrong, "--force")
        assert refused.returncode == 2
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
    bare = run("build", tmp_path / "people.csv", "--schema", tmp_path / "people.toml", "--record", "region",
               "--accepted", "credit=good", "-o", tmp_path / "none")  # fmt: skip
    assert "model: got none, expected the model that decides" in bare.stderr
