"""What a person does after an answer tells something too: no text sends anybody to the issuer after one (rule 10).

Broken in 2026-11: the page advised people to get another ticket after "the record was altered". A lying server whose
operator also issues tickets learned "row j is nearer" from who came for one, in 60 of 60 cases.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from counterveil import errors
from counterveil.applicant import conversation as asking
from counterveil.applicant import explain
from counterveil.cli import ask as cli_applicant
from counterveil.crypto.keys import SERVER_PUBLIC
from relay import Relay
from service import Service, cli, numbers_database, running

pytestmark = pytest.mark.slow

ISSUER = re.compile(r"institution|issuer|another one|new ticket|ask for", re.I)
LATER = "another ticket of your batch, best at another time of your own choosing"


def ask(service: Service, folder: Path, *more: object) -> str:
    (folder / "me.json").write_text(json.dumps({"x0": 3, "x1": 9}))
    (folder / "tickets").write_text(service.ticket().text())
    said = cli(
        "ask", "--terms", folder / "terms", "--operator", folder / "2" / SERVER_PUBLIC, "--tickets", folder / "tickets",
        "--person", folder / "me.json", *more,
    )  # fmt: skip
    return " ".join((said.stdout + said.stderr).split())


@pytest.mark.slow
def test_nothing_fitting_and_a_failed_check_send_nobody_to_the_issuer(tmp_path: Path) -> None:
    with running(tmp_path, numbers_database(30, 2), 2, relays=True) as service:
        said = ask(service, tmp_path, "--immutable", "x0", "--immutable", "x1")
        assert LATER in said
        assert not ISSUER.search(said.replace(LATER, ""))
        altering = service.relays[0]
        altering.alter = lambda data: data[:-1] + bytes([data[-1] ^ 1]) if b"record-answer" in data else data
        said = ask(service, tmp_path)
        assert "was altered" in said
        assert LATER in said
        assert not ISSUER.search(said.replace(LATER, ""))
        assert isinstance(altering, Relay)


def test_no_error_after_an_answer_names_the_issuer() -> None:
    raised = re.findall(r'Tampered\(\s*f?"([^"]*)"', inspect.getsource(asking))
    assert len(raised) >= 4
    for text in [*raised, inspect.getdoc(errors.Tampered) or "", cli_applicant._LATER]:
        assert not ISSUER.search(text)
    assert not re.search("institution|issuer", inspect.getsource(explain.NoCounterfactual))
