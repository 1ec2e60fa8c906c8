"""The command line without traps: exit codes, JSON, files that stay, addresses in full, spares and completion."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from certificates import certificate
from counterveil import Boolean, Categorical, Client, Database, Numeric, Schema
from counterveil.cli.output import NO_ANSWER
from counterveil.errors import ServerFault
from counterveil.research.processes import COMMAND
from service import Service, cli, numbers_database, running

pytestmark = pytest.mark.slow

SCHEMA = Schema(
    features=(
        Numeric(name="income", low=0, high=100, step=10),
        Categorical(name="home", values=("rented", "owned", "a:b=c")),
        Boolean(name="married"),
    )
)
ACCEPTED = pl.DataFrame(
    {"income": [90, 10, 10], "home": ["rented", "owned", "a:b=c"], "married": [False] * 3, "ok": [True] * 3}
)
ME = ["--set", "income=10", "--set", "home=rented"]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("bank")
    with running(folder, Database.build(ACCEPTED, SCHEMA, accepted="ok"), 2) as service:
        ACCEPTED.write_csv(folder / "people.csv")
        SCHEMA.save(folder / "schema.toml")
        yield service


def servers(service: Service) -> list[str]:
    return [part for url in service.urls for part in ("--server", url)]


def asking(service: Service) -> list[str]:
    """Return the servers' addresses and a new ticket."""
    return [*servers(service), "--ticket", service.ticket().text()]


def asked(service: Service, *arguments: object) -> Any:
    """Return what `ask` says, as JSON."""
    said = cli("ask", *asking(service), *ME, "--json", *arguments)
    assert said.returncode in (0, NO_ANSWER), said.stderr
    return json.loads(said.stdout)


def test_booleans_take_0_and_1_and_own_costs_are_flags(bank: Service) -> None:
    stays = asked(bank, "--set", "married=0")
    assert "married" in stays["unchanged"]
    changes = asked(bank, "--set", "married=1")
    assert "married" in {change["feature"] for change in changes["changes"]}
    for cheap in ("owned", "a:b=c"):
        found = asked(bank, "--set", "married=no", "--cost", f"home:{cheap}=0.01", "--cost", "home:rented=0")
        assert [(change["feature"], change["to"]) for change in found["changes"]] == [("home", cheap)]
    for wrong in ("home=0.1", "home:owned", "home:owned=cheap", "home:owned=nan"):
        refused = cli("ask", *asking(bank), *ME, "--set", "married=no", "--cost", wrong)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "expected FEATURE:VALUE=COST" in refused.stderr
    dear = cli("ask", *asking(bank), *ME, "--set", "married=no", "--cost", "home:owned=7")
    assert "costs, home, 'owned': got 7.0, expected 0 to 1" in dear.stderr


def test_no_answer_has_an_exit_code_of_its_own(bank: Service) -> None:
    stuck = ["--set", "married=yes", "--immutable", "married"]
    said = cli("ask", *asking(bank), *ME, *stuck)
    assert said.returncode == NO_ANSWER == 3
    assert "No accepted row satisfies your constraints." in said.stdout
    assert asked(bank, *stuck)["feasible"] is False
    assert cli("ask", *asking(bank), *ME, "--set", "married=no").returncode == 0


def test_errors_and_warnings_are_json_where_json_is_asked_for(bank: Service, tmp_path: Path) -> None:
    said = cli("ask", *asking(bank), *ME, "--set", "married=no", "--json")
    (warning,) = said.stderr.splitlines()
    assert "no operator's key" in json.loads(warning)["warning"]
    for arguments, kind, text in (
        (["inspect", "none.bundle"], "InvalidBundle", "none.bundle: got No such file"),
        (["doctor"], "WrongType", "servers: got neither servers nor terms"),
        (["ticket", "issue", "--key", "none.key", "--terms", "none"], "InvalidKey", "none.key: got No such file"),
        (["build", "none.csv", "--schema", "none.toml", "-o", "x"], "InvalidSchema", "none.toml: got No such file"),
        (["build", "none.csv", "--hat"], "UsageError", "--hat"),
        (["ask", "--server", "http://localhost:9", "--server", "http://localhost:11"], "ServerFault", "localhost:9"),
    ):
        failed = cli(*arguments, "--json")
        assert (failed.returncode, failed.stdout) == (2, "")
        error = json.loads(failed.stderr)
        assert error["kind"] == kind
        assert text in error["error"]


