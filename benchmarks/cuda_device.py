"""Compare every kernel of the engine `cuda` with its NumPy twin on a card, then time them: run it where a card is.

python benchmarks/cuda_device.py                  both, at 100 million rows of 32 features; needs 20 GB on the card
python benchmarks/cuda_device.py --rows 4000000   the same, smaller
python benchmarks/cuda_device.py --joint 400000000   also both servers' gates of a joint run, on the card

Scans and records need NumPy, CuPy and this repository's `src` on PYTHONPATH. The joint run needs the package's own
dependencies as well. Times are medians of device events. The first line of the table is the card's own read rate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from counterveil.engine.cuda import Cuda
from counterveil.engine.twins import Twins

TIMES = 15
_READ = """
extern "C" __global__ void __launch_bounds__(256) read(const uint4* words, long long count, unsigned* out) {
    uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll 8
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        const uint4 w = __ldcs(&words[i]);
        sum.x ^= w.x; sum.y ^= w.y; sum.z ^= w.z; sum.w ^= w.w;
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u) *out = 1;
}
"""
Q31, Q16 = (1 << 31) - 1, 1 << 16


def milliseconds(card: Cuda, work: Callable[[], Any]) -> float:
    """Return the median time of some work on the card, after two times that do not count."""
    xp, taken = card.xp, list[float]()
    for number in range(TIMES + 2):
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= 2:
            taken.append(xp.cuda.get_elapsed_time(begin, end))
    return statistics.median(taken)


# --- are they right? ------------------------------------------------------------------------------------------------


def checked(card: Cuda) -> None:
    """Compare every kernel with its twin, on fresh random input."""
    twins, generator = Twins(), np.random.default_rng()
    for name, given in _cases(generator):
        dirty = card.xp.full(1 << 24, 0xA5A5A5A5, dtype=np.uint32)  # memory that is used again is not zero
        del dirty
        right = getattr(twins, name)(*given)
        got = card.to_host(getattr(card, name)(*(card.to_card(a) if isinstance(a, np.ndarray) else a for a in given)))
        same = got.shape == right.shape and np.array_equal(got, right)
        print(f"{name:<14}{'same' if same else 'DIFFERENT'}   {_about(given)}")
        if not same:
            raise SystemExit(f"{name} is wrong at {np.flatnonzero(np.ravel(got != right))[:5]}")
    for dtype in (np.uint8, np.uint16):
        codes = generator.integers(0, 200, (20_000, 7)).astype(dtype)
        groups = -(-7 // (4 // codes.itemsize))
        here, there = np.zeros((groups, 32_768), dtype=np.uint32), card.xp.zeros((groups, 32_768), dtype=np.uint32)
        twins.lay(codes, here, 0)
        card.lay(card.to_card(codes), there, 0)
        if not np.array_equal(card.to_host(there), here):
            raise SystemExit("lay is wrong")
        print(f"{'lay':<14}same   {np.dtype(dtype)}")


def _about(given: tuple[Any, ...]) -> str:
    return ", ".join(str(a.shape) if isinstance(a, np.ndarray) else str(a) for a in given)


def _cases(generator: np.random.Generator) -> list[tuple[str, tuple[Any, ...]]]:
    def words(levels: int, d: int, rows: int = 32_768) -> Any:
        dtype = np.uint8 if levels <= 256 else np.uint16
        codes = generator.integers(0, levels, (rows, d)).astype(dtype)
        made = np.zeros((-(-d // (4 // codes.itemsize)), rows), dtype=np.uint32)
        Twins().lay(codes, made, 0)
        return made

    def tables(columns: int, levels: int, q: int, *more: int) -> Any:
        entries = generator.integers(0, q, (columns, levels, *more), dtype=np.uint64)
        return entries.astype(np.uint32 if q <= 1 << 32 else np.uint64)

    cases: list[tuple[str, tuple[Any, ...]]] = []
    for levels in (2, 16, 64, 256):
        cases.append(("table", (words(levels, 9), tables(12, levels, Q31), 8, Q31, 7, 64)))
        cases.append(("table", (words(levels, 9), tables(12, levels, Q16), 8, Q16, 7, 32)))
        cases.append(("together", (words(levels, 6), tables(8, levels, Q31, 32), Q31, False, 64)))
        cases.append(("together", (words(levels, 6), tables(8, levels, 1 << 32, 32), Q16, True, 32)))
    for q in (Q31, (1 << 32) - 5, 1 << 32, (1 << 61) - 1, 1 << 62):
        cases.append(("plain_table", (words(256, 5), tables(8, 256, q), 8, q, 3)))
        cases.append(("plain_table", (words(3000, 5), tables(6, 3000, q), 16, q, 3)))
    for q in (Q31, 1 << 32):
        cases.append(("polynomial", (words(256, 5), tables(8, 2, q), 8, q, 3)))
        cases.append(("polynomial", (words(65_536, 5), tables(6, 2, q), 16, q, 3)))
    for rows, length in ((100_001, 160), (3000, 16), (40, 8192)):
        records = generator.integers(0, 256, (rows, length), dtype=np.uint8)
        chosen = generator.integers(0, 1 << 32, -(-rows // 32), dtype=np.uint32)
        cases.append(("xor_records", (records, chosen, 0, length // 16)))
        cases.append(("combine", (records, generator.integers(0, 256, rows, dtype=np.uint8))))
    for bits, dtype in ((1, np.uint32), (12, np.uint32), (21, np.uint32), (32, np.uint32), (62, np.uint64)):
        values = generator.integers(0, 1 << bits, 70_000, dtype=np.uint64).astype(dtype)
        cases.append(("slice", (values, 70_000, (1 << bits) - 1, bits, 547, 2)))
    for copies, right, seat in ((1, 100_000, 0), (1, 100_000, 1), (13, 999, 0), (2, 50, 1)):
        sizes = [(copies + 1) * right, (copies + 1) * right, copies * right]
        opened, masks, products = (generator.integers(0, 1 << 63, n, dtype=np.uint64) for n in sizes)
        cases.append(("made", (opened, masks, products, right, seat)))
    return cases


# --- how fast are they? ---------------------------------------------------------------------------------------------


class Figures:
    """The table of times."""

    def __init__(self, card: Cuda) -> None:
        self.card, self.rate = card, 0.0
        print(f"\n{'what':<46}{'ms':>9}{'TB/s':>8}{'of reading':>12}{'wanted':>8}")

    def add(self, what: str, size: int, work: Callable[[], Any], wanted: float = 0.0) -> float:
        """Time some work that moves `size` bytes, and print it beside the card's read rate."""
        taken = milliseconds(self.card, work)
        rate = size / taken / 1e9
        self.rate = self.rate or rate
        part, goal = f"{rate / self.rate:.2f}", f"{wanted:.2f}" if wanted else ""
        print(f"{what:<46}{taken:>9.3f}{rate:>8.2f}{part:>12}{goal:>8}")
        return taken


