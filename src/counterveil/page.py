"""The applicant's page as it is served: files of `web/`, and all of them in one file that works from a disk.

Security: the page runs where the applicant's data is. Its policy lets it load nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

# in import order
_MODULES = ("field", "wire", "schema", "preferences", "spir", "garble", "network", "client", "strings", "page")
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_CONNECT = "connect-src 'self' http: https:"  # the other servers
_REST = "img-src data:; base-uri 'none'; form-action 'none'"

POLICY = f"default-src 'none'; script-src 'self'; style-src 'self'; {_CONNECT}; {_REST}; frame-ancestors 'none'"


@cache
def _text(name: str) -> str:
    return (files("counterveil") / "web" / name).read_text("utf-8")


def assets() -> dict[str, tuple[bytes, str]]:
    """Return the page's files by name, each with its media type."""
    names = [f"{module}.js" for module in _MODULES] + ["operator.js", "style.css"]
    return {name: (_text(name).encode(), _TYPES[name.rpartition(".")[2]]) for name in names}


def page(servers: Sequence[str]) -> str:
    """Return the page, with the addresses of the servers in it."""
    return _text("index.html").replace('{"servers": []}', _config(servers))


def single_file(servers: Sequence[str]) -> str:
    """Return the page with everything inlined, under a policy that lets only that run."""
    script = "\n".join(_inlined(_text(f"{module}.js")) for module in _MODULES)
    if re.search(r"</script|<!--|^import ", script, flags=re.M):
        raise AssertionError("a module of the page cannot be inlined as it is written")
    style = _text("style.css")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; {_CONNECT}; {_REST}"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    whole = page(servers).replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    whole = whole.replace('<link rel="stylesheet" href="web/style.css">', f"<style>{style}</style>")
    return whole.replace(
        '<script type="module" src="web/page.js"></script>', f'<script type="module">{script}</script>'
    )


def operator_page() -> str:
    """Return the institution's page."""
    return _text("operator.html")


def _config(servers: Sequence[str]) -> str:
    return json.dumps({"servers": list(servers)}).replace("<", "\\u003c")


def _inlined(source: str) -> str:
    """Return a module's text without its imports and exports: in one file all names are at hand."""
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", source, flags=re.M), flags=re.M)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
