"""What a cheat gets from joint: by wrong tapes one package at most, by wrong queries the nearest row of some costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from counterveil import Question, Scheme
from counterveil.algebra.arrays import Bytes
from counterveil.crypto.keys import SIGNATURE_BYTES, SigningKey, is_signed
from counterveil.crypto.packages import package_all, unpackage
from counterveil.crypto.randomness import Fresh, new_key
from counterveil.engine.party import Party, Send, Take
from counterveil.schemes.fetch import BYTES
from counterveil.schemes.protocols import Seen, Size
from counterveil.schemes.protocols.circuit import height
from counterveil.schemes.protocols.dealing import Batch, Terms, Words, planned
from counterveil.schemes.protocols.packed import LANE_BITS
from jointly import PROFILES, asked, tabled

pytestmark = pytest.mark.slow

profiles = pytest.mark.parametrize("profile", PROFILES)
Tapes = list[Send]  # what a dealer sends, message by message


def honest(scheme: Scheme, size: Size) -> Tapes:
    """Return what an honest dealer sends."""
    return [effect for effect in scheme.protocol.deal(scheme, size, Fresh()) if isinstance(effect, Send)]


def flipped(tapes: Tapes, which: int, flip: Any) -> Party[None]:
    """Play a dealer who flips bits of one message."""
    for number, send in enumerate(tapes):
        yield Send(send.to, send.symbols ^ flip if number == which else send.symbols, BYTES)


def costing(*costs: int) -> Question:
    return Question(costs=[[*costs] + [costs[-1]] * (256 - len(costs))])


# --- one gate ------------------------------------------------------------------------------------------------------


def errors(batch: Batch, factors: int) -> set[int]:
    """Return what all tapes add to one product of so many bits, as a table of its values for all values of the bits.

    Bit n of a table belongs to the n-th values of the factors. All ways to share a tape are tried.
    """
    values = np.array([TABLES[n] for n in range(factors)], dtype=np.uint8)
    found, right = set(), int(np.bitwise_and.reduce(values))
    for tape in product((0, 255), repeat=2 * (factors + batch.products // 8)):
        shares = np.repeat(np.array(tape, dtype=np.uint8), 8).reshape(2, -1)
        masks, products = shares[:, : 8 * factors], shares[:, 8 * factors :]
        public = np.repeat(values, 8) ^ masks[0] ^ masks[1]
        made = [int(batch.made(seat, public, masks[seat], products[seat])[0]) for seat in (0, 1)]
        found.add(made[0] ^ made[1] ^ right)
    return found


TABLES = (0b10101010, 0b11001100, 0b11110000)  # the values of three bits, in all eight cases


def test_a_wrong_tape_adds_a_constant_to_a_product_of_two_factors() -> None:
    """So a cheat can flip the output of a gate, and do nothing else to it."""
    assert errors(Words((1, 1, 1), (1, 1, 1)), 2) == {0, 255}


def test_a_wrong_tape_adds_a_linear_function_to_a_product_of_three_factors() -> None:
    """There are 16 of them: all sums of factors, and their complements."""
    sums = {a ^ b ^ c for a, b, c in product(*[(0, table) for table in TABLES])}
    assert errors(Terms((3, 1, 1), ((0, 1, 2),)), 3) == sums | {255 ^ each for each in sums}


# --- a whole question ----------------------------------------------------------------------------------------------


def mixtures(packages: Bytes) -> dict[bytes, tuple[int, ...]]:
    """Return all xors of packages, and which they are made of."""
    made = {}
    for chosen in product((0, 1), repeat=len(packages)):
        made[np.bitwise_xor.reduce(packages * np.array(chosen, dtype=np.uint8)[:, None]).tobytes()] = chosen
    assert len(made) == 1 << len(packages)
    return made


@profiles
def test_every_flip_of_a_product_brings_at_most_one_record(profile: str) -> None:
    """Each bit of the second server's shares of products is flipped. Nothing but a whole package can be read."""
    scheme, size = tabled(1, dealer="server", rounds=profile), Size(3, 40)
    secrets = np.random.default_rng(5).integers(0, 256, (3, 8), dtype=np.uint8)
    packages = package_all(secrets, new_key())
    known, readable, got = mixtures(packages), mixtures(secrets), Counter[int]()
    tapes = honest(scheme, size)
    for which, flip in flips(tapes, planned(3, 1, 1, profile)):
        deal = flipped(tapes, which, flip)
        (found,), *_ = asked(scheme, [[0], [1], [2]], costing(1, 0, 1), packages, deal=deal)
        chosen = known[found]
        got[sum(chosen)] += 1
        assert (unpackage(found) in readable) == (sum(chosen) == 1)  # not even a sum of records
        assert sum(chosen) != 1 or readable[unpackage(found)] == chosen
    assert min(got[1], got[0] + got[2] + got[3]) > 0, got  # some flips change nothing, and some mix packages


