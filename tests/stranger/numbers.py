"""Notation of docs/wire.md: frames, signatures, packed vectors, primes, interpolation, GF(2^8), key streams."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def frame(*parts: bytes | str) -> bytes:
    """Return each part behind its length."""
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in raw)


def verifies(public: str, signature: bytes, purpose: str, *parts: bytes | str) -> bool:
    """Say whether a signature is right."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(signature, frame("counterveil/2", purpose, *parts))
    except InvalidSignature:
        return False
    return True


def bits_of(q: int) -> int:
    """Return ⌈log2 q⌉."""
    return (q - 1).bit_length()


def pack(q: int, values: Sequence[int]) -> bytes:
    """Return a vector as bytes."""
    bits, whole = bits_of(q), 0
    for place, value in enumerate(values):
        whole |= value << bits * place
    return whole.to_bytes(-(-bits * len(values) // 8), "little")


def unpack(q: int, data: bytes, count: int) -> list[int]:
    """Read a vector, or refuse it."""
    bits, whole = bits_of(q), int.from_bytes(data, "little")
    if len(data) != -(-bits * count // 8) or whole >> bits * count:
        raise ValueError("a vector of another length, or bits after the last symbol")
    values = [whole >> bits * place & ((1 << bits) - 1) for place in range(count)]
    if any(value >= q for value in values):
        raise ValueError("a symbol of q or more")
    return values


def is_prime(n: int) -> bool:
    """Say whether n is prime: Miller and Rabin's test, with bases that decide all n below 2^64."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, n)
        if x not in (1, n - 1) and not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def prime_above(bound: int) -> int:
    """Return the smallest prime above a bound."""
    n = bound + 1
    while not is_prime(n):
        n += 1
    return n


def value_at(point: int, q: int, alphas: Sequence[int], shares: Sequence[Sequence[int]]) -> list[int]:
    """Return the values at a point of the polynomials mod q through the shares."""
    weights = []
    for n, alpha in enumerate(alphas):
        weight = 1
        for other in (*alphas[:n], *alphas[n + 1 :]):
            weight = weight * (point - other) * pow(alpha - other, -1, q) % q
        weights.append(weight)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) % q for column in zip(*shares, strict=True)]


def times(a: int, b: int) -> int:
    """Multiply in GF(2^8), with the polynomial x^8 + x^4 + x^3 + x + 1."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def inverse(a: int) -> int:
    """Return 1/a in GF(2^8)."""
    return next(b for b in range(1, 256) if times(a, b) == 1)


def package_at_0(points: Sequence[int], answers: Sequence[bytes]) -> bytes:
    """Interpolate answers at 0 over GF(2^8)."""
    total = bytes(len(answers[0]))
    for n, point in enumerate(points):
        weight = 1
        for other in (*points[:n], *points[n + 1 :]):
            weight = times(weight, times(other, inverse(point ^ other)))
        row = [times(weight, value) for value in range(256)]
        total = bytes(t ^ row[value] for t, value in zip(total, answers[n], strict=True))
    return total


def xor(a: bytes, b: bytes) -> bytes:
    """Return a xor b, as long as the shorter."""
    size = min(len(a), len(b))
    return (int.from_bytes(a[:size], "little") ^ int.from_bytes(b[:size], "little")).to_bytes(size, "little")


def stream(key: bytes, size: int) -> bytes:
    """Return the beginning of the AES-256-CTR key stream of a key."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))
