"""Privacy rests on asking the right servers: copies of servers, other addresses, plain http, proxies, false claims.

Broken in 2026-11: operator 1 has the bundle and the common key, so it could run a copy of server 2 with the same
manifest, and read the questions of 20 of 20 people. A ticket was minted from what one server claimed. `ask` sent both
shares over plain http.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from counterveil import Client
from counterveil.applicant import offer
from counterveil.applicant.client import AsyncClient
from counterveil.crypto.keys import Issuer, SigningKey
from counterveil.errors import CounterveilError, Disagreement, InvalidKey, InvalidTerms, Malformed, ServerFault
from counterveil.service.ledger import Ledger
from counterveil.service.server import Server
from counterveil.terms import wire
from counterveil.terms.published import deployment_of, make_terms, read_terms, sign_terms, write_terms
from deployed import Deployed, deployed, serving, show
from service import cli, numbers_database

pytestmark = pytest.mark.slow

PERSON = {"x0": 3, "x1": 9, "x2": 14}


@pytest.fixture
def made(tmp_path: Path) -> Any:
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme="table/differences") as running:
        yield running


def asked(made: Deployed) -> list[str]:
    """Return the requests that the true servers got, except for manifests."""
    return [path for seen in made.seen for _, path, _ in seen if not path.startswith("/v1/manifest")]


def test_a_copy_of_a_server_needs_its_key(made: Deployed, tmp_path: Path) -> None:
    """Operator 1 has the bundle, the terms and the common key; it cannot serve as number 2."""
    ledger = Ledger(tmp_path / "copy", 2, new=True)
    with pytest.raises(InvalidKey, match="expected that of server 2 in the terms"):
        Server.open(2, made.database, made.issued, key=made.common, own=made.own[0], ledger=ledger)
    ledger.close()


def test_a_copied_manifest_at_another_address_is_refused(made: Deployed) -> None:
    """A copy of server 2 repeats its manifest, byte for byte, at another address."""
    copy = serving(made.servers[1])
    with pytest.raises(Disagreement, match="one answers for another"):  # the client also looks where the terms say
        Client([made.urls[0], copy])
    assert not asked(made)


def test_a_manifest_that_its_server_did_not_sign_is_refused(made: Deployed) -> None:
    second = made.servers[1]
    for change in ({"software": "other"}, {"instance": "0" * 32}, {"key": second.manifest.key, "signature": "0" * 128}):
        kept = second.manifest
        show(second, msgspec.structs.replace(kept, **change))
        made.restart()
        with pytest.raises(Disagreement, match="does not carry its own signature"):
            Client(made.urls)
        show(second, kept)
    made.restart()
    with Client(made.urls) as client:
        assert client.ask(PERSON, ticket=made.ticket()).feasible


def test_terms_and_addresses_need_the_issuers_signature(made: Deployed) -> None:
    """A server, or somebody with both servers' keys, cannot change the terms or the servers' addresses."""
    for change in ({"addresses": (made.urls[1], made.urls[0])}, {"signature": "0" * 128}):
        issued = msgspec.structs.replace(made.issued, **change)
        for server, own in zip(made.servers, made.own, strict=True):
            said = msgspec.structs.replace(server.manifest, issued=issued)
            show(server, msgspec.structs.replace(said, signature=own.sign("manifest", *said.signed()).hex()))
        made.restart()
        with pytest.raises(Disagreement, match="expected that of the issuer whom they name"):
            Client(made.urls)
        assert not asked(made)


def test_an_institution_that_runs_both_servers_is_seen_by_who_has_an_operators_key(
    made: Deployed, tmp_path: Path
) -> None:
    """The issuer can name its own keys for all servers; only a key from an operator shows that."""
    operator = made.own[1].public
    fake = [SigningKey(), SigningKey()]
    terms = make_terms(made.database, made.deployment, keys=[key.public for key in fake], service="tests")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in listeners]
    for each in listeners:
        each.close()
    issued = sign_terms(terms, urls, made.issuer)
    ledgers = [Ledger(tmp_path / f"fake{n}", n, new=True) for n in (1, 2)]
    servers = [
        Server.open(n, made.database, issued, key=made.common, own=fake[n - 1], ledger=ledgers[n - 1]) for n in (1, 2)
    ]
    targets = dict(zip(urls, map(serving, servers), strict=True))
    with Client(urls, connect_to=targets, issuer=made.issuer.public) as fooled:  # the institution's word alone
        assert fooled.peers
    with pytest.raises(Disagreement, match="none of these servers has the operator's key"):
        Client(urls, connect_to=targets, operators=[operator])
    with Client(made.urls, operators=[operator]) as client:
        assert client.ask(PERSON, ticket=made.ticket()).feasible
    for ledger in ledgers:
        ledger.close()


def test_a_ticket_that_leaves_the_pinned_operator_out_is_refused(tmp_path: Path) -> None:
    """Three servers: trusting the key of a server that gets no share protects nobody."""
    with (
        deployed(tmp_path, numbers_database(30, 3), 3, scheme="table/differences") as made,
        Client(made.urls, operators=[made.own[2].public]) as client,
    ):
        with pytest.raises(Disagreement, match="for other servers than that of the operator given"):
            client.ask(PERSON, ticket=made.ticket(servers=[1, 2]))
        assert not asked(made)
        assert client.ask(PERSON, ticket=made.ticket(servers=[1, 3])).feasible


def test_another_issuer_is_refused_where_one_is_pinned(made: Deployed, tmp_path: Path) -> None:
    with pytest.raises(Disagreement, match="issuer: got"):
        Client(made.urls, issuer=Issuer().public)
    write_terms(tmp_path / "terms", made.issued)
    with pytest.raises(Disagreement, match="another issuer's"):
        Client(terms=tmp_path / "terms", issuer=Issuer().public)
    with Client(terms=tmp_path / "terms", issuer=made.issuer.public) as client:
        assert client.ask(PERSON, ticket=made.ticket()).feasible


def test_with_a_terms_file_bad_input_meets_no_server(made: Deployed, tmp_path: Path) -> None:
    write_terms(tmp_path / "terms", made.issued)
    with Client(terms=tmp_path / "terms") as client:
        for person, wishes in (
            ({"x0": 999}, {}),
            (PERSON, {"immutable": ["nothing"]}),
            (PERSON, {"weights": {"x0": 0}}),
        ):
            with pytest.raises(CounterveilError):
                client.ask(person, wishes, ticket=made.ticket())
        with pytest.raises(CounterveilError):
            client.ask(PERSON, ticket="abc")
        assert not any(made.seen)
        assert client.ask(PERSON, ticket=made.ticket()).feasible
        assert [path for _, path, _ in made.seen[0]] == ["/v1/manifest", "/v1/answer", "/v1/record"]


def test_terms_that_changed_are_refused_where_a_file_pins_them(made: Deployed, tmp_path: Path) -> None:
    write_terms(tmp_path / "terms", made.issued)
    made.publish(msgspec.structs.replace(made.terms, service="other"))
    with (
        Client(terms=tmp_path / "terms") as client,
        pytest.raises(Disagreement, match="other terms than the terms file"),
    ):
        client.ask(PERSON, ticket=made.ticket())
    assert not asked(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "url", ["http://one.example", "http://10.0.0.1:8000", "http://localhost.example", "http://0.0.0.0:1"]
)
def test_plain_http_to_another_machine_is_refused_everywhere(url: str, made: Deployed, tmp_path: Path) -> None:
    with pytest.raises(ServerFault, match="is plain http"):
        AsyncClient([url, "https://two.example"])
    assert AsyncClient([url, "https://two.example"], insecure=True).urls[0] == url
    said = cli("ask", "--server", url, "--server", "https://two.example")
    assert said.returncode == 2
    assert "is plain http" in said.stderr
    said = cli("doctor", "--server", url, "--server", "https://two.example")
    assert "is plain http" in said.stderr
    terms = make_terms(made.database, made.deployment, keys=[key.public for key in made.own], service="tests")
    write_terms(tmp_path / "terms", sign_terms(terms, [url, "https://two.example"], made.issuer))
    with pytest.raises(ServerFault, match="is plain http"):
        AsyncClient(terms=tmp_path / "terms")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9:1"])
def test_this_machine_needs_no_https(url: str) -> None:
    assert AsyncClient([url, "https://two.example"]).urls[0] == url


def test_no_proxy_sees_plain_http(made: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY would be given both shares."""
    proxy, seen = socket.create_server(("127.0.0.1", 0)), list[bytes]()

    def listen() -> None:
        while True:
            try:
                connection, _ = proxy.accept()
            except OSError:
                return
            with connection:
                seen.append(connection.recv(1 << 16))

    threading.Thread(target=listen, daemon=True).start()
    address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert os.environ["HTTP_PROXY"] == address
    with Client(made.urls) as client:
        assert client.ask(PERSON, ticket=made.ticket()).feasible
    assert not seen
    with pytest.raises(httpx2.HTTPError):  # the control: an ordinary client goes through it
        httpx2.get(made.urls[0] + "/healthz", timeout=5)
    assert seen
    proxy.close()


