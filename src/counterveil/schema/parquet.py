"""Read Parquet files a stretch of rows at a time, by the library that reads whole ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import narwhals as nw

from ..errors import EmptyDatabase, InvalidInput, MissingPackage, UnknownName, WrongType
from .frames import Columns, installed_backend

_STRETCHES = 20  # of a sample


class Stretch(NamedTuple):
    """Rows that stand one after the other in a Parquet file, from number `first` of all rows on."""

    path: str
    start: int
    rows: int
    first: int

    def read(self, names: Sequence[str] | None) -> Columns:
        """Read these columns of the rows, or all columns."""
        try:
            return Columns(_frame(self, None if names is None else list(dict.fromkeys(names))))
        except InvalidInput:
            raise
        except Exception as error:  # every backend has errors of its own
            got = (str(error).splitlines() or [type(error).__name__])[0]
            raise WrongType(self.path, got=got, expected="a readable Parquet file") from None


def parquet_files(path: str | Path) -> list[tuple[str, int]]:
    """Return the Parquet files in a folder and below it, in the order of their names, and how many rows each has."""
    path = Path(path)
    files = sorted(p for end in ("*.parquet", "*.pq") for p in path.rglob(end)) if path.is_dir() else [path]
    if not files or (path.is_file() and path.suffix.lower() not in (".parquet", ".pq")):
        raise WrongType(str(path), got="no Parquet file", expected="a folder with some, or one")
    try:
        return [(str(file), _count(str(file))) for file in files]
    except MissingPackage:
        raise
    except Exception as error:  # every backend has errors of its own
        got = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongType(str(path), got=got, expected="readable Parquet files") from None


def stretches(files: Sequence[tuple[str, int]], most: int) -> Iterator[Stretch]:
    """Cut files into stretches of so many rows at most, in order."""
    first = 0
    for path, rows in files:
        for start in range(0, rows, most):
            yield Stretch(path, start, min(most, rows - start), first + start)
        first += rows


def sampled(path: str | Path, most: int) -> Columns:
    """Return at most so many rows of Parquet files: all, or some stretches of equal length from all over them."""
    files = parquet_files(path)
    total = sum(rows for _, rows in files)
    if not total:
        raise EmptyDatabase(str(path), got="no rows", expected="at least one")
    size = max(1, min(-(-total // _STRETCHES), most // _STRETCHES)) if total > most else total
    every = list(stretches(files, size))
    chosen = every if total <= most else [every[n * len(every) // _STRETCHES] for n in range(_STRETCHES)]
    return Columns(nw.to_native(nw.concat([stretch.read(None).frame for stretch in chosen])))


def _count(path: str) -> int:
    if installed_backend() == "polars":
        import polars

        return int(polars.scan_parquet(path).select(polars.len()).collect().item())
    return int(_parquet().ParquetFile(path).metadata.num_rows)


def _frame(part: Stretch, names: list[str] | None) -> Any:
    """Return a frame of some rows, of the library that reads whole files."""
    if installed_backend() == "polars":
        import polars

        lazy = polars.scan_parquet(part.path)
        _check_columns(names, lazy.collect_schema().names())
        return (lazy if names is None else lazy.select(names)).slice(part.start, part.rows).collect()
    file = _parquet().ParquetFile(part.path)
    _check_columns(names, file.schema_arrow.names)
    starts = [0]
    for number in range(file.num_row_groups):
        starts.append(starts[-1] + file.metadata.row_group(number).num_rows)
    groups = [
        n for n in range(file.num_row_groups) if starts[n] < part.start + part.rows and starts[n + 1] > part.start
    ]
    table = file.read_row_groups(groups, columns=names).slice(part.start - starts[groups[0]], part.rows)
    return table if installed_backend() == "pyarrow" else table.to_pandas()


def _check_columns(names: Sequence[str] | None, held: Sequence[str]) -> None:
    missing = [name for name in names or () if name not in held]
    if missing:
        raise UnknownName("column", got=repr(missing[0]), expected="one of " + ", ".join(held))


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise MissingPackage("Parquet", got="no polars and no pyarrow", expected="counterveil[frames]") from None
