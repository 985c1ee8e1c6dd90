"""Pools that some workers of a simulated fleet share."""

from __future__ import annotations

import numpy as np
import pytest

from cachelb.sim import FleetSpec, PoolSpec, Signals, SimResult, WorkerSpec, Workload, build, simulate
from cachelb.sim.gpus import find_gpu, find_model

HALF = FleetSpec.parse("2xl40s/pool=0.01+2xl40s")


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


def run(workload: Workload, *, known: bool, seed: int) -> SimResult:
    return simulate(workload, HALF, seed=seed, signals=Signals(kv_events=True, pool_known=known))


@pytest.mark.parametrize(("name", "capacity"), [("tool-agent", 0.917), ("rag", 0.723)])
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_to_know_the_pool_of_half_the_workers_costs_nothing(name: str, capacity: float, load: float) -> None:
    """Never more than 2 % over a router that does not know it, in the mean of three seeds."""
    ratios = []
    for seed in (1, 2, 3):
        workload = build(name, seed=seed, count=600).speed_up(capacity * load)
        known, blind = (run(workload, known=known, seed=seed) for known in (True, False))
        assert known.finished.all()
        assert blind.finished.all()
        errors = [np.abs(r.predicted_tokens - r.cached_tokens.astype(float)).mean() for r in (known, blind)]
        assert errors[0] < errors[1], "what the pool holds is predicted"
        ratios.append([known.ttft_s.mean() / blind.ttft_s.mean(), known.e2e_s.mean() / blind.e2e_s.mean()])
    assert (np.mean(ratios, axis=0) < 1.02).all(), ratios
