"""The applicant's page in a real browser against real servers: the rows Python gets, every state, nothing but noise."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from browser import answered, fill, new_page, one_file, opened, reviewed, send
from counterveil import Counterfactual, Database, NoCounterfactual, Preferences, local
from counterveil.applicant.ask import compile_question
from counterveil.applicant.explain import WayIn, explain
from counterveil.crypto.keys import Issuer, fingerprint
from counterveil.research.datasets import german_credit, german_credit_model
from counterveil.schema.frames import Columns
from counterveil.schema.layouts import decode
from counterveil.terms import wire
from counterveil.terms.tickets import mint
from deployed import Deployed, deployed, garbage, noise, symbols
from patience import LONG
from relay import Relay
from service import Service, numbers_database, running

pytestmark = pytest.mark.slow

VECTORS = Path(__file__).parent.parent / "vectors"


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    frame, schema = german_credit()
    database = Database.build(frame, schema, accepted=("credit", "good"))
    folder = tmp_path_factory.mktemp("page")
    (folder / "token").write_text("a token of the operator's own\n")
    with running(
        folder, database, 2, "--operator-token", folder / "token", "--budget", 50_000, "--issued", 100
    ) as service:
        yield service


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def ticket(service: Service, **options: Any) -> str:
    return service.ticket(**options).text()


def wish(
    page: Page, title: str, *, change: str | None = None, hard: int | None = None, low: Any = None, high: Any = None
) -> None:
    """Say a preference as a person does."""
    card = page.locator("fieldset", has=page.locator("legend").get_by_text(title, exact=True))
    if change:
        card.locator("select[id$=c]").select_option(change)
    if hard or low is not None or high is not None:
        card.locator("summary").click()
    if hard:
        card.locator("details input[type=range]").fill(str(hard))
    for place, bound in ((0, low), (1, high)):
        if bound is not None:
            card.locator("details input[inputmode=decimal]").nth(place).fill(str(bound))


def cost_of(bank: Any, person: dict[str, Any], wishes: dict[str, Any], codes: dict[str, int]) -> float:
    _, costs = compile_question(bank.deployment, bank.deployment.schema.codes(person), Preferences.of(wishes))
    return float(sum(costs.of([codes[f.name] for f in costs.features])) / bank.deployment.unit)


def test_a_question_with_locks_ranges_and_weights(
    browser: Browser, credit: Service, people: list[dict[str, Any]]
) -> None:
    """The same cost as the Python client, and as a search in the clear."""
    wishes: dict[str, Any] = {
        "immutable": ["age", "personal_status"], "decrease_only": ["duration"], "increase_only": ["savings"],
        "ranges": {"amount": (2000, 9000)}, "weights": {"housing": 8, "job": 3},
    }  # fmt: skip
    bank = local(credit.database)
    for person in people[:4]:
        page = opened(browser, credit.urls[0], credit.urls, ticket=ticket(credit), person=person)
        wish(page, "age", change="locked")
        wish(page, "duration of the credit", change="down")
        wish(page, "savings", change="up")
        wish(page, "amount of the credit", low=2000, high=9000)
        wish(page, "housing", hard=8)
        wish(page, "job", hard=3)
        found = answered(page)
        expected = bank.ask(person, wishes)
        page.close()
        if isinstance(expected, NoCounterfactual):
            assert "beyond what is allowed for" in found["sentence"]
            continue
        assert isinstance(expected, Counterfactual)
        assert found["codes"] is not None
        assert cost_of(bank, person, wishes, found["codes"]) == expected.cost
        _, costs = compile_question(bank.deployment, bank.deployment.schema.codes(person), Preferences.of(wishes))
        assert expected.cost == min(sum(costs.of(row)) for row in credit.database.codes) / bank.deployment.unit


def test_the_sentence_is_pythons(browser: Browser, credit: Service, people: list[dict[str, Any]]) -> None:
    page = opened(browser, credit.urls[0], credit.urls, ticket=ticket(credit), person=people[0])
    assert answered(page)["sentence"] == local(credit.database).ask(people[0]).text()
    page.close()


def test_the_page_keeps_the_schemas_rules(browser: Browser, credit: Service, people: list[dict[str, Any]]) -> None:
    """What may be chosen, what is chosen already, and a range whose ends lie between levels."""
    bank = local(credit.database)
    wishes: dict[str, Any] = {"override": ["employment"], "ranges": {"amount": (1100, 1110)}, "weights": {"housing": 1}}
    person = people[0]
    page = opened(browser, credit.urls[0], credit.urls, ticket=ticket(credit), person=person)

    def card(title: str) -> Any:
        return page.locator("fieldset", has=page.locator("legend").get_by_text(title, exact=True))

    def ways(title: str) -> list[str]:
        values: list[str] = card(title).locator("select[id$=c] option").evaluate_all("all => all.map((o) => o.value)")
        return values

    assert ways("personal status") == []
    assert "Always stays as it is, by the institution's rule" in card("personal status").inner_text()
    assert ways("age") == ["up", "locked"]
    assert ways("time in this job") == ["free", "up", "down", "locked"]
    assert card("time in this job").locator("select[id$=c]").input_value() == "up"
    assert card("time in this job").locator("summary").inner_text() == "A change would be easy"
    assert card("property").locator("summary").inner_text() == "A change would be not so easy"
    assert card("age").locator("details input[type=range]").get_attribute("min") == "10"
    assert card("age").locator("summary").inner_text() == "A change would be nearly impossible"
    assert card("housing").locator("details input[type=range]").get_attribute("min") == "1"
    wish(page, "time in this job", change="free")
    wish(page, "housing", hard=1)
    wish(page, "amount of the credit", low=1100, high=1110)
    found, expected = answered(page), bank.ask(person, wishes)
    page.close()
    assert isinstance(expected, Counterfactual)
    assert found["codes"] is not None
    assert cost_of(bank, person, wishes, found["codes"]) == expected.cost
    amount = bank.deployment.schema.feature("amount")
    assert found["codes"]["amount"] == amount.codes([1100])[0] == amount.codes([1110])[0]
    outside = "outside the range that you asked for, but in the same level as its end."
    assert (outside in found["sentence"]) is bool(expected.outside) is True


def test_one_file_works_from_a_disk(
    browser: Browser, credit: Service, people: list[dict[str, Any]], tmp_path: Path
) -> None:
    reply = httpx2.get(credit.urls[0] + "/counterveil.html", timeout=LONG)
    assert "attachment" in reply.headers["content-disposition"]
    assert "web/" not in reply.text
    (tmp_path / "one.html").write_text(reply.text)
    page = opened(browser, f"file://{tmp_path}/one.html", credit.urls, ticket=ticket(credit), person=people[1])
    assert page.locator("#trust").is_hidden()
    fill(page, credit.database.schema, people[1])
    assert answered(page)["sentence"] == local(credit.database).ask(people[1]).text()
    page.close()


def test_the_policy_is_strict(browser: Browser, credit: Service, people: list[dict[str, Any]]) -> None:
    policy = httpx2.get(credit.urls[0], timeout=LONG).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    connect = next(part for part in policy.split("; ") if part.startswith("connect-src "))
    assert sorted(connect.split()[1:]) == sorted(credit.urls)
    assert (
        httpx2.get(credit.urls[0] + "/v1/manifest", headers={"origin": "https://x.example"}, timeout=LONG).headers[
            "access-control-allow-origin"
        ]
        == "*"
    )


def test_the_states_and_their_words(
    browser: Browser, credit: Service, people: list[dict[str, Any]], tmp_path: Path
) -> None:
    terms, now = credit.issued.terms, int(time.time())
    with credit.client() as client:
        used = credit.ticket(client)
        client.ask(people[0], ticket=used)
    elsewhere = msgspec.structs.replace(terms, service="another")
    weaker = msgspec.structs.replace(terms.parameters, scheme="table/distances")
    tickets = {
        "ticket_used": used,
        "ticket_expired": credit.ticket(expires=now - 5),
        "ticket_forged": credit.ticket(issuer=Issuer()),
        "ticket_for_another_service": mint(elsewhere, [1, 2], expires=now + 99, issuer=credit.issuer),
        "ticket_for_other_servers": mint(terms, [1, 3], expires=now + 99, issuer=credit.issuer),
        "ticket_not_offered": credit.ticket(k=2),
    }
    for code, each in tickets.items():
        page = opened(browser, credit.urls[0], credit.urls, ticket=each.text(), person=people[0])
        assert answered(page)["trouble"] == code
        page.close()
    other = mint(msgspec.structs.replace(terms, parameters=weaker), [1, 2], expires=now + 99, issuer=credit.issuer)
    page = opened(browser, credit.urls[0], credit.urls, ticket=other.text(), person=people[0])
    assert answered(page)["trouble"] == "ticket_not_offered"  # it was minted for another reveal
    page.close()
    page = opened(browser, credit.urls[0], credit.urls, person=people[0])
    assert answered(page)["trouble"] == "ticket_missing"
    page.fill("#ticket", ticket(credit))  # a way on: paste it, ask again
    assert answered(page)["trouble"] is None
    page.close()

    with running(tmp_path, numbers_database(20, 2), 2) as other_service:
        _the_other_states(browser, credit, other_service, tmp_path)


def _the_other_states(browser: Browser, credit: Service, other: Service, folder: Path) -> None:
    address = one_file(credit, folder)
    page = opened(browser, address, [credit.urls[0]])
    assert page.get_attribute(".trouble", "data-code") == "addresses"
    page.fill("#servers", "\n".join(credit.urls))
    page.get_by_text("Use these addresses").click()
    page.wait_for_selector("#features fieldset")
    page.close()
    page = opened(browser, address, [credit.urls[0], other.urls[1]])
    assert page.get_attribute(".trouble", "data-code") == "disagree"
    page.close()
    person = {"x0": 3, "x1": 9}
    page = opened(browser, other.urls[0], other.urls, ticket=ticket(other), person=person)
    other.processes[1].kill()
    send(page)
    page.wait_for_selector("text=Still waiting for a server")
    page.wait_for_selector(".trouble[data-code=unreachable]")
    assert page.inner_text("#tickets") == "No ticket here"
    other.processes[1].start()
    other.processes[1].wait()
    page.get_by_role("button", name="Try again").click()  # the very same bytes: nothing is lost
    page.wait_for_selector("#answer:not([hidden])")
    page.close()
    unused = ticket(other)
    page = opened(browser, other.urls[0], other.urls, ticket=unused, person=person)
    other.publish(numbers_database(21, 2))
    for process in other.processes:
        process.kill()
        process.start()
    for process in other.processes:
        process.wait()
    assert answered(page)["trouble"] == "other_terms"
    assert page.input_value("#ticket") == unused
    assert "reload this page and use the same ticket" in page.inner_text("#status")
    page.reload()
    page.wait_for_selector("#features fieldset")
    fill(page, other.database.schema, person)
    page.fill("#ticket", unused)
    assert answered(page)["trouble"] is None
    page.close()


def test_the_servers_keys_can_be_compared(browser: Browser, credit: Service) -> None:
    page = opened(browser, credit.urls[0], [])
    text = page.inner_text("footer")
    page.close()
    for url, key in zip(credit.urls, credit.issued.terms.keys, strict=True):
        assert f"{url}: {fingerprint(bytes.fromhex(key))}" in text
    assert "If one organisation controls both web addresses, it can read your question." in text
    host = credit.urls[0].removeprefix("http://")
    assert f"This page comes from {host}. You trust {host} each time you load it." in text


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"collusion": 0}, "terms"),
        ({"collusion": None}, "terms"),
        ({"collusion": 2}, "terms"),
        ({"max_weight": 2**53 - 1}, "terms"),
        ({"max_weight": 90}, "terms"),
        ({"scheme": "linear/differences"}, "form"),
        ({"scheme": "capped_l1/differences", "options": {"form": {"percent": 50}}}, "form"),
        ({"options": {"form": {"percent": 50}}}, "form"),
        ({"scheme": "table/everything"}, "terms"),
        ({"d_min": 3}, "terms"),
        ({"k": 3}, "terms"),
        ({"shuffle": False}, "terms"),
        ({"protocol": "joint"}, "taken"),
        ({"protocol": "joint", "k": 3, "servers": 3}, "terms"),  # the numbers of the third are missing
        ({"protocol": "joint", "k": 255}, "taken"),
        ({"protocol": "joint", "rows": 2**28 - 1}, "too_large"),
        ({"protocol": "joint", "rows": 2, "k": 3}, "terms"),
        ({"protocol": "joint", "dealer": "00" * 32}, "terms"),
        ({"protocol": "joint", "options": {"protocol": {"dealer": "server"}}}, "terms"),
        ({"protocol": "joint", "options": {"protocol": {"dealer": "server"}}, "dealer": "00" * 32}, "taken"),
        ({"protocol": "joint", "options": {"protocol": {"dealer": "nobody"}}}, "form"),
        ({"protocol": "joint", "options": {"protocol": {"seeded": True}}}, "taken"),
        ({"protocol": "joint", "options": {"protocol": {"seeded": 1}}}, "form"),
        ({"protocol": "joint", "options": {"protocol": {"rounds": 3}}}, "form"),
        ({"protocol": "joint", "options": {"protocol": {"rounds": "few"}}}, "taken"),
        ({"protocol": "joint", "scheme": "table/sealed_record"}, "form"),
        ({"protocol": "joint", "scheme": "table/differences"}, "form"),
        ({"protocol": "garbled"}, "taken"),
        ({"protocol": "another"}, "form"),
        ({"robust": 1}, "terms"),
    ],
)
def test_unsafe_terms_are_refused_before_anything_is_asked(
    browser: Browser, credit: Service, change: dict[str, Any], code: str
) -> None:
    page = opened(browser, credit.urls[0], credit.urls)
    terms = json.loads(credit.issued.text)
    for name, value in change.items():
        (terms if name in ("rows", "dealer", "robust") else terms["parameters"])[name] = value
    said = page.evaluate(
        """async (terms) => {
          const { Deployment } = await import("/web/deployment.js");
          try { new Deployment(terms); return "taken"; } catch (error) { return error.code; }
        }""",
        terms,
    )
    page.close()
    assert said == code


def test_nothing_feasible_looks_the_same_to_a_server(
    browser: Browser, people: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame, schema = german_credit()
    views = []
    with running(tmp_path, Database.build(frame, schema, accepted=("credit", "good")), 2, relays=True) as service:
        for locked in (False, True):
            page = opened(browser, service.processes[0].url, [], ticket=ticket(service), person=people[2])
            if locked:
                for change in page.locator("select[id$=c]").all():
                    change.select_option("locked")
            for relay in service.relays:
                relay.seen.clear()
            found = answered(page)
            assert ("beyond what is allowed for" in found["sentence"]) is locked
            page.close()
            views.append([posts(relay) for relay in service.relays])
    assert views[0] == views[1]


def posts(relay: Relay) -> list[Any]:
    return [(r["line"], r["length"]) for r in relay.view() if r["line"].startswith("POST")]


def lying(made: Deployed, browser: Browser, robust: int) -> dict[str, Any]:
    text = made.ticket(robust=robust).text()
    page = opened(browser, made.urls[0], made.urls, ticket=text, person={"x0": 3, "x1": 9, "x2": 14})
    found = answered(page)
    found["text"] = page.inner_text("main")
    said = page.inner_text("#status")
    assert found["trouble"] is None or "If you have another ticket, use it another day." in said
    assert "nstitution" not in said.replace("do not tell the institution", "")  # a failed check is nobody's business
    page.close()
    return found


def test_lying_servers(browser: Browser, tmp_path: Path) -> None:
    with deployed(tmp_path, numbers_database(30, 3), 2) as made:
        assert lying(made, browser, 0)["trouble"] is None
        made.servers[1].on_record = garbage
        for seen in made.seen:
            seen.clear()
        assert lying(made, browser, 0)["trouble"] == "tampered"
        paths = [[path for method, path, _ in seen if method == "POST"] for seen in made.seen]
        assert paths == [["/v1/answer", "/v1/record"]] * 2
        made.servers[1].on_record = None
        made.servers[0].on_answer = symbols(noise)
        assert lying(made, browser, 0)["trouble"] == "tampered"
    (tmp_path / "four").mkdir()
    with deployed(tmp_path / "four", numbers_database(30, 3), 4, robust=1) as made:
        made.servers[2].on_answer = symbols(noise)
        found = lying(made, browser, 1)
        assert found["trouble"] is None
        assert "Server 3 answered wrongly" in found["text"]


@pytest.mark.parametrize(
    ("scheme", "arguments", "servers"),
    [
        ("table/distances", [], 2),
        ("table/sealed", [], 2),
        ("table/sealed_record", [], 2),
        ("table/masked_differences", ["--d-min", 2], 2),
        ("table/differences", [], 3),
        ("table/differences", ["--collusion", 1, "-k", 2], 3),
    ],
)
def test_other_deployments(browser: Browser, tmp_path: Path, scheme: str, arguments: list[Any], servers: int) -> None:
    database = numbers_database(5000 if "sealed" in scheme else 50, 3)
    person = {"x0": 3, "x1": 9, "x2": 14}
    expected = local(database, "table/distances").ask(person)
    assert isinstance(expected, Counterfactual)
    with running(tmp_path, database, servers, "--scheme", scheme, *arguments) as service:
        spare = "--collusion" in arguments
        text = ticket(service, servers=[1, 3], k=2) if spare else ticket(service)
        page = opened(browser, service.urls[0], service.urls, ticket=text, person=person)
        found = answered(page)
        page.close()
        assert found["codes"] is not None
        cost = cost_of(local(database), person, {}, found["codes"])
        assert cost <= expected.cost + (2 / 400 if "masked" in scheme else 0) + 1e-9
        assert ("This is approximate: a nearer accepted row may exist." in found["sentence"]) is ("masked" in scheme)


def test_an_open_deployment_asks_the_server_that_the_page_comes_from(browser: Browser, tmp_path: Path) -> None:
    chosen = ["--scheme", "table/differences", "--collusion", 1]
    with running(tmp_path, numbers_database(50, 2), 3, *chosen, is_open=True) as service:
        for url in service.urls:
            page = opened(browser, url, [], person={"x0": 3, "x1": 9})
            assert page.locator("#ticket-row").is_hidden()
            assert answered(page)["trouble"] is None
            assert f", {url}: " in (page.text_content("#left") or "")
            page.close()


def test_a_connection_that_breaks_in_the_middle(browser: Browser, tmp_path: Path) -> None:
    database = numbers_database(5000, 3)
    person = {"x0": 3, "x1": 9, "x2": 14}
    expected = local(database, "table/distances").ask(person)
    assert isinstance(expected, Counterfactual)
    with running(tmp_path, database, 2, relays=True) as service:
        page = opened(browser, service.processes[0].url, [], ticket=ticket(service), person=person)
        first, second = service.relays
        first.cut, second.cut = first.down + 3_000_000, second.down + 400_000
        found = answered(page)
        page.close()
        assert first.cut is second.cut is None
        assert cost_of(local(database, "table/distances"), person, {}, found["codes"]) == expected.cost


def test_all_vectors_pass_in_the_browser(browser: Browser, credit: Service) -> None:
    page = opened(browser, credit.urls[0], credit.urls)
    files = {
        name: json.loads((VECTORS / name).read_text("utf-8")) for name in ("wire.json", "service.json", "sealed.json")
    }
    failed, count = page.evaluate(
        """async ({ "wire.json": W, "service.json": S, "sealed.json": L }) => {
        const [wire, field, deployment, protocols, spir, garble] = await Promise.all(
          ["wire", "field", "deployment", "protocols", "spir", "garble"].map((name) => import(`/web/${name}.js`)));
        const failed = []; let count = 0;
        const check = (right, what) => { count++; if (!right) failed.push(what); };
        const refuses = (work) => {
          try { work(); return false; } catch (error) { return error instanceof wire.Malformed; }
        };
        for (const { q, values, hex } of W.packing) {
          const list = values.map(BigInt), prime = BigInt(q);
          check(wire.hex(wire.packVector(list, prime)) === hex, `pack ${q}`);
          check(wire.same(wire.unpackVector(wire.unhex(hex), prime, list.length), list), `unpack ${q}`);
        }
        for (const c of W.bad_packing)
          check(refuses(() => wire.unpackVector(wire.unhex(c.hex), BigInt(c.q), c.count)), c.why);
        const raw = (c) => Object.fromEntries(Object.entries(c).map(([name, value]) => [name,
          ["ticket", "body", "terms", "key", "secret"].includes(name) ? wire.unhex(value) : value]));
        for (const c of W.messages) {
          if ("secret" in c) check(wire.hex(wire.encodeRequest(raw(c))) === c.hex, c.kind);
          else check(wire.hex(wire.encodeReply(wire.decodeReply(wire.unhex(c.hex), c.kind))) === c.hex, c.kind);
        }
        for (const c of W.bad_messages) check(refuses(() => wire.decodeReply(wire.unhex(c.hex), "answer")), c.why);
        const fields = wire.unpack(wire.unhex(W.messages.find((c) => c.kind === "answer").hex));
        for (const [place, value] of [[0, 1], [1, "query"], [1, "record-answer"], [2, 0], [2, 65], [3, "ticket"],
          [3, new Uint8Array(15)], [4, 256], [5, []], [5, [2, 1]], [5, [1, 1]], [6, "body"]]) {
          const bytes = wire.pack(fields.map((field, i) => (i === place ? value : field)));
          check(refuses(() => wire.decodeReply(bytes, "answer")), `field ${place}: ${value}`);
        }
        for (const c of W.tickets) {
          const t = wire.decodeTicket(c.text);
          check(["expires", "service", "reveal", "k", "liars"].every((name) => t[name] === c[name]), "ticket");
          check(["id", "signature"].every((name) => wire.hex(t[name]) === c[name]), "ticket");
          check(wire.same(t.servers, c.servers), "ticket");
        }
        for (const c of W.bad_tickets) check(refuses(() => wire.decodeTicket(c.text)), c.why);
        const Q = S.question, made = new deployment.Deployment(JSON.parse(S.manifests[0].issued.terms));
        const own = new Map(made.schema.features.map((f) => [f, f.code(Q.person[f.name])]));
        const wishes = new Map(made.schema.features.map((f) => [f, { weight: Q.preferences.weights[f.name] ?? 1,
          change: Q.preferences.immutable.includes(f.name) ? "locked" : "free" }]));
        const shared = field.valueAt(Q.symbols.map((s) => s.map(BigInt)), [1n, 2n], 0n, made.q);
        check(wire.same(shared, deployment.secretOf(made, own, wishes)), "the secret");
        check(wire.decodeTicket(Q.ticket).reveal === made.reveals, "what is revealed");
        const body = (hex, kind) => wire.decodeReply(wire.unhex(hex), kind).body;
        const answers = Q.answers.map((a) => wire.unpackVector(body(a, "answer"), made.q, made.length));
        const { revealed } = protocols.recover(made, [1, 2], 0, answers);
        check(wire.same(revealed.map(String), Q.revealed), "revealed");
        check(deployment.nearest(made.relative(revealed), 1)[0] === Q.position, "position");
        const secretIn = (request) => wire.hex(wire.unpack(wire.unhex(request))[8]);
        const secrets = [Q.queries, Q.record_queries].map((each) => each.map(secretIn));
        check(wire.same(...secrets) && new Set(secrets[0]).size === 2, "one secret for each server");
        const parts = Q.record_answers.map((a) => body(a, "record-answer"));
        const packed = spir.makeSpir(2, 1, made.recordBytes, false).recover(parts);
        check(wire.hex(packed) === Q.package, "package");
        check(wire.hex(await spir.unpackage(packed)) === Q.record, "record");
        const random = (count) => crypto.getRandomValues(new Uint8Array(count));
        const xor = (a, b) => a.map((v, i) => v ^ b[i]);
        for (const N of [2, 3, 5, 7]) { // servers answer the xor of the parts that the bits choose, under a common pad
          const rows = Array.from({ length: 9 }, () => random(110)), parts = N - 1;
          const one = spir.makeSpir(N, 1, 110, false), pad = random(one.part);
          const cut = (row, j) => row.slice(Math.floor((j * 110) / parts), Math.floor(((j + 1) * 110) / parts));
          const padded = (part) => Uint8Array.from({ length: one.part }, (_, i) => part[i] ?? 0);
          const answers = one.query(9, 4).map((query) => rows.reduce((sum, row, i) => {
            for (let j = 0; j < parts; j++) {
              const bit = i * parts + j;
              if ((query[bit >> 3] >> (bit & 7)) & 1) sum = xor(sum, padded(cut(row, j)));
            }
            return sum;
          }, pad));
          check(one.part === Math.ceil(110 / parts), `parts for ${N} servers`);
          check(wire.same(one.recover(answers), rows[4]), `a record of ${N} servers`);
        }
        check(spir.makeSpir(8, 1, 110, false).part === 110, "parts that are too short to be cut");
        const byOrder = (costs, k) => costs.map((_, i) => i).sort((a, b) => costs[a] - costs[b] || a - b).slice(0, k);
        for (const costs of [[3, 1, 2, 1, 0], [0], [5, 5, 5, 5], [9, 8, 7, 6]])
          for (const k of [1, 2, 3, 9])
            check(wire.same(deployment.nearest(costs, k), byOrder(costs, k)), `${k} of ${costs}`);
        const { least } = L, sealed = least.answers.map(wire.unhex), at = [0, 0];
        check(wire.same(garble.answerBytes(5, least.bits, least.record_bytes), sealed.map((a) => a.length)), "lengths");
        const evaluated = async (answers, at) => {
          const party = garble.evaluate(5, least.bits, least.record_bytes);
          let effect = await party.next();
          while (!effect.done) {
            const { source, count } = effect.value;
            effect = await party.next(answers[source].slice(at[source], (at[source] += count)));
          }
          return effect.value;
        };
        const nearest = await evaluated(sealed, at);
        check(wire.same(at, sealed.map((a) => a.length)), "all is taken");
        check(nearest.position === least.position && wire.hex(nearest.opened) === least.record, "the least of five");
        for (let i = 0; i < 50; i++) {
          const noise = sealed.map((a) => crypto.getRandomValues(new Uint8Array(a.length)));
          const { position } = await evaluated(noise, [0, 0]);
          check(position >= 0 && position < 8, "noise gives a position");
        }
        for (const [n, prime] of [[800n, 809n], [2n ** 32n, 4294967311n], [2n ** 61n - 2n, 2n ** 61n - 1n]])
          check(field.smallestPrimeAbove(n) === prime, `prime above ${n}`);
        return [failed, count];
      }""",
        files,
    )
    page.close()
    assert failed == []
    assert count > 100


# Replays one recorded conversation; returns what went otherwise than recorded.
REPLAYED = """async ([name, C]) => {
  const [wire, made, conversations, spir, { explained }, { Trouble }] = await Promise.all(
    ["wire", "deployment", "conversation", "spir", "explain", "network"].map((each) => import(`/web/${each}.js`)));
  const failed = [], check = (right, what) => right || failed.push(`${name}: ${what}`);
  const deployment = new made.Deployment(JSON.parse(C.terms)), { schema } = deployment;
  const own = new Map(schema.features.map((f) => [f, f.code(C.person[f.name])]));
  const wishes = new Map(schema.features.map((f) => [f, { weight: C.preferences.weights[f.name] ?? 1,
    change: C.preferences.immutable.includes(f.name) ? "locked" : "free" }]));
  const ticket = wire.decodeTicket(C.ticket), secret = made.secretOf(deployment, own, wishes);
  const peers = new Map(ticket.servers.map((n, i) => [n, C.addresses[i]]));
  const stage = { deployment, peers, digest: await wire.digestOf(C.terms), key: wire.unhex(C.key) };
  const begin = (options) => {
    const left = [...C.drawn];
    const elements = (q, count) => {
      const each = left.shift(), values = each.values.split(" ").map(BigInt);
      check(BigInt(each.q) === q && values.length === count, `draws ${count} of ${q}`);
      return values;
    };
    const tape = (count) => // seven bytes of each number
      Uint8Array.from(elements(2n ** 56n, Math.ceil(count / 7)).flatMap((value) =>
        Array.from({ length: 7 }, (_, i) => Number((value >> BigInt(8 * i)) & 255n)))).slice(0, count);
    const bytes = (count) => left[0].q === "256" ? Uint8Array.from(elements(256n, count), Number) : tape(count);
    const draw = { elements, bytes };
    const conversation = new conversations.Conversation(stage, ticket, secret, { spread: C.spread, draw, ...options });
    return { conversation, left };
  };
  const refusal = async (work) => { try { await work(); return null; } catch (error) { return error; } };
  const attempts = async () => { // of servers that cannot answer: they are asked again, until patience ends
    const refused = (code, reason) => new Trouble(code, "", C.addresses[0], reason);
    for (const [code, reason, kind, told] of [
      ["unreachable", null, "collect", "unreachable"],
      ["unreachable", "attempt_held", "collect", "unreachable"],
      ["unreachable", "peer_unreachable", "attempt", "peer_unreachable"],
      ["malformed_answer", null, "collect", "malformed_answer"],
      ["refused", "attempt_over", "attempt", "broke_off"],
      ["ticket_used", "ticket_used", "", "ticket_used"],
    ]) {
      const attempt = {}, draw = { elements: (_, count) => Array(count).fill(0n), bytes: (n) => new Uint8Array(n) };
      const begun = (patience) => begin({ draw, patience, made: attempt }).conversation, conversation = begun(20_000);
      const waited = [], kinds = new Set();
      let doing = await todo(conversation);
      const error = await refusal(async () => {
        for (let i = 0; i < 99; i++) {
          for (const { line } of doing) if (line) conversation.broke(line, refused(code, reason));
          doing = await todo(conversation);
          waited.push(...doing.flatMap(({ seconds }) => seconds ?? []));
          doing.forEach(({ message }) => message && kinds.add(message.kind));
        }
      });
      check(error?.code === told && [...kinds].join() === kind, `${reason}: ${error?.code}, ${[...kinds]}`);
      const pauses = reason === "attempt_over" ? Array(6).fill(0.05).join() : "0.05,0.1,0.2,0.4,0.8,1";
      check(waited.slice(0, 6).join() === (kind ? pauses : ""), `${reason}: waits ${waited}`);
      if (told === "broke_off") continue;
      const [first, ...then] = (await todo(begun(20_000))).map(({ what, message }) => message?.kind ?? what);
      check(first === "wait" && then.every((each) => each === (kind || "collect")), `${reason} goes on with ${then}`);
    }
  };
  const rounds = []; // what is done, and what is then heard
  for (const event of C.events) {
    const last = rounds.at(-1);
    if (event.what === "reply") last.replies.push(wire.unhex(event.hex));
    else if (event.what === "refusal") last.replies.push(new Trouble("refused", "", null, event.code));
    else if (!last || last.replies.length) rounds.push({ done: [event], replies: [] });
    else last.done.push(event);
  }
  const todo = async (conversation) => {
    const done = [];
    for await (const each of conversation.todo()) done.push(each);
    return done;
  };
  const shown = async (conversation, { what, line, message, seconds }) => {
    if (!line) return JSON.stringify(seconds ? { what, seconds } : { what });
    const { server, request, run } = line, { bytes } = await conversation.whole({ line, message });
    return JSON.stringify({ what, server, request, ...(run ? { run } : {}), hex: wire.hex(bytes) });
  };
  const carried = async (conversation, lines, replies, carry) => { // run by run: each draws when its answers are here
    for (const run of new Set(lines.map((line) => line.run))) {
      const ours = lines.flatMap((line, i) => line.run === run ? i : []);
      const came = ours.filter((i) => !(replies[i] instanceof Trouble));
      for (const i of ours.filter((i) => !came.includes(i))) conversation.broke(lines[i], replies[i]);
      await carry(conversation, came.map((i) => lines[i]), came.map((i) => replies[i]));
      await conversation.play();
    }
  };
  const whole = (conversation, lines, replies) => lines.forEach((line, i) => {
    conversation.heard(line, replies[i]);
    conversation.ended(line);
  });
  const pieces = async (conversation, lines, replies) => {
    const sizes = [1, 7, 2, 64, 3, 501, 5], at = lines.map(() => 0);
    for (let n = 0; at.some((from, i) => from < replies[i].length); n++) {
      const i = n % lines.length, size = sizes[n % sizes.length];
      if (at[i] >= replies[i].length) continue;
      check(conversation.wants(lines[i]), "wants more");
      conversation.heard(lines[i], replies[i].slice(at[i], (at[i] += size)));
      if (at[i] >= replies[i].length) conversation.ended(lines[i]);
      if (n % 3 === 0) await null;
    }
  };
  const restarted = (conversation, lines, replies) => lines.forEach((line, i) => {
    const reply = replies[i];
    conversation.heard(line, reply.slice(0, reply.length / 2));
    const before = conversation.taken(line);
    conversation.again(line);
    conversation.heard(line, wire.unhex("3c68746d6c3e")); // a proxy said something
    conversation.again(line);
    conversation.heard(line, reply.slice(0, 3));
    conversation.heard(line, reply.slice(3));
    conversation.ended(line);
    check(before < conversation.taken(line) && conversation.taken(line) === conversation.expected(line), "restarted");
  });
  const same = (seen) => seen.revealed.join(" ") === C.revealed && wire.same(seen.positions, C.positions)
    && wire.same(seen.records.map(wire.hex), C.records) && wire.same(seen.honest, C.honest);
  const played = async ({ conversation, left }, carry) => {
    for (const { done, replies } of rounds) {
      const doing = await todo(conversation), says = [];
      for (const each of doing) says.push(await shown(conversation, each));
      check(wire.same(says, done.map((each) => JSON.stringify(each))), `effects, ${carry.name}`);
      await carried(conversation, doing.flatMap(({ line }) => line ?? []), replies, carry);
    }
    check(left.length === 0, "all is drawn");
    return conversation.result();
  };
  for (const carry of [whole, pieces, restarted]) {
    const begun = begin(), seen = await played(begun, carry);
    check(same(seen), `result, ${carry.name}`);
    const { explanations, liars } = await explained(deployment, begun.conversation, own, wishes);
    const { regions } = deployment, levels = (codes) => schema.features.map((f) => codes.get(f));
    for (const [i, record] of seen.records.entries()) {
      const bytes = (await spir.unpackage(record)).slice(0, -64);
      const codes = regions ? regions.read(bytes).codes : levels(explanations[i].codes);
      check(wire.same(codes, C.codes[i]), `record ${i}`);
    }
    check(explanations.length === C.codes.length, "all records");
    check(!C.liars || wire.same(liars, C.liars), "liars");
  }
  const attempt = {}; // what broke off is sent again, byte for byte, and nothing is drawn for that
  await played(begin({ made: attempt }), whole);
  const again = begin({ made: attempt });
  again.left.length = 0;
  if (deployment.joint) { // but attempts go on where they were, and here they have their answers
    const { conversation } = again, doing = await todo(conversation);
    check(doing.every(({ line }) => !line) && same(await conversation.result()), "goes on");
    await attempts();
    return failed;
  }
  check(same(await played(again, whole)), "sent again");
  if (begin().conversation.runs.length > 1) return failed;
  const [{ replies }] = rounds;
  {
    const { conversation } = begin(), [first, ...others] = (await todo(conversation)).map(({ line }) => line);
    conversation.heard(first, replies[0].slice(0, 40));
    const [one, two] = [new Error("one"), new Error("two")];
    conversation.broke(first, one);
    check(others.every((line) => conversation.wants(line)), "reads on");
    whole(conversation, others, replies.slice(1));
    check(await refusal(() => todo(conversation)) === one, "a broken line");
    conversation.broke(others[0], two);
    check(await refusal(() => todo(conversation)) === one, "of two broken lines the first");
  }
  const [right, others] = replies, other = right.slice();
  other[0] ^= 1;
  for (const said of [others, other, right.slice(0, 10), right.slice(0, -1), wire.concat(right, other)]) {
    const { conversation } = begin(), [{ line }] = await todo(conversation);
    conversation.heard(line, said);
    const error = await refusal(() => conversation.ended(line));
    check(error?.code === "malformed_answer" && error.server === C.addresses[0], "another head");
  }
  for (const seat of C.honest) { // a control
    const { conversation } = begin();
    const error = await refusal(async () => {
      for (const [n, { replies }] of rounds.entries()) {
        const lines = (await todo(conversation)).flatMap(({ line }) => line ?? []);
        const said = replies.map((reply) => reply.slice());
        if (n === 0) said[seat][said[seat].length - conversation.expected(lines[seat])] ^= 1;
        whole(conversation, lines, said);
      }
      check(!same(await conversation.result()), `a changed byte of server ${seat + 1}`);
    });
    check(error === null || ["malformed_answer", "too_many_liars"].includes(error.code), String(error));
  }
  return failed;
}"""


def test_the_page_has_the_conversations_that_python_has(browser: Browser, credit: Service) -> None:
    """Every effect of `conversation.json` and `regions.json`, which `test_conversation.py` replays in Python."""
    page = opened(browser, credit.urls[0], credit.urls)
    cases = json.loads((VECTORS / "conversation.json").read_text("utf-8"))
    cases |= json.loads((VECTORS / "regions.json").read_text("utf-8"))["conversations"]
    failed = [each for case in cases.items() for each in page.evaluate(REPLAYED, case)]
    cases["differences"]["events"][0]["hex"] = "00"
    control = page.evaluate(REPLAYED, ("differences", cases["differences"]))
    linked = cases["joint, one of three servers lies"] | {"liars": [2]}
    linked["events"][5]["hex"] = linked["events"][5]["hex"][:-2] + "00"  # the end of a tape
    control += page.evaluate(REPLAYED, ("joint", linked))
    page.close()
    assert failed == []
    assert {"differences: effects, whole", "joint: effects, whole", "joint: liars"} <= set(control)


SETS = """async (cases) => {
  const { Feature } = await import("/web/schema.js"), { Regions, words } = await import("/web/boxes.js");
  const failed = [];
  let count = 0;
  const check = (right, what) => { count++; if (!right) failed.push(what); };
  for (const c of cases) {
    const feature = new Feature(c.feature), costs = c.costs.map(BigInt), schema = { costed: [feature] };
    const regions = new Regions(schema, false), text = (tables) => JSON.stringify(tables.map((t) => t.map(Number)));
    const record = (codes) => {
      const view = new DataView(new ArrayBuffer(2 * codes.length));
      codes.forEach((code, i) => view.setUint16(2 * i, code, true));
      return new Uint8Array(view.buffer);
    };
    for (const [codes, said] of c.sets) {
      const found = words(feature, regions.read(record(codes)).members[0]);
      check(found === said, `${feature.name} ${codes}: ${found}, not ${said}`);
    }
    for (const codes of [...c.refused, c.largest.map((code) => code + 1)]) {
      let refused = false;
      try { regions.read(record(codes)); } catch { refused = true; }
      check(refused, `${feature.name} ${codes}`);
    }
    check(text(regions.tables([costs])) === JSON.stringify(c.tables), `${feature.name}: tables`);
    const every = c["every interval"];
    if (every.length) check(text(new Regions(schema, true).tables([costs])) === JSON.stringify([every]), feature.name);
  }
  return [failed, count];
}"""


def test_the_page_has_the_sets_that_python_has(browser: Browser, credit: Service) -> None:
    """The codes, words and costs of sets in `regions.json`, which `test_regions.py` holds Python to."""
    page = opened(browser, credit.urls[0], credit.urls)
    failed, count = page.evaluate(SETS, json.loads((VECTORS / "regions.json").read_text("utf-8"))["sets"])
    page.close()
    assert failed == []
    assert count > 200


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, list[dict[str, Any]]]]:
    """Regions around few people, so that they are found fast, and people whom the model rejects."""
    frame, schema = german_credit()
    people, model = Columns(frame), german_credit_model()
    some = people.rows(np.arange(people.count) < 120)
    database = Database.build(some, schema, model, "good", record="region", clamp=True)
    rejected = people.rows(model.predict(people.select(schema.names)) == "bad").people()
    asking = [{name: person[name] for name in schema.names} for person in rejected[:3]]
    with running(tmp_path_factory.mktemp("regions"), database, 2) as service:
        yield service, asking


def ways_in(database: Database, person: dict[str, Any], wishes: dict[str, Any]) -> list[WayIn]:
    """Return the ways into all regions that are nearest, by a search in the clear: several may cost the same."""
    deployment = local(database).deployment
    layout = deployment.tariff.layout
    _, costs = compile_question(deployment, deployment.schema.codes(person), Preferences.of(wishes))
    records = [decode(database.schema, "region", record.tobytes()) for record in database.records]
    paid = [sum(costs.of(layout.nearest(costs, record))) for record in records]
    nearest = [record for record, cost in zip(records, paid, strict=True) if cost == min(paid)]
    found = [explain(deployment, costs, person, [record]) for record in nearest]
    return [each for each in found if isinstance(each, WayIn)]


@pytest.mark.parametrize("wishes", [{}, {"metric": "fewest"}, {"immutable": ["age"]}])
def test_the_way_into_a_region_is_pythons(
    browser: Browser, regions: tuple[Service, list[dict[str, Any]]], wishes: dict[str, Any]
) -> None:
    service, asking = regions
    for person in asking:
        page = opened(browser, service.urls[0], service.urls, ticket=ticket(service), person=person)
        if "immutable" in wishes:
            wish(page, "age", change="locked")
        page.locator("#fewest").set_checked("metric" in wishes)
        sentence = answered(page)["sentence"]
        assert sentence.endswith("; everything else may stay as it is.")
        (expected,) = [way for way in ways_in(service.database, person, wishes) if way.text() == sentence][:1]
        assert expected.certificate is not None
        assert page.text_content("#certificate") == expected.certificate.text()
        said = page.inner_text("#answer")
        assert "accepts everybody who meets these conditions; this was proven." in said
        assert "This is no promise, and it need not be the reason why you were rejected." in said
        assert expected.certificate.text() not in said  # folded
        assert page.locator(".track .now").count() == len(expected.changes)
        shown = dict(
            zip(page.locator("tbody th").all_inner_texts(), page.locator("td.after").all_inner_texts(), strict=True)
        )
        expectedly = {capital(each.feature.title): each.accepted() for each in expected.changes}
        assert {name: re.sub("^(about|exactly) ", "", text) for name, text in shown.items()} == expectedly
        assert all(("about" in text) is text.startswith("about") for text in shown.values())
        assert "one region with each ticket" in page.inner_text("#lasts")
        page.close()


MANIFESTS = """async ({ manifests, issuer, operators, addresses }) => {
  const { connect } = await import("/web/client.js");
  const real = window.fetch, shown = {}; // servers that differ are asked for all their manifests: each shows one
  window.fetch = async (url) => {
    const [address, path] = String(url).split("/v1/");
    return new Response(JSON.stringify(path === "manifests" ? [shown[address]] : (shown[address] = manifests.shift())));
  };
  try {
    const session = await connect(addresses, { issuer, operators });
    return [...session.peers.keys()].join();
  } catch (error) {
    return error.code;
  } finally {
    window.fetch = real;
  }
}"""


def test_servers_are_who_they_say(browser: Browser, credit: Service) -> None:
    """The manifests of the vectors, and those manifests with one thing altered."""
    said = json.loads((VECTORS / "service.json").read_text("utf-8"))["manifests"]
    terms = json.loads(said[0]["issued"]["terms"])
    page = opened(browser, credit.urls[0], [])

    def connected(both: list[Any] = said, **changes: Any) -> str:
        given = {"issuer": terms["issuer"], "operators": terms["keys"][:1], "addresses": both[0]["issued"]["addresses"]}
        return str(page.evaluate(MANIFESTS, {"manifests": both} | given | changes))

    def altered(which: list[int], path: tuple[str, ...], value: Any) -> str:
        both = json.loads(json.dumps(said))
        for n in which:
            inner = both[n]
            for name in path[:-1]:
                inner = inner[name]
            inner[path[-1]] = value
        return connected(both, addresses=said[0]["issued"]["addresses"])

    own = said[0]["issued"]["addresses"]
    assert connected() == "1,2"
    assert connected(addresses=[url + "/" for url in own]) == "1,2"
    assert connected(issuer=None) == "no_issuer"
    assert connected(issuer=terms["keys"][0]) == "impostor"
    assert connected(operators=["00" * 32]) == "impostor"
    assert connected(addresses=own[::-1]) == "impostor"
    assert connected(addresses=[own[0], "https://elsewhere.example"]) == "impostor"
    assert connected(addresses=["http://one.example", own[1]]) == "plain"
    assert connected([said[0], said[0]]) == "disagree"
    both = [0, 1]
    assert altered([1], ("key",), "00" * 16) == "disagree"
    assert altered(both, ("key",), "00" * 16) == "impostor"
    assert altered([1], ("instance",), "00" * 16) == "impostor"
    assert altered([1], ("software",), "other") == "impostor"
    assert altered([1], ("signature",), said[0]["signature"]) == "impostor"
    assert altered(both, ("issued", "signature"), "00" * 64) == "impostor"
    assert altered(both, ("issued", "addresses"), [own[0], "https://evil.example"]) == "impostor"
    assert altered(both, ("issued", "terms"), said[0]["issued"]["terms"] + " ") == "impostor"
    assert altered([1], ("issued", "terms"), said[0]["issued"]["terms"] + " ") == "disagree"
    assert altered([1], ("signature",), 7) == "malformed_answer"
    page.close()


def test_what_is_sent_is_noise(browser: Browser, tmp_path: Path) -> None:
    """300 questions of two very different people, recorded at the socket: same lengths, no difference by chi-square."""
    database = numbers_database(16, 2)
    with running(tmp_path, database, 2, is_open=True, relays=True) as service:
        relays = service.relays
        page = opened(browser, service.processes[0].url, [])
        counts = np.zeros((2, 2, 16), dtype=np.int64)  # person, server, nibble
        lengths, expiries = set(), set()
        secrets: list[set[tuple[bytes, bytes]]] = [set(), set()]
        for who, person in enumerate(({"x0": 0, "x1": 0}, {"x0": 20, "x1": 20})):
            for relay in relays:
                relay.seen.clear()
            page.evaluate(
                """async ({ person, count }) => {
                  const client = await import("/web/client.js");
                  const config = JSON.parse(document.getElementById("config").textContent);
                  const session = await client.connect(config.servers, config);
                  const own = new Map(session.deployment.schema.costed.map((f) => [f, f.code(person[f.name])]));
                  for (let i = 0; i < count; i++) await client.ask(session, "", own, new Map());
                }""",
                {"person": person, "count": 150},
            )
            for n, relay in enumerate(relays):
                for body in bodies(bytes(relay.seen)):
                    message = wire.decode_request(body, "query" if b"record" not in body[:16] else "record-query")
                    claims = wire.decode_ticket(message.ticket).claims
                    secrets[n].add((claims.id, message.secret))
                    expiries.add(claims.expires)
                    lengths.add((n, message.kind, len(body)))
                    if message.kind == "query":  # of whole symbols only: q is no power of two
                        payload = np.frombuffer(message.body[: len(message.body) - 2], dtype=np.uint8)
                        counts[who, n] += np.bincount(payload & 15, minlength=16)
        page.close()
        assert len(lengths) == 4
        drawn = [{secret for _, secret in each} for each in secrets]  # one for each question and server
        assert [len(each) for each in secrets] == [len(each) for each in drawn] == [2 * 150] * 2
        assert not drawn[0] & drawn[1]
        assert {expires % (service.issued.terms.window // 4) for expires in expiries} == {0}  # no clock to the second
        for n in range(2):
            first, second = counts[:, n]
            total = first + second
            expected = np.stack([total * first.sum() / total.sum(), total * second.sum() / total.sum()])
            statistic = float((((counts[:, n] - expected) ** 2) / expected).sum())
            assert statistic < 44.3  # chi-square with 15 degrees of freedom: one time in ten thousand


def bodies(seen: bytes) -> list[bytes]:
    found = []
    while seen:
        head, _, seen = seen.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
        if head.startswith(b"POST"):
            found.append(seen[:length])
        seen = seen[length:]
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_accessibility(
    browser: Browser, credit: Service, people: list[dict[str, Any]], scheme: Any, width: int
) -> None:
    size = {"width": width, "height": 900}
    page = opened(
        browser,
        credit.urls[0],
        credit.urls,
        ticket=[ticket(credit), ticket(credit)],
        person=people[0],
        color_scheme=scheme,
        viewport=size,
    )
    wish(page, "duration of the credit", change="down", hard=3, high=40)
    for step in ("form", "review", "answer"):
        found = Axe().run(page).response["violations"]
        assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")], step
        for direction in ("rtl", "ltr"):
            page.evaluate("(dir) => { document.documentElement.dir = dir; }", direction)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), step
        if step == "form":
            reviewed(page)
        elif step == "review":
            page.click("#ask")
            page.wait_for_selector("#answer:not([hidden])")
    page.close()


def test_by_keyboard_alone(browser: Browser, credit: Service, people: list[dict[str, Any]]) -> None:
    page = opened(browser, credit.urls[0], credit.urls, ticket=ticket(credit), person=people[0])
    page.focus("#ticket")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "check"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "review"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "ask"
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer:not([hidden])")
    assert page.evaluate("document.activeElement.id") == "answer"
    page.close()


def test_the_operators_page(browser: Browser, credit: Service, people: list[dict[str, Any]]) -> None:
    address = credit.urls[0] + "/operator"
    assert httpx2.get(address + "/status", timeout=LONG).status_code == 401
    assert httpx2.get(address + "/status", headers={"authorization": "Bearer wrong"}, timeout=LONG).status_code == 401
    with credit.client() as client:
        client.ask(people[0], ticket=credit.ticket(client))
    page = new_page(browser)
    page.goto(address)
    page.fill("#token", "wrong")
    page.click("button")
    page.wait_for_selector("text=not this server's token")
    page.fill("#token", "a token of the operator's own")
    page.click("button")
    page.wait_for_selector("#facts:not([hidden])")
    text = page.inner_text("#facts")
    for words in ("questions answered", "left of 100", "of 50,000 bits are used", "ready", "Given away"):
        assert words in text
    assert re.search(r"given away so far\s+at most [1-9][0-9]* of [0-9]+ rows, each of which is a person's", text)
    assert re.search(r"known attacks would need\s+[0-9]+ tickets or more", text)
    page.select_option("#language", "de")
    assert page.inner_text("h1") == "Dieser Server"
    text = page.inner_text("#facts")
    for words in ("beantwortete Fragen", "von 100 übrig", "von 50.000 Bit sind verbraucht", "bereit", "das neueste"):
        assert words in text
    page.reload()  # the tab remembers the language, and not the token
    assert page.inner_text("#enter button") == "Öffnen"
    page.fill("#token", "a token of the operator's own")
    page.click("button")
    page.wait_for_selector("#facts:not([hidden])")
    assert "Beantwortete Fragen" in page.inner_text("#facts")
    found = Axe().run(page).response["violations"]
    assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")]
    page.close()


def test_no_operators_page_unless_enabled(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(10, 2), 2) as service:
        assert httpx2.get(service.urls[0] + "/operator", timeout=LONG).status_code == 404
        assert httpx2.get(service.urls[0] + "/operator/status", timeout=LONG).status_code == 404
