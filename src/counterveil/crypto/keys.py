"""The keys of a deployment: the servers' common key, the issuer's key pair, and each server's own key pair.

The issuer signs tickets, records and terms. A server signs what it says about itself. A client who got the server's
public key from somebody other than the institution can then tell the server from a copy.

Security: the common key is for the servers alone, the issuer's private key for the institution alone, a server's
private key for its operator alone; public keys are for everyone. Files of secrets are readable by their owner only.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ..errors import InvalidKey, Unbound
from .randomness import KEY_BYTES, VERSION, delimited, key_id, new_key

SIGNATURE_BYTES = 64
KeyState = Literal["pending", "active", "retired"]
Purpose = Literal["terms", "ticket", "manifest", "record", "blind", "packages", "link"]  # what a signature is for
COMMON, PRIVATE, PUBLIC = "common.key", "issuer.key", "issuer.pub"
SERVER_PRIVATE, SERVER_PUBLIC = "server.key", "server.pub"
_PEM = serialization.Encoding.PEM


class SigningKey:
    """An Ed25519 private key, of the issuer or of one server. Each signature is for one purpose.

    Security: for its owner alone. No server needs the issuer's key, and the institution needs no server's key.
    """

    def __init__(self, private: Ed25519PrivateKey | None = None) -> None:
        self._private = private or Ed25519PrivateKey.generate()

    @classmethod
    def load(cls, path: str | Path) -> SigningKey:
        """Read a private key that `write_keys` or `write_server_keys` wrote."""
        content = _read(path)
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidKey(str(path), got="something else", expected="an Ed25519 private key in PEM")
        return cls(key)

    @classmethod
    def from_raw(cls, raw: bytes) -> SigningKey:
        """Return the key of these 32 bytes, which `raw` gave to another process of the owner."""
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def raw(self) -> bytes:
        """Return the private key, for another process of its owner on this machine and for nothing else."""
        return self._private.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 raw bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, purpose: Purpose, *parts: bytes) -> bytes:
        """Return the signature of these parts for this purpose."""
        return self._private.sign(_message(purpose, parts))


Issuer = SigningKey  # whoever may mint tickets and sign records and terms


def is_signed(public: bytes, signature: bytes, purpose: Purpose, *parts: bytes) -> bool:
    """Say whether the holder of the private key signed these parts for this purpose."""
    try:
        _public_key(public).verify(signature, _message(purpose, parts))
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(256)
def _public_key(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def _message(purpose: Purpose, parts: tuple[bytes, ...]) -> bytes:
    return delimited([VERSION, purpose, *parts])


def fingerprint(public: bytes) -> str:
    """Return a public key's fingerprint, which people can compare over the telephone.

    >>> fingerprint(bytes(32))
    '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
    """
    digits = _short(public).hex()
    return " ".join(digits[at : at + 4] for at in range(0, 32, 4))


def is_pinned(pin: bytes, public: bytes) -> bool:
    """Say whether a pin is this public key, or its fingerprint."""
    return pin in (public, _short(public))


def _short(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


def write_keys(folder: str | Path) -> list[Path]:
    """Write a new common key and a new issuer's key pair to a folder; never overwrite keys."""
    return _write(Path(folder), _common() | _pair(PRIVATE, PUBLIC))


def write_common_key(folder: str | Path) -> list[Path]:
    """Write a new common key to a folder; never overwrite one."""
    return _write(Path(folder), _common())


def _common() -> dict[str, bytes]:
    return {COMMON: new_key().hex().encode() + b"\n"}


def write_server_keys(folder: str | Path) -> list[Path]:
    """Write a new key pair for one server to a folder; never overwrite one."""
    return _write(Path(folder), _pair(SERVER_PRIVATE, SERVER_PUBLIC))


def _pair(private: str, public: str) -> dict[str, bytes]:
    made = Ed25519PrivateKey.generate()
    return {
        private: made.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        public: made.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    }


