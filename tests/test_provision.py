"""The task file: one public file from which every party starts, and the times of terms and keys on the command line."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from counterveil.cli import main
from counterveil.cli.times import moment, seconds
from counterveil.crypto.keys import SERVER_PRIVATE, read_common_keys, write_server_keys
from counterveil.errors import OutOfRange
from counterveil.research.processes import COMMAND, Process
from counterveil.terms.task import read_task, spoken
from counterveil.terms.wire import decode_ticket_text
from rolling import Rolling
from service import numbers_database


def cli(*arguments: object) -> Result:
    """Run a command in this process, which is quicker than in its own."""
    return CliRunner().invoke(main, [*map(str, arguments)], prog_name="counterveil")


def spoken_in(result: Result) -> str:
    found = re.search(r"digest: ([0-9 ]+)", result.output)
    assert found, result.output
    return found[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of operator 1, with everything that a task file names, and a task file."""
    made = Rolling(tmp_path_factory.mktemp("task"))
    made.publish("first", numbers_database(20, 2), scheme="table/differences", lasts=10**6)
    made.give(1, "first")
    place = made.folder / "1"
    shutil.copy(made.folder / "made" / "issuer.key", place)
    result = cli("provision", "make", place / "task.toml", "--terms", place / "epochs" / "first.terms",
                 "--common-key", place / "keys", "--valid", "3d")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert spoken_in(result) == spoken(read_task(place / "task.toml").digest())
    return place


def with_line(place: Path, before: str, after: str, name: str = "other.toml") -> Path:
    """Return another task file, in which one text is replaced."""
    text = (place / "task.toml").read_text()
    assert before in text
    (place / name).write_text(text.replace(before, after, 1))
    return place / name


def test_a_task_has_no_secret_and_its_digest_covers_what_is_shared(place: Path) -> None:
    text, task = (place / "task.toml").read_text(), read_task(place / "task.toml")
    (key,) = read_common_keys(place / "keys")
    assert key.id.hex() in text
    assert key.value.hex() not in text
    assert tomllib.loads(text)["tickets"]["valid"] == "3d"
    assert re.fullmatch(r"\d{5}( \d{5}){7}", spoken(task.digest()))
    own = "[server.1.serve]\nport = 1\n\n[server.2]"
    for before, after in (('ledger = "ledger"', 'ledger = "elsewhere"'), ("[server.2]", own)):
        assert read_task(with_line(place, before, after)).digest() == task.digest()
    for before, after in (('service = "rolling"', 'service = "other"'), ('valid = "3d"', 'valid = "4d"'),
                          (task.server["2"].key, task.server["1"].key), ("127.0.0.1", "127.0.0.2")):  # fmt: skip
        assert read_task(with_line(place, before, after)).digest() != task.digest()


def test_check_compares_the_task_with_the_files_that_are_here(place: Path, tmp_path: Path) -> None:
    good = cli("provision", "check", place / "task.toml", "--server", 1)
    assert good.exit_code == 0, good.output
    assert spoken_in(good) == spoken(read_task(place / "task.toml").digest())
    for before, after, said in (
        ('service = "rolling"', 'service = "other"', "another service"),
        ("127.0.0.1", "127.0.0.2", "another servers"),
        ('ledger = "ledger"', 'ledger = "none"', "got no ledger"),
        ('[[common-key]]', f'[[common-key]]\nid = "{"0" * 32}"\n\n[[common-key]]', "expected it"),
        ('[[epoch]]\nterms = "', f'[[epoch]]\nterms = "{"0" * 64}"\ndatabase = "{"0" * 64}"\n[[epoch]]\nterms = "',
         "got no terms in"),
        ('key = "server.key"', 'key = "other.key"', "expected that of server 1"),
    ):  # fmt: skip
        if not (place / "other.key").exists():
            write_server_keys(tmp_path)
            shutil.copy(tmp_path / SERVER_PRIVATE, place / "other.key")
        bad = cli("provision", "check", with_line(place, before, after), "--server", 1, "--json")
        assert bad.exit_code == 1, (said, bad.output)
        assert any(said in problem for problem in json.loads(bad.output)["problems"]), (said, bad.output)


