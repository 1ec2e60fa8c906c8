"""Read data frames (pandas, polars, pyarrow), CSV and Parquet files, through narwhals."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

from ..errors import EmptyDatabase, InvalidInput, MissingPackage, UnknownName, WrongShape, WrongType
from .csvfiles import csv_options

_BACKENDS = ("polars", "pyarrow", "pandas")


class Columns:
    """A frame's columns, by name. Takes a frame, a mapping of columns, or the path of a CSV or Parquet file."""

    def __init__(self, frame: Any) -> None:
        self.frame = _native(frame)
        self.names: list[str] = list(self.frame.columns)
        self.count: int = len(self.frame)
        if not self.count:
            raise EmptyDatabase("frame", got="no rows", expected="at least one")

    def column(self, name: str) -> Any:
        """Return a column: an array where it holds numbers, a list otherwise."""
        if name not in self.names:
            raise UnknownName("column", got=repr(name), expected="one of " + ", ".join(self.names))
        series = self.frame[name]
        if series.dtype.is_float() or (series.dtype.is_integer() and not series.is_null().any()):
            return series.to_numpy()
        return series.to_list()

    def dtype(self, name: str) -> Any:
        """Return a column's type."""
        return self.frame[name].dtype

    def present(self, name: str) -> list[Any]:
        """Return a column's values without the missing ones."""
        series = self.frame[name].drop_nulls()
        if series.dtype.is_float():
            series = series.filter(~series.is_nan())
        return list(series.to_list())

    def categories(self, name: str) -> list[Any] | None:
        """Return the values of an ordered category from the least to the most; None if it has no order."""
        series = self.frame[name]
        if series.dtype == nw.Enum:
            return list(series.dtype.categories)
        native = nw.to_native(series)
        dtype = getattr(native, "dtype", None)
        if getattr(dtype, "ordered", False):
            return list(native.cat.categories)
        held = native.array.__arrow_array__() if hasattr(dtype, "pyarrow_dtype") else native
        if getattr(getattr(held, "type", None), "ordered", False):  # a dictionary of pyarrow
            return list(held.unify_dictionaries().chunk(0).dictionary.to_pylist())
        return None

    def rows(self, keep: Any) -> Columns:
        """Return the rows that a boolean array keeps."""
        part = object.__new__(Columns)
        kept = np.asarray(keep).tolist()
        part.frame = self.frame.filter(nw.new_series("keep", kept, nw.Boolean, backend=self.backend))
        part.names, part.count = self.names, len(part.frame)
        return part

    def select(self, names: Sequence[str]) -> Any:
        """Return the native frame of these columns."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise UnknownName("column", got=repr(missing[0]), expected="one of " + ", ".join(self.names))
        return nw.to_native(self.frame.select(list(names)))

    def people(self) -> list[dict[str, Any]]:
        """Return the rows, each as a mapping from column to value."""
        columns = [self.frame[name].to_list() for name in self.names]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    @property
    def backend(self) -> Any:
        """The library that the frame belongs to."""
        return self.frame.implementation


def _native(frame: Any) -> Any:
    if isinstance(frame, Columns):
        return frame.frame
    if isinstance(frame, str | Path):
        return _read(Path(frame))
    if isinstance(frame, Mapping):
        lengths = {len(column) for column in frame.values()}
        if len(lengths) > 1:
            raise WrongShape("frame", got=f"columns of lengths {sorted(lengths)}", expected="one length")
        if not frame or lengths == {0}:
            raise EmptyDatabase("frame", got="no rows", expected="at least one")
        return nw.from_dict(_even({str(k): list(v) for k, v in frame.items()}), backend=installed_backend())
    if type(frame).__module__.startswith("pandas") and hasattr(frame, "columns"):
        names = [str(name) for name in frame.columns]
        if names != list(frame.columns):
            frame = frame.set_axis(names, axis=1)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise WrongShape("frame", got=f"the column {twice!r} twice", expected="each once")
        sparse = [name for name, dtype in zip(names, frame.dtypes, strict=True) if str(dtype).startswith("Sparse")]
        frame = frame.assign(**{name: frame[name].sparse.to_dense() for name in sparse}) if sparse else frame
    try:
        return nw.from_native(frame, eager_only=True)
    except (TypeError, ValueError):
        expected = "a pandas, polars or pyarrow frame, a mapping of columns, or the path of a CSV or Parquet file"
        raise WrongType("frame", got=type(frame).__name__, expected=expected) from None


def _read(path: Path) -> Any:
    if path.is_dir():
        raise WrongType(str(path), got="a folder", expected="one file; only build and schema infer read folders")
    readers = {".csv": nw.read_csv, ".parquet": nw.read_parquet, ".pq": nw.read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise WrongType(str(path), got=path.suffix or "no suffix", expected=".csv or .parquet")
    if not path.exists():
        raise WrongType(str(path), got="no such file", expected="a CSV or Parquet file")
    backend = installed_backend()
    try:
        options = csv_options(path, backend) if path.suffix.lower() == ".csv" else {}
        return reader(str(path), backend=backend, **options)
    except InvalidInput:
        raise
    except Exception as error:  # every backend has errors of its own
        raise WrongType(str(path), got=str(error).splitlines()[0], expected=f"a readable {path.suffix} file") from None


def installed_backend() -> Any:
    """Return the first of the libraries that is installed here."""
    for backend in _BACKENDS:
        if find_spec(backend):
            return backend
    raise MissingPackage(
        "frames", got="no polars, pyarrow or pandas", expected="one of them, as counterveil[frames] brings"
    )


def columns_of(frame: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return these columns of a frame."""
    table = Columns(frame)
    return {name: table.column(name) for name in names}


def rows_as_frame(columns: Mapping[str, Sequence[Any]], like: Columns) -> Any:
    """Return columns as a native frame of the same library as `like`."""
    return nw.to_native(nw.from_dict(_even(columns), backend=like.backend))


def _even(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Turn columns that mix integers and floats into floats, since some libraries refuse a mixture."""
    even = dict(columns)
    for name, column in columns.items():
        kinds = {type(v) for v in column if v is not None}
        if float in kinds and kinds <= {int, float}:
            even[name] = [None if v is None else float(v) for v in column]
    return even


def as_label(text: str) -> Any:
    """Read ``COLUMN`` or ``COLUMN=VALUE``, the value as a CSV reader would: a number, a truth value, or text."""
    column, equals, value = text.partition("=")
    if not equals:
        return column
    if value.lower() in ("true", "false"):
        return column, value.lower() == "true"
    for kind in (int, float):
        try:
            return column, kind(value)
        except ValueError:
            continue
    return column, value


def as_person(person: Any, names: list[str]) -> dict[str, Any]:
    """Return one person's values by feature, from a mapping, a series, or a frame of one row."""
    if isinstance(person, Mapping):
        return dict(person)
    if hasattr(person, "to_dict") and hasattr(person, "index") and not hasattr(person, "columns"):
        series: dict[str, Any] = person.to_dict()
        return {name: value for name, value in series.items() if name in names}
    table = Columns(person)
    if table.count != 1:
        raise WrongShape("person", got=f"{table.count} rows", expected="one")
    return {name: value for name, value in table.people()[0].items() if name in names}


def __getattr__(name: str) -> Any:
    """Return what had another name in 0.1, with a warning."""
    if name == "Table":
        warnings.warn("counterveil.schema.frames.Table is now called Columns", DeprecationWarning, stacklevel=2)
        return Columns
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
