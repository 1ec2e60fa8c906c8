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
Heard = Mapping[Line, bytes | str | None]  # a reply, or the code of a refusal
Carry = Callable[[Conversation, Replies], None]

LINKED = [name for name in FILE if "joint" in name]
ALONE = [
    name for name in FILE if name not in LINKED and "of three servers lies" not in name
]  # one run, and no attempts
cases = pytest.mark.parametrize("case", FILE.values(), ids=FILE)
alone = pytest.mark.parametrize("case", [FILE[name] for name in ALONE], ids=ALONE)
pair = pytest.mark.parametrize("case", [FILE[name] for name in LINKED if "lies" not in name])


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


def rounds(case: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], Heard]]:
    """Return, round by round, what a conversation does, and what it then hears."""
    done: list[dict[str, Any]] = []
    heard: dict[Line, bytes | str | None] = {}
    for event in case["events"]:
        if event["what"] in ("reply", "refusal"):
            line = Line(event["server"], event["request"], event.get("run", 0))
            heard[line] = bytes.fromhex(event["hex"]) if "hex" in event else event["code"]
            continue
        if heard:
            yield done, heard
            done, heard = [], {}
        done.append(event)
    yield done, heard


def carried(conversation: Conversation, heard: Heard, carry: Carry | None = None) -> None:
    """Tell a conversation what it hears, run by run, because every run draws when its answers have arrived."""
    for run in sorted({line.run for line in heard}):
        ours = {line: reply for line, reply in heard.items() if line.run == run}
        for line, reply in ours.items():
            if not isinstance(reply, bytes):
                make_vectors.tell(conversation, line, reply)
        (carry or whole)(conversation, {line: reply for line, reply in ours.items() if isinstance(reply, bytes)})


def first_replies(case: dict[str, Any]) -> dict[Line, bytes]:
    """Return the replies to the first messages."""
    _, heard = next(rounds(case))
    return {line: reply for line, reply in heard.items() if isinstance(reply, bytes)}


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
    for expected, heard in rounds(case):
        todo, bodies = make_vectors.started(conversation)
        assert [make_vectors.shown(do, bodies) for do in todo] == expected
        carried(conversation, heard, carry)
    assert as_recorded(case, conversation.result())
    assert [record.codes.tolist() for record in conversation.checked(costs)] == case["codes"]
    assert not pads.left
    assert "liars" not in case or conversation.liars == case["liars"] == [3]


@alone
def test_a_broken_line_is_told_when_the_others_have_ended(case: dict[str, Any]) -> None:
    conversation, _ = begun(case)
    replies = first_replies(case)
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


@alone
def test_a_reply_with_another_head_is_refused(case: dict[str, Any]) -> None:
    replies = first_replies(case)
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
    for _, heard in rounds(case):
        make_vectors.started(conversation)
        for line in heard:
            conversation.heard(line, b"<html>")
            conversation.again(line)
        carried(conversation, heard)
    assert as_recorded(case, conversation.result())


def put_off(conversation: Conversation, why: ServerFault) -> list[float]:
    """Refuse to give out the answer again and again, until the conversation raises; return the pauses before that."""
    waited: list[float] = []
    for _ in range(99):
        try:
            todo = list(conversation.todo())
        except ServerFault as error:
            if error is not why:
                raise
            return waited
        waited += [do.seconds for do in todo if do.what == "wait"]
        for do in todo:
            if do.line is not None and do.message is not None:
                assert do.message.kind == "collect"
                conversation.broke(do.line, why)
    raise AssertionError("it asks without end")


@pair
def test_servers_that_talk_to_each_other_are_asked_again(case: dict[str, Any]) -> None:
    """Until the answers come, or patience ends. What is refused for good is told at once."""
    first, second = Line(1, 0), Line(2, 0)
    for why in (ServerFault("server 1", "broke off"), ServerFault("server 1", "no", "attempt_held")):
        conversation, _ = begun(case)
        list(conversation.todo())
        _, heard = next(rounds(case))
        carried(conversation, {second: heard[second]})
        conversation.broke(first, why)
        waited = put_off(conversation, why)
        assert waited[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
        assert 9 < sum(waited) <= 10
    conversation, _ = begun(case)
    list(conversation.todo())
    for line in (first, second):
        conversation.broke(line, ServerFault(f"server {line.server}", "no", "ticket_used"))
    with pytest.raises(ServerFault, match="server 1"):
        list(conversation.todo())


@cases
def test_a_changed_byte_of_an_answer_is_noticed(case: dict[str, Any]) -> None:
    """A control: the answers are not just carried past. Whoever lied anyway may lie otherwise."""
    changed = 0
    for number in (seat + 1 for seat in case["honest"]):
        conversation, _ = begun(case)
        try:
            for _, heard in rounds(case):
                make_vectors.started(conversation)
                for line, reply in heard.items():
                    if (
                        line.server == number
                        and line.run == 0
                        and isinstance(reply, bytes)
                        and "record" not in str(reply[:16])
                    ):
                        body = len(reply) - conversation.expected(line)
                        heard = {**heard, line: flipped(reply, body)}
                        changed += 1
                carried(conversation, heard)
            assert not as_recorded(case, conversation.result())
        except (ServerFault, TooManyLiars):
            pass
    assert changed == len(case["honest"])


@pytest.mark.parametrize("name", [name for name in ALONE if "inside" not in name])
def test_a_changed_byte_of_a_record_is_noticed(name: str) -> None:
    """Of a server that makes the record: what others send is not looked at."""
    case = FILE[name]
    conversation, costs = begun(case)
    for _, heard in rounds(case):
        messages = {do.line: do.message for do in conversation.todo()}
        for line, reply in heard.items():
            assert isinstance(reply, bytes)
            message = messages[line]
            makes = message is not None and line.request == 1 and line.server == message.among[0] == 1
            conversation.heard(line, flipped(reply, -1) if makes else reply)
            conversation.ended(line)
    assert not as_recorded(case, conversation.result())
    with pytest.raises(Tampered):
        conversation.checked(costs)
