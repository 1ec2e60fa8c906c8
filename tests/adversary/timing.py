"""Measure what the times of a client's messages tell a server: `python tests/adversary/timing.py [N]`.

For each of several secrets there are two classes of questions, N of each. A relay before server 1 records when messages
arrive and connections end. The area under the ROC curve says how well one time tells the classes apart; 0.5 is chance.
Each secret has a control: the order of events before 2026-11, with a third as many questions. Relay and servers run in
their own processes. Times before and between messages get a third as many questions; the page, which is slowed down,
gets a ninth.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import sync_playwright
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from counterveil.applicant import client as client_module
from counterveil.applicant import explain
from counterveil.applicant.ask import compile_question
from counterveil.applicant.client import AsyncClient
from counterveil.applicant.conversation import Conversation
from counterveil.applicant.exchange import Connections
from counterveil.applicant.offer import Offer
from counterveil.errors import Tampered
from counterveil.institution.database import Database
from counterveil.research.datasets import german_credit
from counterveil.schema.preferences import Preferences
from service import Service, numbers_database, running

TOLERANCE = 0.05


class OldOrder(AsyncClient):
    """The old client: it checks and explains before it hangs up, and it does not wait after compiling."""

    async def _carry(self, conversation: Conversation, chosen: Any, spending: Any = None) -> None:
        async with Connections(self) as lines:
            conversation.meet(chosen.peers or (await self._choose(lines, conversation.ticket)).peers)
            lines.close, closing = AsyncMock(), lines.close  # type: ignore[method-assign]
            lines.close.side_effect = lambda: setattr(lines, "_closed", True)
            await lines.carry(conversation)
            lines.close = closing  # type: ignore[method-assign]
            lines._closed = False  # nothing was closed yet
            deployment = conversation.deployment
            own = deployment.schema.codes(self.person)
            _, costs = compile_question(deployment, own, Preferences.of(self.wishes))
            given = {f.name: f.given(self.person.get(f.name)) for f in deployment.schema.cost_features}
            with suppress(Tampered):
                explain.explain(deployment, costs, given, conversation.checked(costs))

    person: Any = None  # what `ask` was given
    wishes: Any = None


class Hurried(AsyncClient):
    """The old client: the time of the next message shows how long it computed."""

    def _accept(self, issued: Any) -> Offer:
        return super()._accept(issued)._replace(step=1e-6)


def relay(target: str, pipe: Connection) -> None:
    """Pass messages on, alter records when told, and report the time of every event; it runs in its own process."""
    address = urlsplit(target)
    alter = False

    async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal alter
        there, back = await asyncio.open_connection(address.hostname, address.port)
        last = ""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                now = time.perf_counter()
                path = head.split()[1].decode()
                pipe.send((path, now))
                length = _length(head)
                back.write(head + await reader.readexactly(length))
                reply = await there.readuntil(b"\r\n\r\n")
                body = bytearray(await there.readexactly(_length(reply)))
                if path == "/v1/record" and alter:
                    body[-1] ^= 1
                kept = reply.replace(b"connection: close\r\n", b"")  # a liar does not hang up first
                writer.write(kept + body)
                await writer.drain()
                last = path
                pipe.send((f"{path} answered", time.perf_counter()))
                if kept != reply:  # the server did
                    back.close()
                    there, back = await asyncio.open_connection(address.hostname, address.port)
        pipe.send((f"end after {last}", time.perf_counter()))
        back.close()
        writer.close()

    async def main() -> None:
        nonlocal alter
        server = await asyncio.start_server(passing, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        while True:
            told = await loop.run_in_executor(None, pipe.recv)
            if told is None:
                return
            alter = told
            pipe.send("ready")

    asyncio.run(main())


def _length(head: bytes) -> int:
    lines = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lines[0].split(b":")[1]) if lines else 0


class Listening:
    """A relay in front of server 1, and what it saw of each question."""

    def __init__(self, url: str) -> None:
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=relay, args=(url, other), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{self._pipe.recv()}"

    def begin(self, alter: bool) -> None:
        while self._pipe.poll():
            self._pipe.recv()
        self._pipe.send(alter)
        while self._pipe.recv() != "ready":
            pass

    def between(self, first: str, then: str) -> float:
        """Return the seconds between two events of the last question."""
        began = None
        while True:
            event, at = self._pipe.recv()
            if event == first:
                began = at
            if event == then and began is not None:
                return float(at - began)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.terminate()


def auc(first: list[float], second: list[float]) -> float:
    """Return how often a time of the second class is longer than one of the first; ties count half."""
    both = np.concatenate([first, second])
    order = both.argsort(kind="stable")
    ranks = np.empty(both.size)
    ranks[order] = np.arange(1, both.size + 1)
    for value in np.unique(both):
        ranks[both == value] = ranks[both == value].mean()
    above = ranks[len(first) :].sum() - len(second) * (len(second) + 1) / 2
    return float(above / (len(first) * len(second)))


async def measured(
    listening: Listening,
    make: Callable[[], AsyncClient],
    service: Service,
    classes: list[tuple[Any, dict[str, Any], bool]],
    events: tuple[str, str],
    count: int,
    advance: Callable[[], None],
) -> float:
    """Ask N questions of each class, in random order; return the area under the curve."""
    times: list[list[float]] = [[], []]
    order = np.random.default_rng(int(time.time())).permutation(np.repeat([0, 1], count))
    for which in order:
        person, wishes, alter = classes[which]
        client = make()
        client.person, client.wishes = person, wishes  # type: ignore[attr-defined]
        listening.begin(alter)
        ticket = service.ticket(k=service.issued.terms.parameters.k)
        with suppress(Tampered):
            await client.ask(person, wishes, ticket=ticket)
        times[which].append(listening.between(*events))
        advance()
    value = auc(*times)
    return max(value, 1 - value)


def counts(count: int) -> list[int]:
    """Return how many questions a class each experiment asks."""
    few = control(count)
    return [count, count, few, count, few, control(few)]


def control(count: int) -> int:
    """Return how many questions a control gets: a third is enough."""
    return max(1, count // 3)


IN_PAGE = """async ({ ticket, person, weight }) => {
  window.client ??= await import("/web/client.js");
  const config = JSON.parse(document.getElementById("config").textContent);
  window.session ??= await client.connect(config.servers, config);
  const features = session.deployment.schema.costed;
  const own = new Map(features.map((f) => [f, f.code(person[f.name])]));
  await client.ask(session, ticket, own, new Map(features.map((f) => [f, { weight }])));
}"""


def in_the_page(folder: Path, count: int, advance: Callable[[], None]) -> tuple[float, float]:
    """Ask from a Chromium slowed down four times; return the area under the curve, with its waits and without."""
    near, far = ({f"x{j}": v for j in range(8)} for v in (10, 0))
    events, values = ("/v1/answer answered", "/v1/record"), []
    source = (Path(client_module.__file__).parent / "web" / "client.js").read_text("utf-8")
    unwaited = source.replace("await settle(", "void (")
    with (
        running(folder, numbers_database(20_000, 8), 2, "--scheme", "table/differences", "-k", 3, relays=Listening)
        as service, sync_playwright() as playwright,
    ):  # fmt: skip
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for hurried in (False, True):
            page = browser.new_page()
            relays = cast(list[Listening], service.relays)
            if hurried:
                page.route(
                    "**/web/client.js", lambda route: route.fulfill(body=unwaited, content_type="text/javascript")
                )
            page.goto(service.urls[0])
            page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 4})
            many = control(count) if hurried else count
            times: list[list[float]] = [[], []]
            for which in np.random.default_rng(int(time.time())).permutation(np.repeat([0, 1], many)):
                for each in relays:  # also server 2's: a relay whose events nobody takes stops
                    each.begin(False)
                person, weight = ((near, 1), (far, 10))[which]
                page.evaluate(IN_PAGE, {"ticket": service.ticket(k=3).text(), "person": person, "weight": weight})
                times[which].append(relays[0].between(*events))
                advance()
            value = auc(*times)
            values.append(max(value, 1 - value))
            page.close()
        browser.close()
    return values[0], values[1]


def experiments(
    console: Console, folder: Path, count: int, advance: Callable[[], None]
) -> list[tuple[str, float, float]]:
    """Run all experiments; return what each measured for the client and for its control."""
    frame, schema = german_credit()
    credit = Database.build(frame, schema, accepted=("credit", "good"))
    bad = frame.filter(frame["credit"] == "bad")
    person = {name: bad[name][1] for name in schema.names}
    hung_up = ("/v1/record answered", "end after /v1/record")
    impossible = {"immutable": ["age", "purpose", "amount", "duration", "checking_account"]}
    numbers = [f.name for f in schema.cost_features if f.ordered]
    weights = {name: max(3, schema.feature(name).effort) for name in numbers[:9]}
    ranges = {"ranges": dict.fromkeys(weights, (None, None)), "weights": weights}
    found = []

    def run(
        title: str,
        service: Service,
        classes: list[tuple[Any, dict[str, Any], bool]],
        events: tuple[str, str],
        old: type[AsyncClient],
        known: bool = True,
        count: int = count,
    ) -> None:
        listening = Listening(service.urls[0])
        to = {service.urls[0]: listening.url}
        values = []
        for kind in (AsyncClient, old):
            given: dict[str, Any] = {"terms": service.issued} if known else {"servers": service.urls}
            shared = kind(connect_to=to, **given)

            def make(kind: type[AsyncClient] = kind, given: Any = given, shared: AsyncClient = shared) -> AsyncClient:
                return shared if known else kind(connect_to=to, **given)

            many = count if kind is AsyncClient else control(count)
            values.append(asyncio.run(measured(listening, make, service, classes, events, many, advance)))
        listening.close()
        found.append((title, values[0], values[1]))
        console.print(f"{title}: {values[0]:.3f}, control {values[1]:.3f}")

    (folder / "credit").mkdir()
    with running(folder / "credit", credit, 2, "--scheme", "table/differences") as service:
        run("the record was altered, or not: hanging up", service, [(person, {}, False), (person, {}, True)], hung_up,
            OldOrder)  # fmt: skip
        run("nothing fits, or something: hanging up", service, [(person, {}, False), (person, impossible, False)],
            hung_up, OldOrder)  # fmt: skip
        run("nine ranges, or none: manifest to question", service, [(person, {}, False), (person, ranges, False)],
            ("/v1/manifest answered", "/v1/answer"), Hurried, known=False, count=control(count))  # fmt: skip
    (folder / "sealed").mkdir()
    small, someone = numbers_database(200, 3), {"x0": 3, "x1": 9, "x2": 14}
    with running(folder / "sealed", small, 2, "--scheme", "table/sealed") as service:
        run("sealed, the record was altered, or not: hanging up", service, [(someone, {}, False), (someone, {}, True)],
            hung_up, OldOrder)  # fmt: skip
    (folder / "many").mkdir()
    many = numbers_database(20_000, 8)
    near, far = ({f"x{j}": v for j in range(8)} for v in (10, 0))
    spread = {"weights": {f"x{j}": 10 for j in range(8)}}
    with running(folder / "many", many, 2, "--scheme", "table/differences", "-k", 3) as service:
        run("costs lie close, or wide: answer to record", service, [(near, {}, False), (far, spread, False)],
            ("/v1/answer answered", "/v1/record"), Hurried, count=control(count))  # fmt: skip
    if shutil.which("chromium"):
        (folder / "page").mkdir()
        now, before = in_the_page(folder / "page", control(control(count)), advance)
        found.append(("the same, from a slowed Chromium", now, before))
    return found


def main(count: int) -> None:
    """Measure and print; fail if a time tells the classes apart, or if a control's time does not."""
    console = Console()
    with tempfile.TemporaryDirectory() as name, Progress(transient=True) as bar:
        task = bar.add_task("asking", total=2 * sum(n + control(n) for n in counts(count)))
        found = experiments(bar.console, Path(name), count, lambda: bar.advance(task))
    table = Table(title=f"Times that server 1 sees, {count:,} questions a class: AUC", box=box.SIMPLE_HEAD)
    for heading in ("secret: what is timed", "as it is", "control: as it was"):
        table.add_column(heading, justify="left" if ":" in heading and "control" not in heading else "right")
    for title, now, before in found:
        table.add_row(title, f"{now:.3f}", f"{before:.3f}")
    console.print(table)
    slack = [max(TOLERANCE, 2 / np.sqrt(n)) for n in counts(count)]  # with few questions chance moves it further
    told = [title for (title, now, _), most in zip(found, slack, strict=False) if now > 0.5 + most]
    if told:
        raise SystemExit(f"a time tells something: {'; '.join(told)}")
    if not any(before > 0.5 + slack[0] for _, _, before in found):
        raise SystemExit("no control is told apart: this measures nothing")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
