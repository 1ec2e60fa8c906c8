"""Attacks on the page: links, copies of servers, people on the network path, pictures of the screen, and clocks."""

from __future__ import annotations

import json
import re
import socket
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import msgspec
import pytest
from playwright.sync_api import Browser, Page, Route

from browser import answered, fill, new_page, one_file, opened
from counterveil.crypto.keys import SigningKey
from counterveil.schemes.protocols import Size
from counterveil.terms import wire
from deployed import PERSON, Deployed, deployed, garbage, show
from patience import LONG, wait_until
from relay import Relay
from service import numbers_database, numbers_schema

pytestmark = pytest.mark.slow

WINDOW = 8  # bytes that appear by chance nowhere


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Deployed]:
    with deployed(tmp_path, numbers_database(40, 3), 2) as made:
        yield made


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[Deployed]:
    """Servers of somebody else, who would answer anybody."""
    (tmp_path / "evil").mkdir()
    with deployed(tmp_path / "evil", numbers_database(40, 3), 2) as made:
        yield made


def trouble(page: Page) -> str | None:
    return page.get_attribute(".trouble", "data-code")


def posts(made: Deployed) -> list[str]:
    return [path for seen in made.seen for method, path, _ in seen if method == "POST"]


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_a_link_cannot_bring_other_servers(browser: Browser, bank: Deployed, evil: Deployed) -> None:
    for servers in (evil.urls, [bank.urls[0], evil.urls[1]], ["nonsense"]):
        page = opened(browser, bank.urls[0], servers, ticket=evil.ticket().text(), person=PERSON)
        assert trouble(page) == "other"
        assert not page.locator("#status button, #status textarea, #status input").count()
        assert page.locator("#form").is_hidden()
        page.close()
    assert evil.seen == [[], []]
    page = opened(browser, bank.urls[0], [bank.urls[1] + "/"], ticket=bank.ticket().text(), person=PERSON)
    assert answered(page)["trouble"] is None  # its own are no others, and all of them are asked
    page.close()
    assert posts(bank) == ["/v1/answer", "/v1/record"] * 2


def test_the_single_file_asks_nobody_without_the_issuers_word(
    browser: Browser, bank: Deployed, evil: Deployed, tmp_path: Path
) -> None:
    address = one_file(bank, tmp_path)
    page = opened(browser, address, evil.urls, ticket=evil.ticket().text(), person=PERSON)
    assert trouble(page) == "impostor"
    page.close()
    clones = [Relay(url) for url in bank.urls]  # the bank's own manifests, from elsewhere
    page = opened(browser, address, [clone.url for clone in clones], ticket=bank.ticket().text(), person=PERSON)
    assert trouble(page) == "impostor"
    page.close()
    for clone in clones:
        clone.close()
    assert posts(evil) == posts(bank) == []
    page = opened(browser, address, bank.urls, ticket=bank.ticket().text())
    fill(page, numbers_schema(3), PERSON)
    assert answered(page)["trouble"] is None
    page.close()


@pytest.mark.parametrize("clone", [0, 1])
def test_a_clone_with_another_key_is_refused(browser: Browser, bank: Deployed, clone: int) -> None:
    """The copy has the bundle and the common key, and repeats what the real server says, but it cannot sign that."""
    server = bank.servers[clone]
    signature = SigningKey().sign("manifest", *server.manifest.signed()).hex()
    show(server, msgspec.structs.replace(server.manifest, signature=signature))
    bank.restart()
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), person=PERSON)
    assert trouble(page) == "impostor"
    assert not page.locator("#servers").count()
    page.close()
    assert posts(bank) == []


def test_a_page_knows_whose_word_it_was_loaded_on(browser: Browser, tmp_path: Path) -> None:
    """The server whose key is in the page must get a share; otherwise its honesty helps nobody."""
    with deployed(tmp_path, numbers_database(40, 3), 3) as made:
        for servers, expected in (([2, 3], "ticket_for_other_servers"), ([1, 3], None)):
            text = made.ticket(servers=servers).text()
            page = opened(browser, made.urls[0], [], ticket=text, person=PERSON)
            assert answered(page)["trouble"] == expected
            page.close()


