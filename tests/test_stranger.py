"""The stranger's client, which knows the documents alone, recomputes all vectors, and asks real servers."""

from __future__ import annotations

import ast
import hashlib
import http.client
import json
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest

import make_vectors
from counterveil import Database
from form_vectors import EVEN, MIXED, OTHERS, PERSON, ROWS, forms
from patience import LONG
from service import running
from stranger import dealing, garbled, regions
from stranger.client import PATHS, Asking, Message
from stranger.numbers import bits_of, pack, stream, unpack, xor
from stranger.people import Feature, tables, tariff
from stranger.questions import Question
from stranger.trust import Ticket, check_manifests, newest

TESTS = Path(__file__).parent
VECTORS = TESTS.parent / "vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text("utf-8"))


FORMS = vectors("forms.json")
CASES: dict[str, dict[str, Any]] = (
    FORMS["conversations"] | vectors("conversation.json") | vectors("regions.json")["conversations"]
)


class Replay:
    """Draws what a vector recorded, and carries messages that must be the recorded ones."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.drawn = [(int(each["q"]), [int(v) for v in each["values"].split()]) for each in case["drawn"]]
        self.sent: list[Message] = []
        self.rounds: list[tuple[list[dict[str, Any]], dict[tuple[int, int], dict[str, Any]]]] = [([], {})]
        for event in case["events"]:
            if event["what"] == "send":
                if self.rounds[-1][1]:
                    self.rounds.append(([], {}))
                self.rounds[-1][0].append(event)
            elif event["what"] in ("reply", "refusal"):
                self.rounds[-1][1][event["server"], event.get("run", 0)] = event

    def draw(self, q: int, count: int) -> list[int]:
        recorded, values = self.drawn.pop(0)
        assert (recorded, len(values)) == (q, count)
        return values

    def carry(self, messages: list[Message]) -> list[bytes | str | None]:
        sent, heard = self.rounds.pop(0)
        assert [m.data.hex() for m in messages] == [event["hex"] for event in sent]
        assert [m.request for m in messages] == [event["request"] for event in sent]
        events = [heard[m.server, m.run] for m in messages]
        return [bytes.fromhex(event["hex"]) if "hex" in event else event["code"] for event in events]


def asked(case: dict[str, Any], replay: Replay) -> Asking:
    given = case["terms"], case["key"], case["ticket"], case["person"], case["preferences"]
    return Asking(*given, replay.draw, spread=case["spread"])


def test_the_file_is_what_the_code_makes() -> None:
    assert json.loads(json.dumps(forms(make_vectors.effects, make_vectors.issuer()))) == FORMS


def test_the_stranger_imports_nothing_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "cryptography", "msgspec", "numpy"}
    for path in (TESTS / "stranger").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert {name.split(".")[0] for name in names} <= allowed, path


@pytest.mark.parametrize("case", FORMS["levels"], ids=lambda case: case["feature"]["name"])
def test_values_and_levels(case: dict[str, Any]) -> None:
    feature = Feature(case["feature"])
    assert [[value, feature.level(value)] for value, _ in case["values"]] == case["values"]
    assert [feature.stands_for(level) for level in range(feature.most + 1)] == case["stand_for"]


@pytest.mark.parametrize("wishes", FORMS["costs"]["preferences"])
def test_costs(wishes: str) -> None:
    about = FORMS["costs"]
    features = [f for f in map(Feature, about["schema"]["feature"]) if f.in_cost]
    cases = [case for case in about["cases"] if case["preferences"] == wishes]
    assert cases
    for case in cases:
        own = [f.level(about["people"][case["person"]].get(f.name)) for f in features]
        bounds = tariff(features, about["max_weight"], 1, case["unit"])
        made, _ = tables(features, own, about["preferences"][wishes], bounds)
        assert [" ".join(map(str, table)) for table in made] == case["tables"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_conversations(case: dict[str, Any]) -> None:
    replay = Replay(case)
    found = asked(case, replay).ask(replay.carry)
    assert " ".join(map(str, found.revealed)) == case["revealed"]
    assert found.positions == list(case["positions"])
    assert [package.hex() for package in found.packages] == case["records"]
    assert found.codes == case["codes"]
    assert found.honest == list(case["honest"])
    servers = Ticket(case["ticket"]).servers
    assert found.liars == case.get("liars", [n for place, n in enumerate(servers) if place not in case["honest"]])
    assert not replay.drawn
    assert not replay.rounds


@pytest.mark.parametrize("case", FORMS["conversations"].values(), ids=FORMS["conversations"])
def test_revealed_numbers_are_the_costs_of_the_rows_in_the_order_of_the_ticket(case: dict[str, Any]) -> None:
    terms = json.loads(case["terms"])
    question = Question(terms, case["person"], case["preferences"])
    costs = [question.price(row) for row in case["rows"]]
    levels = [[level for f, level in zip(question.features, row, strict=True) if f.in_cost] for row in case["rows"]]
    assert [question.value(question.s, each) + question.offset for each in levels] == costs
    assert max(costs) <= question.B
    if case["order"] is None:
        assert question.price(case["codes"][0]) == min(costs)
        return
    assert (case["order"] == sorted(case["order"])) != terms["parameters"]["shuffle"]
    standing = [costs[row] if row >= 0 else None for row in case["order"]]
    if question.reveal.startswith("sealed"):
        assert standing[case["positions"][0]] == min(costs)
        return
    relative = question.relative([int(v) for v in case["revealed"].split()], int(terms["q"]))
    excess = [at - (cost or 0) for at, cost in zip(relative, standing, strict=True)]
    assert max(excess) - min(excess) < question.d_min


def test_a_conversation_with_another_level_cost_or_order_fails() -> None:
    case = FORMS["conversations"]["linear/distances"]
    for other in ({"income": 2260}, {"age": 40}, {"school": "middle"}):  # 2250 is halfway, and its level is even
        replay = Replay(case | {"person": case["person"] | other})
        with pytest.raises(AssertionError):
            asked(case | {"person": case["person"] | other}, replay).ask(replay.carry)


def test_the_numbers_that_the_document_works_out() -> None:
    said = " ".join((TESTS.parent / "docs" / "wire-costs.md").read_text("utf-8").split())
    held = vectors("service.json")
    terms, wishes = json.loads(held["manifests"][0]["issued"]["terms"]), held["question"]["preferences"]
    person = held["question"]["person"]

    def worked(scheme: str = "table/differences", d_min: int = 1, encoding: str = "mismatch", **more: Any) -> Question:
        features = [f | ({"encoding": encoding} if f["name"] == "job" else {}) for f in terms["schema"]["feature"]]
        chosen = terms["parameters"] | {"scheme": scheme, "d_min": d_min} | more.pop("parameters", {})
        return Question(terms | {"schema": {"feature": features}, "parameters": chosen}, person, wishes | more)

    def line(numbers: list[int]) -> str:
        return " ".join(map(str, numbers))

    asked = worked()
    assert [line(table) for table in asked.tables] == ["16 9 4 1 0 1 4 9 16 25 36", "300 300 0", "25 0 25", "0 4001"]
    assert all(line(table) in said for table in asked.tables)
    assert (asked.bounds.C, asked.bounds.F, asked.B) == (1000, 4001, 16004)
    reveals = ("distances", "differences", "sealed")
    qs = [worked(f"table/{reveal}").q for reveal in reveals]
    qs += [worked(f"table/{reveal}", 40).q for reveal in ("masked", "masked_differences")]
    assert all(f"| {q:,} |" in said for q in qs)
    metrics = {name: worked(metric=name).tables[0][6] for name in ("l1", "mad", "fewest")}
    assert metrics == {"l1": 20, "mad": 20, "fewest": 751}
    assert [worked(encoding="one-hot", metric=name).tables[1][0] for name in ("l2", "heom")] == [600, 300]
    ranged = worked(ranges={"income": [1700, 4300]}).tables[0]
    assert [level for level, cost in enumerate(ranged) if cost < 4001] == list(range(3, 10))
    assert worked(parameters={"options": {"form": {"unit": 16}}}).tables[0][5] == 1
    stretched = worked("linear/distances", encoding="one-hot")
    assert (stretched.W, stretched.B) == (8001, 4_800_600)
    assert f"x = {line(stretched.x)} and w = {line(stretched.w)}" in said
    assert stretched.price([5, 0, 1, 0]) == 601
    school, job = asked.costed[2], asked.costed[1]
    assert regions.columns(school, asked.tables[2], intervals=False) == [[0, 0, 25], [25, 0, 0]]
    assert f"the table is {line(regions.columns(school, asked.tables[2], intervals=True)[0])}" in said
    assert f"the table {line(regions.columns(job, asked.tables[1], intervals=False)[0])}" in said
    assert asked.relative([10, 32004], 32009) == [0, -10, -5]
    assert asked.choose([2, 4, 7, 12], 3, 0.05) == [0, 2, 3]


def test_sets_of_levels() -> None:
    for case in vectors("regions.json")["sets"]:
        feature = Feature(case["feature"])
        assert regions.largest(feature) == case["largest"]
        assert all(regions.members(feature, codes) for codes, _ in case["sets"])
        for codes in case["refused"]:
            with pytest.raises(ValueError, match=r"code|lowest"):
                regions.members(feature, codes)
        assert regions.columns(feature, case["costs"], intervals=False) == case["tables"]
        if feature.ordered:
            assert regions.columns(feature, case["costs"], intervals=True) == [case["every interval"]]


def test_the_newest_offer_that_all_servers_show_is_taken() -> None:
    for case in vectors("offers.json"):
        found = newest(case["servers"])
        if found is not None:
            text, key = check_manifests(found, found[0]["issued"]["addresses"])
            assert case["newest"] == {"terms": hashlib.sha256(text.encode()).hexdigest(), "key": key}
        assert (found is None) == (case["newest"] is None), case["why"]


def test_packing_messages_and_tickets() -> None:
    held = vectors("wire.json")
    for case in held["packing"]:
        q, values = int(case["q"]), [int(v) for v in case["values"]]
        assert pack(q, values).hex() == case["hex"]
        assert unpack(q, bytes.fromhex(case["hex"]), len(values)) == values
    for case in held["bad_packing"]:
        with pytest.raises(ValueError, match="symbol"):
            unpack(int(case["q"]), bytes.fromhex(case["hex"]), case["count"])
    for case in held["messages"]:
        head = [2, case["kind"], case["server"]]
        if "secret" in case:
            head += [bytes.fromhex(case[name]) for name in ("terms", "key")]
        among = [bytes.fromhex(case["ticket"]), case["request"], case["among"]]
        tail = [bytes.fromhex(case[name]) for name in ("secret", "body") if name in case]
        assert msgspec.msgpack.encode([*head, *among, *tail]).hex() == case["hex"]
    for case in held["tickets"]:
        ticket = Ticket(case["text"])
        said = {name: case[name] for name in ("expires", "service", "servers", "reveal", "liars", "k")}
        assert {name: getattr(ticket, name) for name in said} == said
        assert (ticket.id.hex(), ticket.signature.hex()) == (case["id"], case["signature"])


def test_the_question_of_the_service() -> None:
    held = vectors("service.json")
    manifests, question = held["manifests"], held["question"]
    urls = manifests[0]["issued"]["addresses"]
    text, key = check_manifests(manifests, urls)
    with pytest.raises(ValueError, match="address"):
        check_manifests(manifests, urls[::-1])
    queries = [msgspec.msgpack.decode(bytes.fromhex(each)) for each in question["queries"]]
    first = [int(v) for v in question["symbols"][0]]
    terms = json.loads(text)
    q, alphas = int(terms["q"]), terms["alphas"]
    made = Question(terms, question["person"], question["preferences"])
    pads = [(a - s) * pow(alphas[0], -1, q) % q for a, s in zip(first, made.s, strict=True)]
    drawn = [list(each[8]) for each in queries] + [pads, [0]]
    record = msgspec.msgpack.decode(bytes.fromhex(question["record_queries"][-1]))
    drawn.append(list(record[9]))
    heard = [question["answers"], question["record_answers"]]
    sent = [question["queries"], question["record_queries"]]

    def carry(messages: list[Message]) -> list[bytes | str | None]:
        assert [m.data.hex() for m in messages] == sent.pop(0)
        return [bytes.fromhex(each) for each in heard.pop(0)]

    asking = Asking(
        text, key, question["ticket"], question["person"], question["preferences"], lambda q, count: drawn.pop(0)
    )
    found = asking.ask(carry)
    assert (list(map(str, found.revealed)), found.positions) == (question["revealed"], [question["position"]])
    assert [package.hex() for package in found.packages] == [question["package"]]


def test_sealed_answers() -> None:
    held = vectors("sealed.json")
    for case in held["hash"]:
        x, tweak = (np.frombuffer(bytes.fromhex(case[name]), dtype=np.uint8) for name in ("x", "tweak"))
        assert garbled.hashed(x, tweak).tobytes().hex() == case["hash"]
    least = held["least"]
    answers = [bytes.fromhex(each) for each in least["answers"]]
    position, record = garbled.evaluate(answers, len(least["costs"]), least["bits"], least["record_bytes"])
    assert (position, record.hex()) == (least["position"], least["record"])


class Named:
    """The stream of a name, of which `vectors/joint.json` draws."""

    def __init__(self, name: str, size: int) -> None:
        self.left = stream(hashlib.sha256(name.encode()).digest(), size)

    def octets(self, count: int) -> bytes:
        taken, self.left = self.left[:count], self.left[-(-count // 7) * 7 :]
        return taken

    def symbols(self, q: int, count: int) -> list[int]:
        taken, self.left = self.left[: 8 * count], self.left[8 * count :]
        return [int.from_bytes(taken[at : at + 8], "little") % q for at in range(0, 8 * count, 8)]


@pytest.mark.parametrize("case", vectors("joint.json")["batches"], ids=lambda case: f"{case['rows']} rows")
def test_batches(case: dict[str, Any]) -> None:
    made = dealing.batches(case["rows"], case["bits"], case["k"], case.get("rounds") == "few")
    assert [dealing.written(each) for each in made] == case["batches"]


@pytest.mark.parametrize("case", vectors("joint.json")["tapes"], ids=lambda case: case["drawn"])
def test_tapes(case: dict[str, Any]) -> None:
    made = dealing.batches(case["rows"], case["bits"], case["k"], case.get("rounds") == "few")
    drawn = Named(case["drawn"], 128 + sum(3 * sum(dealing.sizes(each)) + 21 for each in made))
    tapes = dealing.tapes(made, drawn.octets, stream if case["seeded"] else None)
    assert [hashlib.sha256(each).hexdigest() for each in tapes] == case["tapes"]


@pytest.mark.parametrize("case", vectors("joint.json")["questions"], ids=lambda case: case["drawn"])
def test_joint_questions(case: dict[str, Any]) -> None:
    q, k, rows = int(case["q"]), case["k"], len(case["levels"])
    drawn = Named(case["drawn"], 1 << 20)
    s = [*(cost for table in case["costs"] for cost in table), 0]
    noise = drawn.symbols(q, len(s))
    shares = [noise, [(a - b) % q for a, b in zip(s, noise, strict=True)]]
    assert shares == case["symbols"]
    assert [pack(q, each).hex() for each in shares] == case["queries"]
    dealer = drawn if case["dealer"] == "applicant" else Named(f"{case['drawn']}, the server", 1 << 20)
    made = dealing.batches(rows, bits_of(q), k, case.get("rounds") == "few")
    tapes = dealing.tapes(made, dealer.octets, stream if case["seeded"] else None)
    assert [hashlib.sha256(each).hexdigest() for each in tapes] == case["tapes"]
    assert xor(*map(bytes.fromhex, case["answers"])).hex() == "".join(case["records"])


def carried(urls: list[str], messages: list[Message]) -> list[bytes | str | None]:
    """Send messages to real servers, all at the same time."""

    def replied(message: Message) -> bytes | str | None:
        connection = http.client.HTTPConnection(urlsplit(urls[message.server - 1]).netloc, timeout=LONG)
        connection.request("POST", PATHS[message.kind], message.data, {"Content-Type": "application/octet-stream"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return body if response.status == 200 else str(json.loads(body)["code"])

    with ThreadPoolExecutor(len(messages)) as pool:
        replies = list(pool.map(replied, messages))
    if any(isinstance(reply, str) for reply in replies):
        time.sleep(0.2)
    return replies


def manifest(url: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONG)
    connection.request("GET", "/v1/manifest")
    said: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "chosen"),
    [
        ("table/differences", ()),
        ("table/sealed", ()),
        ("linear/distances", ()),
        ("linear/sealed", ("--protocol", "joint")),
    ],
)
def test_real_servers_answer_the_stranger(scheme: str, chosen: tuple[str, ...], tmp_path: Path) -> None:
    schema = MIXED if scheme.startswith("table") else EVEN
    person = PERSON | OTHERS if scheme.startswith("table") else PERSON
    database = Database.build({name: ROWS[name] for name in (*schema.names, "ok")}, schema, accepted="ok")
    wishes = {"weights": {"income": 3}, "immutable": ["school"]}
    with running(tmp_path, database, 2, "--scheme", scheme, *chosen, links=bool(chosen)) as service:
        text, key = check_manifests([manifest(url) for url in service.urls], service.urls)
        asking = Asking(
            text, key, service.ticket().text(), person, wishes, lambda q, n: [secrets.randbelow(q) for _ in range(n)]
        )
        found = asking.ask(lambda messages: carried(service.urls, messages))
        codes = service.database.codes.tolist()
    assert found.codes[0] in codes
    assert asking.question.price(found.codes[0]) == min(asking.question.price(row) for row in codes)
