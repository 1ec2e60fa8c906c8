"""Tickets and manifests, as docs/wire.md says them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from .numbers import frame, verifies


class Ticket:
    """A ticket, read from text."""

    def __init__(self, text: str) -> None:
        self.raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        self.claims, self.signature = msgspec.msgpack.decode(self.raw)
        version, self.id, self.expires, self.service, servers, self.reveal, self.liars, self.k = msgspec.msgpack.decode(
            self.claims
        )
        self.servers = list(servers)
        if version != 2 or msgspec.msgpack.encode([self.claims, self.signature]) != self.raw:
            raise ValueError("not a ticket")


def newest(shown: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]] | None:
    """Return the newest offer that all servers show, a manifest of each; None if there is none."""
    lists = [{(json.dumps(each["issued"]), each["key"]): each for each in manifests} for manifests in shown]
    common = [offer for offer in lists[0] if all(offer in each for each in lists)]

    def age(offer: tuple[str, str]) -> tuple[int, str, int]:
        text = json.loads(offer[0])["terms"]
        return json.loads(text).get("begins", 0), hashlib.sha256(text.encode()).hexdigest(), common.index(offer)

    return [each[max(common, key=age)] for each in lists] if common else None


def check_manifests(manifests: Sequence[dict[str, Any]], urls: Sequence[str]) -> tuple[str, str]:
    """Refuse servers that do not agree, or cannot prove who they are; return the text of the terms, and the key id."""
    issued, key = manifests[0]["issued"], manifests[0]["key"]
    if any(each["issued"] != issued or each["key"] != key for each in manifests):
        raise ValueError("the servers do not agree")
    text, addresses = issued["terms"], frame(*issued["addresses"])
    terms, digest = json.loads(text), hashlib.sha256(text.encode()).digest()
    if not verifies(terms["issuer"], bytes.fromhex(issued["signature"]), "terms", digest, addresses):
        raise ValueError("not the issuer's terms")
    for each, url in zip(manifests, urls, strict=True):
        said = (str(each["server"]), each["key"], each["instance"], each["software"], issued["signature"])
        public, signature = terms["keys"][each["server"] - 1], bytes.fromhex(each["signature"])
        if not verifies(public, signature, "manifest", *said, digest, addresses):
            raise ValueError("not this server's manifest")
        if issued["addresses"][each["server"] - 1] != url:
            raise ValueError("another address")
    if len({each["server"] for each in manifests}) != len(manifests):
        raise ValueError("one server twice")
    return text, key
