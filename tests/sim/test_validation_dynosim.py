"""Against DynoSim 1.6.1 on the conversation trace: the engine model, and Dynamo's cost with it.

The reference is in `anchors/dynosim_1.6.1_conversation.json`: its default polynomial of time, 8 workers of 6,400 blocks
of 64 tokens, arrivals divided by 1, 2 and 4. It routes in no time, and blocks can be found when their pass has ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelb.sim import FleetSpec, Signals, SimResult, Workload, simulate
from cachelb.sim.timing import Polynomial
from cachelb.sim.workloads.traces import read_mooncake

Rows = dict[tuple[float, str], dict[str, Any]]

LATENCIES = ("ttft_mean", "ttft_p90", "ttft_p99", "tpot", "e2e")
FLEET = FleetSpec.parse(
    "8xa100",
    block_size=64,
    kv_tokens=6_400 * 64,
    max_num_batched_tokens=8_192,
    max_num_seqs=256,
    timing=Polynomial(),
    commit="step_end",
)
AT_ONCE = Signals(net_delay_s=0.0)


def read_reference(traces: Path) -> Rows:
    rows = json.loads((traces / "anchors" / "dynosim_1.6.1_conversation.json").read_text())["rows"]
    return {(row["speedup"], row["mode"]): row for row in rows}


@pytest.fixture(scope="module")
def reference(traces: Path) -> Rows:
    return read_reference(traces)


@pytest.fixture(scope="module")
def conversation(conversation_trace: Path) -> Workload:
    return read_mooncake(conversation_trace, block_size=64)


def columns(result: SimResult) -> dict[str, float]:
    """What DynoSim reports, in its units."""
    assert result.finished.all()
    ttft = result.ttft_s * 1e3
    tokens = result.workload
    return {
        "ttft_mean": float(ttft.mean()),
        "ttft_p90": float(np.percentile(ttft, 90)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "tpot": float(result.tpot_s.mean()) * 1e3,
        "e2e": float(result.e2e_s.mean()) * 1e3,
        "reuse": float(result.cached_tokens.sum() / tokens.prompt_tokens.sum()),
        "thr": float(tokens.output_tokens.sum() / result.end_s),
    }


@pytest.mark.parametrize("speed_up", [1.0, 2.0])
def test_round_robin_is_within_two_percent(speed_up: float, conversation: Workload, reference: Rows) -> None:
    ours = columns(simulate(conversation.speed_up(speed_up), FLEET, "round-robin", signals=AT_ONCE))
    theirs = reference[speed_up, "round_robin"]
    assert ours == pytest.approx({key: theirs[key] for key in ours}, rel=0.02)


def test_overloaded_round_robin_is_within_one_percent(conversation: Workload, reference: Rows) -> None:
    ours = columns(simulate(conversation.speed_up(4.0), FLEET, "round-robin", signals=AT_ONCE))
    theirs = reference[4.0, "round_robin"]
    # Reuse is counted otherwise after a preemption.
    assert {key: ours[key] for key in (*LATENCIES, "thr")} == pytest.approx(
        {key: theirs[key] for key in (*LATENCIES, "thr")}, rel=0.01
    )


@pytest.mark.parametrize("speed_up", [1.0, 2.0])
def test_dynamos_cost_is_within_five_percent_of_its_router(
    speed_up: float, conversation: Workload, reference: Rows
) -> None:
    ours = columns(simulate(conversation.speed_up(speed_up), FLEET, "overlap-cost+events", seed=1, signals=AT_ONCE))
    theirs = reference[speed_up, "kv_router"]
    assert {key: ours[key] for key in LATENCIES} == pytest.approx({key: theirs[key] for key in LATENCIES}, rel=0.05)
    assert ours["reuse"] == pytest.approx(theirs["reuse"], abs=0.02)
    assert ours["ttft_mean"] < reference[speed_up, "round_robin"]["ttft_mean"]


def test_dynamos_cost_stays_near_its_router_at_saturation(conversation: Workload, reference: Rows) -> None:
    """Turns of one session wait side by side.

    To count their blocks for each of them made it 1.8 times as slow; to credit them before their events, 1.2 times.
    """
    ours = columns(simulate(conversation.speed_up(4.0), FLEET, "overlap-cost+events", seed=1, signals=AT_ONCE))
    theirs = reference[4.0, "kv_router"]
    assert {key: ours[key] for key in LATENCIES} == pytest.approx({key: theirs[key] for key in LATENCIES}, rel=0.05)


def test_an_engine_on_its_own_caches_like_one_lru_pool(conversation_trace: Path) -> None:
    # Answers would take room too.
    engine = FleetSpec.parse("a100", block_size=512, kv_tokens=3_200_000, prefill_only=True)
    silent = Signals(net_delay_s=0.0, scrape_interval_s=float("inf"))
    # Slow enough for an engine that serves one request after the other.
    requests = read_mooncake(conversation_trace, block_size=512).speed_up(0.02)
    run = simulate(requests, engine, "round-robin", signals=silent, sample_interval_s=float("inf"))
    assert columns(run)["reuse"] == pytest.approx(0.1527, abs=0.0005)  # by stack distances, see test_lru_bound
