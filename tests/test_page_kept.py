"""The page in a real browser: answers that stay, files and print, receipts, another way, and a server that is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

import receipt_vectors
from browser import answered, fill, one_file, opened, send
from counterveil import Categorical, Client, Counterfactual, Database, Numeric, Schema, local, verify
from counterveil.applicant.explain import WayIn
from counterveil.research.datasets import german_credit
from deployed import deployed
from service import Service, running

pytestmark = pytest.mark.slow

CASES = json.loads((Path(__file__).parent.parent / "vectors" / "receipts.json").read_text("utf-8"))["receipts"]


@pytest.fixture(scope="module")
def credit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    frame, schema = german_credit()
    database = Database.build(frame, schema, accepted=("credit", "good"))
    chosen = ["--scheme", "table/differences", "--collusion", 1, "-k", 3]
    with running(tmp_path_factory.mktemp("kept"), database, 3, *chosen) as service:
        yield service


@pytest.fixture(scope="module")
def person(people: list[dict[str, Any]]) -> dict[str, Any]:
    return people[0]


def tickets(service: Service, count: int, **options: Any) -> list[str]:
    return [service.ticket(servers=[1, 2], **options).text() for _ in range(count)]


def saved(page: Page, button: str) -> Path:
    """Press a button that saves a file, and return the file."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).first.click()
    return Path(download.value.path())


def stored(page: Page) -> str:
    text: str = page.evaluate("JSON.stringify({ ...sessionStorage, ...localStorage })")
    return text


def sentences(page: Page) -> list[str]:
    return page.locator("#answer .sentence, #kept .sentence").all_inner_texts()


def test_an_answer_is_never_lost(browser: Browser, credit: Service, person: dict[str, Any]) -> None:
    """Not by another question, not by an error, not when the page is loaded again; until it is forgotten."""
    context = browser.new_context()
    first, second = tickets(credit, 2)
    page = opened(context, credit.urls[0], [], ticket=[first, second], person=person)
    said = answered(page)["sentence"]
    assert said == local(credit.database).ask(person).text()
    page.locator("#anew button").click()
    page.fill("#ticket", first)  # used already
    send(page)
    page.wait_for_selector(".trouble[data-code=ticket_used]")
    assert sentences(page) == [said]
    assert page.locator("#answer").is_hidden()
    page.reload()
    page.wait_for_selector("#features fieldset")
    page.wait_for_selector("#kept .sentence")
    assert sentences(page) == [said]
    assert "Answer 1, of " in page.inner_text("#kept")
    fill(page, credit.database.schema, person)
    page.fill("#ticket", second)
    send(page)
    page.wait_for_selector("#answer:not([hidden])")
    assert len(sentences(page)) == 2
    for ticket in (first, second):
        assert ticket not in stored(page)
    other = opened(context, credit.urls[0], [])
    assert stored(other) == "{}"
    assert other.locator("#kept").is_hidden()
    other.close()
    assert page.inner_text("#earlier") == "You have 1 earlier answer."
    page.get_by_role("button", name="Forget all answers").click()
    assert page.inner_text("#forgotten") == "Forgotten."
    assert page.locator("#earlier").is_hidden()
    assert sentences(page) == []
    assert stored(page) == "{}"
    page.reload()
    page.wait_for_selector("#features fieldset")
    assert page.locator("#kept").is_hidden()
    context.close()


def test_what_is_stored_and_no_answer_is_dropped(browser: Browser, credit: Service) -> None:
    page = opened(browser, credit.urls[0], [])
    for text in ("{", "[1]", '[{"issued": {"terms": "{}"}}]', "null", '"<b>"'):
        page.evaluate("(text) => sessionStorage.setItem('counterveil answers', text)", text)
        page.reload()
        page.wait_for_selector("#features fieldset")
        assert page.locator("#kept").is_hidden()
        assert stored(page) == "{}"
    page.close()


