"""What a server serves at a time: the rows and records of one database, laid out, under one set of terms."""

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
    """Rows and records, and the terms they are served under. Requests name it by the digest of the terms.

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
    least: int = engine.WORTHWHILE,
) -> Epoch:
    """Lay a database's rows out for scans; `least` is how many bytes of codes make that worthwhile."""
    rows = engine.lay_out(deployment.rows(database.codes), threads=threads, least=least)
    return Epoch(issued, deployment, rows, engine.hold(database.served))


def check_holdings(number: int, database: Database, issued: SignedTerms, own: SigningKey) -> Deployment:
    """Refuse terms that are not those of this bundle and this server's key; return what is to be served."""
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
