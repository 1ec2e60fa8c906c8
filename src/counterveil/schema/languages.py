"""Texts of an institution, in one language or in several.

A text is plain, or a table by language: `{"en": "savings", "de": "Erspartes"}`. What is shown in English here, the
applicant's page shows in the reader's language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .values import check_text, short

Text = str | dict[str, str]
Texts = tuple[str, ...] | dict[str, tuple[str, ...]]

LANGUAGE = r"^[a-z]{2,3}(?:-[A-Za-z0-9]{2,8}){0,3}$"  # a tag such as en, de or pt-BR
MOST_LANGUAGES = 64


def check_languages(what: str, text: Text) -> None:
    """Refuse what is neither a text nor a table of texts by language."""
    for each in _by_language(what, text):
        check_text(what, each)
    if isinstance(text, Mapping) and not all(text.values()):
        raise ValueError(f"{what}: got an empty text, expected one in each language")


def check_labels(labels: Texts, count: int) -> None:
    """Refuse labels that are not one for each value, in each language."""
    for each in _by_language("labels", labels):
        if not isinstance(each, tuple):
            raise ValueError(f"labels: got {short(each)}, expected a list of texts")
        if len(each) != count and (each or isinstance(labels, Mapping)):
            raise ValueError(f"labels: got {len(each)}, expected one for each of {count} values")
        for label in each:
            check_text("labels", label)
        if not all(each) or len(set(each)) != len(each):
            raise ValueError("labels: got an empty one or one twice, expected each once")


def in_english(text: Text, otherwise: str = "") -> str:
    """Return a text in English; else what else it is called, or the first of its languages.

    >>> in_english({"de": "Erspartes"}, "savings"), in_english({"de": "Jahre", "fr": "ans"})
    ('savings', 'Jahre')
    """
    if isinstance(text, str):
        return text or otherwise
    return text.get("en") or otherwise or text[min(text)]


def labels_in_english(labels: Texts) -> Sequence[str]:
    """Return the labels in English; none if the values themselves are to be shown."""
    return labels.get("en", ()) if isinstance(labels, Mapping) else labels


def _by_language(what: str, text: object) -> list[object]:
    if not isinstance(text, Mapping):
        return [text]
    if not 1 <= len(text) <= MOST_LANGUAGES or not all(
        isinstance(tag, str) and re.match(LANGUAGE, tag) for tag in text
    ):
        raise ValueError(f"{what}: got {short(list(text))}, expected 1 to {MOST_LANGUAGES} languages, such as en or de")
    return list(text.values())
