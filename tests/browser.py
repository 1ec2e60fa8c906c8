"""A real Chromium for tests: Debian's, without a sandbox of its own. Where there is none, tests skip with one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from counterveil import Numeric, Schema
from patience import LONG

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * LONG)
        yield browser
        browser.close()


def new_page(browser: Browser | BrowserContext, **options: Any) -> Page:
    """Open a page that waits as long as tests do."""
    page = browser.new_page(**options)
    page.set_default_timeout(1000 * LONG)
    return page


def opened(
    browser: Browser | BrowserContext,
    address: str,
    servers: list[str],
    *,
    ticket: str | list[str] = "",
    person: dict[str, Any] | None = None,
    **options: Any,
) -> Page:
    """Open the page and wait for its form, or its trouble; whatever it complains of is an error."""
    page = new_page(browser, **options)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security Policy" in said.text else None)
    fragment = [("server", url) for url in servers] + [("person", json.dumps(person or {}))]
    fragment += [("ticket", each) for each in ([ticket] if isinstance(ticket, str) else ticket)]
    page.goto(f"{address}#{urlencode(fragment)}")
    page.wait_for_selector("#features fieldset, .trouble")
    assert not complaints, complaints
    return page


def one_file(service: Any, folder: Path) -> str:
    """Download the page as one file; return its address on the disk."""
    (folder / "one.html").write_text(httpx2.get(service.urls[0] + "/counterveil.html", timeout=LONG).text)
    return f"file://{folder}/one.html"


def fill(page: Page, schema: Schema, person: dict[str, Any]) -> None:
    """Type a person's values in, as a person does: only a page of this machine takes them from a link."""
    for i, feature in enumerate(schema.cost_features):
        control, value = page.locator(f"#f{i}"), person[feature.name]
        if isinstance(feature, Numeric):
            if feature.missing == "level":
                page.locator(f"#f{i}n").set_checked(value is None)
            if value is not None:
                control.fill(str(value))
        else:
            control.select_option("-1" if value is None else str(feature.codes([value])[0]))


def reviewed(page: Page) -> bool:
    """Go on from the form to the review, as a person does who has filled it in; say whether the page lets them."""
    if page.locator("#anew").is_visible():
        page.locator("#anew button").click()
    page.click("#check")
    return page.locator("#review").is_visible()


def send(page: Page) -> None:
    """Ask, as a person does who has filled in the form and looked at it once more."""
    if reviewed(page):
        page.click("#ask")


def answered(page: Page) -> dict[str, Any]:
    """Ask, and return the codes of the record that came back, the sentence, and the trouble, if any."""
    send(page)
    page.wait_for_selector("#answer:not([hidden]), .trouble")
    codes = page.get_attribute("#answer", "data-codes")
    trouble = page.locator(".trouble")
    return {
        "codes": dict(json.loads(codes)) if codes else None,
        "sentence": page.inner_text("#sentence") if page.locator("#sentence").count() else "",
        "trouble": trouble.get_attribute("data-code") if trouble.count() else None,
    }
