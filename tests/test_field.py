from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import isprime, prevprime

from counterveil import Field, smallest_prime_above
from counterveil.algebra.gf256 import GF256
from counterveil.errors import InvalidAlphas, InvalidField, MissingValue, OutOfRange, WrongShape, WrongType

BIGGEST = int(prevprime(2**62))
PRIMES = [2, 3, 5, 2003, 2**31 - 1, int(prevprime(2**32)), int(prevprime(2**53)), 2**61 - 1, BIGGEST]


@st.composite
def field_and_vectors(draw: st.DrawFn) -> tuple[Field, list[int], list[int]]:
    q = draw(st.sampled_from(PRIMES) | st.integers(2, BIGGEST - 1).map(lambda n: smallest_prime_above(n)))
    element = st.integers(0, q - 1) | st.sampled_from([0, 1 % q, q - 1, q // 2, q // 2 + 1 if q > 2 else 0])
    pairs = draw(st.lists(st.tuples(element, element), min_size=1, max_size=40))
    return Field(q), [a for a, _ in pairs], [b for _, b in pairs]


@given(field_and_vectors())
def test_arithmetic_is_that_of_integers_mod_q(case: tuple[Field, list[int], list[int]]) -> None:
    field, a, b = case
    u, v, q = np.array(a), np.array(b), field.q
    assert field.add(u, v).tolist() == [(x + y) % q for x, y in zip(a, b, strict=True)]
    assert field.sub(u, v).tolist() == [(x - y) % q for x, y in zip(a, b, strict=True)]
    assert field.mul(u, v).tolist() == [x * y % q for x, y in zip(a, b, strict=True)]
    assert field.mul(u, b[0]).tolist() == [x * b[0] % q for x in a]
    assert field.sum(u) == sum(a) % q
    assert [int(s) % q for s in field.signed(u)] == a
    assert all(-q // 2 <= int(s) <= q // 2 for s in field.signed(u))
    assert u.tolist() == a
    assert v.tolist() == b


@given(st.lists(st.integers(-(2**80), 2**80), max_size=5), st.sampled_from(PRIMES))
def test_vector_reduces_integers_of_any_size(values: list[int], q: int) -> None:
    assert Field(q).vector(values).tolist() == [v % q for v in values]


@given(st.integers(-5, 2**62 - 100))
def test_smallest_prime_above(bound: int) -> None:
    q = smallest_prime_above(bound)
    assert q > bound
    assert isprime(q)
    assert not any(isprime(n) for n in range(max(2, bound + 1), q))


@pytest.mark.parametrize("bound", [BIGGEST, 2**62, 2**70])
def test_no_prime_at_or_above_2_62(bound: int) -> None:
    assert smallest_prime_above(BIGGEST - 1) == BIGGEST
    with pytest.raises(InvalidField, match="below 2\\^62"):
        smallest_prime_above(bound)


@pytest.mark.parametrize("q", [4, 9, 561, 2**31, (2**31 - 1) ** 2, 3215031751, (2**62 + 135)])
def test_composite_or_too_large_q_is_refused(q: int) -> None:
    with pytest.raises(InvalidField, match=f"q: got {q}, expected a prime below"):
        Field(q)


@pytest.mark.parametrize(("q", "error"), [(1, OutOfRange), (-7, OutOfRange), (7.0, WrongType), (True, WrongType)])
def test_q_must_be_an_integer_above_1(q: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="q: got"):
        Field(q)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1, 2], WrongShape, r"answer: got shape \(2,\), expected \(3\)"),
        ([[1], [2], [3]], WrongShape, r"answer: got shape \(3, 1\), expected \(3\)"),
        ([1, 2, 7], OutOfRange, r"answer\[2\]: got 7, expected 0 to 6"),
        ([-1, 2, 3], OutOfRange, r"answer\[0\]: got -1, expected 0 to 6"),
        ([1.0, 2.0, 3.0], WrongType, "answer: got dtype float64, expected integers"),
        ([1.0, 2.0, float("nan")], MissingValue, "answer: got NaN or None, expected integers"),
        (np.array([1, 2, 2**64 - 1], dtype=np.uint64), OutOfRange, r"answer\[2\]: got 18446744073709551615"),
        (["1", "2", "3"], WrongType, "answer: got dtype <U1"),
        ([True, False, True], WrongType, "answer: got dtype bool"),
        ([2**70, 1, 1], WrongType, "answer: got dtype object"),
        ([1, [2, 3], 4], WrongShape, "lists of unequal length"),
    ],
)
def test_check_accepts_nothing_but_field_elements(values: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Field(7).check("answer", values, 3)


@given(st.data())
def test_weights_at_0_interpolate(data: st.DataObject) -> None:
    field = Field(data.draw(st.sampled_from([q for q in PRIMES if q > 20])))
    count = data.draw(st.integers(1, 6))
    alphas = data.draw(st.lists(st.integers(1, field.q - 1), min_size=count, max_size=count, unique=True))
    polynomial = data.draw(st.lists(st.integers(0, field.q - 1), min_size=count, max_size=count))
    values = [sum(c * pow(a, k, field.q) for k, c in enumerate(polynomial)) for a in alphas]
    weights = field.weights_at(alphas)
    assert sum(w * v for w, v in zip(weights, values, strict=True)) % field.q == polynomial[0]


def slow_product(a: int, b: int) -> int:
    """Multiply as polynomials over GF(2), then reduce by x^8 + x^4 + x^3 + x + 1."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0b100011011 << (bit - 8)
    return product


def test_gf256_is_the_field_of_bytes() -> None:
    gf, every = GF256(), np.arange(256)
    for a in range(256):
        assert gf.mul(every, a).tolist() == [slow_product(a, b) for b in range(256)]
    assert gf.add(every, every).tolist() == [0] * 256


def test_gf256_interpolates_at_0() -> None:
    gf = GF256()
    for alphas in ([1, 2], [3, 7, 200], [255, 1, 17, 90]):
        polynomial = [77, 3, 250, 129][: len(alphas)]
        total = 0
        for weight, alpha in zip(gf.weights_at(alphas), alphas, strict=True):
            value, power = 0, 1
            for c in polynomial:
                value, power = value ^ slow_product(c, power), slow_product(power, alpha)
            total ^= slow_product(weight, value)
        assert total == 77


@pytest.mark.parametrize("alphas", [[0, 1], [1, 1], [1, 256], [-1, 2], []])
def test_gf256_refuses_alphas_that_are_not_distinct_non_zero_bytes(alphas: list[int]) -> None:
    with pytest.raises((InvalidAlphas, OutOfRange), match="alphas"):
        GF256().check_alphas(alphas)
