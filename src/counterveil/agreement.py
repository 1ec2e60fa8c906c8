"""What servers say of themselves, and whether it goes together: all of it is checked before anything is asked."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .deployment import Deployment
from .errors import CounterveilWarning, Disagreement, InvalidInput, NoMask
from .schema import Schema
from .wire import Manifest, Terms


@dataclass
class Traffic:
    """Bytes between the applicant and one server: bodies, and all that went through the connection, headers too."""

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
    seconds: float  # how long the manifest took
    date: str | None  # what the server says the time is
    tls: dict[str, Any] | None  # its certificate, where the connection has one
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"server {self.manifest.server} ({self.url})"


def check_agreement(peers: Sequence[Peer]) -> None:
    """Refuse servers whose manifests do not go together; say which, and in what they differ."""
    if len({peer.url for peer in peers}) < max(2, len(peers)):
        raise Disagreement(f"servers: got {[peer.url for peer in peers]}, expected two or more different addresses")
    first = peers[0]
    for peer in peers[1:]:
        for what, ours, theirs in (
            ("terms", first.manifest.terms, peer.manifest.terms),
            ("digest", first.manifest.digest, peer.manifest.digest),
            ("common key", first.manifest.key, peer.manifest.key),
        ):
            if ours != theirs:
                raise Disagreement(
                    f"{what}: {first.name} and {peer.name} do not agree{_difference(ours, theirs)}; nothing was asked"
                )
    numbers = [peer.manifest.server for peer in peers]
    if len(set(numbers)) != len(numbers):
        raise Disagreement(f"servers: got numbers {numbers}, expected each once: one answers for another")
    if max(numbers) > first.manifest.terms.parameters.servers:
        raise Disagreement(f"servers: got numbers {numbers}, expected up to {first.manifest.terms.parameters.servers}")


def _difference(ours: object, theirs: object) -> str:
    if not isinstance(ours, Terms) or not isinstance(theirs, Terms):
        return ""
    different = [name for name in Terms.__struct_fields__ if getattr(ours, name) != getattr(theirs, name)]
    return f" on {', '.join(different)}"


def deployment_of(terms: Terms) -> Deployment:
    """Return the deployment that terms describe, after checking that q and the alphas are what they must be."""
    try:
        schema = Schema.from_builtins(terms.schema, "schema of the manifest")
        parameters = {name: getattr(terms.parameters, name) for name in terms.parameters.__struct_fields__}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoMask)
            made = Deployment.of(schema, record=terms.record, **parameters)
        scheme = replace(made.scheme, alphas=tuple(terms.alphas), field=replace(made.scheme.field, q=int(terms.q)))
    except (InvalidInput, CounterveilWarning) as error:
        raise Disagreement(f"the servers' terms are refused: {error}") from None
    if scheme.field != made.scheme.field:
        right = f"{made.scheme.field.q}, the smallest {made.scheme.field.kind} that does"
        raise Disagreement(f"q: got {scheme.field.q}, expected {right}; nothing was asked")
    if len(scheme.alphas) != made.scheme.servers:
        raise Disagreement(f"alphas: got {len(scheme.alphas)}, expected one for each of {made.scheme.servers} servers")
    return replace(made, scheme=scheme)
