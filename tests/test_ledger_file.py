"""The ledger in a file: what was used stays used, through restarts, races, copies, locks, kills and full disks."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from counterveil.cli import ledger as cli_ledger
from counterveil.crypto.keys import COMMON, bind_common, write_keys
from counterveil.crypto.randomness import new_id, new_key
from counterveil.errors import InvalidKey, InvalidLedger, Refused, WrongType
from counterveil.service.ledger import Entry, Key, Ledger, backup, locks, sqlite
from ledgers import LATER, A, B, Clock, code, spend
from machine import FULL, INSIDE
from patience import LONG

pytestmark = pytest.mark.slow


def copy(source: Path, target: Path) -> Path:
    """Copy one file as an administrator would: in this process it would break SQLite's locks."""
    subprocess.run(["cp", source, target], check=True)  # noqa: S607
    return target


@contextmanager
def process(
    path: Path, key_id: bytes, *entered: bytes, new: bool = False, request: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Run another process that opens the ledger of server 1, enters tickets, says "ok" or why not, and stays."""
    script = f"""
import sys
from counterveil.errors import InvalidLedger
from counterveil.service.ledger import Entry, Key, Ledger
try:
    ledger = Ledger({str(path)!r}, 1, key_id={key_id!r}, new={new!r})
    for ticket in {entered!r}:
        ledger.perform(Entry(Key(ticket, request={request}), "spent", {A!r}, {LATER}))
    print("ok", flush=True)
except InvalidLedger as error:
    print(error, flush=True)
sys.stdin.read()
ledger.close()
"""
    started = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with started:
        try:
            yield started
        finally:
            started.kill()


def said(started: subprocess.Popen[str]) -> str:
    assert started.stdout
    return started.stdout.readline().strip()


def _race(path: Path, which: int, results: Any) -> None:
    ledger = Ledger(path, 1)
    results.put([code(ledger, b"%d" % i, 0, bytes([which]) * 32, LATER) for i in range(200)])


def test_processes_race_and_one_wins(tmp_path: Path) -> None:
    Ledger(tmp_path / "l", 1, new=True).close()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path / "l", n, results)) for n in range(3)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=LONG) for _ in racers]
    for racer in racers:
        racer.join()
    for each in zip(*outcomes, strict=True):
        assert sorted(each) == ["ok", "ticket_used", "ticket_used"]


def test_ledgers_are_missing_foreign_or_broken(tmp_path: Path) -> None:
    with pytest.raises(InvalidLedger, match="got no ledger"):
        Ledger(tmp_path / "l", 1)
    Ledger(tmp_path / "l", 1, new=True).close()
    assert (tmp_path / "l").stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidLedger, match="there already"):
        Ledger(tmp_path / "l", 1, new=True)
    with pytest.raises(InvalidLedger, match="got the ledger of server 1, expected that of server 2"):
        Ledger(tmp_path / "l", 2)
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with pytest.raises(InvalidLedger, match="not a database"):
        Ledger(tmp_path / "junk", 1)
    sqlite3.connect(tmp_path / "empty").close()
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidLedger, match="no such table"):
        Ledger(tmp_path / "empty", 1)
    Ledger(tmp_path / "empty", 1, new=True).close()  # killed before it was made: nothing was in it
    with pytest.raises(InvalidLedger, match="No such file"):
        Ledger(tmp_path / "no" / "folder", 1, new=True)
    with pytest.raises(WrongType, match="got 3 bytes, expected 16"):
        Ledger(tmp_path / "l", 1, key_id=b"abc")


def test_a_ledger_of_the_first_format_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "l")) as old:
        old.execute("CREATE TABLE about (format INTEGER, server INTEGER, watermark INTEGER, questions INTEGER)")
        old.execute("INSERT INTO about VALUES (1, 1, 0, 0)")
        old.commit()
    for use in (lambda: Ledger(tmp_path / "l", 1), lambda: backup(tmp_path / "l", tmp_path / "copy")):
        with pytest.raises(
            InvalidLedger, match=r"older format, expected .* another path, made with --new-ledger: .* old"
        ):
            use()
    assert not (tmp_path / "copy").exists()


def old_ledger(path: Path, number: int = 2) -> Path:
    """Write a ledger as versions without attempts wrote it: one question and one record, by the holder h."""
    script = f"""
    PRAGMA journal_mode = WAL;
    CREATE TABLE about (
        format INTEGER NOT NULL, server INTEGER NOT NULL, instance BLOB NOT NULL,
        watermark INTEGER NOT NULL, questions INTEGER NOT NULL, writes INTEGER NOT NULL, in_use INTEGER NOT NULL
    );
    CREATE TABLE origin (instance BLOB NOT NULL);
    CREATE TABLE keys (id BLOB PRIMARY KEY, refused INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE spent (
        ticket BLOB NOT NULL, request INTEGER NOT NULL, fingerprint BLOB NOT NULL, expires INTEGER NOT NULL,
        served INTEGER NOT NULL, holder BLOB NOT NULL, PRIMARY KEY (ticket, request)
    ) WITHOUT ROWID;
    CREATE INDEX spent_by_expiry ON spent (expires);
    INSERT INTO about VALUES ({number}, 1, x'{"07" * 16}', 5000, 1, 2, 0);
    INSERT INTO origin VALUES (x'{"07" * 16}');
    INSERT INTO keys VALUES (x'{"08" * 16}', 0);
    INSERT INTO spent VALUES (x'{hashlib.sha256(b"old").hexdigest()}', 0, x'{A.hex()}', {LATER}, 63, x'68');
    INSERT INTO spent VALUES (x'{hashlib.sha256(b"old").hexdigest()}', 1, x'{B.hex()}', {LATER}, 1, x'68');
    """  # noqa: S608
    with closing(sqlite3.connect(path)) as old:
        old.executescript(script)
    return path


def file_format(path: Path) -> int:
    with closing(sqlite3.connect(path)) as reader:
        ((found,),) = reader.execute("SELECT format FROM about").fetchall()
    return int(found)


def test_a_ledger_of_a_version_without_attempts_goes_on(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "l")
    assert backup(path, tmp_path / "copy") == 2  # before it was ever opened by this version
    for which in (path, tmp_path / "copy"):
        with closing(Ledger(which, 1)) as ledger:
            assert (ledger.instance == b"\x07" * 16) == (which == path)
            assert (ledger.counts()["spent"], ledger.questions()) == (2, 1)
            assert code(ledger, b"old", 0, B, LATER, b"h") == "ticket_used"
            assert code(ledger, b"old", 2, A, LATER, b"other") == "ticket_used"
            assert code(ledger, b"new", 0, A, 5000) == "ticket_expired"
            assert [code(ledger, b"old", 0, A, LATER, b"h") for _ in range(2)] == ["ok", "too_often"]
            assert code(ledger, b"old", 2, A, LATER, b"h") == "ok"
            with pytest.raises(Refused) as refused:
                ledger.perform(Entry(Key(b"old", (1, 2)), "running", A, LATER))
            assert refused.value.code == "ticket_used"
    with pytest.raises(InvalidLedger, match="a backup taken under this common key"):
        Ledger(tmp_path / "copy", 1, key_id=b"\x08" * 16)


def test_the_format_changes_with_the_first_attempt(tmp_path: Path) -> None:
    """A version that knows no attempts refuses a file that holds some, and may go back to any other file."""
    path, attempt = old_ledger(tmp_path / "l"), Entry(Key(b"new", (1, 2)), "running", A, LATER)
    with closing(Ledger(path, 1)) as ledger:
        spend(ledger, b"id")
        assert file_format(path) == 2
        ledger.perform(attempt)
        ledger.perform(attempt._replace(state="held", reply=b"record"))
        assert file_format(path) == 3
        spend(ledger, b"id")
        assert backup(path, tmp_path / "copy") == 4
    for which in (path, tmp_path / "copy"):
        assert file_format(which) == 3
        with closing(Ledger(which, 1)) as ledger:
            assert ledger.perform(attempt._replace(state="held")) == (False, "held", b"record")
    with pytest.raises(InvalidLedger, match="expected one of format 2 or 3"):
        Ledger(old_ledger(tmp_path / "newer", 4), 1)


def test_a_ledger_that_cannot_be_written_answers_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", 1, new=True)
    ledger._run("PRAGMA query_only = ON")  # reads work, writes fail
    assert code(ledger, b"id", 0, A, LATER) == "not_ready"
    with pytest.raises(Refused, match="cannot be written"):
        ledger.check()
    ledger._run("PRAGMA query_only = OFF")
    assert code(ledger, b"id", 0, A, LATER) == "ok"
    ledger._run("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.check()
    assert (tmp_path / "l-wal").stat().st_size > 0  # it did write: SQLite leaves out what changes nothing
    ledger.close()
    assert code(ledger, b"id", 0, A, LATER) == "not_ready"


def test_tickets_are_not_kept_in_clear(tmp_path: Path) -> None:
    ledger, ticket = Ledger(tmp_path / "l", 1, new=True), new_id()
    spend(ledger, ticket)
    assert ledger._run("SELECT ticket FROM spent") == [(hashlib.sha256(ticket).digest(),)]
    assert not any(ticket in file.read_bytes() for file in tmp_path.iterdir())
    assert any(hashlib.sha256(ticket).digest() in file.read_bytes() for file in tmp_path.iterdir())  # we did look
    ledger.close()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced", "written over"])
def test_a_ledger_that_is_no_longer_there_answers_nothing(tmp_path: Path, how: str) -> None:
    path = tmp_path / "l"
    ledger = Ledger(path, 1, new=True)
    spend(ledger, b"before")
    ledger.check()
    if how == "moved":
        path.rename(tmp_path / "elsewhere")
    elif how == "deleted":
        path.unlink()
    elif how == "replaced":
        copy(path, tmp_path / "copy").replace(path)
    else:
        ledger._run("PRAGMA wal_checkpoint(TRUNCATE)")
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE about SET instance = ?", (new_id(),))
            other.commit()
    uses: list[Callable[[], object]] = [lambda: spend(ledger, b"after"), ledger.check]
    for use in uses:
        with pytest.raises(Refused, match="the ledger's file was moved or replaced") as refused:
            use()
        assert refused.value.code == "not_ready"
    assert ledger._run("SELECT count(*) FROM spent") == [(1,)]
    if how in ("moved", "deleted"):
        with pytest.raises(sqlite3.OperationalError):
            ledger.count()
        assert not path.exists()  # nor did a look at it make a new one
    ledger.close()


def test_every_ledger_has_an_id_and_knows_its_keys(tmp_path: Path) -> None:
    one, two = new_id(), new_id()
    with closing(Ledger(tmp_path / "l", 1, key_id=one, new=True)) as ledger:
        instance = ledger.instance
        assert len(instance) == 16
    for key in (two, one, b""):
        with closing(Ledger(tmp_path / "l", 1, key_id=key)) as ledger:
            assert ledger.instance == instance
    with closing(Ledger(tmp_path / "l", 1)) as ledger:
        assert sorted(ledger._run("SELECT id, refused FROM keys")) == sorted([(one, 0), (two, 0)])
    with closing(Ledger(tmp_path / "other", 1, new=True)) as other:
        assert other.instance != instance


def test_a_copy_made_after_a_clean_stop_holds_everything(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path / "l", 1, new=True), Ledger(tmp_path / "l", 1)
    for i in range(50):
        spend(ledger, b"%d" % i)
    ledger.close()  # the other still has it open, so SQLite itself would leave the log as it is
    copied = Ledger(copy(tmp_path / "l", tmp_path / "copy"), 1)
    assert copied.count() == 50
    copied.close()
    other.close()
    other.close()
    assert not (tmp_path / "l-wal").exists()


def test_closing_does_not_wait_for_long_nor_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LAST_WAIT", 0.1)
    monkeypatch.setattr(sqlite, "PATIENCE", 10**6)
    ledger = Ledger(tmp_path / "l", 1, new=True)
    spend(ledger, b"id")
    with closing(sqlite3.connect(tmp_path / "l", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.close()
        other.execute("ROLLBACK")
    with closing(Ledger(tmp_path / "l", 1)) as again:
        assert code(again, b"id", 0, B, LATER) == "ticket_used"


def test_a_backup_of_a_ledger_in_use(tmp_path: Path) -> None:
    key, target = new_id(), tmp_path / "copy"
    with closing(Ledger(tmp_path / "l", 1, key_id=key, new=True)) as ledger:
        for i in range(50):
            spend(ledger, b"%d" % i)
        spend(ledger, b"0")
        assert backup(tmp_path / "l", target) == 50
        assert code(ledger, b"since", 0, A, LATER) == "ok"
        with pytest.raises(InvalidLedger, match="got a file there already, expected a new one"):
            backup(tmp_path / "l", target)
        instance = ledger.instance
    assert target.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {"l", "copy"}
    with pytest.raises(
        InvalidLedger, match=r"a backup taken under this common key, expected a new common key: tickets"
    ):
        Ledger(target, 1, key_id=key)
    with closing(Ledger(target, 1, key_id=new_id())) as restored:
        assert restored.instance != instance
        assert (restored.count(), restored.questions()) == (50, 50)
        assert code(restored, b"0", 0, B, LATER) == "ticket_used"
        assert restored._run("SELECT max(served) FROM spent") == [(2,)]
    with closing(Ledger(tmp_path / "l", 1, key_id=key)) as ledger:  # the ledger itself goes on
        assert ledger.instance == instance
    with pytest.raises(InvalidLedger, match="got no ledger"):
        backup(tmp_path / "none", tmp_path / "copy2")
    with pytest.raises(InvalidLedger, match="copy2: got No such file"):
        backup(tmp_path / "l", tmp_path / "no" / "copy2")


def test_a_backup_keeps_the_watermark(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "l", 1, new=True, clock=Clock(5000))):
        backup(tmp_path / "l", tmp_path / "copy")
    with closing(Ledger(tmp_path / "copy", 1, clock=Clock(10))) as restored:
        assert code(restored, b"id", 0, A, 5000) == "ticket_expired"


def test_a_backup_restored_over_a_ledger_whose_server_was_killed(tmp_path: Path) -> None:
    """The log that the killed server left is not the backup's: SQLite alone would mix them, and undo the refusal."""
    key, path = new_id(), tmp_path / "l"
    with process(path, key, b"1", b"2", new=True) as server:
        assert said(server) == "ok"
        backup(path, tmp_path / "copy")
        server.kill()
    assert (tmp_path / "l-wal").stat().st_size > 0
    copy(tmp_path / "copy", path)
    for each in (key, new_id()):
        with pytest.raises(InvalidLedger, match="the write-ahead log of another ledger beside it, expected a backup"):
            Ledger(path, 1, key_id=each)
    path.unlink()
    copy(tmp_path / "copy", path)
    with closing(Ledger(path, 1, key_id=new_id())) as restored:
        assert restored.count() == 2


def test_the_command_that_makes_a_backup(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "l", 1, new=True)) as ledger:
        spend(ledger, b"id")
        found = CliRunner().invoke(cli_ledger.ledger, ["backup", str(tmp_path / "l"), "-o", str(tmp_path / "copy")])
    assert found.exit_code == 0, found.output
    assert found.output == (
        f"{tmp_path / 'copy'}: a backup of 1 requests. To restore it, give all servers a new common key first: "
        "the backup refuses the keys that it knows.\n"
    )
    with closing(Ledger(tmp_path / "copy", 1)) as restored:
        assert restored.count() == 1


def test_one_ledger_at_a_time_for_a_server_and_a_key(tmp_path: Path) -> None:
    key, path = new_id(), tmp_path / "l"
    Ledger(path, 1, key_id=key, new=True).close()
    copied = copy(path, tmp_path / "copied")
    with process(path, key) as first:
        assert said(first) == "ok"
        with pytest.raises(InvalidLedger, match=f"got another ledger than the one in use, {path}, expected one ledger"):
            Ledger(tmp_path / "other", 1, key_id=key, new=True)
        with pytest.raises(InvalidLedger, match=f"got a copy of a ledger in use, {path}, expected one ledger"):
            Ledger(copied, 1, key_id=key)
        with process(path, key) as second, closing(Ledger(path, 1, key_id=key)), closing(Ledger(path, 1, key_id=key)):
            assert said(second) == "ok"
            first.kill()
            first.wait()
            with pytest.raises(InvalidLedger, match="in use"):  # by those that are left
                Ledger(copied, 1, key_id=key)
            second.kill()
            second.wait()
            with pytest.raises(InvalidLedger, match="in use"):
                Ledger(copied, 1, key_id=key)
    with closing(Ledger(tmp_path / "two", 2, key_id=key, new=True)):  # another server's
        Ledger(copied, 1, key_id=key).close()  # nobody holds it: it was killed
        Ledger(tmp_path / "other", 1, key_id=key, new=True).close()  # nor was it made when it was refused
    with closing(Ledger(path, 1)), closing(Ledger(copied, 1)):
        pass  # no key, no lock
    closed = Ledger(path, 1, key_id=key)
    closed.close()
    with closing(Ledger(copied, 1, key_id=key)):
        assert code(closed, b"id", 0, A, LATER) == "not_ready"


def test_a_ledger_put_in_the_place_of_one_in_use_is_left_alone(tmp_path: Path) -> None:
    """To open it, SQLite would read the other's log, and throw it away."""
    key, path = new_id(), tmp_path / "l"
    with process(path, key, b"1", b"2", new=True) as server:
        assert said(server) == "ok"
        path.rename(tmp_path / "moved")
        log = (tmp_path / "l-wal").read_bytes()
        with pytest.raises(InvalidLedger, match="got another file, which was there before and is in use"):
            Ledger(path, 1, key_id=key, new=True)
        assert (tmp_path / "l-wal").read_bytes() == log
        server.communicate()  # it stops as usual
    with closing(Ledger(tmp_path / "moved", 1, key_id=key)) as moved:
        assert moved.count() == 2


def test_of_ledgers_that_race_for_a_server_one_wins(tmp_path: Path) -> None:
    key = new_id()
    racers = [process(tmp_path / f"l{i}", key, new=True) for i in range(6)]
    started = [racer.__enter__() for racer in racers]
    try:
        outcomes = [said(each) for each in started]
    finally:
        for racer in racers:
            racer.__exit__(None, None, None)
    assert outcomes.count("ok") == 1, outcomes
    assert sum("another ledger than the one in use" in each for each in outcomes) == 5, outcomes


def test_processes_that_race_to_open_one_ledger_all_get_it(tmp_path: Path) -> None:
    key = new_id()
    Ledger(tmp_path / "l", 1, key_id=key, new=True).close()
    racers = [process(tmp_path / "l", key) for _ in range(6)]
    started = [racer.__enter__() for racer in racers]
    try:
        assert [said(each) for each in started] == ["ok"] * 6
    finally:
        for racer in racers:
            racer.__exit__(None, None, None)


def test_whoever_lost_the_lock_while_sharing_it_is_refused(tmp_path: Path) -> None:
    """Flock may let go of a lock when it is made a shared one: another ledger then writes its own name."""
    key, path = new_id(), tmp_path / "l"
    Ledger(path, 1, new=True).close()
    guard = locks.Lock(key, 1, path, locks.place_of(path))
    fcntl.flock(guard._file, fcntl.LOCK_UN)
    with process(tmp_path / "other", key, new=True) as other:
        assert said(other) == "ok"
        guard.alone = False  # it had written already
        with pytest.raises(InvalidLedger, match="another ledger than the one in use"):
            guard.share(new_id())
    guard.release()


@pytest.mark.parametrize("how", ["link", "open", "file", "owner"])
def test_the_folder_of_locks_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # no /dev/shm
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"counterveil-{os.getuid()}"
    Ledger(tmp_path / "l", 1, key_id=new_id(), new=True).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    (lock,) = folder.iterdir()
    assert lock.stat().st_mode & 0o777 == 0o600
    if how == "open":
        folder.chmod(0o770)
    elif how == "owner":
        monkeypatch.setattr(os, "getuid", lambda: -1)  # so the folder is made by another
    elif how == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder)
        folder.touch()
    with pytest.raises(InvalidLedger, match=r"expected one of our own, of mode 0700|got File exists"):
        Ledger(tmp_path / "l", 1, key_id=new_id())


