from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from clusters import Cluster, pair
from counts import some

settings.register_profile(
    "counterveil",
    deadline=None,  # these machines are shared; speed is measured in benchmarks/
    max_examples=some(200, 2),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("counterveil"), max_examples=20)  # `make quick`
settings.load_profile("counterveil")

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips one of its checks


def pytest_report_header() -> list[str]:
    """Say which cases this machine cannot run."""
    from machine import left_out

    return left_out()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def replicated() -> Iterator[tuple[Cluster, Cluster]]:
    """A PostgreSQL primary and its synchronous standby, for all tests that leave them running."""
    with pair() as clusters:
        yield clusters
