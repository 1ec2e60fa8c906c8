"""Vectors of integers mod q: over the prime field F_q for any prime q < 2^62, and over the ring Z_2^k.

A vector is an int64 array with entries in [0:q-1]. Products in the field go through float64 estimates of the quotient
and exact wrapping int64 remainders, so no entry ever needs more than 64 bits.
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

LIMIT = 2**62
_LIMB = 31


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
        """Return how many bytes so many symbols take on the wire."""
        return -(-self.bits * count // 8)

    def vector(self, values: Iterable[int]) -> Vector:
        """Reduce integers of any size or sign into a vector."""
        return np.array([int(v) % self.q for v in values], dtype=np.int64)

    def check(self, what: str, values: object, length: int) -> Vector:
        """Accept a vector from someone else, or refuse it: integers in [0:q-1], exactly `length` of them."""
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
        """Return a * b, b a vector or one element."""

    def sum(self, a: Vector) -> int:
        """Return the sum of the entries."""
        return int(a.astype(object).sum()) % self.q if a.size else 0

    def signed(self, a: Vector) -> Vector:
        """Read entries above q/2 as negative."""
        return np.where(a > self.q // 2, a - self.q, a)

    @abstractmethod
    def check_alphas(self, alphas: Sequence[int]) -> tuple[int, ...]:
        """Refuse evaluation points that will not do."""


@dataclass(frozen=True)
class Ring(Residues):
    """The ring Z_2^k, in which shares are added and not interpolated; alphas only tell servers apart.

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
        """Return a * b; products wrap at 2^64, which 2^k divides."""
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
        """Return a * b, b a vector or one element; 31 bits of b at a time."""
        factor = np.asarray(b, dtype=np.int64)
        if self.q <= 1 << _LIMB:
            return a * factor % self.q
        low, high = self._times(a, factor & ((1 << _LIMB) - 1)), self._times(a, factor >> _LIMB)
        return self.add(self._times(high, np.int64(1 << _LIMB)), low)

    def _times(self, a: Vector, m: NDArray[np.int64] | np.int64) -> Vector:
        """Return a * m for 0 <= m <= 2^31.

        The quotient is below 2^31, so its float64 estimate is off by at most one; the remainder of that estimate lies
        in [-q, 2q), which int64 holds although the products themselves wrap.
        """
        quotient = np.floor(a * (m / float(self.q))).astype(np.int64)
        return self._settle(self._settle(a * m - quotient * self.q) - self.q)

    def _settle(self, a: Vector) -> Vector:
        """Bring entries from [-q, q) into [0, q), in place; those from [q, 2q) stay."""
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