_FULL = """
import resource, sqlite3, sys
from contextlib import closing
from pathlib import Path
from counterveil.errors import Refused
from counterveil.service.ledger import Entry, Key, Ledger

folder, real = Path(sys.argv[1]), sys.argv[2] == "disk"

def spend(ticket, proof):
    ledger.perform(Entry(Key(ticket), "spent", proof, 2**40))

def outcome(use, *arguments):
    try:
        use(*arguments)
    except Refused as error:
        return f"{error.code}: {error}"
    return "ok"

ledger = Ledger(folder / "l", 1, new=True)
for i in range(3):
    spend(b"%d" % i, b"a" * 32)
assert outcome(ledger.check) == "ok"
with closing(sqlite3.connect(folder / "l")) as other:
    other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()  # the log keeps its size: there is room in it
room = (folder / "l-wal").stat().st_size
assert 1 << 14 < room < 1 << 16, room
if real:
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(512)):
                pass
        except OSError:
            pass
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
ledger._run("UPDATE about SET watermark = watermark")  # as the check once was: notices nothing
print(outcome(ledger.check))
spent = []
while not spent or spent[-1] == "ok":
    spent.append(outcome(spend, b"full %d" % len(spent), b"a" * 32))
print(spent[-1])
print(len(spent) < 20)
if real:
    (folder / "filler").unlink()
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(outcome(ledger.check))
print(ledger.count() == 3 + len(spent) - 1)
print(outcome(spend, b"full %d" % (len(spent) - 1), b"b" * 32))  # it was not entered
print(sorted(file.name for file in folder.iterdir()))
"""


