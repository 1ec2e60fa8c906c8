"""Make the pictures of the page in README: `make screenshots`. Needs Chromium.

They are published, so they must not show the bytes of two servers, which together tell the question. The page never
shows them, and a test checks that.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from demo import make_database
from playwright.sync_api import sync_playwright

from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.research.processes import serving
from counterveil.terms.published import read_terms
from counterveil.terms.tickets import mint

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
SIZES = {"": (1100, 800), "-phone": (390, 760)}
BATCH = 3  # tickets that one person gets


def main() -> None:
    """Run two servers, ask once at each size, and save pictures of the page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("screenshots need Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        database, person = make_database()
        with serving(folder, database, service="demo") as servers:
            terms, issuer = read_terms(folder / "terms").terms, Issuer.load(folder / PRIVATE)
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for suffix, (width, height) in SIZES.items():
                expires = int(time.time()) + 600
                batch = [mint(terms, [1, 2], expires=expires, issuer=issuer).text() for _ in range(BATCH)]
                page = browser.new_page(viewport={"width": width, "height": height})
                fragment = [*(("ticket", ticket) for ticket in batch), ("person", json.dumps(person))]
                page.goto(f"{servers[0].url}/#{urlencode(fragment)}")
                page.wait_for_selector("#features fieldset")
                page.locator("details").first.locator("summary").click()
                page.screenshot(path=FIGURES / f"page-form{suffix}.png")
                page.click("#ask")
                page.wait_for_selector("#answer:not([hidden])")
                page.locator("#answer").screenshot(path=FIGURES / f"page-answer{suffix}.png")
                page.locator("#left").screenshot(path=FIGURES / f"page-noise{suffix}.png")
                page.close()
            browser.close()
    print(f"Six pictures are in {FIGURES}.")


if __name__ == "__main__":
    main()
