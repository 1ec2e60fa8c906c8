"""`auto` is sealed at every size, and no default shows costs; how protocols are named, and what joint is said to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest

from counterveil import Database, Deployment, Schema
from counterveil.crypto.keys import SERVER_PUBLIC, Issuer, SigningKey, read_public
from counterveil.crypto.keys import write_server_keys as write_own
from counterveil.errors import Disagreement, InvalidInput, InvalidTerms, Malformed, NotOffered, UnknownName, WrongType
from counterveil.inprocess.bank import local
from counterveil.research.advice import advise, write_choice
from counterveil.research.attacks import attack_deployment
from counterveil.research.oracles import in_process
from counterveil.schemes.protocols import Joint, Size
from counterveil.schemes.reveals import Opened
from counterveil.terms import wire
from counterveil.terms.published import deployment_of, make_terms, read_terms, sign_terms
from service import cli, numbers_database, running, terms_command

JOINT = {"protocol": "joint", "options": {"protocol": asdict(Joint())}}


@pytest.fixture(scope="module")
def database() -> Database:
    return numbers_database(300, 3)


@pytest.fixture(scope="module")
def signed(database: Database) -> Database:
    return database.sign(Issuer())


def picked(database: Database, **given: Any) -> tuple[str, str]:
    scheme = Deployment.serving(database, **given).scheme
    return scheme.name, scheme.protocol.name


# --- what auto chooses ---------------------------------------------------------------------------------------------


def test_small_databases_need_no_link(database: Database) -> None:
    assert picked(database) == picked(database, scheme="auto") == ("table/sealed", "garbled")
    assert picked(database, linked=True) == ("table/sealed", "garbled")
    made = Deployment.serving(database)
    assert 200_000 < made.download(300) < 1 << 20
    assert "of the costs of all 300 rows nothing" in made.says(300)


@pytest.mark.parametrize(("options", "why"), [({"download_limit": 0}, "295 rows, 0.6 MiB down"), ({"k": 2}, "k = 2")])
def test_linked_servers_do_what_is_too_much_without(database: Database, options: dict[str, Any], why: str) -> None:
    assert picked(database, linked=True, **options) == ("table/sealed", "joint")
    with pytest.raises(NotOffered) as raised:
        Deployment.serving(database, **options)
    said = str(raised.value)
    assert f"got {why}" in said
    assert all(
        part in said for part in ("`--link URL`", "`counterveil terms --linked`", "`--scheme table/differences`")
    )
    assert "\n" not in said


def test_a_million_rows() -> None:
    class Many:
        schema, record, rows, certificate = numbers_database(3, 20).schema, "row", 1 << 20, None

    made = Deployment.serving(Many(), linked=True)  # type: ignore[arg-type]
    assert made.scheme.protocol == Joint()
    assert made.download(1 << 20) < 1000
    with pytest.raises(NotOffered, match=r"1,048,576 rows, [0-9,.]+ MiB down a question, for scheme = auto"):
        Deployment.serving(Many())  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", [None, 3])
@pytest.mark.parametrize("linked", [False, True])
def test_servers_that_collude_are_refused(database: Database, servers: int | None, linked: bool) -> None:
    with pytest.raises(NotOffered, match=r"collusion: got 2 for scheme = auto, expected 1.*--scheme table/differences"):
        Deployment.serving(database, collusion=2, servers=servers, linked=linked)


def test_auto_never_shows_costs(database: Database) -> None:
    """Whatever is asked for beside it, `auto` is sealed or an error."""
    asked: list[dict[str, Any]] = [{"k": k} for k in (1, 2, 5)] + [{"servers": n} for n in (2, 3, 4)]
    asked += [{"robust": 1, "servers": n} for n in (2, 3, 4)] + [
        {"shuffle": False},
        {"d_min": 4},
        {"download_limit": 0},
    ]
    asked += [{"dealer": "server"}, {"protocol": "garbled"}, {"protocol": "padded"}, {"max_weight": 1 << 30}]
    made = 0
    for options in asked:
        for linked in (False, True):
            try:
                reveal = Deployment.serving(database, linked=linked, **options).scheme.reveal
            except InvalidInput:
                continue
            made += 1
            assert not isinstance(reveal, Opened), options
    assert made > 10
    assert picked(database, scheme="table/distances") == ("table/distances", "padded")  # by name it is to be had


def test_a_schema_may_set_the_limit_and_the_protocol() -> None:
    text = numbers_database(30, 2).schema.to_toml() + "\n[deployment]\n"
    frame = {"x0": [1.0, 2.0, 3.0], "x1": [4.0, 5.0, 6.0], "ok": [True] * 3}

    def build(chosen: str) -> Database:
        return Database.build(frame, Schema.from_toml(text + chosen), accepted="ok")

    limited = build("download_limit = 0\n")
    assert picked(limited, linked=True) == ("table/sealed", "joint")
    assert picked(limited, download_limit=1) == ("table/sealed", "garbled")
    with pytest.raises(InvalidInput, match="download_limit"):
        picked(limited, download_limit=-1)
    named = build('protocol = "joint"\ndealer = "server"\n')
    assert Deployment.serving(named).scheme.protocol == Joint(dealer="server")
    assert Deployment.serving(named, dealer="applicant").scheme.protocol == Joint()
    assert Deployment.serving(named, protocol="joint").scheme.protocol == Joint()  # a dealer goes with its protocol
    options = {"protocol": {"dealer": "applicant", "seeded": True}}
    assert Deployment.serving(named, options=options).scheme.protocol == Joint(seeded=True)
    assert picked(named, protocol="garbled") == ("table/sealed", "garbled")
    assert picked(named, scheme="table/differences") == ("table/differences", "padded")
    written = build('scheme = "table/sealed"\nprotocol = "joint"\n[deployment.options.protocol]\nseeded = true\n')
    assert Deployment.serving(written, dealer="server").scheme.protocol == Joint(dealer="server", seeded=True)
    assert picked(written, protocol="garbled") == ("table/sealed", "garbled")
    with pytest.raises(InvalidInput, match="protocol: got mental, expected one of padded, garbled, joint, two_phase"):
        Deployment.serving(build('protocol = "mental"\n'))


def test_one_process_counts_as_linked(database: Database) -> None:
    assert local(database, download_limit=0).deployment.scheme.protocol == Joint()


# --- names in terms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, {}),
        ({"protocol": "garbled"}, {}),
        ({"scheme": "table/sealed_record"}, {}),
        ({"scheme": "table/differences"}, {}),
        ({"protocol": "joint"}, JOINT),
        ({"protocol": "joint", "k": 3}, JOINT),
        (
            {"protocol": "joint", "dealer": "server", "options": {"protocol": {"seeded": True}}},
            {"protocol": "joint", "options": {"protocol": asdict(Joint(dealer="server", seeded=True))}},
        ),
    ],
)
def test_terms_name_a_protocol_that_is_not_the_usual_one(
    database: Database, given: dict[str, Any], named: dict[str, Any]
) -> None:
    made = Deployment.of(database.schema, **given)
    told = msgspec.json.decode(msgspec.json.encode(made.parameters()))
    assert {name: told[name] for name in ("protocol", "options") if name in told} == named
    assert Deployment.of(database.schema, **made.parameters().chosen()) == made
    assert deployment_again(made) == made


def deployment_again(made: Deployment) -> Deployment:
    """Return the deployment after its parameters went through JSON."""
    read = msgspec.json.decode(msgspec.json.encode(made.parameters()), type=wire.Parameters)
    return Deployment.of(made.schema, record=made.record, **read.chosen())


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"dealer": "server"}, UnknownName, "option of garbled: got dealer, expected one of records_inside"),
        ({"protocol": "joint", "dealer": "bank"}, UnknownName, "dealer: got bank, expected one of applicant, server"),
        ({"protocol": "joint", "dealer": 3}, WrongType, "dealer: got int, expected str"),
        ({"protocol": "joint", "options": {"protocol": {"seeded": 1}}}, WrongType, "seeded: got int, expected bool"),
        ({"options": {"protocol": 3}}, UnknownName, "options: got protocol = 3, expected those of the form, the"),
        ({"protocol": "joint", "scheme": "table/differences"}, NotOffered, "protocol: got joint for differences"),
        ({"protocol": "joint", "scheme": "table/sealed_record"}, UnknownName, "option of joint: got records_inside"),
        ({"k": 2}, NotOffered, "k: got 2 records from sealed by garbled, expected 1: it tells the nearest row alone"),
    ],
)
def test_wrong_names_are_refused(database: Database, given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Deployment.of(database.schema, **given)


def test_the_dealing_server_has_a_key_of_its_own(signed: Database) -> None:
    keys, dealer = [SigningKey().public for _ in range(2)], SigningKey().public
    applicant = Deployment.of(signed.schema, record=signed.record, protocol="joint")
    server = Deployment.of(signed.schema, record=signed.record, protocol="joint", dealer="server")
    plain = make_terms(signed, applicant, keys=keys, service="tests")
    assert "dealer" not in json.loads(plain.text())
    made = make_terms(signed, server, keys=keys, service="tests", dealer=dealer)
    assert made.dealer == dealer.hex()
    assert deployment_of(made) == server
    with pytest.raises(InvalidTerms, match="dealer: got no key, expected the key of the server that deals"):
        make_terms(signed, server, keys=keys, service="tests")
    with pytest.raises(InvalidTerms, match="dealer: got a key, expected none"):
        make_terms(signed, applicant, keys=keys, service="tests", dealer=dealer)
    with pytest.raises(Disagreement, match="dealer: got a key and no dealing server, or the reverse"):
        deployment_of(msgspec.structs.replace(plain, dealer=dealer.hex()))
    with pytest.raises(Disagreement, match="dealer: got a key and no dealing server, or the reverse"):
        deployment_of(msgspec.structs.replace(made, dealer=msgspec.UNSET))


def test_the_dealer_is_none_of_the_servers_and_no_tickets_are_open(database: Database) -> None:
    """A server that also deals would know every mask; and without tickets anybody could make servers work a lot."""
    issuer, keys = Issuer(), [SigningKey().public for _ in range(2)]
    held = database.sign(issuer)
    server = Deployment.of(held.schema, record=held.record, protocol="joint", dealer="server")
    addresses = ["https://a.example", "https://b.example"]
    twice = make_terms(held, server, keys=keys, service="tests", dealer=keys[1])
    with pytest.raises(Malformed, match="one key or address twice"):
        sign_terms(twice, addresses, issuer)
    dealer = SigningKey().public
    is_open = make_terms(held, server, keys=keys, service="tests", dealer=dealer, is_open=True)
    with pytest.raises(NotOffered, match="tickets: got open, and a server that deals, expected signed tickets"):
        sign_terms(is_open, addresses, issuer)
    assert sign_terms(make_terms(held, server, keys=keys, service="tests", dealer=dealer), addresses, issuer)


@pytest.fixture
def terms(tmp_path: Path) -> Callable[..., Any]:
    """Run `counterveil terms` for 20 rows and two servers, with more options."""
    return terms_command(tmp_path, numbers_database(20, 2))


def test_terms_on_the_command_line(terms: Callable[..., Any], tmp_path: Path) -> None:
    write_own(tmp_path / "dealer")
    key = tmp_path / "dealer" / SERVER_PUBLIC
    alone = terms("--download-limit", 0)
    assert alone.returncode == 2
    assert len(alone.stderr.splitlines()) == 1
    assert "counterveil terms --linked" in alone.stderr
    linked = terms("--download-limit", 0, "--linked")
    assert linked.returncode == 0, linked.stderr
    assert "table/sealed, by joint" in linked.stdout
    assert "faster than one row a ticket" in linked.stdout
    assert read_terms(tmp_path / "terms").terms.parameters.protocol == "joint"
    several = terms("-k", 3, "--linked")
    assert "the 3 nearest rows" in several.stdout
    missing = terms("--protocol", "joint", "--dealer", "server")
    assert (missing.returncode, missing.stderr) == (
        2,
        "counterveil: dealer: got no key, expected the key of the server that deals\n",
    )
    dealt = terms("--protocol", "joint", "--dealer", "server", "--dealer-key", key)
    assert dealt.returncode == 0, dealt.stderr
    assert "dealer: key " in dealt.stdout
    made = read_terms(tmp_path / "terms").terms
    assert made.dealer == read_public(key).hex()
    assert deployment_of(made).scheme.protocol == Joint(dealer="server")
    assert "expected none: no server deals" in terms("--dealer-key", key).stderr
    shown = terms("--scheme", "table/differences")
    assert "tickets of one applicant rebuild the rows" in shown.stdout or "1 ticket of one applicant" in shown.stdout


# --- what is said of it --------------------------------------------------------------------------------------------


def test_joint_says_what_it_costs_and_gives(database: Database) -> None:
    rows = 1 << 20
    made = Deployment.of(database.schema, protocol="joint")
    said = made.says(rows)
    tape = sum(made.scheme.requests(Size(rows, 100))[0].dealt)
    assert f"table/sealed, by joint, {made.upload(rows) / 2**20:,.2f} MiB up and " in said
    assert made.upload(rows) > tape > 2 * 12 * rows
    assert f"{made.between(rows) / 2**20:,.2f} MiB from server to server: the nearest row; of the costs of all" in said
    server = Deployment.of(database.schema, protocol="joint", dealer="server", k=3)
    assert server.upload(rows) < 20_000
    assert "the 3 nearest rows; of the costs of all 1,048,576 rows nothing" in server.says(rows)
    assert server.lasts() == "no attack we know rebuilds the rows faster than 3 rows a ticket"
    opened = Deployment.of(database.schema, scheme="table/differences", k=3)
    assert "up to 3 rows" in opened.says(rows)


def test_servers_choose_the_rows_so_none_can_be_asked_to_lie_apart(database: Database) -> None:
    made = Deployment.of(database.schema, protocol="joint", k=3)
    with pytest.raises(NotOffered, match=r"spread: got 0\.5, expected 0: servers choose, and give the 3 nearest rows"):
        made.choose(np.zeros(1, dtype=np.int64), spread=0.5)


def test_leakage_and_attacks_of_joint(tmp_path: Path) -> None:
    database = numbers_database(60, 3)
    joint = Deployment.serving(database, protocol="joint")
    linking, probing = attack_deployment(in_process(database, joint), database, tickets=10)
    assert all(point.rows <= point.tickets / 60 for report in (linking, probing) for point in report.curve)
    assert probing.last.rows > 0  # a control: the records did arrive
    assert "joint" in linking.against
    database.save(tmp_path / "bundle")
    found = cli("leakage", tmp_path / "bundle", "--samples", 4, "--applicants", 1, "--d-min", 2, "--json")
    assert found.returncode == 0, found.stderr
    rungs = {(rung["reveal"], rung["protocol"]): rung for rung in json.loads(found.stdout)["reveals"]}
    for protocol in ("garbled", "joint"):
        sealed = rungs["sealed", protocol]
        assert (sealed["bits"], sealed["crafted_at_most"], sealed["known_attack_tickets"]) == (0, 0, None)
    assert rungs["differences", "padded"]["bits"] > 0


@pytest.mark.parametrize(("k", "limit"), [(1, 0), (3, 64)])
def test_advice_is_sealed_at_any_size(k: int, limit: int) -> None:
    plain = numbers_database(20, 2)
    codes = plain.codes.astype(int)
    frame = {name: [*codes[:, j], *(20 - codes[:, j])] for j, name in enumerate(plain.schema.names)}
    frame |= {"ok": [True] * len(codes) + [False] * len(codes)}
    text = plain.schema.to_toml() + f"\n[deployment]\nk = {k}\ndownload_limit = {limit}\n"
    best, tried = advise(frame, Schema.from_toml(text), "ok", accuracy=0.5)
    assert best.deployment.scheme.protocol == Joint()
    assert best.bits == 0
    assert best.between > 0
    assert best.up > sum(best.deployment.scheme.requests(Size(best.rows, 100))[0].dealt)
    assert any(isinstance(option.deployment.scheme.reveal, Opened) for option in tried)
    again = Database.build(frame, write_choice(best), accepted="ok")
    again_made = Deployment.serving(again)
    assert (again_made.scheme, again_made.k) == (best.deployment.scheme, k)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "more"), [("table/differences", []), ("table/masked", ["--d-min", 40])])
def test_an_opened_deployment_says_how_long_it_lasts(scheme: str, more: list[object], tmp_path: Path) -> None:
    """On start, in `doctor`, in the page's small print, and on the operator's page."""
    (tmp_path / "token").write_text("a token of some length")
    options = ["--scheme", scheme, *more, "--operator-token", tmp_path / "token"]
    with running(tmp_path, numbers_database(30, 3), 2, *options) as service, service.client() as client:
        tickets = client.deployment.scheme.rebuilt_after
        said = client.deployment.lasts()
        assert said.startswith(f"{tickets} ticket")
        assert any(line.get("lasts") == said for line in service.processes[0].entries())
        servers = [part for url in service.urls for part in ("--server", url)]
        assert said in " ".join(cli("doctor", *servers).stdout.split())
        assert f'"rebuilt_after":{tickets}' in httpx2.get(service.urls[0]).text.replace(" ", "")
        header = {"authorization": "Bearer a token of some length"}
        status = httpx2.get(service.urls[0] + "/operator/status", headers=header).json()
        assert status["rebuilt_after"] == tickets
