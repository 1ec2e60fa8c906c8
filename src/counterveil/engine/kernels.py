"""The scan in machine code, by numba: 64 rows an instruction where the processor has AVX-512, plain loops elsewhere.

Both kernels work through blocks of 128 rows with the sums of all rows in registers. *Tables* are looked up a byte of
the entry at a time (a permutation of bytes looks up 64 levels in one instruction) and bytes are summed apart.
*Polynomials* up to squares are dot products of 16-bit numbers: y - 128 and its square, with coefficients cut in limbs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..arrays import Bytes, Vector
from .blocks import FLIPPED, ROWS, Blocks

POLYNOMIAL_ROOM = 1 << 47  # what d * q must stay below: products with squares up to 2^14 then add up in 64 bits
LARGEST = 1 << 37  # q of three limbs of 13 bits
_NEEDED = ("avx512bw", "avx512vbmi", "avx512vnni")
VECTORS = all(llvmlite.binding.get_host_cpu_features().get(name) for name in _NEEDED)

_GROUP = 64  # rows whose sums stay in registers together: as many as a register has bytes
_SUMMED = 256  # bytes that add up below 2^16
# rows of a group in the order that two vectors of bytes are interleaved in, lanes of 128 bits apart, 16 at a time
_PARTS = [[*range(a, a + 8), *range(a + 16, a + 24)] for a in (0, 32, 8, 40)]
_I8, _I32, _I64 = (ir.IntType(n) for n in (8, 32, 64))


def _vector(count: int, bits: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), count)


def _all(value: int, count: int, bits: int) -> ir.Constant:
    return ir.Constant(_vector(count, bits), [value] * count)


def _index(places: Sequence[int]) -> ir.Constant:
    return ir.Constant(_vector(len(places), 32), list(places))


class _Builder:
    """What both kernels need of LLVM: arrays' data, unaligned vectors, and a loop that carries sums."""

    def __init__(self, context: Any, builder: Any, signature: Any) -> None:
        self.context, self.b, self.signature = context, builder, signature

    def data(self, place: int, value: Any, kind: ir.Type) -> Any:
        array = self.context.make_array(self.signature.args[place])(self.context, self.b, value)
        return self.b.bitcast(array.data, kind.as_pointer())

    def call(self, name: str, result: ir.Type, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        found: Any = cgutils.get_or_insert_function(self.b.module, kind, name)  # type: ignore[no-untyped-call]
        return self.b.call(found, arguments)

    def load(self, pointer: Any, offset: Any, kind: ir.Type) -> Any:
        loaded = self.b.load(self.b.bitcast(self.b.gep(pointer, [offset]), kind.as_pointer()))
        loaded.align = 1
        return loaded

    def add_to(self, pointer: Any, offset: int, sums: Any) -> None:
        """Add 64-bit sums to those in memory."""
        at = ir.Constant(_I64, offset)
        total = self.b.add(self.load(pointer, at, sums.type), sums)
        stored = self.b.store(total, self.b.bitcast(self.b.gep(pointer, [at]), sums.type.as_pointer()))
        stored.align = 1

    def summed(
        self, first: Any, last: Any, zero: ir.Constant, count: int, step: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Return `count` sums that start at zero and that `step` adds to, for j = first..last-1."""
        b, before = self.b, self.b.block
        head, body, done = (b.function.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        j = b.phi(_I64)
        j.add_incoming(first, before)
        sums = [b.phi(zero.type) for _ in range(count)]
        for each in sums:
            each.add_incoming(zero, before)
        b.cbranch(b.icmp_signed("<", j, last), body, done)
        b.position_at_end(body)
        after = step(j, sums)
        j.add_incoming(b.add(j, ir.Constant(_I64, 1)), b.block)
        for each, value in zip(sums, after, strict=True):
            each.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(done)
        return sums


@cache
def _table_step(size: int, planes: int) -> Any:
    """Return the intrinsic that adds features first..last-1 of one block, `planes` bytes an entry, to a sum a row."""

    @intrinsic
    def step(_: Any, codes: Any, _at: Any, _first: Any, _last: Any, tables: Any, sums: Any) -> Any:
        signature = types.void(codes, types.intp, types.intp, types.intp, tables, sums)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            k = _Builder(context, builder, signature)
            codes_, at_, first_, last_, tables_, sums_ = arguments
            block = builder.gep(k.data(0, codes_, _I8), [at_])
            entries, totals = k.data(4, tables_, _I8), k.data(5, sums_, _I64)
            bytes64, words32 = _vector(64, 8), _vector(32, 16)

            def lookup(codes: Any, parts: list[Any]) -> Any:
                if size == 64:
                    return k.call("llvm.x86.avx512.permvar.qi.512", bytes64, parts[0], codes)
                pairs = [
                    k.call("llvm.x86.avx512.vpermi2var.qi.512", bytes64, a, codes, b)
                    for a, b in zip(parts[::2], parts[1::2], strict=True)
                ]
                if size == 128:
                    return pairs[0]
                return builder.select(builder.icmp_signed("<", codes, _all(0, 64, 8)), pairs[0], pairs[1])

            def add(j: Any, sums: list[Any]) -> list[Any]:
                row = builder.mul(j, ir.Constant(_I64, ROWS))
                own = builder.mul(j, ir.Constant(_I64, planes * size))
                groups = [k.load(block, builder.add(row, ir.Constant(_I64, _GROUP * g)), bytes64) for g in (0, 1)]
                after = []
                for p in range(planes):
                    at = [builder.add(own, ir.Constant(_I64, p * size + 64 * i)) for i in range(size // 64)]
                    parts = [k.load(entries, where, bytes64) for where in at]
                    for g in (0, 1):  # two bytes are one word: sum words, and the upper bytes apart
                        found = builder.bitcast(lookup(groups[g], parts), words32)
                        both, upper = sums[4 * p + 2 * g], sums[4 * p + 2 * g + 1]
                        after += [builder.add(both, found), builder.add(upper, builder.lshr(found, _all(8, 32, 16)))]
                return after

            sums = k.summed(first_, last_, _all(0, 32, 16), 4 * planes, add)
            for g in (0, 1):
                total = _all(0, 64, 64)
                for p in range(planes):
                    both, upper = sums[4 * p + 2 * g], sums[4 * p + 2 * g + 1]
                    lower = builder.sub(both, builder.shl(upper, _all(8, 32, 16)))
                    in_order = builder.shuffle_vector(lower, upper, _index([x for r in range(32) for x in (r, 32 + r)]))
                    widened = builder.zext(in_order, _vector(64, 64))
                    total = builder.add(total, builder.shl(widened, _all(8 * p, 64, 64)))
                k.add_to(totals, _GROUP * g, total)
            return context.get_dummy_value()

        return signature, generate

    return step


@cache
def _polynomial_step(limbs: int) -> Any:
    """Return the intrinsic that adds pairs first..last-1 of features of 64 rows, in 32 bits a limb, to a sum a row."""

    @intrinsic
    def step(
        _: Any, codes: Any, _at: Any, _first: Any, _last: Any, factors: Any, _pairs: Any, _base: Any, sums: Any
    ) -> Any:
        signature = types.void(codes, types.intp, types.intp, types.intp, factors, types.intp, types.int64, sums)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            k = _Builder(context, builder, signature)
            codes_, at_, first_, last_, factors_, pairs_of, base_, sums_ = arguments
            rows = builder.gep(k.data(0, codes_, _I8), [at_])
            factors, totals = k.data(4, factors_, _I32), k.data(7, sums_, _I64)
            sixteen = _vector(16, 32)

            def everywhere(which: int, limb: int, pair: Any) -> Any:
                """Return two features' limbs of a coefficient, in every lane."""
                at = builder.add(builder.mul(pairs_of, ir.Constant(_I64, which * limbs + limb)), pair)
                nothing = ir.Constant(sixteen, ir.Undefined)
                one = builder.insert_element(nothing, builder.load(builder.gep(factors, [at])), ir.Constant(_I32, 0))
                return builder.shuffle_vector(one, nothing, _index([0] * 16))

            def add(pair: Any, sums: list[Any]) -> list[Any]:
                at = builder.mul(pair, ir.Constant(_I64, 2 * ROWS))
                two = [k.load(rows, builder.add(at, ir.Constant(_I64, ROWS * i)), _vector(64, 8)) for i in (0, 1)]
                beside = [
                    builder.shuffle_vector(*two, _index([x for r in part for x in (r, 64 + r)])) for part in _PARTS
                ]
                after = list(sums)
                for part, codes in enumerate(beside):
                    z = builder.sext(codes, _vector(32, 16))  # y - 128, as blocks hold it
                    for which, words in enumerate((z, builder.mul(z, z))):
                        for limb in range(limbs):
                            place = part * limbs + limb
                            both = builder.bitcast(words, sixteen)
                            after[place] = k.call(
                                "llvm.x86.avx512.vpdpwssd.512",
                                sixteen,
                                after[place],
                                both,
                                everywhere(which, limb, pair),
                            )
                return after

            sums = k.summed(first_, last_, _all(0, 16, 32), 4 * limbs, add)
            held = [row for part in _PARTS for row in part]
            back = [held.index(row) for row in range(_GROUP)]
            unset = ir.Constant(_vector(64, 64), ir.Undefined)
            one = builder.insert_element(unset, base_, ir.Constant(_I32, 0))
            scale = builder.shuffle_vector(one, unset, _index([0] * 64))
            total = _all(0, 64, 64)
            for limb in reversed(range(limbs)):  # Horner
                a, b, c, d = (sums[part * limbs + limb] for part in range(4))
                ab, cd = (builder.shuffle_vector(x, y, _index(range(32))) for x, y in ((a, b), (c, d)))
                in_order = builder.sext(builder.shuffle_vector(ab, cd, _index(back)), _vector(64, 64))
                total = builder.add(builder.mul(total, scale), in_order)
            k.add_to(totals, 0, total)
            return context.get_dummy_value()

        return signature, generate

    return step


@njit(nogil=True)
def _finish(totals, q, inverse, values):  # type: ignore[no-untyped-def]
    """Reduce totals mod q into values, as many as there are: a quotient's float64 estimate is off by at most one."""
    for row in range(values.size):
        rest = totals[row] - np.int64(np.floor(np.float64(totals[row]) * inverse)) * q
        rest += (rest >> 63) & q
        rest -= q
        values[row] = rest + ((rest >> 63) & q)


@cache
def _table_scan(size: int, planes: int) -> Any:
    step = _table_step(size, planes)

    @njit(nogil=True)
    def scan(codes, even, d, tables, q, values):  # type: ignore[no-untyped-def]
        inverse = 1.0 / q
        sums = np.empty(ROWS, np.int64)
        for block in range((values.size + ROWS - 1) // ROWS):
            sums[:] = 0
            for first in range(0, d, _SUMMED):
                step(codes, block * even * ROWS, first, min(d, first + _SUMMED), tables, sums)
            _finish(sums, q, inverse, values[block * ROWS : (block + 1) * ROWS])

    return scan


@cache
def _polynomial_scan(limbs: int) -> Any:
    step = _polynomial_step(limbs)

    @njit(nogil=True)
    def scan(codes, d, factors, base, often, constant, q, values):  # type: ignore[no-untyped-def]
        inverse, pairs = 1.0 / q, d // 2
        sums = np.empty(_GROUP, np.int64)
        for group in range((values.size + _GROUP - 1) // _GROUP):
            sums[:] = constant
            at = group // 2 * d * ROWS + _GROUP * (group % 2)
            for first in range(0, pairs, often):
                step(codes, at, first, min(pairs, first + often), factors, pairs, base, sums)
            _finish(sums, q, inverse, values[group * _GROUP : (group + 1) * _GROUP])

    return scan


@njit(nogil=True)
def _plain_scan(codes, tables, q, values):  # type: ignore[no-untyped-def]
    """Look entries up one by one: for processors without byte permutations."""
    count, d = values.size, tables.shape[0]
    sums = np.empty(ROWS, np.int64)
    for block in range(codes.shape[0]):
        sums[:] = 0
        for j in range(d):
            entries, levels = tables[j], codes[block, j]
            for row in range(ROWS):
                sums[row] += entries[levels[row] ^ FLIPPED]
        start = block * ROWS
        for row in range(min(ROWS, count - start)):
            values[start + row] = sums[row] % q


@njit(nogil=True)
def _xor_scan(records, length, chosen, total):  # type: ignore[no-untyped-def]
    """Xor the chosen records into total, 64 bytes at a time; the last 64 of a record are taken apart."""
    strips = length // 64
    sums = np.zeros((strips + 1, 64), np.uint8)
    for i in range(chosen.size):
        mask, start = np.uint8(0) - chosen[i], i * length
        for strip in range(strips + 1):
            at = start + min(64 * strip, length - 64)
            part, each = records[at : at + 64], sums[strip]
            for b in range(64):
                each[b] ^= part[b] & mask
    for strip in range(strips + 1):
        at = min(64 * strip, length - 64)
        total[at : at + 64] = sums[strip]


def xor(records: Bytes, chosen: NDArray[np.bool_]) -> Bytes:
    """Return the xor of the chosen records of 64 bytes or more; all are read, whichever are chosen."""
    total = np.empty(records.shape[1], dtype=np.uint8)
    _xor_scan(records.reshape(-1), records.shape[1], chosen.view(np.uint8), total)
    return total


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="scan")


def _spread(rows: Blocks, scan: Callable[[Bytes, Vector], None]) -> Vector:
    """Scan blocks on as many threads as they are to be scanned on, each a stretch of them."""
    values = np.empty(len(rows), dtype=np.int64)
    share = -(-len(rows.data) // rows.threads)

    def one(start: int) -> None:
        scan(rows.data[start : start + share], values[start * ROWS : (start + share) * ROWS])

    starts = range(0, len(rows.data), share)
    if len(starts) == 1:
        one(0)
    else:
        list(_pool(rows.threads).map(one, starts))
    return values


def table(rows: Blocks, tables: Sequence[Vector], q: int) -> Vector:
    """Return sum_j tables[j][y_j] mod q of every row y; d * q below 2^62."""
    most = max(len(entries) for entries in tables)
    size = 64 if most <= 64 else 128 if most <= 128 else 256
    whole = np.zeros((len(tables), size), dtype="<i8")
    for j, entries in enumerate(tables):
        whole[j, : len(entries)] = entries
    if not VECTORS:
        return _spread(rows, lambda codes, values: _plain_scan(codes, whole, q, values))
    planes = max(1, -(-(q - 1).bit_length() // 8))
    apart = np.ascontiguousarray(whole.view(np.uint8).reshape(len(tables), size, 8)[:, :, :planes].transpose(0, 2, 1))
    scan, even, d = _table_scan(size, planes), rows.data.shape[1], len(tables)
    return _spread(rows, lambda codes, values: scan(codes.reshape(-1), even, d, apart.reshape(-1), q, values))


def polynomial(rows: Blocks, coefficients: Sequence[Vector], free: int, q: int) -> Vector:
    """Return free + sum_j c_1[j] y_j + c_2[j] y_j² mod q of every row y; d * q below 2^47, q below 2^37.

    With y = z + 128: (c_1 + 256 c_2) z + c_2 z² and a constant; |z| <= 128, so both fit 16 bits.
    """
    one, two = (np.asarray(c, dtype=np.int64) for c in coefficients)
    constant = int((free + sum(128 * int(a) + 16384 * int(b) for a, b in zip(one, two, strict=True))) % q)
    half = q // 2
    centred = [np.asarray((c % q + half) % q - half) for c in ((one + 256 * two), two)]
    limbs = 1 if q <= 1 << 13 else 2 if q <= 1 << 29 else 3
    base = 1 if limbs == 1 else int(np.ceil(q ** (1 / limbs))) + 1
    parts: list[Any] = []
    for c in centred:
        lower = []
        for _ in range(limbs - 1):
            lower.append((c + base // 2) % base - base // 2)
            c = (c - lower[-1]) // base
        parts.append([*lower, c])
    widest = max(int(np.abs(digit).max(initial=0)) for each in parts for digit in each)
    often = max(1, (2**31 - 1) // (2 * max(1, widest) * (16384 + 128)))
    even = rows.data.shape[1]
    digits = np.zeros((2, limbs, even), dtype=np.int64)
    digits[:, :, : rows.shape[1]] = parts
    factors = ((digits[..., ::2] & 0xFFFF) | ((digits[..., 1::2] & 0xFFFF) << 16)).astype(np.uint32).view(np.int32)
    scan, flat = _polynomial_scan(limbs), factors.reshape(-1)
    return _spread(rows, lambda codes, values: scan(codes.reshape(-1), even, flat, base, often, constant, q, values))
