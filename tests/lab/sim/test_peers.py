"""Simulated workers that take cached blocks from the host memory of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cachelb import policies
from cachelb_lab.sim import FleetSpec, PeerSpec, PoolSpec, Signals, build, simulate

FLEET = FleetSpec.parse("4xl40s/tier=0.003/peers=0.0106:27", kv_tokens=32_768)


def test_fleets_with_peers_are_described_as_they_are_written() -> None:
    for text in ("1 x a30/tier=0.01", "2 x a30/tier=0.003:4096/peers=0.0106:26 + 1 x a30", "1 x a30/tier=0/peers=0.2"):
        assert FleetSpec.parse(text).describe() == text
    assert FLEET.tier == PoolSpec(0.003)
    assert FleetSpec.parse("2xa30").tier is None
    native = FLEET.native()[0]
    assert native["tier"] == {"blocks": 65_536, "seconds_per_token": 3e-6}
    assert native["peers"] == PeerSpec(0.0106, 27).native(16)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1xa30/pool=0.01/tier=0.01", "a pool or a tier"),
        ("1xa30/peers=0.01", "give the worker one"),
        ("1xa30/tier=0.01:0", "at least 1 token"),
        ("1xa30/tier=0.01/peers=", "cannot read"),
        ("1xa30/tier=0.01/tier=0.02", "cannot read"),
        ("1xa30/window=128/tier=0.1", "workers that cache prefixes"),
    ],
)
def test_peers_that_cannot_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FleetSpec.parse(text)


@pytest.mark.parametrize("field", ["load_ms_per_token", "startup_ms", "timeout_s", "best_from"])
def test_peers_need_times_that_do_not_run_back(field: str) -> None:
    with pytest.raises(ValueError, match=r"0 or more|at least 0"):
        replace(PeerSpec(0.01), **{field: -1})


def test_a_named_source_spares_what_else_is_computed() -> None:
    rows = build("chat", seed=1, count=300)
    blind, named, short = (
        simulate(rows, FLEET, f"round-robin{option}+events", seed=1)
        for option in ("", "(pull_min_tokens=512)", "(pull_min_tokens=1000000)")
    )
    assert not blind.pulled_tokens.any()
    assert (blind.first_token_s == short.first_token_s).all()
    assert named.pulled_tokens.sum() > 0.9 * (named.cached_tokens.sum() - blind.cached_tokens.sum()) > 100_000
    assert (named.pulled_tokens <= named.cached_tokens).all()
    assert named.ttft_s.mean() < 0.9 * blind.ttft_s.mean()


def test_a_bound_needs_no_name() -> None:
    rows = build("chat", seed=1, count=300)
    best = [replace(worker, peers=PeerSpec(0.0106, best_from=512)) for worker in FLEET]
    bound = simulate(rows, FleetSpec(tuple(best)), "round-robin", seed=1)
    assert bound.pulled_tokens.sum() > 100_000


def test_adaptive_knows_how_long_a_worker_loads() -> None:
    rows = build("agent", seed=1, count=300)
    fleet = FleetSpec.parse("2xl40s/tier=0.1", kv_tokens=16_384)
    known, blind = (simulate(rows, fleet, "adaptive" + ending, seed=1) for ending in ("+events", "+events+pool-blind"))
    policy = policies.Adaptive(load_ms_per_token={"cpu": 0.1})
    stated = simulate(rows, fleet, policy, seed=1, signals=Signals(kv_events=True))
    assert np.array_equal(known.first_token_s, stated.first_token_s, equal_nan=True)
    assert (known.worker == stated.worker).all()
    assert (known.worker != blind.worker).any()


def test_policies_written_in_python_name_no_sources() -> None:
    class First:
        name = "first"
        needs: frozenset[str] = frozenset()

        def choose(self, _request: object, _fleet: object) -> int:
            return 0

    rows = build("rag", seed=1, count=5)
    with pytest.raises(ValueError, match="pull_min_tokens is for routers with policies of this library"):
        simulate(rows, FLEET, First(), pull_min_tokens=64)
