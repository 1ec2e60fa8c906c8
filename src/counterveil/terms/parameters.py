"""The public parameters of a deployment: one struct, the same in the terms, in a schema's `[deployment]` and in Python.

`Deployment.of` takes the same names, and a `[deployment]` table holds any of them. Defaults of the scheme stand in
`schemes/defaults.py`, those that only terms have stand here. All fields travel, so that no default can change what
published terms mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

DOWNLOAD: Final = 64  # MiB that a question may bring down under `scheme = "auto"`
WINDOW: Final = 600  # seconds that a ticket of one's own may last in open mode
MOST_SERVERS: Final = 64
MOST_RECORDS: Final = 255

Server = Annotated[int, Meta(ge=1, le=MOST_SERVERS)]
Part = Literal["form", "reveal", "protocol", "record"]
Option = (
    Annotated[int, Meta(gt=-(1 << 53), lt=1 << 53)]  # as exact in JavaScript as here
    | Annotated[str, Meta(max_length=100)]
    | bool
)
Options = Mapping[str, Mapping[str, Any]]  # own parameters, under the part of the scheme that has them


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

    @property
    def reveal(self) -> str:
        """What a question reveals, in one line, as tickets name it."""
        order = ", shuffled" if self.shuffle else ""
        return self.scheme.partition("/")[2] + order + (f", mask below {self.d_min}" if self.d_min > 1 else "")

    def chosen(self) -> dict[str, Any]:
        """Return them as `Deployment.of` takes them."""
        every = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in every.items() if value is not msgspec.UNSET}
