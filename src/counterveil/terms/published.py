"""Terms: what an institution offers in public. All servers must show the same terms before an applicant asks.

`make_terms` makes the terms of a database. `sign_terms` adds the servers' addresses and the issuer's signature.
`deployment_of` turns terms back into the deployment that a question is computed from.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from ..algebra import checks
from ..crypto.keys import Issuer, is_signed
from ..errors import (
    CounterveilWarning,
    Disagreement,
    InvalidBundle,
    InvalidInput,
    InvalidTerms,
    NoMask,
    NotOffered,
    OutOfRange,
)
from ..schema.languages import Text
from ..schema.schema import Schema
from ..schemes.protocols import Size
from . import wire
from .addresses import canonical
from .deployment import Deployment, Holdings
from .parameters import WINDOW
from .wire import SignedTerms, Terms

_PURPOSE: Final = "terms"
_LONGEST = 1 << 30  # bytes; an answer must be shorter


def make_terms(
    database: Holdings,
    deployment: Deployment,
    *,
    keys: Sequence[bytes],
    service: str,
    is_open: bool = False,
    window: int = WINDOW,
    robust: int = 0,
    dealer: bytes | None = None,
    begins: int | None = None,
    ends: int | None = None,
) -> Terms:
    """Return the terms of a database. `keys` are the servers' own public keys, in order of their numbers.

    `dealer` is the public key of the server that deals one-time randomness, if the deployment has one. Of several terms
    that all servers have, applicants take those that begin last; from `ends` on, servers no longer show them.
    """
    if ends is not None and ends <= (begins or 0):
        raise OutOfRange("ends", got=ends, expected="a time after the terms begin")
    if not database.signer:
        raise InvalidBundle("bundle", got="records without signatures", expected="a bundle built with --key")
    deployment.check_serves(database)
    if robust:
        everyone = range(1, deployment.scheme.servers + 1)
        deployment.scheme.among(everyone, checks.integer("robust", robust, 0))  # raises for a mask or too few servers
    scheme = deployment.scheme
    if (dealer is not None) != _has_dealer(deployment):
        expected = "the key of the server that deals" if dealer is None else "none: no server deals in this deployment"
        raise InvalidTerms("dealer", got="no key" if dealer is None else "a key", expected=expected)
    if robust and dealer is not None:
        raise NotOffered("robust", got=f"{robust}, and a server that deals", expected="0, or the applicant as dealer")
    _check_length(deployment, database.rows)
    if len(keys) != scheme.servers:
        raise InvalidTerms("servers", got=f"keys of {len(keys)}", expected=f"a key for each of {scheme.servers}")
    terms = Terms(
        version="counterveil/2",
        service=service,
        schema=deployment.schema.to_builtins(),
        parameters=deployment.parameters(),
        q=str(scheme.field.q),
        alphas=scheme.alphas,
        rows=database.rows,
        record=deployment.record,
        database=database.digest,
        packages=database.packed,
        issuer=database.signer.hex(),
        keys=tuple(key.hex() for key in keys),
        tickets="open" if is_open else "signed",
        window=window if is_open else 0,
        robust=robust,
        dealer=msgspec.UNSET if dealer is None else dealer.hex(),
        begins=msgspec.UNSET if begins is None else begins,
        ends=msgspec.UNSET if ends is None else ends,
    )
    return wire.check_terms(terms)


def sign_terms(terms: Terms, addresses: Sequence[str], issuer: Issuer, names: Sequence[Text] = ()) -> SignedTerms:
    """Return the terms and the servers' addresses, in order of their numbers, with the issuer's signature of both.

    `names` say who runs the servers, in the same order; without them the servers are known by their addresses.
    """
    if issuer.public.hex() != terms.issuer:
        raise InvalidTerms("key", got="another issuer's", expected="the key that signed the bundle")
    if terms.dealer and terms.tickets == "open":
        expected = "signed tickets: a short question makes servers send a lot"
        raise NotOffered("tickets", got="open, and a server that deals", expected=expected)
    called = tuple(names) if names else msgspec.UNSET
    bare = SignedTerms(terms.text(), tuple(map(canonical, addresses)), "0" * 128, called)
    signature = issuer.sign(_PURPOSE, *bare.signed()).hex()
    return check_terms(wire.decode_terms(wire.encode_terms(msgspec.structs.replace(bare, signature=signature))))


def check_terms(signed: SignedTerms) -> SignedTerms:
    """Refuse terms that the issuer they name did not sign."""
    if not is_signed(bytes.fromhex(signed.terms.issuer), bytes.fromhex(signed.signature), _PURPOSE, *signed.signed()):
        raise InvalidTerms("terms", got="no signature, or a wrong one", expected="that of the issuer whom they name")
    return signed


def read_terms(path: str | Path) -> SignedTerms:
    """Read a terms file and check its signature."""
    try:
        return check_terms(wire.decode_terms(Path(path).read_bytes()))
    except OSError as error:
        raise InvalidTerms(str(path), got=error.strerror, expected="a terms file") from None
    except InvalidInput as error:
        raise InvalidTerms.inside(str(path), error) from None


def write_terms(path: str | Path, signed: SignedTerms) -> None:
    """Write a terms file atomically, so that a reader sees either the old file or the new one."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(wire.encode_terms(signed))
        os.chmod(temporary, 0o644)  # everybody may read public terms
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidTerms(str(path), got=error.strerror, expected="a place that can be written") from None


def deployment_of(terms: Terms) -> Deployment:
    """Return the deployment that terms describe; refuse another q or another number of alphas than it needs."""
    try:
        schema = Schema.from_builtins(terms.schema, "schema of the manifest")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoMask)
            made = Deployment.of(schema, record=terms.record, **terms.parameters.chosen())
        scheme = replace(made.scheme, alphas=tuple(terms.alphas), field=replace(made.scheme.field, q=int(terms.q)))
    except (InvalidInput, CounterveilWarning) as error:
        raise Disagreement(f"the servers' terms are refused: {error}") from None
    if scheme.field != made.scheme.field:
        right = f"{made.scheme.field.q}, the smallest {made.scheme.field.kind} that does"
        raise Disagreement(f"q: got {scheme.field.q}, expected {right}; nothing was asked")
    if len(scheme.alphas) != made.scheme.servers:
        raise Disagreement(f"alphas: got {len(scheme.alphas)}, expected one for each of {made.scheme.servers} servers")
    if isinstance(terms.dealer, str) != _has_dealer(made):
        raise Disagreement("dealer: got a key and no dealing server, or the reverse, expected both or none")
    made = replace(made, scheme=scheme)
    try:
        _check_length(made, terms.rows)
    except NotOffered as error:
        raise Disagreement(f"the servers' terms are refused: {error}") from None
    return made


def _has_dealer(deployment: Deployment) -> bool:
    return deployment.scheme.protocol.dealt_by == "dealer"


def _check_length(deployment: Deployment, rows: int) -> None:
    """Refuse answers of 1 GiB or more: an applicant could not keep them in memory."""
    asked = deployment.scheme.requests(Size(rows, deployment.record_bytes, deployment.k))
    longest = max(request.answered.packed(max(request.down)) for request in asked)
    if longest >= _LONGEST:
        raise NotOffered("scheme", got=f"answers of {longest / 2**30:.1f} GiB", expected="less than 1 GiB")
