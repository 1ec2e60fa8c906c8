"""A server's stock of tapes: what a dealer may send, and that a tape is handed out once."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from counterveil.errors import Malformed, Refused
from counterveil.inprocess.linked import Wire
from counterveil.service.attempts import Attempt, Attempts, key_of
from counterveil.service.ledger import Entry, MemoryLedger
from counterveil.service.link.frames import Frame, Kept, Peers, Ready, Run, Tape, Used, Wants
from counterveil.service.stock import Stock

DEALER, PEER, OTHER = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16
LEADER, FOLLOWER = 10, 6  # bytes of the halves
TERMS = bytes([9]) * 8  # the first bytes of a digest


class Fed:
    """The stock of server 1, fed by a dealer, and what it said to the dealer."""

    def __init__(self, number: int = 1, most: int = 100) -> None:
        self.said: Any = []
        self.full = 0
        self.stock = Stock(number, {TERMS: (LEADER, FOLLOWER)}, self._stocked, most=most)
        self.stock.met(PEER, 3 - number)
        self.line = self.connect(DEALER)

    def _stocked(self) -> None:
        self.full += 1

    def connect(self, boot: bytes) -> Wire:
        line = Wire(0, boot, self.said, 1)
        self.stock.opened(line)
        return line

    def frames(self) -> list[Frame]:
        return [frame for _, _, frame in self.said]

    def used(self) -> list[bytes]:
        return [frame.id for frame in self.frames() if isinstance(frame, Used)]

    def feed(self, number: int, peer: bytes = PEER, line: Wire | None = None, length: int = LEADER) -> bytes:
        line = line or self.line
        for start in range(0, length, 4):
            part = bytes(range(number + start, number + min(start + 4, length)))
            self.stock.heard(line, Tape(named(number, line.boot), start, length, peer, part))
        return named(number, line.boot)


def named(number: int, dealer: bytes = DEALER) -> bytes:
    return dealer + TERMS + number.to_bytes(8, "big")


def test_a_leader_picks_tapes_in_order_and_each_once() -> None:
    fed = Fed()
    names = [fed.feed(1), fed.feed(2)]
    assert fed.full == 2
    assert fed.frames() == [Wants((TERMS,)), Peers((PEER,)), Kept(names[0]), Kept(names[1])]
    assert fed.stock.pick(OTHER, TERMS) is None
    for number, name in enumerate(names, start=1):
        picked = fed.stock.pick(PEER, TERMS)
        assert picked is not None
        assert (picked[0], picked[1].tobytes()) == (name, bytes(range(number, number + LEADER)))
    assert fed.stock.pick(PEER, TERMS) is None
    assert fed.used() == names


def test_a_follower_claims_a_tape_once_and_only_for_its_leader() -> None:
    fed = Fed(number=2)
    name = fed.feed(1, length=FOLLOWER)
    assert fed.stock.claim(OTHER, TERMS, name) is None
    assert fed.stock.claim(PEER, TERMS, named(2)) is None
    claimed = fed.stock.claim(PEER, TERMS, name)
    assert claimed is not None
    assert claimed.tobytes() == bytes(range(1, 1 + FOLLOWER))
    assert fed.stock.claim(PEER, TERMS, name) is None
    assert fed.used() == [name]


def test_threads_that_pick_at_once_get_different_tapes() -> None:
    fed = Fed(most=10_000)
    for number in range(1, 41):
        fed.feed(number)
    picked: list[Any] = []
    threads = [threading.Thread(target=lambda: picked.append(fed.stock.pick(PEER, TERMS))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [each[0] for each in picked if each is not None]
    assert len(names) == len(set(names)) == 40


A_RUN = Run(bytes(32), bytes(16), (1, 2), 0)
SPOILT: dict[str, list[Frame]] = {
    "one for a stranger": [Tape(named(2), 0, LEADER, OTHER, b"abcd")],
    "9 bytes, expected 10": [Tape(named(2), 0, 9, PEER, b"abcd")],
    "6 bytes, expected 10": [Tape(named(2), 0, FOLLOWER, PEER, b"abcdef")],
    "at byte 0": [Tape(named(2), 4, LEADER, PEER, b"abcd")],
    "at byte 4": [Tape(named(2), 0, LEADER, PEER, b"abcd"), Tape(named(2), 0, LEADER, PEER, b"abcd")],
    "byte 4 of the tape under way": [Tape(named(2), 0, LEADER, PEER, b"abcd"), Tape(named(3), 0, LEADER, PEER, b"a")],
    "byte 0 of the tape under way": [Tape(named(2), 0, LEADER, PEER, b"")],
    "an id that is not new": [Tape(named(1), 0, LEADER, PEER, b"abcd")],
    "not new, expected the dealer's boot id": [Tape(named(2, OTHER), 0, LEADER, PEER, b"abcd")],
    "ready, expected tapes": [Ready(A_RUN)],
}


@pytest.mark.parametrize("says", SPOILT)
def test_what_a_dealer_may_not_send_is_an_error(says: str) -> None:
    fed = Fed()
    fed.feed(1)
    *before, last = SPOILT[says]
    for frame in before:
        fed.stock.heard(fed.line, frame)
    with pytest.raises(Malformed, match=says):
        fed.stock.heard(fed.line, last)
    fed.stock.lost(fed.line)
    assert fed.stock.pick(PEER, TERMS) is not None  # what was whole is as good as before
    assert fed.stock.pick(PEER, TERMS) is None


def test_a_tape_that_was_used_cannot_come_again() -> None:
    fed = Fed()
    fed.feed(1)
    fed.stock.pick(PEER, TERMS)
    fed.stock.lost(fed.line)
    line = fed.connect(DEALER)
    with pytest.raises(Malformed, match="not new"):
        fed.feed(1, line=line)


def test_tapes_go_with_their_peer_and_half_tapes_with_their_dealer() -> None:
    fed = Fed()
    fed.stock.met(OTHER, 2)
    names = [fed.feed(1), fed.feed(2, OTHER)]
    fed.stock.heard(fed.line, Tape(named(3), 0, LEADER, PEER, b"abcd"))
    fed.stock.parted(PEER)
    assert fed.used() == names[:1]
    assert fed.frames()[-1] == Peers((OTHER,))
    fed.stock.heard(fed.line, Tape(named(3), 4, LEADER, PEER, b"efghij"))  # the dealer could not know
    assert fed.used() == [names[0], named(3)]
    fed.stock.heard(fed.line, Tape(named(4), 0, LEADER, OTHER, b"abcd"))
    fed.stock.lost(fed.line)
    line = fed.connect(DEALER)
    assert fed.frames()[-3:] == [
        Kept(names[1]),
        Wants((TERMS,)),
        Peers((OTHER,)),
    ]  # a dealer that comes back hears what is here
    fed.feed(5, OTHER, line)
    picked = [fed.stock.pick(OTHER, TERMS), fed.stock.pick(OTHER, TERMS), fed.stock.pick(OTHER, TERMS)]
    assert [each and each[0] for each in picked] == [names[1], named(5), None]


def test_a_dealer_can_recall_a_tape_whose_other_half_is_gone() -> None:
    fed = Fed()
    name = fed.feed(1)
    fed.stock.heard(fed.line, Used(name))
    fed.stock.heard(fed.line, Tape(named(2), 0, LEADER, PEER, b"abcd"))
    fed.stock.heard(fed.line, Used(named(2)))
    assert fed.used() == [name, named(2)]
    assert fed.stock.pick(PEER, TERMS) is None
    assert fed.feed(3) == named(3)


def test_a_dealer_can_recall_no_tape_of_another() -> None:
    fed = Fed()
    name = fed.feed(1)
    fed.stock.heard(fed.connect(OTHER), Used(name))
    assert fed.stock.pick(PEER, TERMS) is not None


def test_only_so_many_bytes_are_held_and_old_dealers_give_way() -> None:
    fed = Fed(most=3 * LEADER)
    names = [fed.feed(number) for number in (1, 2)]
    new = fed.connect(OTHER)
    assert [fed.feed(number, line=new) for number in (1, 2, 3)]
    assert fed.used() == names
    with pytest.raises(Malformed, match="more than 30 bytes"):
        fed.feed(4, line=new)


def test_one_tape_may_be_longer_than_the_limit() -> None:
    fed = Fed(most=1)
    fed.feed(1)
    with pytest.raises(Malformed, match="more than 1 bytes"):
        fed.feed(2)
    assert fed.stock.pick(PEER, TERMS) is not None
    assert fed.feed(3)


def test_without_a_dealer_and_a_tape_nothing_is_admitted() -> None:
    fed = Fed()
    fed.stock.check(2)
    fed.feed(1)
    fed.stock.lost(fed.line)
    fed.stock.check(2)
    with pytest.raises(Refused, match="dealing server cannot be reached") as refused:
        fed.stock.check(3)
    assert refused.value.code == "peer_unreachable"
    fed.stock.pick(PEER, TERMS)
    with pytest.raises(Refused, match="nothing is spent"):
        fed.stock.check(2)


def test_tapes_are_counted_by_server() -> None:
    fed = Fed()
    fed.stock.met(OTHER, 3)
    for number, peer in enumerate([PEER, OTHER, OTHER], start=1):
        fed.feed(number, peer)
    assert [fed.stock.count(number) for number in (0, 1, 2, 3)] == [3, 0, 1, 2]
    fed.stock.pick(OTHER, TERMS)
    assert [fed.stock.count(number) for number in (0, 2, 3)] == [2, 1, 1]


@pytest.mark.parametrize("seat", [0, 1])
def test_an_attempt_that_waits_in_vain_for_a_tape_says_so_and_spends_nothing(seat: int) -> None:
    run, ledger = Run(bytes(32), bytes(16), (1, 2), 0), MemoryLedger()
    entry = Entry(key_of(run), "running", bytes(32), 1 << 40)
    attempts, attempt = Attempts(1 + seat, ledger), Attempt(run, seat, ledger, entry, tapes=Fed(1 + seat).stock)
    line = Wire(2 - seat, PEER, deque(), 1 + seat)
    attempts.start(attempt, [line])
    attempts.heard(line, Ready(run))
    attempt.happen("tape")
    attempt.happen("late")
    assert attempt.refusal is not None
    assert attempt.refusal.code == "peer_unreachable"
    missing = ["the dealing server sent no tape", "server 1 was not ready"][seat]
    assert str(attempt.refusal) == f"{missing} in time; nothing is spent"
    assert ledger.state(entry.key) is None
