"""Check that the servers' manifests agree and are signed. This comes before anything is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..crypto.keys import fingerprint, is_pinned, is_signed
from ..errors import Disagreement, InvalidInput
from .published import check_terms
from .wire import Manifest, SignedTerms, Terms


@dataclass
class Traffic:
    """Bytes between the applicant and one server. `up` and `down` count headers too, but not what TLS adds."""

    requests: int = 0
    body_up: int = 0
    body_down: int = 0
    up: int = 0
    down: int = 0


@dataclass
class Peer:
    """One server, as the applicant knows it."""

    url: str
    manifest: Manifest
    seconds: float  # how long fetching the manifest took
    date: str | None  # the server's clock, from its HTTP header
    tls: dict[str, Any] | None  # its certificate, if the connection is encrypted
    traffic: Traffic = field(default_factory=Traffic)
    at: float = field(default_factory=time.time)  # this machine's clock, when the manifest had come

    @property
    def name(self) -> str:
        """The server's number, who runs it if the terms say so, and its address, as messages show them."""
        names, number = self.manifest.issued.names, self.manifest.server
        who = f"{self.manifest.issued.name(number)}, " if names and number <= len(names) else ""
        return f"server {number} ({who}{self.url})"


def newest(
    lists: Sequence[Sequence[Manifest]], fits: Callable[[SignedTerms], bool] = lambda _: True
) -> list[Manifest] | None:
    """Return the newest offer that all servers have and that `fits`: a manifest of each; None if there is none.

    An offer is signed terms and a common key. Newest are the terms that begin last, which the issuer signed. Of several
    keys, the first server's choice counts: its list has the newest last.
    """
    shown = [{_offer(manifest): manifest for manifest in each} for each in lists]
    common = [offer for offer in shown[0] if all(offer in each for each in shown[1:]) and fits(shown[0][offer].issued)]
    if not common:
        return None
    ranks = {offer: (*age(shown[0][offer].issued), place) for place, offer in enumerate(common)}
    best = max(common, key=lambda offer: ranks[offer])
    return [each[best] for each in shown]


def age(issued: SignedTerms) -> tuple[int, bytes]:
    """Return what orders terms, the newest last: when they begin, and of equal ones the digest."""
    begins = issued.terms.begins
    return begins if isinstance(begins, int) else 0, issued.digest


def lacking(issued: SignedTerms, shown: Sequence[tuple[Peer, Sequence[Manifest]]]) -> str:
    """Say which servers do not have the terms of a file, and what to do; "" if all have them.

    A server whose newest terms are newer than these has dropped them. Others have not got them yet.
    """
    without = [(peer, each) for peer, each in shown if all(one.issued.text != issued.text for one in each)]
    if not without:
        return ""
    newer = [peer for peer, each in without if max(age(one.issued)[0] for one in each) >= age(issued)[0]]
    if len(newer) == len(shown):
        return "the servers have other terms than the terms file; get the new one"
    of = f"the terms {issued.digest.hex()[:8]}… of the terms file"
    return "; ".join(
        f"{peer.name} does not have {of} "
        + ("any more; get the new one" if peer in newer else "yet; its operator must load them")
        for peer, _ in without
    )


def _offer(manifest: Manifest) -> tuple[str, tuple[str, ...], str]:
    return manifest.issued.text, manifest.issued.addresses, manifest.key


def check_agreement(peers: Sequence[Peer], *, issuer: bytes | None = None, operators: Collection[bytes] = ()) -> None:
    """Refuse servers that cannot prove who they are, or whose terms differ; name the servers and the difference.

    Each server must have signed its manifest, with the key that the terms name for it. The issuer must have signed the
    terms. Each server must have been reached at its address in the terms. If `issuer` is given, the terms must name
    it. `operators` are public keys, or fingerprints of them; for each, one of the servers must have that key.
    """
    if len({peer.url for peer in peers}) < max(2, len(peers)):
        raise Disagreement(f"servers: got {[peer.url for peer in peers]}, expected two or more different addresses")
    first = peers[0]
    for peer in peers[1:]:
        for what, ours, theirs in (
            ("terms", first.manifest.terms, peer.manifest.terms),
            ("addresses", first.manifest.issued, peer.manifest.issued),
            ("common key", first.manifest.key, peer.manifest.key),
        ):
            if ours != theirs:
                raise Disagreement(
                    f"{what}: {first.name} and {peer.name} do not agree{_difference(ours, theirs)}; nothing was asked"
                )
    numbers = [peer.manifest.server for peer in peers]
    terms = first.manifest.terms
    if len(set(numbers)) != len(numbers):
        raise Disagreement(f"servers: got numbers {numbers}, expected each once: one answers for another")
    if max(numbers) > terms.parameters.servers:
        raise Disagreement(f"servers: got numbers {numbers}, expected up to {terms.parameters.servers}")
    try:
        check_terms(first.manifest.issued)
    except InvalidInput as error:
        raise Disagreement(f"{error}; nothing was asked") from None
    if issuer is not None and terms.issuer != issuer.hex():
        shown = fingerprint(bytes.fromhex(terms.issuer))
        raise Disagreement(f"issuer: got {shown}, expected {fingerprint(issuer)}; nothing was asked")
    for peer in peers:
        _check_identity(peer)
    keys = [bytes.fromhex(terms.keys[n - 1]) for n in numbers]
    for operator in operators:
        if not any(is_pinned(operator, key) for key in keys):
            raise Disagreement(
                "operator: none of these servers has the operator's key that was given; nothing was asked"
            )


def _check_identity(peer: Peer) -> None:
    """Refuse a manifest that its server did not sign, or that came from another address than the terms name."""
    manifest = peer.manifest
    key, signature = bytes.fromhex(manifest.terms.keys[manifest.server - 1]), bytes.fromhex(manifest.signature)
    if not is_signed(key, signature, "manifest", *manifest.signed()):
        raise Disagreement(f"{peer.name}: its manifest does not carry its own signature; nothing was asked")
    said = manifest.issued.addresses[manifest.server - 1]
    if said != peer.url:
        raise Disagreement(f"{peer.name}: the terms say that this server is at {said}; nothing was asked")


def _difference(ours: object, theirs: object) -> str:
    if not isinstance(ours, Terms) or not isinstance(theirs, Terms):
        return ""
    different = [name for name in Terms.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f" on {', '.join(different)}"
