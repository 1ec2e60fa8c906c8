"""Vectors of integers mod q: over the prime field F_q for any prime q < 2^62, and over the ring Z_2^k.

A vector is an int64 array with entries in [0:q-1]. A product in the field is reduced by a float64 estimate of the
quotient and an exact int64 remainder, which may wrap on the way. So no entry ever needs more than 64 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidAlphas, InvalidField
from . import checks
from .arrays import Vector

LIMIT = 2**62  # q is below it, so that the sum of two elements fits an int64
_LIMB = 31  # bits of a factor that are multiplied at a time


class Arithmetic(Protocol):
    """What sharing needs of a field: F_q here, GF(2^8) in `gf256`."""

    @property
    def q(self) -> int: ...
    def add(self, a: Vector, b: Vector) -> Vector: ...
    def mul(self, a: Vector, b: ArrayLike) -> Vector: ...
    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]: ...
    def weights_at(self, alphas: Sequence[int], point: int = 0) -> list[int]: ...


@lru_cache(maxsize=1024)
def smallest_prime_above(bound: int) -> int:
    """Return the smallest prime q > bound, or refuse when it would not be below 2^62.

    >>> smallest_prime_above(800)
    809
    """
    from sympy import nextprime  # imported late: sympy takes half a second to load

    q = int(nextprime(bound)) if bound < LIMIT else LIMIT
    if q >= LIMIT:
        raise InvalidField("field", got=f"values up to {bound}", expected="values whose prime lies below 2^62")
    return q


@lru_cache(maxsize=1024)
def _is_prime(q: int) -> bool:
    from sympy import isprime

    return bool(isprime(q))


def check_points(alphas: Sequence[int], q: int) -> tuple[int, ...]:
    """Refuse evaluation points that coincide or vanish mod q; return them as integers.

    Paper: "distinct" only; rule 1 of the protocol adds non-zero.
    """
    points = tuple(checks.integer("alphas", a, 0) for a in alphas)
    residues = [a % q for a in points]
    if 0 in residues or len(set(residues)) != len(residues) or not points:
        raise InvalidAlphas("alphas", got=list(points), expected=f"distinct and non-zero mod {q}")
    return points


@dataclass(frozen=True)
class Residues(ABC):
    """Integers mod q."""

    q: int

    kind: ClassVar[str]  # what q must be

    @property
    def bits(self) -> int:
        """Bits that one symbol takes on the wire: ⌈log2 q⌉."""
        return (self.q - 1).bit_length()

    def packed(self, count: int) -> int:
        """Return how many bytes `count` symbols take on the wire."""
        return -(-self.bits * count // 8)

    def vector(self, values: Iterable[int]) -> Vector:
        """Reduce integers of any size or sign into a vector."""
        return np.array([int(v) % self.q for v in values], dtype=np.int64)

    def check(self, what: str, values: object, length: int) -> Vector:
        """Accept a vector from somebody else if it is exactly `length` integers in [0:q-1]; refuse it otherwise."""
        array = checks.integers(what, values, (length,))
        checks.in_range(what, array, 0, self.q - 1)
        return array.astype(np.int64, copy=False)

    @abstractmethod
    def add(self, a: Vector, b: Vector | int) -> Vector:
        """Return a + b."""

    @abstractmethod
    def sub(self, a: Vector, b: Vector | int) -> Vector:
        """Return a - b."""

    @abstractmethod
    def mul(self, a: Vector, b: ArrayLike) -> Vector:
        """Return a * b, where b is a vector or one element."""

    def sum(self, a: Vector) -> int:
        """Return the sum of the entries."""
        return int(a.astype(object).sum()) % self.q if a.size else 0

    def signed(self, a: Vector) -> Vector:
        """Read entries above q/2 as negative."""
        return np.where(a > self.q // 2, a - self.q, a)

    @abstractmethod
    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]:
        """Refuse evaluation points that cannot be used; return them as integers."""


@dataclass(frozen=True)
class Ring(Residues):
    """The ring Z_2^k, in which shares add up to the secret; nothing is interpolated, and alphas only name servers.

    >>> Ring.of_bits(3).add(np.array([5, 6]), 4)
    array([1, 2])
    """

    kind = "power of two"

    def __post_init__(self) -> None:
        if not 2 <= self.q <= LIMIT or self.q & (self.q - 1):
            raise InvalidField("q", got=self.q, expected="a power of two, up to 2^62")

    @classmethod
    def of_bits(cls, k: int) -> Ring:
        """Return Z_2^k."""
        return cls(1 << checks.integer("k", k, 1))

    def add(self, a: Vector, b: Vector | int) -> Vector:
        """Return a + b."""
        return (a + b) & (self.q - 1)

    def sub(self, a: Vector, b: Vector | int) -> Vector:
        """Return a - b."""
        return (a - b) & (self.q - 1)

    def mul(self, a: Vector, b: ArrayLike) -> Vector:
        """Return a * b. Products may wrap at 2^64: 2^k divides 2^64, so the result mod 2^k is right."""
        return (a * np.asarray(b, dtype=np.int64)) & (self.q - 1)

    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]:
        """Refuse alphas that coincide."""
        points = tuple(checks.integer("alphas", a, 1) for a in alphas)
        if len(set(points)) != len(points) or not points:
            raise InvalidAlphas("alphas", got=list(points), expected="each once")
        return points


@dataclass(frozen=True)
class Field(Residues):
    """The field F_q. Construction checks that q is prime and below 2^62.

    >>> F = Field(7)
    >>> F.mul(F.vector([3, 5]), 4)
    array([5, 6])
    """

    kind = "prime"

    def __post_init__(self) -> None:
        object.__setattr__(self, "q", checks.integer("q", self.q, 2))
        if self.q >= LIMIT or not _is_prime(self.q):
            raise InvalidField("q", got=self.q, expected="a prime below 2^62")

    def add(self, a: Vector, b: Vector | int) -> Vector:
        """Return a + b."""
        return self._settle(a + b - self.q)

    def sub(self, a: Vector, b: Vector | int) -> Vector:
        """Return a - b."""
        return self._settle(a - b)

    def mul(self, a: Vector, b: ArrayLike) -> Vector:
        """Return a * b, where b is a vector or one element; if q is large, by 31 bits of b at a time."""
        factor = np.asarray(b, dtype=np.int64)
        if self.q <= 1 << _LIMB:
            return a * factor % self.q
        low, high = self._times(a, factor & ((1 << _LIMB) - 1)), self._times(a, factor >> _LIMB)
        return self.add(self._times(high, np.int64(1 << _LIMB)), low)

    def _times(self, a: Vector, m: NDArray[np.int64] | np.int64) -> Vector:
        """Return a * m for 0 <= m <= 2^31.

        The quotient is below 2^31, so its float64 estimate is wrong by at most one. The remainder of that estimate lies
        in [-q, 2q), which an int64 holds although the products themselves wrap.
        """
        quotient = np.floor(a * (m / float(self.q))).astype(np.int64)
        return self._settle(self._settle(a * m - quotient * self.q) - self.q)

    def _settle(self, a: Vector) -> Vector:
        """Add q to negative entries, in place: [-q, q) becomes [0, q), and [q, 2q) stays."""
        a += (a >> 63) & self.q
        return a

    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]:
        """Refuse alphas that coincide or vanish mod q."""
        return check_points(alphas, self.q)

    def weights_at(self, alphas: Sequence[int], point: int = 0) -> list[int]:
        """Return the Lagrange weights of the value at a point x: prod_{m != n} (alpha_m - x) / (alpha_m - alpha_n).

        Paper: at 0, the first row of the inverse of the Vandermonde matrix M_n.
        """
        q, weights = self.q, []
        for n, a in enumerate(alphas):
            others = [b for m, b in enumerate(alphas) if m != n]
            top, bottom = 1, 1
            for b in others:
                top, bottom = top * (b - point) % q, bottom * (b - a) % q
            weights.append(top * pow(bottom, -1, q) % q)
        return weights
