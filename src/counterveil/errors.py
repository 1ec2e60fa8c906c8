"""Every error Counterveil raises on purpose, and the warnings it gives::

    CounterveilError
    ├── Refused                a server does not answer, and says why
    ├── ServerFault            a server cannot be reached or breaks the protocol; the error names it
    ├── Disagreement           servers whose public statements contradict each other
    ├── Tampered               an answer contradicts itself or its signature, and is not shown
    ├── Stalled                parties wait for each other: a protocol has a mistake
    └── InvalidInput (also a ValueError)   an input cannot be used
        ├── WrongType          not integers, not bytes
        ├── MissingValue       a NaN or None where a number is needed
        ├── WrongShape         wrong length, wrong number of dimensions
        ├── OutOfRange         a number outside its public range
        ├── EmptyDatabase      no rows
        ├── InvalidField       q composite, too small or too large
        ├── InvalidAlphas      evaluation points equal or zero mod q
        ├── TooFewServers      fewer servers than the scheme needs
        ├── TableOverflow      a cost table whose total exceeds the public bound
        ├── UnknownName        no such scheme, form, reveal, feature or column
        ├── UnknownValue       a category that the schema does not list
        ├── InvalidSchema      a schema file that does not make sense
        ├── InvalidBundle      a bundle that is truncated, altered or of another version
        ├── InvalidData        a data file that is missing, or has other content than expected
        ├── InvalidLedger      a ledger that is missing, belongs to another server, or is no ledger
        ├── Malformed          bytes that are not a message, or not the expected one
        ├── InvalidKey         a key file that is missing or holds something else
        ├── InvalidTerms       a terms file that is missing, altered, or for other servers
        ├── InvalidReceipt     a receipt that is missing, altered, or signed with another key
        ├── TooManyLiars       more answers contradict each other than can be corrected
        ├── NotOffered         a preference that this deployment's form cannot take
        ├── BrokenPlugin       an installed package provides a form that cannot be used
        └── MissingPackage     an optional package that is not installed

    CounterveilWarning (a UserWarning)
    ├── NoMask                 a masked reveal with d_min = 1 hides nothing
    ├── OversizedField         q is not the smallest prime that works
    ├── LeftOut                columns that an inferred schema does without
    ├── Suspicious             data that looks wrong, such as a column that repeats the verdict
    ├── RuleNotKept            a rule of the schema that the form of the question cannot keep
    ├── Unbound                no note can be written of which ledger a common key is used with
    └── NotServed              terms or a common key that a server has and leaves out

Each error says what it got and what it expected, in that order, and is raised before any work is done.
"""

from __future__ import annotations

from typing import Any, Self


class CounterveilError(Exception):
    """Anything Counterveil raises on purpose."""