def _instead(whole: str, route: Route) -> None:
    route.fulfill(body=whole, content_type="text/html")


def test_a_page_without_an_issuer_asks_nobody(browser: Browser, bank: Deployed) -> None:
    config = re.escape('<script type="application/json" id="config">') + ".*?</script>"
    for said in ({"servers": bank.urls, "fixed": True}, {"servers": bank.urls, "fixed": False}, {}):
        whole = httpx2.get(bank.urls[0], timeout=LONG).text
        bare = re.sub(config, f'<script type="application/json" id="config">{json.dumps(said)}</script>', whole)
        page = new_page(browser)
        page.route(bank.urls[0] + "/", partial(_instead, bare))
        page.goto(bank.urls[0] + "/")
        page.wait_for_selector(".trouble")
        assert trouble(page) == "no_issuer"
        page.close()
    assert not [path for seen in bank.seen for _, path, _ in seen if path.startswith("/v1")]


def test_plain_http_is_for_this_machine_alone(browser: Browser, bank: Deployed, tmp_path: Path) -> None:
    asked: list[str] = []
    page = new_page(browser)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{one_file(bank, tmp_path)}#server=http://one.example&server=https://two.example")
    page.wait_for_selector(".trouble")
    assert trouble(page) == "plain"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()
    page = opened(browser, bank.urls[0], [])
    hosts = {
        "http://localhost:1": "", "http://127.0.0.1:1/a": "", "http://127.9.9.9": "", "http://[::1]:2": "",
        "https://one.example": "", "http://one.example": "plain", "http://127.0.0.1.example": "plain",
        "http://localhost.example": "plain", "http://127.evil.example": "plain", "http://10.0.0.1": "plain",
        "http://[::2]": "plain", "http://localhost@evil.example": "plain", "ftp://localhost": "addresses",
        "javascript:alert(1)": "addresses", "one.example": "addresses", "": "addresses",
    }  # fmt: skip
    found = page.evaluate(
        """async (hosts) => {
          const { addressOf } = await import("/web/manifests.js");
          const said = (host) => { try { addressOf(host); return ""; } catch (error) { return error.code; } };
          return Object.fromEntries(hosts.map((host) => [host, said(host)]));
        }""",
        list(hosts),
    )
    page.close()
    assert found == hosts


