"""A question from the browser beside one from Python, on the same servers: `python benchmarks/page.py`. Needs Chromium.

M = 10,000 rows, d = 20 features. Both clients do the same work: share, send, recover, fetch, check; and both wait for
the same public steps of 20 ms.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from load import FEATURES, ROWS, make_database
from playwright.sync_api import sync_playwright
from rich import box
from rich.console import Console
from rich.table import Table

from counterveil import Client
from counterveil.keys import PRIVATE, Issuer
from counterveil.tickets import mint

QUESTIONS = 30
ASK = """async ({ servers, tickets, person }) => {
  const client = await import("/web/client.js");
  const session = await client.connect(servers);
  const own = new Map(session.deployment.schema.costed.map((f) => [f, f.code(person[f.name])]));
  const times = [];
  for (const ticket of tickets) {
    const began = performance.now();
    await client.ask(session, ticket, own, new Map());
    times.push(performance.now() - began);
  }
  return times;
}"""


def main() -> None:
    """Ask from both, one after the other, and print medians."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("this benchmark needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder, ports = Path(name), (8713, 8714)
        make_database(folder)
        load = str(Path(__file__).parent / "load.py")
        processes = [
            subprocess.Popen([sys.executable, load, "serve", name, str(n), str(port)])  # noqa: S603
            for n, port in enumerate(ports, 1)
        ]
        urls = [f"http://localhost:{port}" for port in ports]
        person = {f"x{j}": j % 21 for j in range(FEATURES)}
        try:
            with Client(urls, patience=60) as client:
                digest = bytes.fromhex(client.peers[0].manifest.digest)
                issuer, expires = Issuer.load(folder / PRIVATE), int(time.time()) + 3600
                tickets = [mint(digest, [1, 2], expires=expires, issuer=issuer).text() for _ in range(2 * QUESTIONS)]
                python = []
                for ticket in tickets[:QUESTIONS]:
                    began = time.perf_counter()
                    client.ask(person, ticket=ticket)
                    python.append(1000 * (time.perf_counter() - began))
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(urls[0])
            asked = {"servers": urls, "tickets": tickets[QUESTIONS:], "person": person}
            inside = page.evaluate(ASK, asked)
            browser.close()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
    table = Table(title=f"One question, M = {ROWS:,}, d = {FEATURES}, {QUESTIONS} each", box=box.SIMPLE_HEAD)
    table.add_column("client")
    for heading in ("median", "slowest"):
        table.add_column(heading, justify="right")
    for title, times in (("Python", python), ("the page, in Chromium", inside)):
        table.add_row(title, f"{statistics.median(times):.0f} ms", f"{max(times):.0f} ms")
    console = Console()
    console.print(table)
    console.print(f"The page takes {statistics.median(inside) / statistics.median(python):.1f} times as long.")


if __name__ == "__main__":
    main()
