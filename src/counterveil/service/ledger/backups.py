"""Back up a ledger that is an SQLite file, even while servers use it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from ...crypto.randomness import new_id
from ...errors import InvalidLedger
from .sqlite import PATIENCE, check_format, unusable
from .statements import COUNTS, CREATE, CREATE_ATTEMPTS

_COPY = """
INSERT INTO about SELECT format, server, ?, watermark, questions, writes, 0 FROM source.about;
INSERT INTO origin SELECT ?;
INSERT INTO keys SELECT id, 1 FROM source.keys;
INSERT INTO spent SELECT * FROM source.spent
"""
_COPY_ATTEMPTS = ";INSERT INTO attempts SELECT * FROM source.attempts"


def backup(path: str | Path, target: str | Path) -> int:
    """Copy a ledger, even while it is in use, to a new file; return how many entries it has.

    The copy has another instance id, and refuses every common key that the ledger knew, because tickets used after the
    copy are missing from it. So it can be used only with a new common key.
    """
    path, target = Path(path), Path(target)
    if not path.is_file():
        raise InvalidLedger(str(path), got="no ledger", expected="one to back up")
    try:
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name}-") as folder:
            made = Path(folder, "ledger")
            os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(sqlite3.connect(made, timeout=PATIENCE, isolation_level=None)) as database:
                count = _copy(path, database)
            os.link(made, target)  # atomic, and never replaces another file
    except FileExistsError:
        raise InvalidLedger(str(target), got="a file there already", expected="a new one") from None
    except OSError as error:
        raise InvalidLedger(str(target), got=error.strerror, expected="a file that can be written") from None
    except sqlite3.Error as error:
        raise unusable(path, error) from None
    return count


def _copy(path: Path, database: sqlite3.Connection) -> int:
    """Fill a new ledger from another, in one transaction, so that the copy shows one moment."""
    database.execute("PRAGMA synchronous = FULL")
    database.execute("ATTACH ? AS source", (str(path),))
    database.execute("BEGIN")
    check_format(path, database.execute("SELECT format FROM source.about").fetchall())
    instance = new_id()
    for statement in (CREATE + CREATE_ATTEMPTS).split(";"):
        database.execute(statement)
    has_attempts = database.execute("SELECT 1 FROM source.sqlite_master WHERE name = 'attempts'").fetchall()
    for statement in (_COPY + _COPY_ATTEMPTS if has_attempts else _COPY).split(";"):
        database.execute(statement, (instance,) if "?" in statement else ())
    counts = database.execute(COUNTS).fetchall()
    database.execute("COMMIT")
    return sum(count for _, count in counts)
