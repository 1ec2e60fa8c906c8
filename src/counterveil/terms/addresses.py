"""Addresses of servers: one form for each, and nothing in it that could mark who uses it."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from ..errors import Malformed

# Nothing that could end a list of addresses in a page's content security policy.
_ADDRESS = r"https?://[a-z0-9.:\[\]-]{1,200}(/[A-Za-z0-9._~-]{1,50}){0,4}"
Address = Annotated[str, Meta(pattern=f"^{_ADDRESS}$")]


def canonical(text: str) -> str:
    """Return an address in its one form: lower case, no default port, no slash at the end; refuse what is none.

    Whatever else an address could carry, a name, a query or a fragment, would mark who uses it.
    """
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        if ":" in host:
            host = f"[{ipaddress.IPv6Address(host)}]"
        more = parts.username or parts.password or "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        scheme, host, port, more, parts = "", "", None, "", urlsplit("")
    shown = "" if port in (None, 443 if scheme == "https" else 80) else f":{port}"
    made = f"{scheme}://{host}{shown}{parts.path.rstrip('/')}"
    if more or not host or not re.fullmatch(_ADDRESS, made) or re.search(r"[?#\\\s]", text):
        raise Malformed("address", got=repr(text[:100]), expected="an address such as https://one.example")
    return made
