"""Split a secret vector among servers so that any T of them learn nothing; interpolate answers at 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..algebra.arrays import Vector
from ..algebra.field import Arithmetic, Residues
from ..errors import TooFewServers, TooManyLiars, WrongShape
from .randomness import Randomness


def split(field: Arithmetic, secret: Vector, alphas: Sequence[int], collusion: int, randomness: Randomness) -> Vector:
    """Return one share per server: Q_n = s + alpha_n Z_1 + … + alpha_n^T Z_T, as rows of an (N, len(s)) array.

    Security: one row may be seen by one server; any T rows together are uniform whatever the secret.
    Paper: `queries_no_weight`, `queries_weighted` are T = 1.
    """
    alphas = field.check_alphas(alphas)
    if not 1 <= collusion < len(alphas):
        raise TooFewServers("servers", got=len(alphas), expected=f"more than collusion = {collusion} >= 1")
    pads = randomness.elements(field.q, collusion * secret.size).reshape(collusion, secret.size)
    return np.stack([field.add(secret, zero_share(field, alpha, pads)) for alpha in alphas])


def split_sum(ring: Residues, secret: Vector, randomness: Randomness) -> Vector:
    """Return two shares that add up to the secret, as rows of a (2, len(s)) array.

    Security: one row may be seen by one server; each alone is uniform whatever the secret.
    """
    noise = randomness.elements(ring.q, secret.size)
    return np.stack([noise, ring.sub(secret, noise)])


def zero_share(field: Arithmetic, alpha: int, coefficients: Vector | Sequence[Vector]) -> Vector:
    """Return sum_t alpha^t * coefficients[t-1], t = 1..T, by Horner's rule: a polynomial in alpha that is 0 at 0."""
    total = field.mul(coefficients[-1], alpha % field.q)
    for coefficient in coefficients[-2::-1]:
        total = field.mul(field.add(total, coefficient), alpha % field.q)
    return total


def reconstruct(field: Arithmetic, alphas: Sequence[int], shares: Sequence[Vector], degree: int) -> Vector:
    """Return the value at 0 of the polynomials of at most `degree` that pass through the shares, one row per server.

    The shares of the first degree + 1 servers are used; any degree + 1 would do.
    """
    alphas, shares = _paired(field, alphas, shares, degree)
    return _value_at(field, 0, alphas[: degree + 1], shares)


def honest(
    field: Arithmetic, alphas: Sequence[int], shares: Sequence[Vector], degree: int, wrong: int
) -> tuple[int, ...]:
    """Return the places of servers whose shares lie on polynomials of at most `degree`; leave out at most `wrong`.

    This is Reed-Solomon decoding over servers: N >= degree + 1 + 2 * wrong makes the result unique. A server that lies
    about one row is left out for all rows. As few servers are left out as possible.
    """
    alphas, shares = _paired(field, alphas, shares, degree + 2 * wrong)
    servers = range(len(alphas))
    for count in range(wrong + 1):
        for left_out in combinations(servers, count):
            kept = tuple(n for n in servers if n not in left_out)
            if _consistent(field, [alphas[n] for n in kept], [shares[n] for n in kept], degree):
                return kept
    raise TooManyLiars("answers", got=f"more than {wrong} that contradict the others", expected=f"at most {wrong}")


def _consistent(field: Arithmetic, alphas: Sequence[int], shares: Sequence[Vector], degree: int) -> bool:
    basis = alphas[: degree + 1]
    further = zip(alphas[degree + 1 :], shares[degree + 1 :], strict=True)
    return all(np.array_equal(share, _value_at(field, alpha, basis, shares)) for alpha, share in further)


def _value_at(field: Arithmetic, point: int, alphas: Sequence[int], shares: Sequence[Vector]) -> Vector:
    """Return the value at a point of the polynomials through the shares at these alphas."""
    total = np.zeros_like(shares[0])
    for weight, share in zip(field.weights_at(alphas, point), shares, strict=False):
        total = field.add(total, field.mul(share, weight))
    return total


def _paired(
    field: Arithmetic, alphas: Sequence[int], shares: Sequence[Vector], degree: int
) -> tuple[tuple[int, ...], Sequence[Vector]]:
    alphas = field.check_alphas(alphas)
    if len(shares) != len(alphas):
        raise WrongShape("shares", got=len(shares), expected=f"one for each of {len(alphas)} alphas")
    if len(alphas) <= degree:
        raise TooFewServers("servers", got=len(alphas), expected=f"at least {degree + 1}")
    return alphas, shares