def test_the_policy_lets_nothing_out_to_others(browser: Browser, bank: Deployed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
        page = opened(browser, bank.urls[0], [])
        fetched = """async (url) => { try { await fetch(url, { mode: "no-cors" }); return "sent"; }
          catch { return "blocked"; } }"""
        assert page.evaluate(fetched, bank.urls[1] + "/v1/manifest") == "sent"
        assert page.evaluate(fetched, address) == "blocked"
        page.evaluate("(url) => { new Image().src = url; navigator.sendBeacon(url, 'x'); }", address)
        page.close()
        elsewhere.settimeout(0.3)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_a_link_brings_nobodys_data_but_on_this_machine(browser: Browser, bank: Deployed) -> None:
    """A link stays in the browser's history."""

    def served(route: Route) -> None:
        real = httpx2.get(bank.urls[0] + urlsplit(route.request.url).path, timeout=LONG)
        kind, allowed = real.headers["content-type"], {"access-control-allow-origin": "*"}
        route.fulfill(body=real.content, content_type=kind, headers=allowed)

    for host, honoured in (("https://page.example", False), ("https://127.0.0.1.example", False), (bank.urls[0], True)):
        context = browser.new_context()
        page = new_page(context)
        if not honoured:
            page.route(re.compile(re.escape(host) + "/.*"), served)
            for url, server in zip(bank.urls, bank.servers, strict=True):
                said = msgspec.json.encode(server.manifest).decode()
                page.route(url + "/v1/manifest", partial(_said, said))
        page.goto(f"{host}/#{urlencode({'person': json.dumps(PERSON), 'ticket': 'mine'})}")
        page.wait_for_selector("#features fieldset")
        shown = {name: page.input_value(f"#f{i}") for i, name in enumerate(PERSON)}
        assert shown == {name: str(value) if honoured else "" for name, value in PERSON.items()}
        assert page.input_value("#ticket") == "mine"
        assert "#" not in page.url
        context.close()


def _said(text: str, route: Route) -> None:
    route.fulfill(body=text, content_type="application/json", headers={"access-control-allow-origin": "*"})


# --- what the screen shows -------------------------------------------------------------------------------------------

SHOWN = """() => {
  const bytes = [...document.querySelectorAll("canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return [0, 1, 2].map((channel) => Array.from(data).filter((_, i) => i % 4 === channel));
  }).flat();
  const values = [...document.querySelectorAll("input, textarea, select")].map((node) => node.value);
  return { bytes, text: document.documentElement.outerHTML + values.join(" ") };
}"""


@pytest.mark.parametrize(
    ("scheme", "servers"), [("table/differences", 2), ("table/sealed", 2), ("table/differences", 3)]
)
def test_the_screen_shows_one_server_alone(browser: Browser, tmp_path: Path, scheme: str, servers: int) -> None:
    """All text, all attributes, all pixels and the console show nothing of what the other servers got or answered."""
    with deployed(tmp_path, numbers_database(200, 3), servers, scheme=scheme, collusion=servers - 1) as made:
        page = opened(browser, made.urls[0], [], ticket=made.ticket().text(), person=PERSON)
        exchanged: list[tuple[wire.Request, bytes]] = []

        def keep(response: Any) -> None:
            sent = response.request.post_data_buffer
            if response.request.method == "POST" and sent:
                kind: wire.RequestKind = "query" if response.url.endswith("/v1/answer") else "record-query"
                exchanged.append((wire.decode_request(sent, kind), wire.decode_reply(
                    response.body(), "answer" if kind == "query" else "record-answer").body))  # fmt: skip

        console: list[str] = []
        page.on("response", keep)
        page.on("console", lambda said: console.append(said.text))
        assert answered(page)["trouble"] is None
        page.locator("#left summary").first.click()
        page.wait_for_selector("#left canvas")
        wait_until(lambda: len(exchanged) >= 2 * servers, lambda seconds: page.wait_for_timeout(1000 * seconds))
        shown = page.evaluate(SHOWN)
        text = page.inner_text("#left")
        page.close()
    everything = shown["text"] + " ".join(console)
    visible = [bytes(each) for each in shown["bytes"]]
    for run in re.findall(r"[0-9a-fA-F]{16,}", everything):
        visible += [bytes.fromhex(run[at : at + (len(run) - at) // 2 * 2]) for at in (0, 1)]
    windows = {each[at : at + WINDOW] for each in visible for at in range(len(each) - WINDOW + 1)}

    def seen(data: bytes) -> int:
        return sum(data[at : at + WINDOW] in windows for at in range(len(data) - WINDOW + 1))

    assert len(exchanged) == 2 * servers
    for request, answer in exchanged:
        assert not seen(request.secret)
        if request.server == 1:
            assert any(request.body in each for each in visible)  # a control: this is how it would be found
            assert seen(answer)
        else:
            # Record queries of two servers differ in one bit, and which it is must not be seen.
            assert request.kind != "query" or not seen(request.body)
            assert not any(request.body in each for each in visible)
            assert not seen(answer)
    assert "Only one server's bytes are shown" in text
    assert "server 1" in text
    assert f"Server {servers}, {made.urls[-1]}" in text


# --- what time shows -------------------------------------------------------------------------------------------------

HOOKS = """
  window.events = [];
  const hook = (object, name, label) => {
    const real = object[name].bind(object);
    object[name] = (...given) => { window.events.push(label(given)); return real(...given); };
  };
  hook(window, "fetch", ([url]) => "fetch " + new URL(url).pathname);
  hook(crypto, "getRandomValues", () => "random");
  hook(crypto.subtle, "verify", () => "verify");
  hook(crypto.subtle, "decrypt", () => "decrypt");
  const later = window.setTimeout;
  window.setTimeout = (work, ...given) => later(() => { window.events.push("timer"); work(); }, ...given);
  const sort = Array.prototype.sort;
  Array.prototype.sort = function (...given) {
    window.events.push("sort of " + this.length);
    return sort.apply(this, given);
  };
"""


@pytest.mark.parametrize(("scheme", "k"), [("table/differences", 3), ("table/distances", 1), ("table/sealed", 1)])
def test_nothing_is_computed_between_messages_but_before_the_clock_strikes(
    browser: Browser, tmp_path: Path, scheme: str, k: int
) -> None:
    with deployed(tmp_path, numbers_database(40, 3), 2, scheme=scheme, k=k) as made:
        context = browser.new_context()
        context.add_init_script(HOOKS)
        page = new_page(context)
        page.goto(f"{made.urls[0]}/#ticket={made.ticket(k=k).text()}")
        page.wait_for_selector("#features fieldset")
        fill(page, numbers_schema(3), PERSON)
        page.evaluate("window.events.length = 0")
        assert answered(page)["trouble"] is None
        events = page.evaluate("window.events")
        context.close()
    assert not [event for event in events if re.fullmatch(r"sort of (\d{2,})", event)]  # of servers, never of costs
    asks = [at for at, event in enumerate(events) if event == "fetch /v1/answer"]
    fetches = [at for at, event in enumerate(events) if event == "fetch /v1/record"]
    assert asks == [asks[0], asks[0] + 1]
    assert "random" in events[: asks[0]]  # compiled, then the clock, then sent
    assert events[: asks[0]][::-1].index("timer") < events[: asks[0]][::-1].index("random")
    assert len(fetches) == 2 * k
    between = events[asks[1] + 1 : fetches[0]]
    assert "random" in between
    assert between[-1] == "timer"  # all record messages are ready, then the clock, then they leave
    assert set(events[fetches[0] : fetches[-1] + 1]) == {"fetch /v1/record"}
    assert {"verify", "decrypt"} <= set(events[fetches[-1] :])
    assert "verify" not in events[asks[0] : fetches[-1]]


def test_choosing_takes_as_many_steps_whatever_the_costs(browser: Browser, bank: Deployed) -> None:
    page = opened(browser, bank.urls[0], [])
    counts = page.evaluate(
        """async () => {
          const { nearest } = await import("/web/deployment.js");
          const orders = [[...Array(50).keys()], [...Array(50).keys()].reverse(), Array(50).fill(7),
            [...Array(50).keys()].map((i) => (i * 17) % 50)];
          return orders.map((order) => {
            let looks = 0;
            nearest(order.map((value) => ({ valueOf: () => (looks++, value) })), 5);
            return looks;
          });
        }"""
    )
    page.close()
    assert len(set(counts)) == 1


def test_the_step_is_twice_what_was_rehearsed(browser: Browser, bank: Deployed) -> None:
    """The clock advances by 50 ms every time it is read."""
    page = opened(browser, bank.urls[0], [])
    step = page.evaluate(
        """async () => {
          const { connect } = await import("/web/client.js");
          const config = JSON.parse(document.getElementById("config").textContent), real = performance.now;
          let time = 0;
          performance.now = () => (time += 50);
          try { return (await connect(config.servers, config)).step; } finally { performance.now = real; }
        }"""
    )
    page.close()
    assert step == 100


REHEARSED = """async () => {
  const client = await import("/web/client.js");
  const config = JSON.parse(document.getElementById("config").textContent), real = performance.now;
  const draw = crypto.getRandomValues.bind(crypto);
  let time = 0, drawn = 0;
  crypto.getRandomValues = (into) => { drawn += into.length; return draw(into); };
  performance.now = () => (time += 50);
  try { const { step } = await client.connect(config.servers, config); return { step, drawn }; }
  catch (error) { return { code: error.code, detail: error.detail, drawn }; }
  finally { performance.now = real; delete crypto.getRandomValues; }
}"""


def test_many_rows_are_rehearsed_with_few(browser: Browser, bank: Deployed) -> None:
    page = opened(browser, bank.urls[0], [])
    for rows, step in ((1 << 16, 100), (1 << 17, 200), ((1 << 16) * 5 // 2, 250), (1 << 27, 100 << 11)):
        bank.publish(msgspec.structs.replace(bank.terms, rows=rows))
        said = page.evaluate(REHEARSED)
        assert said["step"] == step
        assert said["drawn"] < 3 * (3 << 16)
    page.close()


@pytest.mark.parametrize(
    "parameters",
    [
        {"scheme": "table/differences", "max_weight": 1 << 40},
        {"scheme": "table/sealed"},
        {"scheme": "table/sealed_record"},
    ],
)
def test_answers_beyond_measure_are_refused_before_anything_is_drawn(
    browser: Browser, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    with deployed(tmp_path, numbers_database(40, 3), 2, **parameters) as made:
        scheme, record = made.deployment.scheme, made.deployment.record_bytes

        def longest(rows: int) -> int:
            asked = scheme.requests(Size(rows, record))[0]
            return asked.answered.packed(max(asked.down))

        most = bisect_left(range(1 << 28), 1 << 30, key=lambda rows: longest(max(1, rows))) - 1
        page = opened(browser, made.urls[0], [])
        for rows, refused in ((most, False), (most + 1, True), ((1 << 28) - 1, True)):
            made.publish(msgspec.structs.replace(made.terms, rows=rows))
            said = page.evaluate(REHEARSED)
            assert said.get("code") == ("terms" if refused else None)
            if refused:
                assert said["detail"] == f"answers of {longest(rows)} bytes"
                assert said["drawn"] == 0
        page.close()


def test_compiling_is_rehearsed_with_the_heaviest_wishes(browser: Browser, bank: Deployed) -> None:
    """The rehearsal finds the levels of all ends of ranges, and no question that the page can ask finds more."""
    page = opened(browser, bank.urls[0], [])
    looked = page.evaluate(
        """async () => {
          const [client, made, schema] = await Promise.all(
            ["client", "deployment", "schema"].map((name) => import(`/web/${name}.js`)));
          const config = JSON.parse(document.getElementById("config").textContent);
          const real = schema.Feature.prototype.code;
          let looks = 0;
          schema.Feature.prototype.code = function (value) { looks++; return real.call(this, value); };
          try {
            const { deployment } = await client.connect(config.servers, config);
            const rehearsed = looks / 3, costed = deployment.schema.costed, most = [];
            for (const change of ["free", "up", "down", "locked"])
              for (const own of [0, 10, 20])
                for (const [low, high] of [[undefined, undefined], [0, 20], [5, 10], [undefined, 20]]) {
                  looks = 0;
                  made.secretOf(deployment, new Map(costed.map((f) => [f, own])),
                    new Map(costed.map((f) => [f, { change, low, high, weight: 7 }])));
                  most.push(looks);
                }
            return [rehearsed, Math.max(...most)];
          } finally { schema.Feature.prototype.code = real; }
        }"""
    )
    page.close()
    assert looked == [6, 6]  # two ends for each of three features


def test_a_ticket_of_ones_own_tells_no_second(browser: Browser, bank: Deployed) -> None:
    page = opened(browser, bank.urls[0], [])
    windows = [2, 3, 7, 60, 600, 86400]
    given = page.evaluate(
        """async (windows) => {
          const { openExpiry } = await import("/web/client.js");
          return windows.map((window) => Array.from({ length: 1000 }, (_, i) => openExpiry(1700000000 + i, window)));
        }""",
        windows,
    )
    page.close()
    for window, all_of_them in zip(windows, given, strict=True):
        step = max(1, window // 4)
        assert all_of_them == [(now + window // 2) // step * step for now in range(1700000000, 1700001000)]
        assert all(0 < each - now <= window for now, each in enumerate(all_of_them, 1700000000))


# --- tickets come in batches -----------------------------------------------------------------------------------------


def test_a_batch_of_tickets(browser: Browser, bank: Deployed) -> None:
    batch = [bank.ticket().text() for _ in range(3)]
    page = opened(browser, bank.urls[0], [], ticket=batch[:2], person=PERSON)
    page.evaluate("(third) => { document.getElementById('ticket').value += '  ' + third; }", batch[2])
    used: list[str] = []

    def keep(request: Any) -> None:
        if request.url.endswith("/v1/answer"):
            sent = wire.decode_request(request.post_data_buffer, "query")
            used.append(wire.decode_ticket(sent.ticket).text())

    page.on("request", keep)
    for n in range(3):
        assert page.input_value("#ticket").split() == batch[n:]
        assert answered(page)["trouble"] is None
        left = 2 - n
        save = "2 tickets left. Save your other tickets now: this page forgets them when you close it."
        assert page.inner_text("#tickets") == ("No ticket here", "1 ticket left", save)[left]
        assert set(used[2 * n :]) == {batch[n]}
        page.evaluate("document.getElementById('answer').hidden = true")
    assert len(used) == 6
    assert answered(page)["trouble"] == "ticket_none_left"
    assert "nstitution" not in page.inner_text("#status")
    page.close()


def test_a_ticket_stays_until_its_bytes_have_left(browser: Browser, bank: Deployed) -> None:
    batch = [bank.ticket(expires=1).text(), bank.ticket().text()]
    page = opened(browser, bank.urls[0], [], ticket=batch, person=PERSON)
    assert answered(page)["trouble"] == "ticket_expired"
    assert page.input_value("#ticket").split() == batch
    page.fill("#ticket", batch[1])
    page.fill("#f0", "9999")
    assert answered(page)["trouble"] == "input"
    assert page.input_value("#ticket") == batch[1]
    assert posts(bank) == []
    page.close()


REFUSALS = [
    ({"code": "other_terms"}, "other_terms"), ({"code": "other_key"}, "other_key"),
    ({"code": "question_first"}, "refused"), ({"code": "ticket_used"}, "ticket_used"),
    ({"code": ["ticket_used"]}, "refused"), ({"code": ["other_key"]}, "refused"), ({"code": {}}, "refused"),
    (None, "refused"), ([], "refused"),
]  # fmt: skip


def _refuse(reason: Any, route: Route) -> None:
    allowed = {"access-control-allow-origin": "*"}
    route.fulfill(status=409, body=json.dumps(reason), content_type="application/json", headers=allowed)


def test_a_refusal_that_used_nothing_up_gives_the_ticket_back(browser: Browser, bank: Deployed) -> None:
    batch = [bank.ticket().text() for _ in range(2)]
    for reason, code in REFUSALS:
        page = opened(browser, bank.urls[0], [], ticket=batch, person=PERSON)
        page.route("**/v1/answer", partial(_refuse, reason))
        assert answered(page)["trouble"] == code
        back = code in ("other_terms", "other_key")
        assert page.input_value("#ticket").split() == (batch if back else batch[1:])
        assert ("reload this page and use the same ticket" in page.inner_text("#status")) is back
        page.unroute("**/v1/answer")
        if back:
            page.evaluate("document.querySelector('.trouble').remove()")
            assert answered(page)["trouble"] is None  # the same page, where the servers are as they were
            batch = [bank.ticket().text() for _ in range(2)]
        page.close()


def test_a_ticket_that_a_server_took_is_not_given_back(browser: Browser, bank: Deployed) -> None:
    """One server answered, the other had new terms; or both answered, and then had new terms."""
    for path in (f"{bank.urls[1]}/v1/answer", f"{bank.urls[0]}/v1/record"):
        page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), person=PERSON)
        page.route(path, partial(_refuse, {"code": "other_terms"}))
        assert answered(page)["trouble"] == "renewed"
        assert page.input_value("#ticket") == ""
        page.close()


def test_no_words_send_anybody_back_because_of_an_answer(browser: Browser, bank: Deployed) -> None:
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), person=PERSON)
    bank.servers[1].on_record = garbage
    assert answered(page)["trouble"] == "tampered"
    said = page.inner_text("#status")
    words = page.evaluate(
        """async () => { const { WORDS } = await import("/web/strings.js");
          return [...WORDS.trouble.tampered, ...WORDS.trouble.too_many_liars, WORDS.relax("age"), WORDS.nothing]; }"""
    )
    page.close()
    for text in (said, *words):
        assert "nstitution" not in text.replace("do not tell the institution", "")
    for text in (said, words[1], words[3]):
        assert "Do not ask again right away, and do not tell the institution" in text
        assert "If you have another ticket, use it another day." in text
    assert "Use another ticket for that, best on another day" in words[4]
