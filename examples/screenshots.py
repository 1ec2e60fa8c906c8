"""Make pictures of every state of the page: `make screenshots`. Needs Chromium.

All of them go to build/screenshots: each state at two widths, light and dark, in two languages. The few that README and
the documentation show go to docs/figures.

They are published, so they must not show the bytes of two servers, which together tell the question. The page never
shows them, and a test checks that.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from demo import make_database
from playwright.sync_api import Browser, Page, Route, sync_playwright

from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.research.processes import Serve, free_port, publish, running
from counterveil.terms.published import read_terms
from counterveil.terms.tickets import mint
from counterveil.terms.wire import SignedTerms

ROOT = Path(__file__).parent.parent
FIGURES, ALL = ROOT / "docs" / "figures", ROOT / "build" / "screenshots"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
NAMES = ("Nordbank", {"en": "Consumer Advice Centre", "de": "Verbraucherzentrale"})
OPERATOR = "for pictures alone"
BATCH = 3  # tickets that one person gets
PUBLISHED = {"filled": "page-form", "review": "page-review", "answer": "page-answer", "noise": "page-noise"}


def main() -> None:
    """Run two servers, go through every state at each size, and save pictures of the page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("screenshots need Chromium: apt-get install chromium")
    shutil.rmtree(ALL, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        database, person = make_database()
        (folder / "token").write_text(OPERATOR)
        ports = [free_port(), free_port()]
        publish(folder, database, [f"http://127.0.0.1:{port}" for port in ports], service="demo", names=NAMES)
        settings = ("--operator-token", folder / "token", "--budget", 50_000, "--issued", 100)
        servers = [Serve(folder, number, port, *settings) for number, port in enumerate(ports, start=1)]
        with running(servers):
            issued, issuer = read_terms(folder / "terms"), Issuer.load(folder / PRIVATE)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            looks = itertools.product(SIZES, ("light", "dark"), ("en", "de"))
            for size, scheme, language in looks:
                (width, height), place = SIZES[size], ALL / f"{size}-{scheme}-{language}"
                place.mkdir(parents=True)
                options: dict[str, Any] = {"viewport": {"width": width, "height": height}, "locale": language}
                page = browser.new_page(**options | {"color_scheme": scheme})
                for state, part in _states(page, servers[0].url, _tickets(issued, issuer), person):
                    _save(page, part, place / f"{state}.png", full_page=True)
                    if (scheme, language) == ("light", "en") and state in PUBLISHED:
                        name = PUBLISHED[state] + ("-phone" if size == "phone" else "")
                        _save(page, part, FIGURES / f"{name}.png", full_page=False)
                page.close()
            _turned(browser, servers[0].url, person)
            browser.close()
    print(f"{len(list(ALL.rglob('*.png')))} pictures are in {ALL}; those that are published are in {FIGURES}.")


def _save(page: Page, part: str, path: Path, *, full_page: bool) -> None:
    if part:
        page.locator(part).screenshot(path=path)
    else:
        page.screenshot(path=path, full_page=full_page)


def _tickets(issued: SignedTerms, issuer: Issuer) -> list[str]:
    expires = int(time.time()) + 600
    return [mint(issued.terms, [1, 2], expires=expires, issuer=issuer).text() for _ in range(BATCH)]


def _states(page: Page, url: str, tickets: list[str], person: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Go through the states of the page; yield each with the part that shows it, or nothing for the whole page."""
    page.goto(url)
    page.wait_for_selector("#features fieldset")
    yield "empty", ""
    page.click("#check")
    page.wait_for_selector(".trouble")
    yield "error", ""
    page.goto("about:blank")
    page.goto(f"{url}/#{urlencode([*(('ticket', each) for each in tickets), ('person', json.dumps(person))])}")
    page.wait_for_selector("#features fieldset")
    page.locator("fieldset details").nth(1).locator("summary").click()
    page.evaluate("scrollTo(0, 0)")
    yield "filled", ""
    page.click("#check")
    yield "review", "#review"
    held: list[Route] = []
    page.route("**/v1/answer", lambda route: held.append(route), times=2)
    page.click("#ask")
    while len(held) < 2:
        page.wait_for_timeout(50)
    yield "asking", ""
    for route in held:
        route.continue_()
    page.wait_for_selector("#answer:not([hidden])")
    yield "answer", "#answer"
    page.locator("#left summary").first.click()
    yield "noise", "#left"
    page.click("#another")
    page.click("#ask")
    page.wait_for_selector("#beside")
    yield "several", ""
    page.goto(f"{url}/operator")
    page.fill("#token", OPERATOR)
    page.click("button")
    page.wait_for_selector("#facts:not([hidden])")
    yield "operator", ""


def _turned(browser: Browser, url: str, person: dict[str, Any]) -> None:
    """Show the form as in a language that is written from right to left."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{url}/#{urlencode([('person', json.dumps(person))])}")
    page.wait_for_selector("#features fieldset")
    page.evaluate("document.documentElement.dir = 'rtl'")
    page.locator("fieldset details").nth(1).locator("summary").click()
    page.screenshot(path=ALL / "right-to-left.png", full_page=True)
    page.close()


if __name__ == "__main__":
    main()