def test_what_the_digest_does_not_cover_is_shown_or_refused(place: Path) -> None:
    """Broken: whoever sent the file could name a Ray cluster that got all shares, under the same digest."""
    own = "[server.1.serve]\nport = 1\n\n[server.2]"
    shown = cli("provision", "check", with_line(place, "[server.2]", own))
    assert "not in the digest: [server.1.serve] port = 1" in shown.output
    elsewhere = with_line(place, 'ledger = "ledger"', 'ledger = "postgresql://elsewhere/l"')
    assert (
        "not in the digest: [places] ledger = postgresql://elsewhere/l" in cli("provision", "check", elsewhere).output
    )
    for name in ("ray-address", "links", "insecure", "new-ledger", "otel"):
        evil = with_line(place, "[server.2]", f'[server.1.serve]\n{name} = "x"\n\n[server.2]')
        checked = cli("provision", "check", evil, "--server", 1)
        assert (checked.exit_code, checked.output.count("in [server.1.serve]")) == (1, 1), checked.output
        refused = cli("serve", "--task", evil, "--server", 1)
        assert refused.exit_code == 2
        for said in (checked.output, refused.output):
            assert f"{name.replace('-', '_')} in [server.1.serve]" in " ".join(said.split())


def test_a_file_that_is_no_task_is_refused_in_one_line(place: Path) -> None:
    for before, after in (("version = 1", "version = 2"), ("version = 1", "version ="), ("[server.2]", "[server.3]")):
        refused = cli("provision", "check", with_line(place, before, after))
        assert (refused.exit_code, refused.output.count("\n")) == (2, 1)


def test_tickets_and_a_server_start_from_the_task(place: Path, tmp_path: Path) -> None:
    issued = cli("ticket", "issue", "--task", place / "task.toml", "--json")
    assert issued.exit_code == 0, issued.output
    claims = decode_ticket_text(json.loads(issued.output)["tickets"][0]).claims
    assert (claims.servers, claims.service) == ((), "rolling")
    named = cli("ticket", "issue", "--task", place / "task.toml", "--json", "--among", "1,2", "--valid", "1h")
    ticket = decode_ticket_text(json.loads(named.output)["tickets"][0]).claims
    assert ticket.servers == (1, 2)
    assert abs(claims.expires - ticket.expires - 71 * 3600) < 1800
    task = with_line(place, "[server.2]", "[server.1.serve]\nport = 0\n\n[server.2]", "mine.toml")
    process = Process([*COMMAND, "serve", "--task", task, "--server", 1], tmp_path / "log")
    process.start()
    process.wait()
    assert process.stop() == 0
    other = with_line(place, 'service = "rolling"', 'service = "other"')
    refused = cli("serve", "--task", other, "--server", 1, "--port", 0)
    assert refused.exit_code == 2
    assert "another service than the task's" in refused.output


@pytest.mark.parametrize(
    ("text", "made"),
    [("now", 1000), ("90s", 1090), ("2d", 173_800), ("1970-01-01T01:00Z", 3600), ("1970-01-02", 86400)],
)
def test_times_on_the_command_line(text: str, made: int) -> None:
    assert moment(text, 1000) == made


@pytest.mark.parametrize("text", ["", "5", "0s", "x", "-1d", "2027-13-01"])
def test_other_times_are_refused(text: Any) -> None:
    with pytest.raises(OutOfRange):
        moment(text, 0)
    with pytest.raises(OutOfRange):
        seconds(text)


def test_only_a_pending_key_is_activated_and_before_its_end(tmp_path: Path) -> None:
    """A key that begins after its end would never be used; one that begins again would look like the newest."""
    assert cli("rotate", "new", tmp_path, "--begins", "now").exit_code == 0
    assert cli("rotate", "new", tmp_path, "--begins", "1h", "--lifetime", "1h").exit_code == 0
    active, pending = (key.id.hex() for key in sorted(read_common_keys(tmp_path), key=lambda key: key.begins))
    for key, at, said in ((active, "now", "that is active"), (pending, "3h", "that is pending and ends 20")):
        refused = cli("rotate", "activate", tmp_path, key, "--at", at)
        assert (refused.exit_code, said in refused.output) == (2, True), refused.output
    assert cli("rotate", "activate", tmp_path, pending).exit_code == 0
