"""Runs from Python: the router in simulated time, one written in Python, several before one fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.own_policy import Own

from cachelb import Router
from cachelb.policies import POLICIES
from cachelb.sim import FleetSpec, Incident, Signals, SimResult, Status, Workload, simulate

FLEET = FleetSpec.parse("4xa30")
COLUMNS = ("status", "first_token_s", "finish_s", "worker", "reason", "predicted_tokens", "cached_tokens", "samples")


def same(one: SimResult, other: SimResult) -> bool:
    return all(np.array_equal(getattr(one, key), getattr(other, key), equal_nan=True) for key in COLUMNS[1:3]) and all(
        getattr(one, key).tobytes() == getattr(other, key).tobytes() for key in COLUMNS
    )


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_serves_every_request(policy: str, chats: Workload) -> None:
    options: dict[str, Any] = {"base": "cache-aware"} if policy == "session" else {}
    result = simulate(chats, FLEET, policy, seed=1, **options)
    assert (result.status == Status.FINISHED).all()
    assert (result.first_token_s > result.arrival_s).all()
    assert (result.finish_s >= result.first_token_s).all()
    assert (result.cached_tokens < chats.prompt_tokens).all()


def test_the_default_is_the_routers_which_is_adaptive(chats: Workload) -> None:
    assert Router(["gpu0"]).policy == "adaptive"
    result = simulate(chats, FLEET, seed=1)
    assert result.policy == "adaptive"
    assert same(result, simulate(chats, FLEET, "adaptive", seed=1))


def test_policy_written_in_python_runs_the_same_router(chats: Workload) -> None:
    own = simulate(chats, FLEET, Own(lambda fleet: int(np.argmin(fleet.column("inflight")))), seed=1)
    assert own.policy == "own"
    assert own.finished.all()
    assert set(own.reasons) <= {"custom", "only-one"}
    assert set(own.worker) == {0, 1, 2, 3}
    assert own.worker[0] == 0
    assert own.predicted_tokens.sum() > 0


def test_an_oracle_predicts_what_is_cached(chats: Workload) -> None:
    small = FleetSpec.parse("4xa30", kv_tokens=25_000)
    chats = replace(chats, arrival_s=chats.arrival_s * 20)
    exact = simulate(chats, small, "kv-aware+oracle", seed=1, signals=Signals(net_delay_s=0))
    late = simulate(chats, small, "kv-aware", seed=1, signals=Signals(event_lag_s=60))
    wrong = [np.abs(one.predicted_tokens.astype(int) - one.cached_tokens).sum() for one in (exact, late)]
    assert wrong[0] < wrong[1] / 4, wrong


def test_progress_may_end_a_run(chats: Workload) -> None:
    def stop(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(chats, FLEET, progress=stop)


def test_router_is_as_it_was_left_by_the_run(chats: Workload) -> None:
    with pytest.raises(ValueError, match=r"incidents must be .* workers of the fleet"):
        simulate(chats, FLEET, incidents=(Incident(1.0, 9, "crash"),))
    with pytest.raises(ValueError, match='"crash", "join" or "drain", got "burn"'):
        simulate(chats, FLEET, incidents=(Incident(1.0, 0, "burn"),))
    with pytest.raises(ValueError, match="block_size"):
        simulate(chats, FleetSpec.parse("1xa30", block_size=64))


def test_a_tree_of_tokens_has_none_to_compare(chats: Workload) -> None:
    with pytest.raises(ValueError, match='index="radix" compares tokens'):
        simulate(chats, FLEET, "cache-aware", seed=1, index="radix")
