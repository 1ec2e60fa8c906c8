"""Terms that were checked, and the step of time that hides from servers how long the applicant computed."""

from __future__ import annotations

import time
from typing import NamedTuple

import anyio
import numpy as np
from anyio import to_thread

from ..crypto.randomness import Fresh, keystream, new_key, uniform
from ..engine.party import Send, Take
from ..errors import NotOffered
from ..schema.preferences import Preferences
from ..schemes.protocols import Size
from ..terms.deployment import Deployment
from ..terms.wire import SignedTerms
from .ask import compile_question

_STEP = 0.02  # seconds: the shortest step; the applicant sends only at multiples of the step
_TIMER = 0.003  # seconds by which a timer may be late
_ROWS_A_STEP = 20_000  # the step grows by `_STEP` for each this many rows
_REHEARSALS = 3
_MOST_REHEARSED = 1 << 16  # rows; for more rows, the time that these take is scaled up


class Offer(NamedTuple):
    """Terms that were checked, the deployment that they describe, and the step of time between messages."""

    issued: SignedTerms
    deployment: Deployment
    step: float  # seconds


def make_offer(issued: SignedTerms, deployment: Deployment) -> Offer:
    """Choose the step: at least twice the time of anything computed between messages, measured on made-up answers.

    It grows with the rows where the applicant computes costs from answers.
    """
    rows = issued.terms.rows
    longest = max(_rehearsed(deployment, rows) for _ in range(_REHEARSALS))
    steps = 1 if _is_steady(deployment) else 1 + rows // _ROWS_A_STEP
    return Offer(issued, deployment, max(_STEP * steps, 2 * longest))


def _is_steady(deployment: Deployment) -> bool:
    """Say whether all that is computed between messages takes a time that depends on public sizes alone."""
    scheme = deployment.scheme
    return scheme.protocol.linked or scheme.requests(Size(1, 1))[0].streams


def _rehearsed(deployment: Deployment, rows: int) -> float:
    """Return the seconds for compiling a question or for recovering costs and choosing rows, whichever is longer."""
    schema, scheme = deployment.schema, deployment.scheme
    own = np.array([feature.largest // 2 for feature in schema.features], dtype=np.int64)
    wishes = _most_wishes(deployment)
    scheme = scheme.among(range(1, scheme.needed() + 1))
    size = Size(min(rows, _MOST_REHEARSED), deployment.record_bytes, deployment.k)
    made_up = keystream(new_key())  # random answers, which nobody sent
    began = time.monotonic()
    question, _ = compile_question(deployment, own, wishes)
    party = scheme.ask(question, size, Fresh(), deployment.choose)
    effect = next(party)
    compiled = time.monotonic() - began
    if _is_steady(deployment):
        return compiled
    while isinstance(effect, Send):
        effect = next(party)
    computed = 0.0
    while isinstance(effect, Take) and effect.request == 0:
        answer = uniform(made_up, effect.alphabet.q, effect.count)
        began = time.monotonic()
        effect = party.send(answer)
        computed += time.monotonic() - began
    return max(compiled, computed * rows / size.rows)


def _most_wishes(deployment: Deployment) -> Preferences:
    """Return the preferences that take longest to compile; none if the deployment does not offer all of them."""
    features = deployment.schema.cost_features
    every = {f.name: [f.value(code) for code in range(f.steps + 1)] for f in features}
    ordered = [f.name for f in features if f.ordered]
    wishes = Preferences(
        costs={name: dict.fromkeys(values, 0.5) for name, values in every.items()},
        forbidden=every,
        ranges={name: (every[name][0], every[name][-1]) for name in ordered},
        immutable=list(every),
        increase_only=ordered,
    )
    try:
        compile_question(deployment, np.zeros(len(deployment.schema.features), dtype=np.int64), wishes)
    except NotOffered:
        return Preferences()
    return wishes


async def settle(began: float, step: float) -> None:
    """Wait until a multiple of `step` after `began`, so that no server can measure how long the applicant computed.

    The event loop rounds a delay up to a millisecond, and the rounding would show when the delay was set. So a thread
    sleeps for the last milliseconds, until a time that is exact.
    """
    until = began + step * (1 + (time.monotonic() - began) // step)
    await anyio.sleep(max(0.0, until - time.monotonic() - _TIMER))
    await to_thread.run_sync(_sleep_until, until)


def _sleep_until(until: float) -> None:
    if (left := until - time.monotonic()) > 0:
        time.sleep(left)
