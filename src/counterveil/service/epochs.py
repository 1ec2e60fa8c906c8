"""Epochs: the rows and records of one database, laid out for scans, with the terms they are served under."""

from __future__ import annotations

from dataclasses import dataclass

from .. import engine
from ..algebra import checks
from ..crypto.keys import SigningKey
from ..engine import Records, Rows
from ..errors import InvalidBundle, InvalidKey, InvalidTerms
from ..institution.database import Database
from ..schemes.protocols import Size
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of
from ..terms.wire import SignedTerms


@dataclass(frozen=True, eq=False)
class Epoch:
    """Rows and records, with the terms they are served under. A request names its epoch by the digest of the terms.

    Security: secret to the institution and its servers.
    """

    issued: SignedTerms
    deployment: Deployment
    rows: Rows
    records: Records

    @property
    def size(self) -> Size:
        """The public sizes of a question."""
        return Size(len(self.rows), self.records.length, self.deployment.k)


def make_epoch(
    database: Database,
    issued: SignedTerms,
    deployment: Deployment,
    *,
    threads: int = 1,
    worthwhile: int = engine.WORTHWHILE,
) -> Epoch:
    """Lay a database's rows out for scans. Codes of fewer bytes than `worthwhile` stay as they are."""
    rows = engine.lay_out(deployment.rows(database.codes), threads=threads, worthwhile=worthwhile)
    return Epoch(issued, deployment, rows, engine.hold(database.served))


def check_holdings(number: int, database: Database, issued: SignedTerms, own: SigningKey) -> Deployment:
    """Refuse terms that were made for another bundle or another server's key; return the deployment to serve."""
    terms = check_terms(issued).terms
    deployment = deployment_of(terms)
    checks.integer("server", number, 1, deployment.scheme.servers)
    if database.digest != terms.database or database.signer.hex() != terms.issuer:
        raise InvalidTerms("terms", got="another bundle's", expected=f"those of {database.digest}")
    if database.packed != terms.packages:
        raise InvalidBundle("bundle", got="other packages than the terms name", expected="the file they were made for")
    if own.public.hex() != terms.keys[number - 1]:
        raise InvalidKey("server's key", got="another one", expected=f"that of server {number} in the terms")
    deployment.check_serves(database)
    return deployment
