from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from clusters import Cluster, pair
from counts import some

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@pytest.fixture(scope="module")  # while it runs, no other event loop can
def browser() -> Iterator[Browser]:
    from browser import chromium

    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def people() -> list[dict[str, Any]]:
    """People of the German credit data who were rejected."""
    from counterveil.research.datasets import german_credit

    frame, schema = german_credit()
    bad = frame.filter(frame["credit"] == "bad")
    return [{name: bad[name][i] for name in schema.names} for i in range(100)]