def timed(card: Cuda, rows: int, d: int) -> None:
    """Time scans and sums of records."""
    xp, groups, stride = card.xp, d // 4, -(-rows // 16_384) * 16_384
    figures, read = Figures(card), xp.RawKernel(_READ, "read")
    out = xp.zeros(1, dtype=np.uint32)
    codes = {levels: _codes(xp, levels, groups, stride) for levels in (16, 64, 256)}
    size, wide = groups * stride * 4, codes[256]
    figures.add("reading alone", size, lambda: read((132 * 8,), (256,), (wide, np.int64(size // 16), out)))
    for levels, wanted in ((16, 0.0), (64, 0.75), (256, 0.55)):
        for q, total in ((Q31, 64), (Q16, 32)):
            held = xp.random.randint(0, q, (d, levels), dtype=np.int64).astype(np.uint32)
            what = f"table, {levels} levels, q of {q.bit_length()} bits"
            words = codes[levels]
            single = figures.add(what, size, partial(card.table, words, held, 8, q, 0, total), wanted)
            many = xp.random.randint(0, 1 << 32, (d, levels, 32), dtype=np.int64).astype(np.uint32)
            count, paired = (64, True) if q == Q16 else (32, False)
            given = (words, many if paired else many % q, q, paired, total)
            if rows * count * 4 < 40 << 30:
                both = milliseconds(card, partial(card.together, *given))
                times = single * count / both
                print(f"  {count} questions together: {both:.3f} ms, {times:.1f} times as fast as one by one; wanted 4")
    factors = xp.random.randint(0, Q31, (d, 2), dtype=np.int64).astype(np.uint32)
    figures.add("linear, as a polynomial", size, lambda: card.polynomial(wide, factors, 8, Q31, 0), 0.8)
    records = xp.random.randint(0, 256, (rows // 5, 160), dtype=np.uint8)
    chosen = xp.random.randint(0, 1 << 32, -(-len(records) // 32), dtype=np.int64).astype(np.uint32)
    figures.add("xor of records of 160 B", records.nbytes, lambda: card.xor_records(records, chosen, 0, 10), 0.75)
    scalars = xp.random.randint(0, 256, len(records), dtype=np.uint8)
    figures.add("combination of records over GF(2^8)", records.nbytes, lambda: card.combine(records, scalars))


class Resident(Cuda):
    """A card whose jobs never leave it: openings stay there too, since both servers are on it."""

    def to_card(self, array: Any) -> Any:
        """Return the array as it is."""
        return array

    def to_host(self, array: Any) -> Any:
        """Return a copy."""
        return array.copy()


def joint(card: Cuda, rows: int, d: int, bits: int = 16) -> None:
    """Time both servers' scans, packing and gates within blocks; check that each block's least cost comes out."""
    from counterveil.schemes.protocols import packed
    from counterveil.schemes.protocols.circuit import done
    from counterveil.schemes.protocols.dealing import Planner
    from counterveil.schemes.protocols.hosted import Tournament

    layout, planner = packed.Layout.of(rows), Planner()
    xp, stride, ring = card.xp, -(-rows // 16_384) * 16_384, 1 << bits

    def nothing(winners: Any) -> Any:
        return winners
        yield

    shape = np.zeros((bits, layout.words, 2, 0), dtype=np.uint64)  # a plan for two blocks
    few = packed.Layout(2 * layout.block, layout.words, 2)
    done(packed.within(planner, shape, shape, few, 1, "balanced", nothing, layout))
    words = _codes(xp, 64, d // 4, stride)
    tables = [xp.random.randint(0, ring, (d, 64), dtype=np.int64).astype(np.uint32) for _ in (0, 1)]
    scanning = milliseconds(card, lambda: [card.table(words, each, 8, ring, 0, 32) for each in tables])
    values = [card.table(words, each, 8, ring, 0, 32) for each in tables]
    packing = milliseconds(card, lambda: card.slice(values[0], rows, 0, bits, layout.words, layout.blocks))
    jobs = [Tournament(seat, bits, layout, layout, 1, "balanced")(values[seat], card) for seat in (0, 1)]
    spent, said, masks = 0.0, [next(job) for job in jobs], list[Any]()
    for number in range(len(planner.batches) + 1):
        ahead, behind = planner.batches[number : number + 1], planner.batches[number - 1 : number]
        new = [_random(xp, ahead[0].masks // 16 if ahead else 0, layout.blocks) for _ in (0, 1)]
        answers: list[Any] = [(each,) for each in new]
        if behind:
            both, cut = masks[0] ^ masks[1], int(np.prod(behind[0].left)) // 2  # type: ignore[attr-defined]
            right = both[cut:].reshape(-1)
            share = _random(xp, behind[0].products // 16, layout.blocks)
            shares = share, share ^ (both[:cut].reshape(-1, right.size) & right).reshape(share.shape)
            answers = [(said[1 - seat].values, shares[seat], new[seat]) for seat in (0, 1)]
        masks, begin, end = new, xp.cuda.Event(), xp.cuda.Event()
        begin.record()
        said = [job.send(answer) for job, answer in zip(jobs, answers, strict=True)]
        end.record()
        end.synchronize()
        spent += xp.cuda.get_elapsed_time(begin, end)
    winners = card.xp.asnumpy(said[0].values ^ said[1].values)[:bits] & np.uint64(1)
    least = (winners << np.arange(bits, dtype=np.uint64)[:, None]).sum(axis=0)
    costs = (values[0][:rows] + values[1][:rows]) & np.uint32(ring - 1)
    cheapest = [int(costs[b * layout.block : (b + 1) * layout.block].min()) for b in range(layout.blocks)]
    if least.tolist() != cheapest:
        raise SystemExit("the gates are wrong: the least cost of a block is another")
    print(f"\njoint, {rows:,} rows of {d} features, costs of {bits} bits, both servers on the card:")
    print(f"  scans {scanning:.1f} ms, packing {2 * packing:.1f} ms, {len(planner.batches)} rounds {spent:.1f} ms")


def _codes(xp: Any, levels: int, groups: int, stride: int) -> Any:
    return xp.random.randint(0, levels, groups * stride * 4, dtype=np.uint8).view(np.uint32).reshape(groups, stride)


def _random(xp: Any, count: int, blocks: int) -> Any:
    return xp.random.randint(0, 256, count * blocks * 8, dtype=np.uint8).view(np.uint64).reshape(count, blocks)


def main() -> None:
    """Compare, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--joint", type=int, default=0, metavar="ROWS")
    given, card = parser.parse_args(), Cuda()
    checked(card)
    timed(card, given.rows, given.features)
    if given.joint:
        card.xp.get_default_memory_pool().free_all_blocks()
        joint(Resident(), given.joint, given.features)


if __name__ == "__main__":
    main()
