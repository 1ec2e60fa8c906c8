"""Scan blocks of 128 rows in machine code, by numba: one sum for each row, reduced mod q before it can overflow.

With AVX-512, scans use vectors of 64 bytes and are written in LLVM instructions. Other processors run plain loops.
*Tables* are looked up one byte of the entry at a time, since a permutation of bytes looks up 64 levels in one
instruction; each byte of the entry has a sum of its own. *Polynomials* up to squares are dot products of 16-bit
numbers: y - 128, and its square less 8192, with coefficients cut into limbs. The number of bytes or limbs is passed as
the length of a tuple, so that numba compiles a version for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from ..algebra.compiled import compiled
from .blocks import ROWS

_NEEDED = ("avx512bw", "avx512vbmi", "avx512vnni")
# The processor's features that numba may use.
_COMPILED_FOR = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
VECTORS = all(f"+{name}" in _COMPILED_FOR for name in _NEEDED) and not getattr(numba.config, "DISABLE_JIT", 0)
MIDDLE = 8192  # the middle of the squares of -128..127
SUMMED = 256  # this many bytes add up below 2^16, so this many features are summed at a time
_WRAPPING = 7  # with this many bytes an entry, or more, sums of SUMMED entries may not fit 64 bits
_TILE = 8  # blocks scanned together, a few features at a time, whose tables fit the first-level cache
_GROUPS = range(0, ROWS, 64)  # where the groups of 64 rows begin; a register has 64 bytes
_I8, _I32, _I64 = (ir.IntType(n) for n in (8, 32, 64))


def _vector(count: int, bits: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(bits), count)


def _all(value: int, count: int, bits: int) -> ir.Constant:
    return ir.Constant(_vector(count, bits), [value] * count)


def _index(places: Sequence[int]) -> ir.Constant:
    return ir.Constant(_vector(len(places), 32), list(places))


_inlined: Any = njit(inline="always")


class _Builder:
    """LLVM code that both intrinsics need: pointers to arrays, unaligned vectors, and a loop that carries sums."""

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

    def prefetch(self, pointer: Any, offset: Any) -> None:
        """Have a line of memory fetched into the cache; an address beyond the end does no harm."""
        place, flags = self.b.gep(pointer, [offset]), [ir.Constant(_I32, n) for n in (0, 2, 1)]
        self.call("llvm.prefetch.p0i8", ir.VoidType(), place, *flags)

    def store(self, pointer: Any, offset: int, sums: Any) -> None:
        place = self.b.gep(pointer, [ir.Constant(_I64, offset)])
        self.b.store(sums, self.b.bitcast(place, sums.type.as_pointer())).align = 1

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


@intrinsic
def _add_tables(
    _: Any,
    quarters: Any,
    bytes_: Any,
    codes: Any,
    _at: Any,
    _ahead: Any,
    _first: Any,
    _last: Any,
    tables: Any,
    sums: Any,
) -> Any:
    """Add up the entries of features first..last-1 of one block, one sum for each row.

    `tables` is an array (feature, byte, level). `quarters` is a tuple with an element for every 64 levels, `bytes_` one
    with an element for every byte of an entry. The block begins at `at`; the one to prefetch lies `ahead` of it. If
    sums may wrap, the sums of the fifth byte and above are also stored, behind the others.
    """
    size, planes = 64 * quarters.count, bytes_.count
    signature = types.void(quarters, bytes_, codes, *[types.intp] * 4, tables, sums)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        k = _Builder(context, builder, signature)
        _, _, codes_, at_, ahead_, first_, last_, tables_, sums_ = arguments
        block = builder.gep(k.data(2, codes_, _I8), [at_])
        entries, totals = k.data(7, tables_, _I8), k.data(8, sums_, _I64)
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
            return builder.select(builder.icmp_signed("<", codes, _all(0, 64, 8)), pairs[1], pairs[0])

        def add(j: Any, sums: list[Any]) -> list[Any]:
            row = builder.mul(j, ir.Constant(_I64, ROWS))
            own = builder.mul(j, ir.Constant(_I64, planes * size))
            places = [builder.add(row, ir.Constant(_I64, g)) for g in _GROUPS]
            for place in places:
                k.prefetch(block, builder.add(place, ahead_))
            groups = [k.load(block, place, bytes64) for place in places]
            after: list[Any] = []
            for p in range(planes):
                at = [builder.add(own, ir.Constant(_I64, p * size + 64 * i)) for i in range(size // 64)]
                parts = [k.load(entries, where, bytes64) for where in at]
                for group in groups:  # a word holds two bytes: sum the words, and the upper bytes once more
                    found = builder.bitcast(lookup(group, parts), words32)
                    both, upper = sums[len(after)], sums[len(after) + 1]
                    after += [builder.add(both, found), builder.add(upper, builder.lshr(found, _all(8, 32, 16)))]
            return after

        sums = k.summed(first_, last_, _all(0, 32, 16), 2 * len(_GROUPS) * planes, add)
        for i, g in enumerate(_GROUPS):
            parts = [_all(0, 64, 64)] * 2  # sums of the first four bytes, and of the fifth byte and above
            for p in range(planes):
                both, upper = sums[2 * (len(_GROUPS) * p + i) :][:2]
                lower = builder.sub(both, builder.shl(upper, _all(8, 32, 16)))
                in_order = builder.shuffle_vector(lower, upper, _index([x for r in range(32) for x in (r, 32 + r)]))
                widened = builder.zext(in_order, _vector(64, 64))
                parts[p // 4] = builder.add(parts[p // 4], builder.shl(widened, _all(8 * (p % 4), 64, 64)))
            k.store(totals, g, builder.add(parts[0], builder.shl(parts[1], _all(32, 64, 64))))
            if planes >= _WRAPPING:
                k.store(totals, ROWS + g, parts[1])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_products(
    _: Any,
    digits: Any,
    codes: Any,
    _at: Any,
    _ahead: Any,
    _first: Any,
    _last: Any,
    factors: Any,
    _pairs: Any,
    _base: Any,
    sums: Any,
) -> Any:
    """Add up the products of feature pairs first..last-1 of one block: one sum for each row, of 32 bits for each limb.

    `factors` is an array (z or squares, limb, pair); an entry holds the coefficients of two features. A limb is worth
    `base` times the limb before it.
    """
    limbs = digits.count
    signature = types.void(digits, codes, *[types.intp] * 4, factors, types.intp, types.int64, sums)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        k = _Builder(context, builder, signature)
        _, codes_, at_, ahead_, first_, last_, factors_, pairs_of, base_, sums_ = arguments
        rows = builder.gep(k.data(1, codes_, _I8), [at_])
        factors, totals = k.data(6, factors_, _I32), k.data(9, sums_, _I64)
        sixteen, words32 = _vector(16, 32), _vector(32, 16)

        def everywhere(which: int, limb: int, pair: Any) -> Any:
            """Return a limb of two features' coefficients, repeated in every lane."""
            at = builder.add(builder.mul(pairs_of, ir.Constant(_I64, which * limbs + limb)), pair)
            nothing = ir.Constant(sixteen, ir.Undefined)
            one = builder.insert_element(nothing, builder.load(builder.gep(factors, [at])), ir.Constant(_I32, 0))
            return builder.shuffle_vector(one, nothing, _index([0] * 16))

        def add(pair: Any, sums: list[Any]) -> list[Any]:
            at = builder.mul(pair, ir.Constant(_I64, 2 * ROWS))
            z = []
            for g in _GROUPS:
                places = [builder.add(at, ir.Constant(_I64, ROWS * i + g)) for i in (0, 1)]
                for place in places:
                    k.prefetch(rows, builder.add(place, ahead_))
                two = [k.load(rows, place, words32) for place in places]
                for odd in (0, 1):  # a word holds two rows of a feature: put both features' side by side
                    words = builder.shuffle_vector(
                        *two, _index([x for i in range(16) for x in (2 * i + odd, 32 + 2 * i + odd)])
                    )
                    halves = builder.and_(words, _all(0xFF, 32, 16)), builder.lshr(words, _all(8, 32, 16))
                    z += [builder.sub(half, _all(128, 32, 16)) for half in halves]
            after = list(sums)
            for part, each in enumerate(z):
                squares = builder.sub(builder.mul(each, each), _all(MIDDLE, 32, 16))
                for which, words in enumerate((each, squares)):
                    both = builder.bitcast(words, sixteen)
                    for limb in range(limbs):
                        place, factor = part * limbs + limb, everywhere(which, limb, pair)
                        after[place] = k.call("llvm.x86.avx512.vpdpwssd.512", sixteen, after[place], both, factor)
            return after

        sums = k.summed(first_, last_, _all(0, 16, 32), ROWS // 16 * limbs, add)
        back = [row % 4 * 16 + row // 4 for row in range(64)]
        unset = ir.Constant(_vector(64, 64), ir.Undefined)
        narrow = builder.sext(builder.trunc(base_, _I32), _I64)  # tells LLVM that the factor has 32 bits
        one = builder.insert_element(unset, narrow, ir.Constant(_I32, 0))
        scale = builder.shuffle_vector(one, unset, _index([0] * 64))
        for g in _GROUPS:
            total = _all(0, 64, 64)
            for limb in reversed(range(limbs)):  # Horner
                a, b, c, d = (sums[(g // 16 + part) * limbs + limb] for part in range(4))
                ab, cd = (builder.shuffle_vector(x, y, _index(range(32))) for x, y in ((a, b), (c, d)))
                in_order = builder.sext(builder.shuffle_vector(ab, cd, _index(back)), _vector(64, 64))
                total = builder.add(builder.mul(total, scale), in_order)
            k.store(totals, g, total)
        return context.get_dummy_value()

    return signature, generate


@_inlined
def _rest(total, quotient, q):  # type: ignore[no-untyped-def]
    """Return total mod q. The total is not negative, but may have wrapped. The quotient is right within a quarter.

    The quotient less a quarter, rounded down, is never too large, and is too small by at most one.
    """
    rest = total - np.int64(quotient - 0.25) * q
    return rest - q if rest >= q else rest


@_inlined
def _settle(sums, shift, first, q, inverse, values):  # type: ignore[no-untyped-def]
    """Add a block's sums and `shift` to its values, or replace the values if these sums are the first; reduce mod q."""
    for row in range(ROWS):
        total = sums[row] + shift + (np.int64(0) if first else values[row])
        values[row] = _rest(total, np.float64(total) * inverse, q)


@_inlined
def _settle_wrapped(sums, first, q, inverse, values):  # type: ignore[no-untyped-def]
    """Do the same for sums that may have wrapped at 2^64; the upper parts, worth 2^32, give the quotient. q > 2^48."""
    for row in range(ROWS):
        before = np.int64(0) if first else values[row]
        quotient = (np.float64(sums[ROWS + row]) * (1 << 32) + np.float64(before)) * inverse
        values[row] = _rest(sums[row] + before, quotient, q)


@compiled
def vector_table(quarters, bytes_, codes, tables, ends, q, values):  # type: ignore[no-untyped-def]
    """Scan blocks for sum_j tables[j][y_j] mod q. Sums are reduced at every feature number in `ends`."""
    flat, blocks, block_size = codes.reshape(-1), len(codes), codes.shape[1] * ROWS
    inverse, sums = 1.0 / q, np.empty(2 * ROWS, np.int64)
    for tile in range(0, blocks, _TILE):
        first = 0
        for end in ends:
            for block in range(tile, min(blocks, tile + _TILE)):
                _add_tables(quarters, bytes_, flat, block * block_size, block_size, first, end, tables, sums)  # type: ignore[call-arg]
                out = values[block * ROWS : (block + 1) * ROWS]
                if len(bytes_) >= _WRAPPING:
                    _settle_wrapped(sums, first == 0, q, inverse, out)
                else:
                    _settle(sums, 0, first == 0, q, inverse, out)
            first = end


@compiled
def vector_polynomial(digits, codes, factors, ends, base, constant, lift, q, values):  # type: ignore[no-untyped-def]
    """Scan blocks for constant + products, mod q. `lift` is a multiple of q so large that no sum is below -lift."""
    flat, block_size, pairs = codes.reshape(-1), codes.shape[1] * ROWS, codes.shape[1] // 2
    inverse, sums = 1.0 / q, np.empty(ROWS, np.int64)
    for block in range(len(codes)):
        first, shift = 0, lift + constant
        for end in ends:
            _add_products(digits, flat, block * block_size, block_size, first, end, factors, pairs, base, sums)  # type: ignore[call-arg]
            _settle(sums, shift, first == 0, q, inverse, values[block * ROWS : (block + 1) * ROWS])
            first, shift = end, lift


@compiled
def plain_table(codes, tables, starts, often, q, values):  # type: ignore[no-untyped-def]
    """Scan blocks for sum_j of entry y_j after starts[j], mod q. Sums are reduced after every `often` entries."""
    for tile in range(0, len(codes), _TILE):
        blocks = codes[tile : tile + _TILE]
        sums = values[tile * ROWS : (tile + len(blocks)) * ROWS]
        sums[:] = 0
        for first in range(0, len(starts), often):
            for j in range(first, min(first + often, len(starts))):
                entries = tables[starts[j] :]
                for block in range(len(blocks)):
                    levels, out = blocks[block, j], sums[block * ROWS : (block + 1) * ROWS]
                    for row in range(ROWS):
                        out[row] += np.int64(entries[levels[row]])
            for row in range(sums.size):
                sums[row] = _rest(sums[row], np.float64(sums[row]) / q, q)


@compiled
def plain_polynomial(codes, ones, twos, width, constant, q, values):  # type: ignore[no-untyped-def]
    """Scan blocks for constant + sum_j (c_1 y + c_2 y²) mod q.

    `ones` and `twos` are arrays (limb, feature) of c_1 and c_2. A limb is worth 2^width times the limb before it.
    """
    inverse, limbs, scale = 1.0 / q, len(ones), np.int64(1) << width
    sums = np.empty((limbs, ROWS), np.int64)
    for block in range(len(codes)):
        sums[:] = 0
        for j in range(ones.shape[1]):
            levels = codes[block, j]
            for limb in range(limbs):
                one, two, own = np.int64(ones[limb, j]), np.int64(twos[limb, j]), sums[limb]
                for row in range(ROWS):
                    y = np.int64(levels[row])
                    own[row] += y * one + y * y * two
        out = values[block * ROWS : (block + 1) * ROWS]
        out[:] = 0
        for limb in range(limbs - 1, -1, -1):  # Horner
            own, extra = sums[limb], constant if limb == 0 else np.int64(0)
            for row in range(ROWS):
                above = _rest(out[row] * scale, np.float64(out[row]) * scale * inverse, q)
                total = above + _rest(own[row] + extra, (np.float64(own[row]) + np.float64(extra)) * inverse, q) - q
                out[row] = total + ((total >> 63) & q)


@compiled
def xor(records, stride, first, chosen, total):  # type: ignore[no-untyped-def]
    """Write the xor of a part of the chosen records to total, in strips of 64 bytes; the last strip may overlap."""
    length = total.size
    strips = length // 64
    sums = np.zeros((strips + 1, 64), np.uint8)
    for i in range(chosen.size):
        mask, start = np.uint8(0) - chosen[i], i * stride + first
        for strip in range(strips + 1):
            at = start + min(64 * strip, length - 64)
            part, each = records[at : at + 64], sums[strip]
            for b in range(64):
                each[b] ^= part[b] & mask
    for strip in range(strips + 1):
        at = min(64 * strip, length - 64)
        total[at : at + 64] = sums[strip]
