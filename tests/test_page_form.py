"""The page's form in a real browser: nothing is filled in, a review before a ticket is spent, languages, and names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from browser import answered, fill, one_file, opened, reviewed
from counterveil import Boolean, Categorical, Client, Counterfactual, Database, Numeric, Ordinal, Schema, local, verify
from counterveil.applicant import client as clients
from service import Service

pytestmark = pytest.mark.slow

WEB = Path(clients.__file__).parent / "web"
NAMES = ("North „Bank“ & \\ <b>", {"en": "Advice Centre", "de": "Verbraucherzentrale", "pt-BR": "Centro"})
SCHEMA = Schema(
    features=(
        Numeric(
            name="income", low=0, high=300_000, step=500, missing="level", format=",.0f",
            label={"en": "yearly income", "de": "Jahreseinkommen"}, unit={"en": "€", "de": "Euro"},
            group={"en": "Money", "de": "Geld"},
        ),
        Ordinal(name="school", values=("none", "some", "much"), labels={"de": ("keine", "etwas", "viel")}),
        Categorical(name="housing", values=("o", "r"), labels=("owned", "rented"), missing="level", group="Home"),
        Boolean(name="owner", group={"en": "Money", "de": "Geld"}),
    )
)  # fmt: skip
ROWS = {"income": [60_000, 90_000], "school": ["much", "some"], "housing": ["o", "r"], "owner": [True, False]}
PERSON = {"income": 12_000, "school": "some", "housing": None, "owner": False}


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    database = Database.build(ROWS | {"ok": [True, True]}, SCHEMA, accepted="ok")

    class Named(Service):
        def publish(self, database: Database, **changes: Any) -> None:
            super().publish(database, names=NAMES, **changes)

    service = Named(tmp_path_factory.mktemp("form"), database, 2)
    yield service
    service.stop()


def posted(page: Page) -> list[str]:
    """Return the addresses of what the page sends from now on, as it sends it."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    return sent


def problems(page: Page) -> list[str]:
    return [each.inner_text() for each in page.locator(".problem").all() if each.is_visible()]


def test_nothing_is_filled_in_and_nothing_is_asked_before_the_review(browser: Browser, bank: Service) -> None:
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text())
    sent = posted(page)
    typed = page.evaluate("Array.from(document.querySelectorAll('[id^=f][id]')).map((e) => [e.id, e.value])")
    assert [value for name, value in typed if re.fullmatch(r"f\d", name)] == ["", "", "", ""]
    assert not page.locator("#f0n").is_checked()
    assert not reviewed(page)
    assert problems(page) == ["Please fill this in."] * 4
    assert "Still to fill in: “Yearly income”, “Owner”, “Housing”, “School”." in page.inner_text(".trouble")
    assert page.evaluate("document.activeElement.id") == "f0"
    fill(page, SCHEMA, PERSON)
    page.fill("#f0", "400000")
    assert not reviewed(page)
    assert problems(page) == ["Yearly income must be between 0 and 300,000 €."]
    page.fill("#f0", "")  # cleared by mistake: that is no answer
    assert not reviewed(page)
    page.check("#f0n")
    assert page.locator("#f0").is_disabled()
    assert reviewed(page)
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#review tbody tr:not(.heading)").all()]
    assert [row[:2] for row in rows] == [
        ["Yearly income", "not given"], ["Owner", "no"], ["Housing", "not given"], ["School", "some"],
    ]  # fmt: skip
    assert page.locator("#review .heading").all_inner_texts() == ["Money", "Home", "More questions"]
    assert "It costs your ticket" in page.inner_text("#review")
    assert page.input_value("#ticket") != ""
    page.click("#back")
    page.uncheck("#f0n")
    page.fill("#f0", "12000")
    assert reviewed(page)
    assert sent == []  # up to here everything happened on this computer
    page.click("#ask")
    page.wait_for_selector("#answer:not([hidden])")
    assert page.inner_text("#sentence") == local(bank.database).ask(PERSON).text()
    assert sent
    assert page.locator("#review").inner_text() == ""
    page.close()


