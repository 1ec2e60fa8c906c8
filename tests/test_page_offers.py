"""The page takes the newest offer that its servers have in common: by vectors, and with real servers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from browser import chromium, new_page
from counterveil import Deployment
from counterveil.crypto.keys import CommonKey
from counterveil.service.epochs import make_epoch
from counterveil.terms.published import make_terms, sign_terms
from deployed import Liar, deployed
from service import numbers_database

_ASK = """async ([servers, ticket]) => {
  const client = await import("/web/client.js");
  const config = JSON.parse(document.getElementById("config").textContent);
  const session = await client.connect(servers, config);
  const own = new Map(session.deployment.schema.costed.map((feature) => [feature, 0]));
  const found = await client.ask(session, ticket, own, new Map());
  return [session.deployment.terms.rows, Object.keys(found).length > 0];
}"""
_VECTORS = """async (cases) => {
  const { newest } = await import("/web/manifests.js"), { digestOf, hex } = await import("/web/wire.js"), failed = [];
  for (const { why, servers, newest: wanted } of cases) {
    const addresses = servers[0][0].issued.addresses;
    const found = newest(new Map(servers.map((list, i) => [addresses[i], list])));
    const [first] = found?.values() ?? [null];
    const taken = first && { terms: hex(await digestOf(first.issued.terms)), key: first.key };
    if (JSON.stringify(taken) !== JSON.stringify(wanted)) failed.push(why);
  }
  return failed;
}"""


def test_the_page_takes_the_newest_offer_in_common(tmp_path: Path) -> None:
    cases = json.loads((Path(__file__).parents[1] / "vectors" / "offers.json").read_text())
    chosen: dict[str, Any] = {"scheme": "table/differences", "collusion": 1, "servers": 2}
    with chromium() as browser, deployed(tmp_path, numbers_database(30, 3), 2) as made:
        newer = numbers_database(40, 3).sign(made.issuer)
        deployment = Deployment.of(newer.schema, **chosen)
        keys = [key.public for key in made.own]
        terms = make_terms(newer, deployment, keys=keys, service="tests", begins=int(time.time()))
        issued = sign_terms(terms, made.urls, made.issuer)
        rows = [made.terms.rows, terms.rows]
        for has_newer, asked in (((False, False), 0), ((True, False), 0), ((True, True), 1)):
            for n, has in enumerate(has_newer, start=1):
                epochs = [make_epoch(made.database, made.issued, made.deployment)]
                epochs += [make_epoch(newer, issued, deployment)] if has else []
                ledger, own = made.servers[n - 1].ledger, made.own[n - 1]
                made.servers[n - 1] = Liar(n, epochs, keys=[CommonKey(made.common)], own=own, ledger=ledger)
            made.restart()
            page = new_page(browser)
            page.goto(made.urls[1])
            ticket = made.ticket(servers=None if asked else [1, 2])
            assert page.evaluate(_ASK, [made.urls, ticket.text()]) == [rows[asked], True]
            page.close()
        page = new_page(browser)
        page.goto(made.urls[0])
        assert page.evaluate(_VECTORS, cases) == []
        page.close()
