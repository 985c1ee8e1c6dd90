"""Pools that some workers of a simulated fleet share."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cachelb_lab.sim import FleetSpec, PoolSpec, Signals, WorkerSpec, build, simulate
from cachelb_lab.sim.gpus import find_gpu, find_model
from cachelb_lab.sim.league import COMPARED, LOADS, League, Standings, play

HALF = FleetSpec.parse("2xl40s/pool=0.01+2xl40s")
POLICIES = ("adaptive+events", "adaptive+events+pool-blind")


def test_fleets_with_a_pool_are_described_as_they_are_written() -> None:
    for text in ("1 x a30/pool=0.01", "2 x a30 + 1 x a30:tp2/pool=0.25:4096", "1 x a30/window=1024*5"):
        assert FleetSpec.parse(text).describe() == text
    assert HALF.pool == (PoolSpec(0.01), ["worker-0", "worker-1"])
    assert FleetSpec.parse("2xa30").pool is None
    assert "pool" not in FleetSpec.parse("2xa30").native()[0]
    assert FleetSpec.parse("1xa30/pool=0.5:100").native()[0]["pool"] == {"blocks": 6, "seconds_per_token": 5e-4}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1xa30/pool=0.01+1xa30/pool=0.02", "share one pool"),
        ("1xa30/pool=0.01:64+1xa30/pool=0.01", "share one pool"),
        ("1xa30/pool=", "cannot read 'pool='"),
        ("1xa30/pool=0.1:0", "at least 1 token"),
        ("1xa30/pool=0.1/pool=0.1", "cannot read"),
        ("1xa30/window=128/pool=0.1", "pool is for workers that cache prefixes"),
        ("1xv100/pool=0.1", "pool is for workers that cache prefixes"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FleetSpec.parse(text)


def test_workers_without_prefix_caching_have_no_pool() -> None:
    with pytest.raises(ValueError, match="pool is for workers that cache prefixes"):
        WorkerSpec(find_gpu("a30"), find_model("llama-3-8b"), pool=PoolSpec(0.1), prefix_caching=False)


def test_a_pool_brings_what_memory_lost() -> None:
    """One prompt in turn with others that fill the cache: it is loaded, unless that takes longer than computing it."""
    rows = build("rag", seed=1, count=60)
    cached = {
        text: int(simulate(rows, FleetSpec.parse(text, kv_tokens=16_384), "round-robin").cached_tokens.sum())
        for text in ("2xl40s", "2xl40s/pool=0.01", "2xl40s/pool=0.01:1024", "2xl40s/pool=10")
    }
    plain = cached["2xl40s"]
    assert cached["2xl40s/pool=0.01"] > 1.5 * plain
    assert plain <= cached["2xl40s/pool=0.01:1024"] < cached["2xl40s/pool=0.01"]
    assert cached["2xl40s/pool=10"] == plain


def test_a_policy_blind_to_the_pool_has_only_the_events_of_workers() -> None:
    """A worker loads blocks that the other computed; only a router that knows the pool predicts it."""
    rows = build("rag", seed=1, count=60).speed_up(0.1)  # few overlap, so that little changes while a request waits
    fleet = FleetSpec.parse("2xl40s/pool=0.01", kv_tokens=16_384)
    known, blind = (simulate(rows, fleet, policy, seed=1) for policy in POLICIES)
    same = simulate(rows, fleet, seed=1, signals=Signals(kv_events=True, pool_known=False))
    assert (blind.predicted_tokens == same.predicted_tokens).all()
    assert (blind.first_token_s == same.first_token_s).all()
    error, more = (np.abs(r.predicted_tokens - r.cached_tokens.astype(float)).mean() for r in (known, blind))
    assert error < more / 4


# === what a router gains that knows the pool of half the workers ===

MOST_LOSS = 1.02
"""Largest ratio of the mean TTFT and the mean E2E, in the mean of seeds, in any cell."""

QUICK = League(
    ("tool-agent(count=1000)", "rag(count=1000)"),
    ("2xl40s/pool=0.01+2xl40s",),
    loads=(0.5, 0.85, 1.05),
    seeds=(1, 2, 3),
)
"""The part of the quick league that needs the fewest seeds to show a loss, with half its requests."""

WHOLE = replace(
    QUICK,
    traces=("chat(count=2000)", "agent(count=1500)", *QUICK.traces, "tenants(count=1000)"),
    loads=LOADS,
    seeds=range(1, 9),
)
"""Every generator of the project's league at every load."""


def mean_gain(league: League) -> dict[str, float]:
    """Check that in no cell it loses more than `MOST_LOSS` by two standard errors; return the mean of logarithms.

    A cell is a trace at a load. Its seeds are paired, and their ratios have a geometric mean: that of equal routers is
    1. The arithmetic mean is above, the more so the more a cell depends on chance, as near saturation, where the times
    of a run depend on whether one worker is full before it ends.
    """
    known, blind = POLICIES
    found = Standings(play(league, POLICIES).rows, reference=blind)
    assert not any(row.figures["unserved"] for row in found.rows)
    means = {}
    cells = {row.cell: (row.facts["trace"], row.facts["load"]) for row in found.rows}
    for figure in COMPARED:
        if figure.name not in ("ttft_mean_s", "e2e_mean_s"):
            continue
        logs: dict[tuple[str, float], list[float]] = {}
        for cell, ratio in found.ratios(known, figure).items():
            logs.setdefault(cells[cell], []).append(math.log(ratio))
        assert {len(each) for each in logs.values()} == {len(league.seeds)}
        for name, each in logs.items():
            error = np.std(each, ddof=1) / math.sqrt(len(each))
            assert np.mean(each) - 2 * error < math.log(MOST_LOSS), (name, figure.name, np.exp(each))
        means[figure.name] = float(np.mean(list(logs.values())))
    return means


def test_to_know_the_pool_of_half_the_workers_is_a_gain() -> None:
    assert max(mean_gain(QUICK).values()) < 0


@pytest.mark.long
def test_to_know_the_pool_of_half_the_workers_is_a_gain_everywhere() -> None:
    assert max(mean_gain(WHOLE).values()) < 0


def test_to_know_the_pool_of_half_the_workers_costs_short_prompts_nothing(traces: Path) -> None:
    """Passes take as long without their few uncached tokens, so that to load instead saves next to nothing."""
    agents = f"{traces}/agents/taubench_sessions_block16.jsonl.xz(copies=10)"
    means = mean_gain(replace(QUICK, traces=(agents,), part="develop"))
    assert max(means.values()) < math.log(1.01)
