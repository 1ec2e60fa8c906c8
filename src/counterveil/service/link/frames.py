"""What linked parties say to each other, as bytes and back. `channel` seals these bytes before they leave.

A byte is trusted only after `decode` has checked it. A frame has exactly one encoding.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...errors import Malformed, OutOfRange
from ...terms.wire import Bytes32, Id, Server

MOST_DATA = 1 << 20  # bytes of data in one frame; who has more to say cuts it into several frames
MOST_PEERS = 4096  # processes of other servers that one process is linked to
MOST_TERMS = 256  # terms that one process needs tapes for
TAG = 8  # bytes of a digest of terms that a tape's id carries
LIMIT = MOST_DATA + 256  # bytes of a whole frame

Data = Annotated[bytes, Meta(max_length=MOST_DATA)]
Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
Length = Annotated[int, Meta(ge=0, lt=1 << 40)]  # bytes of a tape
Tag = Annotated[bytes, Meta(min_length=TAG, max_length=TAG)]
State = Literal["unknown", "running", "held", "given up"]  # of an attempt, at the sender


class Run(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The name of one attempt of two servers to answer the question of a ticket."""

    terms: Bytes32  # digest
    ticket: Id
    servers: tuple[Server, Server]  # ascending
    attempt: Annotated[int, Meta(ge=0, le=15)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=str.lower):
    """What all frames have in common: how they are encoded. The first element is the frame's name."""


class Ready(_Frame, frozen=True):
    """The sender has its whole input of a run."""

    run: Run


class Begin(_Frame, frozen=True):
    """The sender begins a run; `tape` is the id of the dealer's tape, or empty if the applicant deals."""

    run: Run
    tape: Annotated[bytes, Meta(max_length=32)]


class Opening(_Frame, frozen=True):
    """The next bytes of what the sender opens in a run."""

    run: Run
    data: Data


class Standing(_Frame, frozen=True):
    """How a run stands at the sender; with `answer` the receiver is asked to tell the same of itself."""

    run: Run
    state: State
    answer: bool


class Ping(_Frame, frozen=True):
    """Ask for a pong with the same number."""

    number: Number


class Pong(_Frame, frozen=True):
    """The answer to a ping."""

    number: Number


class Tape(_Frame, frozen=True):
    """Part of a tape, from a dealer; `peer` is the boot id of the process that gets the other half."""

    id: Bytes32
    offset: Length
    total: Length
    peer: Id
    data: Data


class Kept(_Frame, frozen=True):
    """The sender has the whole of a tape of the dealer's."""

    id: Bytes32


class Used(_Frame, frozen=True):
    """A server has used or lost a tape of the dealer's; from the dealer: the other half of a tape is gone."""

    id: Bytes32


class Peers(_Frame, frozen=True):
    """The processes of other servers that the sender is linked to, by boot id; told to a dealer."""

    boots: Annotated[tuple[Id, ...], Meta(max_length=MOST_PEERS)]


class Wants(_Frame, frozen=True):
    """The terms that the sender needs tapes for, by the first bytes of their digests; told to a dealer."""

    terms: Annotated[tuple[Tag, ...], Meta(max_length=MOST_TERMS)]


Frame = Ready | Begin | Opening | Standing | Ping | Pong | Tape | Kept | Used | Peers | Wants
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Return a frame's bytes."""
    data = msgspec.msgpack.encode(frame)
    if len(data) > LIMIT:
        raise OutOfRange("frame", got=f"{len(data)} bytes", expected=f"at most {MOST_DATA} bytes of data")
    return data


def decode(data: bytes) -> Frame:
    """Read a frame; refuse everything that `encode` does not write."""
    if len(data) > LIMIT:
        raise Malformed("frame", got=f"{len(data)} bytes", expected=f"at most {LIMIT}")
    try:
        frame = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("frame", got=str(error)[:200] or type(error).__name__, expected="a frame") from None
    if msgspec.msgpack.encode(frame) != data:
        raise Malformed("frame", got="another encoding of the same", expected="the shortest MessagePack there is")
    run = getattr(frame, "run", None)
    if run is not None and run.servers[0] >= run.servers[1]:
        raise Malformed("frame", got=f"servers {list(run.servers)}", expected="two, in ascending order")
    if isinstance(frame, Tape) and frame.offset + len(frame.data) > frame.total:
        raise Malformed("frame", got="bytes behind the end of a tape", expected=f"{frame.total} bytes in all")
    return frame
