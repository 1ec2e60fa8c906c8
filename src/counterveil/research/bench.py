"""Compare speed with other software, in one run on the same rows, and with what the machine can do at most.

Every figure is the best of a few rounds, because other programs may use the machine too. A peer is other software for
the same job, as far as it can do it: find the nearest of M rows by squared distance. A peer that is not installed is
left out and named.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import engine
from ..algebra.field import Field, smallest_prime_above
from ..applicant.client import Client
from ..crypto.randomness import Fresh, new_key
from ..engine import Plan, cpu
from ..errors import MissingPackage
from ..inprocess.bank import local
from ..institution.database import Database
from ..schema.features import Numeric
from ..schema.schema import Schema
from ..schemes.fetch import make_spir
from ..schemes.forms import Question
from ..schemes.scheme import Scheme, make_scheme
from .processes import serving

RECORD = 146  # bytes: a signed record of the German credit data
NOBODY, SERVER, TWO, THREE = (
    "none: all is in the clear",
    "one server, which need not be honest; a lattice assumption",
    "two servers that do not collude; no assumption",
    "three parties, of whom one may be dishonest",
)
_SMALL = 1_000  # rows for slow peers


@dataclass(frozen=True)
class Timed:
    """One measurement: milliseconds for one question, and how many bytes were read for it."""

    what: str
    trust: str
    milliseconds: float
    rows: int
    read: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "what": self.what, "trust": self.trust, "milliseconds": round(self.milliseconds, 4), "rows": self.rows,
            "nanoseconds_a_row": round(1e6 * self.milliseconds / self.rows, 2), "bytes_read": self.read,
        }  # fmt: skip


def best(work: Callable[[], object], rounds: int = 9) -> float:
    """Return the milliseconds of the fastest round, after one round to warm up."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def _needed(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage("bench", got=f"no {name}", expected=extra) from None


def _reading(data: Any, threads: int) -> Callable[[], object]:
    """Return a function that only reads memory. Its time is the machine's own limit."""
    numba = _needed("numba", "counterveil[server]")

    def read(words):  # type: ignore[no-untyped-def]
        total = np.uint64(0)
        for i in range(words.size):
            total += words[i]
        return total

    compiled = numba.njit(nogil=True)(read)
    words = data.reshape(-1)[: data.size // 8 * 8].view(np.uint64)
    if threads == 1:
        return lambda: compiled(words)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(compiled, np.array_split(words, threads)))


def _codes(rows: int, d: int, levels: int) -> Any:
    return np.random.default_rng(1).integers(0, levels, (rows, d), dtype=np.uint8)


def _scan(scheme: Scheme, codes: Any, threads: int) -> Callable[[], object]:
    """Return a function that does one server's scan for one question: it computes a value for each row."""
    laid = engine.lay_out(codes, threads=threads, worthwhile=0)
    query = scheme.query(Question(codes[0].astype(np.int64)), Fresh())[0]
    return lambda: scheme.form.evaluate(scheme.field, laid, query)


