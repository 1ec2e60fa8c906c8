"""The files for those who watch servers: dashboard and alerts name what servers show; compose keeps operators apart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from counterveil.research.processes import serving
from counterveil.service.app import REFUSALS
from service import numbers_database

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "dashboard.json").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [str(each["query"]) for each in DASHBOARD["templating"]["list"]]
    return [rule["expr"] for rule in RULES] + panels + variables


def chosen(label: str) -> set[str]:
    """Return the values of a label that dashboard and alerts choose by name."""
    found = re.findall(rf'\b{label}\s*[=!]~?"([^"]*)"', "\n".join(expressions()))
    return {value for choice in found for value in re.sub(r"/v1/\((.*)\)", r"\1", choice).split("|")}


@pytest.mark.slow
def test_every_metric_that_dashboard_and_alerts_name_is_shown_by_a_server(tmp_path: Path) -> None:
    options: dict[str, Any] = {"scheme": "table/sealed", "protocol": "joint", "dealer": "server", "linked": True}
    with serving(tmp_path, numbers_database(20, 2), **options) as (server, _):
        text = httpx2.get(f"{server.url}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    named = set(re.findall(r"\bcounterveil_\w+", "\n".join(expressions())))
    families = {f.name for f in text_string_to_metric_families(text) if not f.name.endswith("_created")}
    requests = {
        sample.labels["code"]: sample.value for sample in samples if sample.name == "counterveil_requests_total"
    }
    assert requests.keys() >= REFUSALS.keys()  # from zero on, or the first one is no increase
    shown = {sample.name for sample in samples} | {f"{name}_total" for name in families} | families
    shown |= {"counterveil_request_seconds_bucket"}  # which has samples after the first request
    assert len(named) > 10
    assert named <= shown, named - shown
    assert families - {name.removesuffix("_total").removesuffix("_bucket") for name in named} == set()
    assert "counterveil_ledger_ready 1.0" in text


def test_codes_and_paths_of_dashboard_and_alerts_exist() -> None:
    assert chosen("code") <= {*REFUSALS, "ok", "other"}
    assert {"internal", "busy", "ticket_used"} <= chosen("code")
    assert chosen("path") <= {"answer", "record", "attempt", "/v1/.*"}


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^### (Counterveil\w+)$", page, flags=re.M) == [rule["alert"] for rule in RULES]


def test_prometheus_understands_the_alerts(tmp_path: Path) -> None:
    """With its own tool, where that is installed: Debian's package prometheus has it."""
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in RULES)
    for name in (DEPLOY / "alerts.yaml", ROOT / "tests" / "data" / "alerts.test.yaml"):
        shutil.copy(name, tmp_path)
    if tool := shutil.which("promtool"):
        for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
            found = subprocess.run([tool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert found.returncode == 0, found.stdout + found.stderr


def test_compose_keeps_the_operators_apart() -> None:
    """The two share no network, no file of their own and no password, and no database can be reached from outside."""
    halves: dict[str, dict[str, Any]] = {"one": {}, "two": {}}
    for name, service in COMPOSE["services"].items():
        (operator,) = service["profiles"]
        halves[operator][name] = service
    seen = []
    for operator, services in halves.items():
        networks = {name for service in services.values() for name in service["networks"]}
        mounts = {str(mount).split(":")[0] for service in services.values() for mount in service["volumes"]}
        shared = {"./nginx.conf", "./postgres/primary.sh", "./postgres/standby.sh"}
        secret = {str(service["env_file"]) for service in services.values() if "env_file" in service}
        assert all(path.startswith(f"{operator}/") for path in secret)
        assert {path for path in mounts if path.startswith("./")} - shared == {
            f"./{operator}/files", f"./{operator}/tls"
        }  # fmt: skip
        seen.append(networks | (mounts - shared))
        for name, service in services.items():
            back = [network for network in service["networks"] if COMPOSE["networks"][network].get("internal")]
            assert ("ports" in service) == name.startswith("proxy")
            assert service["security_opt"] == ["no-new-privileges:true"]
            if name.startswith(("primary", "standby")):
                assert list(service["networks"]) == back
            else:
                assert service["read_only"]
                assert service["cap_drop"] == ["ALL"]
                assert service["user"] != "root"
    assert not seen[0] & seen[1]


def test_the_image_runs_as_an_ordinary_user_with_what_was_locked() -> None:
    lines = (DEPLOY / "Containerfile").read_text()
    assert re.findall(r"^USER (.*)$", lines, flags=re.M) == ["10001:10001"]
    assert "--require-hashes" in lines
    assert "HEALTHCHECK" in lines
    locked = set(re.findall(r"^([\w.-]+)==", (DEPLOY / "requirements.txt").read_text(), flags=re.M))
    assert {"fastapi", "psycopg-binary", "opentelemetry-sdk", "numba"} <= locked
    development = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements-dev.txt").read_text(), flags=re.M))
    ours = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (DEPLOY / "requirements.txt").read_text(), flags=re.M))
    assert {name: version for name, version in ours.items() if development.get(name, version) != version} == {}
