"""Offers: terms and common keys that a server has at the same time. A ticket is spent once over all of them."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from counterveil import Deployment
from counterveil.crypto.keys import CommonKey, Issuer, SigningKey, read_common_key, read_common_keys, write_common_key
from counterveil.crypto.randomness import new_key
from counterveil.crypto.rotation import add_key, change_key, end_others, find_key, make_key, remove_key
from counterveil.errors import InvalidKey, InvalidLedger, InvalidTerms, Malformed, NotServed, Refused
from counterveil.service.epochs import make_epoch
from counterveil.service.ledger import GRACE, Ledger, MemoryLedger, backup
from counterveil.service.offers import Offer
from counterveil.service.server import Server
from counterveil.service.starting import admit_keys, read_holdings, read_keys
from counterveil.terms import wire
from counterveil.terms.agreement import newest
from counterveil.terms.published import make_terms, sign_terms, write_terms
from counterveil.terms.tickets import mint, servers_of
from deployed import a_request
from service import numbers_database

NOW = 1_800_000_000
URLS = ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


class Operators:
    """Three servers in this process, with the epochs that a test makes."""

    def __init__(self) -> None:
        self.issuer, self.own, self.clock = Issuer(), [SigningKey() for _ in range(3)], Clock()
        self.ledgers = [MemoryLedger(clock=self.clock) for _ in range(3)]

    def issued(self, rows: int, servers: int = 2, **options: Any) -> tuple[Any, wire.SignedTerms, Deployment]:
        times = {name: options.pop(name) for name in ("begins", "ends", "robust") if name in options}
        database = numbers_database(rows, 2).sign(self.issuer)
        chosen: dict[str, Any] = {"scheme": "table/differences", "servers": servers} | options
        deployment = Deployment.of(database.schema, **chosen)
        keys = [key.public for key in self.own[:servers]]
        terms = make_terms(database, deployment, keys=keys, service="tests", **times)
        return database, sign_terms(terms, URLS[:servers], self.issuer), deployment

    def server(self, number: int, epochs: list[Any], keys: list[CommonKey]) -> Server:
        made = [make_epoch(*each) for each in epochs]
        ledger = self.ledgers[number - 1]
        return Server(number, made, keys=keys, own=self.own[number - 1], ledger=ledger, clock=self.clock)


@pytest.fixture
def operators() -> Operators:
    return Operators()


def ask(server: Server, offer: Offer, ticket: wire.Ticket, among: tuple[int, ...] = ()) -> None:
    """Spend a ticket at a server under an offer, as the first request of a question does."""
    scheme = offer.epoch.deployment.scheme
    servers = servers_of(ticket.claims, scheme)
    run = scheme.among(among or servers, 0 if among else ticket.claims.robust)
    sizes = run.requests(offer.epoch.size)[0]
    body = bytes(sizes.body((among or servers).index(server.number)))
    request = a_request(offer.manifest, "query", server.number, ticket, 0, among or servers, body)
    server.turn(wire.encode(request), "query").spend()


def test_a_ticket_is_answered_under_one_offer(operators: Operators) -> None:
    """Every pair of offers, in both orders, at every server: new data, more servers, a new key."""
    keys = [CommonKey(new_key()), CommonKey(new_key())]
    epochs = [operators.issued(10), operators.issued(12, begins=NOW), operators.issued(14, servers=3, begins=NOW + 1)]
    servers = [operators.server(n, epochs, keys) for n in (1, 2)]
    servers.append(operators.server(3, epochs[2:], keys))
    terms = epochs[0][1].terms
    assert len(servers[0].offers.all) == 6
    for first, second in itertools.permutations(range(6), 2):
        ticket = mint(terms, (), expires=NOW + 60, issuer=operators.issuer)
        for server in servers[:2]:
            ask(server, server.offers.all[first], ticket)
            ask(server, server.offers.all[first], ticket)  # the same request, again
        for server in servers[:2]:
            with pytest.raises(Refused, match="used for another request"):
                ask(server, server.offers.all[second], ticket)


def test_each_server_takes_part_under_one_offer_whatever_comes_in_whichever_order(operators: Operators) -> None:
    """Three pairs of servers, two offers: all 64 ways to send each server's two runs under one offer or the other.

    A server lets the first request through, and then only those under the same offer. So each pair of servers answers
    under one offer at most, and with two servers under the first no pair at all can answer under the second.
    """
    chosen: dict[str, Any] = {"scheme": "table/sealed", "servers": 3, "robust": 1}
    epochs = [operators.issued(4, **chosen), operators.issued(5, begins=NOW, **chosen)]
    servers = [operators.server(n, epochs, [CommonKey(new_key())]) for n in (1, 2, 3)]
    pairs = [(1, 2), (1, 3), (2, 3)]
    parts = [(n, pair) for pair in pairs for n in pair]
    for choice in itertools.product((0, 1), repeat=len(parts)):
        ticket = mint(epochs[0][1].terms, (), expires=NOW + 60, robust=1, issuer=operators.issuer)
        let: dict[tuple[int, ...], set[tuple[int, int]]] = {pair: set() for pair in pairs}
        for (n, pair), at in zip(parts, choice, strict=True):
            server = servers[n - 1]
            with suppress(Refused):
                ask(server, server.offers.all[at], ticket, pair)
                let[pair].add((n, at))
        for n in (1, 2, 3):
            assert len({at for part in let.values() for m, at in part if m == n}) == 1
        whole = {at for pair, part in let.items() for at in (0, 1) if {(n, at) for n in pair} <= part}
        assert len(whole) <= 1


def test_the_newest_offer_that_all_have_is_taken(operators: Operators) -> None:
    old, new = CommonKey(new_key(), NOW - 100), CommonKey(new_key(), NOW - 10)
    first, second = operators.issued(10), operators.issued(12, begins=NOW - 50)

    def taken(*held: tuple[list[Any], list[CommonKey]]) -> tuple[int, bytes] | None:
        lists = [
            [offer.manifest for offer in operators.server(n, *each).offers.shown()]
            for n, each in enumerate(held, start=1)
        ]
        found = newest(lists)
        return (found[0].terms.rows, bytes.fromhex(found[0].key)) if found else None

    rows = [first[1].terms.rows, second[1].terms.rows]
    assert taken(([first], [old]), ([first], [old])) == (rows[0], old.id)
    assert taken(([first, second], [old]), ([first], [old])) == (rows[0], old.id)
    assert taken(([first, second], [old]), ([second], [old])) == (rows[1], old.id)
    assert taken(([second, first], [new, old]), ([first, second], [old])) == (rows[1], old.id)
    assert taken(([second, first], [new, old]), ([first, second], [old, new])) == (rows[1], new.id)
    waiting = CommonKey(new_key(), NOW + 100)
    assert taken(([first], [waiting, old]), ([first], [waiting, old])) == (rows[0], old.id)
    assert taken(([first], [waiting, old]), ([first], [waiting])) == (rows[0], waiting.id)
    assert taken(([first], [old]), ([second], [old])) is None
    assert taken(([first], [old]), ([first], [new])) is None


def test_the_vectors_of_offers() -> None:
    for case in json.loads((Path(__file__).parents[1] / "vectors" / "offers.json").read_text()):
        lists = [wire.decode_manifests(json.dumps(each).encode()) for each in case["servers"]]
        found = newest(lists)
        taken = None if found is None else {"terms": found[0].issued.digest.hex(), "key": found[0].key}
        assert taken == case["newest"], case["why"]


def test_a_list_of_manifests_is_checked() -> None:
    case = json.loads((Path(__file__).parents[1] / "vectors" / "offers.json").read_text())[0]
    (good,) = case["servers"][0]
    for bad in ("{}", "1", "[1]", json.dumps([good] * 17), json.dumps([good | {"server": 65}]), "[" * 10_000):
        with pytest.raises(Malformed):
            wire.decode_manifests(bad.encode())


def test_terms_and_keys_are_shown_until_they_end_and_answered_a_little_longer(operators: Operators) -> None:
    keys = [CommonKey(new_key(), 0, NOW + 200), CommonKey(new_key(), NOW + 50)]
    server = operators.server(1, [operators.issued(10, ends=NOW + 100), operators.issued(12, begins=NOW)], keys)
    first, last = server.offers.all[0], server.offers.newest
    other = operators.server(2, [operators.issued(10, ends=NOW + 100), operators.issued(12, begins=NOW)], keys[:1])
    assert (server.offers.end, other.offers.end) == (math.inf, NOW + 200)
    assert (last.epoch.size.rows, last.key) == (server.epoch.size.rows, keys[0])
    ticket = mint(first.epoch.issued.terms, (), expires=NOW + 10_000, issuer=operators.issuer)
    for at, shown in ((0, 4), (60, 4), (100, 2), (200, 1), (900, 1)):
        operators.clock.now = NOW + at
        assert len(server.offers.shown()) == shown
        assert [each["state"] for each in server.offers.facts()].count("ended") == 4 - shown
        if at < 100 + GRACE:
            ask(server, first, ticket)
            continue
        with pytest.raises(Refused) as refused:
            ask(server, first, ticket)
        assert refused.value.code == "other_terms"
        with pytest.raises(Refused) as refused:
            ask(server, last, ticket)
        assert refused.value.code == "other_key"
    assert server.offers.newest.key == keys[1]


def test_all_terms_are_of_one_service(operators: Operators) -> None:
    database, _, deployment = operators.issued(10)
    keys = [key.public for key in operators.own[:2]]
    terms = make_terms(database, deployment, keys=keys, service="other")
    other = database, sign_terms(terms, URLS[:2], operators.issuer), deployment
    with pytest.raises(InvalidTerms, match="one service"):
        operators.server(1, [operators.issued(10), other], [CommonKey(new_key())])


def test_half_an_epoch_is_left_out_and_one_that_is_over_is_not_read(operators: Operators, tmp_path: Path) -> None:
    for name, options in (("old", {"ends": NOW - GRACE}), ("good", {}), ("half", {"begins": NOW})):
        database, issued, _ = operators.issued(10, **options)
        write_terms(tmp_path / f"{name}.terms", issued)
        if name != "half":
            database.save(tmp_path / f"{name}.bundle")
    with pytest.warns(NotServed, match="half.terms is not served: .*half.bundle: got no file"):
        held = read_holdings(tmp_path, 1, operators.own[0], NOW)
    assert len(held) == 1
    (tmp_path / "good.bundle").write_bytes(b"something else")
    with pytest.warns(NotServed), pytest.raises(InvalidTerms, match="expected NAME"):
        read_holdings(tmp_path, 1, operators.own[0], NOW)


# --- keys that are changed -----------------------------------------------------------------------------------------


def test_a_folder_of_keys_is_changed_file_by_file(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    write_common_key(mine)
    (theirs).mkdir()
    os.link(mine / "common.key", theirs / "common.key")
    (old,) = read_common_keys(mine)
    assert (old.begins, old.ends, old.state(NOW)) == (0, None, "active")
    made = make_key(mine, begins=NOW + 100, ends=NOW + 1000)
    assert [made.state(NOW + at) for at in (0, 100, 999, 1000)] == ["pending", "active", "active", "retired"]
    assert made.path is not None
    assert made.path.stat().st_mode & 0o777 == 0o600
    added = add_key(theirs, made.path)
    assert (added.id, added.begins, added.ends) == (made.id, made.begins, made.ends)
    with pytest.raises(InvalidKey, match="there already"):
        add_key(theirs, made.path)
    for folder in (mine, theirs):
        assert [key.ends for key in end_others(folder, made, 50)] == [NOW + 150]
        assert not end_others(folder, made, 50)
        assert {key.id: key.ends for key in read_common_keys(folder)} == {old.id: NOW + 150, made.id: NOW + 1000}
    assert made.value.hex() not in repr(made)
    assert find_key(mine, made.id.hex()[:6]) == made
    with pytest.raises(InvalidKey, match="0 keys"):
        find_key(mine, "zz")
    assert len(read_keys(mine, NOW + 150 + GRACE - 1)) == 2
    assert [key.id for key in read_keys(mine, NOW + 150 + GRACE)] == [made.id]
    with pytest.raises(InvalidKey, match="see counterveil rotate"):
        read_keys(mine, NOW + 1000 + GRACE)
    remove_key(read_common_key(mine / "common.key"))
    assert [key.id for key in read_common_keys(mine)] == [made.id]
    (mine / "bad.key").write_text("zz\n")
    with pytest.raises(InvalidKey, match="64 hexadecimal digits"):
        read_common_keys(mine)
    with pytest.raises(InvalidKey, match="got No such file or directory"):
        read_common_keys(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_root_changes_keys_and_the_servers_user_still_owns_them(tmp_path: Path) -> None:
    write_common_key(tmp_path)
    for path in (tmp_path, tmp_path / "common.key"):
        os.chown(path, 20_001, 20_002)
    end_others(tmp_path, make_key(tmp_path, begins=NOW, ends=None), 50)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in tmp_path.glob("*.key")}
    assert (len(read_common_keys(tmp_path)), owners) == (2, {(20_001, 20_002)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = tmp_path / "keys"
    make_key(keys, begins=0, ends=None)
    make_key(keys, begins=int(time.time()) + 100, ends=None)
    return keys


def test_a_ledger_takes_several_keys_and_a_backup_takes_none_of_them(folder: Path, tmp_path: Path) -> None:
    """After a restore, only a key that was made later is served: whatever was pending may have been used too."""
    keys, ledger = read_common_keys(folder), Ledger(tmp_path / "ledger", 1, key_id=None, new=True)
    assert admit_keys(keys, 1, ledger) == keys
    ledger.close()
    backup(tmp_path / "ledger", tmp_path / "restored")
    restored = Ledger(tmp_path / "restored", 1, key_id=None)
    with pytest.raises(InvalidLedger, match="a backup taken under this common key"):
        admit_keys(keys, 1, restored)
    fresh = make_key(folder, begins=0, ends=None)
    with pytest.warns(NotServed, match="a common key is not served"):
        assert admit_keys(read_common_keys(folder), 1, restored) == [fresh]
    restored.close()


def test_a_key_that_was_made_after_the_backup_and_used_before_the_loss_is_refused(folder: Path, tmp_path: Path) -> None:
    """The backup does not know the key. The note beside its file does: it names another ledger."""
    ledger = Ledger(tmp_path / "ledger", 1, key_id=None, new=True)
    backup(tmp_path / "ledger", tmp_path / "restored")
    keys = read_common_keys(folder)
    assert admit_keys(keys, 1, ledger) == keys
    ledger.close()
    restored = Ledger(tmp_path / "restored", 1, key_id=None)
    with pytest.raises(InvalidKey, match="was used with another ledger"):
        admit_keys(keys, 1, restored)
    key = keys[0]
    assert key.path is not None
    remove_key(key)
    change_key(key)  # the file comes back, from a backup of the folder: the note has stayed
    with pytest.raises(InvalidKey, match="was used with another ledger"):
        admit_keys([key], 1, restored)
    restored.close()
