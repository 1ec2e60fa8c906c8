"""Recorded conversations, effect by effect: those of `vectors/`. In `test_page.py` the page replays them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import make_vectors
from counterveil import Preferences
from counterveil.algebra.arrays import Vector
from counterveil.applicant.ask import compile_question
from counterveil.applicant.conversation import Conversation
from counterveil.applicant.offer import Offer
from counterveil.applicant.runs import Line
from counterveil.errors import ServerFault, Tampered, TooManyLiars
from counterveil.schema.costs import Costs
from counterveil.schemes.protocols import Seen
from counterveil.terms import wire
from counterveil.terms.agreement import Peer
from counterveil.terms.published import deployment_of
from counterveil.terms.wire import Manifest, SignedTerms

VECTORS = Path(__file__).parent.parent / "vectors"
ROWS: dict[str, dict[str, Any]] = json.loads((VECTORS / "conversation.json").read_text("utf-8"))
REGIONS: dict[str, Any] = json.loads((VECTORS / "regions.json").read_text("utf-8"))
FILE: dict[str, dict[str, Any]] = ROWS | REGIONS["conversations"]
SIZES = (1, 7, 2, 64, 3, 501, 5)  # of pieces

Replies = Mapping[Line, bytes]
Carry = Callable[[Conversation, Replies], None]

cases = pytest.mark.parametrize("case", FILE.values(), ids=FILE)


class Drawn:
    """The pads that were recorded, for whoever draws the same in the same order."""

    def __init__(self, drawn: list[dict[str, str]]) -> None:
        self.left = [(int(each["q"]), [int(value) for value in each["values"].split()]) for each in drawn]

    def elements(self, q: int, count: int) -> Vector:
        recorded, values = self.left.pop(0)
        assert (recorded, len(values)) == (q, count)
        return np.array(values, dtype=np.int64)


def begun(case: dict[str, Any], pads: Drawn | None = None) -> tuple[Conversation, Costs]:
    """Return the conversation of a case, and the costs that its records are checked with."""
    issued = SignedTerms(case["terms"], tuple(case["addresses"]), "0" * 128)
    deployment = deployment_of(issued.terms)
    ticket = wire.decode_ticket_text(case["ticket"])
    codes = deployment.schema.codes(case["person"])
    question, costs = compile_question(deployment, codes, Preferences(**case["preferences"]))
    offer, pads = Offer(issued, deployment, 0.0), pads or Drawn(case["drawn"])
    conversation = Conversation(offer, ticket, question, spread=case["spread"], randomness=pads)
    manifests = [Manifest(n, case["key"], "0" * 32, "", issued, "0" * 128) for n in ticket.claims.servers]
    conversation.meet([Peer(url, m, 0.0, None, None) for url, m in zip(case["addresses"], manifests, strict=True)])
    return conversation, costs


def rounds(case: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Replies]]:
    """Return, round by round, what a conversation does, and what it then hears."""
    done: list[dict[str, Any]] = []
    replies: dict[Line, bytes] = {}
    for event in case["events"]:
        if event["what"] == "reply":
            replies[Line(event["server"], event["request"])] = bytes.fromhex(event["hex"])
            continue
        if replies:
            yield done, replies
            done, replies = [], {}
        done.append(event)
    yield done, replies


def whole(conversation: Conversation, replies: Replies) -> None:
    for line, reply in replies.items():
        conversation.heard(line, reply)
        conversation.ended(line)


def in_pieces(conversation: Conversation, replies: Replies) -> None:
    """Hand over a piece of one reply, then of another."""
    sizes, left = cycle(SIZES), dict(replies)
    while left:
        for line, reply in list(left.items()):
            assert conversation.wants(line)
            size = next(sizes)
            conversation.heard(line, reply[:size])
            left[line] = reply[size:]
            if not left[line]:
                conversation.ended(line)
                del left[line]


def restarted(conversation: Conversation, replies: Replies) -> None:
    """Break every connection half-way; the same bytes come again, from the first."""
    for line, reply in replies.items():
        conversation.heard(line, reply[: len(reply) // 2])
        before = conversation.taken(line)
        conversation.again(line)
        conversation.heard(line, reply[:3])
        conversation.heard(line, reply[3:])
        conversation.ended(line)
        assert before < conversation.taken(line) == conversation.expected(line)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def as_recorded(case: dict[str, Any], seen: Seen) -> bool:
    recorded = {name: case[name] for name in ("revealed", "positions", "records", "honest")}
    return recorded == {
        "revealed": " ".join(map(str, seen.revealed)),
        "positions": list(seen.positions),
        "records": [record.hex() for record in seen.records],
        "honest": list(seen.honest),
    }


def test_the_file_is_what_the_code_makes(tmp_path: Path) -> None:
    made = json.loads(json.dumps(make_vectors.make(tmp_path)))
    assert made["conversation.json"] == ROWS
    assert made["regions.json"] == REGIONS


@cases
@pytest.mark.parametrize("carry", [whole, in_pieces, restarted])
def test_every_effect_is_the_recorded_one(case: dict[str, Any], carry: Carry) -> None:
    pads = Drawn(case["drawn"])
    conversation, costs = begun(case, pads)
    for expected, replies in rounds(case):
        assert [make_vectors.shown(do) for do in conversation.todo()] == expected
        carry(conversation, replies)
    assert as_recorded(case, conversation.result())
    assert [record.codes.tolist() for record in conversation.checked(costs)] == case["codes"]
    assert not pads.left


@cases
def test_a_broken_line_is_told_when_the_others_have_ended(case: dict[str, Any]) -> None:
    conversation, _ = begun(case)
    _, replies = next(rounds(case))
    list(conversation.todo())
    first, *others = replies
    conversation.heard(first, replies[first][:40])
    conversation.broke(first, ServerFault("server 1", "broke off"))
    for line in others:
        assert conversation.wants(line)
        conversation.heard(line, replies[line])
        conversation.ended(line)
        assert conversation.taken(line) == conversation.expected(line)
    with pytest.raises(ServerFault, match="broke off"):
        next(conversation.todo())
    conversation.broke(others[0], ServerFault("server 2", "too"))
    with pytest.raises(ServerFault, match="broke off"):  # of several the first server's
        next(conversation.todo())


@cases
def test_a_reply_with_another_head_is_refused(case: dict[str, Any]) -> None:
    _, replies = next(rounds(case))
    (first, right), (second, others), *_ = replies.items()
    for said, why in (
        (others, "answers for another server or question than server 1's"),
        (flipped(right, 0), "message: got .*, expected a message of version 2"),
        (right[:10], "message: got .*, expected a message of version 2"),
        (right[:-1], "bytes, expected"),
        (right + b"\0", "bytes, expected"),
    ):
        conversation, _ = begun(case)
        list(conversation.todo())
        conversation.heard(first, said)
        with pytest.raises(ServerFault, match=why) as refused:
            conversation.ended(first)
        conversation.broke(first, refused.value)
        conversation.heard(second, others)
        conversation.ended(second)
        with pytest.raises(ServerFault, match=why):
            next(conversation.todo())


@cases
def test_after_another_head_the_right_bytes_may_come(case: dict[str, Any]) -> None:
    """A proxy said something on a connection that broke."""
    conversation, _ = begun(case)
    for _, replies in rounds(case):
        list(conversation.todo())
        for line in replies:
            conversation.heard(line, b"<html>")
            conversation.again(line)
        whole(conversation, replies)
    assert as_recorded(case, conversation.result())


@cases
def test_a_changed_byte_of_an_answer_is_noticed(case: dict[str, Any]) -> None:
    """A control: the answers are not just carried past. Whoever lied anyway may lie otherwise."""
    changed = 0
    for number in (seat + 1 for seat in case["honest"]):
        conversation, _ = begun(case)
        try:
            for _, replies in rounds(case):
                list(conversation.todo())
                line = Line(number, 0)
                if line in replies:
                    body = len(replies[line]) - conversation.expected(line)
                    replies = {**replies, line: flipped(replies[line], body)}
                    changed += 1
                whole(conversation, replies)
            assert not as_recorded(case, conversation.result())
        except (ServerFault, TooManyLiars):
            pass
    assert changed == len(case["honest"])


@pytest.mark.parametrize("name", [name for name in FILE if "inside" not in name])
def test_a_changed_byte_of_a_record_is_noticed(name: str) -> None:
    """Of a server that makes the record: what others send is not looked at."""
    case = FILE[name]
    conversation, costs = begun(case)
    for _, replies in rounds(case):
        messages = {do.line: do.message for do in conversation.todo()}
        for line, reply in replies.items():
            message = messages[line]
            makes = message is not None and line.request == 1 and line.server == message.among[0] == 1
            conversation.heard(line, flipped(reply, -1) if makes else reply)
            conversation.ended(line)
    assert not as_recorded(case, conversation.result())
    with pytest.raises(Tampered):
        conversation.checked(costs)
