"""An institution's accepted rows: quantised, without duplicates, each with its record.

Security: secret to the institution and its servers.

Servers need a signed database. After every record comes the issuer's signature of (digest, record), so that applicants
can tell a true record from an altered one. Both are packaged, so that a mixture of records tells nothing. The digest of
a signed database is public and must not confirm a guess at the rows. So it covers a value that only the issuer can
compute.
"""

from __future__ import annotations

import hashlib
import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..algebra import checks
from ..algebra.arrays import Bytes, Codes, Vector
from ..crypto.keys import Issuer
from ..crypto.packages import unpackage_all
from ..errors import EmptyDatabase, UnknownName, WrongType
from ..schema.frames import Columns
from ..schema.layouts import RecordKind, encode, layout
from ..schema.schema import Schema
from ..terms.parameters import Certificate
from . import bundle
from .bundle import Counts
from .ordering import first_of_each, grouped, keys_of
from .parallel import crew, watched
from .quantising import quantise
from .regions import Regions, Report, find_private_regions, find_regions, held_out_report
from .signing import AT_ONCE, pieces, signed
from .verdicts import accepted_rows, warn_of_repeats


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Database:
    """Accepted rows, ready to serve. Rows stand in the order of their codes, whatever order the data came in.

    >>> from counterveil import Numeric, Schema
    >>> schema = Schema(features=(Numeric(name="income", low=0, high=5000, step=500, unit="€"),))
    >>> data = {"income": [4100, 900, 3900, 4600], "accepted": [True, False, True, True]}
    >>> Database.build(data, schema, accepted="accepted").codes.tolist()
    [[8], [9]]
    """

    schema: Schema
    record: RecordKind
    min_cell: int  # accepted people who share each cell, or whom each region holds, at least
    counts: Counts
    codes: Codes  # (M, columns): the level of every feature, record-only ones included; or the codes of regions
    served: Bytes  # (M, length): records; where the database is signed, packages of records and their signatures
    signer: bytes = b""
    blind: bytes = b""
    certificate: Certificate | None = None  # what is certain of regions, and of which model
    source: Vector | None = None  # where each row stood in the frame; known to the builder alone
    part_rows: int = 0  # rows of a part of the bundle; 0 for as many as usual
    _known_digest: str = ""  # the digest, where it is known already
    _known_packed: tuple[str, ...] = ()  # the SHA-256 of the packages of every part, where they are known already
    _file: bundle.Bundle | None = None  # the file that this is mapped from
    _unchecked: set[int] = field(default_factory=set)  # parts of that file that nobody has checked yet

    def __repr__(self) -> str:
        return f"Database({len(self.codes)} rows, {len(self.schema.features)} features, records of {self.record}s)"

    def _repr_html_(self) -> str:
        counts = self.counts
        about = {
            "regions" if self.certificate else "rows": f"{counts.rows:,}, from {counts.accepted:,} accepted of "
            f"{counts.seen:,} people",
            "a record is": f"a {self.record}",
            "signed": "yes" if self.signer else "no: for this process only, not for servers",
        }
        head = "<tr><th>feature</th><th>levels</th><th>from</th><th>to</th></tr>"
        rows = "".join(
            f"<tr><td>{html.escape(f.title)}</td><td>{f.largest + 1:,}</td>"
            f"<td>{html.escape(f.show(f.value(0)))}</td><td>{html.escape(f.show(f.value(f.steps)))}</td></tr>"
            for f in self.schema.features
        )
        return as_table("A database: secret", about) + f"<table>{head}{rows}</table>"

    @classmethod
    def build(
        cls,
        frame: Any,
        schema: Schema,
        model: Any = None,
        accepted: Any = None,
        *,
        record: RecordKind = "row",
        min_cell: int = 1,
        min_people: int = 1,
        most_regions: int | None = None,
        points: int = 0,
        epsilon: float | None = None,
        delta: float = 0.0,
        clamp: bool = False,
        progress: bool = False,
    ) -> Database:
        """Quantise the accepted rows of a frame, drop duplicates, and make a record of each.

        Parameters
        ----------
        frame : a pandas, polars or pyarrow frame, a mapping of columns, or the path of a CSV or Parquet file.
        schema : the public schema.
        model : a scikit-learn-style classifier (`predict`) or a function of the frame that says who is accepted.
        accepted : without a model, a column that says so, or a pair of column and value; with a model, the label it
            predicts for accepted people (by default True or 1).
        record : serve the ``"row"`` itself, only the ``"cell"`` of levels it falls into, or each ``"region"`` in which
            the model certainly accepts everybody; regions need a model that can be certified.
        min_cell : serve only cells that at least this many accepted people share over all columns of the record; more
            than 1 needs ``record="cell"``, and guards against linking an explanation to a person.
        min_people : serve only regions that hold at least so many accepted people.
        most_regions : serve only so many regions, those that help the rejected people of the frame the most.
        points : if the model cannot be certified, sample so many points in each region; such regions are never called
            certified. 0 refuses the model.
        epsilon, delta : find regions with (epsilon, delta) differential privacy for every person of the frame, given
            the model and the schema as public. It is void for people whom the model was fitted on.
        clamp : pull values beyond the schema's range to its ends instead of refusing them.
        progress : show a progress bar.
        """
        if not isinstance(schema, Schema):
            raise WrongType("schema", got=type(schema).__name__, expected="a Schema; Schema.load reads one from a file")
        checks.integer("min_cell", min_cell, 1)
        if record not in ("row", "cell", "region"):
            raise UnknownName("record", got=repr(record), expected="row, cell or region")
        if min_cell > 1 and record != "cell":
            raise WrongType("record", got="rows with min_cell", expected='record="cell", since a row is one person\'s')
        private: dict[str, Any] = {"epsilon": epsilon, "delta": delta} if epsilon is not None or delta else {}
        if record != "region" and (min_people != 1 or most_regions is not None or points or private):
            got = f"{record}s with min_people, most_regions, points, epsilon or delta"
            raise WrongType("record", got=got, expected='record="region"')
        if record == "region" and model is None:
            raise WrongType("model", got="none", expected="the model that decides, since regions are certified by it")
        table = Columns(frame)
        table.select(schema.names)
        somebody = not private  # a private build does not fail for want of one accepted person: that would tell
        keep = accepted_rows(table, schema, model, accepted, anybody=somebody)
        if model is None:
            warn_of_repeats(table, schema, keep)
        if somebody and not keep.any():
            raise EmptyDatabase("accepted", got=f"none of {table.count} rows", expected="at least one")
        if record == "region":
            every = quantise(table, schema, clamp, progress).astype(np.int64)
            with _told(progress) as tell:
                find: Callable[..., Regions] = find_private_regions if private else find_regions
                found = find(
                    model,
                    table,
                    schema,
                    keep,
                    every,
                    label=accepted,
                    min_people=min_people,
                    most=most_regions,
                    points=points,
                    progress=tell,
                    **private,
                )
            return cls._of_regions(found, table, min_people, getattr(model, "digest", None) or found.digest)
        chosen = table.rows(keep)
        codes = quantise(chosen, schema, clamp, progress, np.flatnonzero(keep))
        people = len(codes)

        frequent = np.arange(people)
        if min_cell > 1:
            order, starts = grouped(keys_of(codes))
            share = np.diff(starts, append=people)
            frequent = np.sort(order[np.repeat(share, share) >= min_cell])
            if not frequent.size:
                raise EmptyDatabase("min_cell", got=f"no cell of {min_cell} people", expected="at least one")
        first = frequent[first_of_each(keys_of(codes[frequent][:, schema.costed]))]
        kept = np.zeros(people, dtype=bool)
        kept[first] = True
        order = np.argsort(np.argsort(first))  # `rows` keeps the frame's order; this is the codes' order
        records = encode(schema, record, codes[kept], chosen.rows(kept))[order]
        counts = Counts(
            seen=table.count,
            accepted=people,
            too_rare=people - frequent.size,
            duplicates=frequent.size - first.size,
            rows=first.size,
        )
        return cls(
            schema=schema,
            record=record,
            min_cell=min_cell,
            counts=counts,
            codes=codes[first].astype(bundle.narrow(schema, record)),
            served=records,
            source=np.flatnonzero(keep)[first],
        )

    @staticmethod
    def report(frame: Any, schema: Schema, model: Any, accepted: Any = None, **options: Any) -> Report:
        """Report what regions would ask of rejected people, beside the nearest rows.

        Regions are found from some of the people, and compared for rejected ones among the rest. The parameters are
        those of `build`; `options` are those of `find_regions`, or with an `epsilon` of `find_private_regions`.
        """
        table = Columns(frame)
        keep = accepted_rows(table, schema, model, accepted)
        codes = quantise(table, schema, True, False).astype(np.int64)
        return held_out_report(model, table, schema, keep, codes, label=accepted, **options)[0]

    @classmethod
    def _of_regions(cls, found: Regions, table: Columns, min_people: int, model: str) -> Database:
        """Return the database of regions that were found, in the order of their codes."""
        codes = np.unique(found.codes(), axis=0)
        return cls(
            schema=found.schema,
            record="region",
            min_cell=min_people,
            counts=Counts(
                seen=table.count if found.epsilon is None else 0,  # 0: not told
                accepted=found.accepted,
                too_rare=found.too_rare,
                duplicates=found.inside_others,
                rows=len(codes),
            ),
            codes=codes.astype(bundle.narrow(found.schema, "region")),
            served=encode(found.schema, "region", codes, table),
            certificate=Certificate(
                model,
                found.sampled,
                math.ceil(1_000_000 * found.bound),
                "" if found.epsilon is None else _decimal(found.epsilon),
                _decimal(found.delta) if found.delta else "",
            ),
        )

    @property
    def rows(self) -> int:
        """M, the number of rows."""
        return len(self.codes)

    @cached_property
    def records(self) -> Bytes:
        """The records alone, an (M, length) array. A signed database unpackages them, at 10 µs each."""
        bare = unpackage_all(self.served) if self.signer else self.served
        return bare[:, : layout(self.schema, self.record).itemsize]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything in the bundle but the signatures and packages, in hexadecimal."""
        return self._known_digest or hashlib.sha256(self._manifest().covered()).hexdigest()

    @property
    def packed(self) -> str:
        """The SHA-256 of the packages, in hexadecimal; of packages in parts, the root of their digests."""
        return bundle.root(self._packed)

    @cached_property
    def _packed(self) -> tuple[str, ...]:
        return self._known_packed or bundle.leaves_of(self.served, self._part)

    @property
    def _part(self) -> int:
        return self.part_rows or bundle.usual_part(self.rows)

    def sign(self, issuer: Issuer, *, processes: int = 1, progress: bool = False) -> Database:
        """Return the database with every record signed and packaged, ready for servers.

        The same data and the same key give the same bytes, however many processes share the work.
        """
        bare = replace(self, served=self.records, signer=b"", blind=b"", _known_digest="", _known_packed=(), _file=None)
        named = bare._manifest().signed_by(issuer)
        digest = hashlib.sha256(named.covered()).digest()
        with crew(processes) as run:
            made = signed(pieces(bare.served), issuer, digest, run)
            packages = np.concatenate(list(watched(made, "signing", -(-self.rows // AT_ONCE), progress)))
        blind = bytes.fromhex(named.blind)
        whole = replace(bare, served=packages, signer=issuer.public, blind=blind, _known_digest=digest.hex())
        whole.__dict__["records"] = bare.served  # cached, so that nobody has to unpackage them
        return whole

    def _manifest(self) -> bundle.Manifest:
        """Return what the digest covers."""
        if self._file:
            return self._file.manifest
        codes, records = (bundle.leaves_of(each, self._part) for each in (self.codes, self.records))
        return bundle.Manifest(
            schema=self.schema.to_builtins(),
            record=self.record,
            min_cell=self.min_cell,
            counts=self.counts,
            codes=bundle.describe(self.codes.dtype, self.codes.shape, codes),
            records=bundle.describe(self.records.dtype, self.records.shape, records),
            signer=self.signer.hex(),
            blind=self.blind.hex(),
            certificate=self.certificate or msgspec.UNSET,
            parts=bundle.cut(self._part, codes, records),
        )

    def save(self, path: str | Path) -> None:
        """Write the bundle, atomically: a reader sees the old file or the new one, whole."""
        self.check()
        manifest = self._manifest().sealed(self.digest, self._packed if self.signer else ())
        bundle.write(Path(path), manifest, self.codes, self.served)

    @property
    def file(self) -> bundle.Bundle | None:
        """The file that this was opened from, if it was."""
        return self._file

    @property
    def parts(self) -> int:
        """How many parts the bundle has. Each can be checked and laid out without the others."""
        return -(-self.rows // self._part)

    def check(self, parts: Iterable[int] | None = None, *, threads: int = 1, progress: bool = False) -> None:
        """Read parts of the file, or all, and compare them with their digests, unless that was done before.

        The error names the first part that is not what it was.
        """
        file, wanted = self._file, sorted(self._unchecked if parts is None else self._unchecked & set(parts))
        if file is None or not wanted:
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="check") as pool:
            checked = zip(wanted, pool.map(partial(bundle.check, file), wanted), strict=True)
            for part, _ in watched(checked, "checking", len(wanted), progress):
                self._unchecked.discard(part)

    @classmethod
    def open(cls, path: str | Path, *, whole: bool = True) -> Database:
        """Open a bundle, memory-mapped, after checking every byte of it.

        If not `whole`, only the manifest is read. Whoever then uses rows or records must `check` their parts first.
        """
        file = bundle.read(Path(path))
        manifest = file.manifest
        opened = cls(
            schema=file.schema,
            record=manifest.record,
            min_cell=manifest.min_cell,
            counts=manifest.counts,
            codes=file.codes,
            served=file.served,
            signer=bytes.fromhex(manifest.signer),
            blind=bytes.fromhex(manifest.blind),
            certificate=manifest.certificate or None,
            part_rows=manifest.parts.rows if manifest.parts else 0,
            _known_digest=manifest.digest,
            _known_packed=manifest.packages(),
            _file=file,
            _unchecked=set(range(len(manifest.spans()))),
        )
        if whole:
            opened.check()
        return opened


def as_table(title: str, about: Mapping[str, str]) -> str:
    """Return names and values as a table of HTML, for notebooks."""
    rows = "".join(f"<tr><th>{html.escape(n)}</th><td>{html.escape(text)}</td></tr>" for n, text in about.items())
    return f"<p><b>{html.escape(title)}</b></p><table>{rows}</table>"


def _decimal(number: float) -> str:
    """Return a number as the shortest text that means the same."""
    return repr(float(number)).removesuffix(".0")


@contextmanager
def _told(progress: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Give what shows a share of the work under a progress bar, if one is wanted; only then import rich."""
    if not progress:
        yield None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda doing, share: bar.update(task, description=doing, completed=share)