def test_only_what_may_be_missing_can_be_left_out(browser: Browser, bank: Service) -> None:
    page = opened(browser, bank.urls[0], [])
    rather = "I would rather not say, or it does not apply"
    for number, may in ((0, True), (1, False), (2, True), (3, False)):
        card = page.locator("fieldset").filter(has=page.locator(f"#f{number}"))
        assert (rather in (card.text_content() or "")) is may
    fill(page, SCHEMA, PERSON)
    assert not reviewed(page)
    assert page.get_attribute(".trouble", "data-code") == "ticket_missing"
    assert problems(page) == ["A ticket is needed. Paste one here."]
    assert "The institution gives you some" in page.inner_text(".trouble")
    page.fill("#ticket", "no ticket")
    assert not reviewed(page)
    assert page.get_attribute(".trouble", "data-code") == "ticket_forged"
    assert problems(page)[0].startswith("This is not a ticket of this institution.")
    assert page.inner_text("#tickets") == "No ticket here"
    page.fill("#ticket", f"hello this is my ticket\n{bank.ticket().text()}")
    assert problems(page) == []
    assert page.inner_text("#tickets") == "1 ticket left"
    assert reviewed(page)
    page.close()


def test_a_scale_and_limits_in_words(browser: Browser, bank: Service) -> None:
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), person=PERSON)
    card = page.locator("fieldset").filter(has=page.locator("#f0"))
    card.locator("summary").click()
    page.locator("#w0h").fill("10")
    assert page.get_attribute("#w0h", "aria-valuetext") == "nearly impossible"
    page.fill("#w0a", "90000")
    page.fill("#w0b", "10000")
    assert not reviewed(page)
    assert problems(page) == ["Yearly income: the lowest value must not be above the highest."]
    page.fill("#w0a", "10000")
    page.fill("#w0b", "90000")
    page.select_option("#w1c", "locked")
    assert not page.locator("fieldset").filter(has=page.locator("#f1")).locator("details").is_visible()
    assert reviewed(page)
    said = page.inner_text("#review")
    assert "May change; nearly impossible; only 10,000 € to 90,000 €" in said
    assert "Must stay as it is" in said
    page.close()


def test_who_runs_the_servers(browser: Browser, bank: Service) -> None:
    """Names instead of addresses, signed: in the page, in receipts, and on the command line."""
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), person=PERSON)
    assert f"Your computer asks {NAMES[0]} and Advice Centre." in page.inner_text("#intro")
    assert f"Server 2, Advice Centre, {bank.urls[1]}: " in page.inner_text("#keys")
    answered(page)
    assert f"Server 1, {NAMES[0]}, {bank.urls[0]}: " in (page.text_content("#left") or "")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save a receipt").click()
    receipt = Path(download.value.path()).read_bytes()
    page.close()
    assert verify(receipt).receipt.terms.names == NAMES
    with Client(terms=bank.folder / "terms", operators=[bytes.fromhex(bank.issued.terms.keys[1])]) as client:
        found = client.ask(PERSON, ticket=bank.ticket().text())
        assert [peer.name for peer in client.peers][1] == f"server 2 (Advice Centre, {bank.urls[1]})"
    assert isinstance(found, Counterfactual)
    swapped = json.loads(receipt)
    swapped["terms"]["names"][0] = "South Bank"
    with pytest.raises(Exception, match="signature"):
        verify(json.dumps(swapped).encode())


SHAPES = """async () => {
  const { LANGUAGES } = await import("/web/strings.js"), same = {};
  const shape = (x) => typeof x === "object" ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, shape(v)]))
    : typeof x === "function" ? x.length : x.trim() ? "text" : "-";
  for (const [tag, words] of Object.entries(LANGUAGES)) same[tag] = JSON.stringify(shape(words));
  return same;
}"""


