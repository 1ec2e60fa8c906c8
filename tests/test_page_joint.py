"""The page in a real browser as dealer of the joint protocol: vectors, uploads, and questions to linked servers."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import counterveil
from browser import answered, fill, new_page, opened
from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.research.processes import TERMS, Serve, serving
from counterveil.research.processes import running as running_processes
from counterveil.terms.published import read_terms
from counterveil.terms.tickets import mint
from service import Service, numbers_database, running

pytestmark = pytest.mark.slow

FILE: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "joint.json").read_text("utf-8"))
WEB = Path(counterveil.__file__).parent / "applicant" / "web"

REPLAYED = """async (F) => {
  const [wire, field, joint] = await Promise.all(["wire", "field", "joint"].map((name) => import(`/web/${name}.js`)));
  const failed = [];
  let count = 0;
  const check = (right, what) => { count++; if (!right) failed.push(what); };
  const shown = (b) => b.sizes ? ["outer", ...b.sizes.map((size) => size.join("x"))].join(" ")
    : b.terms ? ["terms", b.words, ...b.terms.map((term) => term.join("."))].join(" ")
    : `and ${b.left / 8} ${b.right / 8}`;
  const stream = async (name, length) => { // docs/wire.md says how the vectors draw
    const raw = await wire.sha256(new TextEncoder().encode(name));
    const key = await crypto.subtle.importKey("raw", raw, "AES-CTR", false, ["encrypt"]);
    const how = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
    const bytes = new Uint8Array(await crypto.subtle.encrypt(how, key, new Uint8Array(length)));
    let at = 0;
    return {
      bytes: (count) => bytes.slice(at, (at += 7 * Math.ceil(count / 7))).slice(0, count),
      elements: (q, count) => {
        const words = new BigUint64Array(bytes.slice(at, (at += 8 * count)).buffer);
        return Array.from(words, (word) => word & (q - 1n));
      },
    };
  };
  const digests = (tapes) => Promise.all(tapes.map(async (tape) => wire.hex(await wire.sha256(tape))));
  for (const { rows, bits, k, rounds, opened, dealt, seeded, batches } of F.batches) {
    const made = joint.planned(rows, bits, k, rounds), what = `${rows} rows`;
    check(wire.same(made.map(shown), batches), `batches of ${what}`);
    check(joint.openedBytes(made) === opened && wire.same(joint.dealtBytes(made, false), dealt)
      && wire.same(joint.dealtBytes(made, true), seeded), `sizes of ${what}`);
  }
  for (const { rows, bits, k, rounds, seeded, drawn, tapes } of F.tapes) {
    const batches = joint.planned(rows, bits, k, rounds), all = joint.openedBytes(batches), told = [];
    const { bytes } = await stream(drawn, 3 * joint.dealtBytes(batches, false)[0] + 21 * batches.length + 64);
    const made = await joint.deal(batches, bytes, seeded, (done, of) => told.push([done, of]));
    check(wire.same(await digests(made), tapes), `${drawn}, seeded: ${seeded}`);
    check(told.length === batches.length && told.at(-1).join() === `${all},${all}`, "progress");
  }
  for (const { batch, drawn, masks, products } of F.gates) {
    const [kind, ...sizes] = batch.split(" ");
    const made = kind === "and" ? new joint.Ands(...sizes.map(Number))
      : kind === "terms" ? new joint.Terms(Number(sizes[0]), sizes.slice(1).map((term) => term.split(".").map(Number)))
      : new joint.Outers(sizes.map((size) => size.split("x").map(Number)));
    const tapes = await joint.deal([made], (await stream(drawn, 4096)).bytes);
    check(wire.same(tapes.map(wire.hex), masks.map((each, seat) => each + products[seat])), batch);
  }
  for (const Q of F.questions) {
    const q = BigInt(Q.q), batches = joint.planned(Q.levels.length, field.bitsOf(q), Q.k, Q.rounds);
    const draw = await stream(Q.drawn, 1 << 18), secret = [...Q.costs.flat(), 0].map(BigInt);
    const queries = field.splitSum(secret, q, draw.elements);
    check(wire.same(queries.map((each) => each.join()), Q.symbols.map((each) => each.join())), `${Q.drawn}: symbols`);
    check(wire.same(queries.map((each) => wire.hex(wire.packVector(each, q))), Q.queries), `${Q.drawn}: queries`);
    const bytes = Q.dealer === "applicant" ? draw.bytes : (await stream(`${Q.drawn}, the server`, 1 << 18)).bytes;
    check(wire.same(await digests(await joint.deal(batches, bytes, Q.seeded)), Q.tapes), `${Q.drawn}: tapes`);
    const party = joint.packages(Q.k, Q.package);
    let step = party.next();
    for (const [seat, answer] of Q.answers.entries()) {
      const { what, source, count } = step.value, bytes = wire.unhex(answer);
      check(what === "take" && source === seat && count === bytes.length, `${Q.drawn}: takes`);
      step = party.next(bytes);
    }
    check(step.done && wire.same(step.value.map(wire.hex), Q.records), `${Q.drawn}: records`);
  }
  return [failed, count];
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("page"), numbers_database(20, 2), 2) as made:
        yield made


