"""New data, a new scheme, a third server and a new common key, while people ask: no question fails.

Servers are real processes. Operators change over seconds apart, and a ticket is spent once over all of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from counterveil import Counterfactual
from counterveil.applicant.client import AsyncClient, Client
from counterveil.crypto.keys import SERVER_PRIVATE, SERVER_PUBLIC, read_common_key, write_server_keys
from counterveil.errors import CounterveilError, Disagreement, ServerFault
from counterveil.research.processes import COMMAND
from counterveil.terms import wire
from patience import LONG
from rolling import Rolling
from service import numbers_database

PERSON = {"x0": 3, "x1": 9, "x2": 14}


class Load:
    """People who ask all the time, each with a new client, until it is over."""

    def __init__(self, made: Rolling, ticket: Callable[[], Any], **options: Any) -> None:
        self._made, self._ticket = made, ticket
        self._options: dict[str, Any] = {"timeout": LONG, "patience": LONG, "watch": self._note} | options
        self.answered: Counter[bytes] = Counter()  # by the digest of the terms
        self.failed: list[str] = []
        self.keys = b"", b""  # the first key that was used, and the last
        self._over = threading.Event()

    def _note(self, _: Any, request: wire.Request, __: Any) -> None:
        self.keys = self.keys[0] or request.key, request.key

    async def _person(self, lasting: bool) -> None:
        client = AsyncClient(self._made.urls[:2], **self._options)
        while not self._over.is_set():
            if not lasting:
                client = AsyncClient(self._made.urls[:2], **self._options)
            try:
                found = await client.ask(PERSON, ticket=self._ticket())
            except CounterveilError as error:
                self.failed.append(str(error))
                return
            assert isinstance(found, Counterfactual)
            assert found.issued is not None
            self.answered[found.issued.digest] += 1

    def _run(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(self._person(False), self._person(True))

        asyncio.run(all_of_them())

    def wait(self, name: str, more: int = 3, key: bytes = b"") -> None:
        """Wait until some more questions were answered under an epoch, and under this key, if one is given."""
        digest = self._made.epochs[name].digest
        until, wanted = time.monotonic() + LONG, self.answered[digest] + more
        while (self.answered[digest] < wanted or key not in (b"", self.keys[1])) and not self.failed:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert not self.failed

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        assert not self.failed, self.failed


def test_doctor_and_ask_say_who_lacks_the_terms_of_a_file_and_that_a_file_is_old(tmp_path: Path) -> None:
    """Only server 1 has the new terms; then both have them, and somebody still has the old file."""

    def doctor(name: str) -> tuple[int, str]:
        command = [*COMMAND, "doctor", "--terms", str(tmp_path / "made" / f"{name}.terms")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
        return done.returncode, " ".join(done.stdout.split())

    with Rolling(tmp_path, 2) as made:
        made.publish("first", numbers_database(40, 3), scheme="table/differences")
        new = made.publish("second", numbers_database(60, 3), scheme="table/differences")
        for number, name in ((1, "first"), (1, "second"), (2, "first")):
            made.give(number, name)
        made.start(1, 2)
        said = f"the terms {new.digest.hex()[:8]}… of the terms file yet; its operator must load them"
        lacks = f"terms: server 2 ({made.urls[1]}) does not have {said}"
        code, text = doctor("second")
        assert (code, lacks in text) == (1, True), text
        client = Client(terms=new, timeout=LONG, patience=LONG)
        with pytest.raises(Disagreement, match=re.escape(lacks + "; nothing was asked")):
            client.ask(PERSON, ticket=made.ticket("second"))
        code, text = doctor("first")
        assert (code, "39 differences" in text, "older than" in text) == (0, True, False), text
        made.give(2, "second")
        (tmp_path / "2" / "epochs" / "half.terms").write_bytes((tmp_path / "made" / "first.terms").read_bytes())
        made.reload(2)
        entries = [*map(json.loads, (tmp_path / "2" / "log").read_text().splitlines())]  # warnings too are JSON
        warned = [each["event"] for each in entries if each["level"] == "warning"]
        assert warned, entries
        assert all(each.startswith("half.terms is not served") for each in warned), warned
        code, text = doctor("first")
        assert (code, "39 differences" in text, "is older than what the servers offer" in text) == (0, True, True), text
        code, text = doctor("second")
        assert (code, "59 differences" in text, "older than" in text) == (0, True, False), text
        assert text.count("within 2 s") == 2


def test_terms_that_name_two_keys_for_one_server_are_not_served_together(tmp_path: Path) -> None:
    with Rolling(tmp_path, 2) as made:
        made.publish("first", numbers_database(40, 3), scheme="table/differences")
        for name in (SERVER_PRIVATE, SERVER_PUBLIC):
            (tmp_path / "2" / name).unlink()
        write_server_keys(tmp_path / "2")  # server 2 is another one now
        made.publish("second", numbers_database(60, 3), scheme="table/differences")
        for name in ("first", "second"):
            made.give(1, name)
        with pytest.raises(RuntimeError, match=r"did not start: .*terms: got two keys for server 2, expected one key"):
            made.start(1)
        (tmp_path / "1" / "epochs" / "first.terms").unlink()
        made.start(1)


@pytest.mark.slow
def test_new_data_then_a_new_key_while_people_ask(tmp_path: Path) -> None:
    """Operators change over one after the other: no question fails, and the newest that both have is used."""
    with Rolling(tmp_path, 2) as made:
        made.publish("first", numbers_database(40, 3), scheme="table/differences")
        for n in (1, 2):
            made.give(n, "first")
        made.start(1, 2)
        load = Load(made, lambda: made.ticket("first"))
        with load.going_on():
            load.wait("first")
            made.publish("second", numbers_database(60, 3), scheme="table/differences")
            made.give(2, "second")
            made.reload(2)  # operator 2 is first
            load.wait("first")
            assert not load.answered[made.epochs["second"].digest]
            made.give(1, "second")
            made.reload(1)
            load.wait("second")
            # a new key, which operator 1 makes and operator 2 gets later
            old, _ = load.keys
            made.rotate(1, "new", "--begins", "now", "--overlap", "1h")
            made.reload(1)
            load.wait("second")
            assert load.keys == (old, old)
            made.rotate(2, "add", made.newest_key(1), "--overlap", "1h")
            made.reload(2)
            load.wait("second", key=read_common_key(made.newest_key(2)).id)
            made.rotate(1, "retire", old.hex())
            made.reload(1)
            load.wait("second")
    keys = [[line.split()[1] for line in made.rotate(n, "status").splitlines()] for n in (1, 2)]
    assert keys == [["retired", "active"], ["active", "active"]]


@pytest.mark.slow
def test_a_new_scheme_with_a_third_server_while_people_ask(tmp_path: Path) -> None:
    """People know two addresses. The new terms name a third server, and the same tickets are good for both."""
    with Rolling(tmp_path, 3) as made:
        made.publish("two", numbers_database(40, 3), scheme="table/differences", lasts=3600)
        for n in (1, 2):
            made.give(n, "two")
        made.start(1, 2)
        used = made.ticket("two")
        load = Load(made, lambda: made.ticket("two"))
        with load.going_on():
            load.wait("two")
            made.publish("three", numbers_database(40, 3), servers=3, scheme="weighted/differences")
            made.give(3, "three")
            made.start(3)
            made.give(1, "three")
            made.reload(1)
            load.wait("two")
            assert not load.answered[made.epochs["three"].digest]
            with Client(made.urls[:2], timeout=LONG, patience=LONG) as client:
                assert client.ask(PERSON, ticket=used).feasible  # under the old terms
            made.give(2, "three")
            made.reload(2)
            load.wait("three")
            with Client(made.urls[:2], timeout=LONG, patience=LONG) as client:
                assert client.deployment.scheme.servers == 3
                with pytest.raises(ServerFault, match="used for another request"):
                    client.ask(PERSON, ticket=used)  # spent once over all offers
                sealed = made.ticket("two", (1, 2))  # a ticket for a pair, which answers under the old terms alone
                assert client.ask(PERSON, ticket=sealed).issued == made.epochs["two"]  # type: ignore[union-attr]
