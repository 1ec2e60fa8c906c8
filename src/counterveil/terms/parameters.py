"""The public parameters of a deployment: one struct, the same in the terms, in a schema's `[deployment]` and in Python.

`Deployment.of` takes the same names, and a `[deployment]` table may hold any of them. Defaults of the scheme are in
`schemes/defaults.py`. Defaults that only terms have are here. Published terms state every field, so a default that
changes later cannot change what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

DOWNLOAD: Final = 64  # MiB: the longest answers, added up, for which `scheme = "auto"` does without linked servers
WINDOW: Final = 600  # seconds: the longest life of a ticket that an applicant makes, in open mode
MOST_SERVERS: Final = 64
MOST_RECORDS: Final = 255

Server = Annotated[int, Meta(ge=1, le=MOST_SERVERS)]
Part = Literal["form", "reveal", "protocol", "record"]
Option = (
    Annotated[int, Meta(gt=-(1 << 53), lt=1 << 53)]  # a JavaScript number holds it exactly
    | Annotated[str, Meta(max_length=100)]
    | bool
)
Options = Mapping[str, Mapping[str, Any]]  # a part of the scheme, to the parameters that only this part has
_DECIMAL: Final = r"^([0-9]+(\.[0-9]+)?(e-[0-9]+)?)?\Z"  # a number, or nothing


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an institution says of its regions: which model decides, and how certain it is that it accepts all of them.

    Without `sampled`, every point of every region is certain to be accepted. With it, so many points of each region
    were tried and accepted, so that with a confidence of 95 % at most `at_most` of a million points are not.
    `epsilon` and `delta` are what the institution states of differential privacy, as decimal numbers in text.
    """

    model: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # the SHA-256 of the model
    sampled: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    at_most: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    epsilon: Annotated[str, Meta(pattern=_DECIMAL, max_length=24)] = ""
    delta: Annotated[str, Meta(pattern=_DECIMAL, max_length=24)] = ""

    def text(self) -> str:
        """Say what is certain, and of which model."""
        model = f"the model with the digest {self.model[:16]}…"
        if not self.sampled:
            return f"It is certified that {model} accepts everybody in this region."
        share = f"{self.at_most / 10_000:.4g} %"
        return (
            f"This is not certified: {model} accepted {self.sampled:,} points sampled in this region. "
            f"With a confidence of 95 %, it rejects at most {share} of them."
        )

    def privacy(self) -> str:
        """Say what the institution states of the people whose data it used; nothing if it states nothing."""
        if not self.epsilon:
            return ""
        return (
            f"Regions are differentially private for every person of the data, by this build alone: epsilon = "
            f"{self.epsilon}, delta = {self.delta or 0}. The model and the schema count as public: this says nothing "
            f"of people whom the model was fitted on."
        )


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the institution chose; `Deployment.of` takes the same names."""

    scheme: Annotated[str, Meta(max_length=100)]
    servers: Server
    collusion: Server
    k: Annotated[int, Meta(ge=1, le=MOST_RECORDS)]
    max_weight: Annotated[int, Meta(ge=1, lt=1 << 53)]
    shuffle: bool
    d_min: Annotated[int, Meta(ge=1, lt=1 << 53)]
    norm: Annotated[int, Meta(ge=2, le=64)]
    options: dict[Part, dict[str, Option]] | msgspec.UnsetType = msgspec.UNSET  # absent where there are none
    protocol: Annotated[str, Meta(max_length=100)] | msgspec.UnsetType = msgspec.UNSET  # absent: the reveal's usual one

    @property
    def reveal(self) -> str:
        """What a question reveals, in one line. A ticket carries the same line."""
        order = ", shuffled" if self.shuffle else ""
        return self.scheme.partition("/")[2] + order + (f", mask below {self.d_min}" if self.d_min > 1 else "")

    def chosen(self) -> dict[str, Any]:
        """Return the parameters that are set, as keyword arguments of `Deployment.of`."""
        every = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in every.items() if value is not msgspec.UNSET}
