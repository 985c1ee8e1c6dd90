"""Sessions as a benchmark: figures equal a recount from the requests, and an idle fleet is the yardstick."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.commands import app

from cachelb_lab.sim import Comparison, FleetSpec, Workload, build, compare, simulate
from cachelb_lab.sim.figures.agentic import SessionFigures
from cachelb_lab.sim.league.traces import copied

FLEET = FleetSpec.parse("2xa30+1xh100:tp2")


def agents(seed: int, rate: float = 2.0) -> Workload:
    return build("agent", seed=seed, count=80, rate=rate)


def sessions(comparison: Comparison) -> list[SessionFigures | None]:
    return [run.metrics.sessions for cell in comparison.cells for run in cell.runs]


@given(
    seed=st.integers(0, 1000),
    rate=st.sampled_from([0.1, 2.0, 50.0]),
    within=st.floats(1.001, 4.0),
    options=st.sampled_from([{}, {"max_wait_s": 0.0, "max_pending_tokens": 500}]),
)
@settings(max_examples=25, deadline=None)
def test_figures_equal_a_recount(seed: int, rate: float, within: float, options: dict[str, Any]) -> None:
    workload = agents(seed, rate)
    result = simulate(workload, FLEET, "round-robin", seed=seed, **options)
    idle = simulate(workload.speed_up(0.1), FLEET, "adaptive", seed=seed)
    found = SessionFigures.of(result, idle, FLEET, within=within)

    assert workload.session is not None
    took_s: defaultdict[str, float] = defaultdict(float)
    least_s: defaultdict[str, float] = defaultdict(float)
    lost: set[str] = set()
    for row, session in enumerate(workload.session):
        took_s[session] += result.finish_s[row] - result.arrival_s[row]
        least_s[session] += idle.finish_s[row] - idle.arrival_s[row]
        if not result.finished[row]:
            lost.add(session)
    slowdowns = [took_s[session] / least_s[session] for session in took_s if session not in lost]
    on_time = sum(slowdown <= within for slowdown in slowdowns)
    assert found.count == len(took_s)
    assert found.completed == pytest.approx(1 - len(lost) / len(took_s))
    assert found.on_time == on_time / len(took_s)
    if slowdowns:
        assert found.slowdown.p50 == pytest.approx(np.median(slowdowns))
    gpu_s = float(result.busy_s[0] + result.busy_s[1] + 2 * result.busy_s[2])
    assert found.gpu_h_per_session == pytest.approx(gpu_s / 3600 / on_time if on_time else math.inf)


def test_sessions_that_come_one_by_one_are_as_fast_as_on_an_idle_fleet() -> None:
    fleet = FleetSpec.parse("1xh100")
    found = compare(lambda seed: agents(seed, 0.001), fleet, ["adaptive", "random"], seeds=(1, 2), within=1.5)
    for figures in sessions(found):
        assert figures is not None
        assert figures.on_time == 1
        assert figures.slowdown.p90 == pytest.approx(1.0, abs=0.01)


def test_runs_and_their_order_do_not_depend_on_threads() -> None:
    one, two = (
        compare(agents, FLEET, ["adaptive", "round-robin"], seeds=(3, 4), within=1.5, threads=threads)
        for threads in (1, 3)
    )
    assert sessions(one) == sessions(two)
    assert [cell.policy for cell in one.cells] == ["adaptive", "round-robin"]
    alone = compare(agents, FLEET, ["round-robin"], seeds=(4,), within=1.5)
    assert sessions(one)[3:] == sessions(alone)


def test_requests_without_a_session_are_no_session() -> None:
    mixed = Workload.concat([agents(1), build("rag", seed=1, count=20)])
    with pytest.raises(ValueError, match="has requests without a session"):
        compare(mixed, FLEET, ["random"], within=1.5)
    assert mixed.session is not None
    assert [name for name in copied([mixed, mixed]).session or () if not name.endswith(("#0", "#1"))] == [""] * 40


def test_narrow_terminal_loses_columns_and_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.cli.table._PIPE_WIDTH", 80)
    words = ["bench", "agentic", "agent", "--count", "60", "--fleet", "4xa30", "--policy", "sticky-until-saturated"]
    for seeds, least in (("1", "token hits, session mean"), ("2", "±, token hits, session mean")):
        found = CliRunner().invoke(app, [*words, "--seeds", seeds]).output
        assert "…" not in found
        assert f"TTFT p90, slowdown p50, {least}" in " ".join(found.split())
        assert found.count("±") == 2 * (seeds == "2")
        assert "on time" in found


def test_command_prints_the_best_first_and_all_figures_as_json() -> None:
    words = ["bench", "agentic", "agent", "--count", "300", "--rate", "3", "--fleet", "4xa30", "--seeds", "2"]
    words += ["--policy", "round-robin,adaptive"]
    table = CliRunner().invoke(app, words)
    assert table.exit_code == 0, table.output
    assert table.output.index("adaptive") < table.output.index("round-robin")
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    cells = {cell["policy"]: [run["metrics"] for run in cell["runs"]] for cell in document["cells"]}
    assert list(cells) == ["round-robin", "adaptive"]
    assert [run["sessions"]["completed"] for run in cells["adaptive"]] == [1.0, 1.0]
    assert all(
        run["hit_rate"] > other["hit_rate"] for run, other in zip(cells["adaptive"], cells["round-robin"], strict=True)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rag"], "'rag' has requests without a session; take a workload such as coding-agent"),
        (["--within", "0.9"], "0.9 is not in the range x>=1"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "agentic", *words, "--seeds", "1"])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