def _write(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    paths = [folder / name for name in contents]
    existing = [path.name for path in paths if path.exists()]
    if existing:
        raise InvalidKey(str(folder), got=f"{existing[0]} there already", expected="a folder without keys")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            mode = 0o644 if path.suffix == ".pub" else 0o600
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise InvalidKey(str(folder), got=error.strerror, expected="a folder that can be written") from None
    return paths


@dataclass(frozen=True)
class CommonKey:
    """A common key of the servers, and from when until when it is the one to use, in seconds since 1970.

    Security: for the servers alone. Its id tells nothing about it.
    """

    value: bytes = field(repr=False)
    begins: int = 0
    ends: int | None = None  # None: it has no end
    path: Path | None = None

    @cached_property
    def id(self) -> bytes:
        """The id that manifests and requests name."""
        return key_id(self.value)

    def state(self, now: float) -> KeyState:
        """Say whether the key waits to be used, is used, or is not to be used any more."""
        if self.ends is not None and self.ends <= now:
            return "retired"
        return "active" if self.begins <= now else "pending"

    def text(self) -> str:
        """Return the content of a key file: the key, and on further lines when it begins and ends."""
        times = [("begins", self.begins or None), ("ends", self.ends)]
        said = [f"{name} {datetime.fromtimestamp(at, UTC).isoformat()}" for name, at in times if at is not None]
        return "\n".join([self.value.hex(), *said, ""])


def read_common_key(path: str | Path) -> CommonKey:
    """Read the file of a common key, as `CommonKey.text` or `write_keys` wrote it."""
    content = _read(path)
    try:
        first, *lines = content.decode("ascii").split("\n")
        key, times = bytes.fromhex(first), dict(line.split(" ", 1) for line in lines if line.strip())
        read = {name: int(datetime.fromisoformat(text).timestamp()) for name, text in times.items()}
        made = CommonKey(key, **read, path=Path(path))
    except (ValueError, TypeError, OverflowError):
        made = None
    if made is None or len(made.value) != KEY_BYTES or not set(times) <= {"begins", "ends"}:
        expected = f"{2 * KEY_BYTES} hexadecimal digits, and when the key begins and ends"
        raise InvalidKey(str(path), got="something else", expected=expected)
    return made


def read_common(path: str | Path) -> bytes:
    """Read the servers' common key."""
    return read_common_key(path).value


def read_common_keys(path: str | Path) -> list[CommonKey]:
    """Read the common key in a file, or those in all files of a folder whose names end in .key."""
    files = sorted(Path(path).glob("*.key")) if Path(path).is_dir() else [Path(path)]
    keys = {key.id: key for key in map(read_common_key, files)}
    if len(keys) < len(files):
        raise InvalidKey(str(path), got="one key in two files", expected="each key once")
    return list(keys.values())


def bind_common(path: str | Path, server: int, instance: bytes) -> None:
    """Note beside a common key which ledger a server uses with it, and refuse another ledger.

    With another ledger a ticket could be spent twice, so that its pads would be used twice. If the note cannot be
    written, a warning tells the operator to see to it.
    """
    key, note = key_id(read_common(path)).hex(), Path(f"{path}.server-{server}")
    try:
        noted = note.read_text("ascii").split() if note.exists() else []
        if noted[:1] != [key]:
            note.write_text(f"{key} {instance.hex()}\n", "ascii")
        elif noted != [key, instance.hex()]:
            raise InvalidKey(
                str(path),
                got="a common key that was used with another ledger",
                expected="that ledger, or a new common key",
            )
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        warnings.warn(f"{note}: {reason}; a second ledger under this key would not be noticed", Unbound, stacklevel=2)


def is_bound(path: str | Path, server: int) -> bool:
    """Say whether a note beside a common key says that a server has used it with a ledger."""
    try:
        noted = Path(f"{path}.server-{server}").read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return False
    return noted[:1] == [key_id(read_common(path)).hex()]


def read_public(path: str | Path) -> bytes:
    """Read a public key."""
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidKey(str(path), got="something else", expected="an Ed25519 public key in PEM")
    return key.public_bytes_raw()


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidKey(str(path), got=error.strerror, expected="a key file") from None