def test_an_answer_as_a_file_on_paper_and_copied(
    browser: Browser, credit: Service, person: dict[str, Any], tmp_path: Path
) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = opened(context, credit.urls[0], [], ticket=tickets(credit, 2), person=person)
    said = answered(page)["sentence"]
    text = saved(page, "Save as a file").read_text("utf-8")
    assert said in text
    page.get_by_role("button", name="Copy as text").click()
    page.wait_for_selector("text=Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == text
    send(page)
    page.wait_for_selector("#answer:not([hidden])")
    page.evaluate("window.print = () => {}")
    page.locator("#kept").get_by_role("button", name="Print").click()
    page.emulate_media(media="print")
    assert [each.is_visible() for each in page.locator(".sentence").all()] == [False, True]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert [each.is_visible() for each in page.locator(".sentence").all()] == [True, True]
    for hidden in ("header", "footer", "#form", "#ticket", "#left", "#checking", "button", "#status"):
        assert not any(each.is_visible() for each in page.locator(hidden).all()), hidden
    context.close()


def choose(page: Page, receipt: bytes) -> None:
    page.set_input_files("#receipt-file", {"name": "receipt.json", "mimeType": "text/plain", "buffer": receipt})


def test_a_receipt_is_pythons_and_is_checked_without_a_network(
    browser: Browser, credit: Service, person: dict[str, Any], tmp_path: Path
) -> None:
    context = browser.new_context()
    (ticket,) = tickets(credit, 1)
    page = opened(context, credit.urls[0], [], ticket=ticket, person=person)
    answered(page)
    bare = saved(page, "Save a receipt").read_bytes()
    found = verify(bare, credit.issuer.public)
    expected = local(credit.database).ask(person)
    assert isinstance(expected, Counterfactual)
    assert found.records[0].values == expected.record
    assert found.to_dict()["question"] is None
    page.get_by_label("with my own values").check()
    whole = saved(page, "Save a receipt").read_bytes()
    question = verify(whole, credit.issuer.public).receipt
    own = {f.name: person[f.name] for f in credit.database.schema.cost_features}
    assert question.question == own
    assert set(question.answers[0].changes or ()) == {change.feature.name for change in expected.changes}
    with credit.client() as client:
        asked = client.ask(person, ticket=credit.ticket(servers=[1, 2]))
    assert isinstance(asked, Counterfactual)
    assert asked.receipt(question=True, day=question.date).encode() == whole
    assert asked.receipt(day=question.date).encode() == bare
    for data in (bare, whole):
        assert ticket.encode() not in data
    context.set_offline(True)
    page.get_by_text("Check a receipt", exact=True).click()
    for data, result in (
        (whole, "ours"), (CASES[0]["receipt"].encode(), "another key"), (bare.replace(b'"date"', b'"d"'), "question"),
        (b"\xff", "file"), (whole[:-2], "file"), (whole.replace(question.date.encode(), b"2001-01-01"), "content"),
    ):  # fmt: skip
        choose(page, data)
        page.wait_for_selector(f"#checked[data-result='{result}']")
    choose(page, whole)
    page.wait_for_selector("#checked[data-result=ours]")
    shown = page.inner_text("#checked")
    assert "What this does not prove" in shown
    assert all(c.feature.show(expected.record[c.feature.name]) in shown for c in expected.changes)
    context.close()


RECEIPTS = """async ({ good, bad }) => {
  const { BadReceipt, makeReceipt, readReceipt } = await import("/web/receipt.js"), failed = [];
  const bytes = (text) => new TextEncoder().encode(text);
  const parted = (hex) => ({ record: hex.slice(0, -128), signature: hex.slice(-128) });
  for (const c of good) {
    const made = await makeReceipt(c.terms, c.signed.map(parted), c.date, c.values);
    if (made !== c.receipt) failed.push(`${c.why}: ${made}`);
    const { terms, question } = await readReceipt(bytes(c.receipt));
    if (JSON.stringify(question) !== JSON.stringify(c.values ? JSON.parse(c.receipt).question : null)) failed.push(c.why);
    if (terms.service !== "vectors") failed.push(c.why);
  }
  for (const [what, text] of bad) {
    try { await readReceipt(bytes(text)); failed.push(what); } catch (error) { if (!(error instanceof BadReceipt)) failed.push(`${what}: ${error}`); }
  }
  return failed;
}"""  # noqa: E501


def test_recorded_receipts_and_every_change_of_them(browser: Browser, credit: Service) -> None:
    """Those of `receipts.json`, to which `test_receipts.py` holds Python; also in another language of the browser."""
    page = opened(browser, credit.urls[0], [], locale="de-DE")
    bad = list(receipt_vectors.damaged(CASES[0]["receipt"]))
    for case in CASES:
        for forged in (False, True):
            bad += receipt_vectors.mutated(case["receipt"], forged=forged)
    failed = page.evaluate(RECEIPTS, {"good": CASES, "bad": bad})
    page.click("#checking summary")
    choose(page, CASES[-1]["receipt"].encode())
    page.wait_for_selector("#checked")
    assert page.locator("#checked .after").first.inner_text() == "höchstens 5.000 €"  # the end of the schema's range
    page.close()
    assert len(bad) > 1000
    assert failed == []


@pytest.mark.parametrize("stays", [False, True])
def test_another_way(browser: Browser, credit: Service, person: dict[str, Any], stays: bool) -> None:
    """The same answer as Python's with `found.another`, side by side with the first, also after a reload."""
    bank = local(credit.database)
    first = bank.ask(person)
    assert isinstance(first, Counterfactual)
    second = bank.ask(person, first.another(keep=stays))
    page = opened(browser, credit.urls[0], [], ticket=tickets(credit, 3), person=person)
    assert answered(page)["sentence"] == first.text()
    assert page.get_by_label("must stay as it is (there may be no such case, and").is_checked()
    if not stays:
        page.get_by_label("Avoid these changes if you can").check()
    page.click("#another")
    page.click("#ask")
    page.wait_for_selector("#kept .sentence")
    page.wait_for_selector("#answer:not([hidden])")
    assert page.inner_text("#tickets") == "1 ticket left"
    shown = page.inner_text("#answer #sentence")
    if not isinstance(second, Counterfactual):
        assert "beyond what is allowed for" in shown
        page.close()
        return
    assert shown == second.text()
    assert page.locator("#beside thead th").all_inner_texts() == ["What", "Yours", "Answer 1", "Answer 2"]
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#beside tbody tr").all()]
    for place, found in ((2, first), (3, second)):
        titles = [change.feature.title for change in found.changes]
        named = {t[:1].upper() + t[1:]: c.accepted() for t, c in zip(titles, found.changes, strict=True)}
        assert {row[0]: row[place] for row in rows if row[place] != "as it is"} == named
    if stays:
        assert not any(row[2] != "as it is" != row[3] for row in rows)
    last = page.input_value("#ticket")
    page.reload()
    page.wait_for_selector("#features fieldset")
    page.wait_for_selector("#kept .sentence")
    assert [row.locator("th, td").all_inner_texts() for row in page.locator("#beside tbody tr").all()] == rows
    page.click("#another")
    page.wait_for_selector(".trouble[data-code=ticket_missing]")
    page.fill("#ticket", last)
    page.click("#another")
    page.click("#ask")
    page.wait_for_selector("#answer:not([hidden])")
    third = bank.ask(person, second.another(first.another(keep=stays), keep=True))
    assert page.inner_text("#answer #sentence") == third.text() or not isinstance(third, Counterfactual)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.close()


def test_all_records_of_a_ticket_are_shown(browser: Browser, credit: Service, person: dict[str, Any]) -> None:
    expected = local(credit.database, "table/differences", k=3).ask(person)
    assert isinstance(expected, Counterfactual)
    page = opened(browser, credit.urls[0], [], ticket=tickets(credit, 1, k=3), person=person)
    answered(page)
    assert len(sentences(page)) == 3
    said = {each.text() for each in (expected, *expected.others)}
    assert set(sentences(page)) <= said or page.get_by_text("This one goes beyond").count()
    heads = page.locator("#beside thead th").all_inner_texts()
    assert heads[2:] == ["Answer 1", "Answer 1, place 2", "Answer 1, place 3"][: len(heads) - 2]
    found = verify(saved(page, "Save a receipt").read_bytes())
    assert len(found.records) == len(heads) - 2
    page.close()


def test_regions_are_kept_and_have_receipts(browser: Browser, tmp_path: Path) -> None:
    """A region is read anew from what was kept, and its receipt is Python's."""
    options = {"form": {"unit": 16}, "record": {"model": "5e" * 32}}
    held, own = receipt_vectors.regions(), receipt_vectors.PERSON
    with deployed(tmp_path, held, 2, options=options) as made:
        page = opened(browser, made.urls[0], [], ticket=made.ticket().text(), person=own)
        said = answered(page)["sentence"]
        page.get_by_label("with my own values").check()
        receipt = saved(page, "Save a receipt").read_bytes()
        page.reload()
        page.wait_for_selector("#kept .sentence")
        assert sentences(page) == [said]
        page.get_by_label("with my own values").check()
        assert saved(page, "Save a receipt").read_bytes() == receipt
        with Client(made.urls) as client:
            found = client.ask(own, ticket=made.ticket())
        page.close()
    assert isinstance(found, WayIn)
    assert found.text() == said
    day = verify(receipt, made.issuer.public).receipt.date
    assert found.receipt(question=True, day=day).encode() == receipt


def test_the_single_file_keeps_answers_too(
    browser: Browser, credit: Service, person: dict[str, Any], tmp_path: Path
) -> None:
    page = opened(browser, one_file(credit, tmp_path), credit.urls)
    data = CASES[3]["receipt"].encode()
    page.get_by_text("Check a receipt", exact=True).click()
    choose(page, data)
    page.wait_for_selector("#checked[data-result='another key']")
    page.close()


def test_one_of_three_servers_is_down(browser: Browser, credit: Service, person: dict[str, Any]) -> None:
    """A ticket for the other two works. A ticket for the one that is down works when it is back."""
    third = credit.processes[2]
    third.kill()
    later = credit.ticket(servers=[1, 3]).text()
    page = opened(browser, credit.urls[0], [], ticket=[*tickets(credit, 1), later], person=person)
    url = credit.urls[2]
    assert page.inner_text("#spare") == (
        f"{url} does not answer. That does not matter if your ticket is for the others."
    )
    assert answered(page)["trouble"] is None
    assert f"{url} did not answer. Your ticket is for the others, so nothing was missed." in page.inner_text("#answer")
    send(page)
    page.wait_for_selector(".trouble[data-code=unreachable]")
    assert page.input_value("#ticket") == later
    third.start()
    third.wait()
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#answer:not([hidden])")
    assert "did not answer" not in page.inner_text("#answer")
    page.close()


FEATURES = (Numeric(name="sum", low=0, high=10, step=1), Categorical(name="status", values=("a", "b"), change="never"))


def test_another_way_that_is_the_same_says_so(browser: Browser, tmp_path: Path) -> None:
    """One accepted row answers everything; where only the institution's rules bind, no advice leads nowhere."""
    rows = {"sum": [7], "status": ["a"], "ok": [True]}
    database = Database.build(rows, Schema(features=FEATURES), accepted="ok")
    with running(tmp_path, database, 2) as service:
        pasted = [service.ticket().text() for _ in range(3)]
        page = opened(browser, service.urls[0], [], ticket=pasted, person={"sum": 3, "status": "a"})
        answered(page)
        assert page.locator(".same").count() == 0
        page.get_by_label("Avoid these changes if you can").check()
        page.click("#another")
        page.click("#ask")
        page.wait_for_selector("#kept .sentence")
        page.wait_for_selector("#answer .same")
        assert page.inner_text("#answer .same").startswith("This is the same answer as answer 1. To get a different")
        assert "This is no promise" in saved(page, "Save as a file").read_text("utf-8")
        page.click("#anew button")
        page.select_option("#f1", "1")
        said = answered(page)["sentence"]
        assert said.startswith("The closest accepted case has something else for: status. The institution's rules do")
        assert said.endswith("so no accepted case fits, and asking again will not help.")
        page.close()
