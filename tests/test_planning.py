"""A plan says what protocols announce and engines hold. `benchmarks/plan.py` compares its seconds with real ones."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from counterveil import engine
from counterveil.cli import main
from counterveil.research.constants import Constants, Played, deployment_of, gates, material
from counterveil.research.planning import Machine, Plan

DOCS = Path(__file__).parent.parent / "docs"
PROTOCOLS: list[Any] = ["joint", "garbled", "padded"]


def run(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["plan", "--json", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_a_plan_of_a_thousand_million_rows_takes_no_memory() -> None:
    tracemalloc.start()
    found = run("--rows", "1e9", "--features", 40, "--questions-per-second", 50, "--protocol", "joint")["plan"]
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 64 << 20
    assert found["rows in memory"]["value"] == 40e9
    assert found["records in memory"]["value"] == (8 * 40 + 64 + 32) * 10**9
    deployment = deployment_of(40, 64, "joint")
    assert found["between servers, each way"]["value"] == deployment.between(10**9)
    assert found["machines of each server"]["value"] >= 50 * found["server"]["value"] / 16


@pytest.mark.parametrize(("rows", "features", "levels"), [(1000, 3, 16), (1280, 4, 300), (129, 5, 256)])
def test_rows_take_the_memory_that_the_plan_says(rows: int, features: int, levels: int) -> None:
    codes = np.full((rows, features), levels - 1, dtype=np.uint8 if levels <= 256 else np.uint16)
    laid: Any = engine.lay_out(codes, worthwhile=0)
    assert laid.data.data.nbytes == Plan(rows, features, levels=levels).rows_held


@pytest.mark.parametrize(("protocol", "field"), [("joint", "joint_held"), ("padded", "padded_held")])
def test_memory_of_a_question_is_predicted_within_a_third(protocol: Any, field: str) -> None:
    """Measured at one size and shape, it holds for another; and the constants that are written down hold too."""
    small, large = deployment_of(4, 16, protocol), deployment_of(9, 30, protocol)
    units = (material(small, 1 << 17), material(large, 200_000)) if protocol == "joint" else (1 << 17, 200_000)
    each = Played(small, 1 << 17).held() / units[0]
    measured = Played(large, 200_000).held()
    assert each * units[1] == pytest.approx(measured, rel=0.3)
    assert getattr(Constants(), field) * units[1] == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_counted_grows_as_rows_do(protocol: Any) -> None:
    small, large = (Plan(rows, 20, protocol=protocol) for rows in (10**6, 10**7))
    held = () if protocol == "garbled" else ("question_held",)
    for name in ("rows_held", "records_held", *held, "scan", "record_step", "build"):
        assert getattr(large, name) == pytest.approx(10 * getattr(small, name), rel=0.03), name
    assert gates(deployment_of(20, 64, "garbled"), 10**6) > 10**7


def test_machines_suffice_for_processors_and_for_memory() -> None:
    for questions in (0.01, 1, 50, 1000):
        for memory in (8 << 30, 64 << 30):
            plan = Plan(10**8, 40, questions, machine=Machine(memory=memory))
            held = plan.rows_held + plan.records_held + plan.in_flight * plan.question_held
            assert plan.machines * memory >= held
            assert plan.machines * 16 >= questions * plan.server
            fewer = plan.machines - 1
            if fewer:
                short = plan.rows_held + plan.records_held + plan.in_flight_of(fewer) * plan.question_held
                assert fewer * memory < short or fewer * 16 < questions * plan.server


def test_every_line_and_constant_has_its_formula_in_the_docs() -> None:
    text = " ".join((DOCS / "performance.md").read_text().split())
    for protocol in PROTOCOLS:
        for line in Plan(10**6, 20, protocol=protocol).lines():
            assert f"| {line.name} |" in text, line.name
            assert line.formula in text, line.formula
    for name in Constants.__struct_fields__:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("wrong", ["0", "1.5", "many", "5e9", "nan"])
def test_bad_numbers_of_rows_are_refused(wrong: str) -> None:
    done = CliRunner().invoke(main, ["plan", "--rows", wrong, "--features", "3"])
    assert done.exit_code == 2
    assert "expected a whole number from 1 to 4294967295" in done.output


def test_a_plan_is_shown_as_a_table() -> None:
    done = CliRunner().invoke(main, ["plan", "--rows", "100000", "--features", "5", "--protocol", "garbled"])
    assert done.exit_code == 0
    assert "garble·A" in done.output
    assert "Constants: scan 0.07" in done.output