def scans(rows: int, d: int, threads: int) -> Iterator[Timed]:
    """Time the scan for one question, for every form of the question, and a streaming read of the same bytes."""
    codes = _codes(rows, d, 256)
    yield Timed("streaming read of the codes", "", best(_reading(codes, threads)), rows, codes.size)
    forms: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("linear", 256, {"max_weight": 10}), ("euclidean", 256, {}), ("table", 16, {"cap": 2250}),
        ("table", 64, {"cap": 39_690}), ("table", 256, {"cap": 650_250}),
    )  # fmt: skip
    for name, levels, weights in forms:
        scheme = make_scheme(f"{name}/distances", largest=levels - 1, d=d, **weights)
        coded = codes if levels == 256 else codes % np.uint8(levels)
        what = f"{name}, {levels} levels, q of {scheme.field.bits} bits"
        yield Timed(what, TWO, best(_scan(scheme, coded, threads)), rows, codes.size)
    count = max(1, codes.size // RECORD)
    records = np.random.default_rng(2).integers(0, 256, (count, RECORD), dtype=np.uint8)
    spir = make_spir(servers=2, collusion=1, length=RECORD)
    chosen = np.unpackbits(spir.query(count, 0, Fresh())[0], count=count, bitorder="little").astype(bool)
    yield Timed("streaming read of the records, one thread", "", best(_reading(records, 1)), count, records.size)
    yield Timed(
        "SPIR's xor of records, one thread",
        TWO,
        best(lambda: cpu.xor(records, chosen, worthwhile=0)),
        count,
        records.size,
    )


def together(rows: int, d: int, threads: int, count: int = 64) -> Iterator[Timed]:
    """Time questions one after the other, and the same number at once, which one scan may answer together."""
    forms: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("linear", 256, {"max_weight": 10}),
        ("table", 16, {"cap": 2250}),
    )
    for name, levels, weights in forms:
        scheme, codes = make_scheme(f"{name}/distances", largest=levels - 1, d=d, **weights), _codes(rows, d, levels)
        laid = engine.lay_out(codes, threads=threads, worthwhile=0)
        queries = [Fresh().elements(scheme.field.q, scheme.form.symbols) for _ in range(count)]
        scan = partial(scheme.form.evaluate, scheme.field, laid)
        with ThreadPoolExecutor(count) as pool:
            ways: dict[str, Callable[..., Any]] = {"one after the other": map, f"{count} at once": pool.map}
            found = [[int(values[-1]) for values in way(scan, queries)] for way in ways.values()]
            if found[0] != found[1]:
                raise RuntimeError("questions at once were answered differently")
            for called, way in ways.items():
                each = best(partial(_exhaust, way, scan, queries), 3) / count
                yield Timed(f"{name}, {called}: each", TWO, each, rows, codes.size)
    factors = np.stack([Fresh().elements(1 << 26, d) for _ in range(count)]).astype(np.float64).T

    def product() -> None:
        for start in range(0, rows, 8192):
            codes[start : start + 8192].astype(np.float64) @ factors

    yield Timed(f"y·Q alone, {count} at once, NumPy, all cores: each", TWO, best(product, 3) / count, rows, codes.size)


def _exhaust(way: Callable[..., Any], work: Callable[[Any], object], over: list[Any]) -> None:
    for _ in way(work, over):
        pass