def test_build_inspect_ticket_and_doctor_as_json(bank: Service, tmp_path: Path) -> None:
    sources = [bank.folder / "people.csv", "--schema", bank.folder / "schema.toml", "--accepted", "ok"]
    built = json.loads(cli("build", *sources, "-o", tmp_path / "bundle", "--json").stdout)
    shown = json.loads(cli("inspect", tmp_path / "bundle", "--json").stdout)
    assert built["rows"] == shown["rows"] == 3
    assert built["digest"] == Database.open(tmp_path / "bundle").digest
    assert shown["signed_by"] is None
    assert [feature["name"] for feature in shown["schema"]["feature"]] == list(SCHEMA.names)
    key = ["--key", bank.folder / "issuer.key", "--terms", bank.folder / "terms"]
    minted = json.loads(cli("ticket", "issue", *key, "--count", 2, "--json").stdout)
    assert len(minted["tickets"]) == minted["count"] == 2
    filed = json.loads(cli("ticket", "issue", *key, "-o", tmp_path / "tickets", "--json").stdout)
    assert filed["file"] == str(tmp_path / "tickets")
    well = cli("doctor", *servers(bank), "--ticket", minted["tickets"][0], "--json")
    report = json.loads(well.stdout)
    assert (well.returncode, report["problems"], report["tickets"]) == (0, [], 1)
    assert [server["url"] for server in report["servers"]] == bank.urls
    ill = cli("doctor", "--server", bank.urls[0], "--server", "http://localhost:9", "--json")
    assert ill.returncode == 1
    assert json.loads(ill.stdout)["servers"][1] == {"url": "http://localhost:9", "reached": False}