def test_every_language_says_everything(browser: Browser, bank: Service) -> None:
    page = opened(browser, bank.urls[0], [])
    shapes = page.evaluate(SHAPES)
    page.close()
    assert sorted(shapes) == sorted(path.stem for path in (WEB / "strings").glob("*.js")) == ["de", "en", "es", "fr"]
    assert len(set(shapes.values())) == 1
    assert '"-"' not in shapes["en"]
    for path in WEB.glob("*.js"):  # no other file says anything to people
        shown = re.findall(r'make\("\w+", [^\n]*?"([A-Z][a-z]+ [^"]*)"', path.read_text("utf-8"))
        assert shown == [], path.name


def test_another_language(browser: Browser, bank: Service) -> None:
    """The browser's language is chosen, another can be, and what was typed stays; explanations follow."""
    page = opened(browser, bank.urls[0], [], ticket=bank.ticket().text(), locale="de-AT")
    assert page.inner_text("h1") == "Was wäre angenommen worden?"
    assert page.get_attribute("html", "lang") == "de"
    assert page.locator("legend").all_text_contents() == ["Jahreseinkommen", "owner", "housing", "school"]
    assert page.locator(".group h2").all_inner_texts() == ["Geld", "Home", "Weitere Fragen"]
    assert "0 bis 300.000 Euro" in page.inner_text("#features")
    assert "Verbraucherzentrale" in page.inner_text("#intro")
    assert page.locator("#f1 option").all_inner_texts() == ["Bitte wählen", "keine", "etwas", "viel"]
    assert page.evaluate("JSON.stringify(sessionStorage)") == "{}"  # nothing is kept that was not chosen
    fill(page, SCHEMA, PERSON)
    page.locator("fieldset").filter(has=page.locator("#f0")).locator("summary").click()
    page.locator("#w0h").fill("10")
    page.select_option("#language", "fr")
    assert page.inner_text("h1") == "Qu’est-ce qui aurait été accepté\u00a0?"
    assert page.locator("#f1 option").all_inner_texts()[1:] == ["none", "some", "much"]  # no French: the values
    assert page.input_value("#f0") == "12\u202f000"
    assert reviewed(page)
    assert "12\u202f000 €" in page.inner_text("#review")
    assert "presque impossible" in page.inner_text("#review")
    page.select_option("#language", "de")
    assert "Das wird Ihr Computer fragen" in page.inner_text("#review")
    assert "fast unmöglich" in page.inner_text("#review")
    page.click("#ask")
    page.wait_for_selector("#answer:not([hidden])")
    said = page.inner_text("#sentence")
    assert "12.000 Euro" in said
    page.select_option("#language", "es")
    assert "El caso aceptado más cercano" in page.inner_text("#answer")
    assert page.inner_text("#left") == "Lo que salió de este ordenador"
    page.reload()
    page.wait_for_selector("#kept .sentence")
    assert page.inner_text("h1") == "¿Qué se habría aceptado?"
    page.select_option("#language", "de")
    assert page.locator("#kept .sentence").inner_text() == said
    assert not page.evaluate("localStorage.length + document.cookie.length")
    page.close()


def test_the_one_file_speaks_every_language(browser: Browser, bank: Service, tmp_path: Path) -> None:
    page = opened(browser, one_file(bank, tmp_path), [], ticket=bank.ticket().text(), locale="es-MX")
    assert page.inner_text("h1") == "¿Qué se habría aceptado?"
    page.select_option("#language", "en")
    fill(page, SCHEMA, PERSON)
    assert answered(page)["sentence"] == local(bank.database).ask(PERSON).text()
    page.close()


HOSTILE = """async (features) => {
  const { Feature } = await import("/web/schema.js");
  return features.map((raw) => { try { new Feature(raw); return "taken"; } catch { return "refused"; } });
}"""


