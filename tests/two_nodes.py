"""A real Ray cluster of two nodes on this machine, at two loopback addresses of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import ray
from ray.cluster_utils import Cluster

from counterveil.engine.shards import NAMESPACE

STORE = 128 << 20  # bytes of the object store of each node


@contextmanager
def two_nodes() -> Iterator[str]:
    """Run a cluster of two nodes, connect this process to it, and give its address."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, since paths of sockets may have 107 bytes
    (Path(folder) / "ray").mkdir()  # Ray writes its address there, and does not make the folder itself
    os.environ["RAY_TMPDIR"] = folder  # not the folder of other clusters on this machine
    cluster = Cluster()
    try:
        node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        for address in ("127.0.0.2", "127.0.0.3"):
            cluster.add_node(node_ip_address=address, **node)
        ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False, _node_ip_address="127.0.0.2")
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ["RAY_TMPDIR"]
