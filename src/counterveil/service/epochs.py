"""Epochs: the rows and records of one database, laid out for scans, with the terms they are served under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from .. import engine
from ..algebra import checks
from ..crypto.keys import SigningKey
from ..engine import Records, Rows, shards
from ..errors import InvalidBundle, InvalidKey, InvalidTerms
from ..institution.database import Database
from ..schemes.protocols import Size
from ..terms.deployment import Deployment
from ..terms.published import check_terms, deployment_of
from ..terms.wire import SignedTerms
from .family import Keep, made
from .parts import Ways, parts_of


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

    @cached_property
    def ends(self) -> int | None:
        """When the terms end; None if they have no end."""
        return ends_of(self.issued)


def ends_of(issued: SignedTerms) -> int | None:
    """Return when terms end; None if they have no end."""
    return issued.terms.ends if isinstance(issued.terms.ends, int) else None


def has_ended(ends: int | None, now: float, grace: int = 0) -> bool:
    """Say whether something with this end has ended."""
    return ends is not None and ends + grace <= now


class Hosting(NamedTuple):
    """Where rows are held, and what scans them: this process, or shards of a Ray cluster (`engine.shards`)."""

    engine: str = "cpu"  # a name in `engine.ENGINES`
    shards: int = 0  # 0: this process
    replicas: int = 1  # processes that hold each shard
    address: str | None = None  # the cluster's address; without it, a cluster is started on this machine
    place: str = ""  # where shards find the bundle, if it is not the file that this process reads
    owner: bytes = b""  # the server's own public key: no two servers share shards, which see what they are asked


HERE = Hosting()


def make_epoch(
    database: Database,
    issued: SignedTerms,
    deployment: Deployment,
    *,
    threads: int = 1,
    worthwhile: int = engine.WORTHWHILE,
    keep: Keep = made,
    hosting: Hosting = HERE,
) -> Epoch:
    """Check what nobody has checked yet of a database, and lay its rows out for scans.

    Codes of fewer bytes than `worthwhile` stay as they are. `keep` says where arrays are kept that are not mapped from
    the bundle's file, as the records are.
    """
    if hosting.shards:
        return _sharded(database, issued, deployment, threads, worthwhile, hosting)
    database.check(threads=threads)
    scanner = engine.named(hosting.engine)
    name, codes = issued.digest.hex(), deployment.rows(database.codes)
    if not np.may_share_memory(codes, database.codes):
        codes = keep(f"{name}/codes", lambda: codes)
    rows = scanner.lay_out(codes, threads=threads, worthwhile=worthwhile, keep=partial(keep, f"{name}/blocks"))
    return Epoch(issued, deployment, rows, scanner.hold(database.served))


def _sharded(
    database: Database, issued: SignedTerms, deployment: Deployment, threads: int, worthwhile: int, hosting: Hosting
) -> Epoch:
    """Let shards open the database, and check it. Heads with the same terms and settings share them."""
    shards.connect(hosting.address)
    ways = Ways(hosting.engine, threads, worthwhile)
    cuts, sources = parts_of(database, issued, deployment, ways, count=hosting.shards, place=hosting.place)
    name = hashlib.sha256(repr((hosting.owner, issued.digest, sources)).encode()).hexdigest()[:32]
    cards = int(hosting.engine == "cuda")
    held = shards.Shards(name, sources, cuts, replicas=hosting.replicas, gpus=cards)
    return Epoch(issued, deployment, shards.ShardedRows(held), shards.ShardedRecords(held, database.served.shape[1]))


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
