"""Make `vectors/joint.json`: batches, tapes, gates, tournaments and whole questions of the joint protocol.

All randomness comes from named streams, so that other programs can draw the same (`Stream`).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from math import prod
from typing import Any

import numpy as np

from counterveil import Question, Scheme, make_scheme
from counterveil.crypto.randomness import keystream
from counterveil.engine import as_rows, hold
from counterveil.engine.party import Party, Role, Send, Take, play, released
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Held, Size, dealing, make_protocol
from counterveil.schemes.protocols.dealing import Batch, Outers, Shares, Tape, Terms, Words
from counterveil.schemes.protocols.packed import Layout, settled
from counterveil.terms import wire

COMMON = bytes(range(32, 64))
PLANS = [(1, 1, 1), (2, 1, 2), (5, 3, 2), (64, 4, 1), (65, 4, 1), (129, 7, 1), (4097, 12, 1), (65_537, 12, 1)]
PLANS += [(70_000, 21, 3), (1 << 20, 12, 1)]
TAPES = [(1, 1, 1), (5, 3, 2), (130, 4, 1), (5000, 21, 1), (65_537, 12, 2)]
TIES = [([5, 2, 7, 2, 2], 3, 2), ([15] * 61 + [9, 5, 5, 9] + [15] * 62 + [5, 6, 5], 4, 1), ([7] * 5, 3, 1)]
COSTS = [[9, 4, 0, 4, 12, 30, 31, 7], [3, 0, 5, 5, 20, 0, 31, 2]]
FEW_PLANS = [(1, 1, 1), (2, 1, 2), (65, 4, 1), (129, 7, 2), (4097, 12, 1), (70_000, 21, 3), (1 << 20, 12, 1)]
FEW_TAPES = [(5, 3, 2), (130, 4, 1), (5000, 21, 1)]
DEALERS = [("applicant", False), ("applicant", True), ("server", False), ("server", True)]

Script = Callable[[int, Shares], Generator[Any, Any, Any]]  # from a seat and its gates to what that server computes


class Stream:
    """The AES-256-CTR key stream of SHA-256(name). A number below 2^56 takes 7 bytes of it, any other number 8."""

    def __init__(self, name: str) -> None:
        self._read = keystream(hashlib.sha256(name.encode()).digest())

    def elements(self, q: int, count: int) -> Any:
        """Draw numbers below q, which is a power of two."""
        size = 7 if q == 1 << 56 else 8
        words = np.zeros((count, 8), dtype=np.uint8)
        words[:, :size] = np.frombuffer(self._read(size * count), dtype=np.uint8).reshape(count, size)
        return (words.view("<u8")[:, 0] & np.uint64(q - 1)).astype(np.int64)


class Messages:
    """Everything that was sent, by sender and receiver."""

    def __init__(self) -> None:
        self.parts: defaultdict[tuple[Role, Role], list[Any]] = defaultdict(list)

    def __call__(self, role: Role, send: Send) -> None:
        self.parts[role, send.to].append(np.array(send.symbols))

    def hex(self, role: Role, to: Role) -> list[str]:
        """Return the messages from one role to another, each in hexadecimal digits."""
        return [part.tobytes().hex() for part in self.parts[role, to]]

    def digest(self, role: Role, to: Role, first: int = 0) -> str:
        """Return the SHA-256 of the messages from one role to another, from the one with number `first` on."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.parts[role, to][first:])).hexdigest()


def shown(batch: Batch) -> str:
    """Return a batch as the file has it.

    It has words of the left and the right factors, or bits of each pair of vectors, or the words of each factor and
    then the numbers of the factors of each product.
    """
    if isinstance(batch, Outers):
        return " ".join(["outer", *(f"{n}x{m}" for n, m in batch.sizes)])
    if isinstance(batch, Terms):
        return " ".join(["terms", str(prod(batch.shape[1:])), *(".".join(map(str, term)) for term in batch.terms)])
    assert isinstance(batch, Words)
    return f"and {prod(batch.left)} {prod(batch.right)}"


