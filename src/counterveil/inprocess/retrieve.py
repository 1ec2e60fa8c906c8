"""Play all parties in one call: the applicant and every server, with the record step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..algebra import checks
from ..algebra.arrays import Bytes, Codes, Vector
from ..algebra.field import Residues
from ..crypto.packages import package_all, unpackage
from ..crypto.randomness import Streams, new_key
from ..errors import WrongShape, WrongType
from ..schemes.fetch import as_records
from ..schemes.forms import Question
from ..schemes.playing import Transcript, run
from ..schemes.scheme import Scheme, as_bytes, make_scheme


class View(NamedTuple):
    """Everything that one server sees of a question."""

    query: Vector
    record_query: Bytes


class Sent(NamedTuple):
    """How many symbols were sent to and from all servers together, without the record step.

    Symbols are elements mod q, except that answers of sealed reveals are bytes.
    """

    up: int
    down: int


@dataclass(frozen=True, repr=False)
class Retrieval:
    """The result of a question, and what each party saw.

    The applicant sees `position`, `revealed` and `record`. `index` is the row's number in `rows`; it equals `position`
    unless the scheme shuffles. If the protocol tells no position, `position` is -1, and `index` is found by comparing
    the package with all packages, which this process has. If no row keeps the immutable features, `index` and
    `position` are -1 and `record` is empty. Server n saw `views[n - 1]` and nothing else.
    """

    index: int
    position: int
    revealed: Vector
    record: bytes
    views: tuple[View, ...]
    symbols: Sent
    scheme: Scheme

    @property
    def field(self) -> Residues:
        """The field or ring in which the question was computed."""
        return self.scheme.field

    def __repr__(self) -> str:
        q, servers = self.field.q, self.scheme.servers
        approximate = "" if self.scheme.exact else ", approximate"
        return f"Retrieval(index={self.index}, servers={servers}, q={q}, symbols={tuple(self.symbols)}{approximate})"


def retrieve(
    rows: ArrayLike,
    x: ArrayLike | None = None,
    *,
    largest: int | Sequence[int] | None = None,
    scheme: str | Scheme = "baseline",
    weights: ArrayLike | None = None,
    costs: Sequence[ArrayLike] | None = None,
    immutable: ArrayLike | None = None,
    records: Sequence[bytes] | Bytes | None = None,
    **parameters: Any,
) -> Retrieval:
    """Find the row nearest to x without any server learning x, and fetch its record; all parties are in this process.

    Parameters
    ----------
    rows : (M, d) integers, the accepted rows, codes in [0:R].
    x : d integers, the applicant's own codes.
    largest : R, the largest code: one for all features, or one for each. Public; not needed with a `Scheme`.
    scheme : a name of the catalogue (``"baseline"``, ``"diff"``, ``"mask"``, the same with ``+``, ``"linear-…"``,
        ``"i-pcr"``), any pair as ``"form/reveal"``, such as ``"table/sealed"``, or a `Scheme`.
    weights : d integers in [1:max_weight], how reluctant the applicant is to change each feature.
    costs : the cost of every level of every feature, for the form ``table``; it replaces x and weights. Give `cap` too.
    immutable : d integers, 1 for a feature that must stay as it is, else 0; for the forms ``fixed`` and ``table``.
    records : M byte strings of one length, of which one is fetched; by default each row's own codes.
    parameters : public parameters of the scheme: `max_weight`, `d_min`, `expansion`, `shuffle`, `servers`, `collusion`,
        `alphas`, `q`, `norm`, `cap`, `protocol`, `dealer`; see `make_scheme`.

    Examples
    --------
    The paper's example: two accepted rows, and a rejected person at (1, 2).

    >>> import counterveil
    >>> found = counterveil.retrieve([[20, 0], [0, 20]], [1, 2], largest=20)
    >>> found
    Retrieval(index=1, servers=2, q=809, symbols=(4, 4))
    >>> found.revealed
    array([365, 325])

    With private preferences and two servers; changing the second feature is nine times as bad.

    >>> counterveil.retrieve([[20, 0], [0, 20]], [1, 2], largest=20, scheme="linear-diff", weights=[1, 9]).index
    0

    With tables of costs. `cap` is the public bound on the average of the features' dearest entries, here (5 + 7) / 2.
    It sets q. Without it, q is as large as weighted squared distances need, and dearer tables are refused.

    >>> tables = [[0, 1, 2, 5], [7, 3, 0, 3]]
    >>> found = counterveil.retrieve([[1, 2], [3, 0]], costs=tables, largest=3, scheme="table/distances", cap=6)
    >>> found.revealed, found.field.q
    (array([ 1, 12]), 13)
    """
    if isinstance(scheme, Scheme):
        if largest is not None or parameters:
            raise WrongType("parameters", got="some beside a Scheme", expected="none: the scheme has its own")
    else:
        largest = checks.renamed("levels", "largest", largest, parameters)
        if largest is None:
            raise WrongType("largest", got="nothing", expected="the largest code R, a public number")
        scheme = make_scheme(scheme, largest=largest, d=checks.rows(rows).shape[1], **parameters)
    codes = scheme.form.load(rows)
    contents = as_bytes(codes) if records is None else as_records(records)
    if len(contents) != len(codes):
        raise WrongShape("records", got=len(contents), expected=f"one for each of {len(codes)} rows")

    common = scheme.common(new_key(), scheme.digest(codes, contents), ticket=new_key())
    packages = package_all(contents, new_key())
    question = Question(x, weights, costs, immutable)
    asked = run(scheme, codes, question, common=common, records=packages)
    index = _index(scheme, asked, packages, common)
    kept = immutable is None or _keeps(scheme, codes[index], question)
    return Retrieval(
        index=index if kept else -1,
        position=asked.position if kept else -1,
        revealed=asked.revealed,
        record=unpackage(asked.record or b"") if kept else b"",
        views=tuple(map(View, asked.queries, asked.record_queries)),
        symbols=Sent(up=asked.queries.size, down=sum(answer.size for answer in asked.answers)),
        scheme=scheme,
    )


def _keeps(scheme: Scheme, row: Codes, question: Question) -> bool:
    """Say whether a row agrees with x on all immutable features; the applicant sees it in the record."""
    each = zip(row, scheme.form.point(question), scheme.form.immutable(question), strict=True)
    return all(code == own for code, own, immutable in each if immutable)


def _index(scheme: Scheme, asked: Transcript, packages: Bytes, common: Streams) -> int:
    """Return the number of the row that the applicant got."""
    if asked.position < 0:
        return int(np.flatnonzero((packages == np.frombuffer(asked.record or b"", dtype=np.uint8)).all(axis=1))[0])
    order = scheme.protocol.order(scheme, len(packages), common)
    return asked.position if order is None else int(order[asked.position])
