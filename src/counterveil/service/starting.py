"""What a server reads when it starts: its epochs and its common keys. What is added later counts at the next start.

A file, or a folder of them. In a folder, what cannot be served is left out with a warning: half of an epoch that is on
its way, a common key that the ledger refuses. So one bad file does not stop a server that has good ones.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..crypto.keys import CommonKey, SigningKey, bind_common, is_bound, read_common_keys
from ..errors import (
    CounterveilError,
    InvalidBundle,
    InvalidInput,
    InvalidKey,
    InvalidLedger,
    InvalidTerms,
    NotServed,
    ServerFault,
)
from ..institution.database import Database
from ..terms.deployment import Deployment
from ..terms.published import read_terms
from ..terms.wire import SignedTerms
from .epochs import HERE, Epoch, Hosting, check_holdings, ends_of, has_ended, make_epoch
from .family import Keep, made
from .ledger import GRACE, AnyLedger

BUNDLE, TERMS = ".bundle", ".terms"  # how the names of an epoch's two files end


class Holding(NamedTuple):
    """A database and its terms, which were checked."""

    database: Database
    issued: SignedTerms
    deployment: Deployment

    def epoch(self, *, threads: int, worthwhile: int, keep: Keep = made, hosting: Hosting = HERE) -> Epoch:
        """Lay the rows out for scans; `keep` and `hosting` say where."""
        ways: dict[str, Any] = {"threads": threads, "worthwhile": worthwhile, "keep": keep, "hosting": hosting}
        return make_epoch(self.database, self.issued, self.deployment, **ways)


def read_holding(bundle: Path, terms: Path, number: int, own: SigningKey, *, whole: bool = True) -> Holding:
    """Read a bundle and its terms; refuse what does not belong together, or to this server.

    If not `whole`, only the manifest of the bundle is read: shards check the parts that they open.
    """
    issued, database = read_terms(terms), Database.open(bundle, whole=False)
    deployment = check_holdings(number, database, issued, own)
    if whole:
        database.check(threads=os.cpu_count() or 1)  # part by part, after what is quick to check
    return Holding(database, issued, deployment)


def read_holdings(folder: Path, number: int, own: SigningKey, now: float, *, whole: bool = True) -> list[Holding]:
    """Read every epoch of a folder, NAME.bundle and NAME.terms, except those that have ended."""
    found, refused = [], "no terms that are not over"
    for path in sorted(folder.glob(f"*{TERMS}")):
        try:
            bundle = path.with_suffix(BUNDLE)
            if has_ended(ends_of(read_terms(path)), now, GRACE):
                continue
            if not bundle.is_file():
                raise InvalidBundle(str(bundle), got="no file", expected=f"the bundle of {path.name}")
            found.append(read_holding(bundle, path, number, own, whole=whole))
        except InvalidInput as error:
            refused = str(error)
            warnings.warn(f"{path.name} is not served: {error}", NotServed, stacklevel=2)
    if not found:
        raise InvalidTerms(str(folder), got=refused, expected=f"NAME{TERMS} and NAME{BUNDLE} of an epoch")
    return found


def lay_out_all(held: Sequence[Holding], **ways: Any) -> list[tuple[Holding, Epoch]]:
    """Lay out the rows of every holding, as `Holding.epoch` does.

    What shards cannot open is left out. If nothing is left, refuse to start.
    """
    laid, refused = [], list[CounterveilError]()
    for holding in held:
        try:
            laid.append((holding, holding.epoch(**ways)))
        except (InvalidBundle, ServerFault) as error:
            refused.append(error)
    if not laid:
        raise refused[0]
    for why in refused:
        warnings.warn(f"an epoch is not served: {why}", NotServed, stacklevel=2)
    return laid


def read_keys(path: Path, now: float) -> list[CommonKey]:
    """Read the common key in a file, or all in a folder, except those that have ended."""
    keys = [key for key in read_common_keys(path) if not has_ended(key.ends, now, GRACE)]
    if not keys:
        raise InvalidKey(str(path), got="no common key that is not over", expected="one: see counterveil rotate")
    return keys


def are_bound(keys: Sequence[CommonKey], number: int) -> bool:
    """Say whether a server has used all of these keys before."""
    return all(key.path is not None and is_bound(key.path, number) for key in keys)


def admit_keys(keys: Sequence[CommonKey], number: int, book: AnyLedger) -> list[CommonKey]:
    """Take up the keys that this ledger may be used with. Others are left out; if none is left, refuse to start."""
    admitted, refused = [], list[tuple[Path, InvalidInput]]()
    for key in keys:
        path = key.path or Path()
        try:
            book.admit(key.id, bound=is_bound(path, number))
            bind_common(path, number, book.instance)
            admitted.append(key)
        except (InvalidLedger, InvalidKey) as error:
            refused.append((path, error))
    if not admitted:
        raise refused[0][1]
    for path, why in refused:
        warnings.warn(f"a common key is not served, {path.name}: {why}", NotServed, stacklevel=2)
    return admitted