class Refused(CounterveilError):
    """A server does not answer, and says why: ``code`` for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:  # errors of shards travel between processes
        return type(self), (self.code, str(self))


class ServerFault(CounterveilError):
    """A server that cannot be reached, does not answer in time, or breaks the protocol.

    `server` is its address. `code` is its reason for refusing, or None if it did not refuse.
    """

    def __init__(self, server: str, problem: str, code: str | None = None) -> None:
        super().__init__(f"{server}: {problem}")
        self.server, self.problem, self.code = server, problem, code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.server, self.problem, self.code)


class Disagreement(CounterveilError):
    """Servers whose manifests, digests, keys or numbers do not match each other. Nothing was asked."""


class Tampered(CounterveilError):
    """An answer that was altered, on its way or at a server. It is not shown, and no server learns of that."""


class Stalled(CounterveilError):
    """Parties that all wait for each other, or leave messages untaken, by a mistake in a protocol. It names them."""


class InvalidInput(CounterveilError, ValueError):
    """An input cannot be used: ``what: got …, expected …``, or ``what[row]: …`` if one row is wrong."""

    def __init__(self, what: str, *, got: object, expected: object, row: int | None = None) -> None:
        self.place = what if row is None else f"{what}[{row}]"
        super().__init__(f"{self.place}: got {got}, expected {expected}")
        self.what, self.row, self.got, self.expected = what, row, got, expected

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.what, str(self.got), str(self.expected), self.row)

    def at(self, where: str, row: int | None = None) -> Self:
        """Return the same error about another place."""
        return type(self)(where, got=self.got, expected=self.expected, row=row)

    @classmethod
    def inside(cls, where: str, error: InvalidInput) -> Self:
        """Return an error of this class about a whole, such as a file, from an error about a part of it."""
        return cls(where, got=f"{error.place}: {error.got}", expected=error.expected)


def _again(kind: type[InvalidInput], what: str, got: str, expected: str, row: int | None) -> InvalidInput:
    return kind(what, got=got, expected=expected, row=row)


class WrongType(InvalidInput):
    """Not the kind of value that is needed, such as floats where codes must be integers."""


class MissingValue(InvalidInput):
    """A NaN or None where a number is needed."""


class WrongShape(InvalidInput):
    """The wrong length or the wrong number of dimensions."""


class OutOfRange(InvalidInput):
    """A number outside the public range it must lie in."""


class EmptyDatabase(InvalidInput):
    """A database without rows."""


class InvalidField(InvalidInput):
    """A modulus that is composite, too small for the scheme, or 2^62 and above."""


class InvalidAlphas(InvalidInput):
    """Evaluation points that coincide or vanish mod q (rule 1: alpha = 0 sends x in clear)."""


class TooFewServers(InvalidInput):
    """Fewer servers than the form's degree and the collusion bound need."""


class TableOverflow(InvalidInput):
    """A cost table whose largest total does not fit under the public bound."""


class UnknownName(InvalidInput):
    """No scheme, form, reveal, feature or column of that name."""


class UnknownValue(InvalidInput):
    """A category that the schema does not list."""


class InvalidSchema(InvalidInput):
    """A schema that does not make sense: the message names the file, the feature and the field."""


class InvalidBundle(InvalidInput):
    """A bundle that is truncated, altered or of another version."""


class InvalidData(InvalidInput):
    """A data file that is missing, cannot be downloaded, or is not the one it should be."""


class InvalidLedger(InvalidInput):
    """A ledger that is missing, exists already, belongs to another server, or is not a ledger."""


class Malformed(InvalidInput):
    """Bytes that are not a message of this protocol, or not the one that was expected."""


class InvalidKey(InvalidInput):
    """A key file that is missing, exists already, or holds something else."""


class InvalidTerms(InvalidInput):
    """Terms that are missing, not signed by their issuer, or do not match the bundle, keys or addresses given."""


class InvalidReceipt(InvalidInput):
    """A receipt that is missing, altered, or not signed with the key that was expected."""


class TooManyLiars(InvalidInput):
    """Answers that contradict each other, and so many of them that nobody can say which servers are wrong."""


class NotOffered(InvalidInput):
    """A preference that this deployment's form cannot take."""


class BrokenPlugin(InvalidInput):
    """A form of an installed package that does not import, or that is not a form of that name."""


class MissingPackage(InvalidInput):
    """An optional package that is needed here but is not installed."""


class CounterveilWarning(UserWarning):
    """A choice that is allowed, but that people seldom want."""


class NoMask(CounterveilWarning):
    """A masked reveal whose mask is always zero."""


class Unbound(CounterveilWarning):
    """A common key whose folder cannot be written. A second ledger under the same key would go unnoticed."""


class NotServed(CounterveilWarning):
    """Terms or a common key that a server has and leaves out: half of the files, or a key that its ledger refuses."""


class OversizedField(CounterveilWarning):
    """A field larger than needed: a cheating applicant learns more from it (rule 5)."""


class LeftOut(CounterveilWarning):
    """Columns that an inferred schema does without: ids, dates, free text."""


class Suspicious(CounterveilWarning):
    """Data that looks wrong: outliers that hide everybody else, or a column that repeats the verdict."""


class RuleNotKept(CounterveilWarning):
    """A rule of the schema, such as a direction of change, that the form of the question cannot keep."""
