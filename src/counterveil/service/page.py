"""Serve the applicant's page: as the files of `web/`, and as one file that works when opened from a disk.

Security: the page sees the applicant's data, so its content security policy lets it load nothing from elsewhere. A
page from a server may connect only to the servers of its terms, whatever a link says. The single file holds the
issuer's public key, and asks only servers whose terms that issuer signed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from urllib.parse import urlsplit

from ..terms.wire import SignedTerms

# in import order
_MODULES = (
    "constants", "strings/en", "strings/de", "strings/fr", "strings/es", "strings", "field", "wire", "schema",
    "preferences", "boxes", "spir", "party", "garble", "joint", "network", "deployment", "protocols", "replies", "runs",
    "linked", "conversation", "explain", "manifests", "client", "receipt", "elements", "answer", "kept", "checking",
    "numbers", "form", "review", "ticketbox", "page",
)  # fmt: skip
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_REST = "img-src data:; base-uri 'none'; form-action 'none'"
_ANYWHERE = "https: http://localhost:* http://127.0.0.1:*"  # any server with TLS, or this machine


def policy(addresses: Iterable[str]) -> str:
    """Return the page's content security policy: it may connect to the servers of the terms, and to no others."""
    origins = sorted({"{0.scheme}://{0.netloc}".format(urlsplit(address)) for address in addresses})
    return _policy("'self'", "'self'", " ".join(origins)) + "; frame-ancestors 'none'"


def operator_policy() -> str:
    """Return the content security policy of the operator's page: it may connect only to its own server."""
    return _policy("'self'", "'self'", "'self'") + "; frame-ancestors 'none'"


def _policy(script: str, style: str, connect: str) -> str:
    return f"default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; {_REST}"


@cache
def _text(name: str) -> str:
    return (files("counterveil") / "applicant" / "web" / name).read_text("utf-8")


def assets() -> dict[str, tuple[bytes, str]]:
    """Return the page's files by name, each with its media type."""
    names = [f"{module}.js" for module in _MODULES] + ["operator.js", "style.css"]
    return {name: (_text(name).encode(), _TYPES[name.rpartition(".")[2]]) for name in names}


def page(issued: SignedTerms, number: int, rebuilt_after: int | None) -> str:
    """Return the page that server `number` serves: it asks the servers of these terms."""
    return _filled(issued, number, rebuilt_after, fixed=True)


def single_file(issued: SignedTerms, number: int, rebuilt_after: int | None) -> str:
    """Return the page with everything inlined, under a policy that lets only the inlined code run.

    It holds the issuer's public key, and the key of the server that it was downloaded from.
    """
    script = "\n".join(_inlined(_text(f"{module}.js")) for module in _MODULES)
    if re.search(r"</script|<!--|^import ", script, flags=re.M):
        raise AssertionError("a module of the page cannot be inlined as it is written")
    style = _text("style.css")
    rules = _policy(f"'{_hash(script)}'", f"'{_hash(style)}'", _ANYWHERE)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(rules)}">'
    whole = _filled(issued, number, rebuilt_after, fixed=False).replace(
        '<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}'
    )
    whole = whole.replace('<link rel="stylesheet" href="web/style.css">', f"<style>{style}</style>")
    return whole.replace(
        '<script type="module" src="web/page.js"></script>', f'<script type="module">{script}</script>'
    )


def _filled(issued: SignedTerms, number: int, rebuilt_after: int | None, *, fixed: bool) -> str:
    terms = issued.terms
    config = {
        "servers": list(issued.addresses),
        "issuer": terms.issuer,
        "operators": [terms.keys[number - 1]],  # keys of the servers that the page trusts: the one that serves it
        "fixed": fixed,  # true: the page may ask no other address
        "rebuilt_after": rebuilt_after,  # tickets; null: no known attack rebuilds the rows
        "k": terms.parameters.k,  # rows that a ticket gives
    }
    return _text("index.html").replace("{}</script>", json.dumps(config).replace("<", "\\u003c") + "</script>", 1)


def operator_page() -> str:
    """Return the institution's page."""
    return _text("operator.html")


def _inlined(source: str) -> str:
    """Return a module's text without its imports and exports, which one file does not need."""
    return re.sub(r"^export ", "", re.sub(r"^import .*\n", "", source, flags=re.M), flags=re.M)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