def plan(rows: int, bits: int, k: int, profile: str = "balanced") -> dict[str, Any]:
    """Return the batches of a question, and how many bytes they take."""
    batches = dealing.planned(rows, bits, k, profile)
    dealt = {"dealt": dealing.dealt(batches, seeded=False), "seeded": dealing.dealt(batches, seeded=True)}
    sizes = {"rows": rows, "bits": bits, "k": k, "opened": dealing.opened(batches)}
    return {**sizes, **dealt, "batches": list(map(shown, batches)), **named(profile)}


def named(profile: str) -> dict[str, str]:
    """Return the profile of a case; the file leaves out the usual one."""
    return {} if profile == "balanced" else {"rounds": profile}


def tape(rows: int, bits: int, k: int, profile: str = "balanced", *, seeded: bool) -> dict[str, Any]:
    """Return the digests of both tapes of a question."""
    told, name = Messages(), f"tape {rows} {bits} {k}" + f", {profile} rounds" * bool(named(profile))
    for send in dealing.deal(dealing.planned(rows, bits, k, profile), Stream(name), seeded=seeded):
        assert isinstance(send, Send)
        told("dealer", send)
    digests = [told.digest("dealer", seat) for seat in (0, 1)]
    case = {"rows": rows, "bits": bits, "k": k, "seeded": seeded, "drawn": name, "tapes": digests}
    return case | named(profile)


def computed(batches: Sequence[Batch], name: str, script: Script) -> tuple[list[Any], Messages]:
    """Let two servers run a script, on a tape that is drawn from a named stream; return results and messages."""

    def server(seat: int) -> Party[Any]:
        received = yield Take("dealer", dealing.dealt(batches, seeded=False)[seat], BYTES)
        return (yield from script(seat, Shares(seat, Tape(seat, received, seeded=False))))

    told = Messages()
    parties: dict[Role, Party[Any]] = {"dealer": dealing.deal(batches, Stream(name), seeded=False)}
    results = play(parties | {seat: server(seat) for seat in (0, 1)}, watch=told)
    return [results[0], results[1]], told


def gate(batch: Batch, number: int) -> dict[str, Any]:
    """Return one batch of products: factors, masks, products of masks, openings and results, for each server."""
    held = [Stream(f"factors {number} {seat}").elements(256, batch.masks).astype(np.uint8) for seat in (0, 1)]
    name = f"gate {number}"
    made, told = computed([batch], name, lambda seat, gates: gates._multiplied(batch, held[seat].copy()))
    tapes = [told.parts["dealer", seat][0] for seat in (0, 1)]
    both = held[0] ^ held[1]
    return {
        "batch": shown(batch),
        "drawn": name,
        "factors": [each.tobytes().hex() for each in held],
        "masks": [each[: batch.masks].tobytes().hex() for each in tapes],
        "products": [each[batch.masks :].tobytes().hex() for each in tapes],
        "openings": [told.hex(0, 1)[0], told.hex(1, 0)[0]],
        "results": [each.tobytes().hex() for each in made],
        "product": batch.dealt(both).tobytes().hex(),
    }


def tournament(costs: list[int], bits: int, k: int) -> dict[str, Any]:
    """Return the k nearest of some costs with ties: shares, their bits in words, every opening, and selections."""
    name, layout, ring = f"tournament {len(costs)} {bits} {k}", Layout.of(len(costs)), 1 << bits
    first = Stream(f"{name}, shares").elements(ring, len(costs))
    shares = [first, (np.array(costs) - first) % ring]
    own = [layout.sliced(layout.padded(shares[seat], pad), bits) for seat, pad in ((0, ring - 1), (1, 0))]
    none = np.zeros_like(own[0])

    def script(seat: int, gates: Shares) -> Generator[Any, Any, Any]:
        return settled(gates, none if seat else own[0], own[1] if seat else none, layout, k)

    made, told = computed(dealing.planned(len(costs), bits, k), name, script)
    return {
        "costs": costs,
        "bits": bits,
        "k": k,
        "drawn": name,
        "shares": [each.tolist() for each in shares],
        "words": [dealing.as_bytes(each).tobytes().hex() for each in own],
        "openings": [told.hex(0, 1), told.hex(1, 0)],
        "selections": [[np.packbits(each, bitorder="little").tobytes().hex() for each in seat] for seat in made],
        "rows": [int(np.argmax(one ^ two)) for one, two in zip(*made, strict=True)],
    }