def test_tickets_come_from_the_institutions_own_terms(tmp_path: Path, made: Deployed) -> None:
    """A lying server could have tickets minted for another deployment; `ticket issue` takes no server's address now."""
    assert cli("ticket", "issue", "--key", "x", "--server", made.urls[0]).returncode == 2
    written = json.loads(wire.encode_terms(made.issued))
    changes: list[dict[str, Any]] = [{"terms": written["terms"].replace('"k":1', '"k":9')}]
    changes += [{"addresses": list(reversed(written["addresses"]))}, {"terms": written["terms"].replace("tests", "x")}]
    for change in changes:
        (tmp_path / "terms").write_text(json.dumps(written | change))
        with pytest.raises(InvalidTerms, match="expected that of the issuer whom they name"):
            read_terms(tmp_path / "terms")


@pytest.mark.parametrize("url", ["HTTPS://one.example", "Https://ONE.example:443/", "https://one.example"])
def test_an_address_has_one_form_and_its_certificate_is_always_checked(url: str) -> None:
    """An address in capitals switched the check off, so that a man in the middle could read everything."""
    made = AsyncClient([url, "https://two.example"])
    assert made.urls[0] == "https://one.example"
    assert isinstance(made.verify, ssl.SSLContext)
    assert made.verify.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    "url",
    [
        "https://alice:42@one.example",
        "https://@one.example",
        "https://one.example?a",
        "https://one.example/#a",
        "https://one.example:abc",
        "https://one.example:99999",
        "https://[zz]",
        "https://one.example\\@evil",
        "https://one example",
        "https://",
    ],
)
def test_what_marks_a_person_or_confuses_readers_is_no_address(url: str, made: Deployed) -> None:
    with pytest.raises(ServerFault, match="is not an address"):
        AsyncClient([url, "https://two.example"])
    with pytest.raises(Malformed):
        sign_terms(made.terms, [url, "https://two.example"], made.issuer)


def test_a_relay_on_another_machine_needs_https_too() -> None:
    with pytest.raises(ServerFault, match="is plain http"):
        AsyncClient(
            ["https://one.example", "https://two.example"], connect_to={"https://one.example": "http://192.0.2.1"}
        )


def test_the_step_is_calibrated_with_the_most_preferences_there_are(made: Deployed) -> None:
    """Thousands of costs for single values took longer to compile than the step."""
    wishes = offer._most_wishes(made.deployment)
    assert len(wishes.costs) == len(wishes.forbidden) == 3
    assert all(len(values) == 21 for values in wishes.costs.values())


def test_no_terms_make_a_client_allocate_without_end(tmp_path: Path) -> None:
    with deployed(tmp_path, numbers_database(30, 3), 2, scheme="table/sealed") as made:
        assert deployment_of(msgspec.structs.replace(made.terms, rows=100_000))
        with pytest.raises(Disagreement, match="less than 1 GiB"):
            deployment_of(msgspec.structs.replace(made.terms, rows=(1 << 28) - 1))