@pytest.mark.parametrize("kind", FULL)
def test_a_full_disk(tmp_path: Path, kind: str) -> None:
    """On a real full disk, where one can be mounted; everywhere on files that may not grow."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
    command = [sys.executable, "-c", _FULL, str(tmp_path), kind]
    if kind == "disk":
        command = [*INSIDE, "sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh", *command]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    refused = "not_ready: the ledger cannot be written"
    expected = [refused, refused, "True", "ok", "True", "ok", "['l', 'l-shm', 'l-wal']"]
    assert found.stdout.splitlines() == expected, found.stderr


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    with process(tmp_path / "l", new_id(), b"1", b"2", new=True) as server:
        assert said(server) == "ok"
        server.send_signal(signal.SIGKILL)
    with closing(Ledger(tmp_path / "l", 1)) as ledger:
        assert code(ledger, b"2", 0, B, LATER) == "ticket_used"
        assert ledger.count() == 2


def test_a_copy_of_a_ledger_in_use_is_refused_without_its_log(tmp_path: Path) -> None:
    """After a kill, or a copy while it runs: the file alone lacks the latest entries."""
    key, path = new_id(), tmp_path / "l"
    with process(path, key, b"1", new=True) as server:
        assert said(server) == "ok"
        alone = copy(path, tmp_path / "alone")
        server.kill()
        server.wait()
    path.rename(tmp_path / "moved")
    for lone in (alone, tmp_path / "moved"):
        with pytest.raises(InvalidLedger, match="without the log beside it"):
            Ledger(lone, 1, key_id=key)
    (tmp_path / "l-wal").rename(tmp_path / "moved-wal")
    with closing(Ledger(tmp_path / "moved", 1, key_id=key)) as both:
        assert code(both, b"1", 0, B, LATER) == "ticket_used"
    with closing(Ledger(tmp_path / "moved", 1, key_id=key)):  # closed cleanly: the file alone is enough
        pass


def test_one_file_has_one_path(tmp_path: Path) -> None:
    """SQLite's log goes by the path: under two names one file would be two ledgers."""
    key, path = new_id(), tmp_path / "l"
    with closing(Ledger(path, 1, key_id=key, new=True)):
        (tmp_path / "link").symlink_to(path)
        with closing(Ledger(tmp_path / "link", 1, key_id=key)) as same:  # the same file, at its own path
            assert same.path == path
        (tmp_path / "hard").hardlink_to(path)
        with pytest.raises(InvalidLedger, match="a file with several names"):
            Ledger(tmp_path / "hard", 1, key_id=key)
        (tmp_path / "hard").unlink()
        path.rename(tmp_path / "moved")
        with pytest.raises(InvalidLedger, match="in use"):
            Ledger(tmp_path / "moved", 1, key_id=key)


def test_a_server_has_one_ledger_whatever_its_common_key(tmp_path: Path) -> None:
    owner = new_key()
    with (
        closing(Ledger(tmp_path / "one", 1, key_id=new_id(), owner=owner, new=True)),
        pytest.raises(InvalidLedger, match="another ledger than the one in use"),
    ):
        Ledger(tmp_path / "two", 1, key_id=new_id(), owner=owner, new=True)


def test_a_common_key_is_bound_to_one_ledger(tmp_path: Path) -> None:
    """A backup from before, or a new ledger, under a key in use would use its pads twice."""
    write_keys(tmp_path)
    key = tmp_path / COMMON
    bind_common(key, 1, b"a" * 16)
    bind_common(key, 1, b"a" * 16)
    bind_common(key, 2, b"b" * 16)
    with pytest.raises(InvalidKey, match="used with another ledger"):
        bind_common(key, 1, b"b" * 16)
    key.write_text("ab" * 32)  # rotated
    bind_common(key, 1, b"b" * 16)
    with pytest.raises(InvalidKey, match="used with another ledger"):
        bind_common(key, 1, b"a" * 16)