def question(dealer: str, *, seeded: bool, profile: str = "balanced") -> dict[str, Any]:
    """Return a whole question for two records, with this dealer."""
    made = make_scheme("table/sealed", largest=7, d=2, cap=31, protocol="joint", dealer=dealer)
    scheme = Scheme.of(made.form, made.reveal, make_protocol("joint", dealer=dealer, seeded=seeded, rounds=profile))
    rows = [[i * i % 7, (3 * i + 2) % 8] for i in range(70)]
    records = np.frombuffer(b"".join(b"record %02d" % i for i in range(len(rows))), dtype=np.uint8).reshape(-1, 9)
    common = scheme.common(COMMON, bytes(32), b"vectors")
    size = Size(len(rows), records.shape[1], 2)
    held = Held(as_rows(scheme.form.load(np.array(rows))), hold(records), lambda _: common, size.k)
    parties: dict[Role, Party[Any]] = {seat: released(scheme.answering(seat, 0, held), BYTES) for seat in (0, 1)}
    drawn, told = f"question, dealt by the {dealer}" + ", seeded" * seeded, Messages()
    drawn += f", {profile} rounds" * bool(named(profile))
    parties["applicant"] = scheme.ask(Question(costs=COSTS), size, Stream(drawn))
    if dealer == "server":
        parties["dealer"] = scheme.protocol.deal(scheme, size, Stream(f"{drawn}, the server"))
    seen = play(parties, watch=told)["applicant"]
    queries = [told.parts["applicant", seat][0] for seat in (0, 1)]
    source: Role = "applicant" if dealer == "applicant" else "dealer"
    return {
        "dealer": dealer,
        "seeded": seeded,
        "q": str(scheme.field.q),
        "k": size.k,
        "levels": rows,
        "costs": COSTS,
        "package": size.record,
        "common_key": COMMON.hex(),
        "drawn": drawn,
        "symbols": [list(map(int, query)) for query in queries],
        "queries": [wire.pack(scheme.field, query).hex() for query in queries],
        "tapes": [told.digest(source, seat, int(dealer == "applicant")) for seat in (0, 1)],
        "openings": [told.digest(0, 1), told.digest(1, 0)],
        "answers": ["".join(told.hex(seat, "applicant")) for seat in (0, 1)],
        "records": [record.hex() for record in seen.records],
    } | named(profile)


def joint() -> dict[str, Any]:
    """Return the file."""
    gates: list[Batch] = [Words((1, 2, 1), (1, 2, 1)), Words((3, 2, 1), (1, 2, 1)), Words((2, 1, 1, 2), (1, 1, 1, 2))]
    gates += [Outers(((4, 2), (2, 3))), Outers(((11, 13),))]
    gates += [Terms((2, 1), ((0, 1),)), Terms((6, 2, 1), ((2, 5), (1, 2, 4), (0, 1, 2, 3), (0, 1, 2)))]
    tapes = [tape(*sizes, seeded=seeded) for sizes in TAPES for seeded in (False, True)]
    return {
        "batches": [plan(*sizes) for sizes in PLANS] + [plan(*sizes, "few") for sizes in FEW_PLANS],
        "tapes": tapes + [tape(*sizes, "few", seeded=seeded) for sizes in FEW_TAPES for seeded in (False, True)],
        "gates": [gate(each, n) for n, each in enumerate(gates)],
        "tournaments": [tournament(*tied) for tied in TIES],
        "questions": [question(dealer, seeded=seeded) for dealer, seeded in DEALERS]
        + [question("applicant", seeded=False, profile="few")],
    }
