"""Compare a question from the browser with one from Python, on the same servers: `python benchmarks/page.py`.

It needs Chromium. There are d = 20 features. Both clients do the same work: share, deal, send, recover or evaluate,
fetch, check. Both wait for the same public steps of time. Where servers are linked, the applicant deals.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load import FEATURES, ROWS, make_rows, serving
from playwright.sync_api import Playwright, sync_playwright
from rich import box
from rich.console import Console
from rich.table import Table

from counterveil import Client
from counterveil.crypto.keys import PRIVATE, Issuer
from counterveil.research import processes
from counterveil.terms.tickets import mint

QUESTIONS = 20
JOINT = "table/sealed, joint"
RUNS = (("table/differences", ROWS), ("table/sealed", 1_000), ("table/sealed", ROWS), (JOINT, ROWS), (JOINT, 100_000))
ASK = """async ({ tickets, person }) => {
  const client = await import("/web/client.js");
  const config = JSON.parse(document.getElementById("config").textContent);
  const session = await client.connect(config.servers, config);
  const own = new Map(session.deployment.schema.costed.map((f) => [f, f.code(person[f.name])]));
  const times = [];
  for (const ticket of tickets) {
    const began = performance.now();
    await client.ask(session, ticket, own, new Map());
    times.push(performance.now() - began);
  }
  return times;
}"""


@contextmanager
def served(folder: Path, scheme: str, rows: int) -> Iterator[list[str]]:
    """Run two servers, linked ones if the protocol is joint; return their addresses."""
    if scheme != JOINT:
        with serving(folder, rows, scheme, "localhost") as urls:
            yield urls
        return
    with processes.serving(folder, make_rows(rows), scheme="table/sealed", protocol="joint") as servers:
        yield [server.url for server in servers]


def asked(playwright: Playwright, chromium: str, scheme: str, rows: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each question, from Python and from the page."""
    person = {f"x{j}": j % 21 for j in range(FEATURES)}
    with tempfile.TemporaryDirectory() as name, served(Path(name), scheme, rows) as urls:
        with Client(urls) as client:
            terms = client.peers[0].manifest.terms
            issuer, expires = Issuer.load(Path(name) / PRIVATE), int(time.time()) + 3600
            tickets = [mint(terms, [1, 2], expires=expires, issuer=issuer).text() for _ in range(2 * QUESTIONS)]
            python = []
            for ticket in tickets[:QUESTIONS]:
                began = time.perf_counter()
                client.ask(person, ticket=ticket)
                python.append(1000 * (time.perf_counter() - began))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(urls[0])
        browsed = page.evaluate(ASK, {"tickets": tickets[QUESTIONS:], "person": person})
        browser.close()
    return python, browsed


def main() -> None:
    """Ask from both clients, one after the other, and print the medians."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("this benchmark needs Chromium: apt-get install chromium")
    table = Table(title=f"One question, d = {FEATURES}, {QUESTIONS} each: median (slowest)", box=box.SIMPLE_HEAD)
    table.add_column("scheme")
    for heading in ("M", "Python", "the page, in Chromium", "ratio"):
        table.add_column(heading, justify="right")
    with sync_playwright() as playwright:
        for scheme, rows in RUNS:
            both = asked(playwright, chromium, scheme, rows)
            python, browsed = (statistics.median(times) for times in both)
            shown = [f"{statistics.median(times):.0f} ms ({max(times):.0f})" for times in both]
            table.add_row(scheme, f"{rows:,}", *shown, f"{browsed / python:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