def test_the_page_deals_asks_and_reads_as_python_does(browser: Browser, service: Service) -> None:
    page = opened(browser, service.urls[0], service.urls)
    failed, count = page.evaluate(REPLAYED, FILE)
    wrong = json.loads(json.dumps(FILE))
    wrong["batches"][2]["batches"][3] = "and 2 2"
    wrong["tapes"][0]["tapes"].reverse()
    wrong["tapes"][-1]["rounds"] = "balanced"
    wrong["gates"][3]["products"].reverse()
    wrong["gates"][6]["products"].reverse()
    wrong["questions"][0]["records"].reverse()
    wrong["questions"][4]["tapes"].reverse()
    control, _ = page.evaluate(REPLAYED, wrong)
    page.close()
    assert failed == []
    assert count > 90
    assert control == [
        "batches of 5 rows",
        "tape 1 1 1, seeded: false",
        "tape 5000 21 1, few rounds, seeded: true",
        "outer 4x2 2x3",
        "terms 2 2.5 1.2.4 0.1.2.3 0.1.2",
        "question, dealt by the applicant: records",
        "question, dealt by the applicant, few rounds: tapes",
    ]


DEALT = """async ([rows, bits, profile]) => {
  const { planned, deal } = await import("/web/joint.js"), { bytesOf } = await import("/web/spir.js");
  const began = performance.now();
  const [first] = await deal(planned(rows, bits, 1, profile), bytesOf);
  return [performance.now() - began, first.length];
}"""


@pytest.mark.parametrize("profile", ["balanced", "few"])
def test_dealing_for_many_rows_takes_well_under_a_second(browser: Browser, service: Service, profile: str) -> None:
    page = opened(browser, service.urls[0], service.urls)
    page.evaluate(DEALT, [1000, 21, profile])
    took, length = page.evaluate(DEALT, [100_000, 21, profile])
    page.close()
    assert length > 2_000_000
    assert took < 1000


# --- uploads -------------------------------------------------------------------------------------------------------


