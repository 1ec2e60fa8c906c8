"""Addresses of servers: each is written in one way only, and carries nothing that could identify its user."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from ..errors import Malformed

# Addresses are listed in a page's content security policy, so no character may end such a list.
_ADDRESS = r"https?://[a-z0-9.:\[\]-]{1,200}(/[A-Za-z0-9._~-]{1,50}){0,4}"
Address = Annotated[str, Meta(pattern=f"^{_ADDRESS}$")]


def canonical(text: str) -> str:
    """Return an address in lower case, without a default port or a slash at the end; refuse what is not an address.

    A user name, a query or a fragment is refused too: it could be different for each applicant and so identify them.
    """
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
        if ":" in host:
            host = f"[{ipaddress.IPv6Address(host)}]"
        marks = parts.username or parts.password or "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        scheme, host, port, marks, parts = "", "", None, "", urlsplit("")
    shown = "" if port in (None, 443 if scheme == "https" else 80) else f":{port}"
    made = f"{scheme}://{host}{shown}{parts.path.rstrip('/')}"
    if marks or not host or not re.fullmatch(_ADDRESS, made) or re.search(r"[?#\\\s]", text):
        raise Malformed("address", got=repr(text[:100]), expected="an address such as https://one.example")
    return made


def is_exposed(url: str) -> bool:
    """Say whether an address is plain http to another machine, so that others can read what travels."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and not is_loopback(parts.hostname or "")
    except ValueError:  # it names no machine
        return True


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
