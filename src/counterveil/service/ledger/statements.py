"""The tables of a ledger in an SQLite file, and the statements that read and write them.

    about:  the format, the server's number, the ledger's instance id, the watermark, the number of questions, and the
            number of writes. Every write changes it, so every write-ahead log has a copy of it
    spent:  (SHA-256 of the ticket's id, request) -> SHA-256 of the request's bytes, expiry, how often served, who asked
    attempts: all other entries: those of servers that talk to each other, one for each attempt
    keys:   the ids of the common keys that the ledger was used with, and whether it refuses them, as a backup does
    origin: the instance id once more. It never changes, so no log has a copy of it. SQLite would apply a log that
            another ledger left here; then `about` and `origin` have different ids, and the file is refused

Versions that knew no attempts wrote format 2. A file stays at format 2 until its first attempt is entered, so those
versions can still open it. From then on it is format 3, and they refuse it: they would not know the attempts.
"""

from __future__ import annotations

CREATE = """
CREATE TABLE about (
    format INTEGER NOT NULL, server INTEGER NOT NULL, instance BLOB NOT NULL,
    watermark INTEGER NOT NULL, questions INTEGER NOT NULL, writes INTEGER NOT NULL, in_use INTEGER NOT NULL
);
CREATE TABLE origin (instance BLOB NOT NULL);
CREATE TABLE keys (id BLOB PRIMARY KEY, refused INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE spent (
    ticket BLOB NOT NULL, request INTEGER NOT NULL, fingerprint BLOB NOT NULL, expires INTEGER NOT NULL,
    served INTEGER NOT NULL, holder BLOB NOT NULL, PRIMARY KEY (ticket, request)
) WITHOUT ROWID;
CREATE INDEX spent_by_expiry ON spent (expires);
"""
CREATE_ATTEMPTS = """
CREATE TABLE IF NOT EXISTS attempts (
    ticket BLOB NOT NULL, run TEXT NOT NULL, request INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
    proof BLOB NOT NULL, expires INTEGER NOT NULL, holder BLOB NOT NULL, reply BLOB NOT NULL, served INTEGER NOT NULL,
    PRIMARY KEY (ticket, run, request, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_by_expiry ON attempts (expires);
"""
ROWS = """
SELECT '', request, 0, 'spent', fingerprint, expires, holder, x'', served FROM spent WHERE ticket = ?
UNION ALL
SELECT run, request, attempt, state, proof, expires, holder, reply, served FROM attempts WHERE ticket = ?
"""
SPEND = "INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET served = excluded.served"
ATTEMPT = "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PURGE_ATTEMPTS = """
DELETE FROM attempts WHERE expires <= (SELECT watermark FROM about)
AND (state = 'spent' OR expires <= (SELECT watermark FROM about) - ?)
"""
COUNTS = "SELECT 'spent', count(*) FROM spent UNION ALL SELECT state, count(*) FROM attempts GROUP BY state"