class Handler(SimpleHTTPRequestHandler):
    """Serves the page's modules, and takes long bodies slowly."""

    seen: list[tuple[str, str, str]]  # path, digest of the body, and content type

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(WEB))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        left, digest = int(self.headers["content-length"]), hashlib.sha256()
        again = any(path == self.path for path, *_ in self.seen)
        if self.path == "/breaks" and not again:
            self.seen.append((self.path, "", ""))
            self.rfile.read(left // 2)
            self.close_connection = True
            return
        while left:
            part = self.rfile.read(min(left, 1 << 18))
            digest.update(part)
            left -= len(part)
            time.sleep(0.01)  # so that the browser must wait, and tells how far it is
        self.seen.append((self.path, digest.hexdigest(), self.headers["content-type"]))
        status, said = 200, digest.hexdigest().encode()
        if self.path == "/busy" and not again:
            status = 503
        elif self.path == "/used":
            status, said = 409, b'{"code": "ticket_used"}'
        elif self.path == "/long":
            said = bytes(1 << 20)
        elif self.path == "/moved":
            status = 307
        self.send_response(status)
        self.send_header("content-length", str(len(said)))
        if status == 307:
            self.send_header("location", "/whole")
        self.end_headers()
        self.wfile.write(said)


@contextmanager
def slow_server() -> Iterator[str]:
    Handler.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


UPLOADED = """async ([path, length, patience]) => {
  const { request } = await import("/network.js");
  const body = new Uint8Array(length).map((_, i) => i % 251), told = [];
  try {
    const options = { patience, sent: (count) => told.push(count) };
    const said = await request(location.origin, path, body, 1000, options);
    return { said: new TextDecoder().decode(said), told };
  } catch (error) {
    return { code: error.code, server: error.server, detail: error.detail, told };
  }
}"""


def uploaded(page: Page, path: str, length: int = 1 << 20, patience: int = 5000) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(UPLOADED, [path, length, patience])
    return found


def test_long_bodies_tell_how_much_was_sent(browser: Browser) -> None:
    def body(length: int) -> str:
        return hashlib.sha256((bytes(range(251)) * (length // 251 + 1))[:length]).hexdigest()

    with slow_server() as url:
        page = new_page(browser)
        page.goto(f"{url}/style.css")
        found = uploaded(page, "/whole", length=16 << 20)
        assert found["said"] == body(16 << 20)
        assert found["told"] == sorted(found["told"])
        assert 0 < found["told"][0] < found["told"][-1] == 16 << 20
        for path in ("/breaks", "/busy"):  # the same bytes are sent again
            assert uploaded(page, path)["said"] == body(1 << 20)
            assert [seen[0] for seen in Handler.seen].count(path) == 2
        found = uploaded(page, "/used")
        assert (found["code"], found["server"]) == ("ticket_used", url)
        found = uploaded(page, "/long")
        assert (found["code"], found["detail"], found["server"]) == ("malformed_answer", "too long", url)
        assert uploaded(page, "/moved", patience=0)["code"] == "unreachable"
        short = uploaded(page, "/whole", length=1000)
        assert short == {"said": body(1000), "told": []}
        assert {kind for *_, kind in Handler.seen if kind} == {"application/octet-stream"}
        page.close()


def test_a_server_that_refuses_a_long_body_is_heard(browser: Browser, service: Service) -> None:
    page = opened(browser, service.urls[0], service.urls)
    for url in service.urls:  # of the page's own origin, and of another
        said = page.evaluate(
            """async (url) => {
              const { request } = await import("/web/network.js");
              const body = new Uint8Array(1 << 19);
              try { await request(url, "/v1/answer", body, 1000, { patience: 0 }); return null; }
              catch (error) { return [error.code, error.detail, error.server]; }
            }""",
            url,
        )
        assert said == ["refused", "HTTP 413", url]
    page.close()


# --- questions to linked servers -------------------------------------------------------------------------------------

JOINT: dict[str, Any] = {"scheme": "table/sealed", "protocol": "joint"}
PERSON = {"x0": 3, "x1": 9, "x2": 14}


def new_ticket(folder: Path) -> str:
    terms = read_terms(folder / TERMS).terms
    issuer, expires = Issuer.load(folder / PRIVATE), int(time.time()) + 3600
    return mint(terms, [1, 2], expires=expires, issuer=issuer, k=terms.parameters.k).text()


def asking(browser: Browser, folder: Path, servers: list[Serve], **options: Any) -> Page:
    return opened(browser, servers[0].url, [], ticket=new_ticket(folder), person=PERSON, **options)


@pytest.mark.parametrize("options", [{}, {"options": {"protocol": {"rounds": "few"}}}])
def test_linked_servers_give_the_nearest_rows(browser: Browser, tmp_path: Path, options: dict[str, Any]) -> None:
    database = numbers_database(3000, 3)
    costs = sorted(sum(abs(int(c) - v) for c, v in zip(row, PERSON.values(), strict=True)) for row in database.codes)
    with serving(tmp_path, database, k=3, **JOINT, **options) as servers:
        page = asking(browser, tmp_path, servers)
        found = answered(page)
        assert found["trouble"] is None
        codes = found["codes"]
        assert sum(abs(codes[name] - value) for name, value in PERSON.items()) == costs[0]
        sentences = page.locator("#answer .sentence").all_inner_texts()
        assert len(sentences) == 3
        assert len(set(sentences)) == 3
        assert page.locator("#answer h3").all_inner_texts() == [f"The accepted case in place {n}" for n in (2, 3)]
        left = page.text_content("#left") or ""
        assert "Message 1: " in left
        assert "Message 2: " not in left  # one question up, one record down
        assert "3 accepted rows with each ticket" in page.inner_text("footer")
        assert answered(page)["trouble"] == "ticket_none_left"
        page.close()


def test_the_one_file_asks_linked_servers(browser: Browser, tmp_path: Path) -> None:
    database = numbers_database(50, 3)
    with serving(tmp_path, database, **JOINT) as servers:
        page = opened(browser, servers[0].url, [])
        text = page.evaluate("fetch('/counterveil.html').then((said) => said.text())")
        page.close()
        (tmp_path / "one.html").write_text(text)
        page = opened(browser, f"file://{tmp_path}/one.html", [], ticket=new_ticket(tmp_path))
        fill(page, database.schema, PERSON)
        assert answered(page)["trouble"] is None
        page.close()


def test_the_operators_page_says_how_servers_are_linked(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a token of some length")
    monkeypatch.setenv("COUNTERVEIL_SERVE_OPERATOR_TOKEN", str(tmp_path / "token"))
    with serving(tmp_path, numbers_database(50, 3), **JOINT) as servers:
        page = asking(browser, tmp_path, servers)
        assert answered(page)["trouble"] is None
        page.close()
        page = new_page(browser, locale="de")
        page.goto(f"{servers[0].url}/operator")
        page.fill("#token", "a token of some length")
        page.click("#open")
        page.wait_for_selector("#facts:not([hidden])")
        said = " ".join(page.inner_text("#facts").split())
        page.close()
    assert re.search(r"verbunden mit Server 2: \d+ Verbindung(en)?, [0-9,]+ ms hin und zurück", said)
    assert re.search(r"1 vollendet, 0 abgebrochen; \d+ Runden, 0(,\d)? MiB von anderen Servern", said)
    assert re.search(r"Abgewiesen \d+ min, höchstens 0 je Minute", said)


def test_servers_that_cannot_reach_each_other(browser: Browser, tmp_path: Path) -> None:
    """The words, the ticket that is given back, and Try again, which goes on."""
    with serving(tmp_path, numbers_database(50, 3), **JOINT) as servers:
        ports = [server.port for server in servers]
    nowhere = ("--link", "http://127.0.0.1:9")
    with running_processes([Serve(tmp_path, n, port, *nowhere) for n, port in enumerate(ports, start=1)]):
        page = asking(browser, tmp_path, servers)
        ticket = page.input_value("#ticket")
        assert answered(page)["trouble"] == "peer_unreachable"
        assert "cannot reach each other right now. Your ticket is not used." in page.inner_text("#status")
        assert page.input_value("#ticket") == ticket
    with running_processes([Serve(tmp_path, n, port) for n, port in enumerate(ports, start=1)]):
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector("#answer:not([hidden])")
        assert page.input_value("#ticket") == ""
        page.close()


def test_a_server_that_is_down_is_asked_again(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, numbers_database(50, 3), **JOINT) as servers:
        page = asking(browser, tmp_path, servers)
        servers[1].kill()
        assert answered(page)["trouble"] == "unreachable"
        servers[1].start()
        servers[1].wait()
        page.get_by_role("button", name="Try again").click()
        page.wait_for_selector("#answer:not([hidden])")
        page.close()
