"""What gateways hear late or never, decisions that take time, and gateways that tell each other."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from tests.models.own_policy import Own
from tests.models.quiet_gateway import QuietGateway

from cachelb.policies import FleetView
from cachelb.sim import FleetSpec, Signals, SimResult, Workload, build, compare, simulate
from cachelb.sim.simulation import _SHARED_BYTES, _SHARED_TTL_S
from cachelb.state import ZmqMesh
from cachelb.state.options import megabytes

FLEET = FleetSpec.parse("4xa30")


class Listener(QuietGateway):
    """Goes round and notes what it hears."""

    def __init__(self) -> None:
        self.placed: list[float] = []
        self.heard: list[tuple[str, int, float]] = []
        self.queued: list[int | None] = []
        self.cached: list[int | None] = []

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int]:
        self.placed.append(now)
        return request % len(FLEET), request, 0, 0

    def first_token(self, ticket: int, now: float) -> None:
        self.heard.append(("first token", ticket, now))

    def tokens(self, ticket: int, count: int, now: float) -> None:
        self.heard.append((f"{count} tokens", ticket, now))

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        self.heard.append(("end", ticket, now))
        self.cached.append(cached_tokens)

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        self.queued.append(load[2])


def listened(workload: Workload, **signals: Any) -> tuple[Listener, SimResult]:
    listener = Listener()
    result = simulate(workload, FLEET, "listener", signals=Signals(**signals), gateway=listener)
    assert result.finished.all()
    return listener, result


def columns(result: SimResult) -> bytes:
    kept = (result.worker, result.first_token_s, result.finish_s, result.predicted_tokens, result.cached_tokens)
    return b"".join(each.tobytes() for each in kept)


# === notices ===


def test_oracle_is_told_all_of_it_at_once(chats: Workload) -> None:
    dim = {"report_queued_tokens": False, "report_cached_tokens": False, "first_token_delay_s": 1.0}
    exact, _ = listened(chats, oracle=True)
    listener, _ = listened(chats, oracle=True, **dim)
    assert listener.heard == exact.heard
    assert (listener.queued, listener.cached) == (exact.queued, exact.cached)


# === decisions ===


# === sharing ===


def known(result: SimResult) -> float:
    """Return the share of the cached tokens that gateways knew of."""
    assert result.finished.all()
    both = np.minimum(result.predicted_tokens, result.cached_tokens)
    return float(both.sum() / result.cached_tokens.sum())


def fullest(fleet: FleetView) -> int:
    """The worker that must compute the least of the prompt; of equals the one with the fewest requests."""
    return int(np.lexsort((fleet.column("inflight"), fleet.column("uncached_tokens")))[0])


@pytest.mark.parametrize("policy", ["adaptive", "cache-aware", "prefill-times-batch", Own(fullest)])
def test_gateways_that_share_know_what_others_placed(policy: Any) -> None:
    workload = build("prefix-10", seed=1, count=400)
    one, alone, shared = (
        simulate(workload, FLEET, policy, seed=1, gateways=count, sharing=sharing)
        for count, sharing in ((1, False), (4, False), (4, True))
    )
    assert known(shared) > known(alone) + 0.5 * (known(one) - known(alone))
    assert known(one) > known(alone) + 0.1


def test_sharing_has_the_defaults_of_a_mesh() -> None:
    usual = {name: each.default for name, each in inspect.signature(ZmqMesh).parameters.items()}
    assert usual["interval_s"] == Signals().sharing_lag_s
    assert (usual["ttl_s"], megabytes("max_mb", usual["max_mb"])) == (_SHARED_TTL_S, _SHARED_BYTES)


def test_compared_runs_share(chats: Workload) -> None:
    found = compare(chats, FLEET, ["cache-aware"], seeds=[1], gateways=4, sharing=True)
    (cell,) = found.cells
    alike = simulate(chats, FLEET, "cache-aware", seed=1, gateways=4, sharing=True)
    assert cell.result is not None
    assert columns(cell.result) == columns(alike)
    assert found.settings["sharing"] is True