def test_files_are_not_overwritten_without_force(bank: Service, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    people, schema = bank.folder / "people.csv", bank.folder / "schema.toml"
    for command in (
        ["schema", "infer", people, "--exclude", "ok"],
        ["build", people, "--schema", schema, "--accepted", "ok"],
    ):
        refused = cli(*command, "-o", tmp_path / "mine")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "mine: got a file that exists, expected a new file, or --force to replace it" in refused.stderr
        assert (tmp_path / "mine").read_text() == "precious"
        forced = cli(*command, "-o", tmp_path / "mine", "--force")
        assert forced.returncode == 0, forced.stderr
        assert (tmp_path / "mine").read_bytes()[:8] != b"precious"
        (tmp_path / "mine").write_text("precious")


def test_serve_takes_its_address_before_it_makes_a_ledger(bank: Service, tmp_path: Path) -> None:
    place = bank.folder / "1"
    serve = ["serve", bank.bundle, "--terms", bank.folder / "terms", "--server", 1, "--key", place / "server.key"]
    serve += ["--common-key", bank.folder / "common.key", "--ledger", tmp_path / "ledger", "--new-ledger"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = cli(*serve, "--port", port)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"127.0.0.1, port {port}: got Address already in use" in refused.stderr
    assert not (tmp_path / "ledger").exists()
    nowhere = cli(*serve, "--host", "192.0.2.1")
    assert "192.0.2.1, port 8000: got Cannot assign requested address" in nowhere.stderr
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("columns", [40, 80])
def test_addresses_are_never_cut(columns: int, bank: Service) -> None:
    long = f"http://{'a-very-long-name.' * 6}invalid:9"
    narrow = os.environ | {"COLUMNS": str(columns)}

    def shown(*arguments: object) -> list[str]:
        ran = subprocess.run(
            [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, env=narrow, timeout=120
        )
        return ran.stdout.splitlines()

    lines = shown("doctor", "--server", bank.urls[0], "--server", long, "--insecure")
    for url in (bank.urls[0], long):
        assert any(line.strip().startswith(url) for line in lines)
    assert any(line.startswith(f"Problem: {long}: ") for line in lines)
    assert any(" counterveil " in line for line in lines)  # the software is whole too
    lines = shown("ask", *asking(bank), *ME, "--set", "married=no", "--verbose")
    for number, url in enumerate(bank.urls, start=1):
        assert any(line.strip().startswith(f"server {number} ({url})") for line in lines)


def test_one_thing_is_not_called_many(bank: Service, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("x,ok\n1,true\n2,false\n")
    schema = cli("schema", "infer", tmp_path / "one.csv", "--exclude", "ok", "-o", tmp_path / "one.toml")
    assert "one.toml: 1 feature." in schema.stdout, schema.stderr
    sources = [tmp_path / "one.csv", "--schema", tmp_path / "one.toml", "--accepted", "ok"]
    assert "one: 1 row of 1 accepted person." in cli("build", *sources, "-o", tmp_path / "one").stdout
    key = ["--key", bank.folder / "issuer.key", "--terms", bank.folder / "terms"]
    assert "1 ticket for servers" in cli("ticket", "issue", *key, "-o", tmp_path / "tickets").stdout


def test_only_the_common_key(tmp_path: Path) -> None:
    for arguments, made in (
        (["--only", "common"], ["common.key"]),
        (["--only", "operator"], ["server.key", "server.pub"]),
        (["--operator"], ["server.key", "server.pub"]),
        ([], ["common.key", "issuer.key", "issuer.pub"]),
    ):
        folder = tmp_path / "-".join(["keys", *arguments])
        assert cli("keygen", *arguments, folder).returncode == 0
        assert sorted(path.name for path in folder.iterdir()) == made
    both = cli("keygen", "--only", "common", "--operator", tmp_path / "both")
    assert (both.returncode, (tmp_path / "both").exists()) == (2, False)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(words: str, position: int, how: str = "bash_complete") -> str:
        asking = {"_COUNTERVEIL_COMPLETE": how, "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return subprocess.run(
            COMMAND, capture_output=True, text=True, check=True, env=os.environ | asking, timeout=120
        ).stdout

    assert "plain,keygen" in completed("counterveil key", 1)
    assert "plain,--immutable" in completed("counterveil ask --imm", 2)
    for shell in ("bash", "zsh", "fish"):
        assert "counterveil" in completed("", 0, f"{shell}_source")


def test_a_spare_that_is_down_is_not_needed(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(40, 3), 3, "--collusion", 1) as service:
        key = ["--key", tmp_path / "issuer.key", "--terms", tmp_path / "terms"]
        tickets = tmp_path / "tickets"
        issued = cli("ticket", "issue", *key, "--among", "1,3", "--count", 3, "-o", tickets)
        assert issued.returncode == 0, issued.stderr
        service.processes[1].kill()
        person = [part for j in range(3) for part in ("--set", f"x{j}=4")]
        for known in (servers(service), ["--terms", tmp_path / "terms"]):
            found = cli("ask", *known, *person, "--tickets", tickets)
            assert found.returncode == 0, found.stderr
            said = f"{service.urls[1]}: cannot be reached"
            assert said in found.stderr
            assert "the ticket does not need this server, so the others are asked" in found.stderr
        pinned = ["--operator", tmp_path / "2" / "server.pub"]
        refused = cli("ask", *servers(service), *person, "--tickets", tickets, *pinned)
        assert refused.returncode == 2
        assert "operator" in refused.stderr
        assert said in refused.stderr
        with Client(service.urls, patience=0.0) as client:
            needed = service.ticket(servers=[1, 2])
            with pytest.raises(ServerFault, match="cannot be reached"):
                client.ask({"x0": 4, "x1": 4, "x2": 4}, ticket=needed)
            service.processes[1].start()
            service.processes[1].wait()
            assert client.ask({"x0": 4, "x1": 4, "x2": 4}, ticket=needed).feasible
            assert not client.missing
            service.processes[0].kill()
            service.processes[2].kill()
        with pytest.raises(ServerFault, match="cannot be reached"):
            Client(service.urls, patience=0.0)


def test_tickets_for_terms_that_a_server_shows(tmp_path: Path) -> None:
    cert, private = certificate(tmp_path)
    arguments = ["--tls-cert", cert, "--tls-key", private]
    with running(tmp_path, numbers_database(20, 2), 2, *arguments) as service:
        issue = ["ticket", "issue", "--key", tmp_path / "issuer.key", "--server", service.urls[0]]
        minted = cli(*issue, "--ca", cert)
        assert minted.returncode == 0, minted.stderr
        with service.client(verify=ssl.create_default_context(cafile=cert)) as client:
            assert client.ask({"x0": 4, "x1": 4}, ticket=minted.stdout.strip()).feasible
        untrusted = cli(*issue)
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.stderr
        both = cli(*issue, "--terms", tmp_path / "terms")
        assert "--terms: got both it and --server" in both.stderr
