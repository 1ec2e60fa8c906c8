from __future__ import annotations

import pytest

from counterveil.errors import Malformed
from counterveil.terms.addresses import canonical, is_exposed

ONE = "https://one.example"


@pytest.mark.parametrize(
    ("given", "form"),
    [
        (ONE, ONE),
        ("HTTPS://One.Example:443/", ONE),
        ("http://one.example:80", "http://one.example"),
        ("https://one.example:80/", "https://one.example:80"),
        ("https://one.example/a/B/", "https://one.example/a/B"),
        ("http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_has_one_form(given: str, form: str) -> None:
    assert canonical(given) == form
    assert canonical(form) == form


@pytest.mark.parametrize(
    "given",
    ["", "one.example", "ftp://one.example", "https://", "https://me@one.example", f"{ONE}/?who=me", f"{ONE}/#me",
     f"{ONE}/?", f"{ONE}/#", f"{ONE}/a b", f"{ONE}:99999", "https://[one]", f"{ONE};script-src", f"{ONE}/a/b/c/d/e"],
)  # fmt: skip
def test_what_is_no_address_or_could_mark_its_user_is_refused(given: str) -> None:
    with pytest.raises(Malformed, match="expected an address such as"):
        canonical(given)


def test_plain_http_is_exposed_except_on_this_machine() -> None:
    for url in (
        "http://one.example",
        "HTTP://one.example",
        "http://10.0.0.1/a?b",
        "http://127.0.0.1@one.example",
        "http://",
        "http://[",
    ):
        assert is_exposed(url), url
    for url in (ONE, "http://localhost:8000", "http://127.0.0.2", "http://[::1]:80/a", "/a/path"):
        assert not is_exposed(url), url