def shapes(threads: int, size: int = 1 << 25) -> Iterator[Timed]:
    """Time scans of the same number of bytes in other shapes: odd sizes, wide codes, large fields."""
    cases = [(levels, d, 26) for levels in (16, 256, 1000) for d in (16, 20, 63, 64, 256)]
    cases += [(levels, 64, bits) for bits in (33, 45, 61) for levels in (16, 256, 1000)] + [(4096, 64, 26)]
    generator = np.random.default_rng(3)
    for tabular in (False, True):
        for levels, d, bits in cases:
            field = Field(smallest_prime_above(1 << (bits - 1)))
            kind = np.min_scalar_type(levels - 1)
            codes = generator.integers(0, levels, (size // d // kind.itemsize, d), dtype=kind)
            laid = engine.lay_out(codes, threads=threads, worthwhile=0)
            if tabular:
                entries = Fresh().elements(field.q, levels * d)
                work = partial(laid.scan, Plan("table", field, (entries,), sizes=(levels,) * d))
            else:
                coefficients = [Fresh().elements(field.q, d) for _ in range(2)]
                work = partial(laid.scan, Plan("polynomial", field, tuple(coefficients), levels - 1))
            what = f"{'table' if tabular else 'linear'}, {levels:,} levels, d = {d}, q of {bits} bits"
            yield Timed(what, TWO, best(work, 5), len(codes), codes.nbytes)


def answers(rows: int, d: int, threads: int) -> Iterator[Timed]:
    """Time one server's whole answer: the scan, the order, the pads, and the gates of a sealed reveal."""
    codes = _codes(rows, d, 16)
    for name, shuffle in (("table/distances", False), ("table/differences", True), ("table/sealed", True)):
        if name.endswith("sealed") and rows > 100_000:
            continue  # too many rows for a garbled circuit
        scheme = make_scheme(name, largest=15, d=d, cap=2250, shuffle=shuffle)
        query = scheme.query(Question(codes[0].astype(np.int64)), Fresh())[0]
        laid = engine.lay_out(codes, threads=threads, worthwhile=0)

        def answer(scheme: Scheme = scheme, query: Any = query, laid: Any = laid) -> None:
            for _ in scheme.stream(1, laid, query, scheme.common(new_key(), bytes(32), b"bench")):
                pass

        called = name + ", shuffled" * (shuffle and bool(scheme.reveal.length(2)))
        yield Timed(f"whole answer, {called}", TWO, best(answer, 3), rows, codes.size)


def plain_peers(rows: int, d: int, threads: int) -> Iterator[Timed | str]:
    """Time exact search in the clear; yield only the name of a peer that is not installed."""
    codes = _codes(rows, d, 256)
    one, many = codes[:1].astype(np.float32), codes.astype(np.float32)
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        yield "faiss (pip install faiss-cpu)"
    else:
        faiss.omp_set_num_threads(threads)
        flat = faiss.IndexFlatL2(d)
        flat.add(many)
        yield Timed("FAISS IndexFlatL2, float32", NOBODY, best(lambda: flat.search(one, 1)), rows, many.nbytes)
        quantised = faiss.IndexScalarQuantizer(d, faiss.ScalarQuantizer.QT_8bit_direct, faiss.METRIC_L2)
        quantised.train(many[:1000])
        quantised.add(many)
        yield Timed("FAISS 8-bit flat", NOBODY, best(lambda: quantised.search(one, 1)), rows, codes.nbytes)
    try:
        neighbors = importlib.import_module("sklearn.neighbors")
    except ImportError:
        yield "scikit-learn (counterveil[sklearn])"
    else:
        brute = neighbors.NearestNeighbors(n_neighbors=1, algorithm="brute", n_jobs=threads).fit(many)
        yield Timed("scikit-learn brute force", NOBODY, best(lambda: brute.kneighbors(one), 3), rows, many.nbytes)


def private_peers(d: int) -> Iterator[Timed | str]:
    """Time other Python packages for private computation, on a thousand rows."""
    codes = _codes(_SMALL, d, 16)
    scheme = make_scheme("baseline", largest=15, d=d)
    yield Timed("ours: one server's answer, baseline", TWO, _whole(scheme, codes), _SMALL)
    sealed = make_scheme("table/sealed", largest=15, d=d, cap=2250)
    yield Timed("ours: one server's answer, sealed", TWO, _whole(sealed, codes), _SMALL)
    yield Timed("a loop over rows, as in the authors' notebook", TWO, best(lambda: _loop(scheme, codes), 3), _SMALL)
    try:
        tenseal = importlib.import_module("tenseal")
    except ImportError:
        yield "TenSEAL (pip install tenseal)"
    else:
        context = tenseal.context(tenseal.SCHEME_TYPE.BFV, poly_modulus_degree=4096, plain_modulus=1032193)
        context.generate_galois_keys()
        hidden = tenseal.bfv_vector(context, [int(v) for v in codes[0]])
        some = [[int(v) for v in row] for row in codes[:50]]
        each = best(lambda: [hidden.dot(row) for row in some], 2) / len(some)  # every row takes the same time
        yield Timed("TenSEAL, BFV: y·x of every row", SERVER, each * _SMALL, _SMALL)
    if importlib.util.find_spec("mpyc") is None:
        yield "MPyC (pip install mpyc)"
    else:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "nearest.py"  # a file, because MPyC starts it once more for every party
            program.write_text(_MPYC.format(rows=_SMALL, d=d))
            command = [sys.executable, str(program), "-M3", "--no-log"]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=600)  # noqa: S603
        found = [float(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("milliseconds ")]
        if not found:
            yield "MPyC (it failed here)"
        else:
            yield Timed("MPyC, three parties: distances and the least", THREE, found[0], _SMALL)


_MPYC = """
import time
import numpy as np
from mpyc.runtime import mpc

async def main():
    rows = np.random.default_rng(1).integers(0, 16, ({rows}, {d})).astype(object)
    secint = mpc.SecInt(24)
    await mpc.start()
    began = time.perf_counter()
    x = mpc.input(secint.array(rows[0].copy()), senders=0)
    apart = secint.array(rows) - x
    await mpc.output(mpc.np_argmin(mpc.np_sum(apart * apart, axis=1)))
    if mpc.pid == 0:
        print("milliseconds", 1000 * (time.perf_counter() - began), flush=True)
    await mpc.shutdown()

mpc.run(main())
"""


def _whole(scheme: Scheme, codes: Any) -> float:
    query = scheme.query(Question(codes[0].astype(np.int64)), Fresh())[0]
    common = scheme.common(new_key(), bytes(32), b"bench")

    def answer() -> None:
        for _ in scheme.stream(1, codes, query, common):
            pass

    return best(answer)


def _loop(scheme: Scheme, codes: Any) -> list[int]:
    """Answer row by row, with Python's integers."""
    q, query = scheme.field.q, [int(v) for v in scheme.query(Question(codes[0].astype(np.int64)), Fresh())[0]]
    return [sum((int(y) - x) ** 2 for y, x in zip(row, query, strict=True)) % q for row in codes]


def scaling(threads: int, most: int = 10_000_000) -> Iterator[Timed]:
    """Time the scan of `table` with 16 levels as rows and features grow; the time for each code should not change."""
    for rows, d in [(10**n, 32) for n in range(3, 8)] + [(1_000_000, d) for d in (8, 16, 64, 128, 256)]:
        if rows > most:
            continue
        scheme = make_scheme("table/distances", largest=15, d=d, cap=2250)
        codes = _codes(rows, d, 16)
        what = f"table, M = {rows:,}, d = {d}"
        yield Timed(what, TWO, best(_scan(scheme, codes, threads), 5), rows, codes.size)


@dataclass(frozen=True)
class WholeQuestion:
    """A whole question: the median time of several, and the bytes of message bodies up and down."""

    what: str
    rows: int
    milliseconds: float
    up: int = 0
    down: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return asdict(self) | {"milliseconds": round(self.milliseconds, 2)}


def questions(rows: int, d: int, rounds: int = 7) -> Iterator[WholeQuestion]:
    """Time whole questions: all parties in this process, and over HTTP to two servers on this machine."""
    features = tuple(Numeric(name=f"x{j}", low=0, high=20, step=1) for j in range(d))
    codes = _codes(rows, d, 21)
    data = {f"x{j}": codes[:, j] for j in range(d)} | {"ok": np.ones(rows, dtype=bool)}
    database = Database.build(data, Schema(features=features), accepted="ok")
    person = {f"x{j}": j % 21 for j in range(d)}
    for scheme in ("table/differences", "table/sealed"):
        bank = local(database, scheme)
        times = [_ask(lambda bank=bank: bank.ask(person)) for _ in range(rounds)]  # type: ignore[misc]
        yield WholeQuestion(f"in process, {scheme}", rows, statistics.median(times))
    for scheme in ("table/differences", "table/sealed"):
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(Path(folder), database, scheme=scheme, is_open=True) as servers,
            Client([server.url for server in servers]) as client,
        ):
            client.ask(person)
            before = _bodies(client)
            times = [_ask(lambda client=client: client.ask(person)) for _ in range(rounds)]  # type: ignore[misc]
            up, down = (now - then for now, then in zip(_bodies(client), before, strict=True))
            yield WholeQuestion(f"over HTTP, {scheme}", rows, statistics.median(times), up // rounds, down // rounds)


def _bodies(client: Client) -> tuple[int, int]:
    """Return how many bytes of message bodies went to and came from all servers until now."""
    return sum(p.traffic.body_up for p in client.peers), sum(p.traffic.body_down for p in client.peers)


def _ask(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)
