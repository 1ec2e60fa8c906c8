"""The servers' common randomness, compared with a second implementation written from the words of rule 4."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from counterveil import make_scheme
from counterveil.algebra import words
from counterveil.algebra.words import below, order_of, packed
from counterveil.crypto.randomness import Common, Fresh, delimited, uniform
from counterveil.errors import OversizedField, WrongType
from counterveil.schemes.fetch import Polynomials, Subsets

KEY = bytes(range(32))
SITUATION: dict[str, Any] = {"digest": b"D" * 32, "ticket": b"claims", "servers": (1, 2)}
VECTORS = Path(__file__).parent.parent / "vectors" / "randomness.json"


def length_prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


class Slow:
    """Rule 4, read slowly: one word at a time, counter mode built from single AES blocks."""

    def __init__(self, key: bytes, digest: bytes, ticket: bytes, servers: tuple[int, ...]) -> None:
        members = length_prefixed(*[str(n).encode() for n in servers])
        self.key, self.situation = key, length_prefixed(b"counterveil/2", digest, ticket, members)

    def stream(self, purpose: str, request: int, coefficient: int, block: int, length: int) -> bytes:
        place = [purpose.encode()] + [str(n).encode() for n in (request, coefficient, block)]
        secret = hmac.digest(self.key, self.situation + length_prefixed(*place), hashlib.sha256)
        aes = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305 - counter mode by hand
        return b"".join(aes.update(n.to_bytes(16, "big")) for n in range(-(-length // 16)))[:length]

    def elements(self, purpose: str, q: int, count: int, request: int = 0, coefficient: int = 0) -> list[int]:
        mask, drawn = (1 << (q - 1).bit_length()) - 1, []
        for block in range(-(-count // 4096)):
            wanted, raw = min(4096, count - 4096 * block), self.stream(purpose, request, coefficient, block, 200_000)
            words = (int.from_bytes(raw[i : i + 8], "little") & mask for i in range(0, len(raw), 8))
            accepted = [word for word in words if word < q]
            assert len(accepted) >= wanted
            drawn += accepted[:wanted]
        return drawn

    def order(self, count: int) -> list[int]:
        keys = []
        for block in range(-(-count // 4096)):
            raw = self.stream("order", 0, 0, block, 16 * 4096)
            keys += [int.from_bytes(raw[i : i + 16], "little") for i in range(0, len(raw), 16)]
        return sorted(range(count), key=lambda i: keys[i])


@pytest.mark.parametrize("q", [1, 2, 3, 5, 100, 256, 257, 2003, 2**31 - 1, 2**61 - 1])
@pytest.mark.parametrize("count", [0, 1, 9, 4096, 4097, 9000])
def test_elements_are_those_of_rule_4(q: int, count: int) -> None:
    fast, slow = Common(KEY, **SITUATION), Slow(KEY, **SITUATION)
    assert fast.elements("pad", q, count, request=1, coefficient=2).tolist() == slow.elements("pad", q, count, 1, 2)


@pytest.mark.parametrize("count", [1, 2, 100, 4096, 5000])
def test_order_is_that_of_rule_4(count: int) -> None:
    order = Common(KEY, **SITUATION).order(count)
    assert order.tolist() == Slow(KEY, **SITUATION).order(count)
    assert sorted(order) == list(range(count))


def test_a_longer_draw_begins_with_the_shorter() -> None:
    common = Common(KEY, **SITUATION)
    whole = common.elements("pad", 2003, 10_000)
    for count in (1, 4095, 4096, 4097, 8192, 9999):
        assert np.array_equal(common.elements("pad", 2003, count), whole[:count])


@given(st.integers(0, 2**32), st.integers(2, 2**62), st.integers(1, 60))
def test_draws_are_the_first_words_accepted(seed: int, q: int, count: int) -> None:
    """Reading goes on where it stopped, so it does not matter how much is read at a time."""
    stream = np.random.default_rng(seed).bytes(8 * 4096)
    mask = (1 << (q - 1).bit_length()) - 1
    words = [int.from_bytes(stream[i : i + 8], "little") & mask for i in range(0, len(stream), 8)]
    position = 0

    def read(length: int) -> bytes:
        nonlocal position
        position += length
        return stream[position - length : position]

    assert uniform(read, q, count).tolist() == [w for w in words if w < q][:count]


def test_rejection_is_exactly_uniform() -> None:
    """Every masked word once: each element below q comes out as often as every other."""
    for q, bits in [(3, 2), (5, 3), (11, 4), (13, 4), (251, 8)]:
        words = b"".join((w | 0xABCD << 20).to_bytes(8, "little") for w in range(1 << bits))
        assert uniform(lambda _, words=words: words, q, q).tolist() == list(range(q))  # type: ignore[misc]


def test_no_two_situations_share_a_stream() -> None:
    """Change any one thing that rule 4 binds, and everything changes."""
    other = {"digest": b"E" * 32, "ticket": b"claim", "servers": (1, 3)}
    sources = [Common(KEY, **SITUATION), Common(bytes(32), **SITUATION)]
    sources += [Common(KEY, **(SITUATION | {name: value})) for name, value in other.items()]
    sources += [Common(KEY, **(SITUATION | {"digest": b"D" * 31, "ticket": b"Dclaims"}))]
    streams = [s.substream("pad", 0, 1, 0)(64) for s in sources]
    places = [
        ("mask", 0, 1, 0),
        ("pad", 1, 1, 0),
        ("pad", 0, 2, 0),
        ("pad", 0, 1, 1),
        ("pad", 10, 1, 0),
        ("pad", 1, 0, 1),
    ]
    streams += [sources[0].substream(*place)(64) for place in places]
    for a, b in combinations(streams, 2):
        assert a != b
        assert not set(np.frombuffer(a, "<u8")) & set(np.frombuffer(b, "<u8"))


def test_the_digest_binds_every_parameter() -> None:
    rows, records = np.array([[1, 2], [3, 4]]), np.array([[1], [2]], dtype=np.uint8)
    base: dict[str, Any] = {"largest": 10, "d": 2, "d_min": 3}
    changes: list[dict[str, Any]] = [
        {},
        {"d_min": 2},
        {"shuffle": True},
        {"largest": [10, 11]},
        {"servers": 3},
        {"servers": 3, "collusion": 1},
        {"alphas": [2, 1]},
        {"expansion": 2},
        {"name": "linear-mask"},
        {"name": "linear-mask", "max_weight": 9},
        {"name": "euclidean/masked_differences"},
        {"name": "table/masked", "cap": 10},
        {"name": "dot/masked"},
        {"q": 2**31 - 1},
    ]
    digests = []
    for change in changes:
        parameters = base | change
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OversizedField)
            scheme = make_scheme(parameters.pop("name", "mask"), **parameters)
        digests.append(scheme.digest(rows, records))
    scheme = make_scheme("mask", **base)
    digests += [scheme.digest(rows[::-1], records), scheme.digest(rows, records[::-1]), scheme.digest(rows)]
    assert len(set(digests)) == len(digests)
    assert scheme.digest(rows.astype(np.uint8), records) == digests[0]


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_frames_of_different_parts_differ(a: list[bytes], b: list[bytes]) -> None:
    assert (delimited(a) == delimited(b)) == (a == b)


@pytest.mark.parametrize("key", [b"", b"short", bytes(33), "x" * 32])
def test_a_key_of_the_wrong_kind_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(WrongType, match="common key: got something else, expected 32 bytes"):
        Common(key, **SITUATION)


def test_fresh_pads_are_in_range_and_never_repeat() -> None:
    draws = [Fresh().elements(2**61 - 1, 100) for _ in range(20)]
    assert len({d.tobytes() for d in draws}) == 20
    assert all(int(d.min()) >= 0 and int(d.max()) < 2**61 - 1 for d in draws)


def test_fresh_pads_reach_every_element() -> None:
    for q in (2, 3, 5, 256):
        assert set(Fresh().elements(q, 40 * q).tolist()) == set(range(q))


def test_a_schemes_common_randomness_binds_key_digest_ticket_and_servers() -> None:
    scheme = make_scheme("diff", largest=9, d=2, alphas=[3, 5])
    expected = Common(KEY, digest=b"digest", ticket=b"ticket", servers=[3, 5]).elements("pad", 11, 50)
    assert np.array_equal(scheme.common(KEY, b"digest", b"ticket").elements("pad", 11, 50), expected)
    other = make_scheme("diff", largest=9, d=2)
    for common in (
        scheme.common(bytes(32), b"digest", b"ticket"),
        scheme.common(KEY, b"digest2", b"ticket"),
        scheme.common(KEY, b"digest", b"ticket2"),
        other.common(KEY, b"digest", b"ticket"),
    ):
        assert not np.array_equal(common.elements("pad", 11, 50), expected)
    with pytest.raises(WrongType, match="digest and ticket: got something else, expected bytes"):
        scheme.common(KEY, b"digest", "ticket")  # type: ignore[arg-type]


def test_no_ticket_is_a_situation_of_its_own() -> None:
    standing = Common(KEY, digest=b"D", ticket=None, servers=(1, 2))
    assert standing.substream("pad", 0, 1, 0)(64) != Common(KEY, digest=b"D", ticket=b"t", servers=(1, 2)).substream(
        "pad", 0, 1, 0
    )(64)
    with pytest.raises(WrongType, match="digest and ticket"):
        Common(KEY, digest=b"D", ticket=b"", servers=(1, 2))


def test_fresh_pads_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def token_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    assert Fresh().elements(5, 3).tolist() == [0, 0, 0]
    assert asked


class Recorded:
    """Common randomness that notes what is drawn from it."""

    def __init__(self) -> None:
        self.common = Common(KEY, **SITUATION)
        self.drawn: list[tuple[Any, ...]] = []

    def elements(self, purpose: str, q: int, count: int, *, request: int = 0, coefficient: int = 0) -> Any:
        self.drawn.append((purpose, q, count, request, coefficient))
        return self.common.elements(purpose, q, count, request=request, coefficient=coefficient)

    def substream(self, purpose: str, request: int, coefficient: int, block: int) -> Any:
        self.drawn.append((purpose, request, coefficient, block))
        return self.common.substream(purpose, request, coefficient, block)

    def order(self, count: int) -> Any:
        self.drawn.append(("order", count))
        return self.common.order(count)


def test_what_is_drawn_for_one_question_is_over_the_right_range_and_never_drawn_twice() -> None:
    rows = np.arange(12).reshape(6, 2)
    scheme = make_scheme("mask+", largest=20, d=2, servers=3, d_min=7, expansion=2, shuffle=True)
    common, q = Recorded(), scheme.field.q
    scheme.answer(2, rows, np.zeros(4, dtype=np.int64), common)
    expected = [("order", 6), ("mask", 14, 6, 0, 0), ("pad", q, 6, 0, 1), ("pad", q, 6, 0, 2)]
    assert sorted(common.drawn, key=str) == sorted(expected, key=str)


def test_what_is_drawn_for_one_record_too() -> None:
    parts, shares = Subsets(3, 41), Polynomials(3, 2, 40)
    common = Recorded()
    parts.answer(1, np.zeros((6, 41), dtype=np.uint8), parts.query(6, 1, Fresh())[0], common, request=5)
    assert common.drawn == [("record", 256, 21, 5, 0)]
    common = Recorded()
    shares.answer(1, np.zeros((6, 40), dtype=np.uint8), shares.query(6, 1, Fresh())[0], common, request=5)
    assert common.drawn == [("record", 256, 40, 5, 1), ("record", 256, 40, 5, 2)]


@pytest.mark.parametrize("count", [1, 2, 1000, 65_535, 65_536, 200_001])
@pytest.mark.parametrize("kind", ["uniform", "few", "low", "sorted", "backwards"])
def test_keys_are_sorted_as_a_stable_sort_does(count: int, kind: str) -> None:
    """Both ways sort right, even keys that are far from uniform."""
    rng = np.random.default_rng(count)
    keys = rng.integers(0, 2**64, (count, 2), dtype=np.uint64)
    if kind == "few":  # many upper halves are equal, and some whole keys
        keys[:, 1] = keys[:, 1] >> np.uint64(48) << np.uint64(48)
        keys[:, 0] >>= np.uint64(63)
    elif kind == "low" and count <= 1000:
        keys[:, 1] >>= np.uint64(40)
    elif kind in ("sorted", "backwards"):
        keys = keys[np.argsort(keys[:, 1])][:: -1 if kind == "backwards" else 1].copy()
    assert np.array_equal(order_of(keys), np.lexsort((keys[:, 0], keys[:, 1])))


@pytest.mark.parametrize("q", [1, 2, 5, 64, 65, 2**26 + 15, 2**61 - 1, 2**62])
def test_words_below_a_bound_are_the_same_both_ways(q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, mask = np.random.default_rng(q).integers(0, 2**64, 10_000, dtype=np.uint64), (1 << (q - 1).bit_length()) - 1
    expected = [int(word) & mask for word in drawn if int(word) & mask < q]
    ways = [below(drawn, mask, q, in_all=1 << 20).tolist()]
    monkeypatch.setattr(words, "where_it_pays", lambda *_: None)
    assert below(drawn, mask, q).tolist() == ways[0] == expected


@pytest.mark.parametrize("bits", [1, 2, 7, 8, 9, 26, 31, 32, 33, 61, 62])
def test_words_are_packed_the_same_both_ways(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, 70_001)
    values[:3] = 0, (1 << bits) - 1, (1 << bits) - 1
    for count in (0, 1, 2, 63, 64, 65, 70_001):
        expected = sum(int(v) << bits * (i % 512) for i, v in enumerate(values[:512][:count]))
        ways = [packed(values[:count], bits)]
        with monkeypatch.context() as patched:
            patched.setattr(words, "where_it_pays", lambda *_: None)
            ways.append(packed(values[:count], bits))
        assert ways[0] == ways[1]
        assert len(ways[0]) == -(-count * bits // 8)
        start = min(count, 512) * bits // 8
        assert ways[0][:start] == expected.to_bytes(512 * bits, "little")[:start]


def test_recorded_vectors() -> None:
    """Other implementations and later versions must derive the same values."""
    vectors = json.loads(VECTORS.read_text())
    for vector in vectors["elements"] + vectors["orders"]:
        given = vector["situation"]
        common = Common(
            bytes.fromhex(given["key"]),
            digest=bytes.fromhex(given["digest"]),
            ticket=bytes.fromhex(given["ticket"]),
            servers=given["servers"],
        )
        if "order" in vector:
            assert common.order(len(vector["order"])).tolist() == vector["order"]
        else:
            drawn = common.elements(
                vector["purpose"], vector["q"], vector["first"] + len(vector["elements"]),
                request=vector["request"], coefficient=vector["coefficient"],
            )  # fmt: skip
            assert drawn[vector["first"] :].tolist() == vector["elements"]
    for vector in vectors["digests"]:
        parameters = vector["parameters"]
        scheme = make_scheme(vector["scheme"], largest=parameters.pop("levels"), **parameters)
        assert scheme.digest(vector["rows"], np.array(vector["records"], dtype=np.uint8)).hex() == vector["digest"]
    assert len(vectors["digests"]) >= 2
    assert len(vectors["elements"]) >= 4
    assert len(vectors["orders"]) >= 1
