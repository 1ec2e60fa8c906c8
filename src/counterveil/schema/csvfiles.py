"""Look at a CSV file before it is read: its encoding, its separator, its decimal mark, and codes with leading zeros."""

from __future__ import annotations

import codecs
import csv
import re
from itertools import islice
from pathlib import Path
from typing import Any

_SEPARATORS = ",;\t|"
_LOOKED_AT = 1000  # rows, to find decimal commas and leading zeros
_CHUNK = 2**20
_COMMA, _POINT, _ZERO = (re.compile(p) for p in (r"-?\d+,\d+", r"-?\d*\.\d+", r"0\d+"))


def csv_options(path: Path, backend: str) -> dict[str, Any]:
    """Return the options with which this library reads the file as it was meant.

    A file that is not UTF-8 is taken for Windows-1252, which holds Latin-1. A column in which some number begins with a
    needless 0, such as a postcode, is text.
    """
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        heading = file.readline()
        separator = max(_SEPARATORS, key=lambda mark: re.sub(r'"[^"]*"', "", heading).count(mark))
        names = next(csv.reader([heading], delimiter=separator), [])
        cells = [list(row) for row in islice(csv.reader(file, delimiter=separator), _LOOKED_AT)]
    flat = [cell for row in cells for cell in row]
    comma = separator != "," and any(map(_COMMA.fullmatch, flat)) and not any(map(_POINT.fullmatch, flat))
    text = [name for j, name in enumerate(names) if any(_ZERO.fullmatch(row[j]) for row in cells if j < len(row))]
    return _OPTIONS[backend](encoding, comma, text) | {"separator": separator}


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def _polars(encoding: str, comma: bool, text: list[str]) -> dict[str, Any]:
    import polars

    # The other libraries also infer types from every row and read NA as missing.
    options: dict[str, Any] = {"infer_schema_length": None, "null_values": ["", "NA", "NaN", "nan", "null"]}
    options |= {"decimal_comma": comma, "schema_overrides": dict.fromkeys(text, polars.String)}
    return options if encoding == "utf-8-sig" else options | {"encoding": encoding}


def _pandas(encoding: str, comma: bool, text: list[str]) -> dict[str, Any]:
    return {"encoding": encoding, "decimal": "," if comma else ".", "dtype": dict.fromkeys(text, str)}


def _pyarrow(encoding: str, comma: bool, text: list[str]) -> dict[str, Any]:
    import pyarrow
    import pyarrow.csv

    encoding = "utf8" if encoding == "utf-8-sig" else encoding
    types = dict.fromkeys(text, pyarrow.string())
    return {
        "read_options": pyarrow.csv.ReadOptions(encoding=encoding),
        "convert_options": pyarrow.csv.ConvertOptions(decimal_point="," if comma else ".", column_types=types),
    }


_OPTIONS = {"polars": _polars, "pandas": _pandas, "pyarrow": _pyarrow}
