"""Who shares the work of a build: processes of this machine, or a Ray cluster."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..algebra.compiled import cores
from ..errors import WrongType
from ..institution import cluster, streaming

ENGINE = click.option(
    "--engine",
    default="cpu",
    show_default=True,
    type=click.Choice(["cpu", "ray"]),
    help="What shares the work on a folder: processes of this machine, or all cores of a Ray cluster.",
)
RAY_ADDRESS = click.option(
    "--ray-address", help="--engine ray: the cluster, HOST:PORT; by default one is started on this machine."
)


def check_engine(engine: str, streams: bool, processes: int | None, address: str | None) -> None:
    """Refuse settings that contradict each other, before any work is done."""
    if engine == "ray" and not streams:
        raise WrongType("--engine ray", got="a file in memory", expected="a folder of Parquet files, or --memory")
    if engine == "ray" and processes:
        raise WrongType("--engine ray", got="--processes", expected="all cores of the cluster, without this setting")
    if engine != "ray" and address:
        raise WrongType(f"--engine {engine}", got="--ray-address", expected="it with --engine ray only")


def shared(engine: str, address: str | None, memory: int | None, processes: int | None) -> dict[str, Any]:
    """Return the arguments of `streaming.build` that say who shares the work, and how much memory they have."""
    if engine != "ray":
        return {"memory": memory or streaming.MEMORY, "processes": processes or cores()}
    machines, count = cluster.size_of(address)
    hire = partial(cluster.ray_crew, address)
    return {"memory": memory or streaming.MEMORY * machines, "processes": count, "hire": hire}