def flips(tapes: Tapes, batches: Sequence[Batch]) -> Iterator[tuple[int, Bytes]]:
    """Return which message to flip, and how, for each bit of the second server's shares of products."""
    second = [which for which, send in enumerate(tapes) if send.to == 1]
    for which, batch in zip(second, batches, strict=True):
        for bit in range(8 * batch.masks, 8 * (batch.masks + batch.products)):
            flip = np.zeros(tapes[which].symbols.size, dtype=np.uint8)
            flip[bit // 8] = 1 << bit % 8
            yield which, flip


def test_bare_records_would_bring_two_rows() -> None:
    """This is the control: without packages, a flip brings the xor of two records, which tells both to who guesses."""
    scheme, size = tabled(1, dealer="server"), Size(3, 8)
    secrets, got = np.array([[1] * 8, [2] * 8, [4] * 8], dtype=np.uint8), set()
    tapes = honest(scheme, size)
    last = len(tapes) - 1  # the outer product that makes the selection, for server 2
    for byte in range(tapes[last].symbols.size):
        flip = np.zeros(tapes[last].symbols.size, dtype=np.uint8)
        flip[byte] = 1
        (found,), *_ = asked(scheme, [[0], [1], [2]], costing(1, 0, 1), secrets, deal=flipped(tapes, last, flip))
        got.add(found[0])
    assert got & {2 ^ 1, 2 ^ 4}


@profiles
def test_the_choice_of_rows_tells_at_most_as_many_bits_as_a_place_has(profile: str) -> None:
    """For one wrong tape, the chosen rows depend on the database only through the bits of the winner's place.

    Of 80 databases of 16 rows, they are one of 64 sets of rows at most: a place has six bits. Without that limit, they
    could be 80 different sets. Some tapes are wrong everywhere, and some only where the selection is made.
    """
    rng, M, counted = np.random.default_rng(3), 16, []
    scheme, size = tabled(4, dealer="server", rounds=profile), Size(M, 2)
    records = (1 << np.arange(M)).astype("<u2").view(np.uint8).reshape(-1, 2)  # a mixture says which rows are in it
    for everywhere in (True, False, False, False, False, False):
        tapes, sets = honest(scheme, size), set()
        first = 0 if everywhere else len(tapes) - 10
        spoilt = [send.to == 1 and number >= first for number, send in enumerate(tapes)]
        flips = [rng.integers(0, 256, send.symbols.size, dtype=np.uint8) for send in tapes]
        for _ in range(80):
            parts = zip(tapes, flips, spoilt, strict=True)
            deal = (Send(send.to, send.symbols ^ flip if bad else send.symbols, BYTES) for send, flip, bad in parts)
            question = costing(*rng.integers(0, 16, M).tolist())
            (found,), *_ = asked(scheme, np.arange(M)[:, None], question, records, deal=deal)
            sets.add(found)
        counted.append(len(sets))
    assert 8 < max(counted) <= 1 << max(LANE_BITS, height(M))


# --- at full size --------------------------------------------------------------------------------------------------


def wrong(tapes: Tapes, rng: np.random.Generator) -> Party[None]:
    """Play a dealer who deals wrongly in some way."""
    which, kind = int(rng.integers(len(tapes))), int(rng.integers(5))
    for number, send in enumerate(tapes):
        symbols = send.symbols.copy()
        if kind == 0 and number == which:  # one bit
            symbols[rng.integers(symbols.size)] ^= np.uint8(1 << rng.integers(8))
        elif (kind == 1 and number == which) or (kind == 2 and send.to == 1):  # one message, or all to one server
            symbols = rng.integers(0, 256, symbols.size, dtype=np.uint8)
        elif kind == 3:  # nothing random at all
            symbols[:] = 0
        elif kind == 4 and number > len(tapes) - 4:  # the selection
            symbols ^= np.uint8(255)
        yield Send(send.to, symbols, BYTES)


@profiles
def test_hundreds_of_wrong_tapes_bring_a_record_each_at_most(profile: str) -> None:
    """Five thousand signed rows are attacked. An answer has the length of a package, and opens a record or nothing."""
    rng, issuer, M = np.random.default_rng(11), SigningKey(), 5000
    bare = rng.integers(0, 4, (M, 20), dtype=np.uint8)  # records that are easy to guess
    signed = [record.tobytes() + issuer.sign("record", record.tobytes()) for record in bare]
    packages = package_all([np.frombuffer(each, dtype=np.uint8) for each in signed], new_key())
    scheme, size, genuine = tabled(12, dealer="server", rounds=profile), Size(M, packages.shape[1]), set(signed)
    opened, noise = 0, 0
    for _ in range(100):
        rows, costs = rng.integers(0, 256, (M, 1)), rng.integers(0, 4096, 256)
        tapes = honest(scheme, size)
        (found,), sizes, _ = asked(scheme, rows, Question(costs=[costs]), packages, deal=wrong(tapes, rng))
        assert sizes[0, "applicant"] == sizes[1, "applicant"] == len(found) == 20 + SIGNATURE_BYTES + 32
        read = unpackage(found)
        if is_signed(issuer.public, read[20:], "record", read[:20]):
            assert read in genuine
            opened += 1
        else:
            noise += 1
            assert not any(found) or len(set(read)) > 30  # zeros if no row was chosen; else it looks random
    assert min(opened, noise) > 10, (opened, noise)


# --- a cheat for whom a server deals -------------------------------------------------------------------------------


@profiles
def test_any_pair_of_queries_brings_the_nearest_row_of_some_costs(profile: str) -> None:
    """All queries to both servers are enumerated: three levels, costs of one bit, and what is added to every cost."""
    scheme = tabled(1, largest=2, dealer="server", rounds=profile)
    size, records, codes = Size(4, 1), np.array([[1], [2], [4], [8]], dtype=np.uint8), np.array([2, 0, 1, 0])
    assert scheme.symbols == 4
    for first, second in product(product((0, 1), repeat=4), repeat=2):
        (found,), *_ = asked(scheme, codes[:, None], Question(), records, ask=partial(sent, first, second, size)())
        costs = (np.array(first) + second) % 2
        assert found == records[int(np.argmin((costs[codes] + costs[3]) % 2))].tobytes()


def sent(first: tuple[int, ...], second: tuple[int, ...], size: Size) -> Party[Seen]:
    """Play an applicant who sends these queries."""
    ring = tabled(1, largest=2).field
    for seat, query in enumerate((first, second)):
        yield Send(seat, np.array(query), ring)
    one, other = (yield Take(0, size.record, BYTES)), (yield Take(1, size.record, BYTES))
    return Seen(np.zeros(0, dtype=np.int64), (), ((one ^ other).astype(np.uint8).tobytes(),), (0, 1))
