"""Play jobs where the rows are, in step: what the jobs of all parts of the rows say becomes one message, in row order.

A job says something about its rows (`Part`) and waits. The head joins what all jobs say, and lets it `meet` whatever it
is meant for: the other server, or the other rows. It cuts the answer in the same places, and each job goes on with its
own piece. So nobody outside can see into how many parts the rows are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .party import Party

T = TypeVar("T")


class Part(NamedTuple):
    """What a job says about its rows. The last axis of `values` goes along its blocks of rows."""

    topic: str
    values: NDArray[Any]


class Ended(NamedTuple):
    """The end of a job, and its result."""

    result: Any


class Home(Protocol):
    """A graphics card that values are on, as a job sees it. Arrays on it have NumPy's operators and functions."""

    def to_card(self, array: NDArray[Any]) -> Any:
        """Return an array of the host as one of the card."""

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return an array of the card as one of the host."""

    def slice(self, values: Any, rows: int, pad: int, bits: int, words: int, blocks: int) -> Any:
        """Return the lowest bits of values, and of a pad in every place after them, packed as the joint protocol does.

        The result is an array (bits, words, blocks) of 64-bit words.
        """

    def made(self, opened: Any, masks: Any, products: Any, right: int, seat: int) -> Any:
        """Return shares of products, from factors that were opened under masks; the last `right` are right factors."""


Answer = tuple[NDArray[Any], ...]  # the last axis of each array goes along blocks of rows
Script = Generator[Part, Answer, T]  # what a job plays
Meet = Callable[[Part], Party[Answer]]  # takes what all jobs say, and returns the answer to all of them


def advanced(script: Script[Any], answer: Answer | None) -> Part | Ended:
    """Let one job go on; return what it says next, or its end."""
    try:
        return next(script) if answer is None else script.send(answer)
    except StopIteration as end:
        return Ended(end.value)


def in_step(advance: Callable[[list[Answer | None]], Sequence[Part | Ended]], count: int, meet: Meet) -> Party[list[T]]:
    """Play the jobs of `count` parts of the rows in step; return their results, in row order.

    `advance` gives each job its piece of an answer, and returns what each job says next.
    """
    pieces: list[Answer | None] = [None] * count
    while True:
        said = advance(pieces)
        parts = [each for each in said if isinstance(each, Part)]
        if not parts:
            return [each.result for each in said if isinstance(each, Ended)]
        if len(parts) < len(said) or len({part.topic for part in parts}) > 1:
            raise AssertionError("jobs that play in step say the same kind of thing, or end together")
        widths = [part.values.shape[-1] for part in parts]
        whole = parts[0].values if count == 1 else np.concatenate([part.values for part in parts], axis=-1)
        answer = yield from meet(Part(parts[0].topic, whole))
        if count == 1:
            pieces = [answer]
            continue
        split = [np.split(each, np.cumsum(widths)[:-1], axis=-1) for each in answer]
        pieces = list(zip(*split, strict=True))
