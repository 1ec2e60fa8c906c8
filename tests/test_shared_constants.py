"""What the page and the Python side both know comes from the Python side: `web/constants.js` is written from it."""

from __future__ import annotations

import re

from make_constants import FILE, text


def test_the_page_has_the_constants_of_the_python_side() -> None:
    assert FILE.read_text("utf-8") == text(), "constants.js is old: make constants"


def test_every_constant_is_used_by_the_page() -> None:
    used = "".join(module.read_text("utf-8") for module in FILE.parent.glob("*.js") if module != FILE)
    names = re.findall(r"^export const (\w+)", text(), flags=re.M)
    assert len(names) > 40
    assert [name for name in names if not re.search(rf"\b{name}\b", used)] == []
