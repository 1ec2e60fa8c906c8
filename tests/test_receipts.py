"""Receipts: the same bytes as the page's, every field checked, another answer asked for by them, and the commands."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import receipt_vectors
from counterveil import Counterfactual, Database, NoCounterfactual, Preferences, local, verify
from counterveil.applicant import receipts
from counterveil.applicant.explain import WayIn
from counterveil.crypto.keys import Issuer, fingerprint
from counterveil.errors import InvalidReceipt, WrongType
from service import Service, cli, numbers_database, running

FILE: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "receipts.json").read_text("utf-8"))
CASES = FILE["receipts"]
ISSUER = bytes.fromhex(FILE["issuer"])
LETTERS = b'{}[],:"\\019eE+-.tfnul \n\xff\xa0\x1b'  # of JSON, and some that it has not
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])


def test_the_file_is_what_the_code_makes() -> None:
    assert json.loads(json.dumps(receipt_vectors.made())) == FILE


@every
def test_recorded_receipts(case: dict[str, Any]) -> None:
    found = verify(case["receipt"].encode(), ISSUER)
    assert found.pinned
    assert found.issuer == ISSUER
    assert found.receipt.encode().decode() == case["receipt"]
    assert verify(found.receipt).pinned is False
    assert (found.to_dict()["question"] is None) is (case["values"] is None)
    short = bytes.fromhex(fingerprint(ISSUER).replace(" ", ""))
    assert verify(case["receipt"].encode(), short).pinned
    with pytest.raises(InvalidReceipt, match=f"issuer: got a key with the fingerprint {fingerprint(ISSUER)}"):
        verify(case["receipt"].encode(), Issuer().public)


def refusal(data: bytes) -> str | None:
    """Return why a receipt is refused; None if it is not."""
    try:
        verify(data)
    except InvalidReceipt as error:
        return str(error)
    return None


@every
@pytest.mark.parametrize("forged", [False, True], ids=["damaged", "forged"])
def test_a_receipt_with_one_thing_otherwise_is_refused(case: dict[str, Any], forged: bool) -> None:
    """Every field of it; also if whoever alters it computes the check anew."""
    count = 0
    for what, text in receipt_vectors.mutated(case["receipt"], forged=forged):
        said = refusal(text.encode())
        assert said, what
        assert said.isprintable()
        count += 1
    assert count > 60


def test_other_texts_are_refused() -> None:
    for what, text in receipt_vectors.damaged(CASES[0]["receipt"]):
        assert refusal(text.encode()), what
    for data in (b"\xff" * 9, b'{"\x1b[31m": 1}', b'{"\\u001b[31m": 1}', b"0" * (receipts.LIMIT + 1)):
        with pytest.raises(InvalidReceipt) as error:
            verify(data)
        assert str(error.value).isprintable()


def test_random_damage_is_refused_in_one_line() -> None:
    """Bytes replaced, inserted and removed, with those that JSON is made of."""
    draw, good = random.Random(5), [case["receipt"].encode() for case in CASES]
    for _ in range(1000):
        data = bytearray(draw.choice(good))
        for _ in range(draw.choice((1, 1, 2, 4))):
            at = draw.randrange(len(data))
            some = draw.choices(LETTERS, k=draw.choice((0, 1, 3)))
            data[at : at + draw.choice((0, 1, 1, 9))] = some
        said = refusal(bytes(data))
        assert said.isprintable() if said else bytes(data) in good


def test_records_of_another_database_are_refused() -> None:
    """Signed by the same institution, for other terms."""
    row, cell = CASES[0], CASES[3]
    terms = verify(row["receipt"].encode()).receipt.terms
    made = receipts.make_receipt(terms, [bytes.fromhex(row["signed"][0])], row["date"])
    assert made.encode().decode() == row["receipt"]
    other = verify(cell["receipt"].encode()).receipt.terms
    held = receipt_vectors.database("row").sign(Issuer())
    for issued, signed in ((other, cell["signed"][0][:-2] + "00"), (terms, receipt_vectors.signed(held)[0].hex())):
        with pytest.raises(InvalidReceipt, match="signature: got a wrong one"):
            verify(receipts.make_receipt(issued, [bytes.fromhex(signed)], row["date"]))


def test_a_receipt_tells_of_values_beyond_the_range_as_the_answer_does(tmp_path: Path) -> None:
    """Nothing is certified there, so a region asks for the end of the range; a row has the level that it has."""
    row, region = (case["receipt"] for case in CASES if case["why"].endswith("far"))
    options = {"form": {"unit": 16}, "record": {"model": "5e" * 32}}
    found = local(receipt_vectors.regions(), options=options).ask(receipt_vectors.FAR, clamp=True)
    assert isinstance(found, WayIn)
    read = verify(region.encode())
    asked = {change.feature.name: change.accepted() for change in found.changes}
    assert asked == receipts.conditions(read.schema, read.records[0], receipt_vectors.FAR)
    assert asked == {"income": "at most 5,000 €", "rate": "at least 0.0000000", "Straße 🏠": 'a "b" \\ c'}
    assert set(read.receipt.answers[0].changes or ()) == set(asked)
    (tmp_path / "receipt.json").write_text(region, "utf-8")
    assert "at most 5,000 €" in cli("verify", tmp_path / "receipt.json").stdout
    assert "rate" not in (verify(row.encode()).receipt.answers[0].changes or ())


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_were(number: float) -> None:
    assert float(receipts._number(number)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (-0.0, "0"), (1.0, "1"), (-2500, "-2500"), (0.1 + 0.2, "0.30000000000000004"), (1e-6, "0.000001"),
        (1e-7, "1e-7"), (-1.5e-9, "-1.5e-9"), (1e20, "100000000000000000000"), (1e21, "1e+21"), (5e-324, "5e-324"),
        (2.0**66, "73786976294838210000"), (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_javascript_does(number: float, text: str) -> None:
    assert receipts._number(number) == text


def test_numbers_that_json_has_not_are_refused() -> None:
    for number in (math.inf, math.nan, 10**400):
        with pytest.raises(InvalidReceipt, match="not finite"):
            receipts._number(number)


def test_an_answer_of_one_process_has_no_receipt(small: Database) -> None:
    found = local(small, "table/distances").ask({"x0": 3, "x1": 9})
    assert isinstance(found, Counterfactual)
    with pytest.raises(WrongType, match="receipt: got an answer of servers in one process"):
        found.receipt()


@pytest.fixture(scope="module")
def small() -> Database:
    return numbers_database(40, 2)


def test_another_answer(small: Database) -> None:
    bank, person = local(small, "table/distances"), {"x0": 3, "x1": 9}
    first = bank.ask(person, weights={"x0": 4})
    assert isinstance(first, Counterfactual)
    names = {change.feature.name for change in first.changes}
    dearer = first.another(weights={"x0": 4})
    assert dearer.weights == {"x0": 10 if "x0" in names else 4} | ({"x1": 3} if "x1" in names else {})
    assert first.another(dearer, keep=True).immutable == tuple(c.feature.name for c in first.changes)
    kept = bank.ask(person, first.another(Preferences(), keep=True))
    assert not names & ({change.feature.name for change in kept.changes} if isinstance(kept, Counterfactual) else set())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, small: Database) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("receipts"), small, 2, "--scheme", "table/differences", "-k", 2) as made:
        yield made


@pytest.mark.slow
def test_the_commands(service: Service, tmp_path: Path) -> None:
    where = [part for url in service.urls for part in ("--server", url)]
    person = ["--set", "x0=3", "--set", "x1=9"]
    file, issuer = tmp_path / "receipt.json", service.folder / "issuer.pub"

    used: list[Any] = []

    def ask(*more: object, k: int = 1) -> Any:
        used.append(service.ticket(k=k))
        return cli("ask", *where, *person, "--ticket", used[-1].text(), "--json", *more)

    said = ask("--receipt", file, k=2)
    assert said.returncode == 0, said.stderr
    first = json.loads(said.stdout)
    found = verify(file)
    assert found.to_dict()["question"] is None
    assert [r.values for r in found.records] == [first["record"], *(each["record"] for each in first["others"])]
    whole = file.read_text()
    assert used[0].text() not in whole
    assert used[0].claims.id.hex() not in whole
    said = cli("verify", file, "--issuer", issuer)
    assert said.returncode == 0, said.stderr
    assert "It does not prove:" in said.stdout
    assert "A signed row, answer 2 of 2" in said.stdout
    unpinned = cli("verify", file, "--json")
    assert unpinned.returncode == 4
    assert json.loads(unpinned.stdout)["fingerprint"] == fingerprint(found.issuer)
    assert cli("verify", file, "--issuer", fingerprint(found.issuer)).returncode == 0
    said = cli("verify", file, "--issuer", "00" * 32)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    (tmp_path / "altered.json").write_text(whole.replace(found.receipt.date, "2001-01-01"))
    said = cli("verify", tmp_path / "altered.json", "--json")
    assert said.returncode == 2
    assert json.loads(said.stdout) == {
        "valid": False,
        "error": "check: got something else, expected what the signed parts say",
    }

    again = ask("--receipt", file)
    assert again.returncode == 2
    assert "a file that exists" in again.stderr
    changed = {change["feature"] for change in first["changes"]}
    second = ask("--unlike", file, "--keep", "--receipt", tmp_path / "second.json", "--with-question")
    assert f"must stay as it is ({', '.join(sorted(changed))}): there may be no such answer" in second.stderr
    other = json.loads(second.stdout)
    assert not changed & {change["feature"] for change in other.get("changes", [])}
    said = ask("--unlike", file, "--receipt", tmp_path / "third.json", "--with-question")
    assert "no such answer" not in said.stderr
    third = json.loads(said.stdout)
    receipt = verify(tmp_path / "third.json").receipt
    assert receipt.question == {"x0": 3, "x1": 9}
    assert set(receipt.answers[0].changes or ()) == {change["feature"] for change in third["changes"]}
    assert "the person's value" in cli("verify", tmp_path / "third.json").stdout
    assert "--keep: got no --unlike" in ask("--keep").stderr


@pytest.mark.slow
def test_receipts_of_what_clients_get(service: Service) -> None:
    with service.client() as client:
        found = client.ask({"x0": 3, "x1": 9}, ticket=service.ticket(client))
        nothing = client.ask({"x0": 3, "x1": 9}, ticket=service.ticket(client), ranges={"x0": (4, 4), "x1": (4, 4)})
    assert isinstance(found, Counterfactual)
    assert not isinstance(found, WayIn)
    made = found.receipt(question=True, day="2027-03-01")
    checked = verify(made.encode(), service.issuer.public)
    assert checked.receipt.date == "2027-03-01"
    assert [f.name for f in checked.changes({"x0": 3, "x1": 9})] == list(made.answers[0].changes or ())
    assert isinstance(nothing, NoCounterfactual)
    with pytest.raises(InvalidReceipt, match="date: got 'yesterday', expected a day"):
        found.receipt(day="yesterday")