def test_texts_are_checked_as_in_python(browser: Browser, bank: Service) -> None:
    base = {"kind": "ordinal", "name": "x", "values": ["a", "b"]}
    changes: list[dict[str, Any]] = [
        {}, {"label": {"en": "x"}}, {"group": {"pt-BR": "y"}}, {"labels": ["1", "2"]}, {"labels": {"de": ["1", "2"]}},
        {"label": {}}, {"label": {"E": "x"}}, {"label": {"en": ""}}, {"label": 3}, {"label": ["x"]}, {"group": None},
        {"labels": ["1"]}, {"labels": ["1", "1"]}, {"labels": {"de": []}}, {"labels": {"de": "ab"}}, {"labels": "ab"},
        {"label": {"en": "x" * 201}}, {"labels": ["", "2"]},
    ]  # fmt: skip
    page = opened(browser, bank.urls[0], [])
    said = page.evaluate(HOSTILE, [base | change for change in changes])
    page.close()

    def taken(raw: dict[str, Any]) -> str:
        try:
            Schema.from_builtins({"feature": [raw]})
        except Exception:
            return "refused"
        return "taken"

    assert said == [taken(base | change) for change in changes]
    assert said.count("taken") == 5


READ = """async (cases) => {
  const { readNumber, writtenNumber } = await import("/web/numbers.js");
  return [cases.map(([tag, text]) => readNumber(text, tag, "DM") ?? null), ["en", "de", "fr", "es"].flatMap((tag) =>
    [0, 1.234, -12.5, 9000, 12345.678, 1234567.125].filter((x) => readNumber(writtenNumber(x, tag), tag) !== x))];
}"""


def test_numbers_are_read_as_the_language_writes_them(browser: Browser, bank: Service) -> None:
    cases = {
        ("de", "9.000"): 9000, ("de", "9.000,5"): 9000.5, ("de", "9,5"): 9.5, ("de", "9.5"): "ambiguous",
        ("de", "9,000"): "ambiguous", ("de", "1.234.567"): 1234567, ("de", "1.23.456"): "ambiguous",
        ("en", "9,000"): 9000, ("en", "9.000"): "ambiguous", ("en", "9,5"): "ambiguous", ("en", "9,000.5"): 9000.5,
        ("en", "1234.567"): 1234.567, ("en", "0.125"): 0.125, ("en", "9 000"): 9000, ("en", "9,000 DM"): 9000,
        ("fr", "9\u202f000"): 9000, ("fr", "9\u00a0000,5"): 9000.5, ("fr", "9 000"): 9000, ("es", "9.000"): 9000,
        ("es", "9000,5"): 9000.5, ("es", "9'000"): 9000, ("en", "\u22125"): -5, ("en", "abc"): "letters",
        ("en", "12a"): "letters", ("en", ""): None, ("en", "1,,000"): "ambiguous", ("en", "1.2.3"): "ambiguous",
    }  # fmt: skip
    page = opened(browser, bank.urls[0], [], locale="de", ticket=bank.ticket().text())
    read, lost = page.evaluate(READ, list(cases))
    assert dict(zip(cases, read, strict=True)) == cases
    assert lost == []
    fill(page, SCHEMA, PERSON)
    for typed, said in (("viel", "Bitte geben Sie eine Zahl ein: 0 bis 300.000 Euro."), ("9,000", "zwei Arten")):
        page.fill("#f0", typed)
        assert not reviewed(page)
        assert page.input_value("#f0") == typed
        assert said in problems(page)[0]
        assert page.evaluate("document.activeElement.id") == "f0"
    page.fill("#f0", "9.000")
    page.locator("#f0").blur()
    assert page.input_value("#f0") == "9.000"
    assert reviewed(page)
    assert "9.000 Euro" in page.inner_text("#review")
    page.close()


def test_everything_that_is_missing_is_said_at_once(browser: Browser, bank: Service) -> None:
    page = opened(browser, bank.urls[0], [])
    assert not reviewed(page)
    assert "A ticket is needed." in page.inner_text(".trouble")
    assert problems(page)[-1] == "A ticket is needed. Paste one here."
    assert page.evaluate("document.activeElement.id") == "f0"
    page.fill("#ticket", bank.ticket().text())
    assert "A ticket is needed. Paste one here." not in problems(page)
    page.close()
