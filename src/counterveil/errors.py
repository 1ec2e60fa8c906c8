"""Every error Counterveil raises on purpose, and the two warnings it gives.

    CounterveilError
    └── InvalidInput (also a ValueError)   what was given cannot be used
        ├── WrongType          not integers, not bytes
        ├── MissingValue       a NaN, or None, where a number must be
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
        ├── NotOffered         a preference that this deployment's form cannot take
        └── MissingPackage     an optional package that is not installed

    CounterveilWarning (a UserWarning)
    ├── NoMask                 a masked reveal with d_min = 1 hides nothing
    └── OversizedField         q is not the smallest prime that works

Each error says what it got and what it expected, in that order, and is raised before any work is done.
"""

from __future__ import annotations


class CounterveilError(Exception):
    """Anything Counterveil raises on purpose."""


class InvalidInput(CounterveilError, ValueError):
    """Something given cannot be used: ``what: got …, expected …``."""

    def __init__(self, what: str, *, got: object, expected: object) -> None:
        super().__init__(f"{what}: got {got}, expected {expected}")
        self.what, self.got, self.expected = what, got, expected


class WrongType(InvalidInput):
    """Not the kind of value that is needed, such as floats where codes must be integers."""


class MissingValue(InvalidInput):
    """A NaN or None where a number must be."""


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


class NotOffered(InvalidInput):
    """A preference that this deployment's form cannot take."""


class MissingPackage(InvalidInput):
    """An optional package that is needed here and not installed."""


class CounterveilWarning(UserWarning):
    """Something allowed, but seldom what is wanted."""


class NoMask(CounterveilWarning):
    """A masked reveal whose mask is always zero."""


class OversizedField(CounterveilWarning):
    """A field larger than needed: a cheating applicant learns more from it (rule 5)."""
