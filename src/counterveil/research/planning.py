"""Compute what a deployment of so many rows needs: memory, machines, bytes and seconds, from measured constants.

Every line of a plan has its formula; docs/performance.md explains them. Bytes of messages are exact: they are what the
protocol announces. Times are products of counts and of the constants of one core (`constants`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

from ..crypto.keys import SIGNATURE_BYTES
from ..crypto.randomness import KEY_BYTES
from ..engine.blocks import ROWS
from ..schemes.protocols import Size
from ..terms.deployment import Deployment
from .constants import Constants, deployment_of, gates, material

Unit = Literal["bytes", "seconds", "machines", "bytes per second", ""]


class _Steps(NamedTuple):
    """What a protocol does beside scans and records, in nanoseconds of one core and in bytes, with the formulas."""

    name: str
    formula: str
    compute: Callable[[Plan], float]
    held_formula: str
    held: Callable[[Plan], float]
    dealer: Callable[[Plan], float] = lambda _: 0.0
    applicant: Callable[[Plan], float] = lambda _: 0.0


class Line(NamedTuple):
    """One number of a plan."""

    name: str
    value: float
    unit: Unit
    formula: str


@dataclass(frozen=True)
class Machine:
    """A machine of a server, and the network between servers."""

    cores: int = 16
    memory: int = 64 << 30  # bytes
    network: float = 1.25e9  # bytes per second to the other server
    round_trip: float = 0.001  # seconds to the other server and back


@dataclass(frozen=True)
class Plan:
    """What is asked for: M rows of d features, and Q questions per second."""

    rows: int
    features: int
    questions: float = 1.0  # per second
    protocol: str = "joint"  # one of `PLANNED`
    levels: int = 64  # of each feature
    record: int | None = None  # bytes of a record; by default 8 for each feature
    shards: int = 0  # processes that share the rows of a server; by default all cores of its machines
    machine: Machine = Machine()
    constants: Constants = field(default_factory=Constants)

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment that is planned."""
        return deployment_of(self.features, self.levels, self.protocol)

    @property
    def bits(self) -> int:
        """k, the bits of a cost."""
        return self.deployment.scheme.field.bits

    @property
    def package(self) -> int:
        """L, the bytes of a record as servers hold it: with signature and key."""
        return (8 * self.features if self.record is None else self.record) + SIGNATURE_BYTES + KEY_BYTES

    @property
    def rows_held(self) -> int:
        """Bytes of the codes as they are scanned."""
        code = 1 if self.levels <= 256 else 2
        return -(-self.rows // ROWS) * ROWS * (self.features + self.features % 2) * code

    @property
    def records_held(self) -> int:
        """Bytes of all packages."""
        return self.rows * self.package

    @property
    def question_held(self) -> float:
        """Bytes that a server holds for one question, its tape included."""
        return _STEPS[self.protocol].held(self)

    @property
    def scan(self) -> float:
        """Seconds of one core to scan all rows."""
        c = self.constants
        each = c.scan if self.levels <= 64 else c.scan_256 if self.levels <= 256 else c.scan_many
        return 1e-9 * each * self.rows * self.features

    @property
    def compute(self) -> float:
        """Seconds of one core at the busier server, without scan and record."""
        return 1e-9 * _STEPS[self.protocol].compute(self)

    @property
    def record_step(self) -> float:
        """Seconds of one core to add up the chosen records, of all."""
        return 1e-9 * self.constants.xor * self.records_held

    @property
    def server(self) -> float:
        """Seconds of one core at the busier server for one question."""
        return self.scan + self.compute + self.record_step

    @property
    def dealer(self) -> float:
        """Seconds of one core at the dealer for one question."""
        return 1e-9 * _STEPS[self.protocol].dealer(self)

    @cached_property
    def randomness(self) -> int:
        """W, the bytes of one-time randomness that each server uses."""
        return material(self.deployment, self.rows)

    @cached_property
    def rounds(self) -> int:
        """How often the servers wait for each other."""
        return self.deployment.rounds(self.rows)

    @cached_property
    def gates(self) -> int:
        """A, the AND gates of the garbled protocol."""
        return gates(self.deployment, self.rows)

    def latency_of(self, machines: int) -> float:
        """Return the seconds from the question to the answer, if each server has so many machines."""
        asked = self.deployment.scheme.requests(Size(self.rows, self.package, 1))
        shards = self.shards or machines * self.machine.cores
        sent = self.deployment.between(self.rows) / (self.machine.network * machines)
        down = self.deployment.download(self.rows) / self.machine.network
        waits = self.machine.round_trip * (sum(each.rounds for each in asked) / 2 + len(asked))
        evaluated = 1e-9 * _STEPS[self.protocol].applicant(self)
        return self.server / shards + sent + down + waits + evaluated

    def in_flight_of(self, machines: int) -> int:
        """Return how many questions a server works on at a time, on average (Little's law), and at least 1."""
        return max(1, math.ceil(self.questions * self.latency_of(machines)))

    @cached_property
    def machines(self) -> int:
        """Machines of each server: the fewest whose cores compute enough and whose memory holds enough."""

        def enough(count: int) -> bool:
            held = self.rows_held + self.records_held + self.in_flight_of(count) * self.question_held
            return count * self.machine.memory >= held

        low = high = max(1, math.ceil(self.questions * self.server / self.machine.cores))
        while not enough(high):
            low, high = high + 1, 2 * high
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle + 1, high)
        return high

    @property
    def in_flight(self) -> int:
        """Questions that a server works on at a time."""
        return self.in_flight_of(self.machines)

    @property
    def latency(self) -> float:
        """Seconds from the question to the answer."""
        return self.latency_of(self.machines)

    @property
    def build(self) -> float:
        """Seconds of one core to build and sign the bundle."""
        c = self.constants
        return 1e-9 * self.rows * (c.read * self.features + c.sign)

    def lines(self) -> list[Line]:
        """Return all numbers of the plan."""
        deployment, m = self.deployment, self.rows
        between, dealt = deployment.between(m), deployment.scheme.requests(Size(m, self.package, 1))[0].dealt
        steps = _STEPS[self.protocol]
        made = [
            Line("rows in memory", self.rows_held, "bytes", "128·⌈M/128⌉·(d, made even)·(bytes of a code)"),
            Line("records in memory", self.records_held, "bytes", "M·L, L = record + 64 + 32"),
            Line("memory of a question", self.question_held, "bytes", steps.held_formula),
            Line("questions at a time", self.in_flight, "", "max(1, ⌈Q·latency⌉)"),
            Line("up a question", deployment.upload(m), "bytes", "announced by the protocol"),
            Line("down a question", deployment.download(m), "bytes", "announced by the protocol"),
            Line("scan", self.scan, "seconds", "scan·M·d"),
            Line(steps.name, self.compute, "seconds", steps.formula),
            Line("record", self.record_step, "seconds", "xor·M·L"),
            Line("server", self.server, "seconds", f"scan + {steps.name} + record, on one core"),
        ]
        if deployment.scheme.protocol.linked:
            made += [
                Line("between servers, each way", between, "bytes", "announced by the protocol"),
                Line("between servers, in all", 2 * between * self.questions, "bytes per second", "2·between·Q"),
                Line("dealt", sum(dealt), "bytes", "announced by the protocol, to both servers"),
                Line("rounds", deployment.rounds(m), "", "announced by the protocol"),
                Line("dealer", self.dealer, "seconds", "deal·W + deal_turn·rounds, on one core"),
                Line("machines of the dealer", self._dealers, "machines", "⌈Q·dealer / cores⌉"),
            ]
        return [
            *made,
            Line(
                "machines of each server",
                self.machines,
                "machines",
                "≥ Q·server / cores, and ≥ (rows + records + at a time·question) / memory",
            ),
            Line(
                "latency",
                self.latency,
                "seconds",
                "server / shards + between / (network·machines) + down / network + (rounds/2 + requests)·round trip"
                " + evaluate·A (if garbled)",
            ),
            Line("build", self.build, "seconds", "M·(read·d + sign), on one core"),
        ]

    @property
    def _dealers(self) -> int:
        return max(1, math.ceil(self.questions * self.dealer / self.machine.cores))


_STEPS: Final[dict[str, _Steps]] = {
    "joint": _Steps(
        "gates of joint",
        "gate·W + turn·rounds",
        lambda plan: plan.constants.gate * plan.randomness + plan.constants.turn * plan.rounds,
        "(joint_held + 1)·W",
        lambda plan: (plan.constants.joint_held + 1) * plan.randomness,
        lambda plan: plan.constants.deal * plan.randomness + plan.constants.deal_turn * plan.rounds,
    ),
    "garbled": _Steps(
        "garbled gates",
        "garble·A",
        lambda plan: plan.constants.garble * plan.gates,
        "garbled_held·M + garbled_chunk·k",
        lambda plan: plan.constants.garbled_held * plan.rows + plan.constants.garbled_chunk * plan.bits,
        applicant=lambda plan: plan.constants.evaluate * plan.gates,
    ),
    "padded": _Steps(
        "pads and order",
        "pad·M",
        lambda plan: plan.constants.pad * plan.rows,
        "padded_held·M",
        lambda plan: plan.constants.padded_held * plan.rows,
    ),
}
