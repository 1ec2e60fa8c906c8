"""What one core of this machine takes for each step of a question, measured: the numbers that `planning` multiplies.

Times are processor time of one thread, so that other programs on the machine matter little, and the best of a few
rounds. Memory is what a party allocates for one question, beside rows, records and its tape.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import narwhals as nw
import numpy as np

from .. import engine
from ..crypto.keys import Issuer
from ..crypto.randomness import KEY_BYTES, Fresh
from ..engine import cpu
from ..engine.party import Party, Role, chained, play, released
from ..institution import streaming
from ..institution.parallel import crew
from ..institution.signing import pieces, signed
from ..schema.features import Categorical, Numeric
from ..schema.frames import installed_backend
from ..schema.schema import Schema
from ..schemes.fetch import BYTES
from ..schemes.forms import Question
from ..schemes.protocols import Held, Size, circuit
from ..terms.deployment import Deployment

_ROWS, _FEW, _GARBLED = 1 << 18, 1 << 13, 1 << 13  # rows that are measured
_ROUNDS = 5  # how often


PLANNED: Final[dict[str, dict[str, Any]]] = {  # the deployments that can be planned, by protocol
    "joint": {"scheme": "table/sealed", "protocol": "joint", "dealer": "server"},
    "garbled": {"scheme": "table/sealed", "protocol": "garbled"},
    "padded": {"scheme": "table/differences"},
}


class Constants(msgspec.Struct, frozen=True):
    """Nanoseconds of one core, or bytes. The defaults were measured on one core of an AMD EPYC with AVX-512."""

    scan: float = 0.07  # ns for each code of a table of up to 64 levels
    scan_256: float = 0.18  # of up to 256 levels
    scan_many: float = 0.6  # of more
    gate: float = 1.45  # ns for each byte of one-time randomness that a joint server uses
    turn: float = 34_000.0  # ns for each round of the joint protocol, however many rows there are
    deal: float = 7.3  # ns for each byte of it that a dealer makes for both servers
    deal_turn: float = 30_000.0  # ns for each round, at the dealer
    xor: float = 0.038  # ns for each byte of all records
    pad: float = 40.0  # ns for each row of shuffled differences: pads, order and packing
    garble: float = 150.0  # ns for each AND gate
    evaluate: float = 90.0  # ns for each AND gate, at the applicant
    sign: float = 47_000.0  # ns for each record: signature and package
    read: float = 200.0  # ns for each value that a build reads, sorts and writes
    joint_held: float = 1.0  # bytes for each byte of one-time randomness
    padded_held: float = 48.0  # bytes for each row
    garbled_held: float = 16.0  # bytes for each row
    garbled_chunk: float = 840_000.0  # bytes for each bit of a cost, however many rows there are


def deployment_of(features: int, levels: int, protocol: str, k: int = 1) -> Deployment:
    """Return a deployment of so many numeric features of so many levels, by a protocol."""
    schema = Schema(features=tuple(Numeric(name=f"x{j}", low=0, high=levels - 1, step=1) for j in range(features)))
    return Deployment.of(schema, k=k, **PLANNED[protocol])


def material(deployment: Deployment, rows: int) -> int:
    """Return how many bytes of one-time randomness each server of the joint protocol uses for a question."""
    request = deployment.scheme.requests(Size(rows, 0, deployment.k))[0]
    seeded = request.dealt[0] < request.between  # then a server derives from a seed what it does not get
    return request.between + request.dealt[1] - KEY_BYTES if seeded else request.dealt[1]


def gates(deployment: Deployment, rows: int) -> int:
    """Return how many AND gates the garbled protocol has."""
    chunks, last = circuit.ands(rows, deployment.scheme.field.bits)
    return sum(chunks) + last


class Played:
    """One question of random rows, with every party in this process: what each takes."""

    def __init__(self, deployment: Deployment, rows: int, record: int = 0) -> None:
        rng, self.scheme = np.random.default_rng(1), deployment.scheme
        levels = min(self.scheme.form.largest) + 1
        codes = rng.integers(0, levels, (rows, len(self.scheme.form.largest)), dtype=_type(levels))
        self.size = Size(rows, record, deployment.k)
        self.rows = engine.lay_out(codes, worthwhile=0)
        self.records = engine.hold(rng.integers(0, 256, (rows, record), dtype=np.uint8)) if record else None
        self.question = Question(
            costs=[np.arange(most + 1) % (deployment.unit + 1) for most in self.scheme.form.largest]
        )

    def parties(self) -> dict[Role, Party[Any]]:
        """Return all parties of the question."""
        scheme, size = self.scheme, self.size
        shared = scheme.common(bytes(KEY_BYTES), bytes(32), b"plan")
        held = Held(self.rows, self.records, lambda _: shared, size.k)
        made: dict[Role, Party[Any]] = {"applicant": scheme.ask(self.question, size, Fresh())}
        if scheme.protocol.dealt_by == "dealer":
            made["dealer"] = scheme.protocol.deal(scheme, size, Fresh())
        for seat in range(scheme.servers):
            answers = [scheme.answering(seat, n, held) for n in range(len(scheme.requests(size)))]
            made[seat] = chained(released(each, BYTES) for each in answers)
        return made

    def seconds(self, rounds: int = _ROUNDS) -> dict[Role, float]:
        """Return the processor seconds of every party: the best of some rounds, after one that compiles."""
        clocks = []
        for _ in range(rounds + 1):
            clock: dict[Role, float] = defaultdict(float)
            play({role: _timed(party, clock, role) for role, party in self.parties().items()})
            clocks.append(clock)
        return {role: min(clock[role] for clock in clocks) for role in clocks[0]}

    def held(self) -> int:
        """Return the most bytes that server 1 allocates, beside its rows, records and what it was sent."""
        got: list[Any] = []
        parties = self.parties()
        play(parties | {0: _noted(parties[0], got)})
        party = self.parties()[0]  # the same once more, alone, with the same messages
        tracemalloc.start()
        try:
            party.send(None)
            for each in got:
                party.send(each)
        except StopIteration:
            pass
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return most


def _type(levels: int) -> Any:
    return np.uint8 if levels <= 256 else np.uint16


def _timed(party: Party[Any], clock: dict[Role, float], role: Role) -> Party[Any]:
    """Return the party, whose processor seconds are added up on the clock."""
    received: Any = None
    while True:
        began = time.process_time()
        try:
            effect = party.send(received)
        except StopIteration as end:
            return end.value
        finally:
            clock[role] += time.process_time() - began
        received = yield effect


def _noted(party: Party[Any], got: list[Any]) -> Party[Any]:
    """Return the party, whose input is kept."""
    received: Any = None
    while True:
        try:
            effect = party.send(received)
        except StopIteration as end:
            return end.value
        received = yield effect
        got.append(received)


def _best(work: Callable[[], object]) -> float:
    """Return the fewest processor nanoseconds that work takes, after one round that compiles."""
    work()
    times = []
    for _ in range(_ROUNDS):
        began = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - began)
    return float(min(times))


def measure(tell: Callable[[str], None] = lambda _: None) -> Constants:
    """Measure this machine. It takes about a minute."""
    found: dict[str, float] = {}
    for name, levels in (("scan", 64), ("scan_256", 256), ("scan_many", 1000)):
        tell(f"scan of {levels} levels")
        found[name] = scan_of(32, levels, _ROWS)
    tell("records")
    records, chosen = np.zeros((_ROWS // 4, 416), dtype=np.uint8), np.arange(_ROWS // 4) % 2 == 0
    found["xor"] = _best(lambda: cpu.xor(records, chosen, worthwhile=0)) / records.size
    small = 4 * scan_of(4, 16, _ROWS) * 1e-9  # seconds for each row
    tell("joint")
    joint = deployment_of(4, 16, "joint")
    played, used = Played(joint, _ROWS), material(joint, _ROWS)
    seconds, few = played.seconds(), Played(joint, _FEW).seconds()
    counts = [[material(joint, rows), joint.rounds(rows)] for rows in (_FEW, _ROWS)]
    took = [1e9 * (max(each[0], each[1]) - small * rows) for each, rows in ((few, _FEW), (seconds, _ROWS))]
    dealt = [1e9 * few["dealer"], 1e9 * seconds["dealer"]]
    found["gate"], found["turn"] = (max(0.0, float(each)) for each in np.linalg.solve(counts, took))
    found["deal"], found["deal_turn"] = (max(0.0, float(each)) for each in np.linalg.solve(counts, dealt))
    found["joint_held"] = played.held() / used
    tell("padded")
    played = Played(deployment_of(4, 16, "padded"), _ROWS)
    found["pad"] = 1e9 * (played.seconds()[0] / _ROWS - small)
    found["padded_held"] = played.held() / _ROWS
    tell("garbled")
    garbled = deployment_of(4, 16, "garbled")
    played, count = Played(garbled, _GARBLED), gates(garbled, _GARBLED)
    seconds = played.seconds()
    found["garble"], found["evaluate"] = (1e9 * seconds[role] / count for role in (0, "applicant"))
    more = Played(garbled, 2 * _GARBLED)  # it works on some rows at a time, so only the difference grows with rows
    held = [played.held(), more.held()]
    found["garbled_held"] = max(0.0, (held[1] - held[0]) / _GARBLED)
    found["garbled_chunk"] = (held[0] - found["garbled_held"] * _GARBLED) / garbled.scheme.field.bits
    tell("signatures")
    rows, issuer = np.zeros((1024, 320), dtype=np.uint8), Issuer()
    with crew(1) as run:
        found["sign"] = _best(lambda: list(signed(pieces(rows), issuer, bytes(32), run))) / len(rows)
    tell("build")
    found["read"] = _read()
    return Constants(**found)


def scan_of(features: int, levels: int, rows: int) -> float:
    """Return the nanoseconds that a scan of a table takes for each code."""
    scheme = deployment_of(features, levels, "joint").scheme
    codes = np.random.default_rng(1).integers(0, levels, (rows, features), dtype=_type(levels))
    laid = engine.lay_out(codes, worthwhile=0)
    plan = scheme.form.plan(scheme.field, Fresh().elements(scheme.field.q, scheme.form.symbols))
    return _best(lambda: laid.scan(plan)) / codes.size


def _read(rows: int = 200_000, features: int = 10) -> float:
    """Return the nanoseconds that a build without signatures takes for each value."""
    rng, words = np.random.default_rng(1), features // 5
    kinds = tuple(f"kind {n}" for n in range(12))
    numbers = [Numeric(name=f"x{j}", low=0, high=1, levels=100) for j in range(features - words)]
    categories = [Categorical(name=f"c{j}", values=kinds) for j in range(words)]
    schema = Schema(features=(*numbers, *categories))
    columns: dict[str, Any] = {f.name: rng.random(rows) for f in numbers} | {"ok": np.ones(rows, dtype=bool)}
    columns |= {f.name: np.array(kinds)[rng.integers(0, 12, rows)].tolist() for f in categories}
    with tempfile.TemporaryDirectory() as folder:
        nw.from_dict(columns, backend=installed_backend()).write_parquet(f"{folder}/data.parquet")
        build = partial(streaming.build, f"{folder}/data.parquet", schema, accepted="ok", output=f"{folder}/bundle")
        return _best(build) / (rows * features)
